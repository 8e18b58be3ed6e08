//! What holders did is in the books, no more and no less: a request for several keys
//! charged each of them or none, and a settled reservation what was used. Knows neither
//! leases nor how it is reported, only what is known of the dead: what they spent counts
//! as presumed at least, and beyond that nothing is known of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{ChargeSample, Joint, Settlement, Verdict};

/// What a key was charged.
#[derive(Clone, Copy, Debug, Default)]
struct Due {
    /// Units that holders spent.
    spent: u64,
    /// Units beyond what they had, of those that told it.
    beyond: u64,
}

/// Judges joint requests by the last read of each of their keys, which nothing else may
/// spend from. The read is called after all holders ended: in peace, or for so long that
/// their sessions are gone. `dead` did not end in peace.
#[must_use]
pub fn all_or_none(joints: &[Joint], samples: &[ChargeSample], dead: &BTreeSet<String>) -> Verdict {
    let mut due: BTreeMap<&str, Due> = BTreeMap::new();
    for joint in joints {
        for (key, units) in &joint.parts {
            let due = due.entry(key).or_default();
            let units = if joint.admitted { *units } else { 0 };
            due.spent = due.spent.saturating_add(units);
        }
    }
    judge(&due, samples, dead)
}

/// Judges reservations as [`all_or_none`] judges joint requests: what was settled is
/// spent, and what was used beyond is charged or recorded.
#[must_use]
pub fn settlements(
    settlements: &[Settlement],
    samples: &[ChargeSample],
    dead: &BTreeSet<String>,
) -> Verdict {
    let mut due: BTreeMap<&str, Due> = BTreeMap::new();
    let mut wrong = Verdict::default();
    for settled in settlements {
        let due = due.entry(&settled.key).or_default();
        due.spent = due.spent.saturating_add(settled.charged);
        if !dead.contains(&settled.gateway) {
            due.beyond = due.beyond.saturating_add(settled.overrun);
        }
        // One that came too late counts in full.
        let told = settled.charged.saturating_add(settled.overrun);
        if told != settled.used.max(settled.charged.min(settled.reserved)) {
            wrong.violated(
                &settled.key,
                settled.return_ns,
                format!(
                    "{} of {} reserved units were used; {} are said to be charged, and {} overrun",
                    settled.used, settled.reserved, settled.charged, settled.overrun
                ),
            );
        }
    }
    let mut verdict = judge(&due, samples, dead);
    verdict.merge(wrong);
    verdict
}

