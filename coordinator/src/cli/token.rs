//! `leasehold token`: identities and their tokens in the identities file. Talks to no
//! node: nodes take the file anew by themselves.
//!
//! Whatever else is in the file stays as somebody wrote it, comments included, and what
//! would make no sense to a node is not written.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use leasehold_calendar::{unix_us_of, utc_text};
use serde_json::json;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, value};

use super::{
    Answer, CliError, complain,
    private_file::{cannot_write, folder_of, make_folder, put},
    table,
    text::parse_duration,
};
use crate::{
    access::{
        Role,
        register::{Identities, RegisterError, text_of},
        token::{PREFIX, Token, TokenId},
    },
    clock::wall_unix_us,
};

/// What to do with the file.
#[derive(Debug, clap::Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token for an identity, which is added if it is new; it is printed once
    Create {
        /// Whose it is, for the books and histories: letters, digits and . _ - @ :
        #[arg(long)]
        name: String,
        /// What a new identity may do
        #[arg(long, value_enum)]
        role: Option<Role>,
        /// Patterns of the keys that a new gateway may use, as in 'acme/**'; once for each
        #[arg(long, value_name = "PATTERN")]
        keys: Vec<String>,
        /// When it ends: after a time, as in 90d, or at a moment, as in
        /// 2027-01-31T00:00:00Z [default: never]
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        /// A new file for it (0600), instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        file: FileFlags,
    },
    /// Who is in the file
    List {
        #[command(flatten)]
        file: FileFlags,
    },
    /// Take a token out of the file: nodes turn it away within seconds
    Revoke {
        /// The 12 digits after lh_ of the token, as `list` has them, or all of it
        id: String,
        #[command(flatten)]
        file: FileFlags,
    },
}

/// Which file, and how to print.
#[derive(Debug, clap::Args)]
pub(super) struct FileFlags {
    /// The identities file, as [auth] of the nodes' files names it
    #[arg(long, value_name = "FILE")]
    identities: PathBuf,
    /// Print JSON, for machines
    #[arg(long)]
    json: bool,
}

impl TokenCommand {
    pub(super) fn is_json(&self) -> bool {
        match self {
            Self::Create { file, .. } | Self::List { file } | Self::Revoke { file, .. } => {
                file.json
            }
        }
    }

    pub(super) fn run(&self) -> Result<Answer, CliError> {
        match self {
            Self::Create {
                name,
                role,
                keys,
                expires,
                out,
                file,
            } => {
                let expires = expires.as_deref().map(moment).transpose()?;
                let new = New {
                    name,
                    role: *role,
                    keys,
                    expires: expires.as_deref(),
                };
                new.create(file, out.as_deref())
            }
            Self::List { file } => list(&file.identities),
            Self::Revoke { id, file } => revoke(&file.identities, id),
        }
    }
}

/// A token that is asked for.
struct New<'a> {
    name: &'a str,
    role: Option<Role>,
    keys: &'a [String],
    expires: Option<&'a str>,
}

