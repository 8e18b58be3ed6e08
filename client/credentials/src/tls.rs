//! TLS as a caller: whom to trust, what to show, and what a failure means in plain words.

use std::{error::Error, io, path::Path, sync::Arc};

use http::Uri;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::{
    Credentials,
    error::CredentialsError,
    file::{read_private, read_public},
};

/// How the text of an alert begins that the other end sent; what holds streams keeps no
/// more of it.
const ALERT: &str = "received fatal alert: ";

impl Credentials {
    pub(crate) fn tls(&self) -> Result<ClientConfig, CredentialsError> {
        let names = &self.names;
        let Some(ca) = &self.ca else {
            return Err(CredentialsError::NoAuthority { name: names.ca });
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(names.ca, ca)? {
            roots
                .add(certificate)
                .map_err(|error| unusable(names.ca, ca, format!("cannot be used: {error}")))?;
        }
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(names.ca, ca, format!("cannot be used: {error}")))?
            .with_root_certificates(roots);
        let Some((certificate, key)) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = certificates(names.certificate, certificate)?;
        let pem = read_private(key).map_err(|what| what.of(names.key, key))?;
        let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| {
            unusable(
                names.key,
                key,
                "holds no private key in PEM (-----BEGIN PRIVATE KEY-----)".to_owned(),
            )
        })?;
        builder
            .with_client_auth_cert(chain, private)
            .map_err(|error| {
                let certificate = certificate.display();
                let what = match error {
                    rustls::Error::InconsistentKeys(_) => {
                        format!("is not the key of the certificate {certificate}")
                    }
                    error => format!("and the certificate {certificate} cannot be used: {error}"),
                };
                unusable(names.key, key, what)
            })
    }

    /// What a failed connection means, if it was TLS that failed.
    #[must_use]
    pub fn explain(&self, url: &Uri, error: &(dyn Error + 'static)) -> Option<String> {
        let host = url.host().unwrap_or_default();
        if let Some(error) = tls_error(error) {
            return Some(self.explain_tls(host, error));
        }
        let text = chain(error).map(ToString::to_string);
        let alert = text.into_iter().find(|text| text.contains(ALERT))?;
        let at = alert.find(ALERT)? + ALERT.len();
        let alert = alert[at..].split(|c: char| !c.is_alphanumeric()).next()?;
        Some(self.explain_alert(host, alert, alert == "CertificateRequired"))
    }

    fn explain_tls(&self, host: &str, error: &rustls::Error) -> String {
        let ca = match &self.ca {
            Some(ca) => format!("{} {}", self.names.ca, ca.display()),
            None => self.names.ca.to_owned(),
        };
        match error {
            rustls::Error::InvalidCertificate(why) => match why {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                    "{ca} does not vouch for the certificate that {host} shows: it is signed by another authority. \
                     Do not go on before you know whose it is"
                ),
                CertificateError::NotValidForName => {
                    format!("the certificate that {host} shows is for another name")
                }
                CertificateError::NotValidForNameContext { presented, .. } => format!(
                    "the certificate that {host} shows is not for that name but for {}: call it by one of those, or \
                     give it a certificate for {host}",
                    presented_names(presented)
                ),
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => format!(
                    "the certificate that {host} shows has expired, or this machine's clock is wrong"
                ),
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    format!(
                        "the certificate that {host} shows is not valid yet, or this machine's clock is wrong"
                    )
                }
                why => format!("the certificate that {host} shows cannot be accepted: {why}"),
            },
            rustls::Error::AlertReceived(alert) => self.explain_alert(
                host,
                &format!("{alert:?}"),
                *alert == AlertDescription::CertificateRequired,
            ),
            rustls::Error::InvalidMessage(_) => {
                format!("{host} does not speak TLS at this port: is its address an http:// one?")
            }
            error => format!("TLS with {host} failed: {error}"),
        }
    }

    fn explain_alert(&self, host: &str, alert: &str, wants_certificate: bool) -> String {
        match &self.identity {
            None if wants_certificate => format!(
                "{host} wants a certificate of its callers: name one with {} and {}",
                self.names.certificate, self.names.key
            ),
            Some((certificate, _)) => format!(
                "{host} does not accept the certificate {}: it is signed by another authority than its client_ca, \
                 has expired, or is not one for callers ({alert})",
                certificate.display()
            ),
            None => format!("{host} ended TLS: {alert}"),
        }
    }
}

/// The one provider of cryptography.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(
    name: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let pem = read_public(path).map_err(|what| what.of(name, path))?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(unusable(
            name,
            path,
            "holds no certificate in PEM (-----BEGIN CERTIFICATE-----)".to_owned(),
        )),
        Err(error) => Err(unusable(name, path, format!("is no PEM: {error}"))),
    }
}

fn unusable(name: &'static str, path: &Path, what: String) -> CredentialsError {
    CredentialsError::Unusable {
        name,
        path: path.to_owned(),
        what,
    }
}

/// The names of a certificate, as rustls writes them: `DnsName("a")`, `IpAddress(10.0.0.1)`.
fn presented_names(presented: &[String]) -> String {
    let bare = presented.iter().map(|name| {
        let inner = name
            .split_once('(')
            .and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"')
    });
    let names: Vec<&str> = bare.collect();
    match names.is_empty() {
        true => "none at all".to_owned(),
        false => names.join(", "),
    }
}

/// An error and what caused it, those within errors of input and output too.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        // Its own source is the inner one's source, and leaves that out.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        match inner {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    chain(error).find_map(|error| error.downcast_ref())
}
