//! Spends decided by the log itself: exact, all or none, counted at the entry's
//! time.

use std::sync::Arc;

use leasehold_key::Key;

use crate::{
    account::Account,
    ledger::Ledger,
    outcome::{Code, SpendOutcome},
    policy::Policy,
};

use super::{
    ACCOUNTS_RETRY_US, binding_of, earliest_deadline, fresh_books, has_room, more_when, refusal,
};

/// Decides a spend of `units`.
pub(super) fn spend(ledger: &mut Ledger, key: &Key, units: u64) -> SpendOutcome {
    let now_us = ledger.now_us;
    let Some(binding) = binding_of(ledger, key) else {
        return SpendOutcome {
            refusal: Some(refusal(Code::NoBudget, None)),
            free: 0,
            policy: None,
            reset_us: 0,
        };
    };
    let binding = Arc::clone(binding);
    if ledger.accounts.get(key).is_none() {
        let books = fresh_books(ledger, &binding, now_us);
        let index = ledger.last_index;
        let mut account = Account::new(key.clone(), Arc::clone(&binding), books, index);
        let room = has_room(ledger, &binding);
        let admitted = charge(&mut account, units, now_us, room);
        let outcome = outcome(&account, ledger, units, admitted, &binding.policy);
        if admitted.is_ok() && units > 0 {
            ledger.accounts.insert(account);
        }
        return outcome;
    }
    let admitted = ledger
        .accounts
        .update(key, now_us, |account| charge(account, units, now_us, true));
    match (ledger.accounts.get(key), admitted) {
        (Some(account), Some(admitted)) => {
            outcome(account, ledger, units, admitted, &binding.policy)
        }
        _ => SpendOutcome {
            refusal: Some(refusal(Code::NoBudget, None)),
            free: 0,
            policy: None,
            reset_us: 0,
        },
    }
}

/// Charges all units or none.
fn charge(account: &mut Account, units: u64, now_us: u64, room: bool) -> Result<(), Code> {
    if !account.books.can_be_spent() {
        return Err(Code::WrongKind);
    }
    if units == 0 {
        return Ok(());
    }
    if account.cooling_us(now_us).is_some() {
        return Err(Code::Cooldown);
    }
    if units > account.books.largest_cost(&account.binding.policy.kind) {
        return Err(Code::CostAboveLimit);
    }
    if units > account.free_at(now_us) {
        account.cool_down(now_us);
        return Err(Code::Limit);
    }
    if !room {
        return Err(Code::TooManyAccounts);
    }
    account.books.charge(units, now_us);
    account.lifetime.central = account.lifetime.central.saturating_add(units);
    Ok(())
}

/// What to tell of a spend that was decided.
fn outcome(
    account: &Account,
    ledger: &Ledger,
    units: u64,
    admitted: Result<(), Code>,
    policy: &Policy,
) -> SpendOutcome {
    let now_us = ledger.now_us;
    let after = |when_us: u64| when_us.saturating_sub(now_us);
    let retry_after_us = |code| match code {
        // Exactly when enough units are free; when time alone does not free
        // them, not before a holder's session ends.
        Code::Limit => account
            .books
            .free_when(units, now_us, account.outstanding)
            .or_else(|| earliest_deadline(account, &ledger.sessions))
            .map(|when_us| after(when_us.max(account.cooling_until_us))),
        Code::Cooldown => account.cooling_us(now_us),
        Code::TooManyAccounts => Some(ACCOUNTS_RETRY_US),
        _ => None,
    };
    SpendOutcome {
        refusal: admitted
            .err()
            .map(|code| refusal(code, retry_after_us(code))),
        free: account.free_at(now_us),
        policy: Some(policy.clone()),
        reset_us: more_when(account, &ledger.sessions, now_us).map_or(0, after),
    }
}
