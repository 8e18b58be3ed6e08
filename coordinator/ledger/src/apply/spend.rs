//! Spends decided by the log itself: exact, all or none, counted at the entry's
//! time.

use std::{borrow::Cow, sync::Arc};

use leasehold_key::Key;

use crate::{
    account::Account,
    ledger::Ledger,
    outcome::{Code, CommandRefusal, Refusal, SpendOutcome},
    policy::Policy,
    spent_once::Remembered,
};

use super::{
    ACCOUNTS_RETRY_US, PERIOD_RETRY_US, binding_of, earliest_deadline, fresh_books, has_room,
    invalid, more_when, refusal,
};

const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// Decides a spend of `units`; under an idempotency key, once.
pub(super) fn spend(
    ledger: &mut Ledger,
    key: &Key,
    units: u64,
    once: Option<&str>,
) -> Result<SpendOutcome, CommandRefusal> {
    let Some(name) = once else {
        return Ok(decide(ledger, key, units, true));
    };
    if name.is_empty()
        || name.len() > IDEMPOTENCY_KEY_BYTES_MAX
        || !name.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(invalid(format!(
            "idempotency_key must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters"
        )));
    }
    if let Some(known) = ledger.spent_once.get(name, ledger.now_us) {
        return if known.key == *key && known.units == units {
            Ok(repeated(ledger, key))
        } else {
            Err(CommandRefusal::IdempotencyKeyReused)
        };
    }
    let room = ledger.spent_once.len() < ledger.settings.idempotency_keys_max;
    let outcome = decide(ledger, key, units, room);
    // What charged nothing may be decided anew.
    let charged = outcome.refusal.is_none() && outcome.shadowed.is_none() && units > 0;
    if charged {
        let until_us = ledger
            .now_us
            .saturating_add(ledger.settings.idempotency_ttl_us);
        let remembered = Remembered {
            key: key.clone(),
            units,
            until_us,
        };
        ledger.spent_once.insert(name.into(), remembered);
    }
    Ok(outcome)
}

/// Decides a spend. `remembers`: it can be remembered, if it has to be.
fn decide(ledger: &mut Ledger, key: &Key, units: u64, remembers: bool) -> SpendOutcome {
    let now_us = ledger.now_us;
    let Some(binding) = binding_of(ledger, key) else {
        return SpendOutcome::without_budget();
    };
    let binding = Arc::clone(binding);
    if ledger.accounts.get(key).is_none() {
        let books = fresh_books(ledger, &binding, now_us);
        let index = ledger.last_index;
        let mut account = Account::new(key.clone(), Arc::clone(&binding), books, index);
        let room = Room {
            account: has_room(ledger, &binding),
            remembers,
        };
        let admitted = charge(&mut account, units, now_us, room);
        let outcome = outcome(&account, ledger, units, admitted, &binding.policy, now_us);
        // A key that cools down is remembered for that.
        if (admitted.is_ok() && units > 0) || account.cooling_us(now_us).is_some() {
            ledger.accounts.insert(account);
        }
        return outcome;
    }
    let room = Room {
        account: true,
        remembers,
    };
    let admitted = ledger
        .accounts
        .update(key, now_us, |account| charge(account, units, now_us, room));
    match (ledger.accounts.get(key), admitted) {
        (Some(account), Some(admitted)) => {
            outcome(account, ledger, units, admitted, &binding.policy, now_us)
        }
        _ => SpendOutcome::without_budget(),
    }
}

/// What would become of a spend at `now_us`, which is not before the last entry.
/// Changes nothing.
pub(crate) fn foretell(
    ledger: &Ledger,
    key: &Key,
    units: u64,
    now_us: u64,
    asker: Asker,
) -> SpendOutcome {
    let Some((mut account, room)) = account_at(ledger, key, now_us) else {
        return SpendOutcome::without_budget();
    };
    let policy = Arc::clone(&account.binding.policy);
    let room = Room {
        account: room,
        remembers: true,
    };
    let admitted = match asker {
        Asker::Gateway => judge(&account, units, now_us, room),
        Asker::Central => charge(&mut account, units, now_us, room),
    };
    outcome(&account, ledger, units, admitted, &policy, now_us)
}

/// Who would ask.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asker {
    /// One that is lent units: permits, too.
    Gateway,
    /// Somebody who spends in the log.
    Central,
}

/// The account that a key has at `now_us`, or would have once it is used, and whether
/// there is room for it; none: no budget matches.
pub(crate) fn account_at(ledger: &Ledger, key: &Key, now_us: u64) -> Option<(Account, bool)> {
    let binding = binding_of(ledger, key)?;
    match ledger.accounts.present(key).map(Cow::into_owned) {
        Some(mut account) => {
            account.settle(now_us, ledger.accounts.periods());
            Some((account, true))
        }
        None => {
            let books = fresh_books(ledger, binding, now_us);
            let account = Account::new(key.clone(), Arc::clone(binding), books, 0);
            Some((account, has_room(ledger, binding)))
        }
    }
}

