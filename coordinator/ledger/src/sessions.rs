//! Sessions and the tombstones of those that are gone, with the indexes over
//! them. Does not know accounts: only which keys a session holds leases of.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold_key::Key;

use crate::{
    accounts::count,
    digest,
    entry::{SessionId, SettledLease},
    exact,
    settings::Settings,
    shards::Shards,
    time,
};

/// Sessions are spread over this many shards.
const SHARDS: usize = 256;
/// Tombstones kept.
const TOMBSTONES_MAX: usize = 100_000;
/// Leases in tombstones kept.
const TOMBSTONE_LEASES_MAX: u64 = 1_000_000;
/// Tombstones dropped per entry because of their age.
const DROPPED_PER_ENTRY: usize = 256;

/// A live session: opened and neither closed nor expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) holder: Arc<str>,
    pub(crate) identity: Arc<str>,
    pub(crate) opened_us: u64,
    /// Cluster time at which it expires unless renewed.
    pub(crate) deadline_us: u64,
    /// Fixed when it opens, like the validity.
    pub(crate) ttl_us: u64,
    pub(crate) validity_us: u64,
    /// The greatest message number applied.
    pub(crate) seq: u64,
    /// No grants, no renewal; its units stay outstanding until its deadline.
    pub(crate) ended: bool,
    /// The hash of what never changes.
    pub(crate) origin_hash: u64,
}

impl Session {
    pub(crate) fn open(holder: &str, identity: &str, settings: &Settings, now_us: u64) -> Self {
        let ttl_us = settings.session_ttl_us;
        Self {
            holder: holder.into(),
            identity: identity.into(),
            opened_us: now_us,
            deadline_us: time::deadline_us(now_us, ttl_us),
            ttl_us,
            validity_us: time::validity_us(ttl_us, settings.max_drift_ppm),
            seq: 0,
            ended: false,
            origin_hash: 0,
        }
        .with_origin()
    }

    /// The session with the hash of what never changes.
    pub(crate) fn with_origin(mut self) -> Self {
        self.origin_hash = digest::words([
            digest::bytes(self.holder.as_bytes()),
            digest::bytes(self.identity.as_bytes()),
            self.opened_us,
            self.ttl_us,
            self.validity_us,
        ]);
        self
    }

    fn hash(&self, id: SessionId) -> u64 {
        let (upper, lower) = digest::halves(id.0);
        digest::words([
            4,
            upper,
            lower,
            self.origin_hash,
            self.deadline_us,
            self.seq,
            u64::from(self.ended),
        ])
    }
}

/// What is remembered of a session that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    pub(crate) identity: Arc<str>,
    /// The date of what was presumed spent.
    pub(crate) ended_us: u64,
    /// Cluster time at which it is dropped.
    pub(crate) drop_us: u64,
    /// Leases that can still be settled, ordered by key and generation.
    pub(crate) leases: Vec<TombstoneLease>,
}

/// One lease of a session that is gone, with units that were presumed spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TombstoneLease {
    pub(crate) key: Key,
    pub(crate) generation: u64,
    /// What had been reported.
    pub(crate) spent: u64,
    /// What was presumed spent beyond that.
    pub(crate) presumed: u64,
    /// The account's epoch then.
    pub(crate) epoch: u64,
}

impl Tombstone {
    fn hash(&self, id: SessionId) -> u64 {
        let (upper, lower) = digest::halves(id.0);
        let mut leases = digest::Sum::default();
        for lease in &self.leases {
            leases.add(digest::words([
                digest::bytes(lease.key.as_str().as_bytes()),
                lease.generation,
                lease.spent,
                lease.presumed,
                lease.epoch,
            ]));
        }
        digest::words([
            5,
            upper,
            lower,
            digest::bytes(self.identity.as_bytes()),
            self.ended_us,
            self.drop_us,
            leases.value(),
        ])
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    live: Shards<SessionId, Session>,
    tombstones: Shards<SessionId, Tombstone>,
    /// Live sessions by deadline.
    deadlines: BTreeSet<(u64, SessionId)>,
    /// Tombstones by when they are dropped.
    drops: BTreeSet<(u64, SessionId)>,
    by_identity: BTreeMap<Arc<str>, u64>,
    /// How many leases each live session has of each key.
    held: BTreeMap<SessionId, BTreeMap<Key, u64>>,
    tombstone_leases: u64,
    pub(crate) hashes: digest::Sum,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self {
            live: Shards::new(SHARDS),
            tombstones: Shards::new(SHARDS),
            deadlines: BTreeSet::new(),
            drops: BTreeSet::new(),
            by_identity: BTreeMap::new(),
            held: BTreeMap::new(),
            tombstone_leases: 0,
            hashes: digest::Sum::default(),
        }
    }

