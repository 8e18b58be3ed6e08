//! What an account counts, one file per kind. The books of a kind know their
//! limit and which units still count; they do not know who holds units, and are
//! told how many are outstanding where that matters.
//!
//! A new kind is a new file here and one more arm in [`Books`].

mod sliding_window;
mod token_bucket;

pub(crate) use sliding_window::{SlidingWindow, Slot};
pub(crate) use token_bucket::TokenBucket;

use crate::{exact, policy::Kind};

/// The books of one account: which units count, and until when.
///
/// Everywhere `limit + debt = counted + outstanding + free`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Books {
    SlidingWindow(SlidingWindow),
    TokenBucket(TokenBucket),
}

/// What an edit or a restore has to know of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now_us: u64,
    /// See [`crate::Ledger::inherited_until_us`].
    pub(crate) inherited_until_us: u64,
    pub(crate) drift_ppm: u32,
}

impl Moment {
    /// The latest time at which anything can have been spent that the books do
    /// not know of.
    fn unknown_until_us(&self) -> u64 {
        self.now_us.max(self.inherited_until_us)
    }
}

/// What an edit of the rule means for leases that are out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rebound {
    /// Grants continue in the same generation.
    Compatible,
    /// The kind or the window changed, or a unit counts longer: grants open a new
    /// generation.
    NewEpoch,
}

