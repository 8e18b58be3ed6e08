//! What others may read of the ledger. Nothing here changes it.

use std::{borrow::Cow, ops::Bound, sync::Arc};

use leasehold_key::{Key, Pattern};

use crate::{
    account::{Account, Lease, LeaseId},
    accounts::count,
    apply::{binding_of, fresh_books, has_room, more_when},
    correction::Correction,
    entry::{Rule, SessionId},
    exact,
    kind::{Books, Period},
    ledger::Ledger,
    outcome::{AccountView, Availability, LeaseView, PeriodView, SessionView},
    policy::{Calendar, Policy},
    rules::{Binding, Source},
    sessions::Session,
};

/// The running totals of a session's newest lease of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTotals {
    /// The log index that opened it.
    pub generation: u64,
    /// Units granted so far.
    pub granted: u64,
    /// Units reported spent so far.
    pub spent: u64,
    /// Units handed back so far.
    pub returned: u64,
}

/// Where a session stands with a key: all that an answer says, at one look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its newest lease.
    pub lease: Option<LeaseTotals>,
    /// The rule that the key follows; none: no budget matches. The same rule is
    /// the same allocation, so that a change is found without a comparison.
    pub policy: Option<Arc<Policy>>,
    /// Units that can be granted.
    pub free: u64,
    /// Leases of the key, of all sessions: about how many hold it.
    pub holders: u64,
}

/// Sums over the whole ledger, kept up to date by every entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Accounts in the books.
    pub accounts: u64,
    /// Live sessions.
    pub sessions: u64,
    /// Sessions that are gone and can still be settled or recognised.
    pub tombstones: u64,
    /// Leases of all generations.
    pub leases: u64,
    /// Units in leases, neither reported spent nor handed back; saturates.
    pub outstanding: u64,
    /// Policies.
    pub policies: u64,
    /// Budgets.
    pub budgets: u64,
}

impl Ledger {
    /// The books of one account as of [`Ledger::now_us`].
    #[must_use]
    pub fn account(&self, key: &Key) -> Option<AccountView> {
        self.accounts
            .present(key)
            .map(|account| self.view(&account))
    }

    /// Whether a key has an account.
    #[must_use]
    pub fn has_account(&self, key: &Key) -> bool {
        self.accounts.get(key).is_some()
    }

