//! What peers say to this node. Knows nothing of the log; it hands the core's
//! messages to the core once this node may take part, and tells other nodes who
//! it is before.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{Stream, StreamExt};
use leasehold_ledger::Ledger;
use leasehold_proto::v1::{
    DigestReply, DigestRequest, HelloReply, HelloRequest, RaftMessage, RollCallReply,
    RollCallRequest, peer_server::Peer as PeerRpc,
};
use openraft::async_runtime::WatchReceiver;
use parking_lot::{Mutex, RwLock};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tonic::{Request, Response, Status, Streaming};

use super::{
    addresses::Addresses,
    answers::{self, Answers},
    api::{Dismissal, Member, WallClock},
    own_cluster::OwnCluster,
    rollback::Claims,
    types::{Core, Snapshot, SnapshotMeta, Vote},
    wire,
};
use crate::{clock::Reading, store::SnapshotFolder};

const SAY_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What the peer service and the rest of the replica share.
pub(super) struct Shared {
    /// This node, as it is now.
    pub(super) me: Member,
    /// Nothing was ever voted, written or received here.
    pub(super) blank: bool,
    /// Where members are that moved.
    pub(super) addresses: Addresses,
    /// When a leader last spoke to this node.
    pub(super) heard: Mutex<Option<Reading>>,
    /// Set once this node may take part; until then votes and entries are refused.
    pub(super) core: OnceLock<Core>,
    pub(super) ledger: Arc<RwLock<Ledger>>,
    pub(super) snapshots: Arc<Mutex<SnapshotFolder>>,
    pub(super) wall_unix_us: fn() -> u64,
    /// The newest format that this node says it reads.
    pub(super) format_version: u32,
    /// What the others said of themselves.
    pub(super) answers: Answers,
    /// What the last roll call found.
    pub(super) wall_clock: Mutex<WallClock>,
    /// What the others said that they have durable.
    pub(super) claims: Claims,
    /// Why this node must not serve any more although nothing is wrong with it.
    pub(super) dismissed: OnceLock<Dismissal>,
    /// When a node last asked that belongs to a cluster which this one was restored from.
    pub(super) old_node: Mutex<Option<(u64, Reading)>>,
    /// Why the replica cannot go on.
    pub(super) fatal: watch::Sender<Option<String>>,
    /// When a message for another disk was last complained about: they come many a second.
    pub(super) said_wrong_disk: Mutex<Option<Instant>>,
    /// Nodes that said hello from other addresses than the membership has.
    pub(super) moved: mpsc::UnboundedSender<Member>,
}

impl Shared {
    /// Ends the replica; the first reason is kept.
    pub(super) fn fail(&self, reason: String) {
        fail(&self.fatal, reason);
    }

    /// Ends the replica because its cluster goes on without it.
    pub(super) fn note_removal(&self) {
        self.dismiss(
            Dismissal::Removed,
            "was removed from its cluster and serves no more; its id is used up: to use this machine again, start it on an \
             empty data folder under a new id and add it",
        );
    }

    /// Ends the replica because another cluster has taken the place of its own.
    pub(super) fn note_replacement(&self) {
        self.dismiss(
            Dismissal::ClusterReplaced,
            "belongs to a cluster that was lost and restored from a backup, and the new one answers in its place: two clusters \
             must not serve the same gateways; move the old data folder away, start the node on an empty one, and add it",
        );
    }

    fn dismiss(&self, dismissal: Dismissal, why: &str) {
        // The first one stays, like the reason.
        let _ = self.dismissed.set(dismissal);
        self.fail(format!("node {} {why}", self.me.node_id));
    }

    /// This node's cluster, for messages.
    pub(super) fn cluster_id(&self) -> Vec<u8> {
        let cluster_id = self.ledger.read().cluster_id();
        cluster_id.map_or_else(Vec::new, |id| id.to_le_bytes().to_vec())
    }

    /// This cluster was restored from a backup of that one, or of one that was.
    fn has_replaced(&self, cluster_id: &[u8]) -> bool {
        let ledger = self.ledger.read();
        let mut ancestors = ledger.ancestors().iter();
        ancestors.any(|ancestor| ancestor.to_le_bytes() == cluster_id)
    }

