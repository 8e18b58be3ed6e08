//! `[tls]` and `[tls.peers]`: which files a node shows and believes. Knows nothing of what
//! is in them.

use std::path::{Path, PathBuf};

use leasehold_doors::{DialerFiles, ListenerFiles, Pem};
use serde::{Deserialize, Serialize};

use super::{ConfigError, invalid};

/// The files of a node's connections; each part may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Of `listen` and `admin_listen`.
    pub clients: Option<ListenerFiles>,
    /// For requests that are sent on to the node that leads.
    pub leader: Option<DialerFiles>,
    /// Of `peer_listen`, and for dialling other coordinators.
    pub peers: Option<(ListenerFiles, DialerFiles)>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peers: Option<RawPeers>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPeers {
    pub(super) ca: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) certificate: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<PathBuf>,
}

/// A chain and its key.
type Own = (Pem, Pem);

fn pem(field: &'static str, path: &Path) -> Pem {
    Pem {
        field,
        path: path.to_owned(),
    }
}

fn own(
    fields: [&'static str; 2],
    certificate: Option<&PathBuf>,
    key: Option<&PathBuf>,
) -> Result<Option<Own>, ConfigError> {
    let [of_certificate, of_key] = fields;
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            Ok(Some((pem(of_certificate, certificate), pem(of_key, key))))
        }
        (None, None) => Ok(None),
        (Some(path), None) => invalid(format!(
            "{of_certificate} ({}) needs {of_key}",
            path.display()
        )),
        (None, Some(path)) => invalid(format!(
            "{of_key} ({}) needs {of_certificate}",
            path.display()
        )),
    }
}

impl RawTls {
    /// `others`: the node is one of several from its beginning.
    pub(super) fn check(&self, others: bool) -> Result<Tls, ConfigError> {
        let fields = ["tls.certificate", "tls.key"];
        let own_of_clients = own(fields, self.certificate.as_ref(), self.key.as_ref())?;
        if own_of_clients.is_none() {
            for (field, path) in [("client_ca", &self.client_ca), ("ca", &self.ca)] {
                if let Some(path) = path {
                    return invalid(format!(
                        "tls.{field} ({}) needs tls.certificate and tls.key",
                        path.display()
                    ));
                }
            }
        }
        let peers = self
            .peers
            .as_ref()
            .map(|peers| peers.check(own_of_clients.as_ref()))
            .transpose()?;
        let node_ca = peers.as_ref().map(|(_, dialer)| dialer.ca.clone());
        let leader_ca = self.ca.as_ref().map(|path| pem("tls.ca", path));
        let Some((certificate, key)) = own_of_clients else {
            if peers.is_none() {
                return invalid(
                    "[tls] is empty: name tls.certificate and tls.key, or remove the section",
                );
            }
            return Ok(Tls {
                clients: None,
                leader: None,
                peers,
            });
        };
        let leader_ca = leader_ca.or_else(|| node_ca.clone());
        if leader_ca.is_none() && others {
            return invalid(
                "[tls] needs tls.ca (or tls.peers.ca), which says who signs the other nodes' \
                 certificates: without it no request reaches the node that leads",
            );
        }
        Ok(Tls {
            clients: Some(ListenerFiles {
                certificate,
                key,
                client_ca: self
                    .client_ca
                    .as_ref()
                    .map(|path| pem("tls.client_ca", path)),
                node_ca,
                must_show: false,
            }),
            leader: leader_ca.map(|ca| DialerFiles {
                ca,
                own: peers.as_ref().and_then(|(_, dialer)| dialer.own.clone()),
            }),
            peers,
        })
    }
}

impl RawPeers {
    fn check(&self, of_clients: Option<&Own>) -> Result<(ListenerFiles, DialerFiles), ConfigError> {
        let fields = ["tls.peers.certificate", "tls.peers.key"];
        let own = own(fields, self.certificate.as_ref(), self.key.as_ref())?;
        let Some((certificate, key)) = own.or_else(|| of_clients.cloned()) else {
            return invalid(
                "[tls.peers] needs a certificate and a key: tls.peers.certificate and \
                 tls.peers.key, or those of [tls]",
            );
        };
        let ca = pem("tls.peers.ca", &self.ca);
        let listener = ListenerFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: None,
            node_ca: Some(ca.clone()),
            must_show: true,
        };
        let dialer = DialerFiles {
            ca,
            own: Some((certificate, key)),
        };
        Ok((listener, dialer))
    }
}
