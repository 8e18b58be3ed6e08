//! The books' invariants, all of them, computed anew. Costs time in proportion to
//! the ledger: for tests and for operators who want to know.

use std::{fmt, sync::Arc};

use crate::{
    account::Account,
    accounts::Accounts,
    apply::binding_of,
    digest, exact,
    kind::Books,
    ledger::{Ledger, node_hash, settings_hash},
    rules::Source,
};

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds {
        Ok(())
    } else {
        Err(Violation(text()))
    }
}

impl Ledger {
    /// Checks conservation in every account, that every index and sum equals what
    /// it is built from, and that the digest equals the recomputed one.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        let mut accounts = Accounts::new(Arc::clone(self.accounts.periods()));
        let mut leases = Vec::new();
        for (key, account) in self.accounts.shards().iter() {
            ensure(*key == account.key, || format!("{key} is filed wrongly"))?;
            self.check_account(account)?;
            accounts.insert(account.clone());
            leases.extend(account.leases.keys().map(|id| (id.session, &account.key)));
        }
        ensure(accounts.same_indexes(&self.accounts), || {
            "the accounts' indexes or sums are not what the accounts say".to_owned()
        })?;
        for (session, key) in &leases {
            ensure(self.sessions.get(*session).is_some(), || {
                format!("{key} has a lease of a session that is gone")
            })?;
        }
        ensure(
            self.sessions
                .rebuilt(leases.into_iter())
                .same_indexes(&self.sessions),
            || "the sessions' indexes or sums are not what the sessions say".to_owned(),
        )?;
        ensure(
            self.spent_once.rebuilt().same_indexes(&self.spent_once),
            || "the indexes or sums of remembered spends are not what they say".to_owned(),
        )?;
        self.check_digest(&accounts)
    }

    fn check_digest(&self, accounts: &Accounts) -> Result<(), Violation> {
        let mut nodes = digest::Sum::default();
        for (node_id, disk_id) in self.nodes.iter() {
            nodes.add(node_hash(*node_id, *disk_id));
        }
        let holds = nodes == self.node_hashes
            && self.rules.computed_hashes() == self.rules.hashes
            && settings_hash(&self.settings) == self.settings_hash
            && accounts.hashes == self.accounts.hashes;
        ensure(holds, || "the digest is not the recomputed one".to_owned())
    }

    fn check_account(&self, account: &Account) -> Result<(), Violation> {
        let key = &account.key;
        let view = self
            .account(key)
            .ok_or_else(|| Violation(format!("{key} cannot be read")))?;
        let left = exact::add(view.limit, view.debt);
        let right = exact::add(exact::add(view.counted, view.outstanding), view.free);
        ensure(left == right && (view.debt == 0 || view.free == 0), || {
            format!(
                "{key}: limit {} + debt {} is not counted {} + outstanding {} + free {}",
                view.limit, view.debt, view.counted, view.outstanding, view.free
            )
        })?;
        let mut outstanding = 0_u64;
        for lease in account.leases.values() {
            ensure(
                exact::add(lease.spent, lease.returned) <= lease.granted,
                || format!("{key}: a lease has more spent and returned than granted"),
            )?;
            outstanding = exact::add(outstanding, lease.outstanding());
        }
        ensure(outstanding == account.outstanding, || {
            format!(
                "{key}: outstanding {} is not the leases' {outstanding}",
                account.outstanding
            )
        })?;
        let lifetime = account.lifetime;
        let ends = [
            lifetime.spent,
            lifetime.returned,
            lifetime.presumed_spent,
            outstanding,
        ];
        let ended = ends
            .iter()
            .fold(0_u128, |sum, units| sum.saturating_add((*units).into()));
        ensure(
            lifetime.granted == u64::MAX || ended == u128::from(lifetime.granted),
            || {
                format!(
                    "{key}: granted {} in all, but {ended} ended or are out",
                    lifetime.granted
                )
            },
        )?;
        ensure(
            account.computed_lease_hashes() == account.lease_hashes,
            || format!("{key}: the leases' hashes do not add up"),
        )?;
        ensure(account.computed_hash() == account.hash, || {
            format!("{key}: its hash is stale")
        })?;
        ensure(
            account.due_us.is_some() == account.leases.is_empty(),
            || format!("{key}: it must have a due time exactly while it has no leases"),
        )?;
        ensure(
            account.binding.policy.kind.limit() == account.books.base_limit(),
            || format!("{key}: its books have another limit than its policy"),
        )?;
        match &account.books {
            Books::SlidingWindow(books) | Books::Estimate(books) => ensure(
                books.is_sound(self.now_us.max(self.inherited_until_us)),
                || format!("{key}: its dates are not in order, in the future, or too many"),
            )?,
            Books::TokenBucket(books) => {
                ensure(books.is_sound(), || {
                    format!("{key}: its bucket's fraction is impossible")
                })?;
            }
            Books::Period(_) | Books::Total(_) | Books::Concurrency(_) | Books::Unlimited => {}
        }
        let follows = match (self.rules.resolve(key), account.binding.source) {
            (None, Source::Gone) => true,
            (Some(_), Source::Gone) | (None, _) => false,
            (Some(binding), _) => {
                std::sync::Arc::ptr_eq(binding, &account.binding) && binding_of(self, key).is_some()
            }
        };
        ensure(follows, || {
            format!("{key}: it follows another rule than its key")
        })
    }
}
