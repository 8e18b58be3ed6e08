//! The durable side of a replica. Knows nothing of consensus or of the ledger:
//! it keeps numbered byte strings, a vote and a few marks, and says when they
//! are safe.
//!
//! A data folder holds four things, each versioned and checksummed:
//!
//! | name | what |
//! | --- | --- |
//! | `identity` | which node and which disk this is |
//! | `log/` | the engine's files: log entries, vote, marks |
//! | `watermark` | the least that the log must contain |
//! | `snapshots/` | snapshot files |
//!
//! The end of a log that was damaged looks like one that a power cut took. The
//! watermark is what tells them apart: a log behind it is damaged, and a damaged
//! store is an error, never an empty or a shorter log.

mod beginning;
mod durable;
mod engine;
mod error;
mod identity;
mod record;
mod segment;
mod segments;
mod sled_engine;
mod snapshots;
mod wal;
mod watermark;

use std::path::{Path, PathBuf};

pub use beginning::Beginning;
pub use engine::{Engine, Loaded, LogPos, StoredVote, Write};
pub use error::StoreError;
pub use identity::Identity;
pub use segments::SegmentEngine;
pub use sled_engine::SledEngine;
pub use snapshots::{SnapshotFile, SnapshotFolder, SnapshotReader, SnapshotWriter};
pub use wal::Wal;
pub use watermark::{Mark, Watermark};

/// The folder of the engine's files.
const LOG: &str = "log";
/// The folder of snapshot files.
const SNAPSHOTS: &str = "snapshots";

/// A data folder, opened.
pub struct Opened {
    /// Writes go here.
    pub wal: Wal,
    /// What was found.
    pub loaded: Loaded,
    /// The cluster whose log it is, if known.
    pub cluster_id: Option<u128>,
    /// The snapshots.
    pub snapshots: SnapshotFolder,
    /// The engine's folder, for error messages.
    pub log_dir: PathBuf,
}

/// Opens a data folder, creating what is missing only if this identity never
/// took part in a cluster. `failed` is called once, from the WAL's thread, when
/// a write has failed: the process must stop then.
///
/// # Errors
/// [`StoreError::Damaged`] when anything differs from what was written.
pub fn open(
    dir: &Path,
    identity: &Identity,
    failed: impl FnOnce(String) + Send + 'static,
) -> Result<Opened, StoreError> {
    let log_dir = dir.join(LOG);
    let snapshots = SnapshotFolder::open(&dir.join(SNAPSHOTS))?;
    let watermark = match Watermark::open(dir)? {
        Some(watermark) => watermark,
        None if identity.took_part || log_dir.exists() => {
            return Err(StoreError::damaged(
                dir.join(watermark::NAME),
                "the file is missing",
            ));
        }
        None => Watermark::create(dir, Mark::new(identity))?,
    };
    let mark = *watermark.mark();
    mark.belongs_to(identity)
        .map_err(|detail| StoreError::damaged(watermark.path(), detail))?;
    if !log_dir.exists() && (identity.took_part || !mark.is_blank()) {
        return Err(StoreError::damaged(&log_dir, "the folder is missing"));
    }
    let check = |loaded: &Loaded| {
        let checked = loaded.check().and_then(|()| mark.is_reached_by(loaded));
        checked.map_err(|detail| StoreError::damaged(&log_dir, detail))
    };
    if sled_engine::is_in(&log_dir) && !SegmentEngine::is_in(&log_dir)? {
        let (engine, loaded) = SledEngine::open(&log_dir)?;
        drop(engine);
        check(&loaded)?;
        SegmentEngine::import(&log_dir, &loaded)?;
        tracing::info!("the log was rewritten in this version's format");
    }
    let (engine, loaded) = SegmentEngine::open(&log_dir)?;
    check(&loaded)?;
    // Only now is what it came from not needed any more.
    sled_engine::remove(&log_dir)?;
    if loaded.is_blank() && snapshots.newest().is_some() {
        return Err(StoreError::damaged(
            &log_dir,
            "there is a snapshot, but no log and no vote",
        ));
    }
    let wal = Wal::start(Box::new(engine), watermark, failed)?;
    Ok(Opened {
        wal,
        loaded,
        cluster_id: mark.cluster_id,
        snapshots,
        log_dir,
    })
}

#[cfg(test)]
mod tests;
