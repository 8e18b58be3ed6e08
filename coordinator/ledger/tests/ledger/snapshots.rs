//! Freezing, chunks, listings, bounds per entry: the ledger as a data structure.

use leasehold_ledger::{
    CHUNK_BYTES_MAX, Ledger,
    correction::Change,
    edit::{Edit, RuleChange, Terms},
    entry::{Command, Entry, Grant, Rule, SessionId},
    outcome::{Availability, CommandOutcome},
    settings::Settings,
};
use proptest::prelude::*;

use crate::log::{Log, bucket, bytes, key, open, pattern, report, sync, window};

/// A log with budgets `w/**` (window) and `b/**` (bucket).
fn log() -> Log {
    let mut log = Log::new();
    log.command(Command::PutBudget {
        pattern: pattern("w/**"),
        rule: Rule::Inline(window(100, 60_000_000)),
    });
    log.command(Command::PutBudget {
        pattern: pattern("b/**"),
        rule: Rule::Inline(bucket(100, 1, 1_000_000)),
    });
    log
}

#[test]
fn a_frozen_ledger_does_not_change_and_its_chunks_are_bounded() {
    let mut log = log();
    let commands = (0..3_000).map(|number| Command::Spend {
        key: key(&format!("w/{number}")),
        units: 1 + number % 7,
    });
    log.entry(Entry {
        commands: commands.collect(),
        ..Entry::default()
    });
    let before = bytes(&log.ledger);
    let frozen = log.ledger.freeze();
    assert_eq!(frozen.digest(), log.ledger.digest());
    assert_eq!(frozen.last_index(), log.ledger.last_index());

    log.advance(1_000);
    let commands = (0..3_000).step_by(3).map(|number| Command::Spend {
        key: key(&format!("w/{number}")),
        units: 1,
    });
    log.entry(Entry {
        commands: commands.collect(),
        ..Entry::default()
    });
    assert_ne!(bytes(&log.ledger), before);

    let chunks: Vec<Vec<u8>> = frozen.chunks().collect();
    assert!(chunks.len() > 1);
    assert!(
        chunks
            .iter()
            .all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_BYTES_MAX)
    );
    assert_eq!(chunks.concat(), before);
}

#[test]
fn a_record_longer_than_a_chunk_is_cut() {
    let mut log = log();
    for entry in 0..8_u128 {
        let sessions = || (0..256).map(move |number| SessionId(1 + entry * 256 + number));
        let grants = sessions().map(|session| Grant {
            session,
            key: key("w/hot"),
            units: 1,
        });
        log.command(Command::PutBudget {
            pattern: pattern("w/hot"),
            rule: Rule::Inline(window(10_000 + u64::try_from(entry).unwrap(), 60_000_000)),
        });
        log.entry(Entry {
            commands: sessions().map(open).collect(),
            grants: grants.collect(),
            ..Entry::default()
        });
    }
    assert_eq!(
        log.ledger.account(&key("w/hot")).unwrap().outstanding,
        2_048
    );
    log.restart();
    let chunks: Vec<Vec<u8>> = log.ledger.freeze().chunks().collect();
    assert!(chunks.len() > 1);
    assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES_MAX));
}

#[test]
fn an_entry_expires_a_bounded_number_of_sessions_the_oldest_first() {
    let mut log = log();
    log.command(Command::PutBudget {
        pattern: pattern("w/a"),
        rule: Rule::Inline(window(1_000, 60_000_000)),
    });
    let ids = |from: u128| (from..from + 300).map(SessionId);
    log.entry(Entry {
        commands: ids(1_000).map(open).collect(),
        ..Entry::default()
    });
    log.advance(1);
    log.entry(Entry {
        commands: ids(1).map(open).collect(),
        grants: ids(1)
            .map(|session| Grant {
                session,
                key: key("w/a"),
                units: 1,
            })
            .collect(),
        ..Entry::default()
    });
    log.advance(20_000_000);
    let applied = log.tick();
    assert!(applied.more_due);
    assert_eq!(applied.expired, ids(1_000).take(256).collect::<Vec<_>>());
    // A session whose turn has not come is over all the same, unless it renews.
    let late = SessionId(5);
    let applied = log.entry(Entry {
        grants: vec![Grant {
            session: late,
            key: key("w/a"),
            units: 1,
        }],
        ..Entry::default()
    });
    assert_eq!(applied.grants[0].units, 0);
    assert!(applied.more_due);
    let applied = log.entry(Entry {
        syncs: vec![sync(SessionId(300), 1, vec![report(&key("w/a"), 5)])],
        ..Entry::default()
    });
    assert!(applied.syncs[0].renewed && !applied.more_due);
    assert_eq!(log.ledger.totals().sessions, 1);
    assert_eq!(log.ledger.account(&key("w/a")).unwrap().outstanding, 1);
}

