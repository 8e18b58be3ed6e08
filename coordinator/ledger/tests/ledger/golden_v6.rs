//! Version 6 of the persisted formats, as 0.1.0 writes it: every kind of budget and all
//! that came with them. These files never change.

use leasehold_ledger::{
    Ledger,
    correction::Change,
    edit::{Edit, Expect, Guarded, RuleChange, Terms},
    entry::{Command, Entry, Grant, Report, Roll, Rule, SessionId, SpentAge},
    outcome::CommandOutcome,
    policy::{Calendar, FailureMode, Kind, Lane, PeriodUnit, Policy},
    settings::Settings,
};

use crate::{
    golden::golden,
    log::{bytes, key, open, pattern, sync},
};

const HOLDER: SessionId = SessionId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);

fn months() -> Calendar {
    Calendar {
        unit: PeriodUnit::Month,
        time_zone: "Europe/Berlin".to_owned(),
        anchor: 31,
        anchor_month: 0,
    }
}

fn roll(start_unix_us: i64) -> Roll {
    Roll {
        calendar: months(),
        start_unix_us,
        end_unix_us: start_unix_us + 1_000_000,
        ends_in_us: 900_000,
    }
}

/// One of each kind, each with what may be beside it.
fn policies() -> Vec<(&'static str, Policy)> {
    let lane = |name: &str, reserve, max_wait_us| Lane {
        name: name.to_owned(),
        reserve,
        max_wait_us,
    };
    let kinds = [
        (
            "window",
            Kind::SlidingWindow {
                limit: 100,
                window_us: 60_000_000,
            },
        ),
        (
            "bucket",
            Kind::TokenBucket {
                capacity: 20,
                refill: 3,
                refill_period_us: 1_000_000,
            },
        ),
        (
            "paced",
            Kind::Paced {
                capacity: 5,
                refill: 50,
                refill_period_us: 1_000_000,
            },
        ),
        (
            "period",
            Kind::Period {
                limit: 10,
                calendar: months(),
                carry_over: 4,
            },
        ),
        ("total", Kind::Total { limit: 5 }),
        ("permits", Kind::Concurrency { limit: 3 }),
        (
            "estimate",
            Kind::Estimate {
                limit: 100,
                window_us: 60_000_000,
            },
        ),
        ("unlimited", Kind::Unlimited),
    ];
    let mut policies: Vec<(&str, Policy)> = kinds
        .into_iter()
        .map(|(name, kind)| (name, Policy::new(kind)))
        .collect();
    policies[0].1.lanes = vec![lane("payment", 20, Some(1_000_000)), lane("rest", 0, None)];
    policies[0].1.cooldown_us = 5_000_000;
    policies[1].1.failure_mode = FailureMode::Emergency { units: None };
    policies[2].1.failure_mode = FailureMode::Emergency { units: Some(7) };
    policies[3].1.hold_max_us = 90_000_000;
    policies[4].1.shadow = true;
    policies
}

fn edit(changes: Vec<Guarded>) -> Command {
    Command::Edit(Edit {
        changes,
        by: "jo".to_owned(),
        wall_unix_us: 1_774_695_600_000_000,
    })
}

fn correct(key_text: &str, id: &str, change: Change) -> Command {
    Command::Correct {
        key: key(key_text),
        id: id.to_owned(),
        change,
        reason: "goodwill".to_owned(),
        by: "jo".to_owned(),
        wall_unix_us: 1_774_695_600_000_000,
    }
}

