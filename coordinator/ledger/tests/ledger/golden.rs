//! Every version of the persisted formats must always load and, while it is the
//! written one, give the same bytes again. `BLESS=1` writes files that are not
//! there yet; one that exists is never written over.

use std::{fs, path::PathBuf};

use leasehold_ledger::{
    FormatError, Ledger, SnapshotError,
    entry::{Command, Entry, Grant, Report, Rule, SessionId, SettledLease, SpentAge, Sync},
    policy::FailureMode,
    settings::Settings,
};

use crate::log::{bucket, bytes, key, pattern, sync, window};

fn golden(name: &str, written: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if !path.exists() && std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, written).unwrap();
    }
    fs::read(&path).unwrap()
}

/// An entry with every item and every field.
fn entry() -> Entry {
    let session = SessionId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
    let mut open_policy = bucket(20, 100, 60_000_000);
    open_policy.failure_mode = FailureMode::Open;
    Entry {
        now_us: 1_700_000_000_123,
        syncs: vec![
            Sync {
                session,
                seq: 7,
                renew: true,
                close: false,
                reports: vec![Report {
                    key: key("acme/orders%2Fread"),
                    generation: 12,
                    last: false,
                    spent_total: 30,
                    returned_total: 4,
                    held: 2,
                    ages: vec![
                        SpentAge {
                            units: 3,
                            age_us: 1_500,
                        },
                        SpentAge {
                            units: 1,
                            age_us: u64::MAX,
                        },
                    ],
                }],
            },
            Sync {
                session: SessionId(1),
                seq: u64::MAX,
                renew: false,
                close: true,
                reports: vec![Report {
                    key: key("b"),
                    generation: 0,
                    last: true,
                    spent_total: 0,
                    returned_total: 0,
                    held: 0,
                    ages: Vec::new(),
                }],
            },
        ],
        commands: vec![
            Command::Open {
                session,
                holder: "gw-1".to_owned(),
                identity: "me".to_owned(),
            },
            Command::Settle {
                session,
                identity: "me".to_owned(),
                leases: vec![SettledLease {
                    key: key("a"),
                    generation: 3,
                    spent_total: 9,
                }],
            },
            Command::EndSession { session },
            Command::PutPolicy {
                name: "P".to_owned(),
                policy: window(100, 60_000_000),
            },
            Command::DeletePolicy {
                name: "P".to_owned(),
            },
            Command::PutBudget {
                pattern: pattern("acme/*"),
                rule: Rule::Named("P".to_owned()),
            },
            Command::PutBudget {
                pattern: pattern("x/**"),
                rule: Rule::Inline(open_policy),
            },
            Command::DeleteBudget {
                pattern: pattern("acme/*"),
            },
            Command::Spend {
                key: key("a"),
                units: 5,
            },
            Command::PutSettings(Settings {
                default_policy: Some("P".to_owned()),
                ..Settings::default()
            }),
            Command::RegisterNode {
                node_id: 3,
                disk_id: u128::MAX - 1,
            },
        ],
        grants: vec![Grant {
            session,
            key: key("acme/orders%2Fread"),
            units: 17,
        }],
    }
}

