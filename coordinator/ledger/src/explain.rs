//! Why a key is admitted or refused now, and what changes that when. Judges by what a spend
//! is judged by, and changes nothing.

use std::cmp::Reverse;

use leasehold_key::{Key, Pattern, PatternSegment};

use crate::{
    account::Account,
    accounts::count,
    apply::{Asker, account_at, foretell},
    correction::Correction,
    entry::Rule,
    kind::Books,
    ledger::Ledger,
    outcome::{AccountView, SpendOutcome},
    rules::Source,
};

/// Moments at which units come free that are listed.
const MOMENTS_MAX: usize = 10;
/// Corrections that are listed.
const CORRECTIONS_SHOWN: usize = 5;
/// Patterns that nearly match that are listed.
const NEAREST_MAX: usize = 3;

/// Everything that bears on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Every budget whose pattern matches, the most specific first: that one applies.
    pub matching: Vec<(Pattern, Rule)>,
    /// What the key follows.
    pub applies: Applies,
    /// When nothing applies: patterns that match the most of its first segments.
    pub nearest: Vec<Pattern>,
    /// What would become of a request now.
    pub outcome: SpendOutcome,
    /// The account as it is now, or as it would be with its first use; none: no budget
    /// matches, and it has none.
    pub account: Option<AccountView>,
    /// Whether the account is there already.
    pub exists: bool,
    /// The next moments at which time alone frees units, nothing else happening.
    pub frees: Vec<Freeing>,
    /// The last few corrections by hand, the newest first.
    pub corrections: Vec<Correction>,
    /// Why a restore leaves nothing free of it now; none: it does not.
    pub after_restore: Option<AfterRestore>,
}

/// What the cluster may have spent that this one was restored from, as far as it still
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRestore {
    /// Of a window, a bucket, an estimate or permits: time frees the first of it in so
    /// many microseconds.
    FreesIn(u64),
    /// All of the present period: the next one has its units.
    UntilNextPeriod,
    /// All of a total: it has what was added since.
    ForGood,
}

/// What a key follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// The most specific budget.
    Budget,
    /// No budget matches: the default policy.
    DefaultPolicy,
    /// Nothing: it is refused.
    Nothing,
    /// Nothing any more: its budget is gone, and what it used runs out by its last rule.
    Gone,
}

/// Units that come free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freeing {
    /// In how many microseconds.
    pub after_us: u64,
    /// Units that no longer count then.
    pub units: u64,
    /// Units that can be granted then, if nothing else happens.
    pub free: u64,
}

/// What a key has left, at little cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peek {
    /// The limit now, with what was carried over or added.
    pub limit: u64,
    /// Nothing is admitted for so long, because it was refused.
    pub cooling_us: Option<u64>,
    /// What a spend of 0 units would be told.
    pub outcome: SpendOutcome,
}

impl Ledger {
    /// Why `units` of a key would be admitted or refused at `now_us`, which may lie after
    /// the last entry.
    #[must_use]
    pub fn explain(&self, key: &Key, units: u64, now_us: u64) -> Explanation {
        let now_us = now_us.max(self.now_us);
        let budgets = self.rules.budgets();
        let matching = budgets.matching(key);
        let known = self.accounts.get(key);
        let account = account_at(self, key, now_us)
            .map(|(account, _)| account)
            .or_else(|| {
                let mut gone = known?.clone();
                gone.settle(now_us, self.accounts.periods());
                Some(gone)
            });
        let applies = match account.as_ref().map(|account| account.binding.source) {
            None => Applies::Nothing,
            Some(Source::Gone) => Applies::Gone,
            Some(Source::Budget) => Applies::Budget,
            Some(Source::Default) => Applies::DefaultPolicy,
        };
        let nearest = match applies {
            Applies::Nothing => nearest(budgets.iter().map(|(pattern, _)| pattern), key),
            _ => Vec::new(),
        };
        let newest = known.map(|account| {
            let corrections: Vec<&Correction> = account.corrections.iter().collect();
            let newest = corrections.into_iter().rev().take(CORRECTIONS_SHOWN);
            newest.cloned().collect()
        });
        Explanation {
            matching: matching
                .into_iter()
                .map(|(pattern, budget)| (pattern.clone(), budget.terms.rule.clone()))
                .collect(),
            applies,
            nearest,
            outcome: foretell(self, key, units, now_us, Asker::Gateway),
            frees: account
                .as_ref()
                .map_or_else(Vec::new, |account| frees(account, now_us)),
            after_restore: account
                .as_ref()
                .and_then(|account| self.after_restore(account, now_us)),
            account: account.map(|account| self.view_at(&account, now_us)),
            exists: known.is_some(),
            corrections: newest.unwrap_or_default(),
        }
    }

