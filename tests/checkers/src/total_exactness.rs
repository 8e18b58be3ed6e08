//! Of a total never more is admitted than its limit and what corrections gave, ever;
//! and what was admitted is in the books, which give every correction once. Knows
//! neither leases nor how a correction is made: only that one counts from its call at
//! the earliest, and has taken what it takes by its answer.
//!
//! What was given and later taken away may be spent all the same: it can lie in leases
//! by then. So what may be admitted by a moment is the most that the limit and the
//! corrections came to at any moment before.

use crate::{
    AccountSample, Admission, Correction, Judgement, Verdict,
    corrections::{Made, made},
    share,
};

/// Judges the admissions of one key, in any order, by its limit and all its corrections.
#[must_use]
pub fn judge_total(limit: u64, admissions: &[Admission], corrections: &[Correction]) -> Judgement {
    let corrections = made(corrections);
    // The limit rises at calls alone, so these are the moments before which it is highest.
    let mut rises: Vec<u64> = corrections.iter().map(|made| made.from_ns).collect();
    rises.push(0);
    rises.sort_unstable();
    rises.dedup();
    let mut by_return: Vec<&Admission> = admissions.iter().collect();
    by_return.sort_unstable_by_key(|admission| admission.return_ns);
    let from_ns = admissions.iter().map(|a| a.call_ns).min().unwrap_or(0);

    let mut judgement = Judgement {
        admitted: 0,
        worst_units: 0,
        worst_from_ns: from_ns,
        worst_to_ns: from_ns,
        over_admitted: 0,
        worst_ratio: 0.0,
    };
    let mut rising = rises.into_iter().peekable();
    let mut allowed = 0_u64;
    for admission in by_return {
        while let Some(at_ns) = rising.next_if(|at_ns| *at_ns <= admission.return_ns) {
            allowed = allowed.max(at_most(limit, &corrections, at_ns, at_ns));
        }
        judgement.admitted = judgement.admitted.saturating_add(admission.units);
        let over = judgement.admitted.saturating_sub(allowed);
        let ratio = share(judgement.admitted, allowed);
        if (over, ratio) > (judgement.over_admitted, judgement.worst_ratio) {
            judgement.over_admitted = over;
            judgement.worst_ratio = ratio;
            judgement.worst_units = judgement.admitted;
            judgement.worst_to_ns = admission.return_ns;
        }
    }
    judgement
}

/// The most that the limit and the corrections can come to between two moments.
fn at_most(limit: u64, corrections: &[Made], from_ns: u64, to_ns: u64) -> u64 {
    let given = sum(corrections, |made| made.given_at_most(to_ns));
    let taken = sum(corrections, |made| made.taken_at_least(from_ns));
    limit.saturating_add(given).saturating_sub(taken)
}

fn at_least(limit: u64, corrections: &[Made], from_ns: u64, to_ns: u64) -> u64 {
    let given = sum(corrections, |made| made.given_at_least(from_ns));
    let taken = sum(corrections, |made| made.taken_at_most(to_ns));
    limit.saturating_add(given).saturating_sub(taken)
}

fn sum(corrections: &[Made], units: impl Fn(&Made) -> u64) -> u64 {
    let each = corrections.iter().map(units);
    each.fold(0, u64::saturating_add)
}

