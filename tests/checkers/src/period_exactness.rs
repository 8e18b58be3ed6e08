//! Of a period quota never more is admitted in one period than its limit, what it
//! carried over and what was corrected in it; and its books say so. Knows no calendar
//! and no clock of a node: only which number of a period was read when.
//!
//! A period began before anybody read its number, and after all reads of a smaller one
//! were called. An admission is surely of a period when its whole [call, return] lies
//! between the latest moment at which that can have begun and the earliest at which the
//! next one can have. Units that were leased in one period and spent in the next are
//! charged to the next, so moments are all that counts. Several periods in a row are
//! judged together as well: what came while one began is of one of them.

use std::collections::BTreeMap;

use crate::{
    Admission, Change, Correction, Judgement, PeriodSample, Verdict,
    corrections::{Made, made},
    share,
};

/// What a period quota promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodQuota {
    /// Units of each period.
    pub limit: u64,
    /// Unused units that the next period has as well, at most.
    pub carry_over: u64,
}

/// Judges the admissions of one key, in any order, by the reads of its period and all
/// its corrections. What was admitted before the first read or after the last one is
/// not judged: a period can have begun unseen.
#[must_use]
pub fn judge_periods(
    quota: PeriodQuota,
    admissions: &[Admission],
    samples: &[PeriodSample],
    corrections: &[Correction],
) -> Judgement {
    let corrections = made(corrections);
    let spans = spans(quota, samples, &corrections);
    let mut worst = Judgement {
        admitted: admissions
            .iter()
            .fold(0, |sum, admission| sum.saturating_add(admission.units)),
        worst_units: 0,
        worst_from_ns: 0,
        worst_to_ns: 0,
        over_admitted: 0,
        worst_ratio: 0.0,
    };
    for (place, first) in spans.iter().enumerate() {
        let mut allowed = 0_u64;
        let mut number = first.number;
        for last in &spans[place..] {
            // Those in between that nobody read had no more than any has.
            let unread = last.number - number;
            let each = quota.limit.saturating_add(quota.carry_over);
            allowed = allowed
                .saturating_add(last.allowed)
                .saturating_add(unread.saturating_mul(each));
            number = last.number + 1;
            let (from_ns, to_ns) = (first.begun_ns, last.ends_ns);
            let inside = |a: &&Admission| a.call_ns >= from_ns && a.return_ns <= to_ns;
            let units: u64 = admissions.iter().filter(inside).map(|a| a.units).sum();
            let over = units.saturating_sub(allowed);
            let ratio = share(units, allowed);
            if (over, ratio) > (worst.over_admitted, worst.worst_ratio) {
                worst.over_admitted = over;
                worst.worst_ratio = ratio;
                worst.worst_units = units;
                (worst.worst_from_ns, worst.worst_to_ns) = (from_ns, to_ns);
            }
        }
    }
    worst
}

/// A period, as far as it was seen.
struct Span {
    number: u64,
    /// It had begun by then.
    begun_ns: u64,
    /// It had not ended by then.
    ends_ns: u64,
    /// Units that may be admitted in it.
    allowed: u64,
}

fn spans(quota: PeriodQuota, samples: &[PeriodSample], corrections: &[Made]) -> Vec<Span> {
    let mut by_number: BTreeMap<u64, Vec<&PeriodSample>> = BTreeMap::new();
    for sample in samples {
        by_number.entry(sample.number).or_default().push(sample);
    }
    let spans = by_number.iter().map(|(number, seen)| {
        let later = samples.iter().filter(|sample| sample.number >= *number);
        let sooner = samples.iter().filter(|sample| sample.number <= *number);
        let before = samples.iter().filter(|sample| sample.number < *number);
        let after = samples.iter().filter(|sample| sample.number > *number);
        // Outside of these it surely was another one.
        let earliest_ns = before.map(|sample| sample.call_ns).max().unwrap_or(0);
        let latest_ns = after.map(|sample| sample.return_ns).min();
        let latest_ns = latest_ns.unwrap_or(u64::MAX);
        let carried = seen.iter().map(|sample| sample.carried).min();
        let given = corrections
            .iter()
            .filter(|made| made.by_ns.is_none_or(|by_ns| by_ns >= earliest_ns))
            .filter(|made| made.from_ns <= latest_ns)
            .map(|made| match made.change {
                // Refunded or added, one as good as the other.
                Change::Adjust(units) => u64::try_from(units).unwrap_or(0),
                Change::Reset => quota.limit.saturating_add(carried.unwrap_or(0)),
            });
        let given = given.fold(0, u64::saturating_add);
        Span {
            number: *number,
            begun_ns: later.map(|sample| sample.return_ns).min().unwrap_or(0),
            ends_ns: sooner.map(|sample| sample.call_ns).max().unwrap_or(0),
            allowed: quota
                .limit
                .saturating_add(carried.unwrap_or(0))
                .saturating_add(given),
        }
    });
    spans.collect()
}