fn judge(due: &BTreeMap<&str, Due>, samples: &[ChargeSample], dead: &BTreeSet<String>) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, due) in due {
        let of_key = samples.iter().filter(|sample| sample.key == **key);
        let Some(last) = of_key.max_by_key(|sample| sample.call_ns) else {
            verdict.undecided.push(format!("{key} was never read"));
            continue;
        };
        verdict.checked = verdict.checked.saturating_add(1);
        let mut wrong = |detail: String| verdict.violated(key, last.call_ns, detail);
        if last.outstanding > 0 {
            wrong(format!("{} units never came back", last.outstanding));
        }
        let in_all = last.spent.saturating_add(last.presumed_spent);
        if in_all < due.spent {
            wrong(format!(
                "{} units were spent; {} are charged, and {} presumed",
                due.spent, last.spent, last.presumed_spent
            ));
        }
        if dead.is_empty() && last.spent > due.spent {
            wrong(format!(
                "{} units were spent, and {} are charged",
                due.spent, last.spent
            ));
        }
        let beyond = last.extra.saturating_add(last.overrun);
        // What the dead needed beyond what they had they may have told, or not.
        if beyond < due.beyond || (dead.is_empty() && beyond > due.beyond) {
            wrong(format!(
                "{} units were needed beyond what was held; {} are charged, and {} overrun",
                due.beyond, last.extra, last.overrun
            ));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str, spent: u64, presumed_spent: u64, beyond: [u64; 2]) -> ChargeSample {
        ChargeSample {
            key: key.to_owned(),
            call_ns: 100,
            return_ns: 101,
            spent,
            presumed_spent,
            outstanding: 0,
            extra: beyond[0],
            overrun: beyond[1],
        }
    }

    fn joint(gateway: &str, admitted: bool) -> Joint {
        Joint {
            gateway: gateway.to_owned(),
            parts: vec![("a".to_owned(), 1), ("b".to_owned(), 5)],
            call_ns: 1,
            return_ns: 2,
            admitted,
        }
    }

    fn settled(gateway: &str, used: u64, charged: u64, overrun: u64) -> Settlement {
        Settlement {
            gateway: gateway.to_owned(),
            key: "a".to_owned(),
            call_ns: 1,
            return_ns: 2,
            reserved: 10,
            used,
            charged,
            overrun,
        }
    }

    fn dead(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn all_parts_of_what_was_admitted_are_charged_and_none_of_what_was_refused() {
        let joints = [joint("x", true), joint("x", false), joint("y", true)];
        let books = |a, b| {
            let samples = [read("a", a, 0, [0; 2]), read("b", b, 0, [0; 2])];
            all_or_none(&joints, &samples, &dead(&[])).violations.len()
        };
        assert_eq!(books(2, 10), 0);
        assert_eq!(books(1, 10), 1, "a part was not charged");
        assert_eq!(books(2, 15), 1, "a part of the refused one was");
        let unread = all_or_none(&joints, &[read("a", 2, 0, [0; 2])], &dead(&[]));
        assert_eq!(unread.undecided.len(), 1);
    }

    #[test]
    fn what_the_dead_spent_is_charged_or_presumed() {
        let joints = [joint("x", true), joint("y", true)];
        let books = |a: [u64; 2], b: [u64; 2]| {
            let samples = [read("a", a[0], a[1], [0; 2]), read("b", b[0], b[1], [0; 2])];
            let verdict = all_or_none(&joints, &samples, &dead(&["y"]));
            verdict.violations.len()
        };
        assert_eq!(books([1, 1], [5, 5]), 0);
        assert_eq!(books([1, 7], [12, 9]), 0, "it died before it could note it");
        assert_eq!(books([1, 1], [5, 4]), 1);
    }

    #[test]
    fn a_lease_that_never_came_back_is_found() {
        let sample = ChargeSample {
            outstanding: 3,
            ..read("a", 1, 0, [0; 2])
        };
        let joints = [Joint {
            parts: vec![("a".to_owned(), 1)],
            ..joint("x", true)
        }];
        assert_eq!(
            all_or_none(&joints, &[sample], &dead(&[])).violations.len(),
            1
        );
    }

    #[test]
    fn what_is_settled_and_overrun_in_the_books_is_what_was_settled() {
        let log = [settled("x", 7, 7, 0), settled("x", 15, 12, 3)];
        let books = |spent, beyond| {
            let samples = [read("a", spent, 0, beyond)];
            let verdict = settlements(&log, &samples, &dead(&[]));
            verdict.violations.len()
        };
        assert_eq!(books(19, [0, 3]), 0);
        assert_eq!(books(19, [2, 1]), 0);
        assert_eq!(books(20, [0, 3]), 1, "charged as reserved");
        assert_eq!(books(18, [0, 3]), 1);
        assert_eq!(books(19, [0, 2]), 1, "an overrun was forgotten");
        assert_eq!(books(19, [3, 3]), 1, "an overrun was told twice");
    }

    #[test]
    fn a_holder_that_says_less_than_was_used_is_found() {
        let books = |settled| {
            let samples = [read("a", 10, 0, [0; 2])];
            settlements(&[settled], &samples, &dead(&[]))
                .violations
                .len()
        };
        assert_eq!(books(settled("x", 10, 10, 0)), 0);
        assert_eq!(
            books(settled("x", 4, 10, 0)),
            0,
            "too late: it counts in full"
        );
        assert_eq!(books(settled("x", 12, 10, 0)), 1);
    }

    #[test]
    fn an_overrun_of_the_dead_may_be_known_or_not() {
        let log = [settled("x", 12, 10, 2), settled("y", 12, 10, 2)];
        let books = |overrun| {
            let samples = [read("a", 10, 10, [0, overrun])];
            settlements(&log, &samples, &dead(&["y"])).violations.len()
        };
        assert_eq!((books(2), books(4)), (0, 0));
        assert_eq!(books(1), 1);
    }
}
