//! At most `limit` units, and what corrections added, ever. Knows no time: what
//! was spent stays spent.

use crate::{digest, exact, policy::UNITS_MAX};

/// The books of a total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Total {
    limit: u64,
    /// What corrections added to the limit, less what they took.
    added: i64,
    counted: u64,
}

impl Total {
    pub(crate) const fn new(limit: u64) -> Self {
        Self {
            limit,
            added: 0,
            counted: 0,
        }
    }

    /// The books as a snapshot had them.
    pub(crate) const fn restore(mut self, added: i64, counted: u64) -> Self {
        self.added = added;
        self.counted = counted;
        self
    }

    /// What corrections added.
    pub(crate) const fn added(&self) -> i64 {
        self.added
    }

    /// Units that may be spent in all.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.saturating_add_signed(self.added).min(UNITS_MAX)
    }

    /// By how much corrections took more than there was.
    pub(crate) const fn deficit(&self) -> u64 {
        match self.limit.checked_add_signed(self.added) {
            Some(_) => 0,
            None => self.added.unsigned_abs().saturating_sub(self.limit),
        }
    }

    /// The policy's own limit.
    pub(crate) const fn base_limit(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn counted(&self) -> u64 {
        self.counted
    }

    pub(crate) const fn charge(&mut self, units: u64) {
        self.counted = exact::add(self.counted, units);
    }

    /// Uncounts units that turned out unspent; gives how many.
    pub(crate) fn refund(&mut self, units: u64) -> u64 {
        let refunded = units.min(self.counted);
        self.counted = exact::sub(self.counted, refunded);
        refunded
    }

    /// Adds to the limit, or takes from it; none when the sum is out of range.
    pub(crate) fn correct(&mut self, units: i64) -> Option<()> {
        let added = self.added.checked_add(units)?;
        let limit = i128::from(self.limit).checked_add(added.into())?;
        if added.unsigned_abs() > UNITS_MAX || limit > UNITS_MAX.into() {
            return None;
        }
        self.added = added;
        Some(())
    }

    pub(crate) const fn rebind(&mut self, limit: u64) {
        self.limit = limit;
    }

    pub(crate) fn hash(&self) -> u64 {
        digest::words([
            4,
            self.added.unsigned_abs(),
            u64::from(self.added < 0),
            self.counted,
        ])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_wrap, reason = "tests")]

    use super::*;

    #[test]
    fn corrections_move_the_limit_and_nothing_else() {
        let mut books = Total::new(5);
        books.charge(3);
        assert_eq!(books.correct(10), Some(()));
        assert_eq!((books.limit(), books.counted()), (15, 3));
        assert_eq!(books.correct(-20), Some(()));
        assert_eq!((books.limit(), books.counted()), (0, 3));
        assert_eq!(books.deficit(), 5);
        assert_eq!(books.correct(7), Some(()));
        assert_eq!(books.limit(), 2, "a negative balance is made up for first");
        assert_eq!(books.deficit(), 0);
    }

    #[test]
    fn a_correction_out_of_range_changes_nothing() {
        let mut books = Total::new(1);
        assert_eq!(books.correct(UNITS_MAX as i64), None);
        assert_eq!(books.correct(UNITS_MAX as i64 - 1), Some(()));
        assert_eq!(books.correct(1), None);
        assert_eq!(books.limit(), UNITS_MAX);
        assert_eq!(books.correct(i64::MIN), None);
    }
}
