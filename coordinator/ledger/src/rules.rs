//! Policies, budgets and the default: which rule a key follows. Does not know
//! accounts.

use std::{collections::BTreeMap, sync::Arc};

use leasehold_key::{Key, Pattern, PatternMap};

use crate::{
    digest,
    edit::Terms,
    entry::Rule,
    history::{Author, History},
    kind,
    policy::Policy,
    wire,
};

/// A policy under its name.
#[derive(Clone, Debug)]
pub(crate) struct NamedPolicy {
    pub(crate) policy: Arc<Policy>,
    /// The latest edit after which keys without an account start exhausted.
    pub(crate) strict_from_us: Option<u64>,
    pub(crate) history: History<Arc<Policy>>,
}

impl NamedPolicy {
    /// Changes with everything that is shown of it.
    pub(crate) fn tag(&self) -> u64 {
        let hash = digest::bytes(&wire::policy_bytes(&self.policy));
        digest::words([10, hash, self.history.number()])
    }
}

/// A pattern's rule.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) terms: Terms,
    /// The latest edit after which keys without an account start exhausted.
    pub(crate) strict_from_us: Option<u64>,
    pub(crate) history: History<Terms>,
    /// What accounts share that follow it.
    pub(crate) binding: Arc<Binding>,
}

impl Budget {
    /// Changes with everything that is shown of it.
    pub(crate) fn tag(&self) -> u64 {
        digest::words([11, wire::terms_hash(&self.terms), self.history.number()])
    }
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
    /// Accounts that may follow it at once; none: what the settings say.
    pub(crate) accounts_max: Option<u64>,
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
            accounts_max: None,
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
            accounts_max: None,
            hash: 2,
        }
    }

    fn of_budget(
        pattern: Pattern,
        policy: Arc<Policy>,
        policy_name: Option<String>,
        strict_from_us: Option<u64>,
        accounts_max: Option<u64>,
    ) -> Self {
        let hash = digest::words([1, digest::bytes(pattern.as_str().as_bytes())]);
        Self {
            source: Source::Budget,
            pattern: Some(pattern),
            policy_name,
            policy,
            strict_from_us,
            accounts_max,
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

    /// The budgets that follow a named policy.
    pub(crate) fn users_of(&self, policy: &str) -> impl Iterator<Item = &Pattern> {
        self.budgets
            .iter()
            .filter(move |(_, budget)| {
                matches!(&budget.terms.rule, Rule::Named(name) if name == policy)
            })
            .map(|(pattern, _)| pattern)
    }

    /// Sets a policy, and the bindings of the budgets that follow it.
    pub(crate) fn put_policy(
        &mut self,
        name: &str,
        policy: Policy,
        author: Option<Author<'_>>,
        now_us: u64,
    ) {
        let policy = Arc::new(policy);
        let old = self.policies.get(name);
        let strict = old
            .is_some_and(|old| kind::forgets_too_early(&old.policy.kind, &policy.kind))
            .then_some(now_us);
        let strict_from_us = strict.max(old.and_then(|old| old.strict_from_us));
        let before = old.map(|old| Arc::clone(&old.policy));
        let history = old.map(|old| old.history.clone()).unwrap_or_default();
        let history = history.edited(before, Arc::clone(&policy), author, policy_hash);
        self.restore_policy(
            name,
            NamedPolicy {
                policy,
                strict_from_us,
                history,
            },
        );
        let users: Vec<Pattern> = self
            .budgets
            .iter()
            .filter(|(_, budget)| matches!(&budget.terms.rule, Rule::Named(user) if user == name))
            .map(|(pattern, _)| pattern.clone())
            .collect();
        for pattern in users {
            if let Some(budget) = self.budgets.get(&pattern) {
                let (terms, strict_from_us) = (budget.terms.clone(), budget.strict_from_us);
                let history = budget.history.clone();
                self.restore_budget(pattern, terms, strict_from_us, history);
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
            self.hashes.remove(named_policy_hash(name, &old));
        }
    }

    /// Sets a pattern's rule. Its policy exists.
    pub(crate) fn put_budget(
        &mut self,
        pattern: Pattern,
        terms: Terms,
        author: Option<Author<'_>>,
        now_us: u64,
    ) {
        let new = self
            .policy_of(&terms.rule)
            .map(|(policy, _)| policy.kind.clone());
        let old = self.budgets.get(&pattern);
        let strict = match (old, &new) {
            (Some(old), Some(new)) => {
                kind::forgets_too_early(&old.binding.policy.kind, new).then_some(now_us)
            }
            _ => None,
        };
        // Of the budget as it was, what a named policy's edits made strict too.
        let strict_from_us = strict.max(old.and_then(|old| old.binding.strict_from_us));
        let before = old.map(|old| old.terms.clone());
        let history = old.map(|old| old.history.clone()).unwrap_or_default();
        let history = history.edited(before, terms.clone(), author, wire::terms_hash);
        self.restore_budget(pattern, terms, strict_from_us, history);
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
            .filter_map(|(_, budget)| match &budget.terms.rule {
                Rule::Inline(policy) => Some(policy),
                Rule::Named(_) => None,
            });
        let named = self.policies.values().map(|named| named.policy.as_ref());
        named.chain(inline)
    }

    /// Every policy of a version that is kept, those in force too.
    pub(crate) fn policies_of_histories(&self) -> impl Iterator<Item = &Policy> {
        let named = self.policies.values();
        let named = named.flat_map(|named| named.history.versions());
        let named = named.map(|version| &*version.value);
        let budgets = self.budgets.iter();
        let terms = budgets.flat_map(|(_, budget)| budget.history.versions());
        named.chain(terms.filter_map(|version| match &version.value.rule {
            Rule::Inline(policy) => Some(policy),
            Rule::Named(_) => None,
        }))
    }

    /// Whether there is anything that formats before version 6 cannot say, besides what
    /// policies have.
    pub(crate) fn is_newer(&self) -> bool {
        let mut budgets = self.budgets.iter();
        self.policies
            .values()
            .any(|named| !named.history.is_empty())
            || budgets.any(|(_, budget)| {
                budget.terms.accounts_max.is_some() || !budget.history.is_empty()
            })
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
        self.hashes.add(named_policy_hash(name, &policy));
        if let Some(old) = Arc::make_mut(&mut self.policies).insert(name.to_owned(), policy) {
            self.hashes.remove(named_policy_hash(name, &old));
        }
    }

    /// Puts in a budget as it is; false when its policy is missing.
    pub(crate) fn restore_budget(
        &mut self,
        pattern: Pattern,
        terms: Terms,
        strict_from_us: Option<u64>,
        history: History<Terms>,
    ) -> bool {
        let Some((policy, policy_strict_from_us)) = self.policy_of(&terms.rule) else {
            return false;
        };
        let name = match &terms.rule {
            Rule::Named(name) => Some(name.clone()),
            Rule::Inline(_) => None,
        };
        let binding = Arc::new(Binding::of_budget(
            pattern.clone(),
            policy,
            name,
            strict_from_us.max(policy_strict_from_us),
            terms.accounts_max,
        ));
        let budget = Budget {
            terms,
            strict_from_us,
            history,
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
            sum.add(named_policy_hash(name, policy));
        }
        for (pattern, budget) in self.budgets.iter() {
            sum.add(budget_hash(pattern, budget));
        }
        sum
    }
}

pub(crate) fn policy_hash(policy: &Arc<Policy>) -> u64 {
    digest::bytes(&wire::policy_bytes(policy))
}

fn named_policy_hash(name: &str, policy: &NamedPolicy) -> u64 {
    let hash = digest::bytes(&wire::named_policy_bytes(name, policy));
    policy.history.hashed_with(hash)
}

fn budget_hash(pattern: &Pattern, budget: &Budget) -> u64 {
    let hash = digest::bytes(&wire::budget_bytes(pattern, budget));
    budget.history.hashed_with(hash)
}
