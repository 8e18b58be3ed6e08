//! The ledger's state, and the order in which an entry's parts count. Does not
//! know why an entry was made.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::{
    accounts::Accounts, apply, digest, entry::Entry, outcome::Applied, rules::Rules,
    sessions::Sessions, settings::Settings, spent_once::SpentOnce, wire,
};

/// How many digests of past entries are kept.
const DIGESTS_KEPT: usize = 64;

/// The replicated books. Equal entries lead to equal ledgers, byte for byte.
#[derive(Clone, Debug)]
pub struct Ledger {
    pub(crate) now_us: u64,
    pub(crate) last_index: u64,
    /// Drawn when the cluster was born or restored; none: it is older than ids.
    pub(crate) cluster_id: Option<u128>,
    /// The clusters that it was restored from, the oldest first.
    pub(crate) ancestors: Arc<Vec<u128>>,
    /// Cluster time from which on nothing can be spent any more that the cluster
    /// granted which this one was restored from; 0: it was not restored.
    pub(crate) inherited_until_us: u64,
    /// The newest version of the stored formats that may be written; 0: none of those
    /// from 6 on.
    pub(crate) format_version: u32,
    pub(crate) settings: Arc<Settings>,
    pub(crate) settings_hash: u64,
    pub(crate) rules: Rules,
    pub(crate) accounts: Accounts,
    pub(crate) sessions: Sessions,
    /// Central spends that were admitted under an idempotency key.
    pub(crate) spent_once: SpentOnce,
    /// The disk that used each node id, for ever.
    pub(crate) nodes: Arc<BTreeMap<u64, u128>>,
    pub(crate) node_hashes: digest::Sum,
    /// Digests after the last entries, by log index.
    pub(crate) digests: VecDeque<(u64, u64)>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    /// An empty ledger with the default settings, at time 0.
    #[must_use]
    pub fn new() -> Self {
        let settings = Settings::default();
        Self {
            now_us: 0,
            last_index: 0,
            cluster_id: None,
            ancestors: Arc::default(),
            inherited_until_us: 0,
            format_version: 0,
            settings_hash: settings_hash(&settings),
            settings: Arc::new(settings),
            rules: Rules::new(),
            accounts: Accounts::new(Arc::default()),
            sessions: Sessions::new(),
            spent_once: SpentOnce::new(),
            nodes: Arc::default(),
            node_hashes: digest::Sum::default(),
            digests: VecDeque::new(),
        }
    }

    /// Applies one entry.
    ///
    /// Time moves first (never backwards), then reports and renewals count, so
    /// that sessions whose syncs waited out a pause survive it; then sessions
    /// expire, then periods begin, then commands count, then grants, each with what is still free.
    ///
    /// # Panics
    /// When `index` is not greater than that of the entry before, or when the
    /// books are found broken: a replica must stop then.
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Applied {
        assert!(
            index > self.last_index,
            "entries are applied once, in the order of the log"
        );
        self.last_index = index;
        self.now_us = self.now_us.max(entry.now_us);
        let mut applied = Applied {
            index,
            now_us: self.now_us,
            ..Applied::default()
        };

        applied.syncs = entry
            .syncs
            .iter()
            .map(|sync| apply::sync(self, sync))
            .collect();
        apply::expire_due(self, &mut applied);
        for roll in &entry.rolls {
            applied.rolled |= apply::roll(self, roll);
        }
        applied.commands = entry
            .commands
            .iter()
            .map(|command| apply::command(self, command))
            .collect();
        applied.grants = entry
            .grants
            .iter()
            .map(|grant| apply::grant(self, grant))
            .collect();

        self.sessions.drop_old(self.now_us);
        self.accounts.drop_idle(self.now_us);
        self.spent_once.drop_old(self.now_us);
        if self.digests.len() >= DIGESTS_KEPT {
            self.digests.pop_front();
        }
        self.digests.push_back((index, self.digest()));
        applied
    }

    /// Cluster time in microseconds, as of the last entry.
    #[must_use]
    pub const fn now_us(&self) -> u64 {
        self.now_us
    }

