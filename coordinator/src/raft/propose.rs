//! One entry's way into the log and back. Knows nothing of what it says.

use std::sync::Arc;

use bytes::Bytes;
use leasehold_ledger::{entry::Entry, outcome::Applied};
use openraft::{errors::ClientWriteError, impls::ProgressResponder};

use super::{
    api::ProposeError,
    types::{Core, Proposal, Types, committed_leader},
};

/// Appends an entry if this node leads in `term`, and waits until it was applied.
pub(super) async fn propose(
    core: &Core,
    term: u64,
    entry: &Entry,
) -> Result<Arc<Applied>, ProposeError> {
    let proposal = Proposal(Bytes::from(entry.encode()));
    let (responder, answer) = ProgressResponder::<Types, _>::complete_only();
    // The core refuses it in any other term: a stamp of one term is never used in
    // a later one.
    let write = core
        .write(proposal)
        .with_leader(committed_leader(term))
        .responder(responder);
    write.await.map_err(|_| ProposeError::Stopped)?;
    match answer.await {
        Ok(Ok(response)) => response.data.0.ok_or(ProposeError::Unknown),
        Ok(Err(ClientWriteError::ForwardToLeader(to))) => Err(ProposeError::NotLeader {
            leader: to.leader_node,
        }),
        // Discarded, or the core stopped with the entry under way.
        Ok(Err(_)) | Err(_) => Err(ProposeError::Unknown),
    }
}
