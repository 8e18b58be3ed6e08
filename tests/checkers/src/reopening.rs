//! Nothing reopens at full after an outage: while nobody leads, a bucket does not
//! refill. Does not know the ledger's level; it follows from the admissions alone.
//!
//! At the beginning of an outage a bucket of capacity `b` and refill `r` can at
//! most hold what a bucket that was full before the first admission still holds
//! after all admissions so far. From there it may admit that level plus `r` times
//! the time in which somebody led. So it is judged like any bucket, by a clock
//! that stands still in outages: in any interval at most `b + r × (time with a
//! leader + tick)`. This is only for buckets: a window's units age with real time,
//! also while nobody leads.

use crate::{Admission, Judgement, Outage, Promise};

/// Judges the admissions of one key by a clock that stands still in outages; none
/// for a promise that is not a bucket.
#[must_use]
pub fn judge_without_outages(
    promise: &Promise,
    admissions: &[Admission],
    outages: &[Outage],
) -> Option<Judgement> {
    matches!(promise, Promise::Bucket { .. }).then_some(())?;
    let clock = Clock::new(outages);
    let led: Vec<Admission> = admissions
        .iter()
        .map(|admission| Admission {
            units: admission.units,
            call_ns: clock.led(admission.call_ns),
            return_ns: clock.led(admission.return_ns),
        })
        .collect();
    Some(promise.judge(&led))
}

/// Time with a leader.
struct Clock {
    /// Outages that do not touch, in order, each with what all before it sum up to.
    outages: Vec<(Outage, u64)>,
}

impl Clock {
    fn new(outages: &[Outage]) -> Self {
        let mut sorted = outages.to_vec();
        sorted.sort_unstable_by_key(|outage| outage.from_ns);
        let (mut merged, mut before) = (Vec::new(), 0_u64);
        let mut counted_to = 0;
        for outage in sorted {
            let from_ns = outage.from_ns.max(counted_to);
            if outage.to_ns <= from_ns {
                continue;
            }
            merged.push((
                Outage {
                    from_ns,
                    to_ns: outage.to_ns,
                },
                before,
            ));
            before = before.saturating_add(outage.to_ns - from_ns);
            counted_to = outage.to_ns;
        }
        Self { outages: merged }
    }

    fn led(&self, at_ns: u64) -> u64 {
        let begun = self
            .outages
            .partition_point(|(outage, _)| outage.from_ns <= at_ns);
        let Some((outage, before)) = begun.checked_sub(1).map(|last| &self.outages[last]) else {
            return at_ns;
        };
        at_ns - before - (at_ns.min(outage.to_ns) - outage.from_ns)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;
    /// Twenty at once, ten a second.
    const BUCKET: Promise = Promise::Bucket {
        capacity: 20,
        refill: 10,
        refill_period_us: 1_000_000,
        tick_us: 0,
    };

    fn at(call_ns: u64, units: u64) -> Admission {
        Admission {
            units,
            call_ns,
            return_ns: call_ns + 10,
        }
    }

    fn outage(from_ns: u64, to_ns: u64) -> Outage {
        Outage { from_ns, to_ns }
    }

    /// Drained before an outage of 30 s, then a wave of retries.
    fn wave(units_at_once: u64) -> Vec<Admission> {
        let mut log = vec![at(S, 20)];
        log.push(at(31 * S + 100, units_at_once));
        // One each tenth of a second, as they flow in.
        log.extend((1..50).map(|i| at(31 * S + 100 + i * S / 10, 1)));
        log
    }

    #[test]
    fn a_wave_of_retries_is_admitted_at_the_refill_rate_and_no_faster() {
        let outages = [outage(S + 20, 31 * S)];
        let kept = judge_without_outages(&BUCKET, &wave(0), &outages).unwrap();
        assert_eq!(kept.over_admitted, 0, "{kept:?}");
        // In real time a bucket that reopens at full broke no promise, for it
        // would have filled in these 30 s.
        assert_eq!(BUCKET.judge(&wave(20)).over_admitted, 0);
        let broken = judge_without_outages(&BUCKET, &wave(20), &outages).unwrap();
        assert_eq!(broken.over_admitted, 20, "{broken:?}");
    }

    #[test]
    fn what_was_left_at_the_beginning_may_still_be_spent() {
        let outages = [outage(2 * S, 32 * S)];
        // Five left, and ten that flow in by the beginning of the outage.
        let log = [at(S, 15), at(32 * S - 5, 15)];
        let kept = judge_without_outages(&BUCKET, &log, &outages).unwrap();
        assert_eq!(kept.over_admitted, 0, "{kept:?}");
        let log = [at(S, 15), at(32 * S - 5, 16)];
        assert_eq!(
            judge_without_outages(&BUCKET, &log, &outages)
                .unwrap()
                .over_admitted,
            1
        );
    }

    #[test]
    fn a_window_is_not_judged_by_time_with_a_leader() {
        let window = Promise::Window {
            limit: 1,
            window_us: 1,
        };
        assert_eq!(judge_without_outages(&window, &[at(0, 5)], &[]), None);
    }

    proptest! {
        #[test]
        fn the_clock_counts_every_moment_outside_outages(
            raw in proptest::collection::vec((0_u64..60, 0_u64..20), 0..6),
            moment in 0_u64..100,
        ) {
            let outages: Vec<_> = raw.iter().map(|&(from, length)| outage(from, from + length)).collect();
            let led = (0..moment)
                .filter(|at| !outages.iter().any(|o| o.from_ns <= *at && *at < o.to_ns))
                .count() as u64;
            prop_assert_eq!(Clock::new(&outages).led(moment), led);
        }
    }
}
