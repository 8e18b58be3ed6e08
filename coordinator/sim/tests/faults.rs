//! What the product promises when things go wrong, with the real ledger, lease
//! policy and client core in virtual time: leaders die, streams are cut, holders
//! crash, freeze and come back in the middle of recalls, messages are lost and
//! repeated, and clocks drift as far as they may.
//!
//! Judged by admission instants and by answers only. `LEASEHOLD_SEEDS=n` tries n
//! seeds instead of a few.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use leasehold_ledger::policy::Kind;
use leasehold_sim::{
    Limiter as _, MILLISECOND, Record, SECOND, Source as _, Tally, Verdict, drive,
    system::{
        Fault, FaultKind, Leasehold, Network, RequestPatience, Setup, promise_of, shipped_policy,
    },
    traffic::{Arrivals, Cost, Flow, Randomness, Routing, Traffic, randomness},
};
use rand::Rng as _;

const RUN_US: u64 = 240 * SECOND;

fn window(limit: u64, window_us: u64) -> Kind {
    Kind::SlidingWindow { limit, window_us }
}

fn bucket(capacity: u64) -> Kind {
    Kind::TokenBucket {
        capacity,
        refill: capacity,
        refill_period_us: 20 * SECOND,
    }
}

fn flow(key: usize, per_second: f64, routing: Routing, cost: Cost) -> Flow {
    Flow {
        key,
        arrivals: Arrivals::Poisson { per_second },
        routing,
        cost,
        from_us: 0,
        until_us: RUN_US,
    }
}

fn faults(gateways: usize, rng: &mut Randomness) -> Vec<Fault> {
    (0..24)
        .map(|_| {
            let gateway = rng.random_range(0..gateways);
            let (kind, longest_us) = match rng.random_range(0..8) {
                0 | 1 => (FaultKind::LeaderLoss, 4 * SECOND),
                2 | 3 => (FaultKind::Freeze { gateway }, 15 * SECOND),
                4 => (FaultKind::Crash { gateway }, 10 * SECOND),
                _ => (FaultKind::Partition { gateway }, 15 * SECOND),
            };
            Fault {
                kind,
                at_us: rng.random_range(0..RUN_US),
                for_us: rng.random_range(0..=longest_us),
            }
        })
        .collect()
}

/// Three keys under a load that makes recalls frequent.
fn bad_weather(seed: u64) -> (Leasehold, Traffic, Vec<leasehold_checkers::Promise>) {
    let mut rng = randomness(seed, 77);
    let gateways = rng.random_range(2..6);
    let mut setup = Setup::of_one_key(seed, gateways, window(40, 10 * SECOND));
    setup.policies.push(shipped_policy(window(7, 3 * SECOND)));
    setup.policies.push(shipped_policy(bucket(30)));
    for policy in &mut setup.policies {
        policy.reserve = rng.random_range(0..3);
    }
    setup.network = Network {
        delay_us: rng.random_range(0..20 * MILLISECOND),
        jitter_us: rng.random_range(0..100 * MILLISECOND),
        loss: [0.0, 0.01, 0.1][rng.random_range(0..3)],
        duplication: [0.0, 0.01, 0.1][rng.random_range(0..3)],
    };
    setup.commit_us = rng.random_range(0..10 * MILLISECOND);
    setup.drift_ppm = setup.settings.max_drift_ppm;
    if rng.random() {
        setup.patience = RequestPatience::Within(2 * SECOND);
    }
    setup.faults = faults(gateways, &mut rng);
    let routing = [
        Routing::Even,
        Routing::Skewed,
        Routing::Moving {
            every_us: 7 * SECOND,
        },
    ][rng.random_range(0..3)];
    let load = [0.7, 1.0, 3.0][rng.random_range(0..3)];
    let flows = vec![
        flow(0, 4.0 * load, routing, Cost::Between(1, 3)),
        flow(1, 2.3 * load, Routing::Even, Cost::Fixed(1)),
        flow(2, 1.5 * load, routing, Cost::Fixed(1)),
    ];
    let promises = setup.policies.iter().map(promise_of).collect();
    (
        Leasehold::new(setup),
        Traffic::new(seed, gateways, flows),
        promises,
    )
}

fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("LEASEHOLD_SEEDS").ok();
    0..seeds.map_or(12, |seeds| seeds.parse().unwrap())
}

