//! Which of a policy's lanes a request is in. Knows no names and no policy.

/// How many lanes are told apart here; those below the last are one.
pub const LANES_MAX: usize = 8;

/// The lane of a request: its place in the policy's list, 0 is the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u32);

impl Lane {
    /// The lowest lane, however many there are: whoever names none is in it.
    pub const LOWEST: Self = Self(u32::MAX);

    /// Its place among so many lanes. One that is not there is the lowest.
    pub(crate) fn place(self, lanes: usize) -> usize {
        usize::try_from(self.0)
            .unwrap_or(usize::MAX)
            .min(lanes.saturating_sub(1))
    }
}

/// A lane of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRule {
    /// What requests call it.
    pub name: String,
    /// How long its requests wait for an answer at most.
    pub max_wait_ns: u64,
}
