//! Authorities and certificates for tests, as files.

#![allow(dead_code, clippy::unwrap_used, reason = "tests; each uses a part")]

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};

/// Signs servers and callers alike.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

/// A certificate and its key.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The file of its own certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub(crate) fn server(&self, hosts: &[&str]) -> Signed {
        self.sign(hosts, |_| {})
    }

    /// One that was good until an hour ago.
    pub(crate) fn expired(&self, hosts: &[&str]) -> Signed {
        self.sign(hosts, |params| {
            let ago = |hours: u64| SystemTime::now() - Duration::from_secs(hours * 3_600);
            params.not_before = ago(2).into();
            params.not_after = ago(1).into();
        })
    }

    fn sign(&self, hosts: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Signed {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    /// Writes a caller's certificate and its key.
    pub(crate) fn caller(&self, name: &str) -> (PathBuf, PathBuf) {
        let signed = self.server(&[name]);
        let certificate = self.dir.path().join(format!("{name}.pem"));
        let key = self.dir.path().join(format!("{name}-key.pem"));
        fs::write(&certificate, signed.certificate).unwrap();
        write_private(&key, &signed.key);
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
