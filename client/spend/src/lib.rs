//! The lock-free spending core of the Leasehold client.
mod books;
mod clock;
mod line;
mod queue;
mod refill;
mod slot;
mod sync;
mod verdict;
mod waiting;
mod word;

pub use books::Totals;
pub use clock::{At, Clock, MILLISECOND, SECOND};
pub use line::Line;
pub use queue::Patience;
pub use refill::{Granted, Sample};
pub use slot::{Counts, Slot, SlotRule};
pub use verdict::{Code, Verdict};
pub use waiting::{Begun, Hold, Waiter};

#[cfg(all(test, loom))]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests"
)]
mod loom_models;