/// A ledger with every kind of object in every state.
fn ledger() -> Ledger {
    let (live, ended, dead) = (SessionId(1), SessionId(2), SessionId(3));
    let grant = |session, text, units| Grant {
        session,
        key: key(text),
        units,
    };
    let report = |text, generation, spent_total, returned_total| Report {
        spent_total,
        returned_total,
        ..crate::log::report(&key(text), generation)
    };
    let mut ledger = Ledger::new();
    let open = |session, identity: &str| Command::Open {
        session,
        holder: "gateway".to_owned(),
        identity: identity.to_owned(),
    };
    let entries = [
        Entry {
            now_us: 1_000_000,
            commands: vec![
                Command::PutPolicy {
                    name: "P".to_owned(),
                    policy: window(100, 60_000_000),
                },
                Command::PutPolicy {
                    name: "D".to_owned(),
                    policy: bucket(9, 7, 1_000_000),
                },
                Command::PutBudget {
                    pattern: pattern("a/*"),
                    rule: Rule::Named("P".to_owned()),
                },
                Command::PutBudget {
                    pattern: pattern("b/**"),
                    rule: Rule::Inline(bucket(50, 3, 10_000_000)),
                },
                Command::PutBudget {
                    pattern: pattern("gone"),
                    rule: Rule::Inline(window(8, 90_000_000)),
                },
                Command::PutSettings(Settings {
                    default_policy: Some("D".to_owned()),
                    ..Settings::default()
                }),
                Command::RegisterNode {
                    node_id: 1,
                    disk_id: 77,
                },
                open(live, ""),
                open(ended, "me"),
                open(dead, "you"),
            ],
            grants: vec![
                grant(live, "a/x", 30),
                grant(dead, "a/x", 20),
                grant(dead, "a/y", 5),
                grant(live, "b/x/y", 11),
                grant(ended, "b/x/y", 12),
                grant(live, "elsewhere", 4),
                grant(ended, "gone", 3),
            ],
            ..Entry::default()
        },
        Entry {
            now_us: 6_000_000,
            syncs: vec![
                sync(
                    live,
                    1,
                    vec![report("a/x", 1, 7, 2), report("b/x/y", 1, 5, 1)],
                ),
                sync(
                    ended,
                    4,
                    vec![report("b/x/y", 1, 13, 0), report("gone", 1, 2, 0)],
                ),
            ],
            commands: vec![
                Command::EndSession { session: ended },
                Command::DeleteBudget {
                    pattern: pattern("gone"),
                },
                Command::Spend {
                    key: key("b/c"),
                    units: 20,
                },
            ],
            ..Entry::default()
        },
        Entry {
            now_us: 12_500_000,
            commands: vec![
                Command::PutPolicy {
                    name: "P".to_owned(),
                    policy: window(90, 80_000_000),
                },
                Command::PutPolicy {
                    name: "D".to_owned(),
                    policy: bucket(9, 7, 900_000),
                },
            ],
            ..Entry::default()
        },
    ];
    for (index, entry) in (1..).zip(&entries) {
        ledger.apply(index, entry);
        ledger.check().unwrap();
    }
    ledger
}

#[test]
fn entries_of_version_1_load_and_give_the_same_bytes() {
    let written = entry().encode();
    let stored = golden("entry-v1.bin", &written);
    assert_eq!(Entry::decode(&stored).unwrap(), entry());
    assert_eq!(Entry::decode(&stored).unwrap().encode(), stored);
    assert_eq!(written, stored);
}

#[test]
fn ledgers_of_version_1_load_and_give_the_same_bytes() {
    let ledger = ledger();
    let written = bytes(&ledger);
    let stored = golden("ledger-v1.bin", &written);
    let loaded = Ledger::decode(stored.as_slice()).unwrap();
    loaded.check().unwrap();
    assert_eq!(bytes(&loaded), stored);
    assert_eq!(
        loaded.digest(),
        ledger.digest(),
        "the same entries lead to the same ledger"
    );
    assert_eq!(written, stored);
}

#[test]
fn a_newer_format_is_refused_with_its_version() {
    let mut newer = entry().encode();
    // The first field is the version: one byte of tag, one of value.
    assert_eq!(newer[..2], [8, 1]);
    newer[1] = 2;
    assert_eq!(
        Entry::decode(&newer),
        Err(FormatError::UnknownVersion { found: 2, known: 1 })
    );
    let mut newer = bytes(&ledger());
    newer[8] = 2;
    let error = Ledger::decode(newer.as_slice()).unwrap_err();
    assert!(
        matches!(error, SnapshotError::UnknownVersion { found: 2 }),
        "{error}"
    );
    let error = Ledger::decode(&b"something else"[..]).unwrap_err();
    assert!(matches!(error, SnapshotError::NotALedger), "{error}");
}

#[test]
fn a_damaged_ledger_is_refused_wherever_the_damage_is() {
    let good = bytes(&ledger());
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 1 << (place % 8);
        assert!(
            Ledger::decode(bad.as_slice()).is_err(),
            "bit flipped in byte {place}"
        );
        assert!(
            Ledger::decode(&good[..place]).is_err(),
            "cut to {place} bytes"
        );
    }
    let longer = [good.as_slice(), &[0]].concat();
    assert!(Ledger::decode(longer.as_slice()).is_err());
}
