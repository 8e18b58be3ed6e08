//! Rules and settings as an edit would leave them. Does not know accounts: it only says
//! which of them are concerned.

use std::sync::Arc;

use leasehold_key::Pattern;

use crate::{
    account::Account,
    accounts::count,
    digest,
    edit::{ACCOUNTS_MAX, BY_BYTES_MAX, CHANGES_MAX, Edit, Expect, RuleChange, Terms},
    entry::Rule,
    history::Author,
    ledger::settings_hash,
    outcome::{CommandRefusal, Edited},
    policy::{Policy, check_name},
    rules::Rules,
    settings::Settings,
};

use super::invalid;

/// Users of a policy that a refusal names.
const USERS_NAMED_MAX: usize = 10;

fn no_such_policy(name: &str) -> CommandRefusal {
    CommandRefusal::NoSuchPolicy {
        name: name.to_owned(),
    }
}

/// See the module.
pub(crate) struct Draft {
    pub(crate) rules: Rules,
    pub(crate) settings: Arc<Settings>,
    pub(crate) reach: Reach,
    /// Cluster time of the edit.
    pub(crate) now_us: u64,
}

/// The accounts that may follow another rule than before.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// None.
    Nobody,
    /// Those of a policy.
    Policy(String),
    /// Those whose keys match a pattern.
    Matching(Pattern),
    /// Those that follow a pattern's budget.
    Following(Pattern),
    /// Those that no pattern matches.
    Unmatched,
    /// Any.
    All,
}

impl Reach {
    pub(crate) fn concerns(&self, account: &Account) -> bool {
        let binding = &account.binding;
        match self {
            Self::Nobody => false,
            Self::Policy(name) => binding.policy_name.as_deref() == Some(name),
            Self::Matching(pattern) => pattern.matches(&account.key),
            Self::Following(pattern) => binding.pattern.as_ref() == Some(pattern),
            Self::Unmatched => binding.pattern.is_none(),
            Self::All => true,
        }
    }
}

const UNCHANGED: bool = false;
const CHANGED: bool = true;

/// Whether anything changed.
pub(super) type Judged = Result<bool, CommandRefusal>;

impl Draft {
    /// Makes every change of an edit; after a refusal the draft is of no use, unless
    /// the edit has one change only.
    pub(crate) fn edit(&mut self, edit: &Edit) -> Result<Vec<Edited>, CommandRefusal> {
        if edit.by.len() > BY_BYTES_MAX {
            return Err(invalid(format!(
                "by ({} bytes) must have at most {BY_BYTES_MAX} bytes",
                edit.by.len()
            )));
        }
        let many = edit.changes.len();
        if many > CHANGES_MAX {
            return Err(invalid(format!(
                "changes ({many}) must be at most {CHANGES_MAX}"
            )));
        }
        let author = Some(Author {
            by: &edit.by,
            wall_unix_us: edit.wall_unix_us,
        });
        let changes = edit.changes.iter().enumerate();
        changes
            .map(|(place, guarded)| {
                self.change(&guarded.change, &guarded.expect, author)
                    .map_err(|why| match many {
                        1 => why,
                        _ => CommandRefusal::OneOfMany {
                            place,
                            why: Box::new(why),
                        },
                    })
            })
            .collect()
    }

    fn change(
        &mut self,
        change: &RuleChange,
        expect: &Expect,
        author: Option<Author<'_>>,
    ) -> Result<Edited, CommandRefusal> {
        let (changed, tag, version) = match change {
            RuleChange::PutPolicy { name, policy } => {
                let changed = self.put_policy(name, policy, expect, author)?;
                let named = self.rules.policies().get(name);
                let version = named.map(|named| named.history.number());
                (changed, self.policy_tag(name), version)
            }
            RuleChange::DeletePolicy { name } => (self.delete_policy(name, expect)?, None, None),
            RuleChange::PutBudget { pattern, terms } => {
                let changed = self.put_budget(pattern, terms, expect, author)?;
                let budget = self.rules.budgets().get(pattern);
                let version = budget.map(|budget| budget.history.number());
                (changed, self.budget_tag(pattern), version)
            }
            RuleChange::DeleteBudget { pattern } => {
                (self.delete_budget(pattern, expect)?, None, None)
            }
            RuleChange::PutSettings(settings) => {
                let changed = self.put_settings(settings, expect)?;
                (changed, Some(settings_tag(&self.settings)), None)
            }
        };
        Ok(Edited {
            changed,
            version: version.unwrap_or(0),
            tag,
        })
    }

