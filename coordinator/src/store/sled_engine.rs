//! The first engine, on sled: it reads the logs that it once wrote, so that they can
//! be rewritten. The only file that names sled. It was given up because a power cut
//! could take what it had acknowledged: pages above 128 KiB go to files that are
//! never fsynced, and it takes `sync_file_range` for a barrier between others.
//! Knows nothing of who writes and when; it knows sled's traps:
//!
//! - `flush()` is not an fsync on Linux: the barrier also calls `sync_data` on
//!   the engine's file.
//! - A kill during start-up leaves `snap.*.generating`, which the next open takes
//!   for corruption: such files are deleted first.
//! - Values above about 128 KiB go to files that are never fsynced: entries are
//!   cut into chunks.
//! - It panics on some damage, and opens other damage silently: panics become the
//!   damaged-store error here; the watermark notices the rest.
//! - Its lock lingers for some milliseconds after a drop.

use std::{
    fs::{self, File},
    io::ErrorKind,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};

use super::{
    Engine, Loaded, LogPos, StoreError, StoredVote, Write, durable, engine::ENTRY_BYTES_MAX, record,
};

/// The file that has nearly everything.
const DB: &str = "db";
const VOTE: &[u8] = b"\xffvote";
const COMMITTED: &[u8] = b"\xffcommitted";
const PURGED: &[u8] = b"\xffpurged";
const FORMAT: &[u8] = b"\xffformat";
/// The first byte of every key that is not an entry's; indexes stay below it.
const MARKS: u8 = 0xff;

const FORMAT_VERSION: u32 = 1;
const CACHE_BYTES: u64 = 32 << 20;
/// A value is at most this plus a header of a few bytes, and below 64 KiB.
const CHUNK_BYTES: usize = 60 << 10;
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// Keys that one call of `tidy` deletes.
const TIDY_KEYS: usize = 128;

/// The engine.
pub struct SledEngine {
    db: sled::Db,
    /// sled's file, opened for the sake of its fsync.
    file: File,
    dir: PathBuf,
    /// Entries up to here are marked as purged, and some may still be there.
    purged: Option<u64>,
}

