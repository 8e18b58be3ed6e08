//! Version 7 of the persisted formats: a year is a period. These files never change.

use leasehold_ledger::{
    Ledger,
    edit::{Edit, Guarded, RuleChange, Terms},
    entry::{Command, Entry, Grant, Roll, Rule, SessionId},
    policy::{Calendar, Kind, PeriodUnit, Policy},
};

use crate::{
    golden::golden,
    log::{bytes, key, open, pattern},
};

const HOLDER: SessionId = SessionId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);

fn years() -> Calendar {
    Calendar {
        unit: PeriodUnit::Year,
        time_zone: "Europe/London".to_owned(),
        anchor: 6,
        anchor_month: 4,
    }
}

fn days() -> Calendar {
    Calendar {
        unit: PeriodUnit::Day,
        anchor: 0,
        anchor_month: 0,
        ..years()
    }
}

fn policy(calendar: Calendar) -> Policy {
    Policy::new(Kind::Period {
        limit: 10,
        calendar,
        carry_over: 4,
    })
}

fn roll(start_unix_us: i64) -> Roll {
    Roll {
        calendar: years(),
        start_unix_us,
        end_unix_us: start_unix_us + 31_536_000_000_000,
        ends_in_us: 31_535_000_000_000,
    }
}

fn edit(changes: Vec<RuleChange>) -> Command {
    Command::Edit(Edit {
        changes: changes.into_iter().map(Guarded::from).collect(),
        by: "jo".to_owned(),
        wall_unix_us: 1_774_695_600_000_000,
    })
}

fn put(calendar: Calendar) -> RuleChange {
    RuleChange::PutPolicy {
        name: "yearly".to_owned(),
        policy: policy(calendar),
    }
}

/// An entry with everything that version 7 brought.
fn entry() -> Entry {
    let own = RuleChange::PutBudget {
        pattern: pattern("own"),
        terms: Terms::from(Rule::Inline(policy(years()))),
    };
    Entry {
        now_us: 1_000_000,
        rolls: vec![roll(0)],
        commands: vec![
            Command::RaiseFormat { version: 7 },
            edit(vec![put(years()), own]),
            Command::PutPolicy {
                name: "plain".to_owned(),
                policy: policy(years()),
            },
            Command::PutBudget {
                pattern: pattern("acme/*"),
                rule: Rule::Named("yearly".to_owned()),
            },
            Command::CorrectPeriod(roll(500_000)),
            open(HOLDER),
        ],
        ..Entry::default()
    }
}

fn grant(session: SessionId, text: &str, units: u64) -> Grant {
    Grant {
        session,
        key: key(text),
        units,
    }
}

/// Books of a year, with a lease, and a second year.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new();
    ledger.apply(1, &entry());
    let granting = Entry {
        now_us: 1_100_000,
        grants: vec![grant(HOLDER, "acme/a", 3), grant(HOLDER, "own", 2)],
        ..Entry::default()
    };
    ledger.apply(2, &granting);
    let next = Entry {
        now_us: 1_200_000,
        rolls: vec![roll(31_536_000_500_000)],
        grants: vec![grant(HOLDER, "acme/a", 1)],
        ..Entry::default()
    };
    assert!(ledger.apply(3, &next).rolled);
    ledger.check().unwrap();
    ledger
}

#[test]
fn entries_of_version_7_load_and_give_the_same_bytes() {
    let written = entry().encode();
    let stored = golden("entry-v7.bin", &written);
    assert_eq!(stored[..2], [8, 7]);
    assert_eq!(Entry::decode(&stored).unwrap(), entry());
    assert_eq!(written, stored);
}

#[test]
fn ledgers_of_version_7_load_and_give_the_same_bytes() {
    let ledger = ledger();
    let written = bytes(&ledger);
    let stored = golden("ledger-v7.bin", &written);
    assert_eq!(stored[8], 7);
    let loaded = Ledger::decode(stored.as_slice()).unwrap();
    loaded.check().unwrap();
    assert_eq!(loaded.totals(), ledger.totals());
    assert_eq!(bytes(&loaded), stored);
    assert_eq!(loaded.digest(), ledger.digest());
    assert_eq!(written, stored);
}

/// Each of these alone makes an entry or a snapshot one that older nodes do not read.
#[test]
fn whatever_names_a_year_is_written_as_version_7_and_nothing_else_is() {
    let version = |command: Command| {
        let entry = Entry {
            commands: vec![command],
            ..Entry::default()
        };
        entry.encode()[1]
    };
    let own = |calendar| Command::PutBudget {
        pattern: pattern("own"),
        rule: Rule::Inline(policy(calendar)),
    };
    assert_eq!(version(edit(vec![put(years())])), 7);
    assert_eq!(version(edit(vec![put(days())])), 6);
    assert_eq!((version(own(years())), version(own(days()))), (7, 6));
    assert_eq!(version(Command::CorrectPeriod(roll(0))), 7);
    assert_eq!(version(Command::RaiseFormat { version: 7 }), 7);
    assert_eq!(version(Command::RaiseFormat { version: 6 }), 6);
    let rolls = |calendar| {
        let rolls = vec![Roll {
            calendar,
            ..roll(0)
        }];
        Entry {
            rolls,
            ..Entry::default()
        }
        .encode()[1]
    };
    assert_eq!((rolls(years()), rolls(days())), (7, 6));
}

#[test]
fn a_snapshot_is_of_version_7_as_long_as_a_year_is_in_its_rules_its_periods_or_its_histories() {
    let mut ledger = Ledger::new();
    let mut step = |commands: Vec<Command>, rolls: Vec<Roll>| {
        let index = ledger.last_index() + 1;
        let entry = Entry {
            commands,
            rolls,
            ..Entry::default()
        };
        ledger.apply(index, &entry);
        let bytes = bytes(&ledger);
        let loaded = Ledger::decode(bytes.as_slice()).unwrap();
        assert_eq!(loaded.digest(), ledger.digest());
        bytes[8]
    };
    // What may be written is not what is.
    let raise = Command::RaiseFormat { version: 7 };
    assert_eq!(step(vec![raise, edit(vec![put(days())])], Vec::new()), 6);
    assert_eq!(step(vec![edit(vec![put(years())])], Vec::new()), 7);
    assert_eq!(
        step(vec![edit(vec![put(days())])], Vec::new()),
        7,
        "its history"
    );
    let delete = RuleChange::DeletePolicy {
        name: "yearly".to_owned(),
    };
    assert_eq!(step(vec![edit(vec![delete])], Vec::new()), 6);
    let own = Command::PutBudget {
        pattern: pattern("own"),
        rule: Rule::Inline(policy(years())),
    };
    assert_eq!(step(vec![own], vec![roll(0)]), 7);
}