    pub(crate) const fn live(&self) -> &Shards<SessionId, Session> {
        &self.live
    }

    pub(crate) const fn tombstones(&self) -> &Shards<SessionId, Tombstone> {
        &self.tombstones
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.live.get(&id)
    }

    pub(crate) fn tombstone(&self, id: SessionId) -> Option<&Tombstone> {
        self.tombstones.get(&id)
    }

    pub(crate) fn is_known(&self, id: SessionId) -> bool {
        self.live.get(&id).is_some() || self.tombstones.get(&id).is_some()
    }

    pub(crate) fn of_identity(&self, identity: &str) -> u64 {
        self.by_identity.get(identity).copied().unwrap_or(0)
    }

    /// The keys that a session holds leases of.
    pub(crate) fn keys(&self, id: SessionId) -> impl Iterator<Item = &Key> {
        self.held.get(&id).into_iter().flat_map(BTreeMap::keys)
    }

    pub(crate) fn key_count(&self, id: SessionId) -> u64 {
        self.held.get(&id).map_or(0, |keys| count(keys.len()))
    }

    pub(crate) fn lease_count(&self, id: SessionId) -> u64 {
        self.held.get(&id).map_or(0, |keys| {
            keys.values()
                .fold(0, |sum: u64, leases| sum.saturating_add(*leases))
        })
    }

    pub(crate) fn holds(&self, id: SessionId, key: &Key) -> bool {
        self.held
            .get(&id)
            .is_some_and(|keys| keys.contains_key(key))
    }

    /// The earliest deadline that has come.
    pub(crate) fn first_due(&self, now_us: u64) -> Option<SessionId> {
        self.deadlines
            .first()
            .filter(|(deadline_us, _)| *deadline_us <= now_us)
            .map(|(_, id)| *id)
    }

    pub(crate) fn open(&mut self, id: SessionId, session: Session) {
        self.hashes.add(session.hash(id));
        self.deadlines.insert((session.deadline_us, id));
        let alive = self
            .by_identity
            .entry(Arc::clone(&session.identity))
            .or_default();
        *alive = exact::increment(*alive);
        self.live.insert(id, session);
    }

    /// Changes a live session and keeps indexes and hashes in step.
    pub(crate) fn update<R>(
        &mut self,
        id: SessionId,
        change: impl FnOnce(&mut Session) -> R,
    ) -> Option<R> {
        let session = self.live.get_mut(&id)?;
        let deadline_us = session.deadline_us;
        self.hashes.remove(session.hash(id));
        let result = change(session);
        self.hashes.add(session.hash(id));
        if session.deadline_us != deadline_us {
            self.deadlines.remove(&(deadline_us, id));
            self.deadlines.insert((session.deadline_us, id));
        }
        Some(result)
    }

