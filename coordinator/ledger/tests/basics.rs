//! The ledger's first steps: a budget, a session, grants, spends, expiry, and the
//! bytes of it all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use leasehold_key::{Key, Pattern};
use leasehold_ledger::{
    Ledger,
    entry::{Command, Entry, Grant, Report, Rule, SessionId, Sync},
    outcome::{Code, CommandOutcome},
    policy::{Kind, Policy},
};

fn window(limit: u64, window_us: u64) -> Policy {
    Policy {
        kind: Kind::SlidingWindow { limit, window_us },
        slice_factor_milli: 1_500,
        max_wait_us: 250_000,
        failure_mode: Default::default(),
        public_name: "orders".to_owned(),
    }
}

#[test]
fn a_lease_is_granted_reported_expired_and_the_books_round_trip() {
    let key = Key::parse("acme/orders").unwrap();
    let session = SessionId(9);
    let mut ledger = Ledger::new();
    let applied = ledger.apply(
        1,
        &Entry {
            now_us: 1_000_000,
            commands: vec![
                Command::PutBudget {
                    pattern: Pattern::parse("acme/*").unwrap(),
                    rule: Rule::Inline(window(100, 60_000_000)),
                },
                Command::Open {
                    session,
                    holder: "gw-1".to_owned(),
                    identity: "me".to_owned(),
                },
            ],
            grants: vec![Grant {
                session,
                key: key.clone(),
                units: 60,
            }],
            ..Entry::default()
        },
    );
    ledger.check().unwrap();
    assert_eq!(applied.grants[0].units, 60);
    assert_eq!(applied.grants[0].generation, 1);
    let applied = ledger.apply(
        2,
        &Entry {
            now_us: 2_000_000,
            syncs: vec![Sync {
                session,
                seq: 1,
                renew: true,
                close: false,
                reports: vec![Report {
                    key: key.clone(),
                    generation: 1,
                    last: false,
                    spent_total: 20,
                    returned_total: 10,
                    held: 0,
                    ages: vec![],
                }],
            }],
            commands: vec![Command::Spend {
                key: key.clone(),
                units: 51,
            }],
            ..Entry::default()
        },
    );
    ledger.check().unwrap();
    assert!(applied.syncs[0].renewed);
    let CommandOutcome::Spent(spent) = &applied.commands[0] else {
        panic!()
    };
    assert_eq!(spent.refusal.unwrap().code, Code::Limit);
    assert_eq!(spent.free, 50);
    let view = ledger.account(&key).unwrap();
    assert_eq!((view.counted, view.outstanding, view.free), (20, 30, 50));

    let bytes: Vec<u8> = ledger.freeze().chunks().flatten().collect();
    let again = Ledger::decode(bytes.as_slice()).unwrap();
    again.check().unwrap();
    assert_eq!(again.digest(), ledger.digest());
    assert_eq!(
        again.freeze().chunks().flatten().collect::<Vec<u8>>(),
        bytes
    );

    let applied = ledger.apply(
        3,
        &Entry {
            now_us: 12_000_001,
            ..Entry::default()
        },
    );
    ledger.check().unwrap();
    assert_eq!(applied.expired, vec![session]);
    let view = ledger.account(&key).unwrap();
    assert_eq!((view.counted, view.outstanding, view.free), (50, 0, 50));
    ledger.apply(
        4,
        &Entry {
            now_us: 99_000_000,
            ..Entry::default()
        },
    );
    ledger.check().unwrap();
    assert!(ledger.account(&key).is_none());
}
