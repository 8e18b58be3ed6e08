//! Replicas that applied the same log entries are equal, in their fingerprints
//! and in their books. Does not know what the entries say, nor which of two
//! replicas that differ is right.

use std::collections::BTreeMap;

use crate::{AccountSample, DigestSample, Verdict, conservation::books};

/// Digests at equal log indexes are equal, on all nodes and before and after a
/// restart of the same node. `checked` counts the indexes seen on two or more nodes.
#[must_use]
pub fn digests_agree(samples: &[DigestSample]) -> Verdict {
    let seen = samples
        .iter()
        .map(|sample| (sample.index, sample.node, sample.value.clone(), 0));
    agree(seen, |index| format!("log index {index}"))
}

/// Books of an account at equal log indexes are equal. `checked` counts the
/// accounts and indexes seen on two or more nodes.
#[must_use]
pub fn books_agree(samples: &[AccountSample]) -> Verdict {
    let seen = samples.iter().filter_map(|sample| {
        let at = sample.replica?;
        let mut figures = sample.clone();
        figures.replica = None;
        let name = (sample.key.clone(), at.index);
        Some((name, at.node, books(&figures), sample.call_ns))
    });
    agree(seen, |(key, index)| format!("{key} at log index {index}"))
}

fn agree<I: Ord>(
    seen: impl Iterator<Item = (I, u64, String, u64)>,
    subject: impl Fn(&I) -> String,
) -> Verdict {
    let mut by_place: BTreeMap<I, BTreeMap<String, BTreeMap<u64, u64>>> = BTreeMap::new();
    for (place, node, value, at_ns) in seen {
        let values = by_place.entry(place).or_default();
        values
            .entry(value)
            .or_default()
            .entry(node)
            .or_insert(at_ns);
    }
    let mut verdict = Verdict::default();
    for (place, values) in &by_place {
        let mut nodes: Vec<u64> = values
            .values()
            .flat_map(|nodes| nodes.keys().copied())
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() > 1 {
            verdict.checked = verdict.checked.saturating_add(1);
        }
        if values.len() > 1 {
            let at_ns = values.values().flat_map(|nodes| nodes.values()).min();
            let told: Vec<String> = values
                .iter()
                .map(|(value, nodes)| {
                    let nodes: Vec<String> = nodes.keys().map(u64::to_string).collect();
                    format!("{value} on node {}", nodes.join(", "))
                })
                .collect();
            verdict.violated(
                &subject(place),
                at_ns.copied().unwrap_or(0),
                told.join("; "),
            );
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Position;

    fn digest(node: u64, index: u64, value: &str) -> DigestSample {
        DigestSample {
            node,
            index,
            value: value.to_owned(),
        }
    }

    fn account(node: u64, index: u64, key: &str, counted: i128) -> AccountSample {
        AccountSample {
            key: key.to_owned(),
            call_ns: 5,
            return_ns: 6,
            replica: Some(Position { node, index }),
            limit: 10,
            debt: 0,
            counted,
            outstanding: 0,
            free: 10 - counted,
            leased: None,
            lifetime: None,
        }
    }

    #[test]
    fn other_digests_at_other_indexes_say_nothing() {
        let samples = [
            digest(1, 7, "aa"),
            digest(2, 7, "aa"),
            digest(2, 8, "bb"),
            digest(3, 9, "cc"),
            digest(3, 9, "cc"),
        ];
        let verdict = digests_agree(&samples);
        assert!(verdict.is_fine(), "{verdict:?}");
        assert_eq!(verdict.checked, 1, "only index 7 was seen on two nodes");
    }

    #[test]
    fn one_diverged_replica_is_found_and_named() {
        let samples = [digest(1, 7, "aa"), digest(2, 7, "aa"), digest(3, 7, "ab")];
        let verdict = digests_agree(&samples);
        assert_eq!(verdict.violations.len(), 1);
        assert_eq!(
            verdict.violations[0].detail,
            "aa on node 1, 2; ab on node 3"
        );
    }

    #[test]
    fn a_node_that_came_back_as_another_is_found() {
        let verdict = digests_agree(&[digest(1, 7, "aa"), digest(1, 7, "ab")]);
        assert_eq!((verdict.checked, verdict.violations.len()), (0, 1));
    }

    #[test]
    fn books_are_compared_by_key_and_index() {
        let fine = [
            account(1, 7, "a", 3),
            account(2, 7, "a", 3),
            account(2, 8, "a", 4),
            account(1, 7, "b", 9),
        ];
        let verdict = books_agree(&fine);
        assert!(verdict.is_fine(), "{verdict:?}");
        assert_eq!(verdict.checked, 1);
        let mut broken = fine.to_vec();
        broken.push(account(3, 7, "a", 4));
        assert_eq!(books_agree(&broken).violations.len(), 1);
        // A linearizable read has no index to be compared at.
        broken.pop();
        let mut elsewhere = account(3, 7, "a", 4);
        elsewhere.replica = None;
        broken.push(elsewhere);
        assert!(books_agree(&broken).is_fine());
    }

    proptest! {
        #[test]
        fn it_finds_what_comparing_every_pair_finds(
            raw in proptest::collection::vec((1_u64..4, 0_u64..6, 0_u8..2), 0..12),
        ) {
            let samples: Vec<_> = raw
                .iter()
                .map(|&(node, index, value)| digest(node, index, &value.to_string()))
                .collect();
            let pairs = samples.iter().any(|a| {
                samples.iter().any(|b| a.index == b.index && a.value != b.value)
            });
            prop_assert_eq!(digests_agree(&samples).is_fine(), !pairs);
        }
    }
}