#[test]
fn nothing_is_over_admitted_and_nobody_waits_for_ever_whatever_goes_wrong() {
    let (mut admitted, mut expired, mut leaders) = (0, 0, 0);
    for seed in seeds() {
        let (mut leasehold, mut traffic, promises) = bad_weather(seed);
        let mut record = Record::new();
        // Long enough after the last fault and request that all is answered.
        drive(
            &mut leasehold,
            &mut traffic,
            RUN_US + 30 * SECOND,
            &mut record,
        );
        leasehold.check().unwrap();
        for (key, promise) in promises.iter().enumerate() {
            let judgement = record.judge(key, promise);
            assert_eq!(
                judgement.over_admitted, 0,
                "seed {seed}, key {key}: {judgement:?}"
            );
            admitted += judgement.admitted;
        }
        for outcome in record.outcomes() {
            assert!(outcome.answer.is_some(), "seed {seed}: {outcome:?}");
        }
        expired += leasehold.load().expired;
        leaders += leasehold.load().leaders;
    }
    // Runs in which little happens prove little.
    let runs = seeds().end;
    assert!(admitted > 300 * runs, "{admitted} units in {runs} runs");
    assert!(expired > runs && leaders > 2 * runs, "{expired} {leaders}");
}

#[test]
fn the_same_faults_give_the_same_books() {
    let run = |seed| {
        let (mut leasehold, mut traffic, _) = bad_weather(seed);
        let mut record = Record::new();
        drive(&mut leasehold, &mut traffic, RUN_US, &mut record);
        (leasehold.digest(), Tally::of(record.outcomes()))
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3).0, run(4).0);
}

/// One gateway parks everything and falls silent in the middle of a recall; the
/// other has to get by until the units come back.
fn a_silent_holder(kind: FaultKind, for_us: u64) -> (Tally, Tally) {
    let mut setup = Setup::of_one_key(5, 2, window(20, 60 * SECOND));
    setup.faults = vec![Fault {
        kind,
        at_us: 20 * SECOND,
        for_us,
    }];
    let promise = promise_of(&setup.policies[0]);
    let settle_us = setup.settings.session_ttl_us + 2 * SECOND;
    let mut leasehold = Leasehold::new(setup);
    // A burst at gateway 0 leaves it with a slice; then all goes to gateway 1.
    let burst = Flow {
        until_us: 6 * SECOND,
        ..flow(0, 1.5, Routing::One(0), Cost::Fixed(1))
    };
    let rest = Flow {
        from_us: 21 * SECOND,
        until_us: 50 * SECOND,
        ..flow(0, 4.0, Routing::One(1), Cost::Fixed(1))
    };
    let mut traffic = Traffic::new(5, 2, vec![burst, rest]);
    let mut record = Record::new();
    drive(&mut leasehold, &mut traffic, 60 * SECOND, &mut record);
    leasehold.check().unwrap();
    assert_eq!(record.judge(0, &promise).over_admitted, 0);
    let before = record.since(21 * SECOND);
    let back = before.partition_point(|seen| seen.request.at_us < 20 * SECOND + settle_us);
    assert!(before.iter().all(|seen| seen.answer.is_some()));
    (Tally::of(&before[..back]), Tally::of(&before[back..]))
}

#[test]
fn a_holder_that_is_cut_off_during_a_recall_blocks_nobody_for_longer_than_its_session() {
    // What it parked is presumed spent at the session's end, and settled when it is
    // back and tells what it really spent.
    let (during, after) = a_silent_holder(FaultKind::Partition { gateway: 0 }, 18 * SECOND);
    assert!(during.refused > 0, "{during:?}");
    assert!(after.admitted > 0, "{after:?}");
}

#[test]
fn a_recall_that_a_frozen_holder_slept_through_gives_nothing_twice() {
    let (_, after) = a_silent_holder(FaultKind::Freeze { gateway: 0 }, 25 * SECOND);
    assert!(after.requests > 0);
}

