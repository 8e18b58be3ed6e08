//! Exact counting on one machine: what a store would do that saw every request at
//! once. Knows neither gateways nor messages.

use std::collections::VecDeque;

use leasehold_ledger::policy::Kind;

/// One key's exact count, whatever its kind.
#[derive(Clone, Debug)]
pub struct Exact {
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    Log { limit: u64, log: Log },
    Bucket(Bucket),
}

impl Exact {
    /// Nothing spent yet; a bucket is full.
    #[must_use]
    pub fn new(kind: &Kind) -> Self {
        let rule = match *kind {
            Kind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            }
            | Kind::Paced {
                capacity,
                refill,
                refill_period_us,
            } => Rule::Bucket(Bucket::new(capacity, refill, refill_period_us)),
            // A scenario has windows and buckets only.
            _ => Rule::Log {
                limit: kind.limit(),
                log: Log::new(Window::Sliding(kind.own_timescale_us())),
            },
        };
        Self { rule }
    }

    /// Units that could be admitted at `now_us`.
    pub fn free(&mut self, now_us: u64) -> u64 {
        match &mut self.rule {
            Rule::Log { limit, log } => limit.saturating_sub(log.counted(now_us)),
            Rule::Bucket(bucket) => bucket.free(now_us),
        }
    }

    /// Admits `units` if they are free.
    ///
    /// # Errors
    /// In how many microseconds they will be, if they ever are and nobody else
    /// takes them.
    pub fn take(&mut self, now_us: u64, units: u64) -> Result<(), Option<u64>> {
        match &mut self.rule {
            Rule::Log { limit, log } => {
                if log.counted(now_us).saturating_add(units) <= *limit {
                    log.add(now_us, units);
                    return Ok(());
                }
                if units > *limit {
                    return Err(None);
                }
                Err(log.falls_to_us(now_us, *limit - units))
            }
            Rule::Bucket(bucket) => bucket.take(now_us, units),
        }
    }
}

/// For how long an admitted unit counts. Lengths are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Up to and including the moment one window later, so that no closed interval
    /// of that length holds more than were counted at its end.
    Sliding(u64),
    /// To the end of the window that it falls into; windows begin at multiples of
    /// their length.
    Fixed(u64),
}

impl Window {
    /// The last moment at which a unit admitted at `at_us` counts.
    pub(super) fn counts_until_us(self, at_us: u64) -> u64 {
        match self {
            Self::Sliding(us) => at_us.saturating_add(us),
            Self::Fixed(us) => {
                let us = us.max(1);
                (at_us / us).saturating_add(1).saturating_mul(us) - 1
            }
        }
    }
}

/// Units and when they were admitted, as long as they count.
#[derive(Clone, Debug)]
pub struct Log {
    window: Window,
    /// In the order of time.
    entries: VecDeque<(u64, u64)>,
    units: u64,
}

impl Log {
    /// An empty one.
    #[must_use]
    pub fn new(window: Window) -> Self {
        Self {
            window,
            entries: VecDeque::new(),
            units: 0,
        }
    }

    /// Units that count at `now_us`.
    pub fn counted(&mut self, now_us: u64) -> u64 {
        while let Some(&(at_us, units)) = self.entries.front() {
            if self.window.counts_until_us(at_us) >= now_us {
                break;
            }
            self.units -= units;
            self.entries.pop_front();
        }
        self.units
    }

    /// Notes an admission, which may be older than the last.
    pub fn add(&mut self, at_us: u64, units: u64) {
        self.units += units;
        let mut place = self.entries.len();
        while place > 0 && self.entries[place - 1].0 > at_us {
            place -= 1;
        }
        self.entries.insert(place, (at_us, units));
    }

    /// In how many microseconds no more than `units` are counted, if nothing is
    /// added.
    #[must_use]
    pub fn falls_to_us(&self, now_us: u64, units: u64) -> Option<u64> {
        let mut left = self.units;
        if left <= units {
            return Some(0);
        }
        for &(at_us, leaving) in &self.entries {
            left -= leaving;
            if left <= units {
                let freed_us = self.window.counts_until_us(at_us).saturating_add(1);
                return Some(freed_us.saturating_sub(now_us));
            }
        }
        None
    }