    /// The log index of the committed membership in which a node is none any more,
    /// that was a member on this disk.
    fn removed_at(&self, node_id: u64, disk_id: &[u8]) -> Option<u64> {
        let was_member = self.ledger.read().node_disk(node_id)?;
        let metrics = self.core.get()?.metrics();
        let metrics = metrics.borrow_watched();
        let membership = &metrics.membership_config;
        let decided_at = membership.log_id().as_ref()?.index();
        let committed = metrics.local_committed.as_ref()?.index();
        (was_member.to_le_bytes() == disk_id
            && membership.get_node(&node_id).is_none()
            && decided_at <= committed)
            .then_some(decided_at)
    }

    /// What the wall clocks of a majority of the voters show at least, now.
    pub(super) fn majority_wall_unix_us(&self) -> Option<u64> {
        let core = self.core.get()?;
        let membership = Arc::clone(&core.metrics().borrow_watched().membership_config);
        let mut walls = self.answers.wall_clocks(Reading::now());
        walls.insert(self.me.node_id, (self.wall_unix_us)());
        answers::majority_time(membership.get_joint_config(), &walls)
    }

    /// The newest format that a member reads, as far as it is known.
    pub(super) fn format_version_of(&self, node_id: u64) -> Option<u32> {
        match node_id == self.me.node_id {
            true => Some(self.format_version),
            false => self.answers.format_version(node_id),
        }
    }

    /// The newest format that every member reads, voter or learner.
    pub(super) fn members_format_version(&self) -> Option<u32> {
        let core = self.core.get()?;
        let membership = Arc::clone(&core.metrics().borrow_watched().membership_config);
        let members = membership.nodes();
        answers::lowest(members.map(|(node_id, _)| self.format_version_of(*node_id)))
    }

    fn core(&self) -> Result<&Core, Status> {
        self.core
            .get()
            .ok_or_else(|| Status::unavailable("this node does not take part yet"))
    }

    /// The core, for a message that really is for this node on this disk.
    fn core_for(&self, message: &RaftMessage) -> Result<&Core, Status> {
        if message.group_id != 0 {
            return Err(Status::unimplemented("there is one group"));
        }
        if message.to_node != self.me.node_id {
            return Err(Status::failed_precondition(format!(
                "this is node {}",
                self.me.node_id
            )));
        }
        if *message.to_disk != self.me.disk_id.to_le_bytes() {
            self.say_wrong_disk();
            return Err(Status::failed_precondition("disk_lost"));
        }
        self.core()
    }

    /// Not fatal: another cluster's node may have had this address before. A node
    /// whose initial members are all gone learns in no other way that it lost its disk.
    fn say_wrong_disk(&self) {
        let mut said = self.said_wrong_disk.lock();
        if said.is_some_and(|at| at.elapsed() < SAY_AGAIN_AFTER) {
            return;
        }
        *said = Some(Instant::now());
        tracing::error!(
            node_id = self.me.node_id,
            "refused a message for another disk of this node id: this data folder is new, or another node's (wrong data_dir?); \
             if the right one is lost, replace this node under a new id"
        );
    }

    /// The same, for a message that only leaders send.
    fn core_for_leader(&self, message: &RaftMessage) -> Result<&Core, Status> {
        let core = self.core_for(message)?;
        *self.heard.lock() = Some(Reading::now());
        Ok(core)
    }

    /// Remembers that a member is elsewhere than the membership says.
    fn note_address(&self, node_id: u64, peer_addr: &str) {
        let Some(core) = self.core.get() else { return };
        let metrics = core.metrics();
        let metrics = metrics.borrow_watched();
        if let Some(recorded) = metrics.membership_config.get_node(&node_id) {
            self.addresses
                .moved(node_id, &recorded.peer_addr, peer_addr);
        }
    }

