//! Requests: when they arrive, where, for which key, at what cost. Knows no
//! limiter; the same seed gives the same requests whatever they are brought to.

mod arrivals;
mod replay;
mod routing;

use std::{cmp::Reverse, collections::BinaryHeap};

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

pub use arrivals::Arrivals;
pub use replay::Replay;
pub use routing::Routing;

use crate::{drive::Source, request::Request};

/// The generator that everything random here comes from: the same on every
/// machine and in every version.
pub type Randomness = ChaCha8Rng;

/// A generator of its own for one purpose of a run, so that drawing more for one
/// purpose changes nothing for another.
#[must_use]
pub fn randomness(seed: u64, purpose: u64) -> Randomness {
    let mut randomness = Randomness::seed_from_u64(seed);
    randomness.set_stream(purpose);
    randomness
}

/// What requests cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// All the same.
    Fixed(u64),
    /// Evenly between two costs, both included.
    Between(u64, u64),
}

/// One stream of requests for one key.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Which key, from 0.
    pub key: usize,
    /// How they come.
    pub arrivals: Arrivals,
    /// Where they go.
    pub routing: Routing,
    /// What they cost.
    pub cost: Cost,
    /// When the first may come.
    pub from_us: u64,
    /// None comes at this moment or later.
    pub until_us: u64,
}

/// The requests of several flows, in the order of time.
#[derive(Debug)]
pub struct Traffic {
    flows: Vec<Running>,
    /// When each flow's next request comes; at the same moment the first flow's
    /// comes first.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

#[derive(Debug)]
struct Running {
    flow: Flow,
    arrivals: arrivals::Generator,
    routes: routing::Router,
    randomness: Randomness,
}

impl Traffic {
    /// The requests of `flows` at `gateways` gateways.
    #[must_use]
    pub fn new(seed: u64, gateways: usize, flows: Vec<Flow>) -> Self {
        let mut traffic = Self {
            flows: Vec::new(),
            next: BinaryHeap::new(),
        };
        for (place, flow) in (0_u64..).zip(flows) {
            let mut own = randomness(seed, 1_000 + place);
            let routes = flow.routing.router(gateways, flow.from_us, &mut own);
            let mut arrivals = flow.arrivals.generator(flow.from_us);
            let at_us = arrivals.next_us(&mut own);
            let index = traffic.flows.len();
            if at_us < flow.until_us {
                traffic.next.push(Reverse((at_us, index)));
            }
            traffic.flows.push(Running {
                flow,
                arrivals,
                routes,
                randomness: own,
            });
        }
        traffic
    }
}

impl Source for Traffic {
    fn next_us(&self) -> Option<u64> {
        self.next.peek().map(|Reverse((at_us, _))| *at_us)
    }

    fn next_request(&mut self) -> Request {
        let Some(Reverse((at_us, index))) = self.next.pop() else {
            // Asked for more than there are: there is nothing better to say.
            return Request {
                id: 0,
                at_us: u64::MAX,
                gateway: 0,
                key: 0,
                units: 1,
                lane: crate::LOWEST_LANE,
            };
        };
        let running = &mut self.flows[index];
        let gateway = running.routes.route(at_us, &mut running.randomness);
        let units = match running.flow.cost {
            Cost::Fixed(units) => units,
            Cost::Between(least, most) => running.randomness.random_range(least..=most),
        };
        let next_us = running.arrivals.next_us(&mut running.randomness);
        if next_us < running.flow.until_us {
            self.next.push(Reverse((next_us, index)));
        }
        Request {
            id: 0,
            at_us,
            gateway,
            key: running.flow.key,
            units,
            lane: crate::LOWEST_LANE,
        }
    }
}
