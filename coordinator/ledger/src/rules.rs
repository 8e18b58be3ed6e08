//! Policies, budgets and the default: which rule a key follows. Does not know
//! accounts.

use std::{collections::BTreeMap, sync::Arc};

use leasehold_key::{Key, Pattern, PatternMap};

use crate::{digest, entry::Rule, kind, policy::Policy, wire};

/// A policy under its name.
#[derive(Clone, Debug)]
pub(crate) struct NamedPolicy {
    pub(crate) policy: Arc<Policy>,
    /// The latest edit after which keys without an account start exhausted.
    pub(crate) strict_from_us: Option<u64>,
}

/// A pattern's rule.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) rule: Rule,
    /// The latest edit after which keys without an account start exhausted.
    pub(crate) strict_from_us: Option<u64>,
    /// What accounts share that follow it.
    pub(crate) binding: Arc<Binding>,
}

/// The rule that accounts follow, shared by all that do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) source: Source,
    /// The budget's pattern.
    pub(crate) pattern: Option<Pattern>,
    /// The policy's name; none for an inline one.
    pub(crate) policy_name: Option<String>,
    pub(crate) policy: Arc<Policy>,
    /// Keys without an account start with nothing free at this time.
    pub(crate) strict_from_us: Option<u64>,
    /// The part of the binding in the account's hash.
    pub(crate) hash: u64,
}

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A budget.
    Budget,
    /// The default policy.
    Default,
    /// The budget is gone; the account keeps its last rule.
    Gone,
}

impl Binding {
    /// The rule of an account whose budget is gone.
    pub(crate) fn gone(policy: Arc<Policy>, policy_name: Option<String>) -> Self {
        let hash = digest::words([
            3,
            digest::bytes(policy_name.as_deref().unwrap_or("").as_bytes()),
            digest::bytes(&wire::policy_bytes(&policy)),
        ]);
        Self {
            source: Source::Gone,
            pattern: None,
            policy_name,
            policy,
            strict_from_us: None,
            hash,
        }
    }

    fn of_default(name: &str, policy: &NamedPolicy, strict_from_us: Option<u64>) -> Self {
        Self {
            source: Source::Default,
            pattern: None,
            policy_name: Some(name.to_owned()),
            policy: Arc::clone(&policy.policy),
            strict_from_us: strict_from_us.max(policy.strict_from_us),
            hash: 2,
        }
    }

