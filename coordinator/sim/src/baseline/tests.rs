//! What must hold of the designs whatever is measured.

use leasehold_checkers::Promise;
use leasehold_ledger::policy::Kind;

use super::{Design, Keys, SharedCounter, Syncs, Window};
use crate::{
    Limiter, Record, Request, SECOND, Verdict, drive,
    traffic::{Arrivals, Cost, Flow, Routing, Traffic},
};

const WINDOW_US: u64 = 60 * SECOND;
const LIMIT: u64 = 100;
const UNTIL_US: u64 = 1_200 * SECOND;

fn flow(key: usize, load: f64, cost: Cost) -> Flow {
    Flow {
        key,
        arrivals: Arrivals::PageLoads {
            per_second: load * 100.0 / 60.0,
        },
        routing: Routing::Skewed,
        cost,
        from_us: 0,
        until_us: UNTIL_US,
    }
}

fn run(limiter: &mut dyn Limiter, gateways: usize, load: f64, cost: Cost) -> Record {
    let mut traffic = Traffic::new(3, gateways, vec![flow(0, load, cost)]);
    let mut record = Record::new();
    drive(limiter, &mut traffic, UNTIL_US, &mut record);
    record
}

fn limiter(design: Design, gateways: usize) -> Box<dyn Limiter> {
    let syncs = Syncs::every(SECOND, 5);
    design.limiter(gateways, LIMIT, WINDOW_US, syncs, 0)
}

fn verdicts(record: &Record) -> Vec<bool> {
    let answers = record.outcomes().iter().map(|outcome| outcome.answer);
    answers
        .map(|answer| answer.is_some_and(|answer| answer.verdict == Verdict::Admitted))
        .collect()
}

#[test]
fn with_one_gateway_every_shared_count_decides_as_the_central_log_does() {
    for cost in [Cost::Fixed(1), Cost::Between(1, 5)] {
        let central = run(&mut *limiter(Design::CentralLog, 1), 1, 1.2, cost);
        for design in [
            Design::Split,
            Design::SharedCounter,
            Design::AssumeOthers,
            Design::TrackShare,
        ] {
            let own = run(&mut *limiter(design, 1), 1, 1.2, cost);
            assert_eq!(verdicts(&own), verdicts(&central), "{}", design.name());
        }
    }
}

#[test]
fn leases_and_the_central_log_never_pass_the_limit() {
    let promise = Promise::Window {
        limit: LIMIT,
        window_us: WINDOW_US,
    };
    for design in [
        Design::CentralLog,
        Design::PlainLeases,
        Design::AskWhenEmpty,
    ] {
        for (load, cost) in [(3.0, Cost::Fixed(1)), (10.0, Cost::Between(1, 30))] {
            let record = run(&mut *limiter(design, 8), 8, load, cost);
            let judged = record.judge(0, &promise);
            assert_eq!(judged.over_admitted, 0, "{}", design.name());
            assert!(judged.worst_units > 80, "{}", design.name());
        }
    }
}

#[test]
fn a_central_bucket_never_passes_its_capacity_and_refill() {
    let kind = Kind::TokenBucket {
        capacity: 20,
        refill: 100,
        refill_period_us: WINDOW_US,
    };
    let promise = Promise::Bucket {
        capacity: 20,
        refill: 100,
        refill_period_us: WINDOW_US,
        tick_us: 1,
    };
    let mut central = super::CentralLog::new(&[kind], 10_000);
    let record = run(&mut central, 8, 3.0, Cost::Fixed(1));
    let judged = record.judge(0, &promise);
    assert_eq!(judged.over_admitted, 0);
    // Twenty minutes of refill, a few tokens short for want of requests.
    assert!((1_900..=2_020).contains(&judged.admitted));
    assert_eq!(central.messages().keyed, 2 * record.outcomes().len() as u64);
}

#[test]
fn a_shared_counter_passes_the_limit_under_a_flood() {
    let mut shared = limiter(Design::SharedCounter, 8);
    let record = run(&mut *shared, 8, 100.0, Cost::Fixed(1));
    let promise = Promise::Window {
        limit: LIMIT,
        window_us: WINDOW_US,
    };
    assert!(record.judge(0, &promise).over_admitted > LIMIT);
}

#[test]
fn a_part_of_a_split_limit_is_a_fraction_rounded_up() {
    let mut split = limiter(Design::Split, 32);
    let mut answers = Vec::new();
    for id in 0..10 {
        let request = Request {
            id,
            at_us: id,
            gateway: 7,
            key: 0,
            units: 1,
            lane: crate::LOWEST_LANE,
        };
        split.request(&request, &mut answers);
    }
    let admitted = answers.iter().filter(|a| a.verdict == Verdict::Admitted);
    assert_eq!(admitted.count(), 4, "100 / 32 is 3.125");
}

#[test]
fn only_requests_that_go_to_the_store_wait() {
    let request = |id, at_us| Request {
        id,
        at_us,
        gateway: 0,
        key: 0,
        units: 1,
        lane: crate::LOWEST_LANE,
    };
    let syncs = Syncs {
        every_us: SECOND,
        offsets: super::Offsets::Aligned,
    };
    let mut asking = Design::AskWhenEmpty.limiter(2, 2, WINDOW_US, syncs, 10_000);
    let mut answers = Vec::new();
    asking.advance(0, &mut answers);
    for id in 0..4 {
        asking.request(&request(id, 1 + id), &mut answers);
    }
    let seen: Vec<_> = answers
        .iter()
        .map(|a| (a.at_us, a.verdict == Verdict::Admitted, a.waited))
        .collect();
    // The second finds nothing left, as a gateway asks for one unit at first; the
    // third is told that there is none; the fourth is not even asked for.
    assert_eq!(
        seen,
        [
            (10_001, true, true),
            (10_002, true, true),
            (10_003, false, true),
            (4, false, false)
        ]
    );
}

#[test]
fn each_key_has_a_limiter_to_itself() {
    let shared = || {
        let syncs = Syncs::every(SECOND, 5);
        SharedCounter::new(2, LIMIT, Window::Sliding(WINDOW_US), syncs)
    };
    let until_us = 600 * SECOND;
    let both = vec![flow(0, 2.0, Cost::Fixed(1)), flow(1, 0.8, Cost::Fixed(1))];
    let mut keys = Keys::new(vec![shared(), shared()]);
    let mut record = Record::new();
    drive(
        &mut keys,
        &mut Traffic::new(3, 2, both),
        until_us,
        &mut record,
    );
    let mut alone = Record::new();
    let first = vec![flow(0, 2.0, Cost::Fixed(1))];
    drive(
        &mut shared(),
        &mut Traffic::new(3, 2, first),
        until_us,
        &mut alone,
    );
    assert_eq!(record.admissions(0), alone.admissions(0));
    assert!(!record.admissions(1).is_empty());
    assert_eq!(keys.messages().regular, 2 * 2 * 600);
}
