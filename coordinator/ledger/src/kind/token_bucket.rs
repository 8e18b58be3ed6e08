//! At most `capacity + refill × (t + one tick) / refill_period_us` units in any
//! interval of length `t`. Kept from the other side than a level: how many units
//! are counted, which flow back at the refill's rate. A full bucket counts
//! nothing, and what is outstanding does not flow. Does not know leases.

use crate::{digest, exact};

/// Parts per million.
const MILLION: u128 = 1_000_000;

/// The books of a token bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    capacity: u64,
    /// In `per` microseconds, `flow` units flow back. Their quotient is the
    /// refill's rate divided by `1 + drift`.
    flow: u128,
    per: u128,
    /// Units that have not flowed back.
    counted: u64,
    /// What has flowed of the next unit, in parts of `per`; 0 when nothing counts.
    remainder: u64,
    /// Cluster time up to which the flow is booked.
    settled_us: u64,
}

impl TokenBucket {
    pub(crate) fn new(
        capacity: u64,
        refill: u64,
        refill_period_us: u64,
        drift_ppm: u32,
        now_us: u64,
    ) -> Self {
        let (flow, per) = rate(refill, refill_period_us, drift_ppm);
        Self {
            capacity,
            flow,
            per,
            counted: 0,
            remainder: 0,
            settled_us: now_us,
        }
    }

    /// The books as a snapshot had them.
    pub(crate) const fn restore(mut self, counted: u64, remainder: u64, settled_us: u64) -> Self {
        self.counted = counted;
        self.remainder = remainder;
        self.settled_us = settled_us;
        self
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) const fn counted(&self) -> u64 {
        self.counted
    }

    /// What a snapshot keeps beside the counted units: remainder and settled time.
    pub(crate) const fn flow_state(&self) -> (u64, u64) {
        (self.remainder, self.settled_us)
    }

    /// Whether the remainder is one that can be.
    pub(crate) fn is_sound(&self) -> bool {
        u128::from(self.remainder) < self.per && (self.counted > 0 || self.remainder == 0)
    }

    /// What counts at a moment, and the remainder then.
    fn flowed(&self, now_us: u64) -> (u64, u64) {
        if self.counted == 0 {
            return (0, 0);
        }
        let elapsed = u128::from(now_us.saturating_sub(self.settled_us));
        // `counted × per` is below 2^126: what overflows is more than that.
        let Some(flowed) = elapsed
            .checked_mul(self.flow)
            .and_then(|flowed| flowed.checked_add(self.remainder.into()))
        else {
            return (0, 0);
        };
        let units = flowed.checked_div(self.per).unwrap_or(0);
        match u64::try_from(units)
            .ok()
            .and_then(|units| self.counted.checked_sub(units))
        {
            // A full bucket keeps no fraction: it would overflow it.
            None | Some(0) => (0, 0),
            Some(counted) => {
                let remainder = flowed.checked_rem(self.per).unwrap_or(0);
                (counted, u64::try_from(remainder).unwrap_or(0))
            }
        }
    }

    pub(crate) fn settle(&mut self, now_us: u64) {
        (self.counted, self.remainder) = self.flowed(now_us);
        self.settled_us = self.settled_us.max(now_us);
    }

    pub(crate) fn counted_at(&self, now_us: u64) -> u64 {
        self.flowed(now_us).0
    }

    pub(crate) const fn charge(&mut self, units: u64) {
        self.counted = exact::add(self.counted, units);
    }

    /// Uncounts units by hand; gives how many.
    pub(crate) fn uncount(&mut self, units: u64) -> u64 {
        let uncounted = units.min(self.counted);
        self.counted = exact::sub(self.counted, uncounted);
        if self.counted == 0 {
            // A full bucket keeps no fraction.
            self.remainder = 0;
        }
        uncounted
    }

    pub(crate) fn drained_when(&self, units: u64) -> Option<u64> {
        if units > self.counted {
            return None;
        }
        let missing = u128::from(units)
            .saturating_mul(self.per)
            .saturating_sub(self.remainder.into());
        let elapsed = missing
            .checked_add(self.flow.saturating_sub(1))?
            .checked_div(self.flow)?;
        Some(
            self.settled_us
                .saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)),
        )
    }

    pub(crate) fn idle_when(&self) -> u64 {
        if self.counted == 0 {
            0
        } else {
            self.drained_when(self.counted).unwrap_or(u64::MAX)
        }
    }

    /// Follows an edit; the flow is settled under the old rule already.
    pub(crate) fn rebind(
        &mut self,
        capacity: u64,
        refill: u64,
        refill_period_us: u64,
        drift_ppm: u32,
    ) {
        let (flow, per) = rate(refill, refill_period_us, drift_ppm);
        // The fraction of the next unit stays the same, rounded down.
        let scaled = u128::from(self.remainder)
            .saturating_mul(per)
            .checked_div(self.per)
            .unwrap_or(0);
        self.remainder = u64::try_from(scaled).unwrap_or(0);
        self.capacity = capacity;
        self.flow = flow;
        self.per = per;
    }

    pub(crate) fn hash(&self) -> u64 {
        digest::words([2, self.counted, self.remainder, self.settled_us])
    }
}

/// `refill / (period × (1 + drift))` as a fraction of whole numbers.
fn rate(refill: u64, refill_period_us: u64, drift_ppm: u32) -> (u128, u128) {
    let flow = u128::from(refill).saturating_mul(MILLION);
    let per = u128::from(refill_period_us).saturating_mul(MILLION.saturating_add(drift_ppm.into()));
    (flow, per)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remainder_neither_makes_nor_loses_tokens() {
        // 3 units in 1 s: one in 333,333.3… µs.
        let mut books = TokenBucket::new(10, 3, 1_000_000, 0, 0);
        books.charge(10);
        for now_us in (0..=1_000_000).step_by(7) {
            books.settle(now_us);
        }
        books.settle(999_999);
        assert_eq!(books.counted(), 8);
        books.settle(1_000_000);
        assert_eq!(books.counted(), 7);
        assert_eq!(books.drained_when(1), Some(1_333_334));
        assert_eq!(books.counted_at(1_333_333), 7);
        assert_eq!(books.counted_at(1_333_334), 6);
        assert_eq!(books.idle_when(), 3_333_334);
    }

    #[test]
    fn a_full_bucket_drops_its_fraction() {
        let mut books = TokenBucket::new(10, 1, 1_000_000, 0, 0);
        books.charge(1);
        books.settle(1_900_000);
        assert_eq!(books.flow_state(), (0, 1_900_000));
        books.charge(1);
        assert_eq!(books.counted_at(2_899_999), 1);
        assert_eq!(books.counted_at(2_900_000), 0);
    }

    #[test]
    fn drift_slows_the_flow_and_extremes_do_not_overflow() {
        let mut books = TokenBucket::new(10, 1, 1_000_000, 1_000, 0);
        books.charge(1);
        assert_eq!(books.drained_when(1), Some(1_001_000));
        let max = crate::policy::UNITS_MAX;
        let mut books = TokenBucket::new(max, 1, crate::policy::WINDOW_US_MAX, 100_000, 0);
        books.charge(max);
        assert!(books.idle_when() > crate::policy::WINDOW_US_MAX);
        let mut books = TokenBucket::new(max, max, 100_000, 0, 0);
        books.charge(max);
        books.settle(u64::MAX);
        assert_eq!(books.counted(), 0);
    }
}
