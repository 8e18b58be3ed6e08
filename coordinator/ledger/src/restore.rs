//! The books of a new cluster, from those of one that is gone. Does not know how
//! old the backup is, nor what the old cluster did after it: nobody does, so
//! everything counts as used that may have been.
//!
//! Why this is exact. Say that the backup has cluster time `c`, that the old
//! cluster stopped at the real instant `s`, that the first leader of the new one
//! began at `r ≥ s`, and that `ttl` is the longest of an old session.
//!
//! 1. *When the old units end.* A holder spends until its own clock shows
//!    `ttl × (1 − 2 × drift)` since it sent a renewal that the old cluster applied,
//!    so before `a = s + ttl × (1 − 2 × drift) / (1 − drift)` whatever its clock. The
//!    new cluster's time begins at `c` and runs at most `1 + drift` times as fast as
//!    real time, so it reaches `inherited_until_us = c + ttl + 1` not before
//!    `r + ttl / (1 + drift) ≥ a`. A central spend of the old cluster is older than `s`.
//! 2. *Windows.* The whole limit counts from then on for `W × (1 + drift)`, so the
//!    first unit of the new cluster is admitted a whole window after the last one of
//!    the old cluster: no interval of length W holds units of both. That holds whatever
//!    the limit was or becomes.
//! 3. *Buckets.* The old cluster's units are at most `b + r × (a − x)` from any instant
//!    x on. The new bucket is empty until `a` and only flows from then on, so
//!    it adds at most `r × (y − a)` until y: `b + r × (y − x)` in all. (Had it begun to
//!    flow at `r` already, what flowed until `a` would come on top of what old holders
//!    may spend at the last moment.)
//! 4. *Keys without an account* may have had one after the backup: [`fresh_books`]
//!    begins every account so, for as long as it makes a difference.
//! 5. *Later edits* may repeat edits that were made after the backup, so they free
//!    nothing either: see `Books::keep_inherited`.
//! 6. *Reports, settles and resumes* of old sessions find neither session nor
//!    tombstone: they refund nothing and renew nothing.
//!
//! [`fresh_books`]: crate::apply

use std::sync::Arc;

use crate::{
    accounts::Accounts, kind::Moment, ledger::Ledger, sessions::Sessions, time, views::Totals,
};

/// Clusters that are remembered, so that their nodes are known for what they are.
const ANCESTORS_MAX: usize = 16;

/// What a restore made void, and until when nothing is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Voided {
    /// What the backup had: its sessions, tombstones, leases and units outstanding
    /// are gone, and the units count as spent.
    pub had: Totals,
    /// The longest that a session of the old cluster lives without a renewal.
    pub ttl_us: u64,
    /// See [`Ledger::inherited_until_us`].
    pub inherited_until_us: u64,
}

impl Ledger {
    /// The longest time to live of the sessions that this ledger knows of or would
    /// open.
    #[must_use]
    pub fn session_ttl_max_us(&self) -> u64 {
        let sessions = self.sessions.live().iter();
        sessions
            .map(|(_, session)| session.ttl_us)
            .fold(self.settings.session_ttl_us, u64::max)
    }

    /// The books of the new cluster `cluster_id` that begins with this ledger's
    /// policies, budgets and settings. Sessions, leases and tombstones are void, node
    /// ids are free again, and nothing of any account is free before everything has
    /// ended that the old cluster may have granted; `ttl_us` is the longest time to
    /// live that its sessions had, if longer than this ledger knows.
    #[must_use]
    pub fn restored(mut self, cluster_id: u128, ttl_us: u64) -> (Self, Voided) {
        let had = self.totals();
        let ttl_us = ttl_us.max(self.session_ttl_max_us());
        // A second restore may come before the first one's past has ended.
        let inherited_until_us =
            time::deadline_us(self.now_us, ttl_us).max(self.inherited_until_us);
        let periods = Arc::clone(self.accounts.periods());
        let moment = Moment {
            periods: &periods,
            now_us: self.now_us,
            inherited_until_us,
            drift_ppm: self.settings.max_drift_ppm,
        };
        let mut accounts = Accounts::new(Arc::clone(&periods));
        for (_, account) in self.accounts.shards().iter() {
            let mut account = account.clone();
            account.settle(self.now_us, &periods);
            account.inherit(&moment);
            accounts.insert(account);
        }
        let mut ancestors = (*self.ancestors).clone();
        ancestors.extend(self.cluster_id);
        let forgotten = ancestors.len().saturating_sub(ANCESTORS_MAX);
        ancestors.drain(..forgotten);
        self.ancestors = Arc::new(ancestors);
        self.cluster_id = Some(cluster_id);
        self.inherited_until_us = inherited_until_us;
        self.accounts = accounts;
        self.sessions = Sessions::new();
        self.forget_nodes();
        self.digests.clear();
        let voided = Voided {
            had,
            ttl_us,
            inherited_until_us,
        };
        (self, voided)
    }
}
