//! A node's data folder while no node runs on it: what can be read from one that
//! stopped, and one that is prepared for a new cluster. Knows nothing of backups.

use std::{collections::BTreeSet, path::Path};

use leasehold_ledger::Ledger;
use openraft::{EntryPayload, Membership, entry::RaftEntry};

use super::{
    api::Member,
    boot, machine,
    types::{SnapshotMeta, StoredMembership, log_id},
    wire,
};
use crate::store::{self, Beginning, Identity, LogPos, StoreError};

/// What a stopped node's folder has.
#[derive(Debug)]
pub struct Remains {
    /// Whose folder it is.
    pub identity: Identity,
    /// The books after the last entry in the log.
    pub ledger: Ledger,
    /// The last position in the log.
    pub last: LogPos,
    /// The last one that this node knew to be committed. What is after it may have
    /// been acknowledged, or be unknown to whoever asked for it.
    pub committed: Option<u64>,
    /// The members, as the log has them.
    pub members: Vec<Member>,
}

/// Reads a folder that no process uses. All of the log counts: what a majority that
/// is gone may have acknowledged is in no other place, and the rest are requests whose
/// outcome nobody was told.
///
/// # Errors
/// See [`StoreError`]; [`StoreError::NoData`] when there is nothing to read.
pub fn read_stopped(dir: &Path) -> Result<Remains, StoreError> {
    let no_data = || StoreError::NoData {
        path: dir.to_path_buf(),
    };
    let identity = Identity::read(dir)?
        .filter(|identity| identity.took_part)
        .ok_or_else(no_data)?;
    let opened = store::open(dir, &identity, drop)?;
    boot::check_snapshot(dir, &opened)?;
    opened.wal.close();
    let (mut meta, mut ledger) = match opened.snapshots.newest() {
        Some((_, file)) => machine::load(file)?,
        None => (SnapshotMeta::default(), Ledger::new()),
    };
    let last = opened.loaded.last().ok_or_else(no_data)?;
    let included = meta.last_log_id.as_ref().map(|id| id.index());
    for (at, bytes) in &opened.loaded.entries {
        if included.is_some_and(|included| at.index <= included) {
            continue;
        }
        let damaged = |detail: String| StoreError::damaged(&opened.log_dir, detail);
        let entry = wire::decode_entry(log_id(*at), bytes)
            .map_err(|detail| damaged(format!("entry {}: {detail}", at.index)))?;
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => {
                meta.last_membership =
                    StoredMembership::new(Some(entry.log_id()), membership.clone());
            }
            EntryPayload::Normal(proposal) => {
                machine::apply(&mut ledger, at.index, &proposal.0).map_err(damaged)?;
            }
        }
    }
    let mut members: Vec<Member> = meta
        .last_membership
        .nodes()
        .map(|(_, member)| member.clone())
        .collect();
    members.sort_by_key(|member| member.node_id);
    Ok(Remains {
        identity,
        ledger,
        last,
        committed: opened.loaded.committed.map(|at| at.index),
        members,
    })
}

/// Whether a cluster could begin in this folder.
///
/// # Errors
/// [`StoreError::NotEmpty`], or the operating system's.
pub fn must_be_empty(dir: &Path) -> Result<(), StoreError> {
    Beginning::must_be_empty(dir)
}

/// Prepares an empty folder for the first node of a new cluster that begins with
/// these books; the member's disk id is drawn here. The log goes on after the books'
/// last entry, in a later term than `term`.
///
/// # Errors
/// [`StoreError::NotEmpty`], or the operating system's; a folder that was left
/// half-way is refused by `serve` and here.
pub fn begin_from(
    dir: &Path,
    first: Member,
    ledger: &Ledger,
    term: u64,
) -> Result<Member, StoreError> {
    let beginning = Beginning::in_empty(dir, first.node_id)?;
    let first = Member {
        disk_id: beginning.disk_id(),
        ..first
    };
    let at = LogPos {
        term: term.max(1),
        index: ledger.last_index(),
    };
    let alone = Membership::new(
        vec![BTreeSet::from([first.node_id])],
        [(first.node_id, first.clone())]
            .into_iter()
            .collect::<std::collections::BTreeMap<_, _>>(),
    );
    let alone = alone.map_err(|error| StoreError::Latched(error.to_string()))?;
    let meta = SnapshotMeta {
        last_log_id: Some(log_id(at)),
        last_membership: StoredMembership::new(Some(log_id(at)), alone),
    };
    let description = wire::encode(&meta).map_err(StoreError::Latched)?;
    let frozen = ledger.freeze();
    beginning.write(dir, ledger.cluster_id(), at, &description, frozen.chunks())?;
    Ok(first)
}