#[test]
fn requests_go_on_after_a_leader_died_in_the_middle_of_recalls() {
    let mut setup = Setup::of_one_key(9, 8, window(100, 10 * SECOND));
    setup.faults = vec![Fault {
        kind: FaultKind::LeaderLoss,
        at_us: 60 * SECOND,
        for_us: SECOND,
    }];
    let promise = promise_of(&setup.policies[0]);
    let mut leasehold = Leasehold::new(setup);
    let mut traffic = Traffic::new(9, 8, vec![flow(0, 9.0, Routing::Skewed, Cost::Fixed(1))]);
    let mut record = Record::new();
    drive(&mut leasehold, &mut traffic, 120 * SECOND, &mut record);
    assert_eq!(record.judge(0, &promise).over_admitted, 0);
    let refused = |from_us: u64, until_us: u64| {
        let seen = record.since(from_us);
        let end = seen.partition_point(|seen| seen.request.at_us < until_us);
        let tally = Tally::of(&seen[..end]);
        tally.percent(tally.refused)
    };
    let (before, during, after) = (
        refused(30 * SECOND, 60 * SECOND),
        refused(60 * SECOND, 62 * SECOND),
        refused(64 * SECOND, 120 * SECOND),
    );
    // Cluster time stood still for a second, in which nothing came free.
    assert!(after < before + 5.0, "{before} {after}");
    // What was parked went on being spent meanwhile.
    assert!(during < 95.0, "{during}");
}

#[test]
fn a_big_ask_is_not_starved_by_small_ones() {
    let mut setup = Setup::of_one_key(2, 4, window(20, 10 * SECOND));
    setup.patience = RequestPatience::Within(30 * SECOND);
    let mut leasehold = Leasehold::new(setup);
    // Together almost all of the limit; small ones alone more than half.
    let small = flow(0, 1.2, Routing::Even, Cost::Fixed(1));
    let big = flow(0, 0.04, Routing::Even, Cost::Fixed(15));
    let mut traffic = Traffic::new(2, 4, vec![small, big]);
    let mut record = Record::new();
    drive(&mut leasehold, &mut traffic, RUN_US, &mut record);
    let (mut big, mut served) = (0, 0);
    for seen in record.outcomes() {
        if seen.request.units == 15 && seen.request.at_us < RUN_US - 40 * SECOND {
            big += 1;
            served += u32::from(
                seen.answer
                    .is_some_and(|answer| answer.verdict == Verdict::Admitted),
            );
        }
    }
    assert!(big > 4 && 2 * served > big, "{served} of {big}");
}

#[test]
fn a_flood_at_one_gateway_does_not_shut_out_the_others() {
    let share_of_others = |flood: f64| {
        let setup = Setup::of_one_key(4, 8, window(100, 10 * SECOND));
        let mut leasehold = Leasehold::new(setup);
        // Seven gateways ask for half of the limit together.
        let mut flows: Vec<Flow> = (1..8)
            .map(|gateway| flow(0, 5.0 / 7.0, Routing::One(gateway), Cost::Fixed(1)))
            .collect();
        flows.push(flow(0, flood, Routing::One(0), Cost::Fixed(1)));
        let mut traffic = Traffic::new(4, 8, flows);
        let mut record = Record::new();
        drive(&mut leasehold, &mut traffic, RUN_US, &mut record);
        let others: Vec<_> = record
            .since(60 * SECOND)
            .iter()
            .filter(|seen| seen.request.gateway > 0)
            .copied()
            .collect();
        let tally = Tally::of(&others);
        tally.percent(tally.admitted)
    };
    let (calm, flooded) = (share_of_others(1.0), share_of_others(500.0));
    assert!(calm > 99.0, "{calm}");
    assert!(flooded > 90.0, "{flooded}");
}

#[test]
fn a_cost_above_the_limit_is_refused_at_once_and_spoils_nothing() {
    let setup = Setup::of_one_key(6, 2, window(50, 10 * SECOND));
    let mut leasehold = Leasehold::new(setup);
    let mut traffic = Traffic::new(
        6,
        2,
        vec![
            flow(0, 0.5, Routing::Even, Cost::Fixed(51)),
            flow(0, 0.5, Routing::Even, Cost::Fixed(1)),
        ],
    );
    assert!(traffic.next_us().is_some());
    let mut record = Record::new();
    drive(&mut leasehold, &mut traffic, RUN_US, &mut record);
    for seen in record.since(10 * SECOND) {
        let answer = seen.answer.unwrap();
        let admitted = answer.verdict == Verdict::Admitted;
        assert_eq!(admitted, seen.request.units == 1, "{seen:?}");
    }
    assert!(leasehold.messages().keyed > 0);
}

#[test]
fn a_long_window_that_is_hardly_used_refuses_nobody_although_demand_is_far_above_its_rate() {
    // A thousand in ten minutes at 3.6 × their rate, for as long as they last.
    let setup = Setup::of_one_key(3, 8, window(1_000, 600 * SECOND));
    let mut leasehold = Leasehold::new(setup);
    let until_us = 150 * SECOND;
    let flow = Flow {
        from_us: SECOND,
        until_us,
        ..flow(0, 6.0, Routing::Even, Cost::Fixed(1))
    };
    let mut source = Traffic::new(3, 8, vec![flow]);
    let mut record = Record::new();
    drive(&mut leasehold, &mut source, until_us, &mut record);
    let tally = Tally::of(record.outcomes());
    assert!((800..1_000).contains(&tally.requests), "{tally:?}");
    assert_eq!(tally.refused, 0, "{tally:?}");
}

