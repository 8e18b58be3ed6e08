//! A certificate and its key as files. Knows nothing of what is in them.

use std::{
    fs::{self, DirBuilder, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use super::{CliError, sign::Made};

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

/// Makes a folder that only its owner can look into, unless it is there.
pub(super) fn make_folder(folder: &Path) -> Result<(), CliError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| cannot_write(folder, &error))
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

/// Writes a file that never had other permissions and is never seen half-written.
fn put(path: &Path, text: &str, mode: u32, force: bool) -> Result<(), CliError> {
    let failed = |error: io::Error| cannot_write(path, &error);
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".leasehold-cert-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    if force {
        file.persist(path).map_err(|error| failed(error.error))?;
    } else {
        file.persist_noclobber(path)
            .map_err(|error| match error.error.kind() {
                io::ErrorKind::AlreadyExists => exists(path),
                _ => failed(error.error),
            })?;
    }
    Ok(())
}

fn exists(path: &Path) -> CliError {
    CliError::Failed {
        code: "file_exists",
        detail: format!(
            "{} is there already, and nothing was written: choose another name or folder, or say --force to replace \
             it; whatever uses the old one goes on with it until it is given the new one",
            path.display()
        ),
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> CliError {
    CliError::Failed {
        code: "cannot_write",
        detail: format!("cannot write {}: {error}", path.display()),
    }
}