/// An entry with everything that version 6 brought.
fn entry() -> Entry {
    let mut changes: Vec<Guarded> = Vec::new();
    for (name, policy) in policies() {
        changes.push(Guarded {
            change: RuleChange::PutPolicy {
                name: name.to_owned(),
                policy,
            },
            expect: Expect::Absent,
        });
        changes.push(
            RuleChange::PutBudget {
                pattern: pattern(&format!("{name}/*")),
                terms: Terms {
                    rule: Rule::Named(name.to_owned()),
                    accounts_max: (name == "total").then_some(7),
                },
            }
            .into(),
        );
    }
    let conditions = vec![
        Guarded {
            change: RuleChange::DeletePolicy {
                name: "gone".to_owned(),
            },
            expect: Expect::OneOf(vec![1, u64::MAX]),
        },
        Guarded {
            change: RuleChange::DeleteBudget {
                pattern: pattern("gone"),
            },
            expect: Expect::Present,
        },
        Guarded {
            change: RuleChange::PutSettings(Settings {
                idempotency_ttl_us: 1_000_000,
                idempotency_keys_max: 9,
                ..Settings::default()
            }),
            expect: Expect::Anything,
        },
    ];
    Entry {
        now_us: 1_000_000,
        syncs: vec![sync(
            HOLDER,
            3,
            vec![Report {
                key: key("window/a"),
                generation: 2,
                last: false,
                spent_total: 5,
                returned_total: 1,
                held: 1,
                ages: vec![SpentAge {
                    units: 5,
                    age_us: 10,
                }],
                overrun_total: 4,
            }],
        )],
        rolls: vec![roll(0)],
        commands: vec![
            Command::RaiseFormat { version: 6 },
            edit(changes),
            edit(conditions),
            Command::CorrectPeriod(roll(500_000)),
            Command::CoolDown {
                key: key("window/a"),
            },
            Command::SpendOnce {
                key: key("window/a"),
                units: 2,
                idempotency_key: "order-4711".to_owned(),
            },
            correct("total/a", "invoice-1", Change::Adjust(-3)),
            correct("window/a", "ticket-2", Change::Reset),
        ],
        grants: Vec::new(),
    }
}

#[test]
fn entries_of_version_6_load_and_give_the_same_bytes() {
    let written = entry().encode();
    let stored = golden("entry-v6.bin", &written);
    assert_eq!(stored[..2], [8, 6]);
    assert_eq!(Entry::decode(&stored).unwrap(), entry());
    assert_eq!(written, stored);
}

/// Books of every kind, with leases, corrections, overrun, a cool-down, a second period
/// and a spend that is remembered.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new();
    let mut first = entry();
    first.syncs.clear();
    first.commands.truncate(2);
    first.commands.insert(1, open(HOLDER));
    ledger.apply(1, &first);
    let names = [
        "window",
        "bucket",
        "paced",
        "period",
        "total",
        "permits",
        "estimate",
        "unlimited",
    ];
    let grants = names.map(|name| Grant {
        session: HOLDER,
        key: key(&format!("{name}/a")),
        units: 3,
    });
    let granting = Entry {
        now_us: 1_100_000,
        grants: grants.into(),
        ..Entry::default()
    };
    ledger.apply(2, &granting);
    let reports = names.map(|name| Report {
        key: key(&format!("{name}/a")),
        generation: 2,
        last: false,
        spent_total: 2,
        returned_total: 0,
        held: 0,
        ages: Vec::new(),
        overrun_total: 1,
    });
    let using = Entry {
        now_us: 1_200_000,
        syncs: vec![sync(HOLDER, 1, reports.into())],
        rolls: vec![roll(1_000_000)],
        commands: vec![
            Command::SpendOnce {
                key: key("window/b"),
                units: 2,
                idempotency_key: "order-4711".to_owned(),
            },
            correct("total/a", "invoice-1", Change::Adjust(9)),
            correct("window/a", "ticket-2", Change::Reset),
            Command::CoolDown {
                key: key("window/b"),
            },
        ],
        grants: vec![Grant {
            session: HOLDER,
            key: key("period/a"),
            units: 1,
        }],
    };
    let applied = ledger.apply(3, &using);
    let refused = |outcome: &CommandOutcome| matches!(outcome, CommandOutcome::Refused(_));
    assert!(!applied.commands.iter().any(refused), "{applied:?}");
    ledger.check().unwrap();
    ledger
}

#[test]
fn ledgers_of_version_6_load_and_give_the_same_bytes() {
    let ledger = ledger();
    let written = bytes(&ledger);
    let stored = golden("ledger-v6.bin", &written);
    assert_eq!(stored[8], 6);
    let loaded = Ledger::decode(stored.as_slice()).unwrap();
    loaded.check().unwrap();
    assert_eq!(loaded.totals(), ledger.totals());
    assert_eq!(bytes(&loaded), stored);
    assert_eq!(loaded.digest(), ledger.digest());
    assert_eq!(written, stored);
}
