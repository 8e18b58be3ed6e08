//! No unit is lost for good: once a key was left alone for as long as its holders'
//! sessions and its window last, everything is free that the admission log allows,
//! and at no moment more than that. Knows neither leases nor sessions, only for how
//! long their traces may last.

use std::collections::BTreeMap;

use crate::{AccountSample, Admission, AdmissionLog, Promise, Quiet, Verdict};

const MILLION: u128 = 1_000_000;

/// Judges the linearizable reads of keys that were left alone, by what is free. A
/// key that was not read late enough to say that everything came back is undecided.
#[must_use]
pub fn lost_units(quiet: &[Quiet], samples: &[AccountSample], log: &AdmissionLog) -> Verdict {
    let mut by_key: BTreeMap<&str, Vec<&AccountSample>> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.replica.is_none()) {
        by_key.entry(&sample.key).or_default().push(sample);
    }
    let mut verdict = Verdict::default();
    for left_alone in quiet {
        let key = left_alone.key.as_str();
        let samples = by_key.get(key).map_or(&[][..], Vec::as_slice);
        let mut complete = false;
        for sample in samples.iter().filter(|s| s.call_ns >= left_alone.from_ns) {
            let least = back_at_least(left_alone, sample.call_ns);
            let most = free_at_most(&left_alone.promise, log.of(key), sample);
            complete |= least == limit_of(&left_alone.promise);
            verdict.checked = verdict.checked.saturating_add(1);
            if sample.free < least {
                verdict.violated(
                    key,
                    sample.call_ns,
                    format!(
                        "{} units are free {} ms after it was left alone; {least} must be: counted {}, outstanding {}",
                        sample.free,
                        (sample.call_ns - left_alone.from_ns) / 1_000_000,
                        sample.counted,
                        sample.outstanding,
                    ),
                );
            } else if sample.free > most {
                verdict.violated(
                    key,
                    sample.call_ns,
                    format!(
                        "{} units are said to be free; after what was admitted at most {most} can be",
                        sample.free
                    ),
                );
            }
        }
        if !complete {
            verdict.undecided.push(format!(
                "{key} was not read late enough to have all its units back"
            ));
        }
    }
    verdict
}

fn limit_of(promise: &Promise) -> i128 {
    i128::from(match *promise {
        Promise::Window { limit, .. } => limit,
        Promise::Bucket { capacity, .. } => capacity,
    })
}

/// What must be free at a moment, however unlucky everything was: a holder's units
/// were presumed spent only when its session expired, and the clocks ran slowly.
fn back_at_least(quiet: &Quiet, at_ns: u64) -> i128 {
    let settled_ns = quiet.from_ns.saturating_add(quiet.settle_ns);
    let Some(since_ns) = at_ns.checked_sub(settled_ns) else {
        return 0;
    };
    let drift = u128::from(quiet.max_drift_ppm);
    match quiet.promise {
        Promise::Window { limit, window_us } => {
            // Longer by the drift that the promise is kept with, and by that of a
            // slow clock; thrice covers what they are to each other.
            let counts_ns =
                (u128::from(window_us) * 1_000 * (MILLION + 3 * drift)).div_ceil(MILLION);
            if u128::from(since_ns) > counts_ns {
                i128::from(limit)
            } else {
                0
            }
        }
        Promise::Bucket {
            capacity,
            refill,
            refill_period_us,
            ..
        } => {
            let period_ns = u128::from(refill_period_us.max(1)) * 1_000 * (MILLION + 3 * drift);
            let earned = u128::from(refill) * u128::from(since_ns) * MILLION / period_ns;
            i128::try_from(earned)
                .unwrap_or(i128::MAX)
                .min(i128::from(capacity))
        }
    }
}

