//! A token bucket never admits more than `capacity + refill × (t + tick)` in any
//! interval of any length `t`. Knows the rate, not what a bucket is inside.

use crate::{Admission, Worst};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pub(crate) capacity: u64,
    pub(crate) refill: u64,
    pub(crate) refill_period_us: u64,
    pub(crate) tick_us: u64,
}

/// The interval that uses most beyond its refill.
///
/// With `S(a, e)` the units whose whole [call, return] lies in `[a, e]`, the
/// greatest `S(a, e) − refill × (e − a)` is found at a call `a` and a return `e`.
/// `e` sweeps over the returns; a tree over all calls `a` holds
/// `S(a, e) + refill × a`, to which an admission called at `c` adds its units for
/// all `a ≤ c`. Everything is multiplied by the refill period, so that it stays
/// in whole numbers.
pub(crate) fn worst(admissions: &[Admission], bucket: Bucket) -> Worst {
    let period_ns = i128::from(bucket.refill_period_us.max(1)) * 1_000;
    let refill = i128::from(bucket.refill);
    let mut calls: Vec<u64> = admissions.iter().map(|a| a.call_ns).collect();
    calls.sort_unstable();
    calls.dedup();
    let mut by_return: Vec<&Admission> = admissions.iter().collect();
    by_return.sort_unstable_by_key(|a| a.return_ns);

    let mut tree = Tree::new(
        calls
            .iter()
            .map(|&call| refill * i128::from(call))
            .collect(),
    );
    let mut most: Option<(i128, usize, u64)> = None;
    let mut rest = by_return.as_slice();
    while let Some(first) = rest.first() {
        let end = first.return_ns;
        let together = rest.iter().take_while(|a| a.return_ns == end).count();
        for admission in &rest[..together] {
            let upto = calls.partition_point(|&call| call <= admission.call_ns);
            tree.add_to_first(upto, i128::from(admission.units) * period_ns);
        }
        rest = &rest[together..];
        // A start after the end is no interval.
        let starts = calls.partition_point(|&call| call <= end);
        let (value, start) = tree.most_of_first(starts);
        let used = value - refill * i128::from(end);
        if most.is_none_or(|(before, _, _)| used > before) {
            most = Some((used, start, end));
        }
    }
    let Some((used, start, to_ns)) = most else {
        return Worst::default();
    };
    let from_ns = calls[start];
    let inside = |a: &&Admission| a.call_ns >= from_ns && a.return_ns <= to_ns;
    let units = admissions.iter().filter(inside).map(|a| a.units).sum();
    let beyond_tick = (used - refill * i128::from(bucket.tick_us) * 1_000).max(0);
    // Rounded up: a fraction of a unit too many breaks the promise.
    let charged =
        beyond_tick.div_euclid(period_ns) + i128::from(beyond_tick.rem_euclid(period_ns) != 0);
    // A charge that just fits is not beyond the capacity for being rounded.
    let fits = beyond_tick <= i128::from(bucket.capacity) * period_ns;
    let charged = u64::try_from(charged).unwrap_or(u64::MAX);
    Worst {
        from_ns,
        to_ns,
        units,
        charged: if fits {
            charged.min(bucket.capacity)
        } else {
            charged
        },
    }
}

/// A segment tree: add to a prefix, greatest of a prefix.
struct Tree {
    leaves: usize,
    /// The greatest value below each node, without what is pending above it.
    most: Vec<i128>,
    /// What was added to all below each node.
    pending: Vec<i128>,
}

/// Less than any value and far enough from overflow.
const NOTHING: i128 = i128::MIN / 4;

