//! The promise of a key whose rule was edited while it was spent from: an interval
//! is judged by the largest limit + debt in force during it. Does not know when an
//! edit took effect, only that it did so between call and return; nor what was
//! outstanding when a limit was lowered, only what operators were told of the debt.
//!
//! Time is cut into stretches at every call and return of an edit. What may have
//! been in force in a stretch is the laxest of the rules that may have been; a
//! limit that was lowered stays in force as debt until a read says how much of it
//! is left, since debt only shrinks between edits. For each stretch, the longest
//! interval around it in which nothing laxer may have been in force is judged by
//! its rule: an interval whose laxest stretch it is lies within that.
//!
//! Across an edit from a window to a bucket or back nothing is judged: the two
//! promises have no common measure.

use std::collections::HashSet;

use crate::{AccountSample, Admission, Edit, Judgement, Promise};

/// Judges the admissions of one key by all its edits and the linearizable reads of
/// its books; `edits` and `samples` of other keys are left out by the caller.
/// What was admitted before the first edit was called is over-admitted.
#[must_use]
pub fn judge_edited(
    admissions: &[Admission],
    edits: &[Edit],
    samples: &[AccountSample],
) -> Judgement {
    let mut by_call = admissions.to_vec();
    by_call.sort_unstable_by_key(|admission| admission.call_ns);
    let stretches = stretches(edits, samples);
    let mut worst: Option<Judgement> = None;
    for (from_ns, to_ns, promise) in intervals(&stretches) {
        let first = by_call.partition_point(|admission| admission.call_ns < from_ns);
        let inside: Vec<Admission> = by_call[first..]
            .iter()
            .take_while(|admission| admission.call_ns <= to_ns)
            .filter(|admission| admission.return_ns <= to_ns)
            .copied()
            .collect();
        let judgement = promise.judge(&inside);
        let worse = |than: &Judgement| {
            (judgement.over_admitted, judgement.worst_ratio)
                > (than.over_admitted, than.worst_ratio)
        };
        if worst.as_ref().is_none_or(worse) {
            worst = Some(judgement);
        }
    }
    let nothing = Promise::Window {
        limit: 0,
        window_us: u64::MAX,
    };
    let mut worst = worst.unwrap_or_else(|| nothing.judge(admissions));
    worst.admitted = admissions
        .iter()
        .fold(0, |sum, admission| sum.saturating_add(admission.units));
    worst
}

/// The longest intervals in which nothing laxer than a rule may have been in force,
/// each with that rule, for every laxest rule of some neighbouring stretches.
fn intervals(stretches: &[Stretch]) -> HashSet<(u64, u64, Promise)> {
    let mut found = HashSet::new();
    for (first, stretch) in stretches.iter().enumerate() {
        let Some(mut lax) = stretch.promise else {
            continue;
        };
        for (last, other) in stretches.iter().enumerate().skip(first) {
            let Some(laxer) = other.promise.and_then(|other| laxest(&[lax, other])) else {
                break;
            };
            if laxer == lax && last > first {
                continue;
            }
            lax = laxer;
            let covered = |other: &&Stretch| other.promise.is_some_and(|rule| covers(&lax, &rule));
            let before = stretches[..first].iter().rev().take_while(covered).last();
            let after = stretches[last..].iter().take_while(covered).last();
            let from_ns = before.unwrap_or(stretch).from_ns;
            found.insert((from_ns, after.unwrap_or(other).to_ns, lax));
        }
    }
    found
}

/// A stretch of time, both ends included, and the laxest rule that may have been in
/// force in it; none: windows as well as buckets may have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    from_ns: u64,
    to_ns: u64,
    promise: Option<Promise>,
}

