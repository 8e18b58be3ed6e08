//! What a caller shows to a coordinator, and by what it knows one. Knows neither
//! connections nor what is asked over them.
//!
//! [`Credentials`] name files, and [`Credentials::for_url`] reads them: whoever calls it
//! before each connection follows a rotation without being told. A token goes to nobody
//! but over TLS, or to this machine itself.

#[cfg(feature = "http")]
mod connect;
mod error;
mod file;
mod place;
#[cfg(feature = "tls")]
mod tls;
mod token;

use std::path::{Path, PathBuf};

use http::{HeaderValue, Uri};

pub use error::CredentialsError;
pub use file::{FileError, read_private, read_public};
pub use place::is_this_machine;

use token::Token;

/// How whoever set the credentials calls them, for what errors say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The file of the authority, like `--ca`.
    pub ca: &'static str,
    /// The file of the caller's certificate.
    pub certificate: &'static str,
    /// The file of its key.
    pub key: &'static str,
    /// A token itself.
    pub token: &'static str,
    /// A token's file.
    pub token_file: &'static str,
}

impl Names {
    /// Of the flags that every command has that calls a coordinator.
    const OF_FLAGS: Self = Self {
        ca: "--ca",
        certificate: "--cert",
        key: "--key",
        token: TOKEN_VARIABLE,
        token_file: "--token-file",
    };
}

/// The environment's, for commands: a token itself.
const TOKEN_VARIABLE: &str = "LEASEHOLD_TOKEN";

/// Whom to trust, and as whom to call. Empty to begin with: then no `https` URL can be
/// called, and nothing is shown.
#[derive(Clone, Debug)]
pub struct Credentials {
    names: Names,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    token: Option<Token>,
}

/// What one connection needs, as the files said when they were read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ready {
    /// The value of `authorization`, marked as sensitive.
    pub authorization: Option<HeaderValue>,
    /// How to speak TLS; none for an `http` URL. Without ALPN, which is the caller's.
    #[cfg(feature = "tls")]
    pub tls: Option<rustls::ClientConfig>,
}

impl Credentials {
    /// None yet.
    #[must_use]
    pub fn new(names: Names) -> Self {
        Self {
            names,
            ca: None,
            identity: None,
            token: None,
        }
    }

    /// What a command's flags name: the authority, a certificate with its key, the file of
    /// a token. Without such a file, the token of the environment's `LEASEHOLD_TOKEN`.
    #[must_use]
    pub fn of_flags(
        ca: Option<&Path>,
        identity: Option<(&Path, &Path)>,
        token_file: Option<&Path>,
    ) -> Self {
        let mut credentials = Self::new(Names::OF_FLAGS);
        if let Some(ca) = ca {
            credentials.set_ca_file(ca);
        }
        if let Some((certificate, key)) = identity {
            credentials.set_identity_files(certificate, key);
        }
        let token = std::env::var(TOKEN_VARIABLE).ok();
        match (token_file, token.filter(|token| !token.is_empty())) {
            (Some(file), _) => credentials.set_token_file(file),
            (None, Some(token)) => credentials.set_token(token),
            (None, None) => {}
        }
        credentials
    }

    /// The authority that signs the coordinators' certificates: PEM, one or several.
    pub fn set_ca_file(&mut self, path: impl Into<PathBuf>) {
        self.ca = Some(path.into());
    }

    /// A certificate of the caller's own, with its chain, and its key: PEM.
    pub fn set_identity_files(&mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) {
        self.identity = Some((certificate.into(), key.into()));
    }

    /// A file whose one line is a token. Instead of any token that was set before.
    pub fn set_token_file(&mut self, path: impl Into<PathBuf>) {
        self.token = Some(Token::in_file(path.into()));
    }

    /// A token itself. Instead of any that was set before.
    pub fn set_token(&mut self, text: impl Into<String>) {
        self.token = Some(Token::of(text.into()));
    }

    /// Whether a certificate is shown where one is asked for.
    #[must_use]
    pub fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// Whether a token is shown.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether a URL can be called with these at all, as far as that can be said without
    /// a look into a file.
    ///
    /// # Errors
    /// It is no URL of `http` or `https`; no authority is named that could vouch for it;
    /// a token would travel in the clear.
    pub fn allow(&self, url: &Uri) -> Result<(), CredentialsError> {
        let (Some(scheme), Some(host)) = (url.scheme_str(), url.host()) else {
            return Err(CredentialsError::NoUrl);
        };
        match scheme {
            "https" if cfg!(not(feature = "tls")) => Err(CredentialsError::NoTls),
            "https" if self.ca.is_none() => Err(CredentialsError::NoAuthority {
                name: self.names.ca,
            }),
            "https" => Ok(()),
            "http" if self.token.is_some() && !is_this_machine(host) => {
                Err(CredentialsError::TokenInTheClear {
                    host: host.to_owned(),
                })
            }
            "http" => Ok(()),
            other => Err(CredentialsError::OtherScheme {
                scheme: other.to_owned(),
            }),
        }
    }

    /// Reads what a connection to a URL needs. Blocks on the disk.
    ///
    /// # Errors
    /// As [`allow`](Self::allow), or a file cannot be read, holds something else, or can
    /// be read by others though it is a secret.
    pub fn for_url(&self, url: &Uri) -> Result<Ready, CredentialsError> {
        self.allow(url)?;
        let authorization = self.token.as_ref().map(|token| token.header(&self.names));
        Ok(Ready {
            authorization: authorization.transpose()?,
            #[cfg(feature = "tls")]
            tls: match url.scheme_str() {
                Some("https") => Some(self.tls()?),
                _ => None,
            },
        })
    }

    /// Reads every file that is named, whatever it is for. Blocks on the disk.
    ///
    /// # Errors
    /// As [`for_url`](Self::for_url).
    pub fn check(&self) -> Result<(), CredentialsError> {
        if let Some(token) = &self.token {
            token.header(&self.names)?;
        }
        #[cfg(feature = "tls")]
        if self.ca.is_some() || self.identity.is_some() {
            self.tls()?;
        }
        Ok(())
    }

    /// What to do when a coordinator does not know who calls.
    #[must_use]
    pub fn unknown_caller(&self) -> String {
        let Names {
            certificate,
            token_file,
            ..
        } = self.names;
        match (&self.token, &self.identity) {
            (Some(token), _) => format!(
                "the coordinator does not know the token{}, or it has expired; `leasehold token create` makes a \
                 new one",
                token.whence(&self.names)
            ),
            (None, Some((path, _))) => format!(
                "no identity of the coordinator's has the certificate {}: its identities file must have an entry of \
                 the certificate's name with `certificate = true`",
                path.display()
            ),
            (None, None) => format!(
                "the coordinator wants to know who calls: name a token with {token_file}, or a certificate with \
                 {certificate}"
            ),
        }
    }

    /// What to do when a coordinator knows who calls, and does not allow it.
    #[must_use]
    pub fn forbidden_caller(&self) -> String {
        "the coordinator knows who calls, and its identities file does not allow this: the role must be another"
            .to_owned()
    }
}
