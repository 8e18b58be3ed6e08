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
    kind::{Books, SlidingWindow, Slot},
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
    #[prost(oneof = "BooksMessage", tags = "7, 8")]
    books: Option<BooksMessage>,
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
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum BooksMessage {
    #[prost(message, tag = "7")]
    SlidingWindow(SlidingWindowBooks),
    #[prost(message, tag = "8")]
    TokenBucket(TokenBucketBooks),
}

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
    });
    let books = match &account.books {
        Books::SlidingWindow(books) => BooksMessage::SlidingWindow(SlidingWindowBooks {
            dates_us: books.slots().map(|slot| slot.date_us).collect(),
            units: books.slots().map(|slot| slot.units).collect(),
        }),
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
        }),
        due_us: account.due_us,
        books: Some(books),
    })
}

/// Reads an account. Its rule is the one that its key resolves to, unless its
/// budget is gone.
pub(crate) fn read_account(
    message: AccountMessage,
    rules: &Rules,
    drift_ppm: u32,
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
    let empty = Books::new(&binding.policy.kind, drift_ppm, 0);
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
    };
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
            },
        );
    }
    Ok(account)
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
