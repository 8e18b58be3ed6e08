//! The persisted form of an account. Knows nothing of the other objects.

use std::sync::Arc;

use leasehold_key::Key;
use prost::Message;

use super::{
    FormatError, IdMessage, PolicyMessage, read_id, read_key, read_policy, state::RecordKind,
    write_id, write_policy,
};
use crate::{
    account::{Account, Lease, LeaseId},
    correction::{Change, Correction},
    kind::{Books, Periods, SlidingWindow, Slot},
    outcome::Lifetime,
    rules::{Binding, Rules, Source},
};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AccountMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(uint64, tag = "2")]
    epoch: u64,
    #[prost(message, optional, tag = "3")]
    gone: Option<GoneMessage>,
    #[prost(message, repeated, tag = "4")]
    leases: Vec<LeaseMessage>,
    #[prost(message, optional, tag = "5")]
    lifetime: Option<LifetimeMessage>,
    #[prost(uint64, optional, tag = "6")]
    due_us: Option<u64>,
    #[prost(oneof = "BooksMessage", tags = "7, 8, 11, 12, 13, 14, 15")]
    books: Option<BooksMessage>,
    /// From version 6 on, as everything with a greater tag than 8.
    #[prost(message, repeated, tag = "9")]
    corrections: Vec<CorrectionMessage>,
    #[prost(uint64, tag = "10")]
    cooling_until_us: u64,
    #[prost(bool, tag = "16")]
    never_forgets: bool,
}

#[derive(Clone, PartialEq, Message)]
struct CorrectionMessage {
    #[prost(string, tag = "1")]
    id: String,
    /// None: a reset.
    #[prost(int64, optional, tag = "2")]
    adjust: Option<i64>,
    #[prost(int64, tag = "3")]
    effect: i64,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(string, tag = "5")]
    by: String,
    #[prost(uint64, tag = "6")]
    at_us: u64,
    #[prost(int64, tag = "7")]
    wall_unix_us: i64,
}

