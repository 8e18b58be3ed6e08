//! One running node: a replica of the log, the sequencer that writes it, and the
//! service that gateways talk to, behind one handle. Knows nothing of HTTP or of
//! the command line.

use std::{sync::Arc, time::Duration};

use leasehold_doors::{Dialer, Kept};
use leasehold_key::Key;
use leasehold_ledger::{Ledger, entry::Command, outcome::CommandOutcome, settings::Settings};
use leasehold_proto::v1::leasehold_server::LeaseholdServer;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    access::{Access, Spender, Visitor},
    raft::{
        ChangeError, ClusterStatus, Leadership, Member, ProposeError, Replica, ReplicaConfig, Role,
        StartError,
    },
    sequencer::{
        QUEUE_MAX, Reign, Sequencer,
        item::{CommandItem, Item},
    },
    service::Service,
    shadowed::Shadowed,
};

pub use crate::sequencer::SubmitError;

/// How long a command waits for a place in the queue.
const QUEUE_WAIT: Duration = Duration::from_secs(1);
/// How long a command waits for its outcome.
const OUTCOME_WAIT: Duration = Duration::from_secs(15);
/// How long a read waits for a majority's word that this node leads.
const BARRIER_WAIT: Duration = Duration::from_secs(5);
/// How long a stopping leader tries to hand over.
const HAND_OVER_WAIT: Duration = Duration::from_secs(4);
/// How long a stopping node waits for its streams to be told.
const GOODBYE_WAIT: Duration = Duration::from_secs(2);
/// Entries by which a voter may be behind and still be handed the leadership.
const HAND_OVER_LAG_MAX: u64 = 1_000;

/// How a node starts.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its replica.
    pub replica: ReplicaConfig,
    /// By which certificates requests are sent on to the node that leads.
    pub leader_tls: Option<Kept<Dialer>>,
    /// What the first leader of a new cluster writes; ignored by a cluster that
    /// has settings.
    pub initial_settings: Settings,
}

/// Who leads, as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderView {
    /// This node does.
    pub is_self: bool,
    /// Who does, if another node does and it is known.
    pub member: Option<Member>,
}

/// A handle to a running node; clones are cheap and name the same one.
#[derive(Clone)]
pub struct Node {
    replica: Replica,
    leadership: watch::Receiver<Leadership>,
    queue: mpsc::Sender<Item>,
    /// Stops the sequencer and, with it, every stream.
    stop: CancellationToken,
    /// Cancelled when the sequencer has ended.
    ended: CancellationToken,
    service: Service,
    shadowed: Shadowed,
    config: Arc<NodeConfig>,
}

