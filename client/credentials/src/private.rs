//! Files that hold secrets. Knows not which.

use std::{fs::File, io::Read, os::unix::fs::MetadataExt, path::Path};

use crate::error::CredentialsError;

/// Far more than a chain of certificates takes.
const BYTES_MAX: u64 = 1 << 20;

/// Reads a file.
#[cfg(feature = "tls")]
pub(crate) fn read(name: &'static str, path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let file = File::open(path).map_err(|error| unreadable(name, path, &error))?;
    take(name, path, file)
}

/// Reads a file that is a secret: one that nobody but its owner can read or change.
///
/// A file of root's that this process, which is not root, reads by its group is as good:
/// so do systemd's `LoadCredential` and Kubernetes' `fsGroup` hand secrets over.
///
/// `name` is how the setting is called that names it.
///
/// # Errors
/// It cannot be read, is longer than a mebibyte, or others can read or change it.
pub fn read_private(name: &'static str, path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let file = File::open(path).map_err(|error| unreadable(name, path, &error))?;
    // Of what was opened, not of what is at the path by now.
    let metadata = file
        .metadata()
        .map_err(|error| unreadable(name, path, &error))?;
    let mode = metadata.mode() & 0o777;
    let is_root = rustix::process::geteuid().is_root();
    if is_open_to_others(mode, metadata.uid(), is_root) {
        return Err(CredentialsError::OpenToOthers {
            name,
            path: path.to_owned(),
            mode,
        });
    }
    take(name, path, file)
}

fn is_open_to_others(mode: u32, owner: u32, is_root: bool) -> bool {
    let allowed = if owner == 0 && !is_root { 0o040 } else { 0 };
    mode & 0o077 & !allowed != 0
}

fn take(name: &'static str, path: &Path, file: File) -> Result<Vec<u8>, CredentialsError> {
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(name, path, &error))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(CredentialsError::Unusable {
            name,
            path: path.to_owned(),
            what: format!("is longer than {BYTES_MAX} bytes"),
        });
    }
    Ok(bytes)
}

fn unreadable(name: &'static str, path: &Path, error: &std::io::Error) -> CredentialsError {
    CredentialsError::Unreadable {
        name,
        path: path.to_owned(),
        reason: error.to_string(),
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
            let read = read_private("--key", &path);
            assert_eq!(read.is_ok(), is_taken, "{mode:o}");
            if let Err(error) = read {
                let said = error.to_string();
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

    #[cfg(feature = "tls")]
    #[test]
    fn a_file_that_never_ends_is_not_read_to_its_end() {
        let endless = read("--ca", Path::new("/dev/zero"));
        assert!(endless.unwrap_err().to_string().contains("longer than"));
    }
}
