//! In every account, at every sampled moment, `limit + debt = counted +
//! outstanding + free`, none of them is below zero, what is outstanding is what the
//! leases say, and every unit ever granted is spent, handed back, presumed spent or
//! still out. Does not know what was admitted, nor which figures the limit should
//! have led to.

use crate::{AccountSample, Lifetime, Verdict};

/// Judges every sample by itself.
#[must_use]
pub fn conservation(samples: &[AccountSample]) -> Verdict {
    let mut verdict = Verdict::default();
    for sample in samples {
        verdict.checked = verdict.checked.saturating_add(1);
        if let Some(wrong) = wrong(sample) {
            verdict.violated(
                &sample.key,
                sample.call_ns,
                format!("{wrong}: {}", books(sample)),
            );
        }
    }
    verdict
}

fn wrong(sample: &AccountSample) -> Option<String> {
    let AccountSample {
        limit,
        debt,
        counted,
        outstanding,
        free,
        leased,
        lifetime,
        ..
    } = *sample;
    let figures = [
        ("limit", limit),
        ("debt", debt),
        ("counted", counted),
        ("outstanding", outstanding),
        ("free", free),
    ];
    if let Some((name, _)) = figures.iter().find(|(_, figure)| *figure < 0) {
        return Some(format!("{name} is below zero"));
    }
    let sum = |parts: &[i128]| {
        parts
            .iter()
            .try_fold(0_i128, |sum, part| sum.checked_add(*part))
    };
    let left = sum(&[limit, debt]);
    if left.is_none() || left != sum(&[counted, outstanding, free]) {
        return Some("limit + debt is not counted + outstanding + free".to_owned());
    }
    if debt > 0 && free > 0 {
        return Some("units are free although there is debt".to_owned());
    }
    if let Some(leased) = leased.filter(|leased| *leased != outstanding) {
        return Some(format!("the leases have {leased} outstanding"));
    }
    if let Some(lifetime) = lifetime {
        let Lifetime {
            granted,
            spent,
            returned,
            presumed_spent,
        } = lifetime;
        let parts = [spent, returned, presumed_spent, outstanding];
        if parts.iter().any(|part| *part < 0) || sum(&parts) != Some(granted) {
            return Some(format!(
                "granted {granted} in all is not spent {spent} + returned {returned} + \
                 presumed spent {presumed_spent} + outstanding"
            ));
        }
    }
    None
}

/// The figures, for people.
pub(crate) fn books(sample: &AccountSample) -> String {
    let at = sample.replica.map_or_else(
        || "a linearizable read".to_owned(),
        |at| format!("node {} at {}", at.node, at.index),
    );
    format!(
        "{at}: limit {} + debt {}, counted {} + outstanding {} + free {}",
        sample.limit, sample.debt, sample.counted, sample.outstanding, sample.free
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample([limit, debt, counted, outstanding, free]: [i128; 5]) -> AccountSample {
        AccountSample {
            key: "acme/a".to_owned(),
            call_ns: 7,
            return_ns: 8,
            replica: None,
            limit,
            debt,
            counted,
            outstanding,
            free,
            leased: None,
            lifetime: None,
        }
    }

    #[test]
    fn books_that_just_balance_are_fine() {
        let samples = [
            sample([100, 0, 60, 40, 0]),
            sample([10, 90, 60, 40, 0]),
            sample([0, 0, 0, 0, 0]),
            sample([5, 0, 0, 0, 5]),
        ];
        let verdict = conservation(&samples);
        assert!(verdict.is_fine(), "{verdict:?}");
        assert_eq!(verdict.checked, 4);
    }

    #[test]
    fn one_unit_that_appears_vanishes_or_is_negative_is_found() {
        for broken in [
            [100, 0, 60, 40, 1],
            [100, 0, 60, 39, 0],
            [100, 0, 101, -1, 0],
            [100, -1, 99, 0, 0],
            // It balances, and yet a unit above a lowered limit is given away.
            [10, 5, 14, 0, 1],
            [i128::MAX, 1, 0, 0, 0],
        ] {
            let verdict = conservation(&[sample([5, 0, 0, 0, 5]), sample(broken)]);
            assert_eq!(verdict.violations.len(), 1, "{broken:?}: {verdict:?}");
            assert_eq!(verdict.violations[0].at_ns, 7);
        }
    }

    #[test]
    fn leases_and_the_account_must_agree_on_what_is_out() {
        let mut books = sample([100, 0, 60, 40, 0]);
        books.leased = Some(40);
        assert!(conservation(&[books.clone()]).is_fine());
        books.leased = Some(39);
        assert_eq!(conservation(&[books]).violations.len(), 1);
    }

    #[test]
    fn a_granted_unit_that_ended_nowhere_or_twice_is_found() {
        let mut books = sample([100, 0, 60, 40, 0]);
        for (spent, violations) in [(20, 0), (19, 1), (21, 1), (-1, 1)] {
            books.lifetime = Some(Lifetime {
                granted: 90,
                spent,
                returned: 25,
                presumed_spent: 5,
            });
            let verdict = conservation(&[books.clone()]);
            assert_eq!(verdict.violations.len(), violations, "{verdict:?}");
        }
    }

    proptest! {
        #[test]
        fn exactly_the_balanced_are_fine(figures in proptest::array::uniform5(-2_i128..6)) {
            let [limit, debt, counted, outstanding, free] = figures;
            let good = figures.iter().all(|figure| *figure >= 0)
                && limit + debt == counted + outstanding + free
                && (debt == 0 || free == 0);
            prop_assert_eq!(conservation(&[sample(figures)]).is_fine(), good);
        }
    }
}
