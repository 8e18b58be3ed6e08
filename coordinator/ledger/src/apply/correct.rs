//! What operators correct by hand: judged first, then written down and done. What is
//! outstanding stays outstanding.

use std::sync::Arc;

use leasehold_key::Key;

use crate::{
    account::Account,
    correction::{CORRECTIONS_MAX, Change, Correction},
    kind::Books,
    ledger::Ledger,
    outcome::{CommandOutcome, CommandRefusal},
    policy::UNITS_MAX,
};

use super::{binding_of, fresh_books, has_room, invalid};

const ID_BYTES_MAX: usize = 64;
const REASON_BYTES_MAX: usize = 500;
const BY_BYTES_MAX: usize = 128;

/// What a correction says of itself.
pub(super) struct Words<'a> {
    pub(super) id: &'a str,
    pub(super) reason: &'a str,
    pub(super) by: &'a str,
    pub(super) wall_unix_us: i64,
}

/// Corrects an account, once per id.
pub(super) fn correct(
    ledger: &mut Ledger,
    key: &Key,
    change: Change,
    words: &Words<'_>,
) -> Result<CommandOutcome, CommandRefusal> {
    check(change, words)?;
    let (now_us, index) = (ledger.now_us, ledger.last_index);
    if ledger.accounts.get(key).is_some() {
        let corrected = ledger.accounts.update(key, now_us, |account| {
            correct_account(account, change, words, now_us, index)
        });
        return corrected.unwrap_or(Err(CommandRefusal::NoBudget));
    }
    let mut account = fresh(ledger, key)?;
    let corrected = correct_account(&mut account, change, words, now_us, index)?;
    ledger.accounts.insert(account);
    Ok(corrected)
}

fn correct_account(
    account: &mut Account,
    change: Change,
    words: &Words<'_>,
    now_us: u64,
    index: u64,
) -> Result<CommandOutcome, CommandRefusal> {
    if let Some(done) = account.corrections.find(words.id) {
        return if done.change == change {
            Ok(CommandOutcome::Corrected {
                effect: done.effect,
                repeated: true,
            })
        } else {
            Err(CommandRefusal::CorrectionExists)
        };
    }
    if account.corrections.len() >= CORRECTIONS_MAX {
        let limit = crate::accounts::count(CORRECTIONS_MAX);
        return Err(CommandRefusal::TooManyCorrections { limit });
    }
    let effect = match change {
        Change::Adjust(units) => adjust(account, units, now_us)?,
        Change::Reset => reset(account, now_us)?,
    };
    if effect > 0 && !matches!(account.books, Books::Total(_)) {
        // Units that a dead holder is presumed to have spent may be among those that no
        // longer count: nothing may be refunded for them once more.
        account.epoch = index;
    }
    account.cooling_until_us = 0;
    account.corrections.push(Correction {
        id: words.id.to_owned(),
        change,
        effect,
        reason: words.reason.to_owned(),
        by: words.by.to_owned(),
        at_us: now_us,
        wall_unix_us: words.wall_unix_us,
    });
    Ok(CommandOutcome::Corrected {
        effect,
        repeated: false,
    })
}

fn check(change: Change, words: &Words<'_>) -> Result<(), CommandRefusal> {
    let id = words.id;
    if id.is_empty() || id.len() > ID_BYTES_MAX || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid(format!(
            "id must have 1 to {ID_BYTES_MAX} visible ASCII characters"
        )));
    }
    if words.reason.trim().is_empty() || words.reason.len() > REASON_BYTES_MAX {
        return Err(invalid(format!(
            "reason ({} bytes) must have 1 to {REASON_BYTES_MAX} bytes",
            words.reason.len()
        )));
    }
    if words.by.len() > BY_BYTES_MAX {
        return Err(invalid(format!(
            "by ({} bytes) must have at most {BY_BYTES_MAX} bytes",
            words.by.len()
        )));
    }
    match change {
        Change::Adjust(units) if units == 0 || units.unsigned_abs() > UNITS_MAX => Err(invalid(
            format!("units ({units}) must be -{UNITS_MAX} to {UNITS_MAX} and not 0"),
        )),
        _ => Ok(()),
    }
}

/// The account that the key would have once it is used.
fn fresh(ledger: &Ledger, key: &Key) -> Result<Account, CommandRefusal> {
    let binding = binding_of(ledger, key).ok_or(CommandRefusal::NoBudget)?;
    if !has_room(ledger, binding) {
        return Err(CommandRefusal::TooManyAccounts);
    }
    let books = fresh_books(ledger, binding, ledger.now_us);
    let binding = Arc::clone(binding);
    Ok(Account::new(key.clone(), binding, books, ledger.last_index))
}

/// Frees units, or counts more; gives what came of it.
fn adjust(account: &mut Account, units: i64, now_us: u64) -> Result<i64, CommandRefusal> {
    let size = units.unsigned_abs();
    let done = match &mut account.books {
        Books::Total(books) => {
            let corrected = books.correct(units);
            return corrected.map(|()| units).ok_or_else(|| {
                invalid(format!(
                    "units ({units}): the limit and what was added must stay within 0 to {UNITS_MAX}"
                ))
            });
        }
        Books::Period(books) if units > 0 => {
            let uncounted = books.refund(size);
            books.add(size.saturating_sub(uncounted));
            size
        }
        Books::Concurrency(_) | Books::Unlimited => {
            return Err(CommandRefusal::WrongKind {
                why: "nothing is counted of this kind that could be adjusted: its policy's limit can be edited",
            });
        }
        books if units > 0 => books.uncount(size),
        books => {
            let room = UNITS_MAX.saturating_sub(books.counted_at(now_us));
            let counted = size.min(room);
            books.charge(counted, now_us);
            counted
        }
    };
    // Neither is above 2^53.
    let done = i64::try_from(done).unwrap_or(i64::MAX);
    Ok(if units > 0 {
        done
    } else {
        done.saturating_neg()
    })
}

/// Counts nothing any more; gives how many units that were.
fn reset(account: &mut Account, now_us: u64) -> Result<i64, CommandRefusal> {
    match &account.books {
        Books::Total(_) => Err(CommandRefusal::WrongKind {
            why: "a total is not reset: adjust it, so that its history says by how much",
        }),
        Books::Concurrency(_) => Err(CommandRefusal::WrongKind {
            why: "permits are not reset: they come back when their sessions end",
        }),
        _ => {
            let counted = account.books.counted_at(now_us);
            let uncounted = account.books.uncount(counted);
            Ok(i64::try_from(uncounted).unwrap_or(i64::MAX))
        }
    }
}
