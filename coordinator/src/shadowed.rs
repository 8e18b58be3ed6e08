//! Per key, how many requests a shadow policy would have refused, as the present leader
//! heard of them. In memory alone: a new leader begins at 0. Does not know policies.

use std::{collections::HashMap, sync::Arc};

use leasehold_key::Key;
use parking_lot::Mutex;

/// Keys that are counted: of one more, nothing is.
const KEYS_MAX: usize = 100_000;

/// The counts; clones are the same ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadowed(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// Of the leader that they are of.
    term: u64,
    of_keys: HashMap<Key, u64>,
}

impl Shadowed {
    /// So many more requests of the key would have been refused.
    pub(crate) fn add(&self, key: &Key, requests: u64) {
        if requests == 0 {
            return;
        }
        metrics::counter!("leasehold_shadowed_total").increment(requests);
        let counts = &mut self.0.lock().of_keys;
        if let Some(count) = counts.get_mut(key) {
            *count = count.saturating_add(requests);
        } else if counts.len() < KEYS_MAX {
            counts.insert(key.clone(), requests);
        }
    }

    /// How many there were since this node began to lead.
    pub(crate) fn of(&self, key: &Key) -> u64 {
        self.0.lock().of_keys.get(key).copied().unwrap_or(0)
    }

    /// This node begins to lead in a term, or goes on.
    pub(crate) fn begin(&self, term: u64) {
        let mut counts = self.0.lock();
        if counts.term != term {
            *counts = Counts {
                term,
                of_keys: HashMap::new(),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn each_key_is_counted_by_itself_and_a_new_leader_begins_at_0() {
        let counts = Shadowed::default();
        counts.begin(1);
        let (one, other) = (Key::parse("a/1").unwrap(), Key::parse("a/2").unwrap());
        counts.add(&one, 3);
        counts.clone().add(&one, 1);
        counts.add(&other, 0);
        assert_eq!((counts.of(&one), counts.of(&other)), (4, 0));
        counts.begin(1);
        assert_eq!(counts.of(&one), 4);
        counts.begin(2);
        assert_eq!(counts.of(&one), 0);
    }

    #[test]
    fn the_keys_that_are_counted_are_bounded() {
        let counts = Shadowed::default();
        for number in 0..=KEYS_MAX {
            counts.add(&Key::parse(&format!("a/{number}")).unwrap(), 1);
        }
        let last = Key::parse(&format!("a/{KEYS_MAX}")).unwrap();
        let first = Key::parse("a/0").unwrap();
        counts.add(&first, 1);
        assert_eq!((counts.of(&last), counts.of(&first)), (0, 2));
    }
}
