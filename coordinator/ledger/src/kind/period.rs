//! At most `limit` units, and what was carried over, charged to any one period.
//! Does not know calendars or time: only which period it is, by number. A period
//! ends when the next one is in the log, whatever any clock says.

use crate::{digest, exact};

/// Which period the leader has written into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Grows by one with each period of its calendar; 1 is the first that was ever
    /// in the log.
    pub number: u64,
    /// The log index of the entry that began it.
    pub index: u64,
    /// Cluster time at which it began.
    pub began_us: u64,
    /// Wall time at which it begins, in microseconds since 1970.
    pub start_unix_us: i64,
    /// Wall time at which it ends, in microseconds since 1970.
    pub end_unix_us: i64,
    /// Cluster time at which it ends, as far as was known when it began. A hint.
    pub end_us_about: u64,
    /// The number of the last period in which nothing was free from the start, because
    /// the cluster that this one was restored from may have spent all of it; 0: none.
    pub exhausted: u64,
}

/// The books of a period quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeriodQuota {
    limit: u64,
    carry_over: u64,
    /// The period that the figures below are of; 0: none yet.
    number: u64,
    /// Units beyond the limit that this period has: unused ones of those before, in
    /// leases or not, and what was given by hand.
    carried: u64,
    /// Units charged to it.
    counted: u64,
    /// When it is likely to end; see [`Period::end_us_about`].
    end_us_about: u64,
}

impl PeriodQuota {
    /// Empty books in a period; none: no period of the calendar is known yet.
    pub(crate) fn new(limit: u64, carry_over: u64, period: Option<&Period>) -> Self {
        Self {
            limit,
            carry_over,
            number: period.map_or(0, |period| period.number),
            carried: 0,
            counted: 0,
            end_us_about: period.map_or(0, |period| period.end_us_about),
        }
    }

    /// The books as a snapshot had them.
    pub(crate) const fn restore(
        mut self,
        number: u64,
        carried: u64,
        counted: u64,
        end_us_about: u64,
    ) -> Self {
        self.number = number;
        self.carried = carried;
        self.counted = counted;
        self.end_us_about = end_us_about;
        self
    }

    /// What a snapshot keeps: number, carried, counted, likely end.
    pub(crate) const fn state(&self) -> (u64, u64, u64, u64) {
        (self.number, self.carried, self.counted, self.end_us_about)
    }

    /// Units that this period has in all. None before the first period began.
    pub(crate) const fn limit(&self) -> u64 {
        if self.number == 0 {
            0
        } else {
            exact::add(self.limit, self.carried)
        }
    }