    /// The cluster's record of a node: the disk that uses its id, or used it.
    pub(super) fn known_disk(&self, node_id: u64) -> Option<u128> {
        let remembered = self.ledger.read().node_disk(node_id);
        remembered.or_else(|| {
            let metrics = self.core.get()?.metrics();
            let metrics = metrics.borrow_watched();
            metrics
                .membership_config
                .get_node(&node_id)
                .map(|member| member.disk_id)
        })
    }
}

/// Publishes the first reason to stop.
pub(super) fn fail(fatal: &watch::Sender<Option<String>>, reason: String) {
    fatal.send_if_modified(|current| {
        let first = current.is_none();
        if first {
            // Whoever waits for it says it, once.
            tracing::debug!(%reason, "the replica cannot go on");
            *current = Some(reason);
        }
        first
    });
}

/// The service.
#[derive(Clone)]
pub(super) struct Peers(pub(super) Arc<Shared>, pub(super) OwnCluster);

type Answer = Result<Response<RaftMessage>, Status>;

fn question<T: DeserializeOwned>(message: &RaftMessage) -> Result<T, Status> {
    wire::decode(&message.payload).map_err(Status::invalid_argument)
}

fn payload<T: Serialize>(value: &T) -> Result<RaftMessage, Status> {
    let payload = wire::encode(value).map_err(Status::internal)?;
    Ok(RaftMessage {
        payload,
        ..RaftMessage::default()
    })
}

fn answer<T: Serialize, E: std::fmt::Display>(result: Result<T, E>) -> Answer {
    match result {
        Ok(value) => payload(&value).map(Response::new),
        Err(error) => Err(Status::unavailable(error.to_string())),
    }
}