/// Holds the linearizable reads of one key's books against its admissions and its
/// corrections: nothing that was admitted is missing, and no correction is lost or made
/// twice.
#[must_use]
pub fn total_books(
    limit: u64,
    admissions: &[Admission],
    corrections: &[Correction],
    samples: &[AccountSample],
) -> Verdict {
    let corrections = made(corrections);
    let mut verdict = Verdict::default();
    for sample in samples.iter().filter(|sample| sample.replica.is_none()) {
        verdict.checked = verdict.checked.saturating_add(1);
        let before = admissions
            .iter()
            .filter(|admission| admission.return_ns <= sample.call_ns);
        let admitted: i128 = before.map(|admission| i128::from(admission.units)).sum();
        let used = sample.counted.saturating_add(sample.outstanding);
        if used < admitted {
            verdict.violated(
                &sample.key,
                sample.call_ns,
                format!("{admitted} units were admitted, and {used} are counted or outstanding"),
            );
        }
        let (from_ns, to_ns) = (sample.call_ns, sample.return_ns);
        let least = at_least(limit, &corrections, from_ns, to_ns);
        let most = at_most(limit, &corrections, from_ns, to_ns);
        if !(i128::from(least)..=i128::from(most)).contains(&sample.limit) {
            verdict.violated(
                &sample.key,
                sample.call_ns,
                format!(
                    "{} units can be spent in all; after the corrections it must be {least} to {most}",
                    sample.limit
                ),
            );
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Change;

    fn at(call_ns: u64, units: u64) -> Admission {
        Admission {
            units,
            call_ns,
            return_ns: call_ns + 2,
        }
    }

    fn correction(id: &str, call_ns: u64, acknowledged: bool, units: i64) -> Correction {
        Correction {
            key: "a".to_owned(),
            id: id.to_owned(),
            call_ns,
            return_ns: call_ns + 5,
            acknowledged,
            change: Change::Adjust(units),
        }
    }

    fn read(call_ns: u64, limit: i128, counted: i128) -> AccountSample {
        AccountSample {
            key: "a".to_owned(),
            call_ns,
            return_ns: call_ns + 1,
            replica: None,
            limit,
            debt: 0,
            counted,
            outstanding: 0,
            free: limit - counted,
            leased: None,
            lifetime: None,
        }
    }

    fn over(log: &[Admission], corrections: &[Correction]) -> u64 {
        judge_total(10, log, corrections).over_admitted
    }

    #[test]
    fn all_of_a_total_may_be_spent_and_one_more_may_not_however_late() {
        let year = 31_536_000_000_000_000;
        assert_eq!(over(&[at(0, 4), at(year, 6)], &[]), 0);
        assert_eq!(over(&[at(0, 4), at(9, 6), at(year, 1)], &[]), 1);
        assert_eq!(judge_total(0, &[at(0, 1)], &[]).over_admitted, 1);
    }

    #[test]
    fn what_was_topped_up_may_be_spent_from_its_call_and_not_before() {
        for acknowledged in [true, false] {
            let given = [correction("a", 100, acknowledged, 5)];
            // It returned at the very moment of the call.
            assert_eq!(over(&[at(0, 10), at(98, 5)], &given), 0);
            assert_eq!(over(&[at(0, 10), at(97, 5)], &given), 5);
            assert_eq!(over(&[at(0, 10), at(500, 6)], &given), 1);
        }
    }

    #[test]
    fn a_top_up_that_was_repeated_under_its_id_counts_once() {
        let again = [
            correction("a", 100, false, 5),
            correction("a", 200, true, 5),
            correction("a", 300, true, 5),
        ];
        assert_eq!(over(&[at(0, 10), at(120, 5)], &again), 0);
        assert_eq!(over(&[at(0, 10), at(400, 6)], &again), 1);
        let books = |limit| total_books(10, &[], &again, &[read(250, limit, 0)]);
        assert!(books(15).is_fine());
        assert_eq!(books(20).violations.len(), 1, "made twice");
        assert_eq!(books(10).violations.len(), 1, "lost");
    }

    #[test]
    fn what_was_taken_away_may_still_be_spent_and_is_made_up_for_first() {
        let taken = [
            correction("a", 100, true, -4),
            correction("b", 200, true, 3),
        ];
        // Ten may lie in leases when four are taken.
        assert_eq!(over(&[at(150, 10)], &taken), 0);
        assert_eq!(over(&[at(150, 6), at(300, 4)], &taken), 0);
        assert_eq!(over(&[at(150, 6), at(300, 5)], &taken), 1);
    }

    #[test]
    fn books_that_have_less_than_was_admitted_are_found() {
        let log = [at(0, 3), at(50, 2)];
        assert!(total_books(10, &log, &[], &[read(52, 10, 5)]).is_fine());
        assert!(total_books(10, &log, &[], &[read(51, 10, 3)]).is_fine());
        let lost = total_books(10, &log, &[], &[read(52, 10, 4)]);
        assert_eq!(lost.violations.len(), 1);
    }

    proptest! {
        #[test]
        fn it_agrees_with_judging_every_moment(
            raw in proptest::collection::vec((0_u64..60, 0_u64..4), 0..20),
            given in proptest::collection::vec((0_u64..60, any::<bool>(), -6_i64..8), 0..5),
        ) {
            let log: Vec<_> = raw.iter().map(|&(call, units)| at(call, units)).collect();
            let given: Vec<_> = given
                .iter()
                .zip(0..)
                .map(|(&(call, acknowledged, units), id): (_, u32)| {
                    correction(&id.to_string(), call, acknowledged, units)
                })
                .collect();
            let limit_at = |at_ns: u64| {
                let mut limit = 10_i64;
                for one in &given {
                    let Change::Adjust(units) = one.change else { continue };
                    let counts = if units > 0 {
                        one.call_ns <= at_ns
                    } else {
                        one.acknowledged && one.return_ns < at_ns
                    };
                    limit += if counts { units } else { 0 };
                }
                u64::try_from(limit).unwrap_or(0)
            };
            let kept = (0..70_u64).all(|to| {
                let most = (0..=to).map(limit_at).max().unwrap_or(0);
                let inside = log.iter().filter(|a| a.return_ns <= to);
                inside.map(|a| a.units).sum::<u64>() <= most
            });
            prop_assert_eq!(over(&log, &given) == 0, kept);
        }
    }
}
