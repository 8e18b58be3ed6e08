//! How far an estimate overshoots: gateways that count by themselves let no more than
//! 1.7 times the limit through under a flood that is spread evenly among them, and no
//! request waits once the policy is known. With the real ledger, lease policy and client
//! core in virtual time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use leasehold_ledger::policy::Kind;
use leasehold_sim::{
    Record, SECOND, Tally, Verdict, drive,
    system::{Leasehold, Setup},
    traffic::{Arrivals, Cost, Flow, Routing, Traffic},
};

const LIMIT: u64 = 320;
const WINDOW_US: u64 = 10 * SECOND;
const RUN_US: u64 = 45 * SECOND;

fn run(seed: u64, gateways: usize, times_the_limit: f64) -> Record {
    let kind = Kind::Estimate {
        limit: LIMIT,
        window_us: WINDOW_US,
    };
    let setup = Setup::of_one_key(seed, gateways, kind);
    let flow = Flow {
        key: 0,
        arrivals: Arrivals::Poisson {
            per_second: times_the_limit * 32.0,
        },
        routing: Routing::Even,
        cost: Cost::Fixed(1),
        from_us: 0,
        until_us: RUN_US,
    };
    let mut traffic = Traffic::new(seed, gateways, vec![flow]);
    let mut leasehold = Leasehold::new(setup);
    let mut record = Record::new();
    drive(&mut leasehold, &mut traffic, RUN_US + SECOND, &mut record);
    leasehold.check().unwrap();
    record
}

/// The most that was let through in any interval of one window.
fn most(record: &Record) -> u64 {
    let outcomes = record.outcomes().iter();
    let mut moments: Vec<u64> = outcomes
        .filter_map(|outcome| outcome.answer.as_ref())
        .filter(|answer| answer.verdict == Verdict::Admitted)
        .map(|answer| answer.at_us)
        .collect();
    moments.sort_unstable();
    let mut first = 0;
    let within = moments.iter().enumerate().map(|(last, at_us)| {
        while moments[first] + WINDOW_US <= *at_us {
            first += 1;
        }
        last - first + 1
    });
    u64::try_from(within.max().unwrap_or(0)).unwrap()
}

#[test]
fn an_estimate_overshoots_by_less_than_seven_tenths_of_the_limit_under_an_even_flood() {
    for gateways in [2, 8, 32] {
        for (seed, flood) in [(0, 10.0), (1, 100.0)] {
            let record = run(seed, gateways, flood);
            let most = most(&record);
            println!("{gateways} gateways, {flood} x: {most} of {LIMIT}");
            assert!(
                most * 10 <= LIMIT * 17,
                "{gateways} gateways, {flood} x: {most}"
            );
            assert!(
                most * 10 >= LIMIT * 9,
                "{gateways} gateways, {flood} x: {most}"
            );
            // Only the first requests wait, for the policy.
            let later = Tally::of(record.since(SECOND));
            assert_eq!(later.waited, 0, "{gateways} gateways, {flood} x");
        }
    }
}

#[test]
fn an_estimate_refuses_little_while_there_is_enough() {
    let record = run(3, 8, 0.5);
    let later = Tally::of(record.since(SECOND));
    assert!(later.percent(later.refused) < 2.0, "{later:?}");
}
