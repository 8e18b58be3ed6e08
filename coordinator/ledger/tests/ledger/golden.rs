//! Every version of the persisted formats must always load and, while it is the
//! written one, give the same bytes again. `BLESS=1` writes files that are not
//! there yet; one that exists is never written over.
//! Past 600 lines because every version keeps an example of its own.

use std::{fs, path::PathBuf};

use leasehold_ledger::{
    FormatError, Ledger, SnapshotError,
    entry::{Command, Entry, Grant, Report, Rule, SessionId, SettledLease, SpentAge, Sync},
    outcome::CommandOutcome,
    policy::{FailureMode, Policy},
    settings::Settings,
};

use crate::log::{bucket, bytes, key, pattern, sync, window};

pub(crate) fn golden(name: &str, written: &[u8]) -> Vec<u8> {
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
        rolls: Vec::new(),
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
                    overrun_total: 0,
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
                    overrun_total: 0,
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

/// A policy that says what only version 2 can say.
fn newer(policy: Policy) -> Policy {
    Policy {
        reserve: 3,
        horizon_us: Some(250_000),
        ..policy
    }
}

/// The entry of version 1, and what version 2 can say more.
fn newer_entry() -> Entry {
    let mut entry = entry();
    entry.commands.extend([
        Command::PutPolicy {
            name: "N".to_owned(),
            policy: newer(window(100, 60_000_000)),
        },
        Command::PutBudget {
            pattern: pattern("n/*"),
            rule: Rule::Inline(newer(bucket(20, 100, 60_000_000))),
        },
    ]);
    entry
}

/// The ledger of version 1 after an entry with a newer named policy, a newer
/// budget, and an account that keeps a newer rule whose budget is gone.
fn newer_ledger() -> Ledger {
    let mut ledger = ledger();
    let put = |name: &str, policy| Command::PutBudget {
        pattern: pattern(name),
        rule: Rule::Inline(newer(policy)),
    };
    let entries = [
        Entry {
            commands: vec![
                Command::PutPolicy {
                    name: "N".to_owned(),
                    policy: newer(window(100, 60_000_000)),
                },
                put("n/*", bucket(20, 100, 60_000_000)),
                put("left", window(10, 60_000_000)),
            ],
            grants: vec![Grant {
                session: SessionId(1),
                key: key("left"),
                units: 2,
            }],
            ..Entry::default()
        },
        Entry {
            commands: vec![Command::DeleteBudget {
                pattern: pattern("left"),
            }],
            ..Entry::default()
        },
    ];
    for (index, entry) in (4..).zip(&entries) {
        ledger.apply(index, entry);
        ledger.check().unwrap();
    }
    ledger
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
fn what_version_1_wrote_loads_with_the_defaults() {
    let entry = Entry::decode(&golden("entry-v1.bin", &[])).unwrap();
    let policies = entry.commands.iter().filter_map(|command| match command {
        Command::PutPolicy { policy, .. }
        | Command::PutBudget {
            rule: Rule::Inline(policy),
            ..
        } => Some(policy),
        _ => None,
    });
    let defaults: Vec<_> = policies
        .map(|policy| (policy.reserve, policy.horizon_us))
        .collect();
    assert_eq!(defaults, [(0, None); 2]);
    let ledger = Ledger::decode(golden("ledger-v1.bin", &[]).as_slice()).unwrap();
    for (name, policy) in ledger.policies() {
        assert_eq!((policy.reserve, policy.horizon_us), (0, None), "{name}");
    }
}

#[test]
fn entries_of_version_2_load_and_give_the_same_bytes() {
    let written = newer_entry().encode();
    let stored = golden("entry-v2.bin", &written);
    assert_eq!(stored[..2], [8, 2]);
    assert_eq!(Entry::decode(&stored).unwrap(), newer_entry());
    assert_eq!(written, stored);
}

#[test]
fn ledgers_of_version_2_load_and_give_the_same_bytes() {
    let ledger = newer_ledger();
    let written = bytes(&ledger);
    let stored = golden("ledger-v2.bin", &written);
    assert_eq!(stored[8], 2);
    let loaded = Ledger::decode(stored.as_slice()).unwrap();
    loaded.check().unwrap();
    assert_eq!(bytes(&loaded), stored);
    assert_eq!(loaded.digest(), ledger.digest());
    assert_eq!(written, stored);
}

/// What version 2 can say, and a cluster's name.
fn named_entry() -> Entry {
    let mut entry = newer_entry();
    entry.commands.push(Command::NameCluster {
        cluster_id: u128::MAX - 2,
    });
    entry
}

/// A cluster that was restored from the ledger of version 2, and went on.
fn restored_ledger() -> Ledger {
    let (mut ledger, _) = newer_ledger().restored(0xfeed_0001_0002_0003, 30_000_000);
    ledger.check().unwrap();
    let spend = |text| Command::Spend {
        key: key(text),
        units: 1,
    };
    ledger.apply(
        9,
        &Entry {
            now_us: 50_000_000,
            commands: vec![
                crate::log::open(SessionId(4)),
                spend("b/new"),
                spend("elsewhere"),
            ],
            ..Entry::default()
        },
    );
    ledger.check().unwrap();
    ledger
}

#[test]
fn entries_of_version_3_load_and_give_the_same_bytes() {
    let written = named_entry().encode();
    let stored = golden("entry-v3.bin", &written);
    assert_eq!(stored[..2], [8, 3]);
    assert_eq!(Entry::decode(&stored).unwrap(), named_entry());
    assert_eq!(written, stored);
}

#[test]
fn ledgers_of_version_3_load_and_give_the_same_bytes() {
    let ledger = restored_ledger();
    let written = bytes(&ledger);
    let stored = golden("ledger-v3.bin", &written);
    assert_eq!(stored[8], 3);
    let loaded = Ledger::decode(stored.as_slice()).unwrap();
    loaded.check().unwrap();
    assert_eq!(bytes(&loaded), stored);
    assert_eq!(loaded.digest(), ledger.digest());
    assert_eq!(loaded.cluster_id(), Some(0xfeed_0001_0002_0003));
    assert_eq!(loaded.inherited_until_us(), 42_500_001);
    assert_eq!(written, stored);
}

#[test]
fn the_first_name_of_a_cluster_stays() {
    let name = |cluster_id| Entry {
        commands: vec![Command::NameCluster { cluster_id }],
        ..Entry::default()
    };
    let mut ledger = Ledger::new();
    let unnamed = ledger.digest();
    ledger.apply(1, &name(7));
    assert_eq!(ledger.cluster_id(), Some(7));
    assert_ne!(ledger.digest(), unnamed);
    let applied = ledger.apply(2, &name(8));
    assert_eq!(applied.commands, [CommandOutcome::Done { changed: false }]);
    assert_eq!(ledger.cluster_id(), Some(7));
}

#[test]
fn ledgers_of_version_5_load_and_give_the_same_bytes() {
    let (ledger, _) = restored_ledger().restored(5, 0);
    let written = bytes(&ledger);
    let stored = golden("ledger-v5.bin", &written);
    assert_eq!(stored[8], 5);
    let loaded = Ledger::decode(stored.as_slice()).unwrap();
    loaded.check().unwrap();
    assert_eq!(loaded.ancestors(), [0xfeed_0001_0002_0003]);
    assert_eq!(bytes(&loaded), stored);
    assert_eq!(written, stored);
}

#[test]
fn a_cluster_remembers_what_it_was_restored_from_but_not_without_end() {
    let mut ledger = Ledger::new();
    for cluster_id in 1..=40 {
        (ledger, _) = ledger.restored(cluster_id, 0);
        ledger.check().unwrap();
    }
    assert_eq!(ledger.cluster_id(), Some(40));
    assert_eq!(ledger.ancestors(), (24..40).collect::<Vec<u128>>());
    let loaded = Ledger::decode(bytes(&ledger).as_slice()).unwrap();
    assert_eq!(loaded.ancestors(), ledger.ancestors());
}

#[test]
fn each_place_of_a_newer_setting_makes_the_version_2() {
    let put_policy = |policy| Command::PutPolicy {
        name: "N".to_owned(),
        policy,
    };
    let put_budget = |policy| Command::PutBudget {
        pattern: pattern("left"),
        rule: Rule::Inline(policy),
    };
    let delete = Command::DeleteBudget {
        pattern: pattern("left"),
    };
    let open = Command::Open {
        session: SessionId(1),
        holder: "gateway".to_owned(),
        identity: String::new(),
    };
    let old = window(10, 60_000_000);
    let reserve = Policy {
        reserve: 1,
        ..old.clone()
    };
    let horizon = Policy {
        horizon_us: Some(10_000),
        ..old.clone()
    };
    for (policy, version) in [(old, 1), (reserve, 2), (horizon, 2)] {
        for command in [put_policy(policy.clone()), put_budget(policy.clone())] {
            let entry = Entry {
                commands: vec![open.clone(), command],
                grants: vec![Grant {
                    session: SessionId(1),
                    key: key("left"),
                    units: 2,
                }],
                ..Entry::default()
            };
            assert_eq!(entry.encode()[..2], [8, version]);
            let mut ledger = Ledger::new();
            ledger.apply(1, &entry);
            assert_eq!(bytes(&ledger)[8], version);
            // The account that has units out keeps the rule without its budget.
            ledger.apply(
                2,
                &Entry {
                    commands: vec![delete.clone()],
                    ..Entry::default()
                },
            );
            assert_eq!(bytes(&ledger)[8], version);
        }
    }
}

fn preferring() -> Entry {
    Entry {
        commands: vec![Command::PutSettings(Settings {
            preferred_leader_region: Some("eu-west".to_owned()),
            ..Settings::default()
        })],
        ..entry()
    }
}

#[test]
fn entries_of_version_4_load_and_give_the_same_bytes() {
    let written = preferring().encode();
    let stored = golden("entry-v4.bin", &written);
    assert_eq!(stored[..2], [8, 4]);
    assert_eq!(Entry::decode(&stored).unwrap(), preferring());
    assert_eq!(written, stored);
}

#[test]
fn ledgers_of_version_4_load_and_give_the_same_bytes() {
    let mut ledger = ledger();
    ledger.apply(100, &preferring());
    let written = bytes(&ledger);
    let stored = golden("ledger-v4.bin", &written);
    assert_eq!(stored[8], 4);
    let loaded = Ledger::decode(stored.as_slice()).unwrap();
    loaded.check().unwrap();
    assert_eq!(loaded.settings(), ledger.settings());
    assert_eq!(bytes(&loaded), stored);
    assert_eq!(loaded.digest(), ledger.digest());
    assert_eq!(written, stored);
}

#[test]
fn a_newer_format_is_refused_with_its_version() {
    for version in [0, 8] {
        let mut unknown = entry().encode();
        // The first field is the version: one byte of tag, one of value.
        assert_eq!(unknown[..2], [8, 1]);
        unknown[1] = version;
        assert_eq!(
            Entry::decode(&unknown),
            Err(FormatError::UnknownVersion {
                found: version.into(),
                known: 7
            })
        );
        let mut unknown = bytes(&ledger());
        unknown[8] = version;
        let error = Ledger::decode(unknown.as_slice()).unwrap_err();
        assert!(
            matches!(error, SnapshotError::UnknownVersion { found } if found == u32::from(version)),
            "{error}"
        );
    }
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
