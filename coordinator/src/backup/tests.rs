#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use leasehold_key::{Key, Pattern};
use leasehold_ledger::{
    entry::{Command, Entry, Rule},
    policy::{Kind, Policy},
};

use super::*;

fn ledger() -> Ledger {
    let mut ledger = Ledger::new();
    let policy = Policy::new(Kind::SlidingWindow {
        limit: 100,
        window_us: 60_000_000,
    });
    ledger.apply(
        7,
        &Entry {
            now_us: 1_000,
            commands: vec![
                Command::NameCluster { cluster_id: 0xabc },
                Command::PutBudget {
                    pattern: Pattern::parse("acme/*").unwrap(),
                    rule: Rule::Inline(policy),
                },
                Command::Spend {
                    key: Key::parse("acme/orders").unwrap(),
                    units: 3,
                },
            ],
            ..Entry::default()
        },
    );
    ledger
}

fn header(ledger: &Ledger) -> Header {
    Header {
        cluster_id: ledger.cluster_id().map(|id| format!("{id:032x}")),
        log_index: ledger.last_index(),
        term: 3,
        cluster_time_us: ledger.now_us(),
        digest: format!("{:016x}", ledger.digest()),
        node_id: 2,
        disk_id: format!("{:032x}", 0x77),
        taken_unix_ms: 1_700_000_000_123,
        taken: Taken::Running { leader: Some(1) },
        members: vec![HeaderMember {
            node_id: 2,
            peer: "10.0.0.2:7071".to_owned(),
            client_url: "http://10.0.0.2:7070".to_owned(),
        }],
        written_by: "0.1.0".to_owned(),
    }
}

fn written() -> Vec<u8> {
    let ledger = ledger();
    let mut bytes = header(&ledger).encode().unwrap();
    bytes.extend(ledger.freeze().chunks().flatten());
    bytes
}

#[test]
fn a_backup_of_version_1() {
    let bytes = written();
    let hex: Vec<String> = bytes
        .chunks(40)
        .map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    insta::assert_snapshot!("backup_v1", hex.join("\n"));
    let read = Backup::read(bytes.as_slice()).unwrap();
    assert_eq!(read.header, header(&ledger()));
    assert_eq!(read.ledger.digest(), ledger().digest());
    assert_eq!(read.header.taken_at(), "Tue, 14 Nov 2023 22:13:20 GMT");
}

#[test]
fn a_backup_that_is_not_what_was_written_is_refused_wherever_the_damage_is() {
    let good = written();
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 1 << (place % 8);
        assert!(
            Backup::read(bad.as_slice()).is_err(),
            "bit flipped in byte {place}"
        );
        assert!(
            Backup::read(&good[..place]).is_err(),
            "cut to {place} bytes"
        );
    }
    let longer = [good.as_slice(), &[0]].concat();
    assert_eq!(
        Backup::read(longer.as_slice()).unwrap_err().code(),
        "damaged_backup"
    );
}

#[test]
fn what_is_wrong_with_a_backup_is_said() {
    let good = written();
    let code = |bytes: &[u8]| Backup::read(bytes).unwrap_err().code();
    assert_eq!(code(b""), "not_a_backup");
    assert_eq!(
        code(b"something else altogether, and long enough"),
        "not_a_backup"
    );
    assert_eq!(code(&good[..good.len() - 1]), "damaged_backup");
    let mut newer = good.clone();
    newer[8] = 9;
    assert_eq!(code(&newer), "unknown_format");
    // A whole header before another whole ledger.
    let mut mixed = header(&ledger()).encode().unwrap();
    mixed.extend(Ledger::new().freeze().chunks().flatten());
    let error = Backup::read(mixed.as_slice()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the backup is damaged: its header speaks of another ledger; take another one"
    );
}
