//! What can be wrong with a data folder, and what to do about it.

use std::{io, path::PathBuf};

use thiserror::Error;

/// Why the store cannot be used. Nothing was changed by the call that says so.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// What is on disk is not what was written. A replica never starts on it,
    /// and never starts empty instead.
    #[error(
        "the store is damaged: {}: {detail}. Keep the folder for inspection, remove this node from the cluster and add it again \
         under a new id with an empty data folder; with a single node, restore a backup",
        path.display()
    )]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// It is whole, but older than what this node has confirmed to others.
    #[error(
        "{}: this data folder is an old copy: the node had entry {confirmed} durable, but the log ends at entry {}, so it would \
         break what it promised. Put the newest folder back, or remove this node from the cluster and add it again under a new id \
         with an empty data folder",
        path.display(), last.map_or_else(|| "none".to_owned(), |last| last.to_string())
    )]
    RolledBack {
        /// The engine's folder.
        path: PathBuf,
        /// The last entry in it.
        last: Option<u64>,
        /// An entry that was committed and durable here.
        confirmed: u64,
    },
    /// It is whole, but another node's: nothing is wrong with it.
    #[error("{}: this data folder belongs to node {found}, but node_id is {node_id}: set one of the two right", path.display())]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: u64,
        /// Who was to start.
        node_id: u64,
    },
    /// A folder that is to begin anew has something in it.
    #[error(
        "{}: a new cluster begins in an empty folder, but {found} is there: choose another folder, or move that away",
        path.display()
    )]
    NotEmpty {
        /// The folder.
        path: PathBuf,
        /// Something in it.
        found: String,
    },
    /// A folder that is to be read has nothing in it.
    #[error("{}: there is no node's data in this folder; is it the data_dir of a node that took part in a cluster?", path.display())]
    NoData {
        /// The folder.
        path: PathBuf,
    },
    /// Written by a version that this one does not know.
    #[error("{}: format version {found} is unknown to this version, which reads {known}; start the version that wrote it", path.display())]
    UnknownFormat {
        /// The file or folder.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// What this version reads.
        known: u32,
    },
    /// Another process uses it.
    #[error("{}: another process uses this data folder; stop it or choose another --data-dir", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: {detail}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        detail: String,
        /// The kind of refusal.
        kind: io::ErrorKind,
    },
    /// A write or an fsync failed before: nothing is written any more, since
    /// nobody can know what the failed one left on disk.
    #[error("the store stopped after a failed write: {0}")]
    Latched(String),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => "damaged_store",
            Self::RolledBack { .. } => "store_rolled_back",
            Self::OtherNode { .. } => "invalid_config",
            Self::NotEmpty { .. } => "folder_not_empty",
            Self::NoData { .. } => "no_data",
            Self::UnknownFormat { .. } => "unknown_format",
            Self::Locked { .. } => "store_locked",
            Self::Io { .. } => "store_io",
            Self::Latched(_) => "store_failed",
            Self::Closed => "store_closed",
        }
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.into(),
            detail: detail.into(),
        }
    }

    pub(crate) fn io(path: impl Into<PathBuf>, error: &io::Error) -> Self {
        Self::Io {
            path: path.into(),
            detail: error.to_string(),
            kind: error.kind(),
        }
    }
}

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        Self::other(error.to_string())
    }
}