impl Books {
    /// Empty books for a rule.
    pub(crate) fn new(kind: &Kind, drift_ppm: u32, now_us: u64) -> Self {
        match *kind {
            Kind::SlidingWindow { limit, window_us } => {
                Self::SlidingWindow(SlidingWindow::new(limit, window_us, drift_ppm))
            }
            Kind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            } => Self::TokenBucket(TokenBucket::new(
                capacity,
                refill,
                refill_period_us,
                drift_ppm,
                now_us,
            )),
        }
    }

    /// Books in which nothing was free at `at_us`.
    pub(crate) fn exhausted(kind: &Kind, drift_ppm: u32, at_us: u64) -> Self {
        let mut books = Self::new(kind, drift_ppm, at_us);
        books.charge(books.limit(), at_us);
        books
    }

    /// Moves time: what no longer counts at `now_us` is dropped. Must precede
    /// every other change in an entry.
    pub(crate) fn settle(&mut self, now_us: u64) {
        match self {
            Self::SlidingWindow(books) => books.settle(now_us),
            Self::TokenBucket(books) => books.settle(now_us),
        }
    }

    /// The limit, or the bucket's capacity.
    pub(crate) const fn limit(&self) -> u64 {
        match self {
            Self::SlidingWindow(books) => books.limit(),
            Self::TokenBucket(books) => books.capacity(),
        }
    }

    /// Units that will still count at `now_us`, which is not before the last settling.
    pub(crate) fn counted_at(&self, now_us: u64) -> u64 {
        match self {
            Self::SlidingWindow(books) => books.counted_at(now_us),
            Self::TokenBucket(books) => books.counted_at(now_us),
        }
    }

    /// Counts units that were spent at `date_us` at the latest.
    pub(crate) fn charge(&mut self, units: u64, date_us: u64) {
        match self {
            Self::SlidingWindow(books) => books.charge(units, date_us),
            // When a bucket's unit was spent cannot matter: it starts to flow
            // back when it stops being outstanding.
            Self::TokenBucket(books) => books.charge(units),
        }
    }

    /// Whether presumed units can ever be refunded.
    pub(crate) const fn refunds(&self) -> bool {
        match self {
            Self::SlidingWindow(_) => true,
            // Part of them has flowed back already; nobody can say which.
            Self::TokenBucket(_) => false,
        }
    }

    /// Uncounts units that were charged with `date_us` and turned out unspent.
    /// Gives how many: none once they no longer count for their own date.
    pub(crate) fn refund(&mut self, units: u64, date_us: u64, now_us: u64) -> u64 {
        match self {
            Self::SlidingWindow(books) => books.refund(units, date_us, now_us),
            Self::TokenBucket(_) => 0,
        }
    }

    /// The first moment at which `units` of those counted no longer count; none
    /// when fewer are counted.
    pub(crate) fn drained_when(&self, units: u64) -> Option<u64> {
        match self {
            Self::SlidingWindow(books) => books.drained_when(units),
            Self::TokenBucket(books) => books.drained_when(units),
        }
    }

    /// The first moment at which nothing counts.
    pub(crate) fn idle_when(&self) -> u64 {
        match self {
            Self::SlidingWindow(books) => books.idle_when(),
            Self::TokenBucket(books) => books.idle_when(),
        }
    }

    /// Whether nothing counts.
    pub(crate) const fn is_idle(&self) -> bool {
        match self {
            Self::SlidingWindow(books) => books.counted() == 0,
            Self::TokenBucket(books) => books.counted() == 0,
        }
    }

    /// Follows an edited rule. The books are settled under the old one first.
    pub(crate) fn rebind(&mut self, kind: &Kind, moment: &Moment, outstanding: u64) -> Rebound {
        let Moment {
            now_us, drift_ppm, ..
        } = *moment;
        self.settle(now_us);
        let rebound = match (&mut *self, kind.clone()) {
            (Self::SlidingWindow(books), Kind::SlidingWindow { limit, window_us }) => {
                books.rebind(limit, window_us, moment, outstanding)
            }
            (
                Self::TokenBucket(books),
                Kind::TokenBucket {
                    capacity,
                    refill,
                    refill_period_us,
                },
            ) => {
                books.rebind(capacity, refill, refill_period_us, drift_ppm);
                Rebound::Compatible
            }
            _ => {
                // What the old kind has forgotten may still matter to the new
                // one: nothing is free, and the remainder counts from now on.
                let counted = self.counted_at(now_us);
                let at_us = moment.unknown_until_us();
                let mut books = Self::new(kind, drift_ppm, at_us);
                let remainder = books.limit().saturating_sub(outstanding);
                books.charge(counted.max(remainder), at_us);
                *self = books;
                Rebound::NewEpoch
            }
        };
        self.keep_inherited(kind, moment, outstanding);
        rebound
    }

    /// After a restore, an edit may repeat one that the backup does not have: the
    /// account has no more free than one that was first heard of now.
    fn keep_inherited(&mut self, kind: &Kind, moment: &Moment, outstanding: u64) {
        let until_us = moment.inherited_until_us;
        if until_us == 0 {
            return;
        }
        let unknown = Self::exhausted(kind, moment.drift_ppm, until_us).counted_at(moment.now_us);
        let known = exact::add(self.counted_at(moment.now_us), outstanding);
        self.charge(unknown.saturating_sub(known), until_us);
    }

    /// Units that can be granted at `now_us`.
    pub(crate) fn free_at(&self, now_us: u64, outstanding: u64) -> u64 {
        self.limit()
            .saturating_sub(exact::add(self.counted_at(now_us), outstanding))
    }

    /// The first moment at which `units` can be granted by time alone; none when
    /// they cannot, because they exceed the limit or because of what is outstanding.
    pub(crate) fn free_when(&self, units: u64, now_us: u64, outstanding: u64) -> Option<u64> {
        let may_count = self.limit().checked_sub(outstanding)?.checked_sub(units)?;
        // What the books hold, dropped or not: `drained_when` counts from there.
        let excess = self.held().saturating_sub(may_count);
        if excess == 0 {
            return Some(now_us);
        }
        self.drained_when(excess).map(|when_us| when_us.max(now_us))
    }

    /// Units in the books as last settled.
    const fn held(&self) -> u64 {
        match self {
            Self::SlidingWindow(books) => books.counted(),
            Self::TokenBucket(books) => books.counted(),
        }
    }

    /// The hash of everything in the books that is not the rule's.
    pub(crate) fn hash(&self) -> u64 {
        match self {
            Self::SlidingWindow(books) => books.hash(),
            Self::TokenBucket(books) => books.hash(),
        }
    }
}

/// Whether a key without an account starts exhausted after this edit, as an
/// account that exists would: what was forgotten under `old` matters to `new`.
pub(crate) const fn forgets_too_early(old: &Kind, new: &Kind) -> bool {
    match (old, new) {
        (
            Kind::SlidingWindow { window_us: old, .. },
            Kind::SlidingWindow { window_us: new, .. },
        ) => *new > *old,
        (Kind::TokenBucket { .. }, Kind::TokenBucket { .. }) => false,
        _ => true,
    }
}
