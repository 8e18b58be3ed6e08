//! Whom the agent trusts among coordinators, and as whom it calls them. Reads no file:
//! what is in them is looked at whenever a coordinator is called.

use std::path::{Path, PathBuf};

use leasehold_client::credentials::{Credentials, CredentialsError, Names};

use super::raw::RawCoordinator;

const NAMES: Names = Names {
    ca: "coordinator.ca",
    certificate: "coordinator.certificate",
    key: "coordinator.key",
    token: "coordinator.token_file",
    token_file: "coordinator.token_file",
};

/// Files that say whom to trust and as whom to call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calling {
    /// The authority of the coordinators.
    pub(crate) ca: Option<PathBuf>,
    /// The agent's certificate, and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// The agent's token.
    pub(crate) token_file: Option<PathBuf>,
}

impl Calling {
    /// Paths are as seen from `folder`.
    pub(super) fn new(raw: &RawCoordinator, folder: &Path) -> Result<Self, String> {
        let at = |path: &PathBuf| folder.join(path);
        let identity = match (&raw.certificate, &raw.key) {
            (Some(certificate), Some(key)) => Some((at(certificate), at(key))),
            (None, None) => None,
            (Some(_), None) => return Err(alone("certificate", "key")),
            (None, Some(_)) => return Err(alone("key", "certificate")),
        };
        Ok(Self {
            ca: raw.ca.as_ref().map(at),
            identity,
            token_file: raw.token_file.as_ref().map(at),
        })
    }

    pub(crate) fn credentials(&self) -> Credentials {
        let mut credentials = Credentials::new(NAMES);
        if let Some(ca) = &self.ca {
            credentials.set_ca_file(ca);
        }
        if let Some((certificate, key)) = &self.identity {
            credentials.set_identity_files(certificate, key);
        }
        if let Some(file) = &self.token_file {
            credentials.set_token_file(file);
        }
        credentials
    }

    pub(super) fn check_endpoint(&self, endpoint: &str) -> Result<(), String> {
        let uri: Result<http::Uri, _> = endpoint.parse();
        let allowed = match uri {
            Ok(uri) => self.credentials().allow(&uri),
            Err(_) => Err(CredentialsError::NoUrl),
        };
        allowed.map_err(|error| match error {
            CredentialsError::NoUrl | CredentialsError::OtherScheme { .. } => format!(
                "coordinator.endpoints has {endpoint:?}: write the URL of a coordinator's client address, like \
                 \"http://127.0.0.1:7070\" or \"https://node1.internal:7070\""
            ),
            error => format!("coordinator.endpoints has {endpoint:?}: {error}"),
        })
    }
}

fn alone(there: &str, missing: &str) -> String {
    format!(
        "coordinator.{there} is set and coordinator.{missing} is not: a certificate and its key belong together"
    )
}