impl New<'_> {
    fn create(&self, file: &FileFlags, out: Option<&Path>) -> Result<Answer, CliError> {
        let path = &place_of(&file.identities)?;
        let _alone = alone(path)?;
        let mut document = match path.exists() {
            true => parsed(path)?,
            false => DocumentMut::new(),
        };
        let token = Token::create().ok_or_else(|| CliError::Failed {
            code: "internal",
            detail: "the operating system has no randomness".to_owned(),
        })?;
        let identity = self.identity(path, &mut document)?;
        let mut entry = Table::new();
        entry["id"] = value(token.id().as_str());
        entry["sha256"] = value(token.hash().to_hex());
        if let Some(expires) = self.expires {
            let expires: toml_edit::Datetime = expires
                .parse()
                .map_err(|_| CliError::Usage(format!("--expires {expires} is no moment")))?;
            entry["expires"] = value(expires);
        }
        tables(identity, "token")?.push(entry);
        // The token's own file first: a token that nobody has would be in the other for good.
        if let Some(out) = out {
            checked(path, &document)?;
            put(out, &format!("{}\n", token.reveal()), 0o600, false).map_err(
                |error| match error {
                    CliError::Failed {
                        code: code @ "file_exists",
                        ..
                    } => CliError::Failed {
                        code,
                        detail: format!(
                            "{} is there already, and nothing was written: name another file",
                            out.display()
                        ),
                    },
                    error => error,
                },
            )?;
        }
        write(path, &document)?;
        let until = self
            .expires
            .map(|expires| format!(" until {expires}"))
            .unwrap_or_default();
        let wrote = format!(
            "{} may be shown by {}{until}, as {} says from now on",
            token.id().as_str(),
            self.name,
            path.display()
        );
        let mut said =
            json!({ "id": token.id().as_str(), "name": self.name, "expires": self.expires });
        if let Some(out) = out {
            said["file"] = json!(out);
            let text = format!("token {wrote}; it is in {}", out.display());
            return Ok(Answer { text, value: said });
        }
        said["token"] = json!(token.reveal());
        if !file.json {
            complain(&format!("token {wrote}; it is shown this once:"));
        }
        Ok(Answer {
            text: token.reveal().to_owned(),
            value: said,
        })
    }

    /// The identity's table; a new one is made.
    fn identity<'d>(
        &self,
        path: &Path,
        document: &'d mut DocumentMut,
    ) -> Result<&'d mut Table, CliError> {
        let all = tables(document.as_table_mut(), "identity")?;
        let at = all
            .iter()
            .position(|identity| identity.get("name").and_then(Item::as_str) == Some(self.name));
        let at = match at {
            Some(at) => {
                self.must_be_as(path, all.get(at))?;
                at
            }
            None => {
                all.push(self.new_identity()?);
                all.len().saturating_sub(1)
            }
        };
        all.get_mut(at).ok_or_else(not_tables)
    }

    /// What is said of an identity that is there must be so.
    fn must_be_as(&self, path: &Path, identity: Option<&Table>) -> Result<(), CliError> {
        let text = |name| identity.and_then(|identity| identity.get(name)?.as_str());
        let keys: Vec<&str> = identity
            .and_then(|identity| identity.get("keys")?.as_array())
            .map(|keys| keys.iter().filter_map(toml_edit::Value::as_str).collect())
            .unwrap_or_default();
        let is_other_role = self
            .role
            .is_some_and(|role| text("role") != Some(role.as_word()));
        let is_other_keys = !self.keys.is_empty() && keys != *self.keys;
        if is_other_role || is_other_keys {
            return Err(CliError::Usage(format!(
                "{} is in {} already, as {} with the keys {keys:?}: leave out --role and --keys, or change it there",
                self.name,
                path.display(),
                text("role").unwrap_or("nobody in particular"),
            )));
        }
        Ok(())
    }

    fn new_identity(&self) -> Result<Table, CliError> {
        let Some(role) = self.role else {
            return Err(CliError::Usage(format!(
                "--role is needed: {} is not in the file yet",
                self.name
            )));
        };
        if role == Role::Gateway && self.keys.is_empty() {
            return Err(CliError::Usage(
                "--keys is needed: which keys may the gateway use? 'acme/**' is all of acme, '**' is every key"
                    .to_owned(),
            ));
        }
        let mut identity = Table::new();
        identity["name"] = value(self.name);
        identity["role"] = value(role.as_word());
        if !self.keys.is_empty() {
            identity["keys"] = value(self.keys.iter().collect::<toml_edit::Array>());
        }
        Ok(identity)
    }
}

/// The moment that `--expires` means, in the form of RFC 3339.
fn moment(text: &str) -> Result<String, CliError> {
    let now_us = i64::try_from(wall_unix_us()).unwrap_or(i64::MAX);
    let at_us = unix_us_of(text).or_else(|| {
        let ms = i64::try_from(parse_duration(text).ok()?).ok()?;
        now_us.checked_add(ms.checked_mul(1_000)?)
    });
    let wrong = || {
        CliError::Usage(format!(
            "--expires {text} must be a time like 90d, or a moment like 2027-01-31T00:00:00Z"
        ))
    };
    let at_us = at_us.ok_or_else(wrong)?;
    if at_us <= now_us {
        return Err(CliError::Usage(format!("--expires {text} is over")));
    }
    utc_text(at_us).ok_or_else(wrong)
}

fn list(path: &Path) -> Result<Answer, CliError> {
    let document = parsed(path)?;
    let now_us = i64::try_from(wall_unix_us()).unwrap_or(i64::MAX);
    let mut rows = Vec::new();
    let mut listed = Vec::new();
    for identity in entries(document.as_table(), "identity") {
        let text = |name| {
            identity
                .get(name)
                .and_then(Item::as_str)
                .unwrap_or_default()
        };
        let keys = identity.get("keys").and_then(Item::as_array);
        let keys: Vec<&str> = keys
            .map(|keys| keys.iter().filter_map(toml_edit::Value::as_str).collect())
            .unwrap_or_default();
        let is_by_certificate = identity.get("certificate").and_then(Item::as_bool) == Some(true);
        let mut proofs: Vec<(String, String)> = entries(identity, "token")
            .map(|token| {
                let id = token.get("id").and_then(Item::as_str).unwrap_or_default();
                let expires = token.get("expires").and_then(Item::as_datetime);
                let expires = expires.map_or_else(|| "never".to_owned(), ToString::to_string);
                let is_over = unix_us_of(&expires).is_some_and(|at_us| at_us <= now_us);
                let expires = if is_over {
                    format!("{expires} (is over)")
                } else {
                    expires
                };
                (id.to_owned(), expires)
            })
            .collect();
        listed.push(json!({
            "name": text("name"), "role": text("role"), "keys": keys, "certificate": is_by_certificate,
            "tokens": proofs.iter().map(|(id, expires)| json!({ "id": id, "expires": expires })).collect::<Vec<_>>(),
        }));
        if is_by_certificate {
            proofs.push(("its certificate".to_owned(), "-".to_owned()));
        }
        if proofs.is_empty() {
            proofs.push(("nothing".to_owned(), "-".to_owned()));
        }
        for (shown, expires) in proofs {
            rows.push(vec![
                text("name").to_owned(),
                text("role").to_owned(),
                keys.join(" "),
                shown,
                expires,
            ]);
        }
    }
    Ok(Answer {
        text: table::table(&["NAME", "ROLE", "KEYS", "SHOWS", "UNTIL"], &rows),
        value: json!({ "identities": listed }),
    })
}

