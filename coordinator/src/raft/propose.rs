//! One entry's way into the log and back. Knows nothing of what it says.

use std::sync::Arc;

use bytes::Bytes;
use leasehold_ledger::{entry::Entry, outcome::Applied};
use openraft::{errors::ClientWriteError, impls::ProgressResponder};

use super::{
    api::ProposeError,
    types::{Core, Proposal, Types, committed_leader},
};

/// The longest entry; the sequencer's rounds are a hundredth of it.
const ENTRY_BYTES_MAX: usize = 32 << 20;

/// Appends an entry if this node leads in `term`, and waits until it was applied.
pub(super) async fn propose(
    core: &Core,
    term: u64,
    entry: &Entry,
) -> Result<Arc<Applied>, ProposeError> {
    let bytes = Bytes::from(entry.encode());
    if bytes.len() > ENTRY_BYTES_MAX {
        // The store would refuse it, and a store that refuses a write has failed.
        let error = ProposeError::TooLong {
            bytes: bytes.len(),
            max: ENTRY_BYTES_MAX,
        };
        tracing::error!(%error, "refused");
        return Err(error);
    }
    let proposal = Proposal(bytes);
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
