//! The least that the log must contain, in a file of its own. Knows nothing of
//! the engine.
//!
//! Two slots are written in turn, so that a torn write leaves the other one. A
//! slot is written only after the barrier that made its content true, and made
//! durable a little later (for votes: at once), so the file never claims more
//! than the log has; before the log is cut back it is lowered first.

use std::{
    fs::{File, OpenOptions},
    io::ErrorKind,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{Identity, Loaded, LogPos, StoreError, StoredVote, durable};

/// The file's name.
pub(super) const NAME: &str = "watermark";
const MAGIC: [u8; 4] = *b"LHWM";
/// What names no cluster is written as version 1, so that nodes which know nothing
/// newer go on reading it.
const VERSION: u32 = 2;
const VERSION_WITHOUT_CLUSTER: u32 = 1;
/// Slots are this far apart: no sector holds both.
const STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 104;

/// What a watermark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The node.
    pub node_id: u64,
    /// The disk.
    pub disk_id: u128,
    /// The cluster whose log it is; none: not known yet, or it has no id.
    pub cluster_id: Option<u128>,
    /// The last position known to be durable.
    pub last: Option<LogPos>,
    /// The last vote known to be durable.
    pub vote: Option<StoredVote>,
}

impl Mark {
    /// The mark of a log in which nothing is.
    #[must_use]
    pub fn new(identity: &Identity) -> Self {
        Self {
            node_id: identity.node_id,
            disk_id: identity.disk_id,
            cluster_id: None,
            last: None,
            vote: None,
        }
    }

    pub(super) fn is_blank(&self) -> bool {
        self.last.is_none() && self.vote.is_none()
    }

    pub(super) fn belongs_to(&self, identity: &Identity) -> Result<(), String> {
        if (self.node_id, self.disk_id) == (identity.node_id, identity.disk_id) {
            Ok(())
        } else {
            Err(format!(
                "it belongs to node {} on disk {:032x}, but the identity file names node {} on disk {:032x}",
                self.node_id, self.disk_id, identity.node_id, identity.disk_id
            ))
        }
    }

    /// The log contains everything that was durable.
    pub(super) fn is_reached_by(&self, loaded: &Loaded) -> Result<(), String> {
        if let Some(mark) = self.last {
            let purged = loaded
                .purged
                .is_some_and(|purged| purged.index >= mark.index);
            let found = loaded.term_at(mark.index);
            if !purged && found != Some(mark.term) {
                let has = match (found, loaded.last()) {
                    (Some(term), _) => format!("has term {term} there"),
                    (None, Some(last)) => format!("ends at entry {}", last.index),
                    (None, None) => "is empty".to_owned(),
                };
                return Err(format!(
                    "entry {} of term {} was durable, but the log {has}",
                    mark.index, mark.term
                ));
            }
        }
        if self.vote.is_some() && loaded.vote < self.vote {
            return Err(format!(
                "a vote in term {} was durable, but is gone",
                self.vote.map_or(0, |vote| vote.term)
            ));
        }
        Ok(())
    }
}

/// The open file.
pub struct Watermark {
    file: File,
    path: PathBuf,
    mark: Mark,
    sequence: u64,
}

