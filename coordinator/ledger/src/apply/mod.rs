//! What each item of an entry does to the ledger, one file per kind of item.
//! Every check precedes the first write, so that a refused item changed nothing.

mod command;
mod correct;
mod draft;
mod edit;
mod expiry;
mod grant;
mod roll;
mod settle;
mod spend;
mod sync;

pub(crate) use command::command;
pub(crate) use draft::{Draft, Reach, settings_tag};
pub(crate) use edit::rebinding;
pub(crate) use expiry::expire_due;
pub(crate) use grant::grant;
pub(crate) use roll::roll;
pub(crate) use spend::{Asker, account_at, foretell};
pub(crate) use sync::sync;

use std::sync::Arc;

use leasehold_key::Key;

use crate::{
    account::Account,
    entry::SessionId,
    kind::Books,
    ledger::Ledger,
    outcome::{Code, CommandRefusal, Refusal},
    rules::{Binding, Source},
    sessions::{Sessions, Tombstone},
};

/// When it is worth asking again while a pattern is full of accounts.
pub(crate) const ACCOUNTS_RETRY_US: u64 = 1_000_000;

/// When it is worth asking again while a period should have begun.
pub(crate) const PERIOD_RETRY_US: u64 = 1_000_000;

const fn refusal(code: Code, retry_after_us: Option<u64>) -> Refusal {
    Refusal {
        code,
        retry_after_us,
    }
}

fn invalid(text: impl Into<String>) -> CommandRefusal {
    CommandRefusal::Invalid(text.into())
}

/// The rule that a key's account follows now; none when its budget is gone, or
/// when it has neither an account nor a budget.
pub(crate) fn binding_of<'a>(ledger: &'a Ledger, key: &Key) -> Option<&'a Arc<Binding>> {
    match ledger.accounts.get(key) {
        Some(account) => Some(&account.binding).filter(|binding| binding.source != Source::Gone),
        None => ledger.rules.resolve(key),
    }
}

/// The books that a key without an account would start with. What nobody knows
/// of any more counts as used: what an edit made the books forget, and what a
/// cluster granted that this one was restored from.
pub(crate) fn fresh_books(ledger: &Ledger, binding: &Binding, now_us: u64) -> Books {
    let kind = &binding.policy.kind;
    let drift_ppm = ledger.settings.max_drift_ppm;
    let inherited_until_us = ledger.inherited_until_us;
    let inherited = (inherited_until_us > 0).then_some(inherited_until_us);
    let strict_from_us = binding.strict_from_us.filter(|_| kind.looks_back());
    let periods = ledger.accounts.periods();
    match strict_from_us.max(inherited) {
        None => Books::new(kind, drift_ppm, now_us, periods),
        Some(at_us) => {
            let mut books = Books::exhausted(kind, drift_ppm, at_us, periods);
            books.settle(now_us);
            books
        }
    }
}

/// Whether one more account may follow a rule.
pub(crate) fn has_room(ledger: &Ledger, binding: &Binding) -> bool {
    let most = binding
        .accounts_max
        .unwrap_or(ledger.settings.accounts_per_pattern_max);
    ledger.accounts.following(binding.pattern.as_ref()) < most
}

/// The first moment at which more units of an account can be free: by time, or
/// else because a holder's session ends.
pub(crate) fn more_when(account: &Account, sessions: &Sessions, now_us: u64) -> Option<u64> {
    account
        .more_free_when(now_us)
        .or_else(|| earliest_deadline(account, sessions))
}

/// The earliest deadline of the sessions that hold units of an account.
pub(crate) fn earliest_deadline(account: &Account, sessions: &Sessions) -> Option<u64> {
    account
        .leases
        .iter()
        .filter(|(_, lease)| lease.outstanding() > 0)
        .filter_map(|(id, _)| sessions.get(id.session))
        .map(|session| session.deadline_us)
        .min()
}

/// Ends a session whose holder says that it is done. Leases that it did not
/// account for stay outstanding until its deadline: it may still be spending them.
fn finish(ledger: &mut Ledger, id: SessionId) {
    if ledger.sessions.key_count(id) > 0 {
        ledger.sessions.update(id, |session| session.ended = true);
        return;
    }
    let drop_us = ledger
        .now_us
        .saturating_add(ledger.settings.tombstone_ttl_us);
    if let Some(session) = ledger.sessions.remove(id) {
        let tombstone = Tombstone {
            identity: Arc::clone(&session.identity),
            ended_us: ledger.now_us,
            drop_us,
            leases: Vec::new(),
        };
        ledger.sessions.bury(id, tombstone);
    }
}