/// It was admitted before: what is said beside that is as of now.
fn repeated(ledger: &Ledger, key: &Key) -> SpendOutcome {
    SpendOutcome {
        refusal: None,
        repeated: true,
        ..foretell(ledger, key, 0, ledger.now_us, Asker::Central)
    }
}

/// What there must be room for.
#[derive(Clone, Copy)]
struct Room {
    /// One more account.
    account: bool,
    /// One more spend that is remembered.
    remembers: bool,
}

/// Charges all units or none.
fn charge(account: &mut Account, units: u64, now_us: u64, room: Room) -> Result<(), Code> {
    if !account.books.can_be_spent() {
        return Err(Code::WrongKind);
    }
    let judged = judge(account, units, now_us, room);
    if judged == Err(Code::Limit) && room.account {
        account.cool_down(now_us);
    }
    judged?;
    account.books.charge(units, now_us);
    account.lifetime.central = account.lifetime.central.saturating_add(units);
    Ok(())
}

/// Whether there are so many units.
fn judge(account: &Account, units: u64, now_us: u64, room: Room) -> Result<(), Code> {
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
        return Err(Code::Limit);
    }
    if !room.account {
        return Err(Code::TooManyAccounts);
    }
    if !room.remembers {
        return Err(Code::TooManyIdempotencyKeys);
    }
    Ok(())
}

/// When so many units are free by time alone: of a period, when the next one begins, if
/// it will have them with what is carried over into it.
fn free_by_time(account: &Account, ledger: &Ledger, units: u64, now_us: u64) -> Option<u64> {
    let outstanding = account.outstanding;
    if account.books.next_period_us().is_none() {
        return account.books.free_when(units, now_us, outstanding);
    }
    let free = account.books.free_in_next_period(outstanding)?;
    (units <= free).then(|| next_period_us(account, ledger, now_us).0)
}

/// When the first period begins that may have so many units: the one after the next, with
/// what is carried over then. None: none will, or no period has begun and one does soon.
fn free_in_later_period(
    account: &Account,
    ledger: &Ledger,
    units: u64,
    now_us: u64,
) -> Option<u64> {
    account.books.next_period_us()?;
    let (next_us, length_us) = next_period_us(account, ledger, now_us);
    if length_us == 0 {
        return Some(next_us);
    }
    let may_have = units <= account.binding.policy.kind.largest_cost();
    may_have.then(|| next_us.saturating_add(length_us))
}

/// About when an account's next period begins, and how long the present one is by the
/// clocks; 0: none has begun. It may be late: the leader waits for a majority.
fn next_period_us(account: &Account, ledger: &Ledger, now_us: u64) -> (u64, u64) {
    let late = now_us.saturating_add(PERIOD_RETRY_US);
    let calendar = account.binding.policy.kind.calendar();
    let period = calendar.and_then(|calendar| ledger.accounts.periods().get(calendar));
    let next_us = match account.books.next_period_us() {
        Some(next_us) if next_us > now_us => next_us,
        _ => late,
    };
    let length_us = period.map_or(0, |period| {
        period.end_unix_us.abs_diff(period.start_unix_us)
    });
    (next_us, length_us)
}

/// What to tell of a spend that was decided at `now_us`.
fn outcome(
    account: &Account,
    ledger: &Ledger,
    units: u64,
    admitted: Result<(), Code>,
    policy: &Arc<Policy>,
    now_us: u64,
) -> SpendOutcome {
    let after = |when_us: u64| when_us.saturating_sub(now_us);
    let retry_after_us = |code| match code {
        // Exactly when enough units are free; when time alone does not free
        // them, not before a holder's session ends.
        Code::Limit => free_by_time(account, ledger, units, now_us)
            .or_else(|| earliest_deadline(account, &ledger.sessions))
            .or_else(|| free_in_later_period(account, ledger, units, now_us))
            .map(|when_us| after(when_us.max(account.cooling_until_us))),
        Code::Cooldown => account.cooling_us(now_us),
        Code::TooManyAccounts => Some(ACCOUNTS_RETRY_US),
        Code::TooManyIdempotencyKeys => ledger.spent_once.first_due_us().map(after),
        _ => None,
    };
    let refused: Option<Refusal> = admitted
        .err()
        .map(|code| refusal(code, retry_after_us(code)));
    // Permits cannot be spent, whatever a policy counts.
    let shadows = policy.shadow && admitted != Err(Code::WrongKind);
    SpendOutcome {
        refusal: refused.filter(|_| !shadows),
        shadowed: refused.filter(|_| shadows),
        repeated: false,
        free: account.free_at(now_us),
        policy: Some(Arc::clone(policy)),
        reset_us: more_when(account, &ledger.sessions, now_us).map_or(0, after),
    }
}
