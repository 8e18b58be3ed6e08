//! When requests come. Knows neither gateways nor keys.

use std::{cmp::Reverse, collections::BinaryHeap};

use rand::Rng as _;
use rand_distr::{Distribution as _, Exp, Poisson};

use super::Randomness;
use crate::SECOND;

/// Requests of a page load beside the page itself, on average.
const PAGE_EXTRAS: f64 = 9.0;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Independently of each other, so many a second on average.
    Poisson {
        /// Requests per second.
        per_second: f64,
    },
    /// In page loads: 1 + Poisson(9) requests uniform over one second. Loads come
    /// independently of each other.
    PageLoads {
        /// Requests per second, all in all.
        per_second: f64,
    },
    /// At even intervals.
    Steady {
        /// Requests per second.
        per_second: f64,
    },
}

#[derive(Debug)]
pub(super) struct Generator {
    arrivals: Arrivals,
    /// When the last single request or page load began, exactly.
    at_us: f64,
    /// Requests of page loads that have begun or begin next.
    pending: BinaryHeap<Reverse<u64>>,
}

impl Arrivals {
    pub(super) fn generator(self, from_us: u64) -> Generator {
        Generator {
            arrivals: self,
            at_us: float(from_us),
            pending: BinaryHeap::new(),
        }
    }
}

impl Generator {
    /// The next moment, `u64::MAX` when there is none.
    pub(super) fn next_us(&mut self, randomness: &mut Randomness) -> u64 {
        match self.arrivals {
            Arrivals::Poisson { per_second } => {
                self.at_us += gap_us(per_second, randomness);
                whole(self.at_us)
            }
            Arrivals::Steady { per_second } => {
                self.at_us += float(SECOND) / per_second;
                whole(self.at_us)
            }
            Arrivals::PageLoads { per_second } => {
                // Until it is sure that no later load brings an earlier request.
                while self
                    .pending
                    .peek()
                    .is_none_or(|Reverse(first)| *first >= whole(self.at_us))
                {
                    self.at_us += gap_us(per_second / (1.0 + PAGE_EXTRAS), randomness);
                    if whole(self.at_us) == u64::MAX {
                        break;
                    }
                    let extras = Poisson::new(PAGE_EXTRAS).map_or(0.0, |d| d.sample(randomness));
                    for _ in 0..=whole(extras) {
                        let within = randomness.random_range(0.0..float(SECOND));
                        self.pending.push(Reverse(whole(self.at_us + within)));
                    }
                }
                self.pending.pop().map_or(u64::MAX, |Reverse(at)| at)
            }
        }
    }
}

fn gap_us(per_second: f64, randomness: &mut Randomness) -> f64 {
    Exp::new(per_second).map_or(f64::INFINITY, |gaps| gaps.sample(randomness)) * float(SECOND)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds of a run are below 2^53"
)]
fn float(us: u64) -> f64 {
    us as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "moments and counts are not negative; `as` saturates"
)]
fn whole(us: f64) -> u64 {
    us as u64
}
