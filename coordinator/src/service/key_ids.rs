//! The numbers by which one stream calls its keys. Knows nothing of what is said
//! about them.

use std::collections::{HashMap, VecDeque};

use leasehold_key::Key;

struct Named {
    key: Key,
    /// The last report said that nothing is left of it and nothing wanted.
    done: bool,
}

/// Which number stands for which key on one stream. Bounded: those that are done
/// with are forgotten first.
pub(crate) struct KeyIds {
    keys: HashMap<u32, Named>,
    /// Numbers that may be done with, oldest first; looked at when there are too
    /// many.
    done: VecDeque<u32>,
    keys_max: usize,
}

/// Why a number stands for no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyIdError {
    /// It was never given a key.
    Unknown,
    /// It stands for another key.
    Taken(Key),
    /// There are as many as there may be.
    TooMany(usize),
}

impl KeyIds {
    pub(crate) fn new(keys_max: u32) -> Self {
        Self {
            keys: HashMap::new(),
            done: VecDeque::new(),
            keys_max: usize::try_from(keys_max).unwrap_or(usize::MAX),
        }
    }

    /// The key that a number stands for, given a key if it is new. `done`: this
    /// report says that the client has nothing of the key and wants nothing.
    pub(crate) fn resolve(
        &mut self,
        key_id: u32,
        key: Option<Key>,
        done: bool,
    ) -> Result<Key, KeyIdError> {
        if let Some(named) = self.keys.get_mut(&key_id) {
            let was_done = named.done;
            match key {
                Some(other) if other != named.key && !was_done => {
                    return Err(KeyIdError::Taken(named.key.clone()));
                }
                Some(key) => named.key = key,
                None => {}
            }
            named.done = done;
            let key = named.key.clone();
            if done && !was_done {
                self.note_done(key_id);
            }
            return Ok(key);
        }
        let Some(key) = key else {
            return Err(KeyIdError::Unknown);
        };
        while self.keys.len() >= self.keys_max {
            let Some(oldest) = self.done.pop_front() else {
                return Err(KeyIdError::TooMany(self.keys_max));
            };
            if self.keys.get(&oldest).is_some_and(|named| named.done) {
                self.keys.remove(&oldest);
            }
        }
        self.keys.insert(
            key_id,
            Named {
                key: key.clone(),
                done,
            },
        );
        if done {
            self.note_done(key_id);
        }
        Ok(key)
    }

    fn note_done(&mut self, key_id: u32) {
        self.done.push_back(key_id);
        if self.done.len() > self.keys_max.saturating_mul(2).saturating_add(16) {
            let keys = &self.keys;
            let mut seen = std::collections::HashSet::new();
            self.done.retain(|key_id| {
                keys.get(key_id).is_some_and(|named| named.done) && seen.insert(*key_id)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    #[test]
    fn a_number_stands_for_the_key_that_it_was_first_used_with() {
        let mut ids = KeyIds::new(10);
        assert_eq!(ids.resolve(1, None, false), Err(KeyIdError::Unknown));
        assert_eq!(ids.resolve(1, Some(key("a")), false), Ok(key("a")));
        assert_eq!(ids.resolve(1, None, false), Ok(key("a")));
        assert_eq!(ids.resolve(1, Some(key("a")), false), Ok(key("a")));
        assert_eq!(
            ids.resolve(1, Some(key("b")), false),
            Err(KeyIdError::Taken(key("a")))
        );
    }

    #[test]
    fn a_number_that_is_done_with_may_stand_for_another_key() {
        let mut ids = KeyIds::new(10);
        ids.resolve(1, Some(key("a")), true).unwrap();
        assert_eq!(ids.resolve(1, None, true), Ok(key("a")));
        assert_eq!(ids.resolve(1, Some(key("b")), false), Ok(key("b")));
        assert!(ids.resolve(1, Some(key("a")), false).is_err());
    }

    #[test]
    fn names_are_bounded_and_those_done_with_make_room() {
        let mut ids = KeyIds::new(2);
        ids.resolve(1, Some(key("a")), false).unwrap();
        ids.resolve(2, Some(key("b")), false).unwrap();
        assert_eq!(
            ids.resolve(3, Some(key("c")), false),
            Err(KeyIdError::TooMany(2))
        );
        ids.resolve(1, None, true).unwrap();
        assert_eq!(ids.resolve(3, Some(key("c")), false), Ok(key("c")));
        assert_eq!(ids.resolve(1, None, false), Err(KeyIdError::Unknown));
    }

    #[test]
    fn a_name_that_is_used_again_is_not_forgotten() {
        let mut ids = KeyIds::new(2);
        for _ in 0..100 {
            ids.resolve(1, Some(key("a")), true).unwrap();
            ids.resolve(1, None, false).unwrap();
        }
        ids.resolve(2, Some(key("b")), false).unwrap();
        assert!(ids.resolve(3, Some(key("c")), false).is_err());
        assert_eq!(ids.resolve(1, None, false), Ok(key("a")));
    }
}
