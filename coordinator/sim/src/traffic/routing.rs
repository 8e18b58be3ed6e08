//! Which gateway a request goes to. Knows nothing of what becomes of it there.

use rand::Rng as _;

use super::Randomness;

/// How requests are spread over gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Each is as likely.
    Even,
    /// Gateway i (from 1) in proportion to 1/i.
    Skewed,
    /// All to one, from 0.
    One(usize),
    /// All to one that changes: drawn anew after so many microseconds.
    Moving {
        /// How long it stays.
        every_us: u64,
    },
}

#[derive(Debug)]
pub(super) struct Router {
    routing: Routing,
    gateways: usize,
    /// Cumulative weights, for a skewed routing.
    weights: Vec<f64>,
    hot: usize,
    moves_us: u64,
}

impl Routing {
    /// Each gateway's share of the requests, in the long run.
    #[must_use]
    pub fn shares(self, gateways: usize) -> Vec<f64> {
        let weights: Vec<f64> = match self {
            Self::Skewed => (1_u32..)
                .take(gateways)
                .map(|rank| 1.0 / f64::from(rank))
                .collect(),
            Self::One(one) => (0..gateways)
                .map(|gateway| if gateway == one { 1.0 } else { 0.0 })
                .collect(),
            Self::Even | Self::Moving { .. } => vec![1.0; gateways],
        };
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    pub(super) fn router(
        self,
        gateways: usize,
        from_us: u64,
        randomness: &mut Randomness,
    ) -> Router {
        let weights = match self {
            Self::Skewed => self
                .shares(gateways)
                .into_iter()
                .scan(0.0, |sum, share| {
                    *sum += share;
                    Some(*sum)
                })
                .collect(),
            _ => Vec::new(),
        };
        let hot = match self {
            Self::One(one) => one,
            _ => randomness.random_range(0..gateways),
        };
        let moves_us = match self {
            Self::Moving { every_us } => from_us.saturating_add(every_us.max(1)),
            _ => u64::MAX,
        };
        Router {
            routing: self,
            gateways,
            weights,
            hot,
            moves_us,
        }
    }
}

impl Router {
    pub(super) fn route(&mut self, at_us: u64, randomness: &mut Randomness) -> usize {
        match self.routing {
            Routing::Even => randomness.random_range(0..self.gateways),
            Routing::Skewed => {
                let point = randomness.random_range(0.0..1.0);
                let place = self.weights.partition_point(|sum| *sum <= point);
                place.min(self.gateways - 1)
            }
            Routing::One(_) => self.hot,
            Routing::Moving { every_us } => {
                while at_us >= self.moves_us {
                    self.moves_us = self.moves_us.saturating_add(every_us.max(1));
                    self.hot = randomness.random_range(0..self.gateways);
                }
                self.hot
            }
        }
    }
}
