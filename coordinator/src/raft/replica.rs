//! One replica of the cluster, as the rest of the coordinator uses it.

use std::{net::SocketAddr, sync::Arc};

use leasehold_ledger::{entry::Entry, outcome::Applied};
use tokio::sync::watch;

use super::api::{
    ChangeError, ClusterStatus, Leadership, Member, ProposeError, ReplicaConfig, StartError,
};

/// A handle to a running replica; clones are cheap and name the same one.
#[derive(Clone)]
pub struct Replica {
    leadership: watch::Receiver<Leadership>,
    fatal: watch::Receiver<Option<String>>,
    peer_addr: SocketAddr,
}

impl Replica {
    /// Starts a replica; returns once it takes part, which for an empty node of a
    /// cluster is after every initial member has answered.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub async fn start(config: ReplicaConfig) -> Result<Self, StartError> {
        Err(StartError::Config(format!(
            "node {} cannot start yet",
            config.node_id
        )))
    }

    /// Where peers reach this replica: the bound address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer_addr
    }

    /// Appends an entry in `term` and waits until it was applied here. The term is
    /// the one whose anchor stamped the entry: an entry stamped in one term must
    /// never be appended in a later one, since cluster time may have stood still
    /// in between.
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub async fn propose(&self, term: u64, entry: Entry) -> Result<Arc<Applied>, ProposeError> {
        let _ = (term, entry);
        Err(ProposeError::Stopped)
    }

    /// Returns once everything that was committed before the call is applied here,
    /// confirmed by a quorum; only a leader can.
    ///
    /// # Errors
    /// See [`ProposeError`].
    pub async fn read_barrier(&self) -> Result<(), ProposeError> {
        Err(ProposeError::Stopped)
    }

    /// Stub.
    pub fn with_ledger<T>(&self, read: impl FnOnce(&leasehold_ledger::Ledger) -> T) -> T {
        read(&leasehold_ledger::Ledger::new())
    }
    /// Who leads; changes are published in order, and a watcher may skip some.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Becomes `Some` when the replica cannot go on: say why and end the process.
    #[must_use]
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.fatal.clone()
    }

    /// Adds a running, empty node: as a learner first, as a voter once it has
    /// caught up.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn add_member(&self, node_id: u64, peer_addr: &str) -> Result<Member, ChangeError> {
        let _ = (node_id, peer_addr);
        Err(ChangeError::Stopped)
    }

    /// Removes a member, voter or learner.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn remove_member(&self, node_id: u64) -> Result<(), ChangeError> {
        let _ = node_id;
        Err(ChangeError::Stopped)
    }

    /// Hands leadership to a voter that has caught up.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn transfer_leader(&self, node_id: u64) -> Result<(), ChangeError> {
        let _ = node_id;
        Err(ChangeError::Stopped)
    }

    /// The cluster as this replica knows it; asks the others for their digests,
    /// briefly.
    pub async fn status(&self) -> ClusterStatus {
        ClusterStatus {
            node_id: 0,
            leader: None,
            term: 0,
            last_log: None,
            committed: None,
            applied: None,
            snapshot: None,
            purged: None,
            members: Vec::new(),
        }
    }

    /// Stops the replica and closes its store. Does not hand leadership over.
    pub async fn shutdown(&self) {}
}
