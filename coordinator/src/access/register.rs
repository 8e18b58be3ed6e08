//! The identities file: who may come in, and by what they are known. Knows nothing of
//! requests.
//!
//! ```toml
//! [[identity]]
//! name = "edge-eu"
//! role = "gateway"
//! keys = ["acme/*"]
//! certificate = true
//! [[identity.token]]
//! id = "3f9c0a12b4d7"
//! sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! expires = 2027-01-31T00:00:00Z
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::Range,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use leasehold_calendar::unix_us_of;
use leasehold_key::{Pattern, PatternSegment};
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use super::{
    identity::{Identity, Patterns, Role},
    token::{Token, TokenHash, TokenId, without_tokens},
};

/// The longest name of an identity, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;
/// The longest file: a hundred thousand gateways have room.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Why an identities file was not taken; whoever was known before still is.
#[derive(Debug, Error)]
pub enum RegisterError {
    /// It cannot be read.
    #[error("cannot read the identities file {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Everybody on the machine could make themselves an administrator.
    #[error("the identities file {path} can be written by everybody (mode {mode:04o}): `chmod o-w` it", path = path.display())]
    Writable {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Something in it makes no sense.
    #[error("{path}, line {line}: {what}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where, from 1 on.
        line: usize,
        /// What, and what is allowed.
        what: String,
    },
}

impl RegisterError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "invalid_identities"
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    identity: Vec<RawIdentity>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawIdentity {
    name: Spanned<String>,
    role: Spanned<Role>,
    #[serde(default)]
    keys: Vec<Spanned<String>>,
    #[serde(default)]
    certificate: bool,
    #[serde(default)]
    token: Vec<RawToken>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawToken {
    id: Spanned<String>,
    sha256: Spanned<String>,
    #[serde(default)]
    expires: Option<Spanned<toml::value::Datetime>>,
}

/// What somebody proved who they are by; as long as it stands, so do they.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A token, by its id and hash.
    Token(TokenId, TokenHash),
    /// A client certificate that names them.
    Certificate,
}

/// Why somebody is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// Neither a token nor a certificate.
    Nothing,
    /// What they show has not the form of a token.
    Malformed,
    /// No such token, or not any more.
    Token,
    /// It has expired.
    Expired,
    /// No identity is known by this certificate's name.
    Certificate,
}

impl Unknown {
    /// For metrics and logs; callers are told nothing of it.
    pub(crate) const fn as_word(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Malformed => "malformed",
            Self::Token => "token",
            Self::Expired => "expired",
            Self::Certificate => "certificate",
        }
    }
}

struct Entry {
    identity: Arc<Identity>,
    by_certificate: bool,
}

struct Stored {
    hash: TokenHash,
    expires_unix_us: Option<i64>,
    identity: Arc<Identity>,
}

/// Everybody whom one version of the file names.
pub(crate) struct Identities {
    by_name: BTreeMap<Arc<str>, Entry>,
    tokens: HashMap<TokenId, Stored>,
}

