//! Certificates for tests, made where they are needed: here and in the coordinator's.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "tests, and not every one needs all of it"
)]

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc};

use leasehold_doors::{Dialer, DialerFiles, ListenerFiles, Pem};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The last day of a certificate that has expired.
pub(crate) const PAST: (i32, u8, u8) = (2001, 1, 1);

pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A chain and its key.
pub(crate) type Own = (String, String);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn issue(&self, names: &[&str]) -> Own {
        self.issue_to("somebody", names, None)
    }

    pub(crate) fn issue_to(
        &self,
        common_name: &str,
        names: &[&str],
        until: Option<(i32, u8, u8)>,
    ) -> Own {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !common_name.is_empty() {
            let name = common_name.to_owned();
            params.distinguished_name.push(DnType::CommonName, name);
        }
        if let Some((year, month, day)) = until {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(year, month, day);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// A folder of files, which goes when it is dropped.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.0.path()
    }

    pub(crate) fn write(&self, field: &'static str, text: &str) -> Pem {
        let file = tempfile::Builder::new().tempfile_in(self.0.path()).unwrap();
        let path: PathBuf = file.into_temp_path().keep().unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Pem { field, path }
    }

    pub(crate) fn listener(
        &self,
        nodes: &Authority,
        clients: Option<&Authority>,
        must_show: bool,
    ) -> ListenerFiles {
        let (chain, key) = nodes.issue(&["localhost"]);
        ListenerFiles {
            certificate: self.write("tls.certificate", &chain),
            key: self.write("tls.key", &key),
            client_ca: clients.map(|clients| self.write("tls.client_ca", &clients.pem)),
            node_ca: Some(self.write("tls.peers.ca", &nodes.pem)),
            must_show,
        }
    }

    pub(crate) fn dialer(&self, trusted: &Authority, own: Option<Own>) -> DialerFiles {
        DialerFiles {
            ca: self.write("ca", &trusted.pem),
            own: own
                .map(|(chain, key)| (self.write("certificate", &chain), self.write("key", &key))),
        }
    }
}

/// Asks as somebody who shows whatever it has.
pub(crate) async fn ask_showing(
    port: u16,
    trusted: &Authority,
    chain: &str,
    key: &str,
) -> Result<String, std::io::Error> {
    let mut roots = rustls::RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(trusted.pem.as_bytes()).unwrap();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let dialer = Dialer {
        config: Arc::new(config),
        expiries: Vec::new(),
    };
    let mut stream = dialer.dial("localhost", port).await?;
    let question = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(question).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
