//! A data folder that begins with a snapshot instead of empty. Knows nothing of
//! what the snapshot says, nor of who prepares such a folder.

use std::{fs, path::Path};

use super::{
    Engine, Identity, LOG, LogPos, Mark, SNAPSHOTS, SegmentEngine, SnapshotFolder, StoreError,
    StoredVote, Watermark, Write, durable,
};

/// What a file system puts into the root of an empty volume.
const OF_THE_FILE_SYSTEM: &str = "lost+found";

/// An empty folder with a node's identity, which is not written yet.
#[derive(Debug)]
pub struct Beginning {
    identity: Identity,
}

impl Beginning {
    /// Makes sure that the folder is empty, or creates it, and draws an identity.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`]; nothing is written then.
    pub fn in_empty(dir: &Path, node_id: u64) -> Result<Self, StoreError> {
        durable::create_dir(dir)?;
        Self::must_be_empty(dir)?;
        Ok(Self {
            identity: Identity::draw(node_id)?,
        })
    }

    /// A folder that is not there is empty.
    ///
    /// # Errors
    /// [`StoreError::NotEmpty`], or the operating system's.
    pub fn must_be_empty(dir: &Path) -> Result<(), StoreError> {
        if !dir.exists() {
            return Ok(());
        }
        for item in fs::read_dir(dir).map_err(|error| StoreError::io(dir, &error))? {
            let name = item
                .map_err(|error| StoreError::io(dir, &error))?
                .file_name();
            if name != OF_THE_FILE_SYSTEM {
                return Err(StoreError::NotEmpty {
                    path: dir.to_path_buf(),
                    found: name.to_string_lossy().into_owned(),
                });
            }
        }
        Ok(())
    }

    /// The disk id that was drawn.
    #[must_use]
    pub fn disk_id(&self) -> u128 {
        self.identity.disk_id
    }

    /// Writes a log that was cut up to `at`, where the snapshot is. The identity
    /// comes last: a folder that was left half-way has none, and no node starts on it.
    ///
    /// # Errors
    /// The operating system's or the engine's.
    pub fn write(
        mut self,
        dir: &Path,
        cluster_id: Option<u128>,
        at: LogPos,
        description: &[u8],
        chunks: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), StoreError> {
        let vote = StoredVote {
            term: at.term,
            committed: false,
            node_id: self.identity.node_id,
        };
        let (mut engine, _) = SegmentEngine::open(&dir.join(LOG))?;
        engine.write(&[
            Write::Vote(vote),
            Write::PurgeTo(at),
            Write::Committed(Some(at)),
        ])?;
        engine.barrier()?;
        let mut snapshots = SnapshotFolder::open(&dir.join(SNAPSHOTS))?;
        let mut snapshot = snapshots.create(description)?;
        for chunk in chunks {
            snapshot.frame(&chunk)?;
        }
        snapshots.adopt(at, &snapshot.finish()?)?;
        let mark = Mark {
            cluster_id,
            last: Some(at),
            vote: Some(vote),
            ..Mark::new(&self.identity)
        };
        Watermark::create(dir, mark)?;
        self.identity.take_part(dir)
    }
}
