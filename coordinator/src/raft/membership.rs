//! Changes of the cluster itself: who is in it, and who leads. Knows nothing of
//! budgets or leases.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leasehold_ledger::{
    entry::{Command, Entry},
    outcome::{CommandOutcome, CommandRefusal},
};
use openraft::{
    ChangeMembers, Instant,
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, RaftError},
};
use tokio::sync::{mpsc, watch};

use super::{
    api::{ChangeError, Leadership, Member, ProposeError},
    hello,
    network::Links,
    peers::Shared,
    propose::propose,
    types::{Core, Types},
};

/// How long a new learner may take to catch up before the call gives up on it.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Entries that a voter-to-be, or a leader-to-be, may be behind.
pub(super) const LAG_MAX: u64 = 64;

/// What changes need to know.
#[derive(Clone)]
pub(super) struct Changes {
    pub(super) core: Core,
    pub(super) shared: Arc<Shared>,
    pub(super) links: Links,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) election_max: Duration,
}

impl Changes {
    /// Adds a node: learner, caught up, voter.
    pub(super) async fn add(&self, node_id: u64, peer_addr: &str) -> Result<Member, ChangeError> {
        let member = self.adopt(node_id, peer_addr).await?;
        let voters = ChangeMembers::AddVoterIds(BTreeSet::from([node_id]));
        self.core
            .change_membership(voters, true)
            .await
            .map_err(refused)?;
        Ok(member)
    }

    /// Puts a node in the place of another: learner, caught up, and then both change
    /// places in one step, so that no majority of more voters is ever needed.
    pub(super) async fn replace(
        &self,
        old_id: u64,
        node_id: u64,
        peer_addr: &str,
    ) -> Result<Member, ChangeError> {
        self.term()?;
        if old_id == node_id {
            return Err(ChangeError::NodeIdInUse(node_id));
        }
        let mut voters: BTreeSet<u64> = self.core.voter_ids().collect();
        if self.member(old_id).is_none() {
            // A call that is repeated because nobody knows what became of it.
            let done = voters.contains(&node_id) && self.shared.known_disk(old_id).is_some();
            return match self.member(node_id).filter(|_| done) {
                Some(member) => Ok(member),
                None => Err(ChangeError::NoSuchMember(old_id)),
            };
        }
        let member = self.adopt(node_id, peer_addr).await?;
        let was_voter = voters.remove(&old_id);
        voters.insert(node_id);
        self.keeps_quorum(old_id, &voters).await?;
        self.core
            .change_membership(ChangeMembers::ReplaceAllVoters(voters), false)
            .await
            .map_err(refused)?;
        if !was_voter {
            self.core
                .change_membership(ChangeMembers::RemoveNodes(BTreeSet::from([old_id])), false)
                .await
                .map_err(refused)?;
        }
        Ok(member)
    }

    /// Makes a node a learner that has caught up.
    async fn adopt(&self, node_id: u64, peer_addr: &str) -> Result<Member, ChangeError> {
        let term = self.term()?;
        let refuse = |reason: String| ChangeError::Unreachable {
            node_id,
            peer_addr: peer_addr.to_owned(),
            reason,
        };
        let reply = hello::ask(&self.links, &self.shared.me, peer_addr)
            .await
            .map_err(refuse)?;
        if reply.node_id != node_id {
            return Err(refuse(format!("node {} answers there", reply.node_id)));
        }
        let member = hello::member(&reply).map_err(|error| refuse(error.to_string()))?;
        let present = self.member(node_id);
        if present
            .as_ref()
            .is_some_and(|present| present.disk_id != member.disk_id)
        {
            return Err(ChangeError::NodeIdInUse(node_id));
        }
        if present.is_none() {
            // The same disk may have been registered by a call that got no further,
            // but a node that was in a cluster does not come back under its id.
            if reply.member_of_cluster {
                return match self.shared.known_disk(node_id) {
                    Some(_) => Err(ChangeError::NodeIdInUse(node_id)),
                    None => Err(refuse(
                        "it belongs to a cluster already: start it on an empty data folder, with initial_members that \
                         name members of this cluster and not itself"
                            .to_owned(),
                    )),
                };
            }
            if !register(&self.core, term, &member).await? {
                return Err(ChangeError::NodeIdInUse(node_id));
            }
            self.core
                .add_learner(node_id, member.clone(), false)
                .await
                .map_err(refused)?;
        }
        tokio::time::timeout(CATCH_UP_TIMEOUT, self.caught_up(node_id)).await.map_err(|_| {
            let seconds = CATCH_UP_TIMEOUT.as_secs();
            ChangeError::TimedOut(format!(
                "node {node_id} is a learner now, but has not caught up within {seconds} s; repeat the call once it has"
            ))
        })??;
        Ok(member)
    }

