//! What the rest of the coordinator says to and hears from a replica, in plain
//! types: nothing here names the consensus library or the storage engine.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use leasehold_doors::{Dialer, Kept, Limits, ListenerTls};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    clock::{self, Reading},
    store::StoreError,
};

/// One node of the cluster, as the replicated membership describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Never used again once it was used, not even by the same machine on a new disk.
    pub node_id: u64,
    /// Where its peers reach it, `host:port`.
    pub peer_addr: String,
    /// Where clients reach it, a URL.
    pub client_url: String,
    /// Where operators reach it, a URL; empty: at `client_url`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub admin_url: String,
    /// Where its machine stands, as `preferred_leader_region` names it; empty: not said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// Drawn when its data folder was created.
    #[serde(with = "disk_id_text")]
    pub disk_id: u128,
}

/// A node that the configuration names before there is a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialMember {
    /// Its id.
    pub node_id: u64,
    /// Where its peers reach it, `host:port`.
    pub peer_addr: String,
}

/// TLS between coordinators: each shows a certificate of their authority.
#[derive(Debug)]
pub struct PeerTls {
    /// For those who dial this node.
    pub listener: Arc<ListenerTls>,
    /// For those whom it dials.
    pub dialer: Dialer,
}

/// How one replica starts.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// This node's id, at least 1.
    pub node_id: u64,
    /// Everything durable lives here.
    pub data_dir: PathBuf,
    /// Where to listen for peers; port 0 picks a free one.
    pub peer_listen: SocketAddr,
    /// TLS with peers; none: whoever reaches the address is one.
    pub peer_tls: Option<Kept<PeerTls>>,
    /// What connections of peers may take.
    pub peer_limits: Limits,
    /// What peers are told to dial; none: the bound address.
    pub peer_advertise: Option<String>,
    /// What clients are told to dial.
    pub client_url: String,
    /// Where operators are to go; empty: to `client_url`.
    pub admin_url: String,
    /// Where this machine stands; empty: not said.
    pub region: String,
    /// The nodes that form the cluster; empty: this node alone, at once.
    pub initial_members: Vec<InitialMember>,
    /// How often a leader says that it lives.
    pub heartbeat: Duration,
    /// The shortest silence after which a follower stands for election.
    pub election_min: Duration,
    /// The longest such silence; also the leader's lease.
    pub election_max: Duration,
    /// A snapshot is taken once this many entries were applied since the last.
    pub snapshot_every_entries: u64,
    /// Applied entries kept behind a snapshot, for followers that lag.
    pub snapshot_keep_entries: u64,
    /// How far the wall clock may be from the other members' before it is said.
    pub wall_clock_tolerance: Duration,
    /// What the wall clock says, in microseconds since 1970.
    pub wall_unix_us: fn() -> u64,
    /// The newest format of entries and snapshots that this node says it reads.
    pub format_version: u32,
}

impl ReplicaConfig {
    /// A single node with the defaults, listening for peers on a free loopback port.
    #[must_use]
    pub fn new(node_id: u64, data_dir: PathBuf) -> Self {
        Self {
            node_id,
            data_dir,
            peer_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            peer_tls: None,
            peer_limits: Limits {
                connections_per_address_max: 1_024,
                handshake: Duration::from_secs(10),
                header: Duration::from_secs(10),
                // A connection for snapshots is seldom used.
                idle: Duration::from_secs(60 * 60),
                header_bytes_max: 16_384,
                streams_max: 1_000,
                // As often as elections may be, once it starts.
                ping_every: Duration::from_secs(1),
                ping_within: Duration::from_secs(1),
                window_bytes: None,
            },
            peer_advertise: None,
            client_url: String::new(),
            admin_url: String::new(),
            region: String::new(),
            initial_members: Vec::new(),
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(1_000),
            snapshot_every_entries: 5_000,
            snapshot_keep_entries: 5_000,
            wall_clock_tolerance: Duration::from_secs(1),
            wall_unix_us: clock::wall_unix_us,
            format_version: leasehold_ledger::FORMAT_VERSION,
        }
    }
}

/// How this node's wall clock compares with those of the other members. For people:
/// no decision depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    /// How far the others' are ahead of it: the median of those that answered last.
    pub others_ahead_us: i64,
    /// It is further from more than half of them than is tolerated.
    pub is_far: bool,
    /// How much is tolerated.
    pub tolerance_us: u64,
}

/// Why a node must stop although nothing is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// Its cluster goes on without it.
    Removed,
    /// Another cluster, restored from a backup, has taken the place of its own.
    ClusterReplaced,
}

impl Dismissal {
    /// The stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::ClusterReplaced => "cluster_replaced",
        }
    }
}

/// Who leads, as this replica sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// Another node does, or nobody.
    Following {
        /// Who, if known.
        leader: Option<Member>,
    },
    /// This node does, and an entry of its own term was applied.
    Leading {
        /// The term; say it with every proposal.
        term: u64,
        /// Cluster time when the term's first entry was applied.
        anchor_us: u64,
        /// Read after the term was won: cluster time is `anchor_us` plus what
        /// elapsed since.
        since: Reading,
    },
}

/// Why a proposal or a linearizable read has no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProposeError {
    /// Nothing was written.
    #[error("this node does not lead")]
    NotLeader {
        /// Who does, if known.
        leader: Option<Member>,
    },
    /// The entry may or may not be applied, now or later.
    #[error("leadership was lost while the entry was under way; it may or may not be applied")]
    Unknown,
    /// The entry is longer than any may be; nothing was written.
    #[error("an entry of {bytes} bytes is longer than {max}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest.
        max: usize,
    },
    /// The replica has stopped; nothing was written.
    #[error("this replica has stopped")]
    Stopped,
}

