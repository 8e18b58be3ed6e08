//! What an account counts, one file per kind. The books of a kind know their
//! limit and which units still count; they do not know who holds units, and are
//! told how many are outstanding where that matters.
//!
//! A new kind is a new file here and one more arm in [`Books`].

mod concurrency;
mod period;
mod periods;
mod sliding_window;
mod token_bucket;
mod total;

pub(crate) use concurrency::Concurrency;
pub use period::Period;
pub(crate) use period::PeriodQuota;
pub(crate) use periods::Periods;
pub(crate) use sliding_window::{SlidingWindow, Slot};
pub(crate) use token_bucket::TokenBucket;
pub(crate) use total::Total;

use crate::{
    digest, exact,
    policy::{Kind, UNITS_MAX},
};

/// The books of one account: which units count, and until when.
///
/// Everywhere `limit + debt = counted + outstanding + free`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Books {
    SlidingWindow(SlidingWindow),
    /// Of a paced budget too: pacing is the holders'.
    TokenBucket(TokenBucket),
    Period(PeriodQuota),
    Total(Total),
    Concurrency(Concurrency),
    /// Told by holders rather than granted to them.
    Estimate(SlidingWindow),
    /// Only lifetime totals.
    Unlimited,
}

/// What an edit or a restore has to know of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment<'a> {
    pub(crate) now_us: u64,
    /// See [`crate::Ledger::inherited_until_us`].
    pub(crate) inherited_until_us: u64,
    pub(crate) drift_ppm: u32,
    pub(crate) periods: &'a Periods,
}

impl Moment<'_> {
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
    /// The kind, the window or the calendar changed, or a unit counts longer: grants
    /// open a new generation.
    NewEpoch,
}

