//! Whom the command line trusts and as whom it asks: flags, the environment, and what is
//! said when they will not do. Knows neither requests nor what they change.

use std::path::PathBuf;

use leasehold_credentials::{Credentials, CredentialsError};

use super::CliError;

/// Whom to trust, and as whom to ask.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct CredentialFlags {
    /// The authority that vouches for the nodes, for https: PEM
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_CA")]
    ca: Option<PathBuf>,
    /// A file with your token, yours alone (0600); or LEASEHOLD_TOKEN is the token itself
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Your certificate, for https: PEM
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_CERT")]
    cert: Option<PathBuf>,
    /// Its key, yours alone (0600)
    // Commands call an argument of theirs `key`, too.
    #[arg(
        id = "certificate_key",
        long = "key",
        global = true,
        value_name = "FILE",
        env = "LEASEHOLD_KEY"
    )]
    key: Option<PathBuf>,
}

impl CredentialFlags {
    /// What they name, and the token of the environment if no file is named.
    pub(super) fn credentials(&self) -> Result<Credentials, CliError> {
        let identity = self.cert.as_deref().zip(self.key.as_deref());
        if identity.is_none() && (self.cert.is_some() || self.key.is_some()) {
            return Err(CliError::Usage(
                "--cert and --key belong together: name both or neither (also by LEASEHOLD_CERT and LEASEHOLD_KEY)"
                    .to_owned(),
            ));
        }
        let (ca, token_file) = (self.ca.as_deref(), self.token_file.as_deref());
        Ok(Credentials::of_flags(ca, identity, token_file))
    }
}

/// Why a node cannot be asked with what there is.
pub(super) fn refused(endpoint: &str, error: &CredentialsError) -> CliError {
    match error {
        CredentialsError::NoUrl | CredentialsError::OtherScheme { .. } => CliError::Usage(format!(
            "--endpoint {endpoint} must be a URL like http://127.0.0.1:7070 or https://node1.internal:7070"
        )),
        CredentialsError::NoAuthority { .. } | CredentialsError::TokenInTheClear { .. } => {
            CliError::Usage(format!("--endpoint {endpoint}: {error}"))
        }
        error => CliError::Failed {
            code: "unusable_credentials",
            detail: error.to_string(),
        },
    }
}