    /// Accounts whose canonical key begins with `prefix`, ordered by key, from
    /// the first one after `after`.
    #[must_use]
    pub fn accounts(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Vec<AccountView> {
        let from = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix),
        };
        self.accounts
            .shards()
            .range_from::<str>(from)
            .take_while(|(key, _)| key.as_str().starts_with(prefix))
            .take(limit)
            .map(|(_, account)| self.view(&self.accounts.in_present(account)))
            .collect()
    }

    /// What could be granted of a key at `now_us`, which may lie after the last
    /// entry; an earlier time counts as the last entry's.
    #[must_use]
    pub fn available(&self, key: &Key, now_us: u64) -> Availability {
        let now_us = now_us.max(self.now_us);
        let Some(binding) = binding_of(self, key) else {
            return Availability::NoBudget;
        };
        let account = match self.accounts.present(key) {
            Some(account) => account,
            None if !has_room(self, binding) => return Availability::TooManyAccounts,
            None => {
                let books = fresh_books(self, binding, now_us);
                Cow::Owned(Account::new(key.clone(), binding.clone(), books, 0))
            }
        };
        Availability::Open {
            policy: Arc::clone(&binding.policy),
            limit: account.books.limit(),
            largest_cost: account.books.largest_cost(&binding.policy.kind),
            free: account.free_at(now_us),
            outstanding: account.outstanding,
            counted: account.books.counted_at(now_us),
            next_free_us: account
                .more_free_when(now_us)
                .map(|when_us| when_us.saturating_sub(now_us)),
            cooling_us: account.cooling_us(now_us),
        }
    }

    /// The earliest cluster time at which units of a key can come back that are
    /// not free now: by ageing or refill, or else because a holder's session ends.
    #[must_use]
    pub fn more_free_at(&self, key: &Key, now_us: u64) -> Option<u64> {
        let now_us = now_us.max(self.now_us);
        match self.accounts.present(key) {
            Some(account) => more_when(&account, &self.sessions, now_us),
            None => {
                let books = fresh_books(self, self.rules.resolve(key)?, now_us);
                let wanted = books.free_at(now_us, 0).saturating_add(1);
                books.free_when(wanted, now_us, 0)
            }
        }
    }

    /// Whether a spend was admitted under an idempotency key, and is still known.
    #[must_use]
    pub fn knows_spend(&self, idempotency_key: &str) -> bool {
        self.spent_once.get(idempotency_key, self.now_us).is_some()
    }

    /// A live session.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<SessionView> {
        self.sessions
            .get(id)
            .map(|session| self.session_view(id, session))
    }

    /// Live sessions ordered by id, from the first one after `after`.
    #[must_use]
    pub fn sessions(&self, after: Option<SessionId>, limit: usize) -> Vec<SessionView> {
        let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        self.sessions
            .live()
            .range_from::<SessionId>(from)
            .take(limit)
            .map(|(id, session)| self.session_view(*id, session))
            .collect()
    }

    /// Every lease of a session, all generations, ordered by key and generation.
    #[must_use]
    pub fn leases(&self, session: SessionId) -> Vec<LeaseView> {
        self.sessions
            .keys(session)
            .filter_map(|key| self.accounts.present(key))
            .flat_map(|account| {
                let leases = account.of_session(session);
                leases
                    .map(|(id, lease)| self.lease_view(&account, *id, lease))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// The newest lease that a session has of a key. `current` says whether
    /// grants continue in it.
    #[must_use]
    pub fn lease(&self, session: SessionId, key: &Key) -> Option<LeaseView> {
        let account = self.accounts.present(key)?;
        let (id, lease) = account.newest(session)?;
        Some(self.lease_view(&account, id, lease))
    }

    /// The totals of the newest lease that a session has of a key.
    #[must_use]
    pub fn lease_totals(&self, session: SessionId, key: &Key) -> Option<LeaseTotals> {
        totals_of(self.accounts.get(key)?, session)
    }

    /// Where a session stands with a key at `now_us`, which may lie after the last
    /// entry.
    #[must_use]
    pub fn standing(&self, session: SessionId, key: &Key, now_us: u64) -> Standing {
        let account = self.accounts.present(key);
        let binding = binding_of(self, key);
        let now_us = now_us.max(self.now_us);
        let free = match (&account, binding) {
            (_, None) => 0,
            (Some(account), _) => account.free_at(now_us),
            (None, Some(binding)) => fresh_books(self, binding, now_us).free_at(now_us, 0),
        };
        Standing {
            lease: account
                .as_ref()
                .and_then(|account| totals_of(account, session)),
            holders: account
                .as_ref()
                .map_or(0, |account| count(account.leases.len())),
            policy: binding.map(|binding| Arc::clone(&binding.policy)),
            free,
        }
    }

    /// The rule that a key follows now: the pattern's text (`default_policy` when
    /// no pattern matches), the policy's name if it has one, and the policy.
    #[must_use]
    pub fn resolve(&self, key: &Key) -> Option<(&str, Option<&str>, &Policy)> {
        binding_of(self, key).map(|binding| {
            (
                pattern_text(binding),
                binding.policy_name.as_deref(),
                binding.policy.as_ref(),
            )
        })
    }

    /// All policies, by name.
    #[must_use]
    pub fn policies(&self) -> Vec<(&str, &Policy)> {
        let policies = self.rules.policies().iter();
        policies
            .map(|(name, named)| (name.as_str(), named.policy.as_ref()))
            .collect()
    }

    /// One policy.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.rules
            .policies()
            .get(name)
            .map(|named| named.policy.as_ref())
    }

    /// All budgets, by pattern.
    #[must_use]
    pub fn budgets(&self) -> Vec<(&Pattern, &Rule)> {
        self.rules
            .budgets()
            .iter()
            .map(|(pattern, budget)| (pattern, &budget.terms.rule))
            .collect()
    }

    /// The rule of exactly this pattern.
    #[must_use]
    pub fn budget(&self, pattern: &Pattern) -> Option<&Rule> {
        self.rules
            .budgets()
            .get(pattern)
            .map(|budget| &budget.terms.rule)
    }

    /// The disk that used a node id.
    #[must_use]
    pub fn node_disk(&self, node_id: u64) -> Option<u128> {
        self.nodes.get(&node_id).copied()
    }

    /// Sums over the whole ledger; costs nothing to read.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            accounts: count(self.accounts.shards().len()),
            sessions: count(self.sessions.live().len()),
            tombstones: count(self.sessions.tombstones().len()),
            leases: self.accounts.leases,
            outstanding: u64::try_from(self.accounts.outstanding).unwrap_or(u64::MAX),
            policies: count(self.rules.policies().len()),
            budgets: count(self.rules.budgets().len()),
        }
    }

    /// Whether sessions are due that wait for a next entry to expire.
    #[must_use]
    pub fn has_due_sessions(&self, now_us: u64) -> bool {
        self.sessions.first_due(now_us).is_some()
    }

    fn view(&self, account: &Account) -> AccountView {
        self.view_at(account, self.now_us)
    }

    /// An account's books at a moment for which they are settled.
    pub(crate) fn view_at(&self, account: &Account, now_us: u64) -> AccountView {
        let binding = &account.binding;
        let limit = account.books.limit();
        let counted = account.books.counted_at(now_us);
        let used = exact::add(counted, account.outstanding);
        AccountView {
            key: account.key.clone(),
            pattern: (binding.source != Source::Gone).then(|| pattern_text(binding).to_owned()),
            policy_name: binding.policy_name.clone(),
            policy: (*binding.policy).clone(),
            limit,
            debt: used.saturating_sub(limit),
            below_zero: account
                .books
                .below_zero(used)
                .filter(|below_zero| *below_zero > 0),
            counted,
            outstanding: account.outstanding,
            free: limit.saturating_sub(used),
            next_free_us: account
                .more_free_when(now_us)
                .map(|when_us| when_us.saturating_sub(now_us)),
            lifetime: account.lifetime,
            period: self.period_of(account),
            cooling_us: account.cooling_us(now_us),
            corrected: account.corrections.iter().fold(0, |sum: i64, correction| {
                sum.saturating_add(correction.effect)
            }),
            corrections: count(account.corrections.len()),
            leases: account
                .leases
                .iter()
                .map(|(id, lease)| self.lease_view(account, *id, lease))
                .collect(),
        }
    }

    fn period_of(&self, account: &Account) -> Option<PeriodView> {
        let Books::Period(books) = &account.books else {
            return None;
        };
        let calendar = account.binding.policy.kind.calendar()?;
        let period = self.accounts.periods().get(calendar)?;
        let (number, carried, ..) = books.state();
        Some(PeriodView {
            number,
            start_unix_us: period.start_unix_us,
            end_unix_us: period.end_unix_us,
            carried,
        })
    }

    /// The calendars that policies and budgets count by, with their present period.
    #[must_use]
    pub fn calendars(&self) -> Vec<(Calendar, Option<Period>)> {
        let mut used: Vec<&Calendar> = self
            .rules
            .policies_in_force()
            .filter_map(|policy| policy.kind.calendar())
            .collect();
        used.sort_unstable();
        used.dedup();
        used.into_iter()
            .map(|calendar| {
                let period = self.accounts.periods().get(calendar).copied();
                (calendar.clone(), period)
            })
            .collect()
    }

    /// What was corrected by hand in an account, the oldest first.
    #[must_use]
    pub fn corrections(&self, key: &Key) -> Option<Vec<Correction>> {
        let account = self.accounts.get(key)?;
        Some(account.corrections.iter().cloned().collect())
    }

    /// The newest `limit` of them with their places in the history, the newest first; of
    /// those older than the one at `before`, if one is named.
    #[must_use]
    pub fn corrections_before(
        &self,
        key: &Key,
        before: Option<u64>,
        limit: usize,
    ) -> Option<Vec<(u64, Correction)>> {
        let account = self.accounts.get(key)?;
        let places = (0..).zip(account.corrections.iter());
        let older: Vec<(u64, &Correction)> = places
            .take_while(|(place, _)| before.is_none_or(|before| *place < before))
            .collect();
        let newest = older.into_iter().rev().take(limit);
        Some(
            newest
                .map(|(place, correction)| (place, correction.clone()))
                .collect(),
        )
    }

    /// Sessions that hold a lease of a key.
    #[must_use]
    pub fn holders(&self, key: &Key) -> Vec<SessionId> {
        let Some(account) = self.accounts.get(key) else {
            return Vec::new();
        };
        let mut holders: Vec<SessionId> = account.leases.keys().map(|id| id.session).collect();
        holders.dedup();
        holders
    }

    fn lease_view(&self, account: &Account, id: LeaseId, lease: &Lease) -> LeaseView {
        let session = self.sessions.get(id.session);
        let newest = account
            .newest(id.session)
            .is_some_and(|(newest, _)| newest == id);
        LeaseView {
            key: account.key.clone(),
            session: id.session,
            holder: session.map_or_else(String::new, |session| (*session.holder).to_owned()),
            generation: id.generation,
            granted_total: lease.granted,
            spent_total: lease.spent,
            returned_total: lease.returned,
            current: newest
                && account.continues(lease)
                && !lease.misbehaved
                && account.binding.source != Source::Gone
                && session.is_some_and(|session| !session.ended),
            deadline_us: session.map_or(0, |session| session.deadline_us),
        }
    }

    fn session_view(&self, id: SessionId, session: &Session) -> SessionView {
        SessionView {
            id,
            holder: (*session.holder).to_owned(),
            identity: (*session.identity).to_owned(),
            opened_us: session.opened_us,
            deadline_us: session.deadline_us,
            ttl_us: session.ttl_us,
            validity_us: session.validity_us,
            seq: session.seq,
            ended: session.ended,
            leases: self.sessions.lease_count(id),
        }
    }
}

/// How people are told which budget it is.
fn pattern_text(binding: &Binding) -> &str {
    binding
        .pattern
        .as_ref()
        .map_or("default_policy", Pattern::as_str)
}

fn totals_of(account: &Account, session: SessionId) -> Option<LeaseTotals> {
    let (id, lease) = account.newest(session)?;
    Some(LeaseTotals {
        generation: id.generation,
        granted: lease.granted,
        spent: lease.spent,
        returned: lease.returned,
    })
}
