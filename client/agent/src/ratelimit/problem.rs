//! What is wrong in a file, where, and what to do. Does not know how files are read.

use std::fmt;

use super::Place;

/// Errors that are shown at once; a file of another kind would have thousands.
const SHOWN_MAX: usize = 50;

/// One thing that is wrong, or worth a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// As it was named.
    pub file: String,
    /// Where in the file.
    pub at: Place,
    /// What is wrong, and what to do.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, at, text } = self;
        write!(f, "{file}:{}:{}: {text}", at.line, at.column)
    }
}

/// Everything that is wrong, in the order of the files; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub(super) Vec<Problem>);

impl Problems {
    /// One by one.
    #[must_use]
    pub fn as_slice(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.0.iter().take(SHOWN_MAX).enumerate() {
            if place > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        match self.0.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for Problems {}
