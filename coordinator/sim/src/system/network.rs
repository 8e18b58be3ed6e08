//! How long messages take and which are lost. Knows connections by number only.

use std::collections::BTreeMap;

use rand::Rng as _;

use super::{gateway::Connection, setup::Network};
use crate::traffic::Randomness;

/// The links between gateways and the coordinator.
#[derive(Debug)]
pub(super) struct Links {
    network: Network,
    /// When the last message of a connection arrives, by direction: a stream keeps
    /// its order.
    last_us: BTreeMap<(Connection, bool), u64>,
    rng: Randomness,
}

/// Connections that are remembered; older ones carry nothing any more.
const CONNECTIONS_MAX: usize = 65_536;

impl Links {
    pub(super) fn new(network: Network, rng: Randomness) -> Self {
        Self {
            network,
            last_us: BTreeMap::new(),
            rng,
        }
    }

    /// When a message that leaves now arrives.
    pub(super) fn arrives_us(&mut self, connection: Connection, up: bool, now_us: u64) -> u64 {
        let jitter_us = match self.network.jitter_us {
            0 => 0,
            most => self.rng.random_range(0..=most),
        };
        let at_us = now_us
            .saturating_add(self.network.delay_us)
            .saturating_add(jitter_us);
        let last_us = self.last_us.entry((connection, up)).or_default();
        *last_us = at_us.max(*last_us);
        let at_us = *last_us;
        if self.last_us.len() > CONNECTIONS_MAX {
            self.last_us.pop_first();
        }
        at_us
    }

    pub(super) fn is_lost(&mut self) -> bool {
        self.network.loss > 0.0 && self.rng.random_bool(self.network.loss.clamp(0.0, 1.0))
    }

    pub(super) fn is_repeated(&mut self) -> bool {
        self.network.duplication > 0.0
            && self
                .rng
                .random_bool(self.network.duplication.clamp(0.0, 1.0))
    }
}
