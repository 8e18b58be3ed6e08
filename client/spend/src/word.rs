//! The one word that a spender swaps: units left, five flags, and a tag that
//! changes with every lease. Knows nothing of deadlines or totals.

/// Bits of the unit count.
const LEFT_BITS: u32 = 40;
/// The most units that a slot can have left; what is granted beyond it is handed back.
pub(crate) const LEFT_MAX: u64 = (1 << LEFT_BITS) - 1;
/// Requests wait in the queue: nobody may overtake them.
pub(crate) const QUEUED: u64 = 1 << LEFT_BITS;
/// Nothing will ever be admitted from this slot again.
pub(crate) const CLOSED: u64 = 1 << (LEFT_BITS + 1);
/// Units go out under the lock only, in their turn: the key cools down or is paced.
pub(crate) const GATED: u64 = 1 << (LEFT_BITS + 2);
/// What is admitted is an estimate.
pub(crate) const ESTIMATE: u64 = 1 << (LEFT_BITS + 3);
/// Units are permits, which the fast path leaves alone.
pub(crate) const OFF_PATH: u64 = 1 << (LEFT_BITS + 4);
/// One step of the tag. It takes 19 bits and wraps: a spender would have to
/// sleep between two of its instructions through 524,288 leases of one key,
/// and wake up at exactly the same count, to mistake one for another.
const TAG_ONE: u64 = 1 << (LEFT_BITS + 5);

/// A value of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    pub(crate) fn left(self) -> u64 {
        self.0 & LEFT_MAX
    }

    pub(crate) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    pub(crate) fn is_off_path(self) -> bool {
        self.0 & OFF_PATH != 0
    }

    pub(crate) fn is_gated(self) -> bool {
        self.0 & GATED != 0
    }

    /// Whether `try_spend` must leave the units alone.
    pub(crate) fn is_barred(self) -> bool {
        self.0 & (CLOSED | QUEUED | GATED | OFF_PATH) != 0
    }

    /// The first word of the next lease: another tag, nothing left.
    pub(crate) fn next_lease(self) -> Self {
        Self((self.0 & !LEFT_MAX).wrapping_add(TAG_ONE))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_next_lease_keeps_the_flags_and_changes_the_tag() {
        let word = Word(7 | QUEUED | ESTIMATE | OFF_PATH);
        let next = word.next_lease();
        assert_eq!(next.left(), 0);
        assert!(next.is_barred());
        assert_ne!(next.0 & !LEFT_MAX, word.0 & !LEFT_MAX);
        assert!(!next.is_closed());
        assert_eq!(next.0 & ESTIMATE, ESTIMATE);
    }

    #[test]
    fn the_tag_wraps_without_touching_the_flags() {
        let last = Word(!(QUEUED | CLOSED | GATED | ESTIMATE | OFF_PATH));
        assert_eq!(last.next_lease(), Word(0));
    }
}
