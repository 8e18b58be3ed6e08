//! Whom an import trusts and as whom it asks: flags and the environment. The same as the
//! command line of the coordinator has, by the same names.

use std::path::PathBuf;

use leasehold_credentials::{Credentials, Names};

const NAMES: Names = Names {
    ca: "--ca",
    certificate: "--cert",
    key: "--key",
    token: "LEASEHOLD_TOKEN",
    token_file: "--token-file",
};

/// Whom to trust, and as whom to ask.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct CredentialFlags {
    /// The authority that vouches for the coordinators, for https: PEM
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CA")]
    ca: Option<PathBuf>,
    /// A file with your token, yours alone (0600); or LEASEHOLD_TOKEN is the token itself
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Your certificate, for https: PEM
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CERT", requires = "key")]
    cert: Option<PathBuf>,
    /// Its key, yours alone (0600)
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_KEY", requires = "cert")]
    key: Option<PathBuf>,
}

impl CredentialFlags {
    /// What they name, and the token of the environment if no file is named.
    pub(super) fn credentials(&self) -> Credentials {
        let mut credentials = Credentials::new(NAMES);
        if let Some(ca) = &self.ca {
            credentials.set_ca_file(ca);
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            credentials.set_identity_files(certificate, key);
        }
        let token = std::env::var("LEASEHOLD_TOKEN").ok();
        match (&self.token_file, token.filter(|token| !token.is_empty())) {
            (Some(file), _) => credentials.set_token_file(file),
            (None, Some(token)) => credentials.set_token(token),
            (None, None) => {}
        }
        credentials
    }
}
