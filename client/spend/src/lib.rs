//! The spending core of the Leasehold client.
//!
//! A gateway spends units of *leases* that the coordinator granted to its
//! session. This crate decides about every unit, and knows neither a runtime nor
//! a transport nor a clock nor randomness: time is an argument ([`Clock`]),
//! messages are plain data ([`message`]), and waiting is a poll.
//!
//! - [`Slot`]: one key's units. [`Slot::try_spend`] takes with one
//!   compare-and-swap, then looks at the clock; no lock, no allocation.
//! - [`ClientCore`]: one client's session with all its keys, a state machine
//!   that a driver task or a simulator polls.
//!
//! ```
//! use std::sync::Arc;
//! use leasehold_spend::{At, Code, Line, Slot, Verdict};
//!
//! let slot = Slot::new(0, Arc::new(Line::new(1, || ())), 16, 250_000_000);
//! let deadline_ns = 1_000;
//! slot.grant(7, 2, deadline_ns);
//! assert_eq!(slot.try_spend(1, &At(999)), Verdict::Admitted);
//! // The second unit is taken too late: it is forfeit.
//! assert_eq!(slot.try_spend(1, &At(1_000)), Verdict::Unavailable { code: Code::Disconnected });
//! ```

mod ages;
mod books;
mod clock;
mod core;
mod demand;
mod failure;
mod gate;
mod key;
mod kind;
mod lane;
mod line;
pub mod message;
mod own;
mod peek;
mod permit;
mod queue;
mod refill;
mod reserve;
mod slot;
mod sync;
mod together;
mod verdict;
mod waiting;
mod word;

pub use crate::core::{ClientCore, CoreSettings};
pub use books::Totals;
pub use clock::{At, Clock, MILLISECOND, SECOND};
pub use failure::FailureMode;
pub use kind::BudgetKind;
pub use lane::{LANES_MAX, Lane, LaneRule};
pub use line::Line;
pub use peek::{Peek, Quota};
pub use permit::Permit;
pub use queue::Patience;
pub use refill::{Granted, LaneSample, Sample};
pub use reserve::{Reservation, Settled};
pub use slot::{Counts, Slot, SlotRule};
pub use together::{Joint, Together};
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
