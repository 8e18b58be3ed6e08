//! The same in the simulator: on exactly the requests that arrived, and on requests
//! of its own. Knows no process.

use std::{collections::VecDeque, thread};

use leasehold_ledger::policy::Kind;
use leasehold_sim::{
    Record, Request, SECOND, Source, Tally,
    baseline::Exact,
    drive,
    system::{Leasehold, Setup, promise_of},
    traffic::{Arrivals, Cost, Flow, Routing, Traffic},
    wait_bound_pct,
};

use super::{Outcome, Setting, delays::Delays, float};

/// Requests that are already known, in the order of time.
struct Replay(VecDeque<Request>);

impl Source for Replay {
    fn next_us(&self) -> Option<u64> {
        self.0.front().map(|request| request.at_us)
    }

    fn next_request(&mut self) -> Request {
        self.0.pop_front().unwrap_or(Request {
            id: 0,
            at_us: u64::MAX,
            gateway: 0,
            key: 0,
            units: 1,
            lane: leasehold_sim::LOWEST_LANE,
        })
    }
}

/// What the simulator says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Simulated {
    pub(super) tally: Tally,
    pub(super) over_admitted: u64,
}

/// What is true of the requests whatever limiter they meet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ideal {
    /// Refused by an exact central log, in percent.
    pub(super) refused_pct: f64,
    /// The proven bound on waits along these arrivals.
    pub(super) wait_bound_pct: f64,
}

fn kind(setting: &Setting) -> Kind {
    Kind::SlidingWindow {
        limit: setting.limit,
        window_us: setting.window_us(),
    }
}

fn run(
    setting: &Setting,
    delays: &Delays,
    seed: u64,
    source: &mut dyn Source,
    until_us: u64,
) -> Outcome<Simulated> {
    let mut setup = Setup::of_one_key(seed, setting.gateways, kind(setting));
    setup.network = delays.network();
    setup.commit_us = delays.commit_us;
    let promise = promise_of(&setup.policies[0]);
    let mut leasehold = Leasehold::new(setup);
    let mut record = Record::new();
    drive(&mut leasehold, source, until_us, &mut record);
    leasehold.check()?;
    Ok(Simulated {
        tally: Tally::of(record.since(setting.warm_up_us())),
        over_admitted: record.judge(0, &promise).over_admitted,
    })
}

/// The recorded requests, several times with delays drawn anew.
pub(super) fn replay(
    setting: &Setting,
    delays: &Delays,
    requests: &[Request],
) -> Outcome<Simulated> {
    // What is on its way at the end still arrives.
    let until_us = requests
        .last()
        .map_or(0, |last| last.at_us.saturating_add(10 * SECOND));
    each_seed(setting.seeds, |seed| {
        let mut source = Replay(requests.iter().copied().collect());
        run(setting, delays, seed, &mut source, until_us)
    })
}

/// Requests of the simulator's own at the same rate.
pub(super) fn simulate(setting: &Setting, delays: &Delays, hours: u64) -> Outcome<Simulated> {
    let until_us = setting.warm_up_us() + hours * 3_600 * SECOND;
    each_seed(setting.seeds, |seed| {
        let flow = Flow {
            key: 0,
            arrivals: Arrivals::Poisson {
                per_second: setting.per_second(),
            },
            routing: Routing::Even,
            cost: Cost::Fixed(1),
            from_us: 0,
            until_us: until_us.saturating_sub(10 * SECOND),
        };
        let mut source = Traffic::new(seed, setting.gateways, vec![flow]);
        run(setting, delays, seed, &mut source, until_us)
    })
}

fn each_seed(seeds: u64, one: impl Fn(u64) -> Outcome<Simulated> + Sync) -> Outcome<Simulated> {
    let mut sum = Simulated::default();
    thread::scope(|scope| {
        let one = &one;
        let running: Vec<_> = (1..=seeds)
            .map(|seed| scope.spawn(move || one(seed)))
            .collect();
        for run in running {
            let run = run.join().map_err(|_| "a simulation panicked")??;
            sum.tally.add(&run.tally);
            sum.over_admitted = sum.over_admitted.max(run.over_admitted);
        }
        Ok(sum)
    })
}

/// What no design can do better on these requests.
pub(super) fn ideal(setting: &Setting, requests: &[Request]) -> Ideal {
    let kind = kind(setting);
    let mut central = Exact::new(&kind);
    let (mut counted, mut refused) = (0, 0);
    for request in requests {
        let admitted = central.take(request.at_us, request.units).is_ok();
        if request.at_us >= setting.warm_up_us() {
            counted += 1;
            refused += u64::from(!admitted);
        }
    }
    let bound = wait_bound_pct(
        requests,
        &kind,
        Routing::Even,
        setting.gateways,
        setting.warm_up_us(),
    );
    Ideal {
        refused_pct: 100.0 * float(refused) / float(counted.max(1)),
        wait_bound_pct: bound.unwrap_or(0.0),
    }
}
