//! What a session says of one key. Knows nothing of what becomes of it.

/// A session's levels and totals for one key: the part of a report that the
/// lease policy reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// The waiting requests by lane, the highest first. Empty: all of them are of the
    /// lowest lane.
    pub lanes: Vec<LaneLevel>,
    /// Most arrivals in any demand horizon lately.
    pub peak: u64,
    /// Smoothed demand in thousandths of a unit per second.
    pub demand_milli: u64,
}

/// What waits in one lane: the same words as in [`Level`], of this lane alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneLevel {
    /// Its place in the policy's list, 0 is the highest.
    pub lane: u32,
    /// Units that requests wait for.
    pub waiting: u64,
    /// What the first of them needs; 0 is read as 1.
    pub head: u64,
    /// How long the longest of them stays queued after a refusal.
    pub wait_us: u64,
}

impl Level {
    /// The waiting requests by lane, in order: those of who says nothing of lanes are
    /// of the lowest.
    pub(crate) fn by_lane(&self) -> Vec<LaneLevel> {
        if !self.lanes.is_empty() {
            let mut lanes = self.lanes.clone();
            lanes.sort_by_key(|lane| lane.lane);
            return lanes;
        }
        vec![LaneLevel {
            lane: u32::MAX,
            waiting: self.waiting,
            head: self.waiting_head,
            wait_us: self.wait_us,
        }]
    }

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
