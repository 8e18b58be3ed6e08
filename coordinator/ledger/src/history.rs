//! The last versions of a policy or of a budget: what it said, by whom and when. Does
//! not know what follows from it.

use std::sync::Arc;

use crate::{digest, edit::VERSIONS_KEPT};

/// One version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version<T> {
    /// Counted from 1.
    pub number: u64,
    /// Who, as far as is known; empty: nobody said.
    pub by: String,
    /// What a wall clock said, in microseconds since 1970; 0: nobody said.
    pub wall_unix_us: i64,
    /// What it said.
    pub value: T,
}

/// Who edits, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Author<'a> {
    pub(crate) by: &'a str,
    pub(crate) wall_unix_us: i64,
}

impl Author<'_> {
    /// Of whom nothing is known.
    pub(crate) const UNKNOWN: Author<'static> = Author {
        by: "",
        wall_unix_us: 0,
    };
}

/// The last versions, the oldest first: the newest is what is in force. None are kept
/// of what nobody edited since there are versions, so that it is stored as it was.
#[derive(Clone, Debug)]
pub(crate) struct History<T> {
    /// With the hash of each.
    versions: Arc<Vec<(Version<T>, u64)>>,
}

// By hand, because a `T` need not have a default.
impl<T> Default for History<T> {
    fn default() -> Self {
        Self {
            versions: Arc::default(),
        }
    }
}

impl<T: Clone> History<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// The number of the version in force.
    pub(crate) fn number(&self) -> u64 {
        self.versions.last().map_or(1, |(newest, _)| newest.number)
    }

    pub(crate) fn versions(&self) -> impl DoubleEndedIterator<Item = &Version<T>> {
        self.versions.iter().map(|(version, _)| version)
    }

    /// What an edit makes of it. `before` is what was in force, if anything; its author
    /// is unknown if there is no version of it. An edit of unknown authorship begins no
    /// history.
    pub(crate) fn edited(
        &self,
        before: Option<T>,
        now: T,
        author: Option<Author<'_>>,
        hash_of: impl Fn(&T) -> u64,
    ) -> Self {
        if author.is_none() && self.is_empty() {
            return Self::default();
        }
        let mut next = self.clone();
        if next.is_empty()
            && let Some(before) = before
        {
            next.push(1, before, Author::UNKNOWN, &hash_of);
        }
        let number = match next.versions.last() {
            Some((newest, _)) => newest.number.saturating_add(1),
            None => 1,
        };
        next.push(number, now, author.unwrap_or(Author::UNKNOWN), &hash_of);
        next
    }

    fn push(&mut self, number: u64, value: T, author: Author<'_>, hash_of: impl Fn(&T) -> u64) {
        self.restore(
            Version {
                number,
                by: author.by.to_owned(),
                wall_unix_us: author.wall_unix_us,
                value,
            },
            hash_of,
        );
        let excess = self.versions.len().saturating_sub(VERSIONS_KEPT);
        if excess > 0 {
            Arc::make_mut(&mut self.versions).drain(..excess);
        }
    }

    /// Puts in a version as it is.
    pub(crate) fn restore(&mut self, version: Version<T>, hash_of: impl Fn(&T) -> u64) {
        let hash = digest::words([
            version.number,
            digest::bytes(version.by.as_bytes()),
            version.wall_unix_us.cast_unsigned(),
            hash_of(&version.value),
        ]);
        Arc::make_mut(&mut self.versions).push((version, hash));
    }

    /// Joins its hash to that of what it is the history of, which it leaves alone if it
    /// has nothing.
    pub(crate) fn hashed_with(&self, hash: u64) -> u64 {
        let hashes = self.versions.iter().map(|(_, hash)| *hash);
        hashes.fold(hash, |joined, hash| digest::words([joined, hash]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(history: &History<u64>) -> Vec<u64> {
        history.versions().map(|version| version.number).collect()
    }

    #[test]
    fn the_last_32_versions_are_kept_and_numbers_go_on() {
        let author = Some(Author {
            by: "ada",
            wall_unix_us: 7,
        });
        let mut history = History::default();
        let mut before = None;
        for value in 0..40 {
            history = history.edited(before, value, author, |value| *value);
            before = Some(value);
        }
        assert_eq!(numbers(&history), (9..=40).collect::<Vec<_>>());
        assert_eq!(history.number(), 40);
    }

    #[test]
    fn what_was_there_before_versions_is_the_first_one_of_nobody() {
        let author = Some(Author {
            by: "ada",
            wall_unix_us: 7,
        });
        let older = History::default().edited(None, 1, None, |value| *value);
        assert!(older.is_empty());
        let history = older.edited(Some(1), 2, author, |value| *value);
        let by: Vec<&str> = history.versions().map(|v| v.by.as_str()).collect();
        assert_eq!((numbers(&history), by), (vec![1, 2], vec!["", "ada"]));
        let history = history.edited(Some(2), 3, None, |value| *value);
        assert_eq!(numbers(&history), [1, 2, 3]);
    }
}
