//! TLS of listeners and of those who dial. Knows nothing of what is said inside.
//!
//! One provider of cryptography is named wherever a configuration is built, so that what
//! the process links besides changes nothing. Sessions are never resumed: a resumed one
//! would show a certificate that was verified by the files of before.

use std::{fmt, io, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{
    caller::{Certificate, name_of},
    kept::{Contents, Source},
    pem::{Expiry, Pem, store_of},
};

/// What a listener shows, and whom it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFiles {
    /// The chain that it shows, its own certificate first.
    pub certificate: Pem,
    /// Its key.
    pub key: Pem,
    /// Who signs the certificates of clients.
    pub client_ca: Option<Pem>,
    /// Who signs the certificates of coordinators, and of nobody else.
    pub node_ca: Option<Pem>,
    /// Whoever shows no certificate is turned away before a byte of theirs is read as
    /// HTTP.
    pub must_show: bool,
}

/// TLS of a listener.
pub struct ListenerTls {
    pub(crate) config: Arc<ServerConfig>,
    nodes: Option<Arc<dyn ClientCertVerifier>>,
    /// When its certificates stop being valid.
    pub expiries: Vec<Expiry>,
}

/// What somebody who dials shows, and whom they believe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialerFiles {
    /// Who signs the certificates of those who are dialled.
    pub ca: Pem,
    /// Their own chain and its key.
    pub own: Option<(Pem, Pem)>,
}

/// TLS of whoever dials.
pub struct Dialer {
    /// For whatever makes connections.
    pub config: Arc<ClientConfig>,
    /// When its certificates stop being valid.
    pub expiries: Vec<Expiry>,
}

// Keys are behind these.
impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").finish_non_exhaustive()
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").finish_non_exhaustive()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn verifier(roots: Arc<RootCertStore>) -> Result<Arc<dyn ClientCertVerifier>, String> {
    WebPkiClientVerifier::builder_with_provider(roots, provider())
        .build()
        .map_err(|error| error.to_string())
}

/// A node that the others would not believe is told so before they are.
fn believed_by_nodes(
    nodes: &Arc<dyn ClientCertVerifier>,
    chain: &[CertificateDer<'_>],
    own: &Pem,
    ca: &Pem,
) -> Result<(), String> {
    let Some((leaf, between)) = chain.split_first() else {
        return Ok(());
    };
    match nodes.verify_client_cert(leaf, between, UnixTime::now()) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "{} ({}) would not be believed by the other coordinators, who know {} ({}): {error}",
            own.field,
            own.path.display(),
            ca.field,
            ca.path.display()
        )),
    }
}

impl ListenerFiles {
    /// The files.
    #[must_use]
    pub fn sources(&self) -> Vec<Source> {
        let authorities = self.client_ca.iter().chain(&self.node_ca);
        [self.certificate.public(), self.key.secret()]
            .into_iter()
            .chain(authorities.map(Pem::public))
            .collect()
    }
}

