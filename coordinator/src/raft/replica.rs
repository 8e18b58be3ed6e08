//! One replica of the cluster, as the rest of the coordinator uses it. Knows
//! nothing of sessions or budgets.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use leasehold_ledger::{Ledger, entry::Entry, outcome::Applied};
use leasehold_proto::v1::DigestRequest;
use openraft::{
    ReadPolicy,
    async_runtime::WatchReceiver,
    errors::{LinearizableReadError, RaftError},
};
use tokio::sync::watch;

use super::{
    api::{
        ChangeError, ClusterStatus, Dismissal, Leadership, Member, MemberStatus, ProposeError,
        ReplicaConfig, Role, StartError, WallClock,
    },
    boot::{self, Running},
    propose::propose,
};

/// How long a node of an older cluster is spoken of after it was heard.
const LATELY: Duration = Duration::from_secs(60);
/// How long `status` waits for other members' digests.
const DIGEST_TIMEOUT: Duration = Duration::from_millis(500);

/// A handle to a running replica; clones are cheap and name the same one. It
/// stops when the last of them is dropped.
#[derive(Clone)]
pub struct Replica(Arc<Running>);

impl Replica {
    /// Starts a replica; returns once it takes part, which for an empty node of a
    /// cluster is after every initial member has answered. Dropping the future
    /// gives up.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub async fn start(config: ReplicaConfig) -> Result<Self, StartError> {
        boot::start(config)
            .await
            .map(|running| Self(Arc::new(running)))
    }

    /// Where peers reach this replica: the bound address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.0.peer_addr
    }

    /// This node, as it describes itself to others.
    #[must_use]
    pub fn me(&self) -> Member {
        self.0.changes.shared.me.clone()
    }

    /// Appends an entry in `term` and waits until it was applied here. The term is
    /// the one whose anchor stamped the entry: an entry stamped in one term must
    /// never be appended in a later one, since cluster time may have stood still
    /// in between.
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub async fn propose(&self, term: u64, entry: Entry) -> Result<Arc<Applied>, ProposeError> {
        let running = &self.0;
        match &*running.changes.leadership.borrow() {
            Leadership::Leading { term: led, .. } if *led == term => {}
            Leadership::Leading { .. } => return Err(ProposeError::NotLeader { leader: None }),
            Leadership::Following { leader } => {
                return Err(ProposeError::NotLeader {
                    leader: leader.clone(),
                });
            }
        }
        if running.fatal.borrow().is_some() {
            return Err(ProposeError::Stopped);
        }
        propose(&running.changes.core, term, &entry).await
    }

    /// Returns once everything that was committed before the call is applied here,
    /// confirmed by a quorum; only a leader can.
    ///
    /// # Errors
    /// See [`ProposeError`]; nothing is written in any case.
    pub async fn read_barrier(&self) -> Result<(), ProposeError> {
        match self
            .0
            .changes
            .core
            .ensure_linearizable(ReadPolicy::ReadIndex)
            .await
        {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to))) => {
                Err(ProposeError::NotLeader {
                    leader: to.leader_node,
                })
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(ProposeError::NotLeader { leader: None })
            }
            Err(RaftError::Fatal(_)) => Err(ProposeError::Stopped),
        }
    }

    /// Reads the ledger as applied here, under a lock that holds up the next entry:
    /// be brief.
    pub fn with_ledger<T>(&self, read: impl FnOnce(&Ledger) -> T) -> T {
        read(&self.0.changes.shared.ledger.read())
    }

    /// Who leads; changes are published in order, and a watcher may skip some.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.0.changes.leadership.clone()
    }

    /// Becomes `Some` when the replica cannot go on: say why and end the process.
    #[must_use]
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.0.fatal.clone()
    }

    /// Ends the replica, because what runs on it cannot go on.
    pub fn fail(&self, reason: String) {
        self.0.changes.shared.fail(reason);
    }

    /// Whether it ended because nobody needs it any more, and why.
    #[must_use]
    pub fn dismissal(&self) -> Option<Dismissal> {
        self.0.changes.shared.dismissed.get().copied()
    }

    /// The node that was lately heard of a cluster which this one was restored from,
    /// and which should not run any more.
    #[must_use]
    pub fn old_node(&self) -> Option<u64> {
        let heard = *self.0.changes.shared.old_node.lock();
        let (node_id, at) = heard?;
        (u128::from(at.elapsed_us()) <= LATELY.as_micros()).then_some(node_id)
    }

    /// How this node's wall clock compares with the other members'.
    #[must_use]
    pub fn wall_clock(&self) -> WallClock {
        *self.0.changes.shared.wall_clock.lock()
    }

    /// The greatest time, in microseconds since 1970, of which a majority of the voters
    /// say that it is over by their wall clocks, this node among them: right as long as
    /// more than half of them are, whoever has a wrong one. It may be late by a round
    /// trip. None: no majority answered in the last ten seconds.
    #[must_use]
    pub fn majority_wall_unix_us(&self) -> Option<u64> {
        self.0.changes.shared.majority_wall_unix_us()
    }

    /// The newest format of entries and snapshots that every member reads, voter or
    /// learner, by what each said last. None while one of them was never heard since
    /// this node started.
    #[must_use]
    pub fn members_format_version(&self) -> Option<u32> {
        self.0.changes.shared.members_format_version()
    }

    /// Adds a running, empty node: as a learner first, as a voter once it has
    /// caught up.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn add_member(&self, node_id: u64, peer_addr: &str) -> Result<Member, ChangeError> {
        self.0.changes.add(node_id, peer_addr).await
    }

    /// Puts a running, empty node in the place of a member: it follows until it has
    /// caught up, and then both change places at once. Repeat the call if its outcome
    /// is unknown.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn replace_member(
        &self,
        old_id: u64,
        node_id: u64,
        peer_addr: &str,
    ) -> Result<Member, ChangeError> {
        self.0.changes.replace(old_id, node_id, peer_addr).await
    }

    /// Removes a member, voter or learner. Its id is never used again.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn remove_member(&self, node_id: u64) -> Result<(), ChangeError> {
        self.0.changes.remove(node_id).await
    }

    /// Hands leadership to a voter that has caught up.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn transfer_leader(&self, node_id: u64) -> Result<(), ChangeError> {
        self.0.changes.transfer(node_id).await
    }

    /// The cluster as this replica knows it; asks the others for their digests,
    /// briefly.
    pub async fn status(&self) -> ClusterStatus {
        let mut status = self.local_status();
        let me = self.0.changes.shared.me.node_id;
        let digests = status
            .members
            .iter()
            .map(|member| self.digest(me, &member.member));
        let digests = futures::future::join_all(digests).await;
        let ledger = self.0.changes.shared.ledger.read();
        for (member, digest) in status.members.iter_mut().zip(digests) {
            member.digest = digest;
            member.digest_agrees =
                digest.and_then(|(index, digest)| ledger.digest_at(index).map(|own| own == digest));
        }
        drop(ledger);
        status
    }

    /// Returns once everything up to an index is applied here; for ever, if it never is.
    pub async fn applied(&self, index: Option<u64>) {
        let mut metrics = self.0.changes.core.metrics();
        loop {
            let applied = metrics
                .borrow_watched()
                .last_applied
                .as_ref()
                .map(|at| at.index());
            if applied >= index || metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// Stops the replica and closes its store. Does not hand leadership over.
    pub async fn shutdown(&self) {
        // Full or closed: it is stopping already.
        let _ = self.0.stop.try_send(());
        let mut stopped = self.0.stopped.clone();
        // An error says that the other end is gone, which is what is waited for.
        while stopped.changed().await.is_ok() {}
    }

    /// The same without any digest: asks nobody, waits for nothing.
    #[must_use]
    pub fn local_status(&self) -> ClusterStatus {
        // What looks at the metrics itself comes before they are borrowed: borrowed twice,
        // with the core waiting in between to write them, they stop the node for good.
        let leader = self.0.changes.present_leader();
        let majority_wall_unix_us = self.majority_wall_unix_us();
        let metrics = self.0.changes.core.metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index;
        let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
        // Only a leader has it.
        let replication = metrics.replication.as_ref();
        let matched = |node_id: &u64| match replication {
            Some(_) if *node_id == metrics.id => last,
            Some(others) => others
                .get(node_id)
                .and_then(|id| id.as_ref().map(|id| id.index())),
            None => None,
        };
        let behind = |matched: Option<u64>| {
            let next = |index: Option<u64>| index.map_or(0, |index| index.saturating_add(1));
            replication.map(|_| next(last).saturating_sub(next(matched)))
        };
        let member = |(node_id, member): (&u64, &Member)| MemberStatus {
            member: member.clone(),
            role: if voters.contains(node_id) {
                Role::Voter
            } else {
                Role::Learner
            },
            matched: matched(node_id),
            lag: behind(matched(node_id)),
            digest: None,
            digest_agrees: None,
            format_version: self.0.changes.shared.format_version_of(*node_id),
        };
        let mut members: Vec<MemberStatus> =
            metrics.membership_config.nodes().map(member).collect();
        members.sort_by_key(|member| member.member.node_id);
        ClusterStatus {
            node_id: metrics.id,
            cluster_id: self.0.changes.shared.ledger.read().cluster_id(),
            leader,
            term: metrics.current_term,
            last_log: last,
            committed: metrics.local_committed.as_ref().map(|id| id.index()),
            applied: metrics.last_applied.as_ref().map(|id| id.index()),
            snapshot: metrics.snapshot.as_ref().map(|id| id.index()),
            purged: metrics.purged.as_ref().map(|id| id.index()),
            majority_wall_unix_us,
            members,
        }
    }

    async fn digest(&self, me: u64, member: &Member) -> Option<(u64, u64)> {
        if member.node_id == me {
            let ledger = self.0.changes.shared.ledger.read();
            return Some((ledger.last_index(), ledger.digest()));
        }
        let mut client = self.0.changes.links.client(&member.peer_addr).ok()?;
        let asked = tokio::time::timeout(DIGEST_TIMEOUT, client.digest(DigestRequest::default()));
        let reply = asked.await.ok()?.ok()?.into_inner();
        (reply.node_id == member.node_id).then_some((reply.index, reply.digest))
    }
}

#[cfg(test)]
impl Replica {
    pub(super) fn core(&self) -> super::types::Core {
        self.0.changes.core.clone()
    }

    pub(super) fn claims(&self) -> &super::rollback::Claims {
        &self.0.changes.shared.claims
    }
}