impl Identities {
    /// Reads the file.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn read(path: &Path) -> Result<Self, RegisterError> {
        Self::parse(path, &text_of(path)?)
    }

    /// Reads what a file was found to have, and says what is in force with it.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(super) fn of(path: &Path, bytes: &[u8]) -> Result<Self, String> {
        must_not_be_everybodys(path).map_err(|error| error.to_string())?;
        let text = std::str::from_utf8(bytes).map_err(|_| "is no UTF-8".to_owned())?;
        let identities = Self::parse(path, text).map_err(|error| error.to_string())?;
        // Cut off while it was written, or emptied by mistake.
        if identities.len() == 0 {
            return Err(format!(
                "the identities file {} names nobody, so that nobody could ask anything: `leasehold token create` \
                 adds an identity",
                path.display()
            ));
        }
        for name in identities.unbounded() {
            tracing::warn!(identity = name, "a gateway may use every key");
        }
        Ok(identities)
    }

    /// Reads its text.
    ///
    /// # Errors
    /// Names the line and what is allowed there, never what looks like a token.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, RegisterError> {
        let bad = |span: Range<usize>, what: String| RegisterError::Malformed {
            path: path.to_owned(),
            line: line_of(text, span.start),
            what: without_tokens(&what),
        };
        let file: File = toml::from_str(text)
            .map_err(|error| bad(error.span().unwrap_or_default(), error.message().to_owned()))?;
        let mut identities = Self {
            by_name: BTreeMap::new(),
            tokens: HashMap::new(),
        };
        for raw in file.identity {
            identities
                .add(raw)
                .map_err(|(span, what)| bad(span, what))?;
        }
        Ok(identities)
    }

    fn add(&mut self, raw: RawIdentity) -> Result<(), (Range<usize>, String)> {
        let span = raw.name.span();
        check_name(raw.name.get_ref()).map_err(|what| (span.clone(), what))?;
        let name: Arc<str> = raw.name.into_inner().into();
        if self.by_name.contains_key(&name) {
            return Err((
                span,
                format!("name ({name}) is there already: each is once"),
            ));
        }
        let role_span = raw.role.span();
        let role = raw.role.into_inner();
        let mut keys = Vec::with_capacity(raw.keys.len());
        for text in &raw.keys {
            let pattern = Pattern::parse(text.get_ref())
                .map_err(|error| (text.span(), format!("keys ({}): {error}", text.get_ref())))?;
            keys.push(pattern);
        }
        match (role, keys.is_empty()) {
            (Role::Gateway, true) => {
                let what = "keys: a gateway needs patterns of the keys that it may use; [\"**\"] is every key";
                return Err((role_span, what.to_owned()));
            }
            (Role::Viewer | Role::Operator | Role::Admin, false) => {
                let what = format!("keys: only a gateway has them, and {name} is a {role}");
                return Err((role_span, what));
            }
            _ => {}
        }
        let identity = Arc::new(Identity {
            name: Arc::clone(&name),
            role,
            keys: keys.into_iter().collect::<Patterns>(),
        });
        for token in raw.token {
            self.add_token(&identity, token)?;
        }
        let entry = Entry {
            identity,
            by_certificate: raw.certificate,
        };
        self.by_name.insert(name, entry);
        Ok(())
    }

    fn add_token(
        &mut self,
        identity: &Arc<Identity>,
        raw: RawToken,
    ) -> Result<(), (Range<usize>, String)> {
        let id = TokenId::parse(raw.id.get_ref()).ok_or_else(|| {
            (
                raw.id.span(),
                "id must be the 12 hexadecimal digits after lh_ of a token".to_owned(),
            )
        })?;
        let hash = TokenHash::parse(raw.sha256.get_ref()).ok_or_else(|| {
            (
                raw.sha256.span(),
                "sha256 must be 64 lower-case hexadecimal digits".to_owned(),
            )
        })?;
        let expires_unix_us = raw
            .expires
            .map(|at| {
                unix_us_of(&at.get_ref().to_string()).ok_or_else(|| {
                    (
                        at.span(),
                        "expires must be a moment with an offset, as in 2027-01-31T00:00:00Z"
                            .to_owned(),
                    )
                })
            })
            .transpose()?;
        if self.tokens.contains_key(&id) {
            let what = format!("id ({}) is there already: each is once", id.as_str());
            return Err((raw.id.span(), what));
        }
        let stored = Stored {
            hash,
            expires_unix_us,
            identity: Arc::clone(identity),
        };
        self.tokens.insert(id, stored);
        Ok(())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Names of gateways that may use every key.
    pub(crate) fn unbounded(&self) -> impl Iterator<Item = &str> {
        let identities = self.by_name.values().map(|entry| &entry.identity);
        identities
            .filter(|identity| {
                let mut patterns = identity.keys.iter();
                patterns.any(|pattern| pattern.segments().next() == Some(PatternSegment::Rest))
            })
            .map(|identity| &*identity.name)
    }

    /// Whose token this is. What is unknown takes as long as what is known.
    pub(crate) fn by_token(
        &self,
        token: &Token,
        now_unix_us: i64,
    ) -> Result<(Arc<Identity>, Proof), Unknown> {
        let hash = token.hash();
        let stored = self.tokens.get(token.id());
        let is_known = stored
            .map_or(TokenHash::NOBODYS, |stored| stored.hash)
            .is_same(&hash);
        let stored = stored.filter(|_| is_known).ok_or(Unknown::Token)?;
        if stored.has_expired(now_unix_us) {
            return Err(Unknown::Expired);
        }
        let proof = Proof::Token(token.id().clone(), hash);
        Ok((Arc::clone(&stored.identity), proof))
    }

    /// Who is known by a certificate's name.
    pub(crate) fn by_certificate(&self, name: &str) -> Result<(Arc<Identity>, Proof), Unknown> {
        self.by_name
            .get(name)
            .filter(|entry| entry.by_certificate)
            .map(|entry| (Arc::clone(&entry.identity), Proof::Certificate))
            .ok_or(Unknown::Certificate)
    }

    /// Whoever proved to be `name` before, as they are now; none: what they proved it by
    /// does not stand any more.
    pub(crate) fn confirm(
        &self,
        name: &str,
        proof: &Proof,
        now_unix_us: i64,
    ) -> Option<Arc<Identity>> {
        match proof {
            Proof::Certificate => self.by_certificate(name).ok().map(|(identity, _)| identity),
            Proof::Token(id, hash) => self
                .tokens
                .get(id)
                .filter(|stored| stored.hash.is_same(hash) && &*stored.identity.name == name)
                .filter(|stored| !stored.has_expired(now_unix_us))
                .map(|stored| Arc::clone(&stored.identity)),
        }
    }

    /// When a proof ends by itself.
    pub(crate) fn expires_unix_us(&self, proof: &Proof) -> Option<i64> {
        match proof {
            Proof::Certificate => None,
            Proof::Token(id, _) => self.tokens.get(id)?.expires_unix_us,
        }
    }
}

impl Stored {
    fn has_expired(&self, now_unix_us: i64) -> bool {
        self.expires_unix_us
            .is_some_and(|expires| expires <= now_unix_us)
    }
}

/// What an identity may be called: it is written into the ledger and into headers.
///
/// # Errors
/// Says what is allowed.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:".contains(&byte);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_good) {
        return Ok(());
    }
    Err(format!(
        "name ({}) must have 1 to {NAME_BYTES_MAX} letters, digits or any of . _ - @ :",
        name.escape_debug()
    ))
}

/// The file's text.
///
/// # Errors
/// When it cannot be read, or everybody can write it.
pub(crate) fn text_of(path: &Path) -> Result<String, RegisterError> {
    must_not_be_everybodys(path)?;
    std::fs::read_to_string(path).map_err(|source| RegisterError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

/// Whoever can write the file can make themselves an administrator.
fn must_not_be_everybodys(path: &Path) -> Result<(), RegisterError> {
    let unreadable = |source| RegisterError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if metadata.len() > FILE_BYTES_MAX {
        let what = format!("it has {} bytes: {FILE_BYTES_MAX} at most", metadata.len());
        return Err(unreadable(io::Error::other(what)));
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o002 != 0 {
        return Err(RegisterError::Writable {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    before.filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests;
