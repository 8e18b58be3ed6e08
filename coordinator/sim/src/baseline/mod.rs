//! The designs that Leasehold is compared with, each over a store made generous: it
//! keeps the exact moment of every admission, and a sync takes no time. What is
//! left is the error of the design alone. None knows traffic.

mod ask_when_empty;
mod assume_others;
mod central_log;
mod design;
mod exact;
mod keys;
mod leased;
mod plain_leases;
mod shared_counter;
mod split;
mod synced;
mod syncs;
mod track_share;

#[cfg(test)]
mod tests;

pub use ask_when_empty::AskWhenEmpty;
pub use assume_others::AssumeOthers;
pub use central_log::CentralLog;
pub use design::Design;
pub use exact::{Exact, Log, Window};
pub use keys::Keys;
pub use plain_leases::PlainLeases;
pub use shared_counter::SharedCounter;
pub use split::Split;
pub use syncs::{Offsets, Syncs};
pub use track_share::TrackShare;

use crate::{Answer, Request, Verdict};

/// The answer of a gateway that asked nobody, which cannot say when to try again.
fn local(request: &Request, admitted: bool) -> Answer {
    Answer {
        id: request.id,
        at_us: request.at_us,
        verdict: if admitted {
            Verdict::Admitted
        } else {
            Verdict::Refused {
                retry_after_us: None,
            }
        },
        waited: false,
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
fn real(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are not negative; `as` saturates"
)]
fn whole(count: f64) -> u64 {
    count as u64
}
