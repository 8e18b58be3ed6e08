//! Policies, budgets and settings as operators see them: with version, author and tag.
//! Does not know accounts.

use std::sync::Arc;

use leasehold_key::Pattern;

use crate::{
    apply::settings_tag,
    edit::{RuleChange, Terms},
    history::{History, Version},
    ledger::Ledger,
    policy::Policy,
    rules::{Budget, NamedPolicy},
};

/// What is in force under a name or a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleView<'a, T> {
    /// What it says.
    pub value: &'a T,
    /// Counted from 1.
    pub version: u64,
    /// Changes whenever anything does that is said here: for [`crate::edit::Expect`].
    pub tag: u64,
}

impl Ledger {
    /// All policies, by name, with versions and tags.
    pub fn policy_views(&self) -> impl Iterator<Item = (&str, RuleView<'_, Policy>)> {
        let policies = self.rules.policies().iter();
        policies.map(|(name, named)| (name.as_str(), policy_view(named)))
    }

    /// One policy, with its version and tag.
    #[must_use]
    pub fn policy_view(&self, name: &str) -> Option<RuleView<'_, Policy>> {
        self.rules.policies().get(name).map(policy_view)
    }

    /// The last versions of a policy, the oldest first; the last one is in force.
    #[must_use]
    pub fn policy_versions(&self, name: &str) -> Option<Vec<Version<Arc<Policy>>>> {
        let named = self.rules.policies().get(name)?;
        Some(versions(&named.history, &named.policy))
    }

    /// All budgets, by pattern, with versions and tags.
    pub fn budget_views(&self) -> impl Iterator<Item = (&Pattern, RuleView<'_, Terms>)> {
        let budgets = self.rules.budgets().iter();
        budgets.map(|(pattern, budget)| (pattern, budget_view(budget)))
    }

    /// One budget, with its version and tag.
    #[must_use]
    pub fn budget_view(&self, pattern: &Pattern) -> Option<RuleView<'_, Terms>> {
        self.rules.budgets().get(pattern).map(budget_view)
    }

    /// The last versions of a budget, the oldest first; the last one is in force.
    #[must_use]
    pub fn budget_versions(&self, pattern: &Pattern) -> Option<Vec<Version<Terms>>> {
        let budget = self.rules.budgets().get(pattern)?;
        Some(versions(&budget.history, &budget.terms))
    }

    /// The version and the tag of what is in force under the name or pattern that a
    /// change is about.
    #[must_use]
    pub fn present(&self, change: &RuleChange) -> Option<(u64, u64)> {
        match change {
            RuleChange::PutPolicy { name, .. } | RuleChange::DeletePolicy { name } => {
                self.policy_view(name).map(|view| (view.version, view.tag))
            }
            RuleChange::PutBudget { pattern, .. } | RuleChange::DeleteBudget { pattern } => self
                .budget_view(pattern)
                .map(|view| (view.version, view.tag)),
            RuleChange::PutSettings(_) => Some((0, self.settings_tag())),
        }
    }

    /// Changes with the settings: for [`crate::edit::Expect`].
    #[must_use]
    pub fn settings_tag(&self) -> u64 {
        settings_tag(&self.settings)
    }
}

fn policy_view(named: &NamedPolicy) -> RuleView<'_, Policy> {
    RuleView {
        value: &named.policy,
        version: named.history.number(),
        tag: named.tag(),
    }
}

fn budget_view(budget: &Budget) -> RuleView<'_, Terms> {
    RuleView {
        value: &budget.terms,
        version: budget.history.number(),
        tag: budget.tag(),
    }
}

/// What was never edited since there are versions has one, of nobody.
fn versions<T: Clone>(history: &History<T>, present: &T) -> Vec<Version<T>> {
    if history.is_empty() {
        return vec![Version {
            number: 1,
            by: String::new(),
            wall_unix_us: 0,
            value: present.clone(),
        }];
    }
    history.versions().cloned().collect()
}