    /// Why a restore leaves nothing free of a settled account.
    fn after_restore(&self, account: &Account, now_us: u64) -> Option<AfterRestore> {
        let until_us = self.inherited_until_us;
        if until_us == 0 || account.free_at(now_us) > 0 {
            return None;
        }
        let kind = &account.binding.policy.kind;
        let periods = self.accounts.periods();
        match &account.books {
            Books::Total(_) => Some(AfterRestore::ForGood),
            Books::Period(_) => {
                let period = periods.get(kind.calendar()?)?;
                let is_spent = period.began_us <= until_us;
                is_spent.then_some(AfterRestore::UntilNextPeriod)
            }
            Books::Unlimited => None,
            _ => {
                let drift_ppm = self.settings.max_drift_ppm;
                let inherited = Books::exhausted(kind, drift_ppm, until_us, periods);
                if inherited.counted_at(now_us) == 0 {
                    return None;
                }
                let frees_us = inherited.drained_when(1)?;
                Some(AfterRestore::FreesIn(frees_us.saturating_sub(now_us)))
            }
        }
    }

    /// What a key has left at `now_us`, which may lie after the last entry; none: no budget
    /// matches.
    #[must_use]
    pub fn peek(&self, key: &Key, now_us: u64) -> Option<Peek> {
        let now_us = now_us.max(self.now_us);
        let (account, _) = account_at(self, key, now_us)?;
        Some(Peek {
            limit: account.books.limit(),
            cooling_us: account.cooling_us(now_us),
            outcome: foretell(self, key, 0, now_us, Asker::Gateway),
        })
    }
}

/// The next moments at which time alone frees units of a settled account.
fn frees(account: &Account, now_us: u64) -> Vec<Freeing> {
    let books = &account.books;
    let counted = books.counted_at(now_us);
    let outstanding = account.outstanding;
    if let Some(next_us) = books.next_period_us() {
        let free = books.free_in_next_period(outstanding).unwrap_or(0);
        let period = Freeing {
            after_us: next_us.saturating_sub(now_us),
            units: counted,
            free,
        };
        return if next_us > now_us {
            vec![period]
        } else {
            Vec::new()
        };
    }
    // A bucket's units come one by one: as many at a time as make ten moments.
    let step = match books {
        Books::TokenBucket(_) => counted.div_ceil(count(MOMENTS_MAX)).max(1),
        _ => 1,
    };
    let mut moments = Vec::new();
    let mut gone = 0_u64;
    while moments.len() < MOMENTS_MAX && gone < counted {
        let wanted = gone.saturating_add(step).min(counted);
        let Some(when_us) = books.drained_when(wanted) else {
            break;
        };
        let left = books
            .counted_at(when_us)
            .min(counted.saturating_sub(wanted));
        let now_gone = counted.saturating_sub(left);
        moments.push(Freeing {
            after_us: when_us.saturating_sub(now_us),
            units: now_gone.saturating_sub(gone),
            free: books
                .limit()
                .saturating_sub(left.saturating_add(outstanding)),
        });
        gone = now_gone;
    }
    moments
}

/// Patterns that match the most of a key's first segments, and at least one.
fn nearest<'a>(patterns: impl Iterator<Item = &'a Pattern>, key: &Key) -> Vec<Pattern> {
    let mut near: Vec<(Reverse<usize>, &Pattern)> = patterns
        .map(|pattern| (Reverse(in_common(pattern, key)), pattern))
        .filter(|(Reverse(common), _)| *common > 0)
        .collect();
    near.sort();
    let nearest = near.into_iter().take(NEAREST_MAX);
    nearest.map(|(_, pattern)| pattern.clone()).collect()
}

/// How many of the first segments match.
fn in_common(pattern: &Pattern, key: &Key) -> usize {
    let pairs = pattern.segments().zip(key.segments());
    pairs
        .take_while(|(of_pattern, segment)| match of_pattern {
            PatternSegment::Literal(text) => text == segment,
            PatternSegment::Prefix(prefix) => segment.starts_with(prefix),
            PatternSegment::Any | PatternSegment::Rest => true,
        })
        .count()
}
