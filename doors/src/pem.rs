//! Certificates and keys as they stand in files. Knows nothing of connections.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use x509_parser::prelude::*;

use crate::kept::{Contents, Source};

/// So long before a certificate expires it is said.
pub const WARN_AHEAD: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A file, and which field of a configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pem {
    /// As people write it, like `tls.certificate`.
    pub field: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// When a certificate stops being valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The field that names its file.
    pub field: &'static str,
    /// Its file.
    pub path: PathBuf,
    /// Seconds since 1970; of a file with several certificates, the first to expire.
    pub not_after_unix: i64,
}

impl Expiry {
    /// Seconds until it expires; below 0 afterwards.
    #[must_use]
    pub fn seconds_left(&self) -> i64 {
        self.not_after_unix.saturating_sub(unix_now())
    }

    /// Whether it is time to say so.
    #[must_use]
    pub fn is_near(&self) -> bool {
        let ahead = i64::try_from(WARN_AHEAD.as_secs()).unwrap_or(i64::MAX);
        self.seconds_left() < ahead
    }
}

fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

impl Pem {
    /// A file that everybody may read.
    #[must_use]
    pub fn public(&self) -> Source {
        Source {
            path: self.path.clone(),
            is_secret: false,
        }
    }

    /// A file that its owner alone may read, as [`read_private`] judges it.
    ///
    /// [`read_private`]: leasehold_credentials::read_private
    #[must_use]
    pub fn secret(&self) -> Source {
        Source {
            path: self.path.clone(),
            is_secret: true,
        }
    }

    fn says(&self, what: impl std::fmt::Display) -> String {
        format!("{} ({}): {what}", self.field, self.path.display())
    }

    fn bytes<'a>(&self, contents: &'a Contents) -> Result<&'a [u8], String> {
        contents.of(&self.path).map_err(|what| self.says(what))
    }

    /// The certificates in the file, the holder's first, and when the first of them
    /// expires.
    pub(crate) fn certificates(
        &self,
        contents: &Contents,
    ) -> Result<(Vec<CertificateDer<'static>>, Expiry), String> {
        let bytes = self.bytes(contents)?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(bytes)
            .collect::<Result<_, _>>()
            .map_err(|error| self.says(format!("is no PEM: {error}")))?;
        let mut not_after_unix = i64::MAX;
        for certificate in &chain {
            let (_, certificate) = X509Certificate::from_der(certificate)
                .map_err(|error| self.says(format!("has no certificate: {error}")))?;
            let not_after = certificate.validity().not_after;
            if not_after.timestamp() <= unix_now() {
                return Err(self.says(format!("expired on {not_after}: renew it")));
            }
            not_after_unix = not_after_unix.min(not_after.timestamp());
        }
        if chain.is_empty() {
            return Err(self.says("has no certificate: a block that begins with -----BEGIN CERTIFICATE----- is expected"));
        }
        let expiry = Expiry {
            field: self.field,
            path: self.path.clone(),
            not_after_unix,
        };
        Ok((chain, expiry))
    }

    /// The one key in the file.
    pub(crate) fn key(&self, contents: &Contents) -> Result<PrivateKeyDer<'static>, String> {
        let bytes = self.bytes(contents)?;
        // What the error says is about the file's form; the key is never part of it.
        PrivateKeyDer::from_pem_slice(bytes)
            .map_err(|error| self.says(format!("has no private key: {error}")))
    }

    /// The authorities in the file.
    pub(crate) fn roots(
        &self,
        contents: &Contents,
    ) -> Result<(Vec<CertificateDer<'static>>, Expiry), String> {
        self.certificates(contents)
    }

    /// A store of these authorities.
    pub(crate) fn store(
        &self,
        roots: &[CertificateDer<'static>],
        store: &mut RootCertStore,
    ) -> Result<(), String> {
        for root in roots {
            store.add(root.clone()).map_err(|error| {
                self.says(format!("has an authority that cannot be used: {error}"))
            })?;
        }
        Ok(())
    }
}

/// Stores of one file's authorities.
pub(crate) fn store_of(
    pem: &Pem,
    roots: &[CertificateDer<'static>],
) -> Result<Arc<RootCertStore>, String> {
    let mut store = RootCertStore::empty();
    pem.store(roots, &mut store)?;
    Ok(Arc::new(store))
}