    fn policy_tag(&self, name: &str) -> Option<u64> {
        self.rules.policies().get(name).map(|named| named.tag())
    }

    fn budget_tag(&self, pattern: &Pattern) -> Option<u64> {
        self.rules.budgets().get(pattern).map(|budget| budget.tag())
    }

    fn reaches(&mut self, reach: Reach) {
        self.reach = match self.reach {
            Reach::Nobody => reach,
            _ => Reach::All,
        };
    }

    pub(super) fn put_policy(
        &mut self,
        name: &str,
        policy: &Policy,
        expect: &Expect,
        author: Option<Author<'_>>,
    ) -> Judged {
        check_name("name", name).map_err(invalid)?;
        policy.validate().map_err(invalid)?;
        judge(expect, self.policy_tag(name))?;
        let old = self.rules.policies().get(name);
        if old.is_some_and(|old| *old.policy == *policy) {
            return Ok(UNCHANGED);
        }
        self.rules
            .put_policy(name, policy.clone(), author, self.now_us);
        self.reaches(Reach::Policy(name.to_owned()));
        Ok(CHANGED)
    }

    pub(super) fn delete_policy(&mut self, name: &str, expect: &Expect) -> Judged {
        if !self.rules.policies().contains_key(name) {
            return Err(no_such_policy(name));
        }
        let is_default = self.settings.default_policy.as_deref() == Some(name);
        let default = is_default.then(|| "default_policy".to_owned());
        let patterns = self.rules.users_of(name).map(ToString::to_string);
        let mut users = default.into_iter().chain(patterns);
        let by: Vec<String> = users.by_ref().take(USERS_NAMED_MAX).collect();
        let more = count(users.count());
        if !by.is_empty() {
            return Err(CommandRefusal::PolicyInUse { by, more });
        }
        judge(expect, self.policy_tag(name))?;
        self.rules.delete_policy(name);
        Ok(CHANGED)
    }

    pub(super) fn put_budget(
        &mut self,
        pattern: &Pattern,
        terms: &Terms,
        expect: &Expect,
        author: Option<Author<'_>>,
    ) -> Judged {
        match &terms.rule {
            Rule::Named(name) if !self.rules.policies().contains_key(name) => {
                return Err(no_such_policy(name));
            }
            Rule::Named(_) => {}
            Rule::Inline(policy) => policy.validate().map_err(invalid)?,
        }
        if let Some(most) = terms.accounts_max
            && !(1..=ACCOUNTS_MAX).contains(&most)
        {
            return Err(invalid(format!(
                "accounts_max ({most}) must be 1 to {ACCOUNTS_MAX}"
            )));
        }
        judge(expect, self.budget_tag(pattern))?;
        let old = self.rules.budgets().get(pattern);
        if old.is_some_and(|old| old.terms == *terms) {
            return Ok(UNCHANGED);
        }
        self.rules
            .put_budget(pattern.clone(), terms.clone(), author, self.now_us);
        self.reaches(Reach::Matching(pattern.clone()));
        Ok(CHANGED)
    }

    pub(super) fn delete_budget(&mut self, pattern: &Pattern, expect: &Expect) -> Judged {
        let tag = self
            .budget_tag(pattern)
            .ok_or(CommandRefusal::NoSuchBudget)?;
        judge(expect, Some(tag))?;
        self.rules.delete_budget(pattern);
        self.reaches(Reach::Following(pattern.clone()));
        Ok(CHANGED)
    }

    pub(super) fn put_settings(&mut self, settings: &Settings, expect: &Expect) -> Judged {
        settings.validate().map_err(invalid)?;
        if let Some(name) = &settings.default_policy
            && !self.rules.policies().contains_key(name)
        {
            return Err(no_such_policy(name));
        }
        judge(expect, Some(settings_tag(&self.settings)))?;
        if *settings == *self.settings {
            return Ok(UNCHANGED);
        }
        if settings.default_policy != self.settings.default_policy {
            self.rules
                .put_default(settings.default_policy.as_deref(), self.now_us);
            self.reaches(Reach::Unmatched);
        }
        self.settings = Arc::new(settings.clone());
        Ok(CHANGED)
    }
}

/// Judged where the change is made, after everything that would refuse it anyway.
fn judge(expect: &Expect, present: Option<u64>) -> Result<(), CommandRefusal> {
    if expect.holds(present) {
        Ok(())
    } else {
        Err(CommandRefusal::PreconditionFailed { present })
    }
}

/// Changes with the settings.
pub(crate) fn settings_tag(settings: &Settings) -> u64 {
    digest::words([12, settings_hash(settings)])
}