fn stretches(edits: &[Edit], samples: &[AccountSample]) -> Vec<Stretch> {
    let mut begins: Vec<u64> = vec![0];
    for edit in edits {
        begins.push(edit.call_ns);
        if edit.acknowledged {
            begins.push(edit.return_ns.saturating_add(1));
        }
    }
    begins.sort_unstable();
    begins.dedup();
    // Debt is told by reads; a read counts after its return.
    let mut debts: Vec<&AccountSample> = samples
        .iter()
        .filter(|sample| sample.replica.is_none())
        .collect();
    debts.sort_unstable_by_key(|sample| sample.return_ns);

    let mut stretches: Vec<Stretch> = Vec::new();
    // What may be counted and outstanding at most.
    let mut allowed = 0_u64;
    for (place, &from_ns) in begins.iter().enumerate() {
        let to_ns = begins.get(place + 1).map_or(u64::MAX, |next| next - 1);
        let possible = possible(edits, from_ns);
        let rule = laxest(&possible);
        let limit = possible.iter().map(limit_of).max().unwrap_or(0);
        allowed = allowed.max(limit);
        let certain = possible.len() == 1;
        let mut since_ns = from_ns;
        let first = debts.partition_point(|sample| sample.return_ns < from_ns);
        for sample in debts[first..].iter().take_while(|s| s.return_ns <= to_ns) {
            let in_force =
                certain && sample.call_ns >= from_ns && sample.limit == i128::from(limit);
            let told = u64::try_from(sample.debt).ok().filter(|_| in_force);
            let Some(told) = told.and_then(|debt| debt.checked_add(limit)) else {
                continue;
            };
            // A step for every eighth of the debt is near enough, and keeps them few.
            if told < allowed && allowed - told >= (allowed - limit) / 8 {
                push(&mut stretches, since_ns, sample.return_ns, rule, allowed);
                allowed = told;
                since_ns = sample.return_ns.saturating_add(1);
            }
        }
        push(&mut stretches, since_ns, to_ns, rule, allowed);
    }
    stretches
}

fn push(
    stretches: &mut Vec<Stretch>,
    from_ns: u64,
    to_ns: u64,
    rule: Option<Promise>,
    allowed: u64,
) {
    stretches.push(Stretch {
        from_ns,
        to_ns,
        promise: rule.map(|rule| with_limit(rule, allowed)),
    });
}

/// The rules that may be in force in the stretch that begins at a moment: each from
/// its call until a later edit has returned; one with an unknown outcome for ever.
/// Before the first, a window of nothing.
fn possible(edits: &[Edit], from_ns: u64) -> Vec<Promise> {
    let mut rules: Vec<Promise> = edits
        .iter()
        .filter(|edit| {
            let replaced = edits.iter().any(|later| {
                later.acknowledged
                    && edit.acknowledged
                    && later.call_ns >= edit.return_ns
                    && later.call_ns > edit.call_ns
                    && later.return_ns < from_ns
            });
            edit.call_ns <= from_ns && !replaced
        })
        .map(|edit| edit.promise)
        .collect();
    rules.sort_unstable_by_key(|rule| format!("{rule:?}"));
    rules.dedup();
    if rules.is_empty() {
        rules.push(Promise::Window {
            limit: 0,
            window_us: u64::MAX,
        });
    }
    rules
}

const fn limit_of(promise: &Promise) -> u64 {
    match *promise {
        Promise::Window { limit, .. } => limit,
        Promise::Bucket { capacity, .. } => capacity,
    }
}

const fn with_limit(promise: Promise, allowed: u64) -> Promise {
    match promise {
        Promise::Window { window_us, .. } => Promise::Window {
            limit: allowed,
            window_us,
        },
        Promise::Bucket {
            refill,
            refill_period_us,
            tick_us,
            ..
        } => Promise::Bucket {
            capacity: allowed,
            refill,
            refill_period_us,
            tick_us,
        },
    }
}

/// Whether nothing that `strict` allows is more than `lax` allows.
fn covers(lax: &Promise, strict: &Promise) -> bool {
    match (lax, strict) {
        (
            Promise::Window { limit, window_us },
            Promise::Window {
                limit: least,
                window_us: longest,
            },
        ) => limit >= least && window_us <= longest,
        (
            Promise::Bucket {
                capacity,
                refill,
                refill_period_us,
                tick_us,
            },
            Promise::Bucket {
                capacity: least,
                refill: slower,
                refill_period_us: period_us,
                tick_us: finer_us,
            },
        ) => {
            let rate = u128::from(*refill) * u128::from(*period_us);
            let slower = u128::from(*slower) * u128::from(*refill_period_us);
            capacity >= least && rate >= slower && tick_us >= finer_us
        }
        (Promise::Window { .. }, Promise::Bucket { .. })
        | (Promise::Bucket { .. }, Promise::Window { .. }) => false,
    }
}