#[test]
fn idle_accounts_go_a_bounded_number_per_entry_until_none_is_left() {
    let mut log = log();
    for number in 0..3_000 {
        let entry = Entry {
            commands: vec![Command::Spend {
                key: key(&format!("w/{number}")),
                units: 1,
            }],
            ..Entry::default()
        };
        log.ledger.apply(log.index() + 1 + number, &entry);
    }
    let mut index = log.ledger.last_index();
    let mut left = Vec::new();
    for _ in 0..4 {
        index += 1;
        log.ledger.apply(
            index,
            &Entry {
                now_us: 100_000_000,
                ..Entry::default()
            },
        );
        log.ledger.check().unwrap();
        left.push(log.ledger.totals().accounts);
    }
    assert_eq!(left, [1_976, 952, 0, 0]);
    assert!(!log.ledger.needs_time());
}

#[test]
fn listings_are_ordered_and_continue_after_a_key() {
    let mut log = log();
    let names = ["w/b", "w/a", "w/a/x", "w/ab", "b/a", "w/c"];
    let commands = names.iter().map(|name| Command::Spend {
        key: key(name),
        units: 1,
    });
    log.entry(Entry {
        commands: commands.collect(),
        ..Entry::default()
    });
    let list = |prefix: &str, after: Option<&str>, limit| -> Vec<String> {
        let after = after.map(key);
        let views = log.ledger.accounts(prefix, after.as_ref(), limit);
        views.into_iter().map(|view| view.key.to_string()).collect()
    };
    assert_eq!(
        list("", None, 9),
        ["b/a", "w/a", "w/a/x", "w/ab", "w/b", "w/c"]
    );
    assert_eq!(list("w/a", None, 9), ["w/a", "w/a/x", "w/ab"]);
    assert_eq!(list("w/", None, 2), ["w/a", "w/a/x"]);
    assert_eq!(list("w/", Some("w/a/x"), 2), ["w/ab", "w/b"]);
    assert_eq!(list("w/", Some("b/a"), 1), ["w/a"]);
    assert_eq!(list("w/a", Some("w/b"), 9), Vec::<String>::new());
    assert_eq!(list("x", None, 9), Vec::<String>::new());

    log.entry(Entry {
        commands: [3, 1, 2].map(|id| open(SessionId(id))).to_vec(),
        ..Entry::default()
    });
    let ids = |after, limit| -> Vec<u128> {
        log.ledger
            .sessions(after, limit)
            .into_iter()
            .map(|view| view.id.0)
            .collect()
    };
    assert_eq!(ids(None, 9), [1, 2, 3]);
    assert_eq!(ids(Some(SessionId(1)), 1), [2]);
}

#[test]
fn availability_looks_ahead_without_changing_anything() {
    let mut log = log();
    let spent = log.command(Command::Spend {
        key: key("b/a"),
        units: 100,
    });
    assert!(matches!(spent, CommandOutcome::Spent(spent) if spent.refusal.is_none()));
    log.command(Command::Spend {
        key: key("w/a"),
        units: 60,
    });
    let digest = log.ledger.digest();
    let free = |name: &str, now_us| match log.ledger.available(&key(name), now_us) {
        Availability::Open {
            free, next_free_us, ..
        } => (free, next_free_us),
        other => panic!("{other:?}"),
    };
    assert_eq!(free("w/a", 0), (40, Some(60_060_001)));
    assert_eq!(free("w/a", 60_060_000), (40, Some(1)));
    assert_eq!(free("w/a", 60_060_001), (100, None));
    assert_eq!(free("b/a", 10_010_000), (10, Some(1_001_000)));
    assert_eq!(free("w/new", 5), (100, None));
    assert_eq!(log.ledger.available(&key("x"), 0), Availability::NoBudget);
    assert_eq!(log.ledger.digest(), digest);
}

#[test]
fn the_digests_of_the_last_64_entries_are_kept() {
    let mut log = log();
    let mut digests = Vec::new();
    for _ in 0..70 {
        log.advance(1);
        log.tick();
        digests.push((log.index(), log.ledger.digest()));
    }
    for (place, (index, digest)) in digests.iter().enumerate() {
        let kept = (place >= 6).then_some(*digest);
        assert_eq!(log.ledger.digest_at(*index), kept);
    }
    let restored = Ledger::decode(bytes(&log.ledger).as_slice()).unwrap();
    assert_eq!(restored.digest(), log.ledger.digest());
}