    /// Takes a live session out. Its leases are gone or go with it.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Arc<Session>> {
        let session = self.live.remove(&id)?;
        self.hashes.remove(session.hash(id));
        self.deadlines.remove(&(session.deadline_us, id));
        self.held.remove(&id);
        if let Some(alive) = self.by_identity.get_mut(&session.identity) {
            *alive = exact::decrement(*alive);
            if *alive == 0 {
                self.by_identity.remove(&session.identity);
            }
        }
        Some(session)
    }

    /// Notes that a session has one more lease of a key.
    pub(crate) fn hold(&mut self, id: SessionId, key: &Key) {
        let keys = self.held.entry(id).or_default();
        if let Some(leases) = keys.get_mut(key) {
            *leases = exact::increment(*leases);
        } else {
            keys.insert(key.clone(), 1);
        }
    }

    /// Notes that a session has one lease of a key fewer.
    pub(crate) fn release(&mut self, id: SessionId, key: &Key) {
        let Some(keys) = self.held.get_mut(&id) else {
            return;
        };
        if let Some(leases) = keys.get_mut(key) {
            *leases = exact::decrement(*leases);
            if *leases == 0 {
                keys.remove(key);
            }
        }
        if keys.is_empty() {
            self.held.remove(&id);
        }
    }

    /// The keys that a session held leases of, taken out.
    pub(crate) fn take_held(&mut self, id: SessionId) -> BTreeMap<Key, u64> {
        self.held.remove(&id).unwrap_or_default()
    }

    /// Remembers a session that is gone; beyond the bounds the oldest are dropped.
    pub(crate) fn bury(&mut self, id: SessionId, tombstone: Tombstone) {
        self.hashes.add(tombstone.hash(id));
        self.drops.insert((tombstone.drop_us, id));
        self.tombstone_leases = exact::add(self.tombstone_leases, count(tombstone.leases.len()));
        self.tombstones.insert(id, tombstone);
        while self.tombstones.len() > TOMBSTONES_MAX
            || (self.tombstone_leases > TOMBSTONE_LEASES_MAX && self.tombstones.len() > 1)
        {
            let Some((_, oldest)) = self.drops.first().copied() else {
                break;
            };
            self.drop_tombstone(oldest);
        }
    }

    /// Takes leases out of a tombstone that are settled now, each with the spent
    /// total that was stated for it. One that was settled before is not there.
    pub(crate) fn settle(
        &mut self,
        id: SessionId,
        stated: &[SettledLease],
    ) -> Vec<(TombstoneLease, u64)> {
        let Some(tombstone) = self.tombstones.get_mut(&id) else {
            return Vec::new();
        };
        let mut totals: BTreeMap<(&Key, u64), u64> = BTreeMap::new();
        for lease in stated {
            let total = totals.entry((&lease.key, lease.generation)).or_default();
            *total = lease.spent_total.max(*total);
        }
        self.hashes.remove(tombstone.hash(id));
        let mut settled = Vec::new();
        for lease in std::mem::take(&mut tombstone.leases) {
            match totals.get(&(&lease.key, lease.generation)).copied() {
                Some(total) => settled.push((lease, total)),
                None => tombstone.leases.push(lease),
            }
        }
        self.hashes.add(tombstone.hash(id));
        self.tombstone_leases = exact::sub(self.tombstone_leases, count(settled.len()));
        settled
    }

    fn drop_tombstone(&mut self, id: SessionId) {
        if let Some(tombstone) = self.tombstones.remove(&id) {
            self.hashes.remove(tombstone.hash(id));
            self.drops.remove(&(tombstone.drop_us, id));
            self.tombstone_leases =
                exact::sub(self.tombstone_leases, count(tombstone.leases.len()));
        }
    }

    /// Drops tombstones that are too old: a bounded number, the oldest first.
    pub(crate) fn drop_old(&mut self, now_us: u64) {
        for _ in 0..DROPPED_PER_ENTRY {
            match self.drops.first().copied() {
                Some((drop_us, id)) if drop_us <= now_us => self.drop_tombstone(id),
                _ => return,
            }
        }
    }

    /// The indexes and hashes, built anew from sessions, tombstones and leases.
    pub(crate) fn rebuilt<'a>(&self, leases: impl Iterator<Item = (SessionId, &'a Key)>) -> Self {
        let mut rebuilt = Self::new();
        for (id, session) in self.live.iter() {
            rebuilt.open(*id, session.clone());
        }
        for (id, tombstone) in self.tombstones.iter() {
            rebuilt.bury(*id, tombstone.clone());
        }
        for (id, key) in leases {
            rebuilt.hold(id, key);
        }
        rebuilt
    }

    /// Whether the indexes and sums equal another's.
    pub(crate) fn same_indexes(&self, other: &Self) -> bool {
        self.deadlines == other.deadlines
            && self.drops == other.drops
            && self.by_identity == other.by_identity
            && self.held == other.held
            && self.tombstone_leases == other.tombstone_leases
            && self.hashes == other.hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_tombstones_go_when_there_are_too_many() {
        let mut sessions = Sessions::new();
        let identity: Arc<str> = "".into();
        let extra = 3;
        for id in 0..count(TOMBSTONES_MAX).saturating_add(extra) {
            let tombstone = Tombstone {
                identity: Arc::clone(&identity),
                ended_us: id,
                drop_us: id,
                leases: Vec::new(),
            };
            sessions.bury(SessionId(id.into()), tombstone);
        }
        assert_eq!(sessions.tombstones().len(), TOMBSTONES_MAX);
        assert!(!sessions.is_known(SessionId(2)));
        assert!(sessions.is_known(SessionId(3)));
        sessions.drop_old(1_000);
        assert_eq!(
            sessions.tombstones().len(),
            TOMBSTONES_MAX.saturating_sub(DROPPED_PER_ENTRY)
        );
    }
}