impl Watermark {
    /// Opens the file; none: there isn't one.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when neither slot is whole.
    pub fn open(dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(NAME);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io(path, &error)),
        };
        let mut newest: Option<(u64, Mark)> = None;
        for slot in 0..2 {
            let mut bytes = [0; SLOT_BYTES];
            match file.read_exact_at(&mut bytes, slot * STRIDE) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => continue,
                Err(error) => return Err(StoreError::io(path, &error)),
            }
            let Some((version, sequence, mark)) = decode(&bytes) else {
                continue;
            };
            if version > VERSION {
                return Err(StoreError::UnknownFormat {
                    path,
                    found: version,
                    known: VERSION,
                });
            }
            if newest.is_none_or(|(other, _)| sequence > other) {
                newest = Some((sequence, mark));
            }
        }
        match newest {
            Some((sequence, mark)) => Ok(Some(Self {
                file,
                path,
                mark,
                sequence,
            })),
            None => Err(StoreError::damaged(
                path,
                format!("neither of its two records, at bytes 0 and {STRIDE}, is whole"),
            )),
        }
    }

    /// Creates the file.
    ///
    /// # Errors
    /// The operating system's.
    pub fn create(dir: &Path, mark: Mark) -> Result<Self, StoreError> {
        let mut bytes = vec![0; usize::try_from(STRIDE).unwrap_or(0) + SLOT_BYTES];
        bytes[..SLOT_BYTES].copy_from_slice(&encode(1, &mark));
        durable::replace(dir, NAME, &bytes)?;
        let path = dir.join(NAME);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| StoreError::io(&path, &error))?;
        Ok(Self {
            file,
            path,
            mark,
            sequence: 1,
        })
    }

    /// The newest mark.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a mark, not yet durable.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&mut self, mark: Mark) -> Result<(), StoreError> {
        let sequence = self.sequence.saturating_add(1);
        // The first record, number 1, is in slot 0.
        let slot = (sequence - 1) % 2;
        self.file
            .write_all_at(&encode(sequence, &mark), slot * STRIDE)
            .map_err(|error| StoreError::io(&self.path, &error))?;
        self.sequence = sequence;
        self.mark = mark;
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The operating system's.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.file
            .sync_data()
            .map_err(|error| StoreError::io(&self.path, &error))
    }
}

fn encode(sequence: u64, mark: &Mark) -> [u8; SLOT_BYTES] {
    let last = mark.last.unwrap_or(LogPos { term: 0, index: 0 });
    let vote = mark.vote.unwrap_or(StoredVote {
        term: 0,
        committed: false,
        node_id: 0,
    });
    let flags = u64::from(mark.last.is_some())
        | u64::from(mark.vote.is_some()) << 1
        | u64::from(vote.committed) << 2
        | u64::from(mark.cluster_id.is_some()) << 3;
    let version = match mark.cluster_id {
        Some(_) => VERSION,
        None => VERSION_WITHOUT_CLUSTER,
    };
    let mut bytes = [0; SLOT_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&version.to_le_bytes());
    let numbers = [
        sequence,
        flags,
        last.term,
        last.index,
        vote.term,
        vote.node_id,
        mark.node_id,
    ];
    for (place, number) in bytes[8..64].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes[64..80].copy_from_slice(&mark.disk_id.to_le_bytes());
    bytes[80..96].copy_from_slice(&mark.cluster_id.unwrap_or(0).to_le_bytes());
    let sum = crc32fast::hash(&bytes[..SLOT_BYTES - 4]);
    bytes[SLOT_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<(u32, u64, Mark)> {
    let (body, sum) = bytes.split_at(SLOT_BYTES - 4);
    if body[..4] != MAGIC || sum != crc32fast::hash(body).to_le_bytes() {
        return None;
    }
    let version = u32::from_le_bytes(body[4..8].try_into().ok()?);
    let mut numbers = [0_u64; 7];
    for (number, place) in numbers.iter_mut().zip(body[8..64].chunks_exact(8)) {
        *number = u64::from_le_bytes(place.try_into().ok()?);
    }
    let [
        sequence,
        flags,
        last_term,
        last_index,
        vote_term,
        vote_node,
        node_id,
    ] = numbers;
    let disk_id = u128::from_le_bytes(body[64..80].try_into().ok()?);
    let cluster_id = u128::from_le_bytes(body[80..96].try_into().ok()?);
    let last = (flags & 1 != 0).then_some(LogPos {
        term: last_term,
        index: last_index,
    });
    let vote = (flags & 2 != 0).then_some(StoredVote {
        term: vote_term,
        committed: flags & 4 != 0,
        node_id: vote_node,
    });
    Some((
        version,
        sequence,
        Mark {
            node_id,
            disk_id,
            cluster_id: (flags & 8 != 0).then_some(cluster_id),
            last,
            vote,
        },
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_watermark_is_synced_when_it_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create(dir.path(), 1).unwrap();
        let mut watermark = Watermark::create(dir.path(), Mark::new(&identity)).unwrap();
        watermark.sync().unwrap();
        // The one file that is always there and refuses to be synced.
        watermark.file = File::open("/dev/null").unwrap();
        assert_eq!(watermark.sync().unwrap_err().code(), "store_io");
    }
}