/// Why a replica did not start. Each has a stable code and says what to do.
#[derive(Debug, Error)]
pub enum StartError {
    /// The data folder is damaged, locked, unreadable or of another version.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another disk has used this node id: this disk is new, or was swapped.
    #[error(
        "node id {node_id} belongs to another disk (its cluster knows disk {known_disk_id:032x}, this one is {disk_id:032x}). \
         Is the right folder not mounted? Put it back. If its data is lost, it must not come back under its id: empty the data folder, choose a \
         new id, and replace the node by it with `leasehold cluster replace {node_id} NEW-ID HOST:PEER-PORT`"
    )]
    DiskLost {
        /// The id.
        node_id: u64,
        /// The disk that used it.
        known_disk_id: u128,
        /// This node's.
        disk_id: u128,
    },
    /// The peer address cannot be bound.
    #[error("cannot listen for peers on {listen}: {source}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A value is outside its range.
    #[error("{0}")]
    Config(String),
    /// The consensus core did not start.
    #[error("the replica cannot start: {0}")]
    Core(String),
}

impl StartError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Store(store) => store.code(),
            Self::DiskLost { .. } => "disk_lost",
            Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
                "port_in_use"
            }
            Self::Listen { .. } => "cannot_listen",
            Self::Config(_) => "invalid_config",
            Self::Core(_) => "core_failed",
        }
    }
}

/// Why a change of the cluster itself was not made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// Nothing was changed.
    #[error("this node does not lead")]
    NotLeader {
        /// Who does, if known.
        leader: Option<Member>,
    },
    /// No such member.
    #[error("node {0} is not a member of this cluster")]
    NoSuchMember(u64),
    /// The id was used by another disk.
    #[error("node id {0} was used before; ids are never used again")]
    NodeIdInUse(u64),
    /// The node to add does not answer, or is another one.
    #[error("node {node_id} at {peer_addr}: {reason}")]
    Unreachable {
        /// The node.
        node_id: u64,
        /// Its address.
        peer_addr: String,
        /// What happened.
        reason: String,
    },
    /// The node is too far behind; try again once it has caught up.
    #[error("node {node_id} is {lag} entries behind")]
    Lagging {
        /// The node.
        node_id: u64,
        /// How far, in entries.
        lag: u64,
    },
    /// The last voter cannot be removed.
    #[error("node {0} is the last voter")]
    LastVoter(u64),
    /// What would remain could decide nothing.
    #[error(
        "without node {node_id} the voters are {}, and of those only {} answer{}: that is no majority, and nothing could be \
         decided any more. Bring the others back, or remove them first",
        listed(voters), listed(answering), if answering.len() == 1 { "s" } else { "" }
    )]
    QuorumAtRisk {
        /// The node to remove.
        node_id: u64,
        /// The voters that would remain.
        voters: Vec<u64>,
        /// Those of them that answer.
        answering: Vec<u64>,
    },
    /// Another change is under way.
    #[error("another change of the membership is under way")]
    InProgress,
    /// The change may or may not happen.
    #[error("leadership was lost while the change was under way; it may or may not happen")]
    Unknown,
    /// It did not happen in time.
    #[error("{0}")]
    TimedOut(String),
    /// The replica has stopped.
    #[error("this replica has stopped")]
    Stopped,
}

/// Nodes as people list them.
fn listed(nodes: &[u64]) -> String {
    match nodes {
        [] => "none".to_owned(),
        nodes => nodes
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    }
}

impl ChangeError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotLeader { .. } => "not_leader",
            Self::NoSuchMember(_) => "no_such_member",
            Self::NodeIdInUse(_) => "node_id_in_use",
            Self::Unreachable { .. } => "node_unreachable",
            Self::Lagging { .. } => "node_lagging",
            Self::LastVoter(_) => "last_voter",
            Self::QuorumAtRisk { .. } => "quorum_at_risk",
            Self::InProgress => "change_in_progress",
            Self::Unknown => "outcome_unknown",
            Self::TimedOut(_) => "timed_out",
            Self::Stopped => "shutting_down",
        }
    }
}

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Counts for quorums.
    Voter,
    /// Follows the log only.
    Learner,
}

/// One member, as the answering node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Who.
    pub member: Member,
    /// Voter or learner.
    pub role: Role,
    /// The last log index known to be on it; only a leader knows.
    pub matched: Option<u64>,
    /// Entries behind the leader; only a leader knows.
    pub lag: Option<u64>,
    /// A log index it has applied, and its ledger's digest there.
    pub digest: Option<(u64, u64)>,
    /// Whether that digest equals this node's at the same index; none: not comparable.
    pub digest_agrees: Option<bool>,
    /// The newest format of entries and snapshots that it reads; none: never heard yet.
    pub format_version: Option<u32>,
}

/// The cluster, as the answering node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The answering node.
    pub node_id: u64,
    /// The cluster; none: it is older than ids, or not known here yet.
    pub cluster_id: Option<u128>,
    /// Who leads; nobody, once that node has not been heard of for long.
    pub leader: Option<u64>,
    /// The term.
    pub term: u64,
    /// The last index in this node's log.
    pub last_log: Option<u64>,
    /// The last index known to be committed.
    pub committed: Option<u64>,
    /// The last index applied here.
    pub applied: Option<u64>,
    /// The last index in this node's snapshot.
    pub snapshot: Option<u64>,
    /// The last index dropped from this node's log.
    pub purged: Option<u64>,
    /// What a majority's wall clocks show at least; none: no majority answers.
    pub majority_wall_unix_us: Option<u64>,
    /// Everybody, in the order of their ids.
    pub members: Vec<MemberStatus>,
}

mod disk_id_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        disk_id: &u128,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{disk_id:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}