    /// The policy's own limit.
    pub(crate) const fn base_limit(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn counted(&self) -> u64 {
        self.counted
    }

    pub(crate) const fn end_us_about(&self) -> u64 {
        self.end_us_about
    }

    /// Whether the present period is not the one of these figures, or ends at another
    /// time than they say.
    pub(crate) const fn is_behind(&self, period: &Period) -> bool {
        self.number != period.number || self.end_us_about != period.end_us_about
    }

    /// Begins the present period, if that was not done yet. What is outstanding was
    /// granted before: it is held against the new period, and charged to it if it
    /// turns out to be spent. Should it be more than the limit, the rest has been
    /// carried over in leases, as far as the cap goes; beyond that it is debt, or what is
    /// handed back would be free for whoever asks next.
    ///
    /// What was charged before any period was known (an edit brought it) is charged to
    /// the first one: nobody knows that it is older.
    pub(crate) fn roll(&mut self, period: &Period, outstanding: u64) -> bool {
        if self.number < period.exhausted && period.exhausted <= period.number {
            self.number = period.exhausted;
            // What is handed back later stays used up, too.
            self.carried = 0;
            self.counted = self.limit;
            if period.exhausted == period.number {
                self.end_us_about = period.end_us_about;
                return true;
            }
            self.roll(period, outstanding);
            return true;
        }
        let begun = period.number.saturating_sub(self.number);
        let is_first = self.number == 0;
        self.end_us_about = period.end_us_about;
        if begun == 0 {
            return false;
        }
        self.number = period.number;
        let ended = begun.saturating_sub(u64::from(is_first));
        if ended > 0 {
            let used = exact::add(self.counted, outstanding);
            let unused = self.limit().saturating_sub(used);
            let beyond = outstanding.saturating_sub(self.limit);
            let carried = unused.min(self.carry_over);
            // Periods that nobody looked at in between were not used either, except
            // for what was outstanding all the time: it takes from what was carried
            // over what it has beyond the limit, once for each.
            let between = ended.saturating_sub(1);
            let more = self.limit.saturating_sub(outstanding);
            let carried = carried
                .saturating_add(more.saturating_mul(between))
                .saturating_sub(beyond.saturating_mul(between));
            self.carried = carried.max(beyond).min(self.carry_over);
            self.counted = 0;
        }
        true
    }

    /// Units that are free when the next period begins, if so many are outstanding then
    /// and nothing else happens; none: no period has begun yet.
    pub(crate) fn free_in_next(&self, outstanding: u64) -> Option<u64> {
        if self.number == 0 {
            return None;
        }
        let mut next = self.clone();
        let number = self.number.saturating_add(1);
        next.roll(
            &Period {
                number,
                index: 0,
                began_us: 0,
                start_unix_us: 0,
                end_unix_us: 0,
                end_us_about: 0,
                exhausted: 0,
            },
            outstanding,
        );
        let used = exact::add(next.counted, outstanding);
        Some(next.limit().saturating_sub(used))
    }

    pub(crate) const fn charge(&mut self, units: u64) {
        self.counted = exact::add(self.counted, units);
    }

    /// Uncounts units of this period that turned out unspent; gives how many.
    pub(crate) fn refund(&mut self, units: u64) -> u64 {
        let refunded = units.min(self.counted);
        self.counted = exact::sub(self.counted, refunded);
        refunded
    }

    /// Gives this period units beyond its limit.
    pub(crate) fn add(&mut self, units: u64) {
        self.carried = self
            .carried
            .saturating_add(units)
            .min(crate::policy::UNITS_MAX);
    }

    /// Follows an edit of limit and carry-over.
    pub(crate) const fn rebind(&mut self, limit: u64, carry_over: u64) {
        self.limit = limit;
        self.carry_over = carry_over;
    }

    /// Follows an edit of the calendar: what is counted is charged to the period of
    /// the new one that it is now.
    pub(crate) fn move_to(&mut self, period: Option<&Period>) {
        self.number = period.map_or(0, |period| period.number);
        self.end_us_about = period.map_or(0, |period| period.end_us_about);
    }

    pub(crate) fn hash(&self) -> u64 {
        digest::words([
            3,
            self.number,
            self.carried,
            self.counted,
            self.end_us_about,
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(number: u64) -> Period {
        Period {
            number,
            index: number,
            began_us: number,
            start_unix_us: 0,
            end_unix_us: 0,
            end_us_about: number,
            exhausted: 0,
        }
    }

    #[test]
    fn nothing_is_free_in_a_period_that_another_cluster_may_have_spent() {
        let exhausted = |number| Period {
            exhausted: 2,
            ..period(number)
        };
        let mut books = PeriodQuota::new(10, 5, Some(&period(1)));
        books.charge(3);
        let mut late = books.clone();
        assert!(books.roll(&exhausted(2), 4));
        assert_eq!((books.limit(), books.counted()), (10, 10));
        assert!(books.roll(&exhausted(3), 4));
        assert_eq!((books.limit(), books.counted()), (10, 0));
        assert!(late.roll(&exhausted(3), 4));
        assert_eq!(late, books, "nothing of it is carried over either");
    }

    #[test]
    fn nothing_is_free_before_the_first_period() {
        let mut books = PeriodQuota::new(10, 5, None);
        assert_eq!(books.limit(), 0);
        assert!(books.roll(&period(1), 0));
        assert_eq!((books.limit(), books.counted()), (10, 0));
    }

    #[test]
    fn what_was_charged_before_any_period_is_charged_to_the_first() {
        for later in 0..3 {
            let mut at_once = PeriodQuota::new(10, 5, None);
            at_once.charge(8);
            let mut each = at_once.clone();
            assert!(at_once.roll(&period(1 + later), 1));
            for number in 1..=1 + later {
                assert!(each.roll(&period(number), 1));
            }
            assert_eq!(at_once, each, "{later} periods later");
            if later == 0 {
                assert_eq!((each.limit(), each.counted()), (10, 8));
            }
        }
    }

    #[test]
    fn unused_units_are_carried_over_up_to_the_cap() {
        let mut books = PeriodQuota::new(10, 5, Some(&period(1)));
        books.charge(7);
        assert!(books.roll(&period(2), 0));
        assert_eq!((books.limit(), books.counted()), (13, 0));
        assert!(books.roll(&period(3), 0));
        assert_eq!(books.limit(), 15);
        assert!(!books.roll(&period(3), 0), "a period begins once");
    }

    #[test]
    fn periods_that_nobody_looked_at_were_unused() {
        for (passed, outstanding) in (1..6).flat_map(|passed| [(passed, 4), (passed, 12)]) {
            let mut at_once = PeriodQuota::new(10, 35, Some(&period(1)));
            at_once.add(22);
            at_once.charge(9);
            let mut each = at_once.clone();
            assert!(at_once.roll(&period(1 + passed), outstanding));
            for number in 2..=1 + passed {
                assert!(each.roll(&period(number), outstanding));
            }
            assert_eq!(at_once, each, "{passed} periods, {outstanding} out");
        }
    }

    #[test]
    fn what_is_outstanding_is_held_against_the_new_period() {
        let mut books = PeriodQuota::new(10, 0, Some(&period(1)));
        assert!(books.roll(&period(2), 6));
        assert_eq!(books.limit(), 10, "4 are free beside the 6");
        // 15 were out because 5 had been carried over: they stay carried over.
        let mut books = PeriodQuota::new(10, 5, Some(&period(1)));
        books.add(5);
        assert!(books.roll(&period(2), 15));
        assert_eq!(books.limit(), 15);
    }
}