impl ListenerTls {
    /// Makes of files what a listener needs.
    ///
    /// # Errors
    /// Which file is wrong and how, for people.
    pub fn read(files: &ListenerFiles, contents: &Contents) -> Result<Self, String> {
        let mut expiries = Vec::new();
        let (chain, expiry) = files.certificate.certificates(contents)?;
        expiries.push(expiry);
        let key = files.key.key(contents)?;

        let mut everybody = RootCertStore::empty();
        let mut clients = Vec::new();
        if let Some(ca) = &files.client_ca {
            let (roots, expiry) = ca.roots(contents)?;
            ca.store(&roots, &mut everybody)?;
            expiries.push(expiry);
            clients = roots;
        }
        let mut nodes = None;
        if let Some(ca) = &files.node_ca {
            let (roots, expiry) = ca.roots(contents)?;
            if let Some(client_ca) = files.client_ca.as_ref()
                && roots.iter().any(|root| clients.contains(root))
            {
                return Err(format!(
                    "{} ({}) and {} ({}) have an authority in common: every client would be \
                     taken for a coordinator; sign coordinators by an authority of their own",
                    ca.field,
                    ca.path.display(),
                    client_ca.field,
                    client_ca.path.display()
                ));
            }
            ca.store(&roots, &mut everybody)?;
            expiries.push(expiry);
            let of_nodes = verifier(store_of(ca, &roots)?)?;
            if files.must_show {
                // Where nodes meet, each shows the same certificate to whom it dials.
                believed_by_nodes(&of_nodes, &chain, &files.certificate, ca)?;
            }
            nodes = Some(of_nodes);
        }

        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = if everybody.is_empty() {
            builder.with_no_client_auth()
        } else {
            let callers =
                WebPkiClientVerifier::builder_with_provider(Arc::new(everybody), provider());
            let callers = if files.must_show {
                callers
            } else {
                callers.allow_unauthenticated()
            };
            builder.with_client_cert_verifier(callers.build().map_err(|error| error.to_string())?)
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| mismatch(&files.certificate, &files.key, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            nodes,
            expiries,
        })
    }

    /// What a verified chain says of who showed it; none: it names nobody.
    pub(crate) fn certificate(&self, chain: &[CertificateDer<'_>]) -> Option<Certificate> {
        let (leaf, between) = chain.split_first()?;
        let is_node = self.nodes.as_ref().is_some_and(|nodes| {
            nodes
                .verify_client_cert(leaf, between, UnixTime::now())
                .is_ok()
        });
        Some(Certificate {
            name: name_of(leaf)?,
            is_node,
        })
    }
}

impl DialerFiles {
    /// The files.
    #[must_use]
    pub fn sources(&self) -> Vec<Source> {
        let mut sources = vec![self.ca.public()];
        if let Some((certificate, key)) = &self.own {
            sources.extend([certificate.public(), key.secret()]);
        }
        sources
    }
}

impl Dialer {
    /// Makes of files what somebody needs who dials; `protocols` are those of ALPN, best
    /// first.
    ///
    /// # Errors
    /// Which file is wrong and how, for people.
    pub fn read(
        files: &DialerFiles,
        protocols: &[&[u8]],
        contents: &Contents,
    ) -> Result<Self, String> {
        let (roots, expiry) = files.ca.roots(contents)?;
        let mut expiries = vec![expiry];
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(store_of(&files.ca, &roots)?);
        let mut config = match &files.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let (chain, expiry) = certificate.certificates(contents)?;
                expiries.push(expiry);
                builder
                    .with_client_auth_cert(chain, key.key(contents)?)
                    .map_err(|error| mismatch(certificate, key, &error))?
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            config: Arc::new(config),
            expiries,
        })
    }
}

/// A connection whose other end has shown a certificate for its name.
pub type Secured = tokio_rustls::client::TlsStream<TcpStream>;

impl Dialer {
    /// Connects, and looks at the certificate that is shown for `host`: a name, or an
    /// address, in brackets or not.
    ///
    /// # Errors
    /// When nobody answers, or not the right one: [`is_distrust`] tells which.
    pub async fn dial(&self, host: &str, port: u16) -> io::Result<Secured> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TcpStream::connect((host, port)).await?;
        // Somebody waits for each message; failing to say so costs some milliseconds.
        let _ = stream.set_nodelay(true);
        TlsConnector::from(Arc::clone(&self.config))
            .connect(name, stream)
            .await
    }
}

/// Whether a connection failed because one end does not believe the other.
#[must_use]
pub fn is_distrust(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner.is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

fn mismatch(certificate: &Pem, key: &Pem, error: &rustls::Error) -> String {
    format!(
        "{} ({}) and {} ({}) do not fit together: {error}",
        certificate.field,
        certificate.path.display(),
        key.field,
        key.path.display()
    )
}
