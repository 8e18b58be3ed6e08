//! Whether this node's data folder is older than what the node has confirmed: a copy
//! that was put back, a virtual machine that was set back to a snapshot, or a second
//! process on a copy. Such a node has forgotten votes and entries that others count
//! on, and what was acknowledged could be lost with its help. Knows nothing of what
//! entries say.
//!
//! Nobody but the others can tell. With every roll call a node claims the last entry
//! that is committed and durable on its disk; a healthy disk never has less again. The
//! others remember the greatest claim, in memory only: where all of them were started
//! anew or cannot be reached, nothing is noticed, and what was confirmed within the last
//! two roll calls is not claimed yet.

use std::{collections::BTreeMap, path::Path, time::Duration};

use leasehold_proto::v1::RollCallRequest;
use parking_lot::Mutex;

use super::{
    api::{InitialMember, Member},
    log::Log,
    machine,
    network::Links,
};
use crate::store::{SnapshotFolder, StoreError};

/// How long a starting node waits for others: those that do not run are not waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// The greatest claim of each node.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<BTreeMap<u64, u64>>);

impl Claims {
    /// Notes a claim and gives the greatest one of that node.
    pub(super) fn hear(&self, node_id: u64, committed: u64) -> u64 {
        let mut claims = self.0.lock();
        let greatest = claims.entry(node_id).or_default();
        *greatest = committed.max(*greatest);
        *greatest
    }
}

/// Why a running node must stop, if its log ends before what it once claimed.
pub(super) fn behind(last: Option<u64>, confirmed: u64) -> Option<String> {
    (confirmed > last.unwrap_or(0)).then(|| {
        let last = last.unwrap_or(0);
        format!(
            "this node had entry {confirmed} durable, but its log ends at entry {last}: it was set back to an older state, or \
             another process runs on a copy of its data folder"
        )
    })
}

/// What a folder holds before anybody acts on it, and whom to ask about it.
pub(super) struct Remains {
    last: Option<u64>,
    /// Ids and peer addresses.
    members: Vec<(u64, String)>,
}

impl Remains {
    pub(super) fn of(
        log: &Log,
        snapshots: &SnapshotFolder,
        initial: &[InitialMember],
    ) -> Result<Self, StoreError> {
        let (mut last, mut membership) = log.remains();
        if let Some((at, file)) = snapshots.newest() {
            last = last.max(Some(at.index));
            if membership.is_none() {
                let described = machine::describe(file)?.last_membership;
                membership = Some(described.membership().clone());
            }
        }
        let members = match &membership {
            Some(membership) => membership
                .nodes()
                .map(|(node_id, node)| (*node_id, node.peer_addr.clone()))
                .collect(),
            // An empty folder may be a copy too, of the moment at which it was created.
            None => initial
                .iter()
                .map(|member| (member.node_id, member.peer_addr.clone()))
                .collect(),
        };
        Ok(Self { last, members })
    }

    /// Asks the other members what this node claimed when it last ran.
    ///
    /// # Errors
    /// [`StoreError::RolledBack`].
    pub(super) async fn check(
        self,
        links: &Links,
        me: &Member,
        log_dir: &Path,
    ) -> Result<(), StoreError> {
        let others = self.members.iter();
        let asked = others
            .filter(|(node_id, _)| *node_id != me.node_id)
            .map(|(node_id, peer_addr)| ask(links, me, *node_id, peer_addr));
        let claims = futures::future::join_all(asked).await;
        let confirmed = claims.into_iter().flatten().max().unwrap_or(0);
        if behind(self.last, confirmed).is_none() {
            return Ok(());
        }
        Err(StoreError::RolledBack {
            path: log_dir.to_path_buf(),
            last: self.last,
            confirmed,
        })
    }
}

/// The greatest claim that one member has heard; none: it does not answer.
async fn ask(links: &Links, me: &Member, node_id: u64, peer_addr: &str) -> Option<u64> {
    let mut client = links.client(peer_addr).ok()?;
    let request = RollCallRequest {
        node_id: me.node_id,
        disk_id: me.disk_id.to_le_bytes().to_vec(),
        ..RollCallRequest::default()
    };
    let answer = tokio::time::timeout(ANSWER_WITHIN, client.roll_call(request)).await;
    let reply = answer.ok()?.ok()?.into_inner();
    (reply.node_id == node_id).then_some(reply.committed)
}
