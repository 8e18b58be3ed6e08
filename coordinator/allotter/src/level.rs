//! What a session says of one key. Knows nothing of what becomes of it.

/// A session's levels and totals for one key: the part of a report that the
/// lease policy reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// The lease that the levels speak of; 0: none.
    pub generation: u64,
    /// Nothing of that lease is left or held any more.
    pub last: bool,
    /// The greatest granted total that the client had applied.
    pub granted_seen: u64,
    /// Units spent so far.
    pub spent_total: u64,
    /// Units handed back so far.
    pub returned_total: u64,
    /// Unspent units that it keeps.
    pub left: u64,
    /// Units taken but not decided.
    pub held: u64,
    /// How many more units it wants.
    pub want: u64,
    /// How many of those have a request waiting.
    pub waiting: u64,
    /// How many of those the first waiting request needs; 0 is read as 1.
    pub waiting_head: u64,
    /// How long the longest of them stays queued after a refusal.
    pub wait_us: u64,
    /// Most arrivals in any demand horizon lately.
    pub peak: u64,
    /// Smoothed demand in thousandths of a unit per second.
    pub demand_milli: u64,
}

impl Level {
    /// Whether a request waits for units.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Whether there is anything in it that the lease policy would remember.
    pub(crate) const fn is_blank(&self) -> bool {
        self.want == 0 && self.left == 0 && self.held == 0 && self.demand_milli == 0
    }
}
