//! Policies: the rule that an account follows. Knows nothing of accounts, time
//! or names of budgets.

use thiserror::Error;

/// The greatest limit, capacity, refill or cost: 2^53 − 1, so that every figure
/// survives JSON.
pub const UNITS_MAX: u64 = (1 << 53) - 1;
/// The shortest window or refill period.
pub const WINDOW_US_MIN: u64 = 100_000;
/// The longest window or refill period: 31 days.
pub const WINDOW_US_MAX: u64 = 31 * 24 * 3_600 * 1_000_000;

/// What a policy counts, and how units become free again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// At most `limit` units in any interval of `window_us`.
    SlidingWindow {
        /// Units, 0 to [`UNITS_MAX`]; 0 refuses everything.
        limit: u64,
        /// The window's length in microseconds.
        window_us: u64,
    },
    /// At most `capacity + refill × (t + one tick) / refill_period_us` units in
    /// any interval of length `t`.
    TokenBucket {
        /// Units that a full bucket holds; 0 refuses everything.
        capacity: u64,
        /// Units that come back in one refill period.
        refill: u64,
        /// The refill period in microseconds.
        refill_period_us: u64,
    },
}

/// What a client does when it holds nothing and nobody can be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureMode {
    /// Refuse.
    #[default]
    Closed,
    /// Allow, marked as degraded and outside the promise.
    Open,
}

/// A named rule. `Policy::validate` is the only judge of its ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What is counted.
    pub kind: Kind,
    /// A slice is this × recent demand, in thousandths (1,500 = 1.5 ×); 1,000 to 10,000.
    pub slice_factor_milli: u32,
    /// How long a waiting ask may wait, in microseconds; 1 ms to 60 s.
    pub max_wait_us: u64,
    /// What clients do without a coordinator.
    pub failure_mode: FailureMode,
    /// The name that end users see; 1 to 64 visible ASCII characters.
    pub public_name: String,
}
