//! Why a coordinator cannot be called with the credentials that there are.

use std::path::PathBuf;

use thiserror::Error;

use crate::file::FileError;

/// Why a coordinator cannot be called with the credentials that there are. Says which
/// file, what is wrong with it and what to do; never what a secret is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The text is no URL that could be called.
    #[error("scheme or host is missing")]
    NoUrl,
    /// Neither `http` nor `https`.
    #[error("scheme {scheme:?} is not supported, use http or https")]
    OtherScheme {
        /// As given.
        scheme: String,
    },
    /// Built without TLS.
    #[error("this program was built without TLS (feature `tls` of leasehold-client)")]
    NoTls,
    /// Nothing says whom to trust.
    #[error(
        "nothing says by which authority to know an https address: name the CA that signs the coordinators' \
         certificates with {name}"
    )]
    NoAuthority {
        /// How the setting is called.
        name: &'static str,
    },
    /// A token would be seen by whoever is on the way.
    #[error(
        "a token goes to another machine over TLS only, for whoever sees it has it: use https://{host}, or no token"
    )]
    TokenInTheClear {
        /// Whom it would have been sent to.
        host: String,
    },
    /// A file cannot be read, or must not be.
    #[error("{name} {path} {what}")]
    File {
        /// How the setting is called.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: FileError,
    },
    /// A file that holds something else.
    #[error("{name} {path} {what}")]
    Unusable {
        /// How the setting is called.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A token that is none.
    #[error(
        "{name} is no token: one line of visible characters, as `leasehold token create` prints it"
    )]
    NoToken {
        /// How the setting is called.
        name: &'static str,
    },
}
