//! Whom an import trusts and as whom it asks: flags and the environment. The same as the
//! command line of the coordinator has, by the same names.

use std::path::PathBuf;

use leasehold_credentials::Credentials;

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
        let identity = self.cert.as_deref().zip(self.key.as_deref());
        Credentials::of_flags(self.ca.as_deref(), identity, self.token_file.as_deref())
    }
}