#[tonic::async_trait]
impl PeerRpc for Peers {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let asked = request.into_inner();
        let shared = &self.0;
        let core = shared.core.get();
        if core.is_none() && !shared.blank {
            // It was in a cluster, but cannot say yet whom that cluster knows.
            return Err(Status::unavailable("this node is starting"));
        }
        let member_of_cluster = core.is_some_and(|core| {
            core.metrics()
                .borrow_watched()
                .membership_config
                .nodes()
                .next()
                .is_some()
        });
        let known_disk = shared.known_disk(asked.node_id);
        if member_of_cluster
            && known_disk.is_some_and(|disk| disk.to_le_bytes().as_slice() == asked.disk_id)
        {
            shared.note_address(asked.node_id, &asked.peer_addr);
            // Whoever leads looks whether it moved. Nobody listens while stopping.
            let _ = shared.moved.send(Member {
                node_id: asked.node_id,
                peer_addr: asked.peer_addr,
                client_url: asked.client_url,
                admin_url: asked.admin_url,
                region: asked.region,
                disk_id: known_disk.unwrap_or_default(),
            });
        }
        Ok(Response::new(HelloReply {
            node_id: shared.me.node_id,
            disk_id: shared.me.disk_id.to_le_bytes().to_vec(),
            member_of_cluster,
            id_in_use: known_disk.is_some(),
            id_in_use_by_disk: known_disk
                .map(|disk| disk.to_le_bytes().to_vec())
                .unwrap_or_default(),
            peer_addr: shared.me.peer_addr.clone(),
            client_url: shared.me.client_url.clone(),
            admin_url: shared.me.admin_url.clone(),
            region: shared.me.region.clone(),
        }))
    }

    async fn vote(&self, request: Request<RaftMessage>) -> Answer {
        self.1.admit(&request)?;
        let message = request.into_inner();
        let core = self.0.core_for(&message)?;
        answer(core.vote(question(&message)?).await)
    }

    async fn pre_vote(&self, request: Request<RaftMessage>) -> Answer {
        self.1.admit(&request)?;
        let message = request.into_inner();
        let core = self.0.core_for(&message)?;
        answer(core.pre_vote(question(&message)?).await)
    }

    async fn append(&self, request: Request<RaftMessage>) -> Answer {
        self.1.admit(&request)?;
        let message = request.into_inner();
        let core = self.0.core_for_leader(&message)?;
        answer(core.append_entries(question(&message)?).await)
    }

    type AppendStreamStream = Pin<Box<dyn Stream<Item = Result<RaftMessage, Status>> + Send>>;

    async fn append_stream(
        &self,
        request: Request<Streaming<RaftMessage>>,
    ) -> Result<Response<Self::AppendStreamStream>, Status> {
        self.1.admit(&request)?;
        let core = self.0.core()?.clone();
        let shared = Arc::clone(&self.0);
        let input = request.into_inner().map(move |message| {
            let message = message?;
            shared.core_for_leader(&message)?;
            question(&message)
        });
        // A broken or misdirected message ends the input, and with it the answers;
        // the sender opens a new stream.
        let input = input
            .take_while(|request| std::future::ready(request.is_ok()))
            .filter_map(|request| std::future::ready(request.ok()));
        let answers = core.stream_append(input).map(|result| match result {
            Ok(result) => payload(&result),
            Err(fatal) => Err(Status::unavailable(fatal.to_string())),
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn transfer_leader(&self, request: Request<RaftMessage>) -> Answer {
        self.1.admit(&request)?;
        let message = request.into_inner();
        let core = self.0.core_for(&message)?;
        answer(core.handle_transfer_leader(question(&message)?).await)
    }

    async fn snapshot(&self, request: Request<Streaming<RaftMessage>>) -> Answer {
        self.1.admit(&request)?;
        let mut pieces = request.into_inner();
        let head = pieces
            .message()
            .await?
            .ok_or_else(|| Status::invalid_argument("the stream is empty"))?;
        let core = self.0.core_for_leader(&head)?;
        let (vote, meta): (Vote, SnapshotMeta) = question(&head)?;
        let mut writer = self
            .0
            .snapshots
            .lock()
            .receive()
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let (queue, mut queued) = mpsc::channel::<bytes::Bytes>(4);
        let written = tokio::task::spawn_blocking(move || {
            while let Some(piece) = queued.blocking_recv() {
                writer.append(&piece)?;
            }
            let file = writer.close()?;
            // A stream that broke off leaves a file without an end.
            if let Err(error) = file.verify() {
                // What cannot be deleted now is deleted at the next start.
                let _ = std::fs::remove_file(file.path());
                return Err(error);
            }
            Ok(file)
        });
        while let Some(piece) = pieces.message().await? {
            if queue.send(piece.payload).await.is_err() {
                break;
            }
        }
        drop(queue);
        let file = written
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        let snapshot = file.map_err(|error| Status::unavailable(error.to_string()))?;
        answer(
            core.install_full_snapshot(vote, Snapshot { meta, snapshot })
                .await,
        )
    }

    async fn digest(
        &self,
        request: Request<DigestRequest>,
    ) -> Result<Response<DigestReply>, Status> {
        self.1.admit(&request)?;
        let ledger = self.0.ledger.read();
        Ok(Response::new(DigestReply {
            node_id: self.0.me.node_id,
            index: ledger.last_index(),
            digest: ledger.digest(),
        }))
    }

    async fn roll_call(
        &self,
        request: Request<RollCallRequest>,
    ) -> Result<Response<RollCallReply>, Status> {
        let asked = request.into_inner();
        let replaced = self.0.has_replaced(&asked.cluster_id);
        let known_disk = self.0.known_disk(asked.node_id);
        let is_known = known_disk.is_some_and(|disk| *asked.disk_id == disk.to_le_bytes());
        let committed = match is_known {
            true => {
                let answers = &self.0.answers;
                answers.note_asker(asked.node_id, asked.format_version);
                self.0.claims.hear(asked.node_id, asked.committed)
            }
            false => 0,
        };
        if replaced {
            let said = self
                .0
                .old_node
                .lock()
                .replace((asked.node_id, Reading::now()));
            if said.is_none() {
                tracing::error!(
                    node_id = asked.node_id,
                    code = "old_cluster_runs",
                    "a node of the cluster that this one was restored from still runs, and is told to stop"
                );
            }
        }
        Ok(Response::new(RollCallReply {
            node_id: self.0.me.node_id,
            wall_unix_us: (self.0.wall_unix_us)(),
            removed_at: self.0.removed_at(asked.node_id, &asked.disk_id),
            replaced,
            committed,
            format_version: self.0.format_version,
        }))
    }
}