/// What can be free at any moment of the read, after what was surely admitted.
fn free_at_most(promise: &Promise, admissions: &[Admission], sample: &AccountSample) -> i128 {
    let before = admissions
        .iter()
        .filter(|admission| admission.return_ns <= sample.call_ns);
    let limit = limit_of(promise);
    match *promise {
        Promise::Window { window_us, .. } => {
            let since_ns = sample
                .return_ns
                .saturating_sub(window_us.saturating_mul(1_000));
            let within: i128 = before
                .filter(|admission| admission.call_ns >= since_ns)
                .map(|admission| i128::from(admission.units))
                .sum();
            limit - within
        }
        Promise::Bucket {
            refill,
            refill_period_us,
            tick_us,
            ..
        } => {
            let period_ns = i128::from(refill_period_us.max(1)) * 1_000;
            let mut latest_first: Vec<&Admission> = before.collect();
            latest_first.sort_unstable_by_key(|admission| std::cmp::Reverse(admission.call_ns));
            let (mut units, mut most_used) = (0_i128, 0_i128);
            for admission in latest_first {
                units += i128::from(admission.units);
                let time_ns = i128::from(sample.return_ns.saturating_sub(admission.call_ns))
                    + i128::from(tick_us) * 1_000;
                most_used = most_used.max(units * period_ns - i128::from(refill) * time_ns);
            }
            limit - (most_used + period_ns - 1) / period_ns
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;
    const WINDOW: Promise = Promise::Window {
        limit: 100,
        window_us: 10_000_000,
    };
    const BUCKET: Promise = Promise::Bucket {
        capacity: 20,
        refill: 2,
        refill_period_us: 1_000_000,
        tick_us: 1,
    };

    fn quiet(promise: Promise) -> Quiet {
        Quiet {
            key: "a".to_owned(),
            promise,
            from_ns: 100 * S,
            settle_ns: 5 * S,
            max_drift_ppm: 1_000,
        }
    }

    fn sample(call_ns: u64, promise: Promise, free: i128) -> AccountSample {
        let limit = limit_of(&promise);
        AccountSample {
            key: "a".to_owned(),
            call_ns,
            return_ns: call_ns + 1_000,
            replica: None,
            limit,
            debt: 0,
            counted: limit - free,
            outstanding: 0,
            free,
            leased: None,
            lifetime: None,
        }
    }

    fn log(admissions: &[(u64, u64)]) -> AdmissionLog {
        let mut log = AdmissionLog::default();
        for &(call_ns, units) in admissions {
            log.add(
                "a",
                Admission {
                    units,
                    call_ns,
                    return_ns: call_ns + 10,
                },
            );
        }
        log
    }

    fn judge(promise: Promise, samples: &[AccountSample], log: &AdmissionLog) -> Verdict {
        lost_units(&[quiet(promise)], samples, log)
    }

    #[test]
    fn a_window_has_all_its_units_back_after_a_session_and_a_window() {
        let late = 100 * S + 5 * S + 10 * S + 31_000_000;
        let log = log(&[(99 * S, 60)]);
        let fine = [sample(101 * S, WINDOW, 40), sample(late, WINDOW, 100)];
        let verdict = judge(WINDOW, &fine, &log);
        assert!(verdict.is_fine(), "{verdict:?}");
        assert_eq!(verdict.checked, 2);
        let leaked = [sample(late, WINDOW, 99)];
        assert_eq!(judge(WINDOW, &leaked, &log).violations.len(), 1);
        // Too early to say.
        let early = judge(WINDOW, &[sample(late - S, WINDOW, 99)], &log);
        assert!(early.violations.is_empty() && early.undecided.len() == 1);
    }

    #[test]
    fn a_bucket_refills_while_it_is_left_alone() {
        let log = log(&[(99 * S, 20)]);
        // Two a second since the sessions have expired, a little less for the drift.
        let fine = [sample(108 * S, BUCKET, 5), sample(116 * S, BUCKET, 20)];
        let verdict = judge(BUCKET, &fine, &log);
        assert!(verdict.is_fine(), "{verdict:?}");
        for (at, free) in [(108 * S, 4), (116 * S, 19)] {
            let verdict = judge(BUCKET, &[sample(at, BUCKET, free)], &log);
            assert_eq!(verdict.violations.len(), 1, "{at}: {verdict:?}");
        }
    }

    #[test]
    fn units_that_were_admitted_are_not_free_at_once() {
        let log_of_window = log(&[(95 * S, 60), (99 * S, 10)]);
        let at = |free| [sample(101 * S, WINDOW, free)];
        let kept = judge(WINDOW, &at(30), &log_of_window);
        assert!(kept.violations.is_empty(), "{kept:?}");
        let broken = judge(WINDOW, &at(31), &log_of_window);
        assert_eq!(broken.violations.len(), 1);
        // 20 spent a second before: two are back at most.
        let log_of_bucket = log(&[(99 * S, 20)]);
        let at = |free| [sample(100 * S, BUCKET, free)];
        let kept = judge(BUCKET, &at(2), &log_of_bucket);
        assert!(kept.violations.is_empty(), "{kept:?}");
        let broken = judge(BUCKET, &at(3), &log_of_bucket);
        assert_eq!(broken.violations.len(), 1);
    }

    #[test]
    fn a_read_of_one_replica_is_not_judged() {
        let mut behind = sample(200 * S, WINDOW, 0);
        behind.replica = Some(crate::Position { node: 1, index: 4 });
        let verdict = judge(WINDOW, &[behind], &log(&[]));
        assert_eq!((verdict.checked, verdict.undecided.len()), (0, 1));
    }

    proptest! {
        /// One more unit admitted at once by the bound would break the promise, or
        /// be more than the limit; the bound itself does not.
        #[test]
        fn what_can_be_free_is_what_could_still_be_admitted(
            raw in proptest::collection::vec((0_u64..60, 1_u64..4), 0..12),
            bucket in any::<bool>(),
        ) {
            let promise = if bucket {
                Promise::Bucket { capacity: 12, refill: 1, refill_period_us: 10, tick_us: 0 }
            } else {
                Promise::Window { limit: 12, window_us: 30 }
            };
            let mut admissions = Vec::new();
            for (at, units) in raw {
                let next = Admission { units, call_ns: at * 1_000, return_ns: at * 1_000 };
                admissions.push(next);
                if promise.judge(&admissions).over_admitted > 0 {
                    admissions.pop();
                }
            }
            let mut read = sample(60_000, promise, 0);
            read.return_ns = read.call_ns;
            let most = free_at_most(&promise, &admissions, &read);
            let most = u64::try_from(most).unwrap_or(u64::MAX);
            let with = |units| {
                let mut more = admissions.clone();
                more.push(Admission { units, call_ns: 60_000, return_ns: 60_000 });
                promise.judge(&more).over_admitted
            };
            prop_assert_eq!(with(most), 0);
            prop_assert!(with(most + 1) > 0);
        }
    }
}