impl Node {
    /// Starts a node; returns once its replica takes part.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        if let Err(what) = config.initial_settings.validate() {
            return Err(StartError::Config(what));
        }
        let replica = Replica::start(config.replica.clone()).await?;
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let stop = CancellationToken::new();
        let ended = CancellationToken::new();
        // Streams end when their sequencer tells them so; the service only has to
        // know when nobody will.
        let service = Service::new(queue.clone(), ended.clone());
        let leadership = replica.leadership();
        let shadowed = Shadowed::default();
        let sequencer = Sequencer::new(
            replica.clone(),
            items,
            leadership.clone(),
            stop.clone(),
            config.initial_settings.clone(),
            shadowed.clone(),
        );
        let sequencer_ended = ended.clone();
        let watched = replica.clone();
        tokio::spawn(async move {
            // Without it nothing is ever decided here, while the replica goes on leading.
            if let Err(error) = tokio::spawn(sequencer.run()).await {
                watched.fail(format!("the sequencer ended with an error: {error}"));
            }
            sequencer_ended.cancel();
        });
        Ok(Self {
            replica,
            leadership,
            queue,
            stop,
            ended,
            service,
            shadowed,
            config: Arc::new(config),
        })
    }

    /// Puts a command into the log and waits for its outcome. Only the leader can.
    ///
    /// # Errors
    /// See [`SubmitError`]; only `OutcomeUnknown` leaves open what happened.
    pub async fn submit(&self, command: Command) -> Result<CommandOutcome, SubmitError> {
        self.put_in_log(command, false, None).await
    }

    /// Submits a spend for somebody. If they may not see its key, it is decided as if no
    /// budget matched it, and they learn nothing of it.
    pub(crate) async fn spend_for(
        &self,
        visitor: &Visitor,
        key: &Key,
        spend: Command,
    ) -> Result<CommandOutcome, SubmitError> {
        self.put_in_log(spend, !visitor.reaches(key), visitor.spender())
            .await
    }

    async fn put_in_log(
        &self,
        command: Command,
        is_unseen: bool,
        spender: Option<Spender>,
    ) -> Result<CommandOutcome, SubmitError> {
        if let Leadership::Following { leader } = &*self.leadership.borrow() {
            return Err(SubmitError::NotLeader {
                leader: leader.clone(),
            });
        }
        let (reply, outcome) = oneshot::channel();
        let item = Item::Command(CommandItem {
            command,
            is_unseen,
            spender,
            reply,
        });
        match timeout(QUEUE_WAIT, self.queue.send(item)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(SubmitError::ShuttingDown),
            Err(_) => return Err(SubmitError::Overloaded),
        }
        match timeout(OUTCOME_WAIT, outcome).await {
            Ok(Ok(outcome)) => outcome,
            // The sequencer ended with the command in its hands, or a leader that
            // reaches no majority does not know yet that it is none.
            Ok(Err(_)) | Err(_) => Err(SubmitError::OutcomeUnknown),
        }
    }

    /// Reads the ledger with everything that was committed before the call, and
    /// cluster time now. Only the leader can.
    ///
    /// # Errors
    /// See [`SubmitError`]; reads have no unknown outcome.
    pub async fn read<T>(&self, read: impl FnOnce(&Ledger, u64) -> T) -> Result<T, SubmitError> {
        let leadership = self.leadership.borrow().clone();
        let Some(reign) = Reign::of(&leadership) else {
            return Err(not_leader(leadership));
        };
        match timeout(BARRIER_WAIT, self.replica.read_barrier()).await {
            Ok(Ok(())) => {}
            Ok(Err(ProposeError::NotLeader { leader })) => {
                return Err(SubmitError::NotLeader { leader });
            }
            Ok(Err(ProposeError::Stopped)) => return Err(SubmitError::Stopped),
            // No majority says that this node still leads.
            Ok(Err(ProposeError::Unknown | ProposeError::TooLong { .. })) | Err(_) => {
                return Err(SubmitError::NotLeader { leader: None });
            }
        }
        Ok(self
            .replica
            .with_ledger(|ledger| read(ledger, reign.now_us().max(ledger.now_us()))))
    }

    /// Reads this replica's own ledger, which may be behind.
    pub fn local<T>(&self, read: impl FnOnce(&Ledger) -> T) -> T {
        self.replica.with_ledger(read)
    }

    /// Who leads.
    #[must_use]
    pub fn leader(&self) -> LeaderView {
        match &*self.leadership.borrow() {
            Leadership::Leading { .. } => LeaderView {
                is_self: true,
                member: None,
            },
            Leadership::Following { leader } => LeaderView {
                is_self: false,
                member: leader.clone(),
            },
        }
    }

    /// Who leads, and when that changes.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// The node's configuration.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The replica, for its addresses and its health.
    #[must_use]
    pub const fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The cluster as this node knows it.
    pub async fn status(&self) -> ClusterStatus {
        self.replica.status().await
    }

    /// Adds a running, empty node to the cluster. Only the leader can.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn add_member(&self, node_id: u64, peer_addr: &str) -> Result<Member, ChangeError> {
        self.replica.add_member(node_id, peer_addr).await
    }

    /// Puts a running, empty node in the place of a member. Only the leader can.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn replace_member(
        &self,
        old_id: u64,
        node_id: u64,
        peer_addr: &str,
    ) -> Result<Member, ChangeError> {
        self.replica
            .replace_member(old_id, node_id, peer_addr)
            .await
    }

    /// Removes a member. Only the leader can.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn remove_member(&self, node_id: u64) -> Result<(), ChangeError> {
        self.replica.remove_member(node_id).await
    }

    /// Hands leadership to a voter that has caught up. Only the leader can.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn transfer_leader(&self, node_id: u64) -> Result<(), ChangeError> {
        self.replica.transfer_leader(node_id).await
    }

    /// What shadow policies would have refused, key by key, while this node leads.
    pub(crate) const fn shadowed(&self) -> &Shadowed {
        &self.shadowed
    }

    /// Whether this node can answer, itself or by sending on to a leader that it
    /// knows.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        if self.stop.is_cancelled() || self.replica.fatal().borrow().is_some() {
            return false;
        }
        match &*self.leadership.borrow() {
            Leadership::Leading { .. } => true,
            Leadership::Following { leader } => leader.is_some(),
        }
    }

    /// The service for gateways, to be mounted beside the HTTP API.
    #[must_use]
    pub fn grpc_service(&self) -> LeaseholdServer<Service> {
        self.grpc_service_behind(&Access::for_everybody())
    }

    /// The same, for whom `access` lets in; it still has to guard the service.
    #[must_use]
    pub fn grpc_service_behind(&self, access: &Access) -> LeaseholdServer<Service> {
        self.service.clone().behind(access).into_server()
    }

    /// Hands leadership over if another voter can take it, tells every stream,
    /// and stops. Takes less than 10 seconds.
    pub async fn shutdown(&self) {
        if self.leader().is_self && timeout(HAND_OVER_WAIT, self.hand_over()).await.is_err() {
            tracing::warn!("no other node took the leadership in time; stopping all the same");
        }
        self.stop.cancel();
        if timeout(GOODBYE_WAIT, self.ended.cancelled()).await.is_err() {
            tracing::warn!("the sequencer did not end in time; stopping all the same");
            self.ended.cancel();
        }
        if timeout(GOODBYE_WAIT, self.replica.shutdown())
            .await
            .is_err()
        {
            tracing::warn!("the replica did not stop in time");
        }
    }

    /// Returns once another node leads, or when none can.
    async fn hand_over(&self) {
        let status = self.replica.status().await;
        let preferred = self.local(|ledger| ledger.settings().preferred_leader_region.clone());
        // The preferred region's first, then who lags least.
        let mut heirs: Vec<(bool, u64, u64)> = status
            .members
            .iter()
            .filter(|other| other.role == Role::Voter && other.member.node_id != status.node_id)
            .filter_map(|other| {
                let elsewhere = Some(&other.member.region) != preferred.as_ref();
                Some((elsewhere, other.lag?, other.member.node_id))
            })
            .filter(|(_, lag, _)| *lag <= HAND_OVER_LAG_MAX)
            .collect();
        heirs.sort_unstable();
        let mut leadership = self.leadership.clone();
        for (_, _, heir) in heirs {
            match self.replica.transfer_leader(heir).await {
                Ok(()) => {
                    // Returns when this node follows somebody it knows, so that its
                    // streams can be told whom to go to.
                    let known = leadership
                        .wait_for(|now| matches!(now, Leadership::Following { leader: Some(_) }));
                    drop(timeout(HAND_OVER_WAIT / 2, known).await);
                    return;
                }
                Err(error) => {
                    tracing::warn!(heir, %error, "leadership was not handed over");
                }
            }
        }
    }
}

fn not_leader(leadership: Leadership) -> SubmitError {
    match leadership {
        Leadership::Following { leader } => SubmitError::NotLeader { leader },
        Leadership::Leading { .. } => SubmitError::NotLeader { leader: None },
    }
}
