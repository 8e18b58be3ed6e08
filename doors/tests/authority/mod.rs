//! Files with certificates for tests, here, in the coordinator's and in the agent's.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unused_imports,
    reason = "tests, and not every one needs all of it"
)]

mod signer;

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc};

use leasehold_doors::{Dialer, DialerFiles, ListenerFiles, Pem};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) use signer::{Authority, Own, PAST};

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
