//! Every input that was ever worth keeping still holds: the corpora of the fuzz
//! targets, run once each. `cargo test -p leasehold-fuzz-targets -- --ignored` writes
//! the seeds again, where a format has changed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::PathBuf};

use leasehold_fuzz_targets::{TARGETS, run, store::Whole};
use prost::Message as _;

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../corpus")
        .join(target)
}

fn replay(target: &str) {
    let mut names: Vec<PathBuf> = fs::read_dir(corpus(target))
        .unwrap()
        .map(|item| item.unwrap().path())
        .collect();
    names.sort();
    assert!(names.len() >= 3, "{target} has {} inputs", names.len());
    for name in names {
        println!("{}", name.display());
        run(target, &fs::read(&name).unwrap());
    }
}

macro_rules! replays {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target));
        })*

        #[test]
        fn every_target_has_a_corpus_that_is_replayed() {
            let replayed = [$(stringify!($target)),*];
            let targets: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(replayed.as_slice(), targets);
        }
    };
}

replays! { commands entries http_bodies identities keys ledger_snapshot messages store_open }

fn framed(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend(u16::try_from(part.len()).unwrap().to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

fn seed(target: &str, name: &str, bytes: &[u8]) {
    fs::create_dir_all(corpus(target)).unwrap();
    fs::write(corpus(target).join(format!("seed-{name}")), bytes).unwrap();
}

#[test]
#[ignore = "writes the seeds"]
fn write_the_seeds() {
    let golden = |prefix: &str| {
        let folder =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../coordinator/ledger/tests/golden");
        let mut found: Vec<(String, Vec<u8>)> = fs::read_dir(folder)
            .unwrap()
            .map(|item| item.unwrap())
            .filter_map(|item| {
                let name = item.file_name().into_string().unwrap();
                let version = name.strip_prefix(prefix)?.strip_suffix(".bin")?;
                Some((version.to_owned(), fs::read(item.path()).unwrap()))
            })
            .collect();
        found.sort();
        found
    };
    let entries = golden("entry-");
    for (version, entry) in &entries {
        seed("entries", version, &framed(std::slice::from_ref(entry)));
    }
    let all: Vec<Vec<u8>> = entries.into_iter().map(|(_, entry)| entry).collect();
    seed("entries", "all", &framed(&all));
    for (version, ledger) in golden("ledger-") {
        seed("ledger_snapshot", &version, &ledger);
        seed("ledger_snapshot", "cut", &ledger[..100]);
    }
    for (number, content) in Whole::get().files() {
        let bytes = [&[number], content.as_slice()].concat();
        seed("store_open", &number.to_string(), &bytes);
    }
    let keys = [
        "acme/orders\nacme/*\nacme/**\nacme/orders\n**",
        "a%2Fb/%C3%A9\na%2Fb/*\n*/%C3*",
        "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p\n**\n*/*",
        "\n*a\n/\n//",
    ];
    for (number, text) in keys.iter().enumerate() {
        seed("keys", &number.to_string(), text.as_bytes());
    }
    let bodies = [
        r#"{"kind":"sliding_window","limit":100,"window_ms":60000,"reserve":1,"slice_factor":1.5}"#,
        r#"{"kind":"token_bucket","capacity":10,"refill":1,"refill_period_ms":1000,"demand_horizon_ms":50}"#,
        r#"{"policy":"orders"}"#,
        r#"{"policy":{"kind":"sliding_window","limit":0,"window_ms":100,"failure_mode":"open"}}"#,
        r#"{"key":"acme/orders","units":3}"#,
        r#"{"session_ttl_ms":10000,"default_policy":null,"max_drift_ppm":1000}"#,
        r#"{"node_id":4,"peer":"127.0.0.1:7471"}"#,
        r#"[1,2.5,"x",{"kind":"#,
        r#"{"kind":"token_bucket","capacity":9007199254740991,"refill":5,"refill_period_ms":86400000,"slice_factor":0.5,"max_wait_ms":250,"reserve":2,"failure_mode":"closed","public_name":"a b"}"#,
        r#"{"sync_interval_ms":500,"sessions_per_identity_max":10,"keys_per_session_max":10,"accounts_per_pattern_max":10,"tombstone_ttl_ms":60000,"preferred_leader_region":"eu\u00e9"}"#,
        r#"{"node_id":4,"peer":"[::1]:7471","replaces":2}"#,
        r#"{"reason":"ticket 4711","id":"t-1"}"#,
        r#"{"id":"order-1","units":-500,"reason":"refunded"}"#,
        r#"{"idempotency_ttl_ms":600000,"idempotency_keys_max":100000}"#,
    ];
    for (number, body) in bodies.iter().enumerate() {
        seed("http_bodies", &number.to_string(), body.as_bytes());
    }
    write_messages();
    let mut state = 1_u64;
    for number in 0..6 {
        let random = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56).to_le_bytes()[0]
        });
        let bytes: Vec<u8> = random.take(40 << number).collect();
        seed("commands", &number.to_string(), &bytes);
    }
}

fn write_messages() {
    use leasehold_proto::v1::{
        ClientMessage, Close, KeyReport, Open, Settle, Sync, client_message::Kind,
    };
    let message = |kind| ClientMessage { kind: Some(kind) }.encode_to_vec();
    let open = Open {
        holder: "gateway-1".to_owned(),
        instance: vec![1; 16],
        ..Open::default()
    };
    let report = KeyReport {
        key_id: 1,
        key: "acme/orders".to_owned(),
        generation: 7,
        spent_total: 3,
        returned_total: 1,
        ..KeyReport::default()
    };
    let again = KeyReport {
        key: String::new(),
        r#final: true,
        ..report.clone()
    };
    let sync = |seq, reports| Sync { seq, reports };
    let settle = Settle {
        session: vec![2; 16],
        ..Settle::default()
    };
    let close = Close {
        seq: 3,
        reports: vec![again.clone()],
    };
    let all = [
        message(Kind::Open(open)),
        message(Kind::Sync(sync(1, vec![report]))),
        message(Kind::Sync(sync(2, vec![again]))),
        message(Kind::Settle(settle)),
        message(Kind::Close(close)),
    ];
    seed("messages", "all", &framed(&all));
    for (number, one) in all.iter().enumerate() {
        seed(
            "messages",
            &number.to_string(),
            &framed(std::slice::from_ref(one)),
        );
    }
}
