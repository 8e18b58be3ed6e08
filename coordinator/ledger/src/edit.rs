//! Edits of rules and settings by operators: what is changed, on which condition, by
//! whom. Does not know how a rule is followed.

use leasehold_key::Pattern;

use crate::{
    entry::{Command, Rule},
    policy::Policy,
    settings::Settings,
};

/// The most changes of one edit.
pub const CHANGES_MAX: usize = 10_000;
/// The longest name of an author.
pub const BY_BYTES_MAX: usize = 128;
/// The most accounts that a budget can be allowed.
pub const ACCOUNTS_MAX: u64 = 10_000_000;
/// How many versions of a policy or of a budget are kept.
pub const VERSIONS_KEPT: usize = 32;

/// Changes that are done in their order, in one entry: all of them or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Up to [`CHANGES_MAX`].
    pub changes: Vec<Guarded>,
    /// Who, as far as is known; up to [`BY_BYTES_MAX`] bytes.
    pub by: String,
    /// What the leader's wall clock says, in microseconds since 1970; for people.
    pub wall_unix_us: i64,
}

impl Edit {
    /// The policies that it puts in force.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        let changes = self.changes.iter();
        changes.filter_map(|guarded| match &guarded.change {
            RuleChange::PutPolicy { policy, .. }
            | RuleChange::PutBudget {
                terms:
                    Terms {
                        rule: Rule::Inline(policy),
                        ..
                    },
                ..
            } => Some(policy),
            _ => None,
        })
    }

    /// The command for nodes that know no edits which does the same, but for the author;
    /// none: they cannot be told.
    #[must_use]
    pub fn plain(&self) -> Option<Command> {
        let [guarded] = self.changes.as_slice() else {
            return None;
        };
        if guarded.expect != Expect::Anything {
            return None;
        }
        Some(match guarded.change.clone() {
            RuleChange::PutPolicy { name, policy } => Command::PutPolicy { name, policy },
            RuleChange::DeletePolicy { name } => Command::DeletePolicy { name },
            RuleChange::PutBudget {
                pattern,
                terms:
                    Terms {
                        rule,
                        accounts_max: None,
                    },
            } => Command::PutBudget { pattern, rule },
            RuleChange::PutBudget { .. } => return None,
            RuleChange::DeleteBudget { pattern } => Command::DeleteBudget { pattern },
            RuleChange::PutSettings(settings) => Command::PutSettings(settings),
        })
    }
}

/// A change and its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// What to do.
    pub change: RuleChange,
    /// On which condition.
    pub expect: Expect,
}

impl From<RuleChange> for Guarded {
    fn from(change: RuleChange) -> Self {
        Self {
            change,
            expect: Expect::Anything,
        }
    }
}

/// What must be in force for a change to be made. It is judged when the change is
/// applied, so that of two operators who saw the same one wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    /// Whatever there is.
    #[default]
    Anything,
    /// Nothing under that name or pattern.
    Absent,
    /// Something.
    Present,
    /// One of these tags: see [`crate::RuleView::tag`].
    OneOf(Vec<u64>),
}

impl Expect {
    /// Whether what is there, by its tag, is what was expected.
    #[must_use]
    pub fn holds(&self, tag: Option<u64>) -> bool {
        match (self, tag) {
            (Self::Anything, _) | (Self::Absent, None) | (Self::Present, Some(_)) => true,
            (Self::OneOf(tags), Some(tag)) => tags.contains(&tag),
            _ => false,
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleChange {
    /// Creates or replaces a policy.
    PutPolicy {
        /// Its name.
        name: String,
        /// The rule.
        policy: Policy,
    },
    /// Deletes a policy that no budget uses.
    DeletePolicy {
        /// Its name.
        name: String,
    },
    /// Binds a pattern.
    PutBudget {
        /// The keys.
        pattern: Pattern,
        /// What they follow.
        terms: Terms,
    },
    /// Unbinds a pattern.
    DeleteBudget {
        /// The keys.
        pattern: Pattern,
    },
    /// Replaces the cluster's settings.
    PutSettings(Settings),
}

/// What a budget says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The rule that its keys follow.
    pub rule: Rule,
    /// Accounts alive at once, up to [`ACCOUNTS_MAX`]; none: what the settings say.
    pub accounts_max: Option<u64>,
}

impl From<Rule> for Terms {
    fn from(rule: Rule) -> Self {
        Self {
            rule,
            accounts_max: None,
        }
    }
}