/// The last rule of an account whose budget is gone.
#[derive(Clone, PartialEq, Message)]
struct GoneMessage {
    #[prost(message, optional, tag = "1")]
    policy: Option<PolicyMessage>,
    #[prost(string, optional, tag = "2")]
    policy_name: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct LeaseMessage {
    #[prost(message, optional, tag = "1")]
    session: Option<IdMessage>,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(uint64, tag = "3")]
    granted: u64,
    #[prost(uint64, tag = "4")]
    spent: u64,
    #[prost(uint64, tag = "5")]
    returned: u64,
    #[prost(uint64, tag = "6")]
    first_grant_us: u64,
    #[prost(uint64, tag = "7")]
    epoch: u64,
    #[prost(bool, tag = "8")]
    misbehaved: bool,
    /// From version 6 on.
    #[prost(bool, tag = "9")]
    tells: bool,
    /// From version 6 on.
    #[prost(uint64, tag = "10")]
    overrun: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct LifetimeMessage {
    #[prost(uint64, tag = "1")]
    granted: u64,
    #[prost(uint64, tag = "2")]
    spent: u64,
    #[prost(uint64, tag = "3")]
    returned: u64,
    #[prost(uint64, tag = "4")]
    presumed_spent: u64,
    #[prost(uint64, tag = "5")]
    central: u64,
    /// From version 6 on.
    #[prost(uint64, tag = "6")]
    extra: u64,
    /// From version 6 on.
    #[prost(uint64, tag = "7")]
    overrun: u64,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum BooksMessage {
    #[prost(message, tag = "7")]
    SlidingWindow(SlidingWindowBooks),
    #[prost(message, tag = "8")]
    TokenBucket(TokenBucketBooks),
    #[prost(message, tag = "11")]
    Period(PeriodBooks),
    #[prost(message, tag = "12")]
    Total(TotalBooks),
    #[prost(message, tag = "13")]
    Concurrency(ConcurrencyBooks),
    #[prost(message, tag = "14")]
    Estimate(SlidingWindowBooks),
    #[prost(message, tag = "15")]
    Unlimited(UnlimitedBooks),
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PeriodBooks {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(uint64, tag = "2")]
    carried: u64,
    #[prost(uint64, tag = "3")]
    counted: u64,
    #[prost(uint64, tag = "4")]
    end_us_about: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct TotalBooks {
    #[prost(int64, tag = "1")]
    added: i64,
    #[prost(uint64, tag = "2")]
    counted: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ConcurrencyBooks {
    #[prost(uint64, tag = "1")]
    unknown: u64,
    #[prost(uint64, tag = "2")]
    unknown_until_us: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct UnlimitedBooks {}

#[derive(Clone, PartialEq, Message)]
struct SlidingWindowBooks {
    #[prost(uint64, repeated, tag = "1")]
    dates_us: Vec<u64>,
    #[prost(uint64, repeated, tag = "2")]
    units: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct TokenBucketBooks {
    #[prost(uint64, tag = "1")]
    counted: u64,
    #[prost(uint64, tag = "2")]
    remainder: u64,
    #[prost(uint64, tag = "3")]
    settled_us: u64,
}

pub(crate) fn account_record(key: &Key, account: &Account) -> RecordKind {
    let gone = (account.binding.source == Source::Gone).then(|| GoneMessage {
        policy: Some(write_policy(&account.binding.policy)),
        policy_name: account.binding.policy_name.clone(),
    });
    let leases = account.leases.iter().map(|(id, lease)| LeaseMessage {
        session: Some(write_id(id.session)),
        generation: id.generation,
        granted: lease.granted,
        spent: lease.spent,
        returned: lease.returned,
        first_grant_us: lease.first_grant_us,
        epoch: lease.epoch,
        misbehaved: lease.misbehaved,
        tells: lease.tells,
        overrun: lease.overrun,
    });
    let books = match &account.books {
        Books::SlidingWindow(books) => BooksMessage::SlidingWindow(write_slots(books)),
        Books::Estimate(books) => BooksMessage::Estimate(write_slots(books)),
        Books::Period(books) => {
            let (number, carried, counted, end_us_about) = books.state();
            BooksMessage::Period(PeriodBooks {
                number,
                carried,
                counted,
                end_us_about,
            })
        }
        Books::Total(books) => BooksMessage::Total(TotalBooks {
            added: books.added(),
            counted: books.counted(),
        }),
        Books::Concurrency(books) => {
            let (unknown, unknown_until_us) = books.unknown();
            BooksMessage::Concurrency(ConcurrencyBooks {
                unknown,
                unknown_until_us,
            })
        }
        Books::Unlimited => BooksMessage::Unlimited(UnlimitedBooks {}),
        Books::TokenBucket(books) => {
            let (remainder, settled_us) = books.flow_state();
            let counted = books.counted();
            BooksMessage::TokenBucket(TokenBucketBooks {
                counted,
                remainder,
                settled_us,
            })
        }
    };
    RecordKind::Account(AccountMessage {
        key: key.as_str().to_owned(),
        epoch: account.epoch,
        gone,
        leases: leases.collect(),
        lifetime: Some(LifetimeMessage {
            granted: account.lifetime.granted,
            spent: account.lifetime.spent,
            returned: account.lifetime.returned,
            presumed_spent: account.lifetime.presumed_spent,
            central: account.lifetime.central,
            extra: account.lifetime.extra,
            overrun: account.lifetime.overrun,
        }),
        due_us: account.due_us,
        books: Some(books),
        corrections: account.corrections.iter().map(write_correction).collect(),
        cooling_until_us: account.cooling_until_us,
        never_forgets: account.never_forgets,
    })
}

fn write_slots(books: &SlidingWindow) -> SlidingWindowBooks {
    SlidingWindowBooks {
        dates_us: books.slots().map(|slot| slot.date_us).collect(),
        units: books.slots().map(|slot| slot.units).collect(),
    }
}

fn write_correction(correction: &Correction) -> CorrectionMessage {
    CorrectionMessage {
        id: correction.id.clone(),
        adjust: match correction.change {
            Change::Adjust(units) => Some(units),
            Change::Reset => None,
        },
        effect: correction.effect,
        reason: correction.reason.clone(),
        by: correction.by.clone(),
        at_us: correction.at_us,
        wall_unix_us: correction.wall_unix_us,
    }
}

fn read_correction(message: CorrectionMessage) -> Correction {
    Correction {
        id: message.id,
        change: message.adjust.map_or(Change::Reset, Change::Adjust),
        effect: message.effect,
        reason: message.reason,
        by: message.by,
        at_us: message.at_us,
        wall_unix_us: message.wall_unix_us,
    }
}

/// A correction in bytes, for hashes.
pub(crate) fn correction_bytes(correction: &Correction) -> Vec<u8> {
    write_correction(correction).encode_to_vec()
}

/// Reads an account. Its rule is the one that its key resolves to, unless its
/// budget is gone.
pub(crate) fn read_account(
    message: AccountMessage,
    rules: &Rules,
    drift_ppm: u32,
    periods: &Periods,
) -> Result<Account, FormatError> {
    let key = read_key(&message.key)?;
    let binding = match message.gone {
        Some(gone) => {
            let policy = Arc::new(read_policy(gone.policy)?);
            Arc::new(Binding::gone(policy, gone.policy_name))
        }
        None => Arc::clone(rules.resolve(&key).ok_or(FormatError::Value {
            field: "account",
            why: format!("no budget matches {key}"),
        })?),
    };
    let empty = Books::new(&binding.policy.kind, drift_ppm, 0, periods);
    let books = match (
        empty,
        message
            .books
            .ok_or(FormatError::Missing { field: "books" })?,
    ) {
        (Books::SlidingWindow(books), BooksMessage::SlidingWindow(stored)) => {
            Books::SlidingWindow(read_slots(books, &stored)?)
        }
        (Books::TokenBucket(books), BooksMessage::TokenBucket(stored)) => {
            let books = books.restore(stored.counted, stored.remainder, stored.settled_us);
            if !books.is_sound() {
                return Err(FormatError::Value {
                    field: "remainder",
                    why: format!("{} is not below one unit", stored.remainder),
                });
            }
            Books::TokenBucket(books)
        }
        (Books::Estimate(books), BooksMessage::Estimate(stored)) => {
            Books::Estimate(read_slots(books, &stored)?)
        }
        (Books::Period(books), BooksMessage::Period(stored)) => Books::Period(books.restore(
            stored.number,
            bounded("carried", stored.carried)?,
            bounded("counted", stored.counted)?,
            stored.end_us_about,
        )),
        (Books::Total(books), BooksMessage::Total(stored)) => {
            bounded("added", stored.added.unsigned_abs())?;
            Books::Total(books.restore(stored.added, bounded("counted", stored.counted)?))
        }
        (Books::Concurrency(books), BooksMessage::Concurrency(stored)) => {
            let unknown = bounded("unknown", stored.unknown)?;
            Books::Concurrency(books.restore(unknown, stored.unknown_until_us))
        }
        (Books::Unlimited, BooksMessage::Unlimited(_)) => Books::Unlimited,
        _ => {
            return Err(FormatError::Value {
                field: "books",
                why: format!("{key} has books of another kind than its policy"),
            });
        }
    };
    let lifetime = message
        .lifetime
        .ok_or(FormatError::Missing { field: "lifetime" })?;
    let mut account = Account::new(key, binding, books, message.epoch);
    account.due_us = message.due_us;
    account.lifetime = Lifetime {
        granted: lifetime.granted,
        spent: lifetime.spent,
        returned: lifetime.returned,
        presumed_spent: lifetime.presumed_spent,
        central: lifetime.central,
        extra: lifetime.extra,
        overrun: lifetime.overrun,
    };
    account.cooling_until_us = message.cooling_until_us;
    account.never_forgets |= message.never_forgets;
    for correction in message.corrections {
        account.corrections.push(read_correction(correction));
    }
    for lease in message.leases {
        let id = LeaseId {
            session: read_id(lease.session)?,
            generation: lease.generation,
        };
        let sound = lease
            .spent
            .checked_add(lease.returned)
            .is_some_and(|accounted_for| accounted_for <= lease.granted);
        if !sound {
            return Err(FormatError::Value {
                field: "lease",
                why: "spent and returned exceed granted".to_owned(),
            });
        }
        account.put(
            id,
            Lease {
                granted: lease.granted,
                spent: lease.spent,
                returned: lease.returned,
                first_grant_us: lease.first_grant_us,
                epoch: lease.epoch,
                misbehaved: lease.misbehaved,
                tells: lease.tells,
                overrun: lease.overrun,
            },
        );
    }
    Ok(account)
}

/// An amount as the books bound it: sums of a few of them fit.
fn bounded(field: &'static str, units: u64) -> Result<u64, FormatError> {
    if units.leading_zeros() >= 8 {
        Ok(units)
    } else {
        Err(FormatError::Value {
            field,
            why: format!("{units} is more than any books hold"),
        })
    }
}

fn read_slots(
    mut books: SlidingWindow,
    stored: &SlidingWindowBooks,
) -> Result<SlidingWindow, FormatError> {
    let ascending = stored.dates_us.is_sorted_by(|one, next| one < next);
    let few = stored.dates_us.len() <= SlidingWindow::SLOTS_MAX;
    let total = stored
        .units
        .iter()
        .try_fold(0_u64, |sum, units| sum.checked_add(*units));
    if !ascending
        || !few
        || total.is_none()
        || stored.units.contains(&0)
        || stored.dates_us.len() != stored.units.len()
    {
        return Err(FormatError::Value {
            field: "dates_us",
            why: "dates must ascend, each with units".to_owned(),
        });
    }
    let stored = stored.dates_us.iter().zip(&stored.units);
    books.restore(stored.map(|(&date_us, &units)| Slot { date_us, units }));
    Ok(books)
}
