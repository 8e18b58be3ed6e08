//! A randomized model of the whole lease: the real ledger, twice, and the real
//! spending core, with everything between them as bad as it may be. Channels
//! lose, repeat and reorder; leaders die with an entry in flight and cluster time
//! stands still until the next one; gateways freeze beyond their session's life,
//! pause between any two readings of their clock, crash and close; clocks drift
//! as far as they may. One thread, virtual time, seeded.
//!
//! After every entry both replicas check their books and agree on their digest.
//! At the end the admission instants are judged by the checkers, which know
//! nothing of either side.
//!
//! Seen to fail within a hundred runs, each with one of these planted in a copy:
//!
//! - ledger: a window's unit is held without the drift; a bucket refills at its
//!   full rate; what an expired session had outstanding is dated by its opening;
//! - core: a renewal counts from the receipt of its answer; no look at the clock
//!   after the take; a hold is committed without a look; an ended generation
//!   takes grants again; a settled session states nothing as spent;
//! - leader: elapsed time is counted from before it won.
//!
//! `LEASEHOLD_SEED=n` repeats one run, `LEASEHOLD_SECONDS=n` tries new seeds for
//! so long.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod clock;
mod coordinator;
mod gateway;
mod wire;
mod world;

use std::time::{Duration, Instant};

use world::World;

/// Seeds that every run of the tests tries.
const SEEDS: std::ops::Range<u64> = 0..60;

#[test]
fn no_schedule_over_admits() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    let mut seeds: Box<dyn Iterator<Item = u64>> = Box::new(SEEDS);
    if let Some(seed) = number("LEASEHOLD_SEED") {
        seeds = Box::new(seed..=seed);
    } else if let Some(seconds) = number("LEASEHOLD_SECONDS") {
        let give_up = Instant::now() + Duration::from_secs(seconds);
        seeds = Box::new((rand::random::<u64>()..).take_while(move |_| Instant::now() < give_up));
    }
    let (mut runs, mut admitted, mut leaders, mut expired, mut full) = (0, 0, 0, 0, 0);
    for seed in seeds {
        // Printed only when a run fails, or with --nocapture.
        println!("seed {seed}");
        let report = World::new(seed).run();
        for (key, judgement) in &report.judgements {
            assert_eq!(
                judgement.over_admitted, 0,
                "seed {seed}, {key}: {judgement:?}"
            );
            admitted += judgement.admitted;
            full += u32::from(judgement.worst_ratio >= 1.0);
        }
        runs += 1;
        leaders += report.leader_changes;
        expired += report.expired_sessions;
    }
    println!(
        "{runs} runs: {admitted} units, {leaders} leaders, {expired} sessions expired, \
         {full} keys had an interval that used all of its limit"
    );
    // A model in which little happens proves little.
    assert!(admitted > 50 * runs, "only {admitted} units in {runs} runs");
    assert!(runs < 20 || (leaders > 2 * runs && expired > runs / 2 && full > 0));
}