    /// Removes a node, voter or learner.
    pub(super) async fn remove(&self, node_id: u64) -> Result<(), ChangeError> {
        self.term()?;
        self.member(node_id)
            .ok_or(ChangeError::NoSuchMember(node_id))?;
        let mut voters: BTreeSet<u64> = self.core.voter_ids().collect();
        let change = if voters.remove(&node_id) {
            if voters.is_empty() {
                return Err(ChangeError::LastVoter(node_id));
            }
            self.keeps_quorum(node_id, &voters).await?;
            ChangeMembers::RemoveVoters(BTreeSet::from([node_id]))
        } else {
            ChangeMembers::RemoveNodes(BTreeSet::from([node_id]))
        };
        self.core
            .change_membership(change, false)
            .await
            .map_err(refused)?;
        Ok(())
    }

    /// A majority of the voters that would remain without a node answers. A leader
    /// that has just won has not heard from everybody yet.
    async fn keeps_quorum(&self, node_id: u64, voters: &BTreeSet<u64>) -> Result<(), ChangeError> {
        let give_up = tokio::time::Instant::now() + self.election_max;
        loop {
            let me = self.shared.me.node_id;
            let answers = |voter: &u64| *voter == me || self.heard_lately(*voter);
            let answering: Vec<u64> = voters.iter().copied().filter(answers).collect();
            if answering.len() > voters.len() / 2 {
                return Ok(());
            }
            if tokio::time::Instant::now() >= give_up {
                return Err(ChangeError::QuorumAtRisk {
                    node_id,
                    voters: voters.iter().copied().collect(),
                    answering,
                });
            }
            tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        }
    }

    /// Hands leadership over. A target that lags would leave the cluster without a
    /// leader for seconds, so its lag is looked at first.
    pub(super) async fn transfer(&self, node_id: u64) -> Result<(), ChangeError> {
        self.term()?;
        if node_id == self.shared.me.node_id {
            return Ok(());
        }
        if !self.core.voter_ids().any(|voter| voter == node_id) {
            return Err(ChangeError::NoSuchMember(node_id));
        }
        if !self.heard_lately(node_id) {
            return Err(ChangeError::Unreachable {
                node_id,
                peer_addr: self
                    .member(node_id)
                    .map(|member| member.peer_addr)
                    .unwrap_or_default(),
                reason: "it has not answered lately".to_owned(),
            });
        }
        let lag = self.lag(node_id).unwrap_or(u64::MAX);
        if lag > LAG_MAX {
            return Err(ChangeError::Lagging { node_id, lag });
        }
        self.core
            .trigger()
            .transfer_leader(node_id)
            .await
            .map_err(|_| ChangeError::Stopped)?;
        let mut metrics = self.core.metrics();
        let handed = async {
            loop {
                let leader = metrics.borrow_watched().current_leader;
                if leader.is_some_and(|leader| leader != self.shared.me.node_id) {
                    return leader;
                }
                if metrics.changed().await.is_err() {
                    return None;
                }
            }
        };
        let patience = self.election_max.saturating_mul(3);
        match tokio::time::timeout(patience, handed).await {
            Ok(Some(leader)) if leader == node_id => Ok(()),
            Ok(Some(leader)) => Err(ChangeError::TimedOut(format!(
                "node {leader} was elected instead of node {node_id}"
            ))),
            Ok(None) => Err(ChangeError::Stopped),
            Err(_) => Err(ChangeError::TimedOut(format!(
                "node {node_id} did not take over in time"
            ))),
        }
    }

    /// Entries that a member is behind; none: not known here.
    pub(super) fn lag(&self, node_id: u64) -> Option<u64> {
        let metrics = self.core.metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics
            .replication
            .as_ref()?
            .get(&node_id)?
            .as_ref()
            .map(|id| id.index());
        let last = metrics.last_log_index.unwrap_or(0);
        Some(matched.map_or(u64::MAX, |matched| last.saturating_sub(matched)))
    }

    /// A member answered within the longest election timeout.
    pub(super) fn heard_lately(&self, node_id: u64) -> bool {
        let metrics = self.core.metrics();
        let metrics = metrics.borrow_watched();
        let heard = metrics
            .heartbeat
            .as_ref()
            .and_then(|heard| heard.get(&node_id).copied().flatten());
        heard.is_some_and(|heard| heard.elapsed() <= self.election_max)
    }

