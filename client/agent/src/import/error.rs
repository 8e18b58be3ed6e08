//! Why an import did not do what it was asked, and what it had done by then.

use std::path::PathBuf;

use leasehold_credentials::{Credentials, CredentialsError};
use serde_json::Value;
use thiserror::Error;

use super::{changes::Change, many};
use crate::ratelimit::Problems;

/// Why an import did not do what it was asked.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The files are not understood; nobody was asked anything.
    #[error("nothing was imported:\n{0}")]
    Files(#[from] Problems),
    /// The arguments make no sense.
    #[error("{0}")]
    Usage(String),
    /// The plan could not be written; nobody was asked anything.
    #[error("cannot write {}: {why}", path.display())]
    CannotWrite {
        /// Where it was to be written.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// No coordinator answered.
    #[error("{0}")]
    Unreachable(String),
    /// A file with a certificate, a key or a token cannot be used; nobody was asked anything.
    #[error(transparent)]
    Credentials(CredentialsError),
    /// A coordinator was reached, and TLS with it failed.
    #[error("{0}")]
    Tls(String),
    /// A coordinator has what this version does not understand.
    #[error("the coordinator answered what this version does not understand: {0}")]
    Unintelligible(String),
    /// The coordinator said no.
    #[error("{text}")]
    Refused {
        /// Its stable code.
        code: String,
        /// The field of the request that it is about.
        field: Option<String>,
        /// What it said.
        text: String,
    },
}

impl ImportError {
    /// Of a problem that the coordinator answered.
    pub(super) fn of_problem(
        problem: &Value,
        retry_after_s: Option<u64>,
        credentials: &Credentials,
    ) -> Self {
        let text = |name: &str| problem.get(name).and_then(Value::as_str);
        let retry = retry_after_s.map(|s| format!("; try again in {s} s"));
        let advice = match text("code") {
            Some("unauthenticated") => format!("; {}", credentials.unknown_caller()),
            Some("forbidden") => format!("; {}", credentials.forbidden_caller()),
            _ => String::new(),
        };
        Self::Refused {
            code: text("code").unwrap_or("unknown").to_owned(),
            field: text("field").map(str::to_owned),
            text: format!(
                "{}: {}{}{advice}",
                text("title").unwrap_or_default(),
                text("detail").unwrap_or_default(),
                retry.unwrap_or_default()
            ),
        }
    }

    /// What was to be changed, and what was changed before.
    pub(super) fn about(self, what: &str, made: usize) -> Self {
        match self {
            Self::Refused { code, field, text } => {
                let at = field.as_ref().map(|field| format!(", {field}"));
                let next = if code == "precondition_failed" {
                    "somebody changed it meanwhile: import again"
                } else {
                    "import again when it is right"
                };
                let before = many(made);
                let at = at.unwrap_or_default();
                Self::Refused {
                    text: format!("{what}{at}: {text}; {before} changed before, {next}"),
                    code,
                    field,
                }
            }
            other => other,
        }
    }

    /// The same of many budgets that are changed at once: the field says which.
    pub(super) fn about_one_of(self, changes: &[&Change], made: usize) -> Self {
        let Self::Refused { code, field, text } = self else {
            return self;
        };
        let place = field.as_deref().and_then(|field| {
            let (number, rest) = field.strip_prefix("budgets[")?.split_once(']')?;
            Some((number.parse::<usize>().ok()?, rest.trim_start_matches('.')))
        });
        let one = place.and_then(|(number, rest)| Some((changes.get(number)?, rest)));
        let (what, field) = match one {
            Some((change, rest)) => (
                change.title(),
                Some(rest.to_owned()).filter(|rest| !rest.is_empty()),
            ),
            None => ("the budgets".to_owned(), field),
        };
        Self::Refused { code, field, text }.about(&what, made)
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Files(_) => "invalid_ratelimit",
            Self::Usage(_) => "wrong_usage",
            Self::CannotWrite { .. } => "cannot_write",
            Self::Unreachable(_) => "unreachable",
            Self::Credentials(_) => "unusable_credentials",
            Self::Tls(_) => "tls_failed",
            Self::Unintelligible(_) => "unintelligible",
            Self::Refused { code, .. } => code,
        }
    }

    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused { .. } | Self::CannotWrite { .. } | Self::Unintelligible(_) => 1,
            Self::Files(_) | Self::Usage(_) | Self::Credentials(_) => 2,
            Self::Unreachable(_) | Self::Tls(_) => 3,
        }
    }
}