    fn of_budget(
        pattern: Pattern,
        policy: Arc<Policy>,
        policy_name: Option<String>,
        strict_from_us: Option<u64>,
    ) -> Self {
        let hash = digest::words([1, digest::bytes(pattern.as_str().as_bytes())]);
        Self {
            source: Source::Budget,
            pattern: Some(pattern),
            policy_name,
            policy,
            strict_from_us,
            hash,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    policies: Arc<BTreeMap<String, NamedPolicy>>,
    budgets: Arc<PatternMap<Budget>>,
    default: Option<Arc<Binding>>,
    /// The latest change of the default after which its keys start exhausted.
    default_strict_from_us: Option<u64>,
    pub(crate) hashes: digest::Sum,
}

impl Rules {
    pub(crate) fn new() -> Self {
        let mut rules = Self {
            policies: Arc::default(),
            budgets: Arc::default(),
            default: None,
            default_strict_from_us: None,
            hashes: digest::Sum::default(),
        };
        rules.hashes.add(rules.default_hash());
        rules
    }

    fn default_hash(&self) -> u64 {
        digest::words([self
            .default_strict_from_us
            .map_or(0, |at_us| at_us.saturating_add(1))])
    }

    pub(crate) fn policies(&self) -> &BTreeMap<String, NamedPolicy> {
        &self.policies
    }

    pub(crate) fn budgets(&self) -> &PatternMap<Budget> {
        &self.budgets
    }

    pub(crate) const fn default_strict_from_us(&self) -> Option<u64> {
        self.default_strict_from_us
    }

    /// The rule that a key follows.
    pub(crate) fn resolve(&self, key: &Key) -> Option<&Arc<Binding>> {
        self.budgets
            .resolve(key)
            .map(|(_, budget)| &budget.binding)
            .or(self.default.as_ref())
    }

    /// A budget that follows a named policy.
    pub(crate) fn user_of(&self, policy: &str) -> Option<&Pattern> {
        self.budgets
            .iter()
            .find(|(_, budget)| matches!(&budget.rule, Rule::Named(name) if name == policy))
            .map(|(pattern, _)| pattern)
    }

    /// Sets a policy, and the bindings of the budgets that follow it.
    pub(crate) fn put_policy(&mut self, name: &str, policy: Policy, now_us: u64) {
        let old = self.policies.get(name);
        let strict = old
            .is_some_and(|old| kind::forgets_too_early(&old.policy.kind, &policy.kind))
            .then_some(now_us);
        let strict_from_us = strict.max(old.and_then(|old| old.strict_from_us));
        self.restore_policy(
            name,
            NamedPolicy {
                policy: Arc::new(policy),
                strict_from_us,
            },
        );
        let users: Vec<Pattern> = self
            .budgets
            .iter()
            .filter(|(_, budget)| matches!(&budget.rule, Rule::Named(user) if user == name))
            .map(|(pattern, _)| pattern.clone())
            .collect();
        for pattern in users {
            if let Some(budget) = self.budgets.get(&pattern) {
                let (rule, strict_from_us) = (budget.rule.clone(), budget.strict_from_us);
                self.restore_budget(pattern, rule, strict_from_us);
            }
        }
        if self
            .default
            .as_ref()
            .and_then(|default| default.policy_name.as_deref())
            == Some(name)
        {
            self.restore_default(Some(name), self.default_strict_from_us);
        }
    }

    /// Takes out a policy that nothing follows.
    pub(crate) fn delete_policy(&mut self, name: &str) {
        if let Some(old) = Arc::make_mut(&mut self.policies).remove(name) {
            self.hashes.remove(policy_hash(name, &old));
        }
    }

    /// Sets a pattern's rule. Its policy exists.
    pub(crate) fn put_budget(&mut self, pattern: Pattern, rule: Rule, now_us: u64) {
        let new = self.policy_of(&rule).map(|(policy, _)| policy.kind.clone());
        let old = self.budgets.get(&pattern);
        let strict = match (old, &new) {
            (Some(old), Some(new)) => {
                kind::forgets_too_early(&old.binding.policy.kind, new).then_some(now_us)
            }
            _ => None,
        };
        // Of the budget as it was, what a named policy's edits made strict too.
        let strict_from_us = strict.max(old.and_then(|old| old.binding.strict_from_us));
        self.restore_budget(pattern, rule, strict_from_us);
    }

    /// Takes out a pattern's rule.
    pub(crate) fn delete_budget(&mut self, pattern: &Pattern) {
        if let Some(old) = Arc::make_mut(&mut self.budgets).remove(pattern) {
            self.hashes.remove(budget_hash(pattern, &old));
        }
    }

    /// Sets the default policy, which exists.
    pub(crate) fn put_default(&mut self, name: Option<&str>, now_us: u64) {
        let new = name
            .and_then(|name| self.policies.get(name))
            .map(|new| &new.policy.kind);
        let strict = match (&self.default, new) {
            (Some(old), Some(new)) => kind::forgets_too_early(&old.policy.kind, new),
            _ => false,
        };
        let strict_from_us = strict
            .then_some(now_us)
            .max(
                self.default
                    .as_ref()
                    .and_then(|default| default.strict_from_us),
            )
            .max(self.default_strict_from_us);
        self.restore_default(name, strict_from_us);
    }

    /// Every policy, those of budgets with one of their own included.
    pub(crate) fn policies_in_force(&self) -> impl Iterator<Item = &Policy> {
        let inline = self
            .budgets
            .iter()
            .filter_map(|(_, budget)| match &budget.rule {
                Rule::Inline(policy) => Some(policy),
                Rule::Named(_) => None,
            });
        let named = self.policies.values().map(|named| named.policy.as_ref());
        named.chain(inline)
    }

    /// The policy that a rule names or is.
    pub(crate) fn policy_of(&self, rule: &Rule) -> Option<(Arc<Policy>, Option<u64>)> {
        match rule {
            Rule::Inline(policy) => Some((Arc::new(policy.clone()), None)),
            Rule::Named(name) => self
                .policies
                .get(name)
                .map(|named| (Arc::clone(&named.policy), named.strict_from_us)),
        }
    }

    /// Puts in a policy as it is.
    pub(crate) fn restore_policy(&mut self, name: &str, policy: NamedPolicy) {
        self.hashes.add(policy_hash(name, &policy));
        if let Some(old) = Arc::make_mut(&mut self.policies).insert(name.to_owned(), policy) {
            self.hashes.remove(policy_hash(name, &old));
        }
    }

    /// Puts in a budget as it is; false when its policy is missing.
    pub(crate) fn restore_budget(
        &mut self,
        pattern: Pattern,
        rule: Rule,
        strict_from_us: Option<u64>,
    ) -> bool {
        let Some((policy, policy_strict_from_us)) = self.policy_of(&rule) else {
            return false;
        };
        let name = match &rule {
            Rule::Named(name) => Some(name.clone()),
            Rule::Inline(_) => None,
        };
        let binding = Arc::new(Binding::of_budget(
            pattern.clone(),
            policy,
            name,
            strict_from_us.max(policy_strict_from_us),
        ));
        let budget = Budget {
            rule,
            strict_from_us,
            binding,
        };
        self.hashes.add(budget_hash(&pattern, &budget));
        if let Some(old) = Arc::make_mut(&mut self.budgets).insert(pattern.clone(), budget) {
            self.hashes.remove(budget_hash(&pattern, &old));
        }
        true
    }

    /// Puts in the default as it is; false when its policy is missing.
    pub(crate) fn restore_default(
        &mut self,
        name: Option<&str>,
        strict_from_us: Option<u64>,
    ) -> bool {
        let default = match name {
            None => None,
            Some(name) => {
                let Some(policy) = self.policies.get(name) else {
                    return false;
                };
                Some(Arc::new(Binding::of_default(name, policy, strict_from_us)))
            }
        };
        self.hashes.remove(self.default_hash());
        self.default = default;
        self.default_strict_from_us = strict_from_us;
        self.hashes.add(self.default_hash());
        true
    }

    /// The hashes added up anew.
    pub(crate) fn computed_hashes(&self) -> digest::Sum {
        let mut sum = digest::Sum::default();
        sum.add(self.default_hash());
        for (name, policy) in self.policies.iter() {
            sum.add(policy_hash(name, policy));
        }
        for (pattern, budget) in self.budgets.iter() {
            sum.add(budget_hash(pattern, budget));
        }
        sum
    }
}

fn policy_hash(name: &str, policy: &NamedPolicy) -> u64 {
    digest::bytes(&wire::named_policy_bytes(name, policy))
}

fn budget_hash(pattern: &Pattern, budget: &Budget) -> u64 {
    digest::bytes(&wire::budget_bytes(pattern, budget))
}
