//! Judges what gateways and operators saw against the promise: one invariant a
//! file, each a pure function over recorded histories.
//!
//! Knows nothing of the ledger, the protocol, the client or the coordinator, so
//! that a mistake in any of them cannot hide itself here. It sees calls and
//! returns only: an interval is violated when more units than the promise allows
//! were admitted by calls that began and returned inside it. All intervals
//! count, not only aligned ones.
//!
//! ```
//! use leasehold_checkers::{Admission, Promise};
//!
//! let promise = Promise::Window { limit: 2, window_us: 1_000 };
//! let at = |ns| Admission { units: 1, call_ns: ns, return_ns: ns + 10 };
//! let kept = promise.judge(&[at(0), at(500_000), at(1_500_000)]);
//! assert_eq!((kept.over_admitted, kept.worst_units), (0, 2));
//! let broken = promise.judge(&[at(0), at(500_000), at(900_000)]);
//! assert_eq!(broken.over_admitted, 1);
//! ```

mod admissions;
mod agreement;
mod bucket_exactness;
mod charges;
mod concurrency_exactness;
mod conservation;
mod corrections;
mod edited_exactness;
mod history;
mod linearizability;
mod liveness;
mod lost_acks;
mod lost_units;
mod period_exactness;
mod records;
mod reopening;
mod total_exactness;
mod verdict;
mod window_exactness;

pub use admissions::{Admission, AdmissionLog, AdmissionWriter, LogError};
pub use agreement::{books_agree, digests_agree};
pub use charges::{all_or_none, settlements};
pub use concurrency_exactness::judge_permits;
pub use conservation::conservation;
pub use edited_exactness::judge_edited;
pub use history::{
    AccountSample, Act, DigestSample, Edit, Healed, History, HistoryWriter, Lifetime, Operation,
    Outage, Pause, Position, Quiet, Record, Request, Spent,
};
pub use linearizability::linearizability;
pub use liveness::{Resumption, grants_resume, patience};
pub use lost_acks::lost_acks;
pub use lost_units::lost_units;
pub use period_exactness::{PeriodQuota, judge_periods, period_books};
pub use records::{Change, ChargeSample, Correction, Joint, PeriodSample, PermitLook, Settlement};
pub use reopening::judge_without_outages;
pub use total_exactness::{judge_total, total_books};
pub use verdict::{Verdict, Violation};

use serde::{Deserialize, Serialize};

/// What a key's budget promises, in the units of its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Promise {
    /// At most `limit` units in any interval of `window_us`.
    Window {
        /// Units.
        limit: u64,
        /// The window in microseconds.
        window_us: u64,
    },
    /// At most `capacity + refill × (t + tick) / refill_period` units in any
    /// interval of length `t`.
    Bucket {
        /// Units that a full bucket holds.
        capacity: u64,
        /// Units that come back in one refill period.
        refill: u64,
        /// The refill period in microseconds.
        refill_period_us: u64,
        /// One clock tick in microseconds.
        tick_us: u64,
    },
}

impl Promise {
    /// Judges the admissions of one key, in any order.
    #[must_use]
    pub fn judge(&self, admissions: &[Admission]) -> Judgement {
        let admitted = admissions
            .iter()
            .fold(0_u64, |sum, admission| sum.saturating_add(admission.units));
        let (worst, limit) = match *self {
            Self::Window { limit, window_us } => {
                (window_exactness::worst(admissions, window_us), limit)
            }
            Self::Bucket {
                capacity,
                refill,
                refill_period_us,
                tick_us,
            } => {
                let bucket = bucket_exactness::Bucket {
                    capacity,
                    refill,
                    refill_period_us,
                    tick_us,
                };
                (bucket_exactness::worst(admissions, bucket), capacity)
            }
        };
        Judgement {
            admitted,
            worst_units: worst.units,
            worst_from_ns: worst.from_ns,
            worst_to_ns: worst.to_ns,
            over_admitted: worst.charged.saturating_sub(limit),
            worst_ratio: share(worst.charged, limit),
        }
    }
}

/// What became of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// Units admitted in all.
    pub admitted: u64,
    /// Units admitted in the interval that used most of what it may.
    pub worst_units: u64,
    /// That interval's beginning.
    pub worst_from_ns: u64,
    /// That interval's end.
    pub worst_to_ns: u64,
    /// Units admitted beyond the promise in that interval; 0: the promise was kept.
    pub over_admitted: u64,
    /// What that interval used as a share of the limit (for a bucket: what it
    /// used beyond its refill, as a share of the capacity). Above 1 exactly when
    /// the promise was broken; with a limit of 0 it is the units themselves.
    pub worst_ratio: f64,
}

/// An interval and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Worst {
    from_ns: u64,
    to_ns: u64,
    /// Units admitted inside.
    units: u64,
    /// What of them the limit must cover, rounded up.
    charged: u64,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a ratio for people; exactness is judged in integers"
)]
fn share(units: u64, limit: u64) -> f64 {
    units as f64 / limit.max(1) as f64
}
