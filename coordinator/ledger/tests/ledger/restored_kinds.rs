//! After a restore, nothing of any kind is free that the cluster before may have used.

use leasehold_ledger::{
    AfterRestore,
    correction::Change,
    entry::{Command, Entry, Roll, Rule},
    outcome::CommandOutcome,
    policy::{Calendar, Kind, PeriodUnit},
};

use crate::log::{Log, key, pattern, policy};

const DAY_US: u64 = 24 * 3_600_000_000;

fn days() -> Calendar {
    Calendar {
        unit: PeriodUnit::Day,
        time_zone: "UTC".to_owned(),
        anchor: 0,
        anchor_month: 0,
    }
}

/// The day with this number, `into_us` after its midnight.
fn day(number: u64, into_us: u64) -> Entry {
    let start = i64::try_from(number * DAY_US).unwrap();
    Entry {
        rolls: vec![Roll {
            calendar: days(),
            start_unix_us: start,
            end_unix_us: start + i64::try_from(DAY_US).unwrap(),
            ends_in_us: DAY_US - into_us,
        }],
        ..Entry::default()
    }
}

fn with(name: &str, kind: Kind) -> Log {
    let mut log = Log::new();
    log.command(Command::RaiseFormat { version: 6 });
    log.command(Command::PutBudget {
        pattern: pattern(name),
        rule: Rule::Inline(policy(kind)),
    });
    log
}

fn daily() -> Kind {
    Kind::Period {
        limit: 10,
        calendar: days(),
        carry_over: 5,
    }
}

fn spend(log: &mut Log, name: &str, units: u64) -> bool {
    let outcome = log.command(Command::Spend {
        key: key(name),
        units,
    });
    let CommandOutcome::Spent(spent) = outcome else {
        panic!("{outcome:?}");
    };
    spent.refusal.is_none()
}

fn after_restore(log: &Log, name: &str) -> Option<AfterRestore> {
    let told = log.ledger.explain(&key(name), 1, log.now_us());
    told.after_restore
}

#[test]
fn time_frees_what_a_window_and_permits_may_have_used_and_an_explanation_says_when() {
    let window = Kind::SlidingWindow {
        limit: 5,
        window_us: 60_000_000,
    };
    for (kind, frees_s) in [(window, 70), (Kind::Concurrency { limit: 5 }, 10)] {
        let mut log = with("a", kind);
        let backup = log.ledger.clone();
        log.begin_from(&backup, 7, 10_000_000);
        let told = log.ledger.explain(&key("a"), 1, log.now_us());
        let Some(AfterRestore::FreesIn(frees_us)) = told.after_restore else {
            panic!("{told:?}");
        };
        // Drift and ticks come on top.
        let earliest_us = frees_s * 1_000_000;
        assert!(
            (earliest_us..earliest_us + 1_000_000).contains(&frees_us),
            "{frees_us}"
        );
        log.advance(frees_us - 1);
        assert!(after_restore(&log, "a").is_some());
        log.advance(1);
        assert_eq!(after_restore(&log, "a"), None);
    }
}

#[test]
fn a_day_that_began_before_the_restore_is_not_spent_twice() {
    let mut log = with("daily/*", daily());
    log.entry(day(1, 0));
    assert!(spend(&mut log, "daily/known", 4));
    // The backup is of Monday. On Tuesday the old cluster may have spent all of Tuesday's;
    // it is lost, and the new one begins on Tuesday at noon.
    let backup = log.ledger.clone();
    log.begin_from(&backup, 7, 10_000_000);
    log.advance(DAY_US / 100);
    assert!(log.entry(day(2, DAY_US / 2)).rolled);
    for name in ["daily/known", "daily/new"] {
        assert!(!spend(&mut log, name, 1), "{name}: Tuesday may be spent");
        assert_eq!(
            after_restore(&log, name),
            Some(AfterRestore::UntilNextPeriod)
        );
    }
    // Wednesday is nobody else's, and has nothing of Tuesday.
    log.advance(DAY_US / 2);
    assert!(log.entry(day(3, 0)).rolled);
    for name in ["daily/known", "daily/new", "daily/third"] {
        assert!(spend(&mut log, name, 10), "{name}: Wednesday");
        assert!(
            !spend(&mut log, name, 1),
            "{name}: nothing was carried over"
        );
        assert_eq!(after_restore(&log, name), None, "it was spent here");
    }
}

#[test]
fn a_calendar_that_the_backup_does_not_know_begins_with_nothing_free_as_well() {
    let mut log = with("other", Kind::Unlimited);
    let backup = log.ledger.clone();
    log.begin_from(&backup, 7, 10_000_000);
    log.advance(DAY_US / 100);
    // What was put in force after the backup, and spent, is put in force once more.
    log.command(Command::PutBudget {
        pattern: pattern("daily/*"),
        rule: Rule::Inline(policy(daily())),
    });
    assert!(log.entry(day(2, DAY_US / 2)).rolled);
    assert!(!spend(&mut log, "daily/a", 1));
    log.advance(DAY_US / 2);
    assert!(log.entry(day(3, 0)).rolled);
    assert!(spend(&mut log, "daily/a", 10));
}

#[test]
fn a_total_has_nothing_free_until_it_is_corrected() {
    let mut log = with("credits", Kind::Total { limit: 100 });
    assert!(spend(&mut log, "credits", 1));
    let backup = log.ledger.clone();
    log.begin_from(&backup, 7, 10_000_000);
    log.advance(400 * DAY_US);
    assert!(!spend(&mut log, "credits", 1));
    assert_eq!(after_restore(&log, "credits"), Some(AfterRestore::ForGood));
    let corrected = log.command(Command::Correct {
        key: key("credits"),
        id: "after-restore".to_owned(),
        change: Change::Adjust(40),
        reason: "as the invoices say".to_owned(),
        by: String::new(),
        wall_unix_us: 0,
    });
    assert!(matches!(
        corrected,
        CommandOutcome::Corrected { effect: 40, .. }
    ));
    assert!(spend(&mut log, "credits", 40));
    assert!(!spend(&mut log, "credits", 1));
}