impl SledEngine {
    /// Opens or creates the engine's folder, and reads everything.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], also where sled would panic.
    pub fn open(dir: &Path) -> Result<(Self, Loaded), StoreError> {
        durable::create_dir(dir)?;
        remove_half_made_index(dir)?;
        sync_left_behind(dir)?;
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let mut engine = Self::open_locked(dir)?;
            let loaded = engine.load()?;
            Ok((engine, loaded))
        }));
        match opened {
            Ok(result) => result,
            Err(panic) => {
                let said = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("no message");
                Err(StoreError::damaged(
                    dir,
                    format!("the storage engine cannot read it ({said})"),
                ))
            }
        }
    }

    fn open_locked(dir: &Path) -> Result<Self, StoreError> {
        let config = sled::Config::new()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None);
        let give_up = Instant::now() + LOCK_PATIENCE;
        let db = loop {
            match config.open() {
                Ok(db) => break db,
                Err(sled::Error::Io(error))
                    if error.to_string().contains("could not acquire lock") =>
                {
                    if Instant::now() >= give_up {
                        return Err(StoreError::Locked {
                            path: dir.to_path_buf(),
                        });
                    }
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(refused(dir, &error)),
            }
        };
        let path = dir.join(DB);
        let file = File::open(&path).map_err(|error| StoreError::io(&path, &error))?;
        durable::sync_dir(dir)?;
        Ok(Self {
            db,
            file,
            dir: dir.to_path_buf(),
            purged: None,
        })
    }

    fn refused(&self, error: &sled::Error) -> StoreError {
        refused(&self.dir, error)
    }

    fn mark(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(value) = self.db.get(key).map_err(|error| self.refused(&error))? else {
            return Ok(None);
        };
        match record::unseal(key, &value) {
            Ok(payload) => Ok(Some(payload.to_vec())),
            Err(detail) => Err(self.damaged(detail)),
        }
    }

    fn position(&self, key: &[u8]) -> Result<Option<LogPos>, StoreError> {
        let Some(payload) = self.mark(key)? else {
            return Ok(None);
        };
        if payload.is_empty() {
            return Ok(None);
        }
        let [term, index] = numbers(&payload).ok_or_else(|| self.malformed(key))?;
        Ok(Some(LogPos { term, index }))
    }

    fn malformed(&self, key: &[u8]) -> StoreError {
        self.damaged(format!(
            "the value under {} is malformed",
            record::name(key)
        ))
    }

    fn damaged(&self, detail: impl Into<String>) -> StoreError {
        StoreError::damaged(self.dir.join(DB), detail)
    }

    fn check_format(&mut self) -> Result<(), StoreError> {
        match self.mark(FORMAT)? {
            None if self.db.is_empty() => {
                let value = record::seal(FORMAT, &[&FORMAT_VERSION.to_le_bytes()]);
                self.db
                    .insert(FORMAT, value)
                    .map_err(|error| self.refused(&error))?;
                self.barrier()
            }
            None => Err(self.damaged("the format version is missing")),
            Some(payload) => {
                let found = payload
                    .try_into()
                    .map(u32::from_le_bytes)
                    .map_err(|_| self.malformed(FORMAT))?;
                if found == FORMAT_VERSION {
                    Ok(())
                } else {
                    Err(StoreError::UnknownFormat {
                        path: self.dir.clone(),
                        found,
                        known: FORMAT_VERSION,
                    })
                }
            }
        }
    }

    fn load_entries(&mut self, purged: Option<u64>) -> Result<Vec<(LogPos, Bytes)>, StoreError> {
        let mut entries: Vec<(LogPos, Bytes)> = Vec::new();
        let mut left_over = sled::Batch::default();
        // The entry whose chunks are being read: position, whole length, bytes so far.
        let mut open: Option<(LogPos, usize, BytesMut)> = None;
        for item in self.db.range(..[MARKS].as_slice()) {
            let (key, value) = item.map_err(|error| self.refused(&error))?;
            let index = key
                .first_chunk::<8>()
                .map(|index| u64::from_be_bytes(*index));
            let index = index.ok_or_else(|| self.malformed(&key))?;
            if purged.is_some_and(|purged| index <= purged) {
                left_over.remove(key);
                continue;
            }
            let payload = record::unseal(&key, &value).map_err(|detail| self.damaged(detail))?;
            let bytes = match open.take() {
                None => {
                    let (head, rest) = payload
                        .split_at_checked(16)
                        .ok_or_else(|| self.malformed(&key))?;
                    let [term, length] = numbers(head).ok_or_else(|| self.malformed(&key))?;
                    let length = usize::try_from(length).map_err(|_| self.malformed(&key))?;
                    if key.len() != 8 || length > ENTRY_BYTES_MAX {
                        return Err(self.malformed(&key));
                    }
                    (LogPos { term, index }, length, BytesMut::from(rest))
                }
                Some((at, length, mut bytes)) => {
                    let part = bytes.len().div_ceil(CHUNK_BYTES);
                    if key.as_ref() != chunk_key(at.index, part).as_slice() {
                        return Err(self.malformed(&key));
                    }
                    bytes.extend_from_slice(payload);
                    (at, length, bytes)
                }
            };
            let (at, length, bytes) = bytes;
            match bytes.len().cmp(&length) {
                std::cmp::Ordering::Less => open = Some((at, length, bytes)),
                std::cmp::Ordering::Equal => entries.push((at, bytes.freeze())),
                std::cmp::Ordering::Greater => return Err(self.malformed(&key)),
            }
        }
        if let Some((at, ..)) = open {
            return Err(self.damaged(format!("entry {} is incomplete", at.index)));
        }
        self.db
            .apply_batch(left_over)
            .map_err(|error| self.refused(&error))?;
        Ok(entries)
    }

    fn keys_between(&self, from: u64, to: u64) -> Result<Vec<sled::IVec>, StoreError> {
        let range = from.to_be_bytes().to_vec()..to.to_be_bytes().to_vec();
        self.db
            .range(range)
            .keys()
            .map(|key| key.map_err(|error| self.refused(&error)))
            .collect()
    }

    fn stage_entry(
        &self,
        batch: &mut sled::Batch,
        at: LogPos,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        if bytes.len() > ENTRY_BYTES_MAX || at.index.to_be_bytes()[0] == MARKS {
            let detail = format!(
                "entry {} of {} bytes cannot be stored",
                at.index,
                bytes.len()
            );
            return Err(StoreError::Latched(detail));
        }
        let (first, rest) = bytes.split_at(bytes.len().min(CHUNK_BYTES));
        let key = at.index.to_be_bytes();
        let length = bytes.len() as u64;
        let head = record::seal(
            &key,
            &[&at.term.to_le_bytes(), &length.to_le_bytes(), first],
        );
        batch.insert(&key, head);
        for (part, chunk) in rest.chunks(CHUNK_BYTES).enumerate() {
            let key = chunk_key(at.index, part + 1);
            batch.insert(key.as_slice(), record::seal(&key, &[chunk]));
        }
        Ok(())
    }
}

