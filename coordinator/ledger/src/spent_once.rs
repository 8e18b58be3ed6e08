//! Central spends that were admitted under an idempotency key, for as long as the same
//! request may come again: a bounded number for a bounded time, and none is forgotten
//! early, because what is forgotten is charged twice. Does not know accounts.

use std::{borrow::Borrow, collections::BTreeSet, sync::Arc};

use leasehold_key::Key;

use crate::{
    accounts::count,
    digest,
    shards::{Shards, Spread},
    wire,
};

/// They are spread over this many shards.
const SHARDS: usize = 256;
/// Those that are forgotten per entry.
const DUE_PER_ENTRY: usize = 1_024;

/// What a caller named a request. Callers choose it, so it is kept as it is: two that
/// somebody made alike in some hash are two.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(Arc<str>);

impl Name {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Spread for Name {
    fn spread(&self) -> u64 {
        self.0.spread()
    }
}

/// A spend that was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) key: Key,
    pub(crate) units: u64,
    /// Cluster time from which on the same request is a new one. It was promised when
    /// the spend was admitted: a later edit of the settings does not move it.
    pub(crate) until_us: u64,
}

impl Remembered {
    fn hash(&self, name: &Name) -> u64 {
        digest::bytes(&wire::spent_once_bytes(name, self))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct SpentOnce {
    spends: Shards<Name, Remembered>,
    /// By when they are forgotten.
    due: BTreeSet<(u64, Name)>,
    pub(crate) hashes: digest::Sum,
}

impl SpentOnce {
    pub(crate) fn new() -> Self {
        Self {
            spends: Shards::new(SHARDS),
            due: BTreeSet::new(),
            hashes: digest::Sum::default(),
        }
    }

    pub(crate) const fn all(&self) -> &Shards<Name, Remembered> {
        &self.spends
    }

    pub(crate) fn len(&self) -> u64 {
        count(self.spends.len())
    }

    /// What was admitted under a name, if it is to be known still.
    pub(crate) fn get(&self, name: &str, now_us: u64) -> Option<&Remembered> {
        self.spends
            .get(name)
            .filter(|remembered| now_us < remembered.until_us)
    }

    /// The first moment at which one is forgotten.
    pub(crate) fn first_due_us(&self) -> Option<u64> {
        self.due.first().map(|(until_us, _)| *until_us)
    }

    /// Remembers a spend, in place of one of this name whose time is over.
    pub(crate) fn insert(&mut self, name: Name, remembered: Remembered) {
        self.remove(&name);
        self.hashes.add(remembered.hash(&name));
        self.due.insert((remembered.until_us, name.clone()));
        self.spends.insert(name, remembered);
    }

    fn remove(&mut self, name: &Name) {
        if let Some(old) = self.spends.remove(name) {
            self.hashes.remove(old.hash(name));
            self.due.remove(&(old.until_us, name.clone()));
        }
    }

    /// Forgets those whose time is over: a bounded number, the longest due first.
    pub(crate) fn drop_old(&mut self, now_us: u64) {
        for _ in 0..DUE_PER_ENTRY {
            match self.due.first() {
                Some((until_us, name)) if *until_us <= now_us => {
                    let name = name.clone();
                    self.remove(&name);
                }
                _ => return,
            }
        }
    }

    /// The same, its indexes and sums built anew.
    pub(crate) fn rebuilt(&self) -> Self {
        let mut rebuilt = Self::new();
        for (name, remembered) in self.spends.iter() {
            rebuilt.insert(name.clone(), remembered.clone());
        }
        rebuilt
    }

    /// Whether the indexes and sums equal another's.
    pub(crate) fn same_indexes(&self, other: &Self) -> bool {
        self.due == other.due && self.hashes == other.hashes && self.len() == other.len()
    }
}
