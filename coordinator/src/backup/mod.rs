//! A backup: one file with the whole ledger as it was after some entry. Knows its
//! format, and nothing of who takes it or what it is restored into.
//!
//! Eight bytes of magic; the format version, the length of the header and its CRC-32
//! (each u32, little endian); the header, a JSON object that people can read too
//! (unknown fields are skipped); then the ledger's snapshot, which carries its own
//! version, checksum and digest.

use std::{
    io::{self, Read},
    time::{Duration, UNIX_EPOCH},
};

use leasehold_ledger::{Ledger, SnapshotError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

const MAGIC: [u8; 8] = *b"LHBACKUP";
/// The newest format that is read and written.
const VERSION: u32 = 1;
const PRELUDE_BYTES: usize = 20;
const HEADER_BYTES_MAX: u32 = 1 << 20;

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The cluster, 32 hexadecimal digits; none: it is older than ids.
    pub cluster_id: Option<String>,
    /// The last entry of the ledger's in it.
    pub log_index: u64,
    /// The term that the node was in.
    pub term: u64,
    /// Cluster time after that entry.
    pub cluster_time_us: u64,
    /// The ledger's digest, 16 hexadecimal digits.
    pub digest: String,
    /// The node that it was taken from.
    pub node_id: u64,
    /// That node's disk, 32 hexadecimal digits.
    pub disk_id: String,
    /// What the node's wall clock said, for people only.
    pub taken_unix_ms: u64,
    /// How it was taken.
    pub taken: Taken,
    /// The members at the time.
    pub members: Vec<HeaderMember>,
    /// The program's version.
    pub written_by: String,
}

/// How a backup was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Taken {
    /// From a node that ran.
    Running {
        /// The leader that it followed or was; none: it knew of none, and others may
        /// have gone on without it.
        leader: Option<u64>,
    },
    /// From the data folder of a node that did not.
    Stopped {
        /// The last entry that it knew to be committed.
        committed: Option<u64>,
        /// The last entry in its log.
        last: u64,
    },
}

/// A member, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderMember {
    /// Its id.
    pub node_id: u64,
    /// Where its peers reached it.
    pub peer: String,
    /// Where clients reached it.
    pub client_url: String,
}

impl Header {
    /// When it was taken, for people.
    #[must_use]
    pub fn taken_at(&self) -> String {
        let since = Duration::from_millis(self.taken_unix_ms);
        UNIX_EPOCH
            .checked_add(since)
            .map_or_else(|| "an impossible time".to_owned(), httpdate::fmt_http_date)
    }

    /// The file's bytes before the ledger's.
    ///
    /// # Errors
    /// When the header is longer than any may be.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let header = serde_json::to_vec(self)?;
        let length = u32::try_from(header.len())
            .ok()
            .filter(|length| *length <= HEADER_BYTES_MAX)
            .ok_or_else(|| io::Error::other("a backup's header is too long"))?;
        let mut bytes = Vec::with_capacity(PRELUDE_BYTES + header.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        bytes.extend_from_slice(&header);
        Ok(bytes)
    }
}

/// A backup, read to its end and found whole.
#[derive(Debug)]
pub struct Backup {
    /// What it says of itself.
    pub header: Header,
    /// What is in it.
    pub ledger: Ledger,
}

/// Why bytes are not a backup. Nothing was written.
#[derive(Debug, Error)]
pub enum BackupError {
    /// Something else.
    #[error("this is not a backup of Leasehold")]
    NotABackup,
    /// Written by a version that this one does not know.
    #[error(
        "the backup has format version {found}, and this program reads up to {VERSION}: use the version that wrote it, or a newer one"
    )]
    UnknownFormat {
        /// What the bytes say.
        found: u32,
    },
    /// Not what was written.
    #[error("the backup is damaged: {0}; take another one")]
    Damaged(String),
    /// It cannot be read.
    #[error("the backup cannot be read: {0}")]
    Unreadable(io::Error),
}

impl BackupError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotABackup => "not_a_backup",
            Self::UnknownFormat { .. } => "unknown_format",
            Self::Damaged(_) => "damaged_backup",
            Self::Unreadable(_) => "backup_unreadable",
        }
    }
}

impl Backup {
    /// Reads and checks all of a backup.
    ///
    /// # Errors
    /// See [`BackupError`].
    pub fn read(mut bytes: impl Read) -> Result<Self, BackupError> {
        let mut prelude = [0; PRELUDE_BYTES];
        fill(&mut bytes, &mut prelude).map_err(|error| match error {
            // Too short to say what it is.
            BackupError::Damaged(_) => BackupError::NotABackup,
            other => other,
        })?;
        if prelude[..8] != MAGIC {
            return Err(BackupError::NotABackup);
        }
        let number = |at: usize| {
            let mut number = [0; 4];
            number.copy_from_slice(&prelude[at..at + 4]);
            u32::from_le_bytes(number)
        };
        let found = number(8);
        if found != VERSION {
            return Err(BackupError::UnknownFormat { found });
        }
        let (length, sum) = (number(12), number(16));
        if length > HEADER_BYTES_MAX {
            return Err(damaged("its header is impossibly long"));
        }
        let mut header = vec![0; usize::try_from(length).unwrap_or(0)];
        fill(&mut bytes, &mut header)?;
        if crc32fast::hash(&header) != sum {
            return Err(damaged("its header is not what was written"));
        }
        let header: Header = serde_json::from_slice(&header)
            .map_err(|error| damaged(format!("its header: {error}")))?;
        let ledger = Ledger::decode(&mut bytes).map_err(|error| match error {
            SnapshotError::UnknownVersion { found } => BackupError::UnknownFormat { found },
            SnapshotError::Read(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                damaged("it ends too early")
            }
            SnapshotError::Read(error) => BackupError::Unreadable(error),
            other => damaged(other.to_string()),
        })?;
        let backup = Self { header, ledger };
        backup.check()?;
        Ok(backup)
    }

    /// The header speaks of this ledger.
    fn check(&self) -> Result<(), BackupError> {
        let Self { header, ledger } = self;
        let same = header.log_index == ledger.last_index()
            && header.cluster_time_us == ledger.now_us()
            && header.digest == format!("{:016x}", ledger.digest())
            && header.cluster_id == ledger.cluster_id().map(|id| format!("{id:032x}"));
        if same {
            Ok(())
        } else {
            Err(damaged("its header speaks of another ledger"))
        }
    }
}

fn damaged(detail: impl Into<String>) -> BackupError {
    BackupError::Damaged(detail.into())
}

fn fill(mut bytes: impl Read, buffer: &mut [u8]) -> Result<(), BackupError> {
    bytes
        .read_exact(buffer)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("it ends too early"),
            _ => BackupError::Unreadable(error),
        })
}

#[cfg(test)]
mod tests;
