//! Never more permits are valid at one moment than the limit. Knows no session: a permit
//! is surely valid from when its holder got it until the last look that found it so,
//! since what has ended does not become valid again. What a dead or stopped holder has
//! is valid up to its last look; that others do not get it sooner than they may shows in
//! the looks of a holder that was stopped and went on.

use std::collections::BTreeMap;

use crate::{Judgement, PermitLook, share};

/// Judges the permits of one key, by all looks of all holders, in any order.
#[must_use]
pub fn judge_permits(limit: u64, looks: &[PermitLook]) -> Judgement {
    // By holder and number: units, from when and until when it was surely valid.
    let mut permits: BTreeMap<(&str, u64), (u64, u64, u64)> = BTreeMap::new();
    for look in looks {
        let valid_ns = look.valid_ns.unwrap_or(0);
        permits
            .entry((&look.gateway, look.number))
            .and_modify(|(_, _, until_ns)| *until_ns = valid_ns.max(*until_ns))
            .or_insert((look.units, look.return_ns, valid_ns));
    }
    let admitted = permits
        .values()
        .fold(0_u64, |sum, (units, ..)| sum.saturating_add(*units));
    // At one and the same moment permits begin before others end.
    let mut changes: Vec<(u64, bool, u64)> = Vec::new();
    for &(units, from_ns, until_ns) in permits.values() {
        if until_ns >= from_ns {
            changes.push((from_ns, false, units));
            changes.push((until_ns, true, units));
        }
    }
    changes.sort_unstable();
    let mut judgement = Judgement {
        admitted,
        worst_units: 0,
        worst_from_ns: 0,
        worst_to_ns: 0,
        over_admitted: 0,
        worst_ratio: 0.0,
    };
    let mut valid = 0_u64;
    for (at_ns, ends, units) in changes {
        if ends {
            valid -= units;
            continue;
        }
        valid += units;
        if valid > judgement.worst_units {
            judgement.worst_units = valid;
            (judgement.worst_from_ns, judgement.worst_to_ns) = (at_ns, at_ns);
        }
    }
    judgement.over_admitted = judgement.worst_units.saturating_sub(limit);
    judgement.worst_ratio = share(judgement.worst_units, limit);
    judgement
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn look(gateway: &str, number: u64, from_ns: u64, valid_ns: Option<u64>) -> PermitLook {
        PermitLook {
            gateway: gateway.to_owned(),
            key: "a".to_owned(),
            number,
            units: 1,
            call_ns: from_ns.saturating_sub(1),
            return_ns: from_ns,
            valid_ns,
        }
    }

    fn over(limit: u64, looks: &[PermitLook]) -> u64 {
        judge_permits(limit, looks).over_admitted
    }

    #[test]
    fn as_many_as_the_limit_may_be_valid_at_once_and_one_after_another() {
        let looks = [
            look("x", 1, 0, Some(10)),
            look("y", 1, 0, Some(10)),
            look("x", 2, 11, Some(20)),
            look("y", 2, 11, Some(20)),
        ];
        assert_eq!(over(2, &looks), 0);
        assert_eq!(over(1, &looks), 1);
        assert_eq!(judge_permits(2, &looks).admitted, 4);
    }

    #[test]
    fn a_permit_that_is_given_away_while_another_has_it_is_found() {
        // Stopped at 10, it went on at 50 and found its permit valid.
        let stopped = [look("x", 1, 0, Some(10)), look("x", 1, 0, Some(50))];
        let kept = [&stopped[..], &[look("y", 1, 51, Some(60))]].concat();
        assert_eq!(over(1, &kept), 0);
        let broken = [&stopped[..], &[look("y", 1, 50, Some(60))]].concat();
        assert_eq!(over(1, &broken), 1);
        // It found that it had ended: it may have, at any moment after 10.
        let ended = [look("x", 1, 0, Some(10)), look("x", 1, 0, None)];
        let kept = [&ended[..], &[look("y", 1, 11, Some(60))]].concat();
        assert_eq!(over(1, &kept), 0);
    }

    #[test]
    fn a_permit_that_nobody_looked_at_is_not_known_to_be_valid() {
        let looks = [look("x", 1, 5, None), look("y", 1, 5, Some(9))];
        assert_eq!(over(1, &looks), 0);
    }

    proptest! {
        #[test]
        fn it_agrees_with_counting_at_every_moment(
            raw in proptest::collection::vec((0_u64..3, 0_u64..40, 0_u64..20, 0_u64..4), 0..20),
            limit in 0_u64..8,
        ) {
            let looks: Vec<PermitLook> = raw
                .iter()
                .zip(0..)
                .map(|(&(gateway, from_ns, lasts, units), number)| PermitLook {
                    units,
                    ..look(&gateway.to_string(), number, from_ns, Some(from_ns + lasts))
                })
                .collect();
            let most = (0..70).map(|at: u64| {
                let valid = looks.iter().filter(|l| l.return_ns <= at && Some(at) <= l.valid_ns);
                valid.map(|l| l.units).sum::<u64>()
            });
            let most = most.max().unwrap_or(0);
            prop_assert_eq!(over(limit, &looks), most.saturating_sub(limit));
        }
    }
}