/// One rule that covers all; none, if windows and buckets are among them.
fn laxest(rules: &[Promise]) -> Option<Promise> {
    let (first, rest) = rules.split_first()?;
    rest.iter()
        .try_fold(*first, |lax, rule| match (lax, *rule) {
            (
                Promise::Window { limit, window_us },
                Promise::Window {
                    limit: other,
                    window_us: other_us,
                },
            ) => Some(Promise::Window {
                limit: limit.max(other),
                window_us: window_us.min(other_us),
            }),
            (
                Promise::Bucket {
                    capacity, tick_us, ..
                },
                Promise::Bucket {
                    capacity: other,
                    refill,
                    refill_period_us,
                    tick_us: other_us,
                },
            ) => {
                // The quicker of the two refills.
                let alike = with_limit(*rule, capacity);
                let quicker = covers(
                    &Promise::Bucket {
                        capacity,
                        refill,
                        refill_period_us,
                        tick_us,
                    },
                    &lax,
                );
                let Promise::Bucket {
                    refill,
                    refill_period_us,
                    ..
                } = (if quicker { alike } else { lax })
                else {
                    return None;
                };
                Some(Promise::Bucket {
                    capacity: capacity.max(other),
                    refill,
                    refill_period_us,
                    tick_us: tick_us.max(other_us),
                })
            }
            (Promise::Window { .. }, Promise::Bucket { .. })
            | (Promise::Bucket { .. }, Promise::Window { .. }) => None,
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn at(call_ns: u64, units: u64) -> Admission {
        Admission {
            units,
            call_ns,
            return_ns: call_ns + 1_000,
        }
    }

    fn window(limit: u64, ms: u64) -> Promise {
        Promise::Window {
            limit,
            window_us: ms * 1_000,
        }
    }

    fn bucket(capacity: u64, refill: u64) -> Promise {
        Promise::Bucket {
            capacity,
            refill,
            refill_period_us: 1_000_000,
            tick_us: 0,
        }
    }

    fn edit(call_ns: u64, acknowledged: bool, promise: Promise) -> Edit {
        Edit {
            key: "a".to_owned(),
            call_ns,
            return_ns: call_ns + MS,
            acknowledged,
            promise,
        }
    }

    fn debt(call_ns: u64, limit: i128, debt: i128) -> AccountSample {
        AccountSample {
            key: "a".to_owned(),
            call_ns,
            return_ns: call_ns + MS,
            replica: None,
            limit,
            debt,
            counted: limit + debt,
            outstanding: 0,
            free: 0,
            leased: None,
            lifetime: None,
        }
    }

    fn over(admissions: &[Admission], edits: &[Edit], samples: &[AccountSample]) -> u64 {
        judge_edited(admissions, edits, samples).over_admitted
    }

    #[test]
    fn a_rule_that_was_never_edited_is_judged_as_it_is() {
        let edits = [edit(0, true, window(3, 10))];
        let log = [at(5 * MS, 2), at(14 * MS, 1), at(16 * MS, 2)];
        let judgement = judge_edited(&log, &edits, &[]);
        assert_eq!((judgement.over_admitted, judgement.admitted), (0, 5));
        let log = [at(5 * MS, 2), at(14 * MS, 2), at(16 * MS, 1)];
        assert_eq!(over(&log, &edits, &[]), 1);
    }

    #[test]
    fn a_raised_limit_may_be_used_from_its_call_and_not_before() {
        let edits = [
            edit(0, true, window(3, 100)),
            edit(50 * MS, true, window(5, 100)),
        ];
        assert_eq!(over(&[at(20 * MS, 3), at(50 * MS, 2)], &edits, &[]), 0);
        assert_eq!(over(&[at(20 * MS, 4), at(60 * MS, 1)], &edits, &[]), 1);
        assert_eq!(over(&[at(20 * MS, 3), at(50 * MS, 3)], &edits, &[]), 1);
    }

    #[test]
    fn debt_may_be_spent_until_a_read_says_that_it_is_gone() {
        let edits = [
            edit(0, true, window(10, 5)),
            edit(50 * MS, true, window(2, 5)),
        ];
        // Ten lie in leases when the limit is lowered; nobody asked when they were gone.
        let late = [at(80 * MS, 10)];
        assert_eq!(over(&late, &edits, &[]), 0);
        assert_eq!(over(&[at(80 * MS, 11)], &edits, &[]), 1);
        let told = |left| [debt(60 * MS, 2, 8), debt(70 * MS, 2, left)];
        assert_eq!(over(&late, &edits, &told(8)), 0);
        assert_eq!(over(&late, &edits, &told(6)), 2);
        assert_eq!(over(&late, &edits, &told(0)), 8);
        assert_eq!(over(&[at(80 * MS, 2)], &edits, &told(0)), 0);
        // A read from before the edit, or of another limit, says nothing of its debt.
        assert_eq!(over(&late, &edits, &[debt(49 * MS, 2, 0)]), 0);
        assert_eq!(over(&late, &edits, &[debt(70 * MS, 10, 0)]), 0);
    }

    #[test]
    fn an_edit_with_an_unknown_outcome_may_be_in_force_at_any_later_time() {
        let log = [at(20 * MS, 3), at(90 * MS, 5)];
        let edits = |acknowledged| {
            [
                edit(0, true, window(3, 10)),
                edit(50 * MS, acknowledged, window(5, 10)),
                edit(60 * MS, true, window(3, 10)),
            ]
        };
        assert_eq!(over(&log, &edits(false), &[]), 0);
        assert_eq!(over(&log, &edits(true), &[debt(70 * MS, 3, 0)]), 2);
        // Before its call it surely was not.
        assert_eq!(over(&[at(20 * MS, 4)], &edits(false), &[]), 1);
    }

    #[test]
    fn a_window_that_was_made_longer_holds_from_the_edit() {
        let edits = [
            edit(0, true, window(3, 10)),
            edit(50 * MS, true, window(3, 40)),
        ];
        // The shorter one's intervals lie before.
        let kept = [at(20 * MS, 3), at(31 * MS, 3), at(45 * MS, 3)];
        assert_eq!(over(&kept, &edits, &[]), 0);
        // Across the edit the shorter one still holds, after it the longer one.
        assert_eq!(over(&[at(45 * MS, 3), at(54 * MS, 1)], &edits, &[]), 1);
        assert_eq!(over(&[at(55 * MS, 3), at(90 * MS, 1)], &edits, &[]), 1);
    }

    #[test]
    fn a_bucket_is_judged_by_the_quicker_refill_across_an_edit() {
        let edits = [
            edit(0, true, bucket(5, 10)),
            edit(1_000 * MS, true, bucket(5, 100)),
        ];
        let before = [at(500 * MS, 5), at(600 * MS, 1), at(650 * MS, 1)];
        assert_eq!(over(&before, &edits, &[]), 1);
        // Each rule by itself allows both.
        let across = |last| [at(950 * MS, 5), at(1_010 * MS, last)];
        assert_eq!(over(&across(5), &edits, &[]), 0);
        let edits = [
            edit(0, true, bucket(5, 10)),
            edit(1_000 * MS, true, bucket(5, 20)),
        ];
        assert_eq!(over(&across(1), &edits, &[]), 0);
        assert_eq!(over(&across(5), &edits, &[]), 4);
    }

    #[test]
    fn before_its_first_rule_a_key_admits_nothing() {
        let edits = [edit(50 * MS, true, bucket(5, 10))];
        assert_eq!(over(&[at(10 * MS, 2)], &edits, &[]), 2);
        assert_eq!(over(&[at(10 * MS, 2)], &[], &[]), 2);
        assert_eq!(over(&[at(50 * MS, 2)], &edits, &[]), 0);
    }

    proptest! {
        #[test]
        fn it_agrees_with_judging_every_interval(
            edits in proptest::collection::vec(
                (0_u64..30, 0_u64..5, any::<bool>(), 0_u64..6, 1_u64..8), 1..5),
            raw in proptest::collection::vec((0_u64..40, 0_u64..3, 0_u64..3), 0..14),
        ) {
            let edits: Vec<Edit> = edits
                .iter()
                .map(|&(call, took, acknowledged, limit, window_us)| Edit {
                    key: "a".to_owned(),
                    call_ns: call * 1_000,
                    return_ns: (call + took) * 1_000,
                    acknowledged,
                    promise: Promise::Window { limit, window_us },
                })
                .collect();
            let log: Vec<Admission> = raw
                .iter()
                .map(|&(call, took, units)| Admission {
                    units, call_ns: call * 1_000, return_ns: (call + took) * 1_000,
                })
                .collect();
            let kept = (0..45_u64).all(|from| (from..45).all(|to| {
                let (from_ns, to_ns) = (from * 1_000, to * 1_000);
                // Whatever was called by the interval's end may count, as debt if no
                // longer as the limit.
                let limit = edits.iter().filter(|e| e.call_ns <= to_ns).map(|e| limit_of(&e.promise));
                let standing = edits.iter().filter(|e| e.call_ns <= to_ns).filter(|e| {
                    !edits.iter().any(|later| {
                        e.acknowledged && later.acknowledged && later.call_ns >= e.return_ns
                            && later.call_ns > e.call_ns && later.return_ns < from_ns
                    })
                });
                let longest = standing.map(|e| match e.promise {
                    Promise::Window { window_us, .. } => window_us * 1_000,
                    Promise::Bucket { .. } => 0,
                });
                let inside = log.iter().filter(|a| a.call_ns >= from_ns && a.return_ns <= to_ns);
                let units: u64 = inside.map(|a| a.units).sum();
                let limit = limit.max().unwrap_or(0);
                longest.min().is_some_and(|longest| to_ns - from_ns > longest) || units <= limit
            }));
            prop_assert_eq!(over(&log, &edits, &[]) == 0, kept);
        }
    }
}
