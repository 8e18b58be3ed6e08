//! No cut of the power loses what was acknowledged, at a size that fits CI. For
//! more: `cargo run -p leasehold-tests --bin power-cut -- --cuts 5000`.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use leasehold_tests::power_cut::{self, Plan, ServePlan};

const SEED: u64 = 1;

/// Whether this machine can record. Where a machine is meant to run everything, one
/// that cannot has failed.
fn can_record() -> bool {
    let Some(why) = power_cut::missing() else {
        return true;
    };
    assert!(
        std::env::var_os("CI").is_none(),
        "{why}: CI must have it (apt-get install strace)"
    );
    eprintln!("NOT TESTED, since {why}; on Debian, apt-get install strace");
    false
}

#[test]
fn a_power_cut_loses_nothing_acknowledged_and_every_store_starts_again() {
    if !can_record() {
        return;
    }
    let report = power_cut::run(&Plan {
        cuts: 300,
        flips: 0,
        seed: SEED,
        program: env!("CARGO_BIN_EXE_power-cut").into(),
        keep: None,
    })
    .unwrap();
    println!("{}", serde_json::to_string(&report).unwrap());
    assert!(report.is_good(), "{:#?}", report.told);
    assert!(report.cuts.values().sum::<usize>() >= 300, "{report:?}");
}

#[test]
fn a_flipped_bit_is_noticed_or_does_no_harm() {
    if !can_record() {
        return;
    }
    let report = power_cut::run(&Plan {
        cuts: 20,
        flips: 200,
        seed: SEED + 1,
        program: env!("CARGO_BIN_EXE_power-cut").into(),
        keep: None,
    })
    .unwrap();
    println!("{}", serde_json::to_string(&report).unwrap());
    assert!(report.is_good(), "{:#?}", report.told);
    for file in ["identity", "log/log", "snapshots/snap"] {
        let refused = report.flips.get(file).map_or(0, |count| count.refused);
        assert!(refused > 0, "no flip in {file} was noticed: {report:?}");
    }
}

#[test]
fn a_power_cut_under_a_serving_node_loses_no_acknowledged_change() {
    if !can_record() {
        return;
    }
    let report = power_cut::cut_serve(&ServePlan {
        cuts: 80,
        seed: SEED,
        leasehold: Path::new(env!("CARGO_BIN_EXE_leasehold-under-test")).to_owned(),
    })
    .unwrap();
    println!("{}", serde_json::to_string(&report).unwrap());
    assert!(report.is_good(), "{:#?}", report.told);
    assert!(
        report.acknowledged >= 300 && report.served >= 4,
        "{report:?}"
    );
}
