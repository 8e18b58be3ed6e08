//! A user's own gateways, traffic and limits, described in a file.
//!
//! ```
//! use leasehold_sim::scenario::Scenario;
//!
//! let scenario = Scenario::parse(
//!     r#"
//!     gateways = 4
//!     [budgets.orders]
//!     kind = "sliding_window"
//!     limit = 100
//!     window_ms = 60000
//!     "#,
//! )?;
//! assert_eq!(scenario.setup.gateways, 4);
//! # Ok::<(), leasehold_sim::scenario::ScenarioError>(())
//! ```

mod check;
mod design;
mod file;
mod ranges;
mod report;
mod rules;
mod run;

use std::ops::Range;

use thiserror::Error;

pub use design::Design;
pub use report::COORDINATOR_MESSAGES_PER_S;
pub use run::{BudgetFigures, Figures, Results};

use crate::{system::Setup, traffic::Flow};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Gateways, policies, network and faults.
    pub setup: Setup,
    /// Which keys follow which budget.
    pub budgets: Vec<NamedBudget>,
    /// All requests.
    pub flows: Vec<Flow>,
    /// What is compared.
    pub designs: Vec<Design>,
    /// Requests that arrive earlier are not counted.
    pub from_us: u64,
    /// The end.
    pub until_us: u64,
    /// What was assumed or left out, for people.
    pub remarks: Vec<String>,
}

/// Keys with the same policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBudget {
    /// What the file calls it.
    pub name: String,
    /// Its keys' numbers.
    pub keys: Range<usize>,
}

/// Why a text is no scenario.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// It is not TOML, or has a field that there is not.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A value is out of its range, or does not fit to another.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// A value that cannot be: its field, itself, its range.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Scenario {
    /// Reads a TOML text.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let file: file::File = toml::from_str(text)?;
        Ok(check::scenario(&file)?)
    }
}

#[cfg(test)]
mod tests;
