//! Files that commands write for their owner. Knows nothing of what is in them.

use std::{
    fs::{DirBuilder, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::Path,
};

use super::CliError;

/// Makes a folder that only its owner can look into, unless it is there.
pub(super) fn make_folder(folder: &Path) -> Result<(), CliError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| cannot_write(folder, &error))
}

/// Writes a file that never had other permissions and is never seen half-written.
/// `replaces`: also if it is there.
pub(super) fn put(path: &Path, text: &str, mode: u32, replaces: bool) -> Result<(), CliError> {
    let failed = |error: io::Error| cannot_write(path, &error);
    let mut file = tempfile::Builder::new()
        .prefix(".leasehold-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder_of(path))
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    if replaces {
        file.persist(path).map_err(|error| failed(error.error))?;
        return Ok(());
    }
    match file.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(exists(path)),
        Err(error) => Err(failed(error.error)),
    }
}

/// The folder that a file is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

pub(super) fn exists(path: &Path) -> CliError {
    CliError::Failed {
        code: "file_exists",
        detail: format!(
            "{} is there already, and nothing was written: choose another name or folder, or say --force to replace \
             it; whatever uses the old one goes on with it until it is given the new one",
            path.display()
        ),
    }
}

pub(super) fn cannot_write(path: &Path, error: &io::Error) -> CliError {
    CliError::Failed {
        code: "cannot_write",
        detail: format!("cannot write {}: {error}", path.display()),
    }
}
