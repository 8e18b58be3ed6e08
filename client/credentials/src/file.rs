//! Files of certificates, keys and tokens, and when one is secret enough. Knows not what
//! is in them.

use std::{fs::File, io::Read, os::unix::fs::MetadataExt, path::Path};

use thiserror::Error;

use crate::error::CredentialsError;

/// As much as a list of identities may take, which is far more than certificates do.
const BYTES_MAX: u64 = 64 << 20;

/// What is wrong with a file; whoever says so names it first.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read, for this reason.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// A secret that is none.
    #[error(
        "is a secret that others can read or change (mode {mode:04o}): `chmod 600` it, and draw a new one if \
         somebody may have read it"
    )]
    OpenToOthers {
        /// Its permissions.
        mode: u32,
    },
    /// It goes on and on.
    #[error("is longer than {BYTES_MAX} bytes")]
    TooLong,
}

/// Reads a file that everybody may read.
///
/// # Errors
/// It cannot be read, or is longer than 64 MiB.
pub fn read_public(path: &Path) -> Result<Vec<u8>, FileError> {
    take(open(path)?)
}

/// Reads a file that is a secret: one that nobody but its owner can read or change.
///
/// A file of root's that this process, which is not root, reads by its group is as good:
/// so do systemd's `LoadCredential` and Kubernetes' `fsGroup` hand secrets over.
///
/// # Errors
/// It cannot be read, is longer than 64 MiB, or others can read or change it.
pub fn read_private(path: &Path) -> Result<Vec<u8>, FileError> {
    let file = open(path)?;
    // Of what was opened, not of what is at the path by now.
    let metadata = file.metadata().map_err(|error| unreadable(&error))?;
    let mode = metadata.mode() & 0o777;
    let is_root = rustix::process::geteuid().is_root();
    if is_open_to_others(mode, metadata.uid(), is_root) {
        return Err(FileError::OpenToOthers { mode });
    }
    take(file)
}

fn is_open_to_others(mode: u32, owner: u32, is_root: bool) -> bool {
    let allowed = if owner == 0 && !is_root { 0o040 } else { 0 };
    mode & 0o077 & !allowed != 0
}

fn open(path: &Path) -> Result<File, FileError> {
    File::open(path).map_err(|error| unreadable(&error))
}

fn take(file: File) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(FileError::TooLong);
    }
    Ok(bytes)
}

fn unreadable(error: &std::io::Error) -> FileError {
    FileError::Unreadable(error.to_string())
}

impl FileError {
    /// Of the file that a setting of this name names.
    pub(crate) fn of(self, name: &'static str, path: &Path) -> CredentialsError {
        CredentialsError::File {
            name,
            path: path.to_owned(),
            what: self,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use super::*;

    #[test]
    fn a_secret_that_others_can_read_or_change_is_refused_with_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        fs::write(&path, "secret").unwrap();
        for (mode, is_taken) in [
            (0o600, true),
            (0o400, true),
            (0o700, true),
            (0o640, false),
            (0o620, false),
            (0o604, false),
            (0o644, false),
            (0o602, false),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let read = read_private(&path);
            assert_eq!(read.is_ok(), is_taken, "{mode:o}");
            if let Err(error) = read {
                let said = error.of("--key", &path).to_string();
                assert!(said.contains("--key") && said.contains("key.pem"), "{said}");
                assert!(said.contains(&format!("{mode:04o}")), "{said}");
                assert!(!said.contains("secret\""), "{said}");
            }
        }
    }

    #[test]
    fn what_root_hands_over_by_a_group_is_private_to_others_than_root() {
        assert!(!is_open_to_others(0o440, 0, false));
        assert!(!is_open_to_others(0o640, 0, false));
        assert!(is_open_to_others(0o660, 0, false));
        assert!(is_open_to_others(0o444, 0, false));
        assert!(is_open_to_others(0o440, 0, true));
        assert!(is_open_to_others(0o440, 1000, false));
    }

    #[test]
    fn a_file_that_never_ends_is_not_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identities.toml");
        fs::write(&path, vec![b'#'; 2 << 20]).unwrap();
        assert_eq!(read_public(&path).unwrap().len(), 2 << 20);
        let endless = read_public(Path::new("/dev/zero"));
        assert_eq!(endless, Err(FileError::TooLong));
    }
}