impl Books {
    /// Empty books for a rule.
    pub(crate) fn new(kind: &Kind, drift_ppm: u32, now_us: u64, periods: &Periods) -> Self {
        match kind {
            Kind::SlidingWindow { limit, window_us } => {
                Self::SlidingWindow(SlidingWindow::new(*limit, *window_us, drift_ppm))
            }
            Kind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            }
            | Kind::Paced {
                capacity,
                refill,
                refill_period_us,
            } => Self::TokenBucket(TokenBucket::new(
                *capacity,
                *refill,
                *refill_period_us,
                drift_ppm,
                now_us,
            )),
            Kind::Period {
                limit,
                calendar,
                carry_over,
            } => Self::Period(PeriodQuota::new(*limit, *carry_over, periods.get(calendar))),
            Kind::Total { limit } => Self::Total(Total::new(*limit)),
            Kind::Concurrency { limit } => Self::Concurrency(Concurrency::new(*limit)),
            Kind::Estimate { limit, window_us } => {
                Self::Estimate(SlidingWindow::new(*limit, *window_us, drift_ppm))
            }
            Kind::Unlimited => Self::Unlimited,
        }
    }

    /// Books in which nothing was free at `at_us`. A period that began later is not
    /// concerned.
    pub(crate) fn exhausted(kind: &Kind, drift_ppm: u32, at_us: u64, periods: &Periods) -> Self {
        let mut books = Self::new(kind, drift_ppm, at_us, periods);
        let began_later = kind
            .calendar()
            .and_then(|calendar| periods.get(calendar))
            .is_some_and(|period| period.began_us > at_us);
        if !began_later {
            books.charge(books.limit(), at_us);
        }
        books
    }

    /// Moves time: what no longer counts at `now_us` is dropped. Must precede
    /// every other change in an entry.
    pub(crate) fn settle(&mut self, now_us: u64) {
        match self {
            Self::SlidingWindow(books) | Self::Estimate(books) => books.settle(now_us),
            Self::TokenBucket(books) => books.settle(now_us),
            Self::Concurrency(books) => books.settle(now_us),
            // A period ends with an entry that says so: see `roll`.
            Self::Period(_) | Self::Total(_) | Self::Unlimited => {}
        }
    }

    /// The limit, or the bucket's capacity, with what was carried over or added.
    pub(crate) fn limit(&self) -> u64 {
        match self {
            Self::SlidingWindow(books) | Self::Estimate(books) => books.limit(),
            Self::TokenBucket(books) => books.capacity(),
            Self::Period(books) => books.limit(),
            Self::Total(books) => books.limit(),
            Self::Concurrency(books) => books.limit(),
            Self::Unlimited => UNITS_MAX,
        }
    }

    /// The largest cost that may be admitted, now or another time.
    pub(crate) fn largest_cost(&self, kind: &Kind) -> u64 {
        self.limit().max(kind.largest_cost())
    }

    /// The limit of the policy that the books follow.
    pub(crate) fn base_limit(&self) -> u64 {
        match self {
            Self::Period(books) => books.base_limit(),
            Self::Total(books) => books.base_limit(),
            _ => self.limit(),
        }
    }

    /// About when the next period begins, with other units than this one; 0: none has
    /// begun yet.
    pub(crate) const fn next_period_us(&self) -> Option<u64> {
        match self {
            Self::Period(books) => Some(books.end_us_about()),
            _ => None,
        }
    }

    /// Units that are free when the next period begins, if nothing else happens.
    pub(crate) fn free_in_next_period(&self, outstanding: u64) -> Option<u64> {
        match self {
            Self::Period(books) => books.free_in_next(outstanding),
            _ => None,
        }
    }

    /// Whether holders tell what they spent, rather than being granted it.
    pub(crate) const fn tells(&self) -> bool {
        matches!(self, Self::Estimate(_) | Self::Unlimited)
    }

    /// Whether units can be spent for good, rather than used for a while.
    pub(crate) const fn can_be_spent(&self) -> bool {
        !matches!(self, Self::Concurrency(_))
    }

    /// Units that will still count at `now_us`, which is not before the last settling.
    pub(crate) fn counted_at(&self, now_us: u64) -> u64 {
        match self {
            Self::SlidingWindow(books) | Self::Estimate(books) => books.counted_at(now_us),
            Self::TokenBucket(books) => books.counted_at(now_us),
            Self::Period(books) => books.counted(),
            Self::Total(books) => books.counted(),
            Self::Concurrency(books) => books.counted_at(now_us),
            Self::Unlimited => 0,
        }
    }

    /// Counts units that were spent at `date_us` at the latest.
    pub(crate) fn charge(&mut self, units: u64, date_us: u64) {
        match self {
            Self::SlidingWindow(books) => books.charge(units, date_us),
            // What holders tell has no bound but this one.
            Self::Estimate(books) => {
                let room = UNITS_MAX.saturating_sub(books.counted());
                books.charge(units.min(room), date_us);
            }
            // When a bucket's unit was spent cannot matter: it starts to flow
            // back when it stops being outstanding.
            Self::TokenBucket(books) => books.charge(units),
            Self::Period(books) => books.charge(units),
            Self::Total(books) => books.charge(units),
            Self::Concurrency(books) => books.charge(units, date_us),
            Self::Unlimited => {}
        }
    }

    /// Whether presumed units can ever be refunded.
    pub(crate) const fn refunds(&self) -> bool {
        match self {
            Self::SlidingWindow(_) | Self::Period(_) | Self::Total(_) => true,
            // Part of a bucket's have flowed back already, nobody can say which; the
            // others' are not counted in the first place.
            Self::TokenBucket(_) | Self::Concurrency(_) | Self::Estimate(_) | Self::Unlimited => {
                false
            }
        }
    }

    /// Uncounts units that were charged with `date_us` and turned out unspent.
    /// Gives how many: none once they no longer count for their own date.
    pub(crate) fn refund(&mut self, units: u64, date_us: u64, now_us: u64) -> u64 {
        match self {
            Self::SlidingWindow(books) => books.refund(units, date_us, now_us),
            Self::Period(books) => books.refund(units),
            Self::Total(books) => books.refund(units),
            Self::TokenBucket(_) | Self::Concurrency(_) | Self::Estimate(_) | Self::Unlimited => 0,
        }
    }

    /// Uncounts units by hand, those that would count longest first. Gives how many.
    pub(crate) fn uncount(&mut self, units: u64) -> u64 {
        match self {
            Self::SlidingWindow(books) | Self::Estimate(books) => books.uncount(units),
            Self::TokenBucket(books) => books.uncount(units),
            Self::Period(books) => books.refund(units),
            Self::Total(_) | Self::Concurrency(_) | Self::Unlimited => 0,
        }
    }

    /// Begins the period that it is now, if these books do not know it yet. Gives the
    /// log index of the entry that began it.
    pub(crate) fn roll(&mut self, kind: &Kind, periods: &Periods, outstanding: u64) -> Option<u64> {
        let Self::Period(books) = self else {
            return None;
        };
        let period = periods.get(kind.calendar()?)?;
        books.roll(period, outstanding).then_some(period.index)
    }

    /// Whether `roll` would change anything.
    pub(crate) fn is_behind(&self, kind: &Kind, periods: &Periods) -> bool {
        match (self, kind.calendar()) {
            (Self::Period(books), Some(calendar)) => periods
                .get(calendar)
                .is_some_and(|period| books.is_behind(period)),
            _ => false,
        }
    }

    /// The first moment at which `units` of those counted no longer count; none
    /// when fewer are counted, or when time alone does not free them.
    pub(crate) fn drained_when(&self, units: u64) -> Option<u64> {
        match self {
            Self::SlidingWindow(books) | Self::Estimate(books) => books.drained_when(units),
            Self::TokenBucket(books) => books.drained_when(units),
            Self::Period(books) => (units <= books.counted()).then(|| books.end_us_about()),
            Self::Concurrency(books) => {
                let (unknown, until_us) = books.unknown();
                (units <= unknown).then_some(until_us)
            }
            Self::Total(_) | Self::Unlimited => None,
        }
    }

    /// The first moment at which nothing counts.
    pub(crate) fn idle_when(&self) -> u64 {
        match self {
            Self::SlidingWindow(books) | Self::Estimate(books) => books.idle_when(),
            Self::TokenBucket(books) => books.idle_when(),
            Self::Concurrency(books) => books.unknown().1,
            // What was spent of them is never forgotten.
            Self::Period(_) | Self::Total(_) | Self::Unlimited => u64::MAX,
        }
    }

    /// Whether nothing counts, and nothing has to be remembered.
    pub(crate) const fn is_idle(&self) -> bool {
        match self {
            Self::SlidingWindow(books) | Self::Estimate(books) => books.counted() == 0,
            Self::TokenBucket(books) => books.counted() == 0,
            Self::Concurrency(books) => books.unknown().0 == 0,
            Self::Period(_) | Self::Total(_) | Self::Unlimited => false,
        }
    }

    /// Follows an edited rule. The books are settled under the old one first, and in
    /// the present period of it.
    pub(crate) fn rebind(
        &mut self,
        old: &Kind,
        kind: &Kind,
        moment: &Moment<'_>,
        outstanding: u64,
    ) -> Rebound {
        let Moment {
            now_us, drift_ppm, ..
        } = *moment;
        self.settle(now_us);
        let rebound = match (&mut *self, kind) {
            (Self::SlidingWindow(books), Kind::SlidingWindow { limit, window_us })
            | (Self::Estimate(books), Kind::Estimate { limit, window_us }) => {
                books.rebind(*limit, *window_us, moment, outstanding)
            }
            (
                Self::TokenBucket(books),
                Kind::TokenBucket {
                    capacity,
                    refill,
                    refill_period_us,
                }
                | Kind::Paced {
                    capacity,
                    refill,
                    refill_period_us,
                },
            ) => {
                books.rebind(*capacity, *refill, *refill_period_us, drift_ppm);
                Rebound::Compatible
            }
            (
                Self::Period(books),
                Kind::Period {
                    limit,
                    calendar,
                    carry_over,
                },
            ) => {
                books.rebind(*limit, *carry_over);
                if old.calendar() == Some(calendar) {
                    Rebound::Compatible
                } else {
                    books.move_to(moment.periods.get(calendar));
                    Rebound::NewEpoch
                }
            }
            (Self::Total(books), Kind::Total { limit }) => {
                books.rebind(*limit);
                Rebound::Compatible
            }
            (Self::Concurrency(books), Kind::Concurrency { limit }) => {
                books.rebind(*limit);
                Rebound::Compatible
            }
            (Self::Unlimited, Kind::Unlimited) => Rebound::Compatible,
            _ => {
                self.become_another_kind(kind, moment, outstanding);
                Rebound::NewEpoch
            }
        };
        self.keep_inherited(kind, moment, outstanding);
        rebound
    }

    fn become_another_kind(&mut self, kind: &Kind, moment: &Moment<'_>, outstanding: u64) {
        let counted = self.counted_at(moment.now_us);
        let at_us = moment.unknown_until_us();
        let mut books = Self::new(kind, moment.drift_ppm, at_us, moment.periods);
        let charged = if kind.looks_back() {
            // What the old kind has forgotten may still matter to the new one:
            // nothing is free, and the remainder counts from now on.
            counted.max(books.limit().saturating_sub(outstanding))
        } else {
            // It counts what is charged to it from now on, beginning with what
            // counts now. Permits are not spent.
            counted
        };
        if books.can_be_spent() {
            books.charge(charged, at_us);
        }
        *self = books;
    }

    /// After a restore, an edit may repeat one that the backup does not have: the
    /// account has no more free than one that was first heard of now.
    fn keep_inherited(&mut self, kind: &Kind, moment: &Moment<'_>, outstanding: u64) {
        let until_us = moment.inherited_until_us;
        if until_us == 0 {
            return;
        }
        let unknown = Self::exhausted(kind, moment.drift_ppm, until_us, moment.periods)
            .counted_at(moment.now_us);
        let known = exact::add(self.counted_at(moment.now_us), outstanding);
        self.charge(unknown.saturating_sub(known), until_us);
    }

    /// Of a total of which so many units are used: how many have to be added before
    /// anything is free.
    pub(crate) fn below_zero(&self, used: u64) -> Option<u64> {
        match self {
            Self::Total(books) => Some(exact::add(
                books.deficit(),
                used.saturating_sub(books.limit()),
            )),
            _ => None,
        }
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
            Self::SlidingWindow(books) | Self::Estimate(books) => books.counted(),
            Self::TokenBucket(books) => books.counted(),
            Self::Period(books) => books.counted(),
            Self::Total(books) => books.counted(),
            Self::Concurrency(books) => books.unknown().0,
            Self::Unlimited => 0,
        }
    }

    /// The hash of everything in the books that is not the rule's.
    pub(crate) fn hash(&self) -> u64 {
        match self {
            Self::SlidingWindow(books) => books.hash(),
            Self::TokenBucket(books) => books.hash(),
            Self::Period(books) => books.hash(),
            Self::Total(books) => books.hash(),
            Self::Concurrency(books) => books.hash(),
            Self::Estimate(books) => digest::words([6, books.hash()]),
            Self::Unlimited => 7,
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
        )
        | (Kind::Estimate { window_us: old, .. }, Kind::Estimate { window_us: new, .. }) => {
            *new > *old
        }
        (
            Kind::TokenBucket { .. } | Kind::Paced { .. },
            Kind::TokenBucket { .. } | Kind::Paced { .. },
        ) => false,
        _ => new.looks_back(),
    }
}
