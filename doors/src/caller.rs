//! The other end of a connection. Knows nothing of what it may do.

use std::{
    any::Any,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use rustls::pki_types::CertificateDer;
use x509_parser::{extensions::GeneralName, prelude::*};

/// The other end of a connection, as far as the connection itself shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Where it calls from; none on a Unix socket.
    pub addr: Option<SocketAddr>,
    /// The certificate that it showed, if it showed one: it is valid, and its key is in
    /// the caller's hands.
    pub certificate: Option<Certificate>,
}

/// What a caller's certificate says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whom it names: its first DNS name, otherwise its common name; never empty.
    pub name: String,
    /// Signed by the authority of the coordinators, not by the one of their clients.
    pub is_node: bool,
}

/// The connection on which a request came, for whoever counts connections by what is asked
/// on them.
#[derive(Clone, Debug, Default)]
pub struct Connection(Arc<OnceLock<Box<dyn Any + Send + Sync>>>);

impl Connection {
    /// Whether something is kept on it.
    #[must_use]
    pub fn is_noted(&self) -> bool {
        self.0.get().is_some()
    }

    /// Keeps something until the connection ends. What was kept first stays.
    pub fn note(&self, what: impl Any + Send + Sync) {
        // Two requests at once: one of them was first.
        drop(self.0.set(Box::new(what)));
    }
}

/// Whom a certificate names.
pub(crate) fn name_of(leaf: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let dns = alternatives.and_then(|names| {
        names
            .value
            .general_names
            .iter()
            .find_map(|name| match name {
                GeneralName::DNSName(name) => Some((*name).to_owned()),
                _ => None,
            })
    });
    let name = dns.or_else(|| {
        let mut names = certificate.subject().iter_common_name();
        names.next()?.as_str().ok().map(str::to_owned)
    })?;
    (!name.is_empty()).then_some(name)
}