/// One request of almost the whole limit now and then, at gateways in turn: what the
/// last one was given lies there when the next one comes.
#[test]
fn a_request_of_the_whole_limit_is_served_although_the_units_lie_elsewhere() {
    let period_us = 20 * SECOND;
    for (kind, units) in [(window(100, 10 * SECOND), 100), (bucket(100), 92)] {
        let mut setup = Setup::of_one_key(4, 4, kind);
        setup.patience = RequestPatience::Within(9 * SECOND);
        let mut leasehold = Leasehold::new(setup);
        let flows = (0..12).map(|turn| Flow {
            arrivals: Arrivals::Steady { per_second: 0.1 },
            from_us: (1 + turn) * period_us,
            until_us: (1 + turn) * period_us + 15 * SECOND,
            ..flow(
                0,
                1.0,
                Routing::One(usize::try_from(turn % 4).unwrap()),
                Cost::Fixed(units),
            )
        });
        let mut source = Traffic::new(4, 4, flows.collect());
        let mut record = Record::new();
        drive(&mut leasehold, &mut source, 15 * period_us, &mut record);
        let tally = Tally::of(record.outcomes());
        assert!(tally.requests >= 8, "{tally:?}");
        assert_eq!(tally.admitted, tally.requests, "{units}: {tally:?}");
    }
}

#[test]
fn a_request_of_many_units_is_gathered_for_from_many_gateways() {
    let mut setup = Setup::of_one_key(5, 32, window(100, 60 * SECOND));
    setup.patience = RequestPatience::OneAnswer;
    let mut leasehold = Leasehold::new(setup);
    let flows = vec![
        flow(0, 0.4, Routing::Even, Cost::Fixed(1)),
        flow(0, 1.0 / 60.0, Routing::Even, Cost::Fixed(30)),
    ];
    let mut source = Traffic::new(5, 32, flows);
    let mut record = Record::new();
    drive(&mut leasehold, &mut source, RUN_US, &mut record);
    let heavy = record
        .outcomes()
        .iter()
        .filter(|seen| seen.request.units == 30);
    let (mut all, mut admitted) = (0, 0);
    for seen in heavy {
        all += 1;
        let verdict = seen.answer.as_ref().map(|answer| answer.verdict);
        admitted += u64::from(verdict == Some(Verdict::Admitted));
    }
    assert!(all >= 3, "{all}");
    assert_eq!(admitted, all);
}

#[test]
fn leaders_that_are_lost_twice_at_once_are_replaced_once() {
    let mut setup = Setup::of_one_key(6, 2, window(1_000, 10 * SECOND));
    let loss = |at_us| Fault {
        kind: FaultKind::LeaderLoss,
        at_us,
        for_us: 2 * SECOND,
    };
    setup.faults = vec![loss(21 * SECOND), loss(20 * SECOND)];
    let mut leasehold = Leasehold::new(setup);
    let traffic = vec![flow(0, 20.0, Routing::Even, Cost::Fixed(1))];
    let mut source = Traffic::new(6, 2, traffic);
    let mut record = Record::new();
    drive(&mut leasehold, &mut source, 120 * SECOND, &mut record);
    let after = Tally::of(record.since(40 * SECOND));
    assert_eq!(after.refused, 0, "{after:?}");
}

#[test]
fn a_unit_does_not_go_to_and_fro_between_a_quiet_gateway_and_a_greedy_one() {
    let setup = Setup::of_one_key(7, 2, window(2, 60 * SECOND));
    let mut leasehold = Leasehold::new(setup);
    let flows = vec![
        flow(0, 0.5, Routing::One(0), Cost::Fixed(1)),
        flow(0, 0.01, Routing::One(1), Cost::Fixed(1)),
    ];
    let mut source = Traffic::new(7, 2, flows);
    let mut record = Record::new();
    drive(&mut leasehold, &mut source, RUN_US, &mut record);
    let (messages, requests) = (leasehold.messages().keyed, record.outcomes().len() as u64);
    assert!(
        messages < 10 * requests,
        "{messages} for {requests} requests"
    );
}
