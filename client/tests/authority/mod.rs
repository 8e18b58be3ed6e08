//! Authorities and certificates for tests, as files.

#![allow(dead_code, clippy::unwrap_used, reason = "tests; each uses a part")]

#[path = "../../../doors/tests/authority/signer.rs"]
mod signer;

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

pub(crate) use signer::Own;

/// Signs servers and callers alike, and has its files in a folder of its own.
pub(crate) struct Authority {
    signer: signer::Authority,
    dir: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let signer = signer::Authority::new(name);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), &signer.pem).unwrap();
        Self { signer, dir }
    }

    pub(crate) fn pem(&self) -> &str {
        &self.signer.pem
    }

    /// The file of its own certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub(crate) fn server(&self, hosts: &[&str]) -> Own {
        self.signer.issue(hosts)
    }

    /// One that was good once.
    pub(crate) fn expired(&self, hosts: &[&str]) -> Own {
        self.signer.issue_to("somebody", hosts, Some(signer::PAST))
    }

    /// Writes a caller's certificate and its key.
    pub(crate) fn caller(&self, name: &str) -> (PathBuf, PathBuf) {
        let (chain, private) = self.server(&[name]);
        let certificate = self.dir.path().join(format!("{name}.pem"));
        let key = self.dir.path().join(format!("{name}-key.pem"));
        fs::write(&certificate, chain).unwrap();
        write_private(&key, &private);
        (certificate, key)
    }

    /// Writes something private beside them.
    pub(crate) fn private(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        write_private(&path, text);
        path
    }
}

pub(crate) fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    set_mode(path, 0o600);
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}