impl Engine for SledEngine {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        self.check_format()?;
        let purged = self.position(PURGED)?;
        let vote = match self.mark(VOTE)? {
            None => None,
            Some(payload) => {
                let [term, node_id, committed] =
                    numbers(&payload).ok_or_else(|| self.malformed(VOTE))?;
                Some(StoredVote {
                    term,
                    node_id,
                    committed: committed != 0,
                })
            }
        };
        let committed = self.position(COMMITTED)?;
        let entries = self.load_entries(purged.map(|purged| purged.index))?;
        Ok(Loaded {
            entries,
            vote,
            committed,
            purged,
        })
    }

    fn write(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        for write in writes {
            match write {
                Write::Append { at, bytes } => self.stage_entry(&mut batch, *at, bytes)?,
                Write::TruncateAfter(last) => {
                    // Later writes must not meet what this one removes: it is applied
                    // in its place, and in one piece, so that no hole can appear.
                    self.db
                        .apply_batch(std::mem::take(&mut batch))
                        .map_err(|error| self.refused(&error))?;
                    let from = last.map_or(0, |last| last.index.saturating_add(1));
                    for key in self.keys_between(from, u64::MAX >> 1)? {
                        batch.remove(key);
                    }
                    self.db
                        .apply_batch(std::mem::take(&mut batch))
                        .map_err(|error| self.refused(&error))?;
                }
                Write::PurgeTo(at) => {
                    batch.insert(PURGED, sealed_position(PURGED, Some(*at)));
                    self.purged = Some(at.index);
                }
                Write::Vote(vote) => {
                    let parts =
                        [vote.term, vote.node_id, u64::from(vote.committed)].map(u64::to_le_bytes);
                    batch.insert(VOTE, record::seal(VOTE, &[&parts[0], &parts[1], &parts[2]]));
                }
                Write::Committed(at) => batch.insert(COMMITTED, sealed_position(COMMITTED, *at)),
            }
        }
        self.db
            .apply_batch(batch)
            .map_err(|error| self.refused(&error))
    }

    fn barrier(&mut self) -> Result<(), StoreError> {
        self.db.flush().map_err(|error| self.refused(&error))?;
        self.file
            .sync_data()
            .map_err(|error| StoreError::io(self.dir.join(DB), &error))
    }

    fn tidy(&mut self) -> Result<bool, StoreError> {
        let Some(purged) = self.purged else {
            return Ok(false);
        };
        let end = purged.saturating_add(1).to_be_bytes();
        let mut batch = sled::Batch::default();
        let mut found = 0;
        for key in self.db.range(..end).keys().take(TIDY_KEYS) {
            batch.remove(key.map_err(|error| self.refused(&error))?);
            found += 1;
        }
        if found < TIDY_KEYS {
            self.purged = None;
        }
        self.db
            .apply_batch(batch)
            .map_err(|error| self.refused(&error))?;
        Ok(self.purged.is_some())
    }
}

fn sealed_position(key: &[u8], at: Option<LogPos>) -> Vec<u8> {
    match at {
        Some(at) => record::seal(key, &[&at.term.to_le_bytes(), &at.index.to_le_bytes()]),
        None => record::seal(key, &[]),
    }
}

fn chunk_key(index: u64, part: usize) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&index.to_be_bytes());
    // 64 MiB in chunks of 60 KiB are fewer than 2^16.
    key[8..].copy_from_slice(&u16::try_from(part).unwrap_or(u16::MAX).to_be_bytes());
    key
}

fn numbers<const N: usize>(payload: &[u8]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    if payload.len() != N * 8 {
        return None;
    }
    for (number, bytes) in numbers.iter_mut().zip(payload.chunks_exact(8)) {
        *number = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(numbers)
}

fn refused(dir: &Path, error: &sled::Error) -> StoreError {
    match error {
        sled::Error::Io(error) => StoreError::io(dir, error),
        // It says where in the file, if it knows.
        other => StoreError::damaged(dir.join(DB), other.to_string()),
    }
}

/// Makes durable what a process left in the page cache that was killed before its
/// barrier: it is read as if it were, and sled's index of it is synced at once.
fn sync_left_behind(dir: &Path) -> Result<(), StoreError> {
    for name in ["db", "conf"] {
        let path = dir.join(name);
        match File::open(&path).and_then(|file| file.sync_all()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(StoreError::io(path, &error));
            }
            _ => {}
        }
    }
    durable::sync_dir(dir)
}

/// Whether a folder holds a log of this engine.
pub(super) fn is_in(dir: &Path) -> bool {
    dir.join("db").exists()
}

/// Removes this engine's log from a folder.
pub(super) fn remove(dir: &Path) -> Result<(), StoreError> {
    if !is_in(dir) {
        return Ok(());
    }
    let remove = || {
        for item in fs::read_dir(dir)? {
            let path = item?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            match name.unwrap_or_default() {
                "blobs" => fs::remove_dir_all(&path)?,
                name if name == "conf" || name.starts_with("snap.") => fs::remove_file(&path)?,
                _ => {}
            }
        }
        // Last: it is what says that there is something to remove.
        fs::remove_file(dir.join("db"))
    };
    remove().map_err(|error| StoreError::io(dir, &error))
}

fn remove_half_made_index(dir: &Path) -> Result<(), StoreError> {
    let read = fs::read_dir(dir).map_err(|error| StoreError::io(dir, &error))?;
    for item in read {
        let path = item.map_err(|error| StoreError::io(dir, &error))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(&path).map_err(|error| StoreError::io(&path, &error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_barrier_syncs_the_file_and_a_flush_is_not_enough() {
        let dir = tempfile::tempdir().unwrap();
        let (mut engine, _) = SledEngine::open(dir.path()).unwrap();
        engine.barrier().unwrap();
        // The one file that is always there and refuses to be synced.
        engine.file = File::open("/dev/null").unwrap();
        let refused = engine.barrier().unwrap_err();
        assert_eq!(refused.code(), "store_io", "{refused}");
    }
}