/// Entries that differ in one thing each; all else is equal, index and time included.
#[test]
fn ledgers_that_differ_in_anything_have_different_digests() {
    let commands = |commands: Vec<Command>| Entry {
        commands,
        ..Entry::default()
    };
    let spend = |units| {
        let key = key("w/a");
        commands(vec![Command::Spend { key, units }])
    };
    let budget = |limit| {
        let rule = Rule::Inline(window(limit, 60_000_000));
        let pattern = pattern("w/b");
        commands(vec![Command::PutBudget { pattern, rule }])
    };
    let policy = |limit| {
        let policy = window(limit, 60_000_000);
        let name = "p".to_owned();
        commands(vec![Command::PutPolicy { name, policy }])
    };
    let tombstones = |tombstone_ttl_us| {
        commands(vec![Command::PutSettings(Settings {
            tombstone_ttl_us,
            ..Settings::default()
        })])
    };
    let node = |disk_id| {
        let node_id = 7;
        commands(vec![Command::RegisterNode { node_id, disk_id }])
    };
    let edit = |by: &str, accounts_max| {
        let rule = Rule::Inline(window(5, 60_000_000));
        let terms = Terms { rule, accounts_max };
        let pattern = pattern("w/b");
        let policy = window(5, 60_000_000);
        let name = "p".to_owned();
        commands(vec![Command::Edit(Edit {
            changes: vec![
                RuleChange::PutBudget { pattern, terms }.into(),
                RuleChange::PutPolicy { name, policy }.into(),
            ],
            by: by.to_owned(),
            wall_unix_us: 7,
        })])
    };
    let lease = |units| Entry {
        grants: vec![Grant {
            session: SessionId(1),
            key: key("w/a"),
            units,
        }],
        ..commands(vec![open(SessionId(1))])
    };
    let once = |name: &str| {
        commands(vec![Command::SpendOnce {
            key: key("w/a"),
            units: 1,
            idempotency_key: name.to_owned(),
        }])
    };
    let correct = |by: &str| {
        commands(vec![Command::Correct {
            key: key("w/a"),
            id: "order-1".to_owned(),
            change: Change::Adjust(-1),
            reason: "they asked".to_owned(),
            by: by.to_owned(),
            wall_unix_us: 7,
        }])
    };
    let differences = [
        ("a name", once("request-1"), once("request-2")),
        ("a correction", correct("zoe"), correct("ann")),
        (
            "the time",
            Entry::default(),
            Entry {
                now_us: 1,
                ..Entry::default()
            },
        ),
        ("an account", spend(1), spend(2)),
        ("a lease", lease(1), lease(2)),
        (
            "a session",
            commands(vec![open(SessionId(1))]),
            commands(vec![open(SessionId(2))]),
        ),
        ("a budget", budget(1), budget(2)),
        ("a policy", policy(1), policy(2)),
        (
            "the settings",
            tombstones(60_000_000),
            tombstones(61_000_000),
        ),
        ("a node's disk", node(1), node(2)),
        ("a policy's author", edit("ada", None), edit("grace", None)),
        ("a budget's cap", edit("ada", Some(1)), edit("ada", Some(2))),
    ];
    for (what, one, other) in differences {
        let digest = |entry: &Entry| {
            let mut log = log();
            log.stamped(entry);
            log.ledger.digest()
        };
        assert_ne!(digest(&one), digest(&other), "{what} is not in the digest");
    }
}

#[test]
fn a_thousand_dates_merge_and_stay_canonical() {
    let mut log = log();
    log.command(Command::PutBudget {
        pattern: pattern("w/many"),
        rule: Rule::Inline(window(10_000, 60_000_000)),
    });
    for spend in 0..1_500_u64 {
        log.advance(7_000 + spend % 13);
        log.command(Command::Spend {
            key: key("w/many"),
            units: 1,
        });
    }
    log.restart();
    assert_eq!(log.ledger.account(&key("w/many")).unwrap().counted, 1_500);
}

#[test]
fn a_node_id_belongs_to_one_disk_for_ever() {
    let mut log = log();
    let register = |disk_id| Command::RegisterNode {
        node_id: 4,
        disk_id,
    };
    assert_eq!(
        log.command(register(7)),
        CommandOutcome::Done { changed: true }
    );
    assert_eq!(
        log.command(register(7)),
        CommandOutcome::Done { changed: false }
    );
    assert!(matches!(
        log.command(register(8)),
        CommandOutcome::Refused(_)
    ));
    log.restart();
    assert_eq!(log.ledger.node_disk(4), Some(7));
    assert_eq!(log.ledger.node_disk(5), None);
}

proptest! {
    #[test]
    fn no_bytes_make_reading_an_entry_or_a_ledger_stop(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = Entry::decode(&bytes);
        let mut snapshot = b"LEASEHLD\x01\0\0\0".to_vec();
        snapshot.extend_from_slice(&bytes);
        prop_assert!(Ledger::decode(snapshot.as_slice()).is_err());
    }
}

#[test]
fn a_window_made_longer_keeps_its_many_dates_in_a_snapshot() {
    let spends = 3_000;
    let mut log = Log::new();
    let put = |window_us| Command::PutBudget {
        pattern: pattern("w"),
        rule: Rule::Inline(window(spends, window_us)),
    };
    log.command(put(60_000_000));
    for _ in 0..spends {
        log.advance(10);
        log.command(Command::Spend {
            key: key("w"),
            units: 1,
        });
    }
    // Everything is used, so the edit charges nothing: the dates stay as many as a short
    // window may have, and more than a long one keeps.
    log.command(put(120_000_000));
    let read = Ledger::decode(bytes(&log.ledger).as_slice()).unwrap();
    assert_eq!(bytes(&read), bytes(&log.ledger));
    log.restart();
    log.advance(120_120_002);
    log.tick();
    assert!(log.ledger.account(&key("w")).is_none(), "all of it aged");
}
