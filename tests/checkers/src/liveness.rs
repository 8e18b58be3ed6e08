//! Grants resume within a bound after faults were undone, and no request outlives
//! its patience. Does not know which fault it was, nor why something took long.

use serde::Serialize;

use crate::{Admission, Healed, Pause, Request, Verdict};

/// How long it took after each healing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resumption {
    /// Whether each was within the bound.
    pub verdict: Verdict,
    /// From each healing to the return of the first admission that was called
    /// after it. A healing after which nothing was admitted has none.
    pub gaps_ns: Vec<u64>,
}

/// Judges by the admissions of one key that has steady demand and capacity, and
/// whose leases are small beside the demand, so that admissions need grants.
///
/// A healing is judged when it lasted as long as the bound, or when an admission
/// came before the next fault; the others are not counted as checked.
#[must_use]
pub fn grants_resume(
    key: &str,
    admissions: &[Admission],
    healed: &[Healed],
    bound_ns: u64,
) -> Resumption {
    let mut by_call: Vec<&Admission> = admissions.iter().collect();
    by_call.sort_unstable_by_key(|admission| admission.call_ns);
    // The earliest return of this admission and all that were called later.
    let mut returns: Vec<u64> = by_call.iter().map(|a| a.return_ns).collect();
    for place in (1..returns.len()).rev() {
        returns[place - 1] = returns[place - 1].min(returns[place]);
    }
    let mut found = Resumption::default();
    for healing in healed {
        let next = by_call.partition_point(|admission| admission.call_ns < healing.at_ns);
        let resumed = returns
            .get(next)
            .filter(|at| **at <= healing.until_ns)
            .map(|at| at - healing.at_ns);
        let lasted = healing.until_ns.saturating_sub(healing.at_ns);
        found.gaps_ns.extend(resumed);
        match resumed {
            None if lasted < bound_ns => continue,
            Some(gap) if gap <= bound_ns => {}
            late => found.verdict.violated(
                key,
                healing.at_ns,
                match late {
                    Some(gap) => format!(
                        "the first admission after {:?} took {} ms, more than {} ms",
                        healing.faults,
                        gap / 1_000_000,
                        bound_ns / 1_000_000
                    ),
                    None => format!(
                        "nothing was admitted in the {} ms after {:?}",
                        lasted / 1_000_000,
                        healing.faults
                    ),
                },
            ),
        }
        found.verdict.checked = found.verdict.checked.saturating_add(1);
    }
    found
}

/// No request takes longer than its patience and `slack_ns`, not counting the time
/// for which its gateway did not run.
#[must_use]
pub fn patience(requests: &[Request], pauses: &[Pause], slack_ns: u64) -> Verdict {
    let mut verdict = Verdict::default();
    for request in requests {
        let until_ns = request.return_ns.unwrap_or(request.looked_ns);
        let took_ns = until_ns.saturating_sub(request.call_ns);
        let excused_ns = asleep(request, until_ns, pauses);
        let bound_ns = request.patience_ns.saturating_add(slack_ns);
        verdict.checked = verdict.checked.saturating_add(1);
        if took_ns > bound_ns.saturating_add(excused_ns) {
            let what = match request.return_ns {
                Some(_) => "took",
                None => "has not returned after",
            };
            verdict.violated(
                &format!("{} of {}", request.key, request.gateway),
                request.call_ns,
                format!(
                    "a request {what} {} ms, {} of them excused; its patience was {} ms",
                    took_ns / 1_000_000,
                    excused_ns / 1_000_000,
                    request.patience_ns / 1_000_000
                ),
            );
        }
    }
    verdict
}

