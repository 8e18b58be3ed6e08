//! Failures to set up. What a request is told is a verdict, not an error.

use std::time::Duration;

use leasehold_credentials::CredentialsError;
use leasehold_key::KeyError;
use leasehold_spend::{Code, Verdict};
use thiserror::Error;

/// Why a client could not be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No endpoint was given.
    #[error("endpoint is missing: give at least one, like http://127.0.0.1:7070")]
    NoEndpoint,
    /// An endpoint is not a URL.
    #[error("endpoint {endpoint:?} is not a URL like http://127.0.0.1:7070: {reason}")]
    BadEndpoint {
        /// As given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An endpoint cannot be called with the credentials that there are.
    #[error("endpoint {endpoint:?}: {error}")]
    Credentials {
        /// As given.
        endpoint: String,
        /// Why not.
        #[source]
        error: CredentialsError,
    },
    /// The holder's name is missing or too long.
    #[error("holder has {bytes} bytes: 1 to {max} are allowed")]
    BadHolder {
        /// Its length.
        bytes: usize,
        /// The most.
        max: usize,
    },
    /// A bound is outside of its range.
    #[error("{field} is {value}: {least} to {most} are allowed")]
    OutOfRange {
        /// Which.
        field: &'static str,
        /// As given.
        value: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// No coordinator opened a session in time.
    #[error("no coordinator at {endpoints} opened a session within {waited:?}: {last}")]
    NoSession {
        /// Where it was tried.
        endpoints: String,
        /// For how long.
        waited: Duration,
        /// What went wrong last.
        last: String,
    },
    /// The operating system gave no random bytes.
    #[error("no random bytes for the client's instance: {0}")]
    NoRandomness(String),
}

/// Why there is no handle for a key.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// The text is not a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The client has as many keys as it may.
    #[error("the client has {max} keys already, the most that its builder's keys_max allows")]
    TooManyKeys {
        /// The bound.
        max: u32,
    },
}

/// A reservation or a permit was not admitted, for the verdict's reason. An error
/// in form only, so that `?` works: it is an answer like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not admitted: {}", text_of(.0))]
pub struct NotAdmitted(pub Verdict);

impl NotAdmitted {
    /// When it is worth trying again, if the coordinator said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after()
    }

    /// Why; none: too few units are held here, and an ask is on its way.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.0.code()
    }
}

fn text_of(verdict: &Verdict) -> String {
    match (verdict.code(), verdict.retry_after()) {
        (Some(code), Some(after)) => format!("{code}, try again in {after:?}"),
        (Some(code), None) => code.to_string(),
        (None, _) => "too few units are held here, and more are asked for".to_owned(),
    }
}
