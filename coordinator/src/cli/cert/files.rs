//! A certificate and its key as files. Knows nothing of what is in them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    super::private_file::{exists, put},
    CliError,
    sign::Made,
};

/// `NAME.pem` and `NAME-key.pem`.
pub(super) struct Pair {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Pair {
    pub(super) fn new(folder: &Path, name: &str) -> Self {
        Self {
            certificate: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}-key.pem")),
        }
    }

    /// The key first: a certificate without its key would be of no use.
    pub(super) fn write(&self, made: &Made, force: bool) -> Result<(), CliError> {
        put(&self.key, &made.key, 0o600, force)?;
        put(&self.certificate, &made.certificate, 0o644, force)
    }
}

/// Before anything is written, so that all of it is or nothing.
pub(super) fn must_be_free(pairs: &[Pair], force: bool) -> Result<(), CliError> {
    let mut paths = pairs.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
    // A link to nowhere is there as well.
    match paths.find(|path| !force && fs::symlink_metadata(path).is_ok()) {
        Some(path) => Err(exists(path)),
        None => Ok(()),
    }
}