/// For how long of a request its gateway did not run; pauses may overlap.
fn asleep(request: &Request, until_ns: u64, pauses: &[Pause]) -> u64 {
    let mut own: Vec<(u64, u64)> = pauses
        .iter()
        .filter(|pause| pause.gateway == request.gateway)
        .map(|pause| {
            (
                pause.from_ns.max(request.call_ns),
                pause.to_ns.min(until_ns),
            )
        })
        .filter(|(from, to)| from < to)
        .collect();
    own.sort_unstable();
    let (mut sum, mut counted_to) = (0_u64, 0);
    for (from, to) in own {
        let from = from.max(counted_to);
        if to > from {
            sum = sum.saturating_add(to - from);
            counted_to = to;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(call_ns: u64, return_ns: u64) -> Admission {
        Admission {
            units: 1,
            call_ns,
            return_ns,
        }
    }

    fn healed(at_ns: u64, until_ns: u64) -> Healed {
        Healed {
            at_ns,
            until_ns,
            faults: "leader killed".to_owned(),
        }
    }

    fn request(call_ns: u64, return_ns: Option<u64>, patience_ns: u64) -> Request {
        Request {
            gateway: "gw-1".to_owned(),
            key: "a".to_owned(),
            call_ns,
            return_ns,
            looked_ns: 1_000,
            patience_ns,
        }
    }

    fn pause(gateway: &str, from_ns: u64, to_ns: u64) -> Pause {
        Pause {
            gateway: gateway.to_owned(),
            from_ns,
            to_ns,
        }
    }

    #[test]
    fn an_admission_at_the_bound_is_in_time_and_one_after_it_is_late() {
        let found = grants_resume("a", &[at(5, 6), at(90, 110)], &[healed(10, 500)], 100);
        assert!(found.verdict.is_fine(), "{found:?}");
        assert_eq!((found.verdict.checked, found.gaps_ns), (1, vec![100]));
        let found = grants_resume("a", &[at(5, 6), at(90, 111)], &[healed(10, 500)], 100);
        assert_eq!(found.verdict.violations.len(), 1, "{found:?}");
    }

    #[test]
    fn a_call_from_before_the_healing_does_not_count() {
        let found = grants_resume("a", &[at(9, 50)], &[healed(10, 500)], 100);
        assert_eq!(found.verdict.violations.len(), 1, "{found:?}");
    }

    #[test]
    fn silence_is_a_violation_only_if_there_was_time_enough() {
        let long = grants_resume("a", &[], &[healed(10, 110)], 100);
        assert_eq!(
            (long.verdict.checked, long.verdict.violations.len()),
            (1, 1)
        );
        let short = grants_resume("a", &[], &[healed(10, 109)], 100);
        assert!(short.verdict.is_fine() && short.verdict.checked == 0);
        // What comes after the next fault is its healing's.
        let later = grants_resume("a", &[at(120, 121)], &[healed(10, 109)], 100);
        assert_eq!((later.verdict.checked, later.gaps_ns.len()), (0, 0));
    }

    #[test]
    fn a_request_may_take_its_patience_and_the_slack_and_no_more() {
        let verdict = patience(&[request(100, Some(160), 50)], &[], 10);
        assert!(verdict.is_fine() && verdict.checked == 1, "{verdict:?}");
        let verdict = patience(&[request(100, Some(161), 50)], &[], 10);
        assert_eq!(verdict.violations.len(), 1);
    }

    #[test]
    fn a_request_that_hangs_for_ever_is_found() {
        let verdict = patience(&[request(100, None, 50)], &[], 10);
        assert_eq!(verdict.violations.len(), 1);
        assert!(patience(&[request(980, None, 50)], &[], 10).is_fine());
    }

    #[test]
    fn time_in_which_the_gateway_did_not_run_is_excused_once() {
        let stopped = [
            pause("gw-1", 90, 120),
            pause("gw-1", 110, 130),
            pause("gw-2", 130, 1_000),
        ];
        let verdict = patience(&[request(100, Some(190), 50)], &stopped, 10);
        assert!(verdict.is_fine(), "{verdict:?}");
        let verdict = patience(&[request(100, Some(191), 50)], &stopped, 10);
        assert_eq!(verdict.violations.len(), 1);
    }

    proptest! {
        #[test]
        fn excused_time_is_what_counting_every_moment_gives(
            pauses in proptest::collection::vec((0_u64..60, 0_u64..20), 0..6),
            call in 0_u64..40, took in 0_u64..40,
        ) {
            let pauses: Vec<_> =
                pauses.iter().map(|&(from, length)| pause("gw-1", from, from + length)).collect();
            let moments = (call..call + took)
                .filter(|at| pauses.iter().any(|p| p.from_ns <= *at && *at < p.to_ns))
                .count() as u64;
            prop_assert_eq!(asleep(&request(call, None, 0), call + took, &pauses), moments);
        }
    }
}