impl Tree {
    fn new(values: Vec<i128>) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut most = vec![NOTHING; 2 * leaves];
        for (i, value) in values.into_iter().enumerate() {
            most[leaves + i] = value;
        }
        for node in (1..leaves).rev() {
            most[node] = most[2 * node].max(most[2 * node + 1]);
        }
        Self {
            leaves,
            pending: vec![0; 2 * leaves],
            most,
        }
    }

    fn add_to_first(&mut self, count: usize, amount: i128) {
        self.add(1, self.leaves, count, amount);
    }

    fn add(&mut self, node: usize, width: usize, count: usize, amount: i128) {
        if count == 0 {
            return;
        }
        if count >= width {
            self.most[node] += amount;
            self.pending[node] += amount;
            return;
        }
        let half = width / 2;
        self.add(2 * node, half, count.min(half), amount);
        self.add(2 * node + 1, half, count.saturating_sub(half), amount);
        self.most[node] = self.pending[node] + self.most[2 * node].max(self.most[2 * node + 1]);
    }

    fn most_of_first(&self, count: usize) -> (i128, usize) {
        self.query(1, 0, self.leaves, count)
    }

    fn query(&self, node: usize, from: usize, width: usize, count: usize) -> (i128, usize) {
        if count == 0 {
            return (NOTHING, from);
        }
        if width == 1 {
            return (self.most[node], from);
        }
        let half = width / 2;
        let left = self.query_or_all(2 * node, from, half, count.min(half));
        let right = self.query_or_all(2 * node + 1, from + half, half, count.saturating_sub(half));
        let (value, at) = if right.0 > left.0 { right } else { left };
        (value + self.pending[node], at)
    }

    /// Descends into a whole subtree only if it can matter for the position.
    fn query_or_all(&self, node: usize, from: usize, width: usize, count: usize) -> (i128, usize) {
        if count >= width && width > 1 {
            // Follow the greatest child down: one path.
            let (mut node, mut from, mut width) = (node, from, width);
            let value = self.most[node];
            while width > 1 {
                width /= 2;
                node *= 2;
                if self.most[node + 1] > self.most[node] {
                    node += 1;
                    from += width;
                }
            }
            return (value, from);
        }
        self.query(node, from, width, count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Promise;

    fn at(call_ns: u64, return_ns: u64, units: u64) -> Admission {
        Admission {
            units,
            call_ns,
            return_ns,
        }
    }

    /// Every pair of a start and an end, each judged by itself.
    fn brute(admissions: &[Admission], bucket: Bucket, to: u64) -> bool {
        (0..=to).all(|from| {
            (from..=to).all(|end| {
                let inside = |a: &&Admission| a.call_ns >= from && a.return_ns <= end;
                let units: u64 = admissions.iter().filter(inside).map(|a| a.units).sum();
                let period_ns = u128::from(bucket.refill_period_us) * 1_000;
                let time_ns = u128::from(end - from) + u128::from(bucket.tick_us) * 1_000;
                u128::from(units) * period_ns
                    <= u128::from(bucket.capacity) * period_ns + u128::from(bucket.refill) * time_ns
            })
        })
    }

    #[test]
    fn a_full_bucket_and_its_refill_are_allowed_and_one_more_is_not() {
        // One unit a millisecond, five at once, a tick of a microsecond.
        let promise = Promise::Bucket {
            capacity: 5,
            refill: 1,
            refill_period_us: 1_000,
            tick_us: 1,
        };
        let ms = 1_000_000;
        let mut log = vec![at(0, 10, 5)];
        log.extend((1..100).map(|i| at(i * ms, i * ms + 10, 1)));
        let kept = promise.judge(&log);
        assert_eq!(kept.over_admitted, 0, "{kept:?}");
        assert!(
            kept.worst_ratio > 0.99 && kept.worst_ratio <= 1.0,
            "{kept:?}"
        );
        log.push(at(50 * ms + 20, 50 * ms + 30, 1));
        let broken = promise.judge(&log);
        assert_eq!(broken.over_admitted, 1);
        assert_eq!(broken.worst_from_ns, 0);
        assert!(broken.worst_ratio > 1.0);
    }

    #[test]
    fn a_bucket_that_reopens_full_is_found() {
        let promise = Promise::Bucket {
            capacity: 100,
            refill: 100,
            refill_period_us: 1_000_000,
            tick_us: 1,
        };
        let log = [at(0, 1_000, 100), at(10_000_000, 10_001_000, 100)];
        assert_eq!(promise.judge(&log).over_admitted, 99);
    }

    #[test]
    fn a_bucket_without_refill_admits_its_capacity_once() {
        let promise = Promise::Bucket {
            capacity: 3,
            refill: 0,
            refill_period_us: 1_000,
            tick_us: 1,
        };
        let year = 31_536_000_000_000_000;
        assert_eq!(promise.judge(&[at(0, 1, 3)]).over_admitted, 0);
        assert_eq!(
            promise
                .judge(&[at(0, 1, 3), at(year, year, 1)])
                .over_admitted,
            1
        );
    }

    #[test]
    fn great_figures_do_not_wrap() {
        let units = (1 << 53) - 1;
        let month_us = 31 * 24 * 3_600 * 1_000_000;
        let promise = Promise::Bucket {
            capacity: units,
            refill: units,
            refill_period_us: month_us,
            tick_us: 1,
        };
        let log = [
            at(u64::MAX - 10, u64::MAX, units),
            at(u64::MAX - 5, u64::MAX, 1 << 50),
        ];
        let judgement = promise.judge(&log);
        assert!(judgement.over_admitted > 0);
        assert_eq!(promise.judge(&log[..1]).over_admitted, 0);
    }

    proptest! {
        #[test]
        fn it_agrees_with_judging_every_interval(
            raw in proptest::collection::vec((0_u64..60, 0_u64..20, 0_u64..4), 0..25),
            capacity in 0_u64..12,
            refill in 0_u64..200,
        ) {
            let bucket = Bucket { capacity, refill, refill_period_us: 1, tick_us: 0 };
            let log: Vec<_> = raw.iter().map(|&(c, d, u)| at(c, c + d, u)).collect();
            let Bucket { capacity, refill, refill_period_us, tick_us } = bucket;
            let judgement =
                Promise::Bucket { capacity, refill, refill_period_us, tick_us }.judge(&log);
            prop_assert_eq!(judgement.over_admitted == 0, brute(&log, bucket, 80));
            prop_assert_eq!(judgement.worst_ratio > 1.0 || (capacity == 0 && judgement.worst_ratio > 0.0),
                judgement.over_admitted > 0);
        }
    }
}
