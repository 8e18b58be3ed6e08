//! Why a file cannot be taken. Knows no field.

use std::path::PathBuf;

use thiserror::Error;

/// Why a configuration was refused; nothing was started or changed.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {reason}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A name or a type is wrong.
    #[error("{path}: {reason}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where, and what is expected.
        reason: String,
    },
    /// A value is outside its range, or two values contradict each other.
    #[error("{path}: {reason}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The field, its value, what is allowed, and what to do.
        reason: String,
    },
}

impl ConfigError {
    /// The stable code.
    #[must_use]
    pub(crate) const fn code(&self) -> &'static str {
        "invalid_config"
    }
}