fn revoke(path: &Path, shown: &str) -> Result<Answer, CliError> {
    // Who has to revoke a token may have all of it before them. It is not said again.
    let id = shown.strip_prefix(PREFIX).unwrap_or(shown);
    let id = id.split_once('_').map_or(id, |(id, _)| id);
    let id = TokenId::parse(id).ok_or_else(|| {
        CliError::Usage(
            "that is no token: name it by the 12 hexadecimal digits after lh_, as `leasehold token list` does"
                .to_owned(),
        )
    })?;
    let id = id.as_str();
    let path = &place_of(path)?;
    let _alone = alone(path)?;
    let mut document = parsed(path)?;
    let mut whose = None;
    for identity in tables(document.as_table_mut(), "identity")?.iter_mut() {
        let Some(tokens) = identity
            .get_mut("token")
            .and_then(Item::as_array_of_tables_mut)
        else {
            continue;
        };
        let before = tokens.len();
        tokens.retain(|token| token.get("id").and_then(Item::as_str) != Some(id));
        if tokens.len() < before {
            let name = identity.get("name").and_then(Item::as_str);
            whose = Some(name.unwrap_or_default().to_owned());
        }
    }
    let Some(name) = whose else {
        return Err(CliError::Usage(format!(
            "no token {id} is in {}: `leasehold token list` has those that are",
            path.display()
        )));
    };
    write(path, &document)?;
    Ok(Answer {
        text: format!("token {id} of {name} is not good any more"),
        value: json!({ "id": id, "name": name }),
    })
}

/// The file, if a node would take it.
fn parsed(path: &Path) -> Result<DocumentMut, CliError> {
    let text = text_of(path)?;
    Identities::parse(path, &text)?;
    text.parse()
        .map_err(|error: toml_edit::TomlError| CliError::Failed {
            code: "invalid_identities",
            detail: format!("{}: {}", path.display(), error.message()),
        })
}

/// The file's text, if a node would take it. What is wrong is what was asked for: the file
/// made sense before.
fn checked(path: &Path, document: &DocumentMut) -> Result<String, CliError> {
    let text = document.to_string();
    match Identities::parse(path, &text) {
        Ok(_) => Ok(text),
        Err(RegisterError::Malformed { what, .. }) => Err(CliError::Usage(what)),
        Err(error) => Err(error.into()),
    }
}

/// The file itself, where a link leads to it.
fn place_of(path: &Path) -> Result<PathBuf, CliError> {
    match fs::symlink_metadata(path) {
        Ok(_) => fs::canonicalize(path).map_err(|error| cannot_write(path, &error)),
        Err(_) => Ok(path.to_owned()),
    }
}

/// Held from reading the file until it is written: who comes meanwhile waits.
fn alone(path: &Path) -> Result<File, CliError> {
    let folder = folder_of(path);
    make_folder(folder)?;
    let failed = |error: io::Error| cannot_write(folder, &error);
    // The folder, not the file, which is replaced.
    let lock = File::open(folder).map_err(failed)?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| failed(error.into()))?;
    Ok(lock)
}

/// Writes the file, if a node would take it, with the permissions that it has.
fn write(path: &Path, document: &DocumentMut) -> Result<(), CliError> {
    let text = checked(path, document)?;
    let mode = fs::metadata(path).map_or(0o600, |found| found.permissions().mode() & 0o777);
    put(path, &text, mode, true)
}

fn tables<'t>(within: &'t mut Table, name: &str) -> Result<&'t mut ArrayOfTables, CliError> {
    within
        .entry(name)
        .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()))
        .as_array_of_tables_mut()
        .ok_or_else(not_tables)
}

fn entries<'t>(within: &'t Table, name: &str) -> impl Iterator<Item = &'t Table> {
    let found = within.get(name).and_then(Item::as_array_of_tables);
    found.into_iter().flatten()
}

/// Inline tables would make no sense to whoever reads the file, and cannot be added to.
fn not_tables() -> CliError {
    CliError::Usage(
        "the identities file must have [[identity]] and [[identity.token]] sections, not inline tables"
            .to_owned(),
    )
}

impl From<RegisterError> for CliError {
    fn from(error: RegisterError) -> Self {
        Self::Failed {
            code: error.code(),
            detail: error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