    /// The log index of the last entry; 0 before the first.
    #[must_use]
    pub const fn last_index(&self) -> u64 {
        self.last_index
    }

    /// Which cluster's books these are; none: it was born before clusters had ids.
    #[must_use]
    pub const fn cluster_id(&self) -> Option<u128> {
        self.cluster_id
    }

    /// The clusters that this one was restored from, the oldest first: those that had
    /// ids, and the last few.
    #[must_use]
    pub fn ancestors(&self) -> &[u128] {
        &self.ancestors
    }

    /// Cluster time from which on nothing can be spent any more that the cluster
    /// granted which this one was restored from; 0: it was not restored.
    #[must_use]
    pub const fn inherited_until_us(&self) -> u64 {
        self.inherited_until_us
    }

    /// The newest version of the stored formats that all members are known to read.
    /// What needs a newer one must not be written.
    #[must_use]
    pub fn format_version(&self) -> u32 {
        self.format_version.max(wire::VERSION_OF_ANCESTORS)
    }

    /// The cluster's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether anything depends on time, so that ticks are needed.
    #[must_use]
    pub const fn needs_time(&self) -> bool {
        !self.accounts.shards().is_empty()
            || !self.sessions.live().is_empty()
            || !self.sessions.tombstones().is_empty()
            || !self.spent_once.all().is_empty()
    }

    /// A hash of everything: replicas that applied the same entries agree on it.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut sum = digest::Sum::default();
        sum.add(digest::words([self.now_us, self.last_index]));
        sum.add(self.settings_hash);
        sum.add(self.rules.hashes.value());
        sum.add(self.accounts.hashes.value());
        sum.add(self.sessions.hashes.value());
        sum.add(self.node_hashes.value());
        if let Some(cluster_id) = self.cluster_id {
            let (upper, lower) = digest::halves(cluster_id);
            sum.add(digest::words([7, upper, lower, self.inherited_until_us]));
        }
        if !self.accounts.periods().is_empty() {
            sum.add(digest::words([9, self.accounts.periods().hash()]));
        }
        if self.format_version > 0 {
            sum.add(digest::words([10, self.format_version.into()]));
        }
        if !self.spent_once.all().is_empty() {
            sum.add(digest::words([11, self.spent_once.hashes.value()]));
        }
        for ancestor in self.ancestors.iter() {
            let (upper, lower) = digest::halves(*ancestor);
            sum.add(digest::words([8, upper, lower]));
        }
        sum.value()
    }

    /// The digest after the entry with this index, if it is among the last 64
    /// that this replica applied itself.
    #[must_use]
    pub fn digest_at(&self, index: u64) -> Option<u64> {
        let place = self
            .digests
            .binary_search_by_key(&index, |(index, _)| *index)
            .ok()?;
        self.digests.get(place).map(|(_, digest)| *digest)
    }

    /// Digests after the last entries that this replica applied itself, by log
    /// index, the oldest first.
    pub fn digests(&self) -> impl Iterator<Item = (u64, u64)> {
        self.digests.iter().copied()
    }

    pub(crate) fn set_settings(&mut self, settings: Settings) {
        self.settings_hash = settings_hash(&settings);
        self.settings = Arc::new(settings);
    }

    /// Notes that a disk used a node id; the id is new.
    pub(crate) fn add_node(&mut self, node_id: u64, disk_id: u128) {
        self.node_hashes.add(node_hash(node_id, disk_id));
        Arc::make_mut(&mut self.nodes).insert(node_id, disk_id);
    }

    /// Ids are used once in a cluster, and this is going to be another one.
    pub(crate) fn forget_nodes(&mut self) {
        self.nodes = Arc::default();
        self.node_hashes = digest::Sum::default();
    }
}

pub(crate) fn settings_hash(settings: &Settings) -> u64 {
    digest::bytes(&wire::settings_bytes(settings))
}

pub(crate) fn node_hash(node_id: u64, disk_id: u128) -> u64 {
    let (upper, lower) = digest::halves(disk_id);
    digest::words([6, node_id, upper, lower])
}
