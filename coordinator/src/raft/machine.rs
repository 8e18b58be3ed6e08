//! The state machine: the ledger, which entry it has applied last, its snapshots,
//! and whose log it is. Knows nothing of sockets; it reads no clock and draws no
//! randomness.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use futures::{Stream, TryStreamExt};
use leasehold_ledger::{FrozenLedger, Ledger, SnapshotError, entry::Entry, outcome::Applied};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    entry::RaftEntry,
    storage::{EntryResponder, RaftStateMachine},
};
use parking_lot::{Mutex, RwLock};

use super::{
    types::{LogId, Outcome, Snapshot, SnapshotMeta, StoredMembership, Types, log_pos},
    wire,
};
use crate::store::{SnapshotFile, SnapshotFolder, StoreError, Wal};

/// The state machine, driven by the core.
pub(super) struct Machine {
    ledger: Arc<RwLock<Ledger>>,
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshots: Arc<Mutex<SnapshotFolder>>,
    belonging: Belonging,
}

/// Which cluster the data folder belongs to, kept beside the log: a folder that was
/// mixed from two clusters must not be taken for either.
pub(super) struct Belonging {
    pub(super) cluster_id: Option<u128>,
    pub(super) wal: Arc<Wal>,
}

impl Belonging {
    /// Notes the id that the ledger has, which never changes.
    fn confirm(&mut self, ledger: &Ledger) -> Result<(), io::Error> {
        match (self.cluster_id, ledger.cluster_id()) {
            (_, None) => Ok(()),
            (None, Some(named)) => {
                self.wal.name_cluster(named);
                self.cluster_id = Some(named);
                Ok(())
            }
            (Some(known), Some(named)) if known == named => Ok(()),
            (Some(known), Some(named)) => Err(io::Error::other(format!(
                "the data folder belongs to cluster {known:032x}, but its log is of cluster {named:032x}"
            ))),
        }
    }
}

impl Machine {
    /// An empty one; the core fills it from the snapshot and the log.
    pub(super) fn new(
        ledger: Arc<RwLock<Ledger>>,
        snapshots: Arc<Mutex<SnapshotFolder>>,
        belonging: Belonging,
    ) -> Self {
        Self {
            ledger,
            applied: None,
            membership: StoredMembership::default(),
            snapshots,
            belonging,
        }
    }

    /// Applies one entry. A broken invariant is an error, which stops the replica:
    /// a panic would end the worker alone, and the core would wait for it for ever.
    fn apply_entry(&mut self, index: u64, bytes: &[u8]) -> Result<Applied, io::Error> {
        let mut ledger = self.ledger.write();
        let applied = apply(&mut ledger, index, bytes).map_err(io::Error::other)?;
        self.belonging.confirm(&ledger)?;
        Ok(applied)
    }

    fn meta(&self) -> SnapshotMeta {
        SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
        }
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let id = entry.log_id();
            let outcome = match &entry.payload {
                EntryPayload::Blank => None,
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(id), membership.clone());
                    None
                }
                EntryPayload::Normal(proposal) => {
                    Some(Arc::new(self.apply_entry(id.index(), &proposal.0)?))
                }
            };
            self.applied = Some(id);
            if let Some(responder) = responder {
                responder.send(Outcome(outcome));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            frozen: Some(self.ledger.read().freeze()),
            meta: self.meta(),
            snapshots: Arc::clone(&self.snapshots),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> Result<(), io::Error> {
        let snapshots = Arc::clone(&self.snapshots);
        let at = meta.last_log_id.as_ref().map(log_pos);
        let ledger = blocking(move || {
            let (_, ledger) = load(&snapshot)?;
            if let Some(at) = at {
                snapshots.lock().adopt(at, &snapshot)?;
            }
            Ok(ledger)
        })
        .await?;
        self.belonging.confirm(&ledger)?;
        // Durable and named by now: memory may follow.
        *self.ledger.write() = ledger;
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let Some((_, file)) = self.snapshots.lock().newest().cloned() else {
            return Ok(None);
        };
        Ok(Some(Snapshot {
            meta: describe(&file)?,
            snapshot: file,
        }))
    }
}

/// Applies the bytes of one entry; after an error the ledger is not to be used.
pub(super) fn apply(ledger: &mut Ledger, index: u64, bytes: &[u8]) -> Result<Applied, String> {
    let entry = Entry::decode(bytes).map_err(|error| format!("entry {index}: {error}"))?;
    catch_unwind(AssertUnwindSafe(|| ledger.apply(index, &entry)))
        .map_err(|_| format!("entry {index} broke an invariant of the ledger"))
}

/// Writes a snapshot of the moment at which it was made, while entries go on
/// being applied.
pub(super) struct Builder {
    frozen: Option<FrozenLedger>,
    meta: SnapshotMeta,
    snapshots: Arc<Mutex<SnapshotFolder>>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let frozen = self
            .frozen
            .take()
            .ok_or_else(|| io::Error::other("a builder builds one snapshot"))?;
        let meta = self.meta.clone();
        let snapshots = Arc::clone(&self.snapshots);
        let snapshot = blocking(move || {
            let description = wire::encode(&meta).map_err(StoreError::Latched)?;
            let mut writer = snapshots.lock().create(&description)?;
            for chunk in frozen.chunks() {
                writer.frame(&chunk)?;
            }
            let file = writer.finish()?;
            let Some(at) = meta.last_log_id.as_ref().map(log_pos) else {
                return Ok(file);
            };
            let mut folder = snapshots.lock();
            folder.adopt(at, &file)?;
            // Under its name now, or an equal or newer one was there already.
            Ok(folder.newest().map_or(file, |(_, newest)| newest.clone()))
        })
        .await?;
        Ok(Snapshot {
            meta: self.meta.clone(),
            snapshot,
        })
    }
}

/// What a snapshot says it is.
pub(super) fn describe(snapshot: &SnapshotFile) -> Result<SnapshotMeta, StoreError> {
    let (description, _) = snapshot.read()?;
    wire::decode(&description).map_err(|detail| StoreError::damaged(snapshot.path(), detail))
}

/// Reads a snapshot to its end: what it describes, and the ledger in it.
pub(super) fn load(snapshot: &SnapshotFile) -> Result<(SnapshotMeta, Ledger), StoreError> {
    let (description, mut reader) = snapshot.read()?;
    let meta = wire::decode(&description)
        .map_err(|detail| StoreError::damaged(snapshot.path(), detail))?;
    let damaged = |detail: String| StoreError::damaged(snapshot.path(), detail);
    let ledger = match Ledger::decode(&mut reader) {
        Ok(ledger) => ledger,
        Err(SnapshotError::UnknownVersion { found }) => {
            return Err(StoreError::UnknownFormat {
                path: snapshot.path().to_path_buf(),
                found,
                known: leasehold_ledger::FORMAT_VERSION,
            });
        }
        Err(error) => return Err(damaged(error.to_string())),
    };
    match reader.next_chunk()? {
        None => Ok((meta, ledger)),
        Some(_) => Err(damaged("there is more in it than a ledger".to_owned())),
    }
}

/// Runs what reads and writes files beside the path of the entries.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, io::Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(Into::into),
        Err(error) => Err(io::Error::other(error)),
    }
}