/// Holds the reads of one key's books against its admissions and its corrections: no
/// period comes a second time, none has more than its limit and what was carried over
/// or given to it, and nothing that was admitted in one is missing.
#[must_use]
pub fn period_books(
    quota: PeriodQuota,
    admissions: &[Admission],
    samples: &[PeriodSample],
    corrections: &[Correction],
) -> Verdict {
    let corrections = made(corrections);
    let mut verdict = Verdict::default();
    for sample in samples {
        verdict.checked = verdict.checked.saturating_add(1);
        let PeriodSample {
            number,
            carried,
            counted,
            outstanding,
            call_ns,
            return_ns,
            ..
        } = *sample;
        let mut wrong = |detail: String| verdict.violated(&sample.key, call_ns, detail);
        let before = samples.iter().filter(|s| s.return_ns < call_ns);
        if let Some(before) = before.map(|s| s.number).max().filter(|n| *n > number) {
            wrong(format!(
                "it is period {number} after it was period {before}"
            ));
        }
        let given = corrections.iter().map(|made| made.given_at_most(return_ns));
        let most = given.fold(quota.carry_over, u64::saturating_add);
        if carried > most {
            wrong(format!(
                "{carried} units are carried; with what was given it can be {most}"
            ));
        }
        let used = counted.saturating_add(outstanding);
        let has = quota.limit.saturating_add(carried);
        if used > has {
            wrong(format!(
                "{used} units are counted or outstanding in period {number}, which has {has}"
            ));
        }
        // Those of this period that were over before the read.
        let begun = samples.iter().filter(|s| s.number >= number);
        let begun_ns = begun.map(|s| s.return_ns).min().unwrap_or(0);
        let inside = |a: &&Admission| a.call_ns >= begun_ns && a.return_ns <= call_ns;
        let admitted: u64 = admissions.iter().filter(inside).map(|a| a.units).sum();
        let is_freed = corrections.iter().any(|made| {
            made.from_ns <= return_ns && !matches!(made.change, Change::Adjust(units) if units < 0)
        });
        if !is_freed && used < admitted {
            wrong(format!(
                "{admitted} units were admitted in period {number}, and {used} are counted or \
                 outstanding"
            ));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUOTA: PeriodQuota = PeriodQuota {
        limit: 10,
        carry_over: 3,
    };

    fn at(call_ns: u64, units: u64) -> Admission {
        Admission {
            units,
            call_ns,
            return_ns: call_ns + 1,
        }
    }

    fn read(call_ns: u64, number: u64, carried: u64) -> PeriodSample {
        PeriodSample {
            key: "a".to_owned(),
            call_ns,
            return_ns: call_ns + 1,
            number,
            carried,
            counted: 0,
            outstanding: 0,
        }
    }

    fn correction(call_ns: u64, acknowledged: bool, change: Change) -> Correction {
        Correction {
            key: "a".to_owned(),
            id: call_ns.to_string(),
            call_ns,
            return_ns: call_ns + 1,
            acknowledged,
            change,
        }
    }

    fn over(log: &[Admission], samples: &[PeriodSample], corrections: &[Correction]) -> u64 {
        judge_periods(QUOTA, log, samples, corrections).over_admitted
    }

    #[test]
    fn each_period_may_be_used_up_and_one_more_is_found() {
        // The second one begins between 50 and 61.
        let samples = [
            read(0, 1, 0),
            read(50, 1, 0),
            read(60, 2, 3),
            read(100, 2, 3),
        ];
        let both = [at(1, 10), at(61, 13)];
        assert_eq!(over(&both, &samples, &[]), 0);
        let first = [at(1, 10), at(49, 1)];
        assert_eq!(over(&first, &samples, &[]), 1);
        let second = [at(61, 13), at(99, 1)];
        assert_eq!(over(&second, &samples, &[]), 1);
    }

    #[test]
    fn what_came_while_a_period_began_is_of_one_of_the_two() {
        let samples = [
            read(0, 1, 0),
            read(50, 1, 0),
            read(60, 2, 0),
            read(100, 2, 0),
        ];
        let between = |units| [at(1, 10), at(55, units), at(61, 10)];
        assert_eq!(over(&[at(1, 5), at(55, 10), at(61, 5)], &samples, &[]), 0);
        assert_eq!(over(&between(1), &samples, &[]), 1);
    }

    #[test]
    fn a_period_that_begins_unseen_excuses_what_came_before_or_after_the_reads() {
        let samples = [read(10, 7, 0), read(20, 7, 0)];
        assert_eq!(over(&[at(0, 10), at(12, 10), at(30, 10)], &samples, &[]), 0);
        assert_eq!(over(&[at(11, 1), at(12, 10)], &samples, &[]), 1);
        // None read at all: nothing is known.
        assert_eq!(over(&[at(11, 100)], &[], &[]), 0);
    }

    #[test]
    fn what_is_given_by_hand_may_be_used_in_its_period() {
        let samples = [read(0, 1, 0), read(100, 1, 0)];
        for acknowledged in [true, false] {
            let given = [correction(40, acknowledged, Change::Adjust(5))];
            assert_eq!(over(&[at(1, 10), at(50, 5)], &samples, &given), 0);
            assert_eq!(over(&[at(1, 10), at(50, 6)], &samples, &given), 1);
            let reset = [correction(40, acknowledged, Change::Reset)];
            assert_eq!(over(&[at(1, 10), at(50, 10)], &samples, &reset), 0);
            assert_eq!(over(&[at(1, 10), at(50, 11)], &samples, &reset), 1);
        }
        // One of an earlier period is over.
        let samples = [
            read(0, 1, 0),
            read(30, 1, 0),
            read(40, 2, 0),
            read(90, 2, 0),
        ];
        let before = [correction(10, true, Change::Adjust(5))];
        assert_eq!(over(&[at(50, 11)], &samples, &before), 1);
    }

    #[test]
    fn books_that_begin_a_period_twice_or_forget_what_is_out_are_found() {
        let books = |log: &[Admission], samples: &[PeriodSample]| {
            period_books(QUOTA, log, samples, &[]).violations.len()
        };
        let used = |call_ns, number, carried, counted, outstanding| PeriodSample {
            counted,
            outstanding,
            ..read(call_ns, number, carried)
        };
        assert_eq!(books(&[], &[read(0, 1, 0), read(10, 2, 3)]), 0);
        assert_eq!(books(&[], &[read(0, 2, 0), read(10, 1, 0)]), 1);
        assert_eq!(books(&[], &[read(0, 2, 4)]), 1, "more than is carried over");
        assert_eq!(books(&[], &[used(0, 2, 2, 6, 6)]), 0);
        assert_eq!(books(&[], &[used(0, 2, 2, 6, 7)]), 1);
        let log = [at(5, 4)];
        let seen = |counted| [used(0, 1, 0, 0, 4), used(10, 1, 0, counted, 0)];
        assert_eq!(books(&log, &seen(4)), 0);
        assert_eq!(books(&log, &seen(3)), 1, "one was refunded");
    }

    proptest! {
        #[test]
        fn what_a_quota_admits_is_never_found_and_what_it_must_not_is(
            rolls in proptest::collection::vec(1_u64..40, 1..4),
            asks in proptest::collection::vec((0_u64..120, 0_u64..6), 0..40),
            reads in proptest::collection::vec(0_u64..120, 2..12),
            extra in 1_u64..4,
        ) {
            // A quota that is kept by somebody who knows when it rolls.
            let number_at = |at_ns: u64| {
                let mut begin = 0;
                let begun = rolls.iter().filter(|gap| { begin += **gap; begin <= at_ns }).count();
                1 + begun as u64
            };
            let mut asks = asks;
            asks.sort_unstable();
            let mut used: BTreeMap<u64, u64> = BTreeMap::new();
            let mut log = Vec::new();
            for (at_ns, units) in asks {
                let used = used.entry(number_at(at_ns)).or_default();
                if *used + units <= QUOTA.limit {
                    *used += units;
                    log.push(Admission { units, call_ns: at_ns, return_ns: at_ns });
                }
            }
            let samples: Vec<PeriodSample> = reads
                .iter()
                .map(|&at_ns| PeriodSample { return_ns: at_ns, ..read(at_ns, number_at(at_ns), 0) })
                .collect();
            prop_assert_eq!(over(&log, &samples, &[]), 0);
            // As much again as one period has, at a moment that surely lies in it.
            let moment = reads[0];
            log.push(Admission { units: QUOTA.limit + extra, call_ns: moment, return_ns: moment });
            prop_assert!(over(&log, &samples, &[]) >= extra);
        }
    }
}
