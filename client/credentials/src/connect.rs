//! Connections for HTTP/1.1 requests of one after another. Knows no requests.

use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, RootCertStore};

use crate::{Ready, error::CredentialsError, tls::provider};

impl Ready {
    /// What connects to the URL for which this was read; with TLS, if that is `https`.
    ///
    /// # Errors
    /// The provider of cryptography has no protocol version in common with us, which is
    /// a fault of this program.
    pub fn connector(
        self,
        within: Duration,
    ) -> Result<HttpsConnector<HttpConnector>, CredentialsError> {
        let tls = match self.tls {
            Some(tls) => tls,
            // For an `http` URL: nobody is trusted.
            None => ClientConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(|_| CredentialsError::NoTls)?
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth(),
        };
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(within));
        tcp.enforce_http(false);
        Ok(HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp))
    }
}
