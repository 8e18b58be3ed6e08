//! All accounts, with the indexes and sums over them. Does not know sessions or
//! where rules come from.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold_key::{Key, Pattern};

use crate::{
    account::Account,
    digest, exact,
    kind::{Moment, Period, Periods},
    policy::Calendar,
    rules::Binding,
    shards::Shards,
};

/// Accounts are spread over this many shards.
pub(crate) const SHARDS: usize = 1_024;
/// Idle accounts looked at per entry.
const DUE_PER_ENTRY: usize = 1_024;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    books: Shards<Key, Account>,
    /// Accounts without leases, by when to look whether they can be dropped.
    due: BTreeSet<(u64, Key)>,
    /// Accounts per budget; none: those of the default policy, and orphans.
    by_pattern: BTreeMap<Option<Pattern>, u64>,
    pub(crate) hashes: digest::Sum,
    pub(crate) outstanding: u128,
    pub(crate) leases: u64,
    /// Accounts follow a new period when they are changed next: see
    /// [`Account::settle`].
    periods: Arc<Periods>,
}

impl Accounts {
    pub(crate) fn new(periods: Arc<Periods>) -> Self {
        Self {
            periods,
            books: Shards::new(SHARDS),
            due: BTreeSet::new(),
            by_pattern: BTreeMap::new(),
            hashes: digest::Sum::default(),
            outstanding: 0,
            leases: 0,
        }
    }

    pub(crate) const fn shards(&self) -> &Shards<Key, Account> {
        &self.books
    }

    /// An account as it was changed last: its books may be of a period that is over.
    pub(crate) fn get(&self, key: &Key) -> Option<&Account> {
        self.books.get(key)
    }

    /// An account in the present period.
    pub(crate) fn present(&self, key: &Key) -> Option<Cow<'_, Account>> {
        self.books.get(key).map(|account| self.in_present(account))
    }

    /// This account in the present period.
    pub(crate) fn in_present<'a>(&self, account: &'a Account) -> Cow<'a, Account> {
        if account.is_behind(&self.periods) {
            let mut account = account.clone();
            account.settle(0, &self.periods);
            Cow::Owned(account)
        } else {
            Cow::Borrowed(account)
        }
    }

    pub(crate) const fn periods(&self) -> &Arc<Periods> {
        &self.periods
    }

    /// Begins a calendar's period, for all accounts that count by it.
    pub(crate) fn begin_period(&mut self, calendar: Calendar, period: Period) {
        Arc::make_mut(&mut self.periods).put(calendar, period);
    }

    /// How many accounts follow a budget.
    pub(crate) fn following(&self, pattern: Option<&Pattern>) -> u64 {
        self.by_pattern.get(&pattern.cloned()).copied().unwrap_or(0)
    }

    /// Whether an entry at `now_us` finds accounts to look at.
    pub(crate) fn has_due(&self, now_us: u64) -> bool {
        self.due
            .first()
            .is_some_and(|(due_us, _)| *due_us <= now_us)
    }

    /// Settles an account, changes it, and keeps indexes and sums in step.
    pub(crate) fn update<R>(
        &mut self,
        key: &Key,
        now_us: u64,
        change: impl FnOnce(&mut Account) -> R,
    ) -> Option<R> {
        let account = self.books.get_mut(key)?;
        let outstanding = account.outstanding;
        let leases = account.leases.len();
        account.settle(now_us, &self.periods);
        let result = change(account);
        if account.outstanding != outstanding {
            self.outstanding = self
                .outstanding
                .saturating_sub(outstanding.into())
                .saturating_add(account.outstanding.into());
        }
        if account.leases.len() != leases {
            self.leases = exact::sub(self.leases, count(leases));
            self.leases = exact::add(self.leases, count(account.leases.len()));
        }
        schedule(&mut self.due, account);
        self.hashes.remove(account.hash);
        account.hash = account.computed_hash();
        self.hashes.add(account.hash);
        Some(result)
    }

    /// Puts in an account that is not there yet.
    pub(crate) fn insert(&mut self, mut account: Account) {
        self.outstanding = self.outstanding.saturating_add(account.outstanding.into());
        self.leases = exact::add(self.leases, count(account.leases.len()));
        if let Some(due_us) = account.due_us {
            self.due.insert((due_us, account.key.clone()));
        }
        schedule(&mut self.due, &mut account);
        account.hash = account.computed_hash();
        self.hashes.add(account.hash);
        self.follow(account.binding.pattern.clone());
        self.books.insert(account.key.clone(), account);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(account) = self.books.remove(key) {
            self.hashes.remove(account.hash);
            self.unfollow(account.binding.pattern.clone());
        }
    }

    fn follow(&mut self, pattern: Option<Pattern>) {
        let following = self.by_pattern.entry(pattern).or_default();
        *following = exact::increment(*following);
    }

    fn unfollow(&mut self, pattern: Option<Pattern>) {
        if let Some(following) = self.by_pattern.get_mut(&pattern) {
            *following = exact::decrement(*following);
            if *following == 0 {
                self.by_pattern.remove(&pattern);
            }
        }
    }

    /// Lets an account follow an edited rule.
    pub(crate) fn rebind(
        &mut self,
        key: &Key,
        binding: Arc<Binding>,
        index: u64,
        moment: &Moment<'_>,
    ) {
        let new = binding.pattern.clone();
        let old = self.update(key, moment.now_us, |account| {
            let old = account.binding.pattern.clone();
            account.rebind(binding, index, moment);
            old
        });
        if let Some(old) = old
            && old != new
        {
            self.unfollow(old);
            self.follow(new);
        }
    }

    /// Whether the indexes and sums equal another's.
    pub(crate) fn same_indexes(&self, other: &Self) -> bool {
        self.due == other.due
            && self.by_pattern == other.by_pattern
            && self.hashes == other.hashes
            && self.outstanding == other.outstanding
            && self.leases == other.leases
            && self.books.len() == other.books.len()
    }

    /// Drops accounts that nothing would be lost by dropping: a bounded number,
    /// the longest due first.
    pub(crate) fn drop_idle(&mut self, now_us: u64) {
        for _ in 0..DUE_PER_ENTRY {
            if !self.has_due(now_us) {
                return;
            }
            let Some((_, key)) = self.due.pop_first() else {
                return;
            };
            let idle = self.update(&key, now_us, |account| {
                account.due_us = None;
                account.is_idle(now_us)
            });
            if idle == Some(true) {
                if let Some(due_us) = self.books.get(&key).and_then(|account| account.due_us) {
                    self.due.remove(&(due_us, key.clone()));
                }
                self.remove(&key);
            }
        }
    }
}

/// Keeps an account's place in the due index: only accounts without leases have
/// one. It may be early, because spends come after it; then the account is looked
/// at once more. It is never late.
fn schedule(due: &mut BTreeSet<(u64, Key)>, account: &mut Account) {
    let idle_us = account.leases.is_empty().then(|| account.idle_when());
    match (account.due_us, idle_us) {
        (None, None) => return,
        (Some(due_us), Some(idle_us)) if due_us <= idle_us => return,
        _ => {}
    }
    if let Some(due_us) = account.due_us {
        due.remove(&(due_us, account.key.clone()));
    }
    if let Some(idle_us) = idle_us {
        due.insert((idle_us, account.key.clone()));
    }
    account.due_us = idle_us;
}

/// A number of things in memory, as the books count.
pub(crate) fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