    /// The entries that stop counting by `until_us`, in the order of time.
    pub(super) fn leaving(&self, until_us: u64) -> impl Iterator<Item = (u64, u64)> {
        let window = self.window;
        let counted = self.entries.iter().copied();
        counted.take_while(move |(at_us, _)| window.counts_until_us(*at_us) < until_us)
    }

    /// Takes all that is in it.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (u64, u64)> {
        self.units = 0;
        self.entries.drain(..)
    }
}

/// A token bucket that is full at first, in whole numbers: what is below one unit
/// is kept, so that rounding neither makes nor loses any.
#[derive(Clone, Debug)]
struct Bucket {
    capacity: u64,
    refill: u64,
    period_us: u64,
    /// Units × refill period.
    level: u128,
    settled_us: u64,
}

impl Bucket {
    fn new(capacity: u64, refill: u64, refill_period_us: u64) -> Self {
        let period_us = refill_period_us.max(1);
        Self {
            capacity,
            refill,
            period_us,
            level: u128::from(capacity) * u128::from(period_us),
            settled_us: 0,
        }
    }

    fn settle(&mut self, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.settled_us);
        self.settled_us = now_us;
        let full = u128::from(self.capacity) * u128::from(self.period_us);
        let refilled = u128::from(elapsed_us) * u128::from(self.refill);
        self.level = (self.level + refilled).min(full);
    }

    fn free(&mut self, now_us: u64) -> u64 {
        self.settle(now_us);
        u64::try_from(self.level / u128::from(self.period_us)).unwrap_or(u64::MAX)
    }

    fn take(&mut self, now_us: u64, units: u64) -> Result<(), Option<u64>> {
        self.settle(now_us);
        let wanted = u128::from(units) * u128::from(self.period_us);
        if let Some(rest) = self.level.checked_sub(wanted) {
            self.level = rest;
            return Ok(());
        }
        if units > self.capacity || self.refill == 0 {
            return Err(None);
        }
        let missing = wanted - self.level;
        Err(u64::try_from(missing.div_ceil(u128::from(self.refill))).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_free_again_just_after_one_window() {
        let kind = Kind::SlidingWindow {
            limit: 2,
            window_us: 1_000,
        };
        let mut exact = Exact::new(&kind);
        assert_eq!(exact.take(10, 1), Ok(()));
        assert_eq!(exact.take(20, 1), Ok(()));
        assert_eq!(exact.take(30, 1), Err(Some(981)));
        assert_eq!(exact.take(30, 2), Err(Some(991)));
        assert_eq!(exact.take(30, 3), Err(None), "never possible");
        assert_eq!(exact.take(1_010, 1), Err(Some(1)));
        assert_eq!(exact.take(1_011, 1), Ok(()));
    }

    #[test]
    fn a_bucket_neither_makes_nor_loses_tokens_by_rounding() {
        let kind = Kind::TokenBucket {
            capacity: 3,
            refill: 7,
            refill_period_us: 1_000,
        };
        let mut exact = Exact::new(&kind);
        assert_eq!(exact.take(0, 3), Ok(()));
        assert_eq!(exact.take(0, 1), Err(Some(143)));
        let mut admitted = 0_u32;
        for now_us in 1..=1_000_000 {
            admitted += u32::from(exact.take(now_us, 1).is_ok());
        }
        assert_eq!(admitted, 7_000);
    }

    #[test]
    fn late_news_is_sorted_in() {
        let mut log = Log::new(Window::Sliding(100));
        log.add(50, 1);
        log.add(20, 2);
        assert_eq!(log.counted(120), 3);
        assert_eq!(log.counted(121), 1);
        assert_eq!(log.falls_to_us(121, 0), Some(30));
    }

    #[test]
    fn a_fixed_window_frees_everything_at_its_boundary() {
        let mut log = Log::new(Window::Fixed(100));
        log.add(150, 1);
        log.add(199, 1);
        assert_eq!((log.counted(199), log.falls_to_us(199, 1)), (2, Some(1)));
        assert_eq!(log.counted(200), 0);
    }
}
