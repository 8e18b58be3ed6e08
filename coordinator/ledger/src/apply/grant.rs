//! Grants: whatever is proposed, a session gets what is free and no more.

use crate::{
    account::Account,
    entry::Grant,
    ledger::Ledger,
    outcome::{Code, GrantOutcome, Refusal},
};

use super::{binding_of, fresh_books, has_room, more_when, refusal};

/// Gives `min(units, free)` to a session that lives.
pub(crate) fn grant(ledger: &mut Ledger, grant: &Grant) -> GrantOutcome {
    let Grant {
        session: id,
        ref key,
        units,
    } = *grant;
    let now_us = ledger.now_us;
    let session = match ledger.sessions.get(id) {
        None => return refused(refusal(Code::SessionExpired, None)),
        Some(session) if session.deadline_us <= now_us => {
            return refused(refusal(Code::SessionExpired, None));
        }
        Some(session) => session,
    };
    if session.ended {
        return refused(refusal(Code::SessionEnded, None));
    }
    let holds = ledger.sessions.holds(id, key);
    if !holds && ledger.sessions.key_count(id) >= ledger.settings.keys_per_session_max.into() {
        return refused(refusal(Code::TooManyKeys, None));
    }
    let index = ledger.last_index;
    let Some(binding) = binding_of(ledger, key) else {
        return refused(refusal(Code::NoBudget, None));
    };

    if ledger.accounts.get(key).is_none() {
        if !has_room(ledger, binding) {
            return refused(refusal(
                Code::TooManyAccounts,
                Some(super::ACCOUNTS_RETRY_US),
            ));
        }
        let binding = binding.clone();
        let books = fresh_books(ledger, &binding, now_us);
        let mut account = Account::new(key.clone(), binding, books, index);
        let given = if account.books.tells() {
            0
        } else {
            units.min(account.free_at(now_us))
        };
        let mut outcome = GrantOutcome {
            units: given,
            ..refused_none()
        };
        if given < units && !account.books.tells() {
            let when_us = account.more_free_when(now_us);
            outcome.refusal = Some(refusal(
                Code::Limit,
                when_us.map(|when_us| when_us.saturating_sub(now_us)),
            ));
        }
        if given > 0 || account.books.tells() {
            (outcome.generation, outcome.granted_total) = account.grant(id, given, index, now_us);
            ledger.accounts.insert(account);
            ledger.sessions.hold(id, key);
        }
        return outcome;
    }

    let sessions = &ledger.sessions;
    let outcome = ledger.accounts.update(key, now_us, |account| {
        let mut outcome = refused_none();
        let mut room = u64::MAX;
        let mut opens = true;
        if let Some((lease_id, lease)) = account.newest(id) {
            outcome.generation = lease_id.generation;
            outcome.granted_total = lease.granted;
            if account.continues(lease) {
                opens = false;
                // Running totals only grow: a lease whose total is exhausted gets
                // no more.
                room = u64::MAX.saturating_sub(lease.granted);
                if lease.misbehaved {
                    outcome.refusal = Some(refusal(Code::Misbehaved, None));
                    return (outcome, false);
                }
            }
        }
        if account.books.tells() {
            // The lease is where its holder's totals are kept; nothing is granted.
            if opens {
                (outcome.generation, outcome.granted_total) = account.grant(id, 0, index, now_us);
            }
            return (outcome, opens);
        }
        if let Some(cooling_us) = account.cooling_us(now_us) {
            outcome.refusal = Some(refusal(Code::Cooldown, Some(cooling_us)));
            return (outcome, false);
        }
        let given = units.min(account.free_at(now_us)).min(room);
        if given > 0 {
            outcome.units = given;
            (outcome.generation, outcome.granted_total) = account.grant(id, given, index, now_us);
        }
        if given < units {
            let when_us = more_when(account, sessions, now_us);
            outcome.refusal = Some(refusal(
                Code::Limit,
                when_us.map(|when_us| when_us.saturating_sub(now_us)),
            ));
        }
        (outcome, opens && given > 0)
    });
    match outcome {
        Some((outcome, opened)) => {
            if opened {
                ledger.sessions.hold(id, key);
            }
            outcome
        }
        None => refused(refusal(Code::NoBudget, None)),
    }
}

const fn refused_none() -> GrantOutcome {
    GrantOutcome {
        units: 0,
        generation: 0,
        granted_total: 0,
        refusal: None,
    }
}

const fn refused(refusal: Refusal) -> GrantOutcome {
    GrantOutcome {
        units: 0,
        generation: 0,
        granted_total: 0,
        refusal: Some(refusal),
    }
}
