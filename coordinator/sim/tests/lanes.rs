//! Strict preference: whatever floods the lower lanes, the highest one gets what it
//! asks for, as long as it alone asks for less than there is. With the real ledger,
//! lease policy and client core in virtual time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use leasehold_ledger::policy::{Kind, Lane};
use leasehold_sim::{
    Record, Request, SECOND, Source, Verdict, drive,
    system::{Leasehold, Setup, promise_of},
    traffic::{Arrivals, Cost, Flow, Routing, Traffic},
};

const LIMIT: u64 = 400;
const WINDOW_US: u64 = 10 * SECOND;
const PER_SECOND: f64 = 40.0;
const GATEWAYS: usize = 4;
const RUN_US: u64 = 60 * SECOND;
/// The lower lanes' flood begins when the highest lane is in its stride.
const FLOOD_US: u64 = 2 * WINDOW_US;

/// Traffic with a lane for each of its flows, told apart by a key that is only a mark.
struct InLanes(Traffic);

impl Source for InLanes {
    fn next_us(&self) -> Option<u64> {
        self.0.next_us()
    }

    fn next_request(&mut self) -> Request {
        let request = self.0.next_request();
        Request {
            key: 0,
            lane: u32::try_from(request.key).unwrap(),
            ..request
        }
    }
}

fn lanes(reserves: &[u64]) -> Vec<Lane> {
    (0..)
        .zip(reserves)
        .map(|(place, reserve)| Lane {
            name: format!("lane-{place}"),
            reserve: *reserve,
            max_wait_us: None,
        })
        .collect()
}

/// Requests and refusals by lane, for lanes that demand so many times the limit.
fn run(seed: u64, reserves: &[u64], demands: &[f64], routing: Routing) -> Vec<(u64, u64)> {
    let kind = Kind::SlidingWindow {
        limit: LIMIT,
        window_us: WINDOW_US,
    };
    let mut setup = Setup::of_one_key(seed, GATEWAYS, kind);
    setup.policies[0].lanes = lanes(reserves);
    setup.policies[0].validate().unwrap();
    let promise = promise_of(&setup.policies[0]);
    let flows = demands.iter().enumerate().map(|(lane, demand)| Flow {
        key: lane,
        arrivals: Arrivals::Poisson {
            per_second: demand * PER_SECOND,
        },
        routing: if lane == 0 { Routing::Even } else { routing },
        cost: Cost::Fixed(1),
        from_us: if lane == 0 { 0 } else { FLOOD_US },
        until_us: RUN_US,
    });
    let mut traffic = InLanes(Traffic::new(seed, GATEWAYS, flows.collect()));
    let mut leasehold = Leasehold::new(setup);
    let mut record = Record::new();
    drive(&mut leasehold, &mut traffic, RUN_US + SECOND, &mut record);
    leasehold.check().unwrap();
    assert_eq!(record.judge(0, &promise).over_admitted, 0);
    let mut counts = vec![(0, 0); demands.len()];
    for outcome in record.outcomes() {
        if outcome.request.at_us < FLOOD_US {
            continue;
        }
        let (requests, refused) = &mut counts[usize::try_from(outcome.request.lane).unwrap()];
        *requests += 1;
        let is_admitted = outcome
            .answer
            .is_some_and(|answer| answer.verdict == Verdict::Admitted);
        *refused += u64::from(!is_admitted);
    }
    counts
}

#[test]
fn a_high_lane_at_half_the_limit_is_refused_next_to_never_whatever_floods_the_others() {
    for seed in 0..3 {
        for routing in [Routing::Even, Routing::Skewed] {
            let counts = run(seed, &[120, 40, 0], &[0.5, 10.0, 100.0], routing);
            let (requests, refused) = counts[0];
            assert!(requests > 700, "{counts:?}");
            assert!(
                refused * 100 <= requests,
                "seed {seed}, {routing:?}: {counts:?}"
            );
            // What it leaves goes to the next lane before the last one.
            let admitted = |lane: usize| counts[lane].0 - counts[lane].1;
            assert!(admitted(1) > admitted(2), "{counts:?}");
        }
    }
}

#[test]
fn without_lanes_the_same_flood_leaves_nothing_to_the_few() {
    let counts = run(0, &[0], &[0.5, 10.0, 100.0], Routing::Even);
    let (requests, refused) = counts[0];
    assert!(refused * 2 > requests, "{counts:?}");
}