    /// Who leads, as far as this node can tell now. A follower that is cut off still
    /// follows its last leader, and a leader that is cut off still leads: neither
    /// counts once nothing was heard for two of the longest election timeouts.
    pub(super) fn present_leader(&self) -> Option<u64> {
        let metrics = self.core.metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader?;
        let patience = self.election_max.saturating_mul(2);
        let me = self.shared.me.node_id;
        let heard = if leader == me {
            let mut voters = metrics.membership_config.voter_ids();
            let quorum = metrics.last_quorum_acked.as_ref();
            voters.all(|voter| voter == me)
                || quorum.is_some_and(|acked| acked.elapsed() <= patience)
        } else {
            let heard = *self.shared.heard.lock();
            heard.is_some_and(|heard| u128::from(heard.elapsed_us()) <= patience.as_micros())
        };
        heard.then_some(leader)
    }

    async fn caught_up(&self, node_id: u64) -> Result<(), ChangeError> {
        let mut metrics = self.core.metrics();
        loop {
            if self.lag(node_id).is_some_and(|lag| lag <= LAG_MAX) {
                return Ok(());
            }
            self.term()?;
            if metrics.changed().await.is_err() {
                return Err(ChangeError::Stopped);
            }
        }
    }

    fn term(&self) -> Result<u64, ChangeError> {
        match &*self.leadership.borrow() {
            Leadership::Leading { term, .. } => Ok(*term),
            Leadership::Following { leader } => Err(ChangeError::NotLeader {
                leader: leader.clone(),
            }),
        }
    }

    pub(super) fn member(&self, node_id: u64) -> Option<Member> {
        self.core
            .metrics()
            .borrow_watched()
            .membership_config
            .get_node(&node_id)
            .cloned()
    }
}

fn refused(error: RaftError<Types, ClientWriteError<Types>>) -> ChangeError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => ChangeError::NotLeader {
            leader: to.leader_node,
        },
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => ChangeError::Unknown,
        RaftError::APIError(other) => {
            // The members were looked up just before, so what remains is another
            // change, under way or just done.
            tracing::info!(%other, "a membership change was refused");
            ChangeError::InProgress
        }
        RaftError::Fatal(_) => ChangeError::Stopped,
    }
}

/// While leading: writes down which disk each node id belongs to, for ever, and
/// follows members that are reached elsewhere than before.
pub(super) async fn keep_records(changes: Changes, mut moved: mpsc::UnboundedReceiver<Member>) {
    let mut leadership = changes.leadership.clone();
    loop {
        let leading = match &*leadership.borrow_and_update() {
            Leadership::Leading { term, .. } => Some(*term),
            Leadership::Following { .. } => None,
        };
        if let Some(term) = leading {
            register_all(&changes, term).await;
            follow(&changes, changes.shared.me.clone()).await;
        }
        tokio::select! {
            changed = leadership.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            member = moved.recv() => {
                let Some(member) = member else { return };
                if leading.is_some() {
                    follow(&changes, member).await;
                }
            }
        }
    }
}

async fn register_all(changes: &Changes, term: u64) {
    let membership = Arc::clone(&changes.core.metrics().borrow_watched().membership_config);
    for (node_id, member) in membership.nodes() {
        let known = changes.shared.ledger.read().node_disk(*node_id);
        if known.is_none()
            && let Err(error) = register(&changes.core, term, member).await
        {
            // The next leader does it.
            tracing::warn!(node_id, %error, "a node's disk is not registered yet");
        }
    }
}

/// Writes down which disk a node id belongs to; false if it was another one.
async fn register(core: &Core, term: u64, member: &Member) -> Result<bool, ChangeError> {
    // Time 0 moves nothing: cluster time is the sequencer's.
    let command = Command::RegisterNode {
        node_id: member.node_id,
        disk_id: member.disk_id,
    };
    let entry = Entry {
        commands: vec![command],
        ..Entry::default()
    };
    match propose(core, term, &entry).await {
        Ok(applied) => {
            let refused = CommandOutcome::Refused(CommandRefusal::NodeIdInUse);
            Ok(applied.commands.first() != Some(&refused))
        }
        Err(ProposeError::NotLeader { leader }) => Err(ChangeError::NotLeader { leader }),
        Err(ProposeError::Unknown | ProposeError::TooLong { .. }) => Err(ChangeError::Unknown),
        Err(ProposeError::Stopped) => Err(ChangeError::Stopped),
    }
}

async fn follow(changes: &Changes, member: Member) {
    let Some(recorded) = changes.member(member.node_id) else {
        return;
    };
    if recorded == member || recorded.disk_id != member.disk_id || member.peer_addr.is_empty() {
        return;
    }
    tracing::info!(node_id = member.node_id, peer_addr = %member.peer_addr, "a member is reached elsewhere now");
    let change = ChangeMembers::SetNodes([(member.node_id, member)].into());
    if let Err(error) = changes.core.change_membership(change, true).await {
        tracing::warn!(%error, "a member's new address is not recorded yet");
    }
}
