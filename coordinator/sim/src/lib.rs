//! Leasehold in virtual time, and what it is compared with.
//!
//! Requests arrive ([`traffic`]) at a limiter ([`Limiter`]) that answers each at
//! once or later; what became of them is kept ([`Record`]) and judged by checkers
//! that look at admission instants only. [`system::Leasehold`] is the product
//! itself: the real ledger, the real lease policy and the real client core, with a
//! network of the simulator's between them. Everything else here is a design that
//! it is compared with.
//!
//! Time is a number in microseconds and randomness comes from a seed, so that the
//! same seed gives the same run to the last bit. No run knows a clock, a socket or a
//! thread; [`suite`]s make many runs side by side, and [`output`] shows them.

pub mod baseline;
mod bound;
mod drive;
mod limiter;
pub mod output;
mod record;
mod request;
pub mod retries;
pub mod scenario;
pub mod suite;
pub mod system;
pub mod traffic;

pub use bound::wait_bound_pct;
pub use drive::{Source, drive};
pub use limiter::{Limiter, Messages, Work};
pub use record::{Outcome, Record, Tally};
pub use request::{Answer, LOWEST_LANE, Request, Verdict};

/// Microseconds in a second.
pub const SECOND: u64 = 1_000_000;
/// Microseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000;
