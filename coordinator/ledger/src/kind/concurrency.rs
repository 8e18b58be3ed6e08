//! At most `limit` permits at one moment. A permit counts while it is outstanding
//! and no longer: what is said to be spent has ended. Only after a restore, units
//! count until nothing of the cluster before can be in use any more.

use crate::{digest, exact};

/// The books of a concurrency budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Concurrency {
    limit: u64,
    /// Permits that may be in use though nobody holds a lease of them.
    unknown: u64,
    /// Until when that can be.
    unknown_until_us: u64,
}

impl Concurrency {
    pub(crate) const fn new(limit: u64) -> Self {
        Self {
            limit,
            unknown: 0,
            unknown_until_us: 0,
        }
    }

    /// The books as a snapshot had them.
    pub(crate) const fn restore(mut self, unknown: u64, unknown_until_us: u64) -> Self {
        self.unknown = unknown;
        self.unknown_until_us = unknown_until_us;
        self
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Permits that may be in use, and until when.
    pub(crate) const fn unknown(&self) -> (u64, u64) {
        (self.unknown, self.unknown_until_us)
    }

    pub(crate) const fn settle(&mut self, now_us: u64) {
        if self.unknown_until_us <= now_us {
            self.unknown = 0;
            self.unknown_until_us = 0;
        }
    }

    pub(crate) const fn counted_at(&self, now_us: u64) -> u64 {
        if self.unknown_until_us <= now_us {
            0
        } else {
            self.unknown
        }
    }

    /// Permits that may be in use until `until_us`. Settling drops what is past.
    pub(crate) fn charge(&mut self, units: u64, until_us: u64) {
        if units > 0 {
            self.unknown = exact::add(self.unknown, units);
            self.unknown_until_us = self.unknown_until_us.max(until_us);
        }
    }

    pub(crate) const fn rebind(&mut self, limit: u64) {
        self.limit = limit;
    }

    pub(crate) fn hash(&self) -> u64 {
        digest::words([5, self.unknown, self.unknown_until_us])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_that_ended_do_not_count() {
        let mut books = Concurrency::new(3);
        books.charge(2, 100);
        books.settle(100);
        assert_eq!((books.counted_at(100), books.unknown()), (0, (0, 0)));
    }

    #[test]
    fn what_may_be_in_use_elsewhere_counts_until_it_cannot() {
        let mut books = Concurrency::new(3);
        books.charge(3, 200);
        books.settle(100);
        assert_eq!((books.counted_at(199), books.counted_at(200)), (3, 0));
    }
}
