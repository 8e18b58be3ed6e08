//! A store that grants units for a gateway to spend until its next sync, and takes
//! back what is left then. Knows nothing of how much a gateway asks for.

use super::{
    exact::{Log, Window},
    real,
    syncs::{Schedule, Syncs},
};
use crate::Messages;

/// The store and what gateways hold of it.
#[derive(Clone, Debug)]
pub(super) struct Leased {
    limit: u64,
    store: Log,
    /// Granted and not yet reported spent or handed back: counts as used.
    outstanding: u64,
    gateways: Vec<Gateway>,
    schedule: Schedule,
    /// How much of an interval's arrivals enters the estimate.
    weight: f64,
    syncs: u64,
    asks: u64,
}

#[derive(Clone, Debug, Default)]
struct Gateway {
    left: u64,
    /// Moment and units, since the last sync.
    spent: Vec<(u64, u64)>,
    /// Units asked for by clients since the last sync.
    arrived: u64,
    /// The estimate of that.
    expected: f64,
}

impl Leased {
    pub(super) fn new(
        gateways: usize,
        limit: u64,
        window_us: u64,
        syncs: Syncs,
        weight: f64,
    ) -> Self {
        Self {
            limit,
            store: Log::new(Window::Sliding(window_us)),
            outstanding: 0,
            gateways: vec![Gateway::default(); gateways],
            schedule: syncs.schedule(gateways),
            weight,
            syncs: 0,
            asks: 0,
        }
    }

    pub(super) fn next_us(&self) -> Option<u64> {
        self.schedule.next_us()
    }

    /// The next gateway that is due hands back and reports everything.
    pub(super) fn due(&mut self, now_us: u64) -> Option<usize> {
        let index = self.schedule.due(now_us)?;
        let gateway = &mut self.gateways[index];
        self.outstanding -= gateway.left;
        gateway.left = 0;
        for (at_us, units) in gateway.spent.drain(..) {
            self.outstanding -= units;
            self.store.add(at_us, units);
        }
        gateway.expected += self.weight * (real(gateway.arrived) - gateway.expected);
        gateway.arrived = 0;
        self.syncs += 1;
        Some(index)
    }

    /// Units that clients ask for between two syncs, as far as known.
    pub(super) fn expected(&self, gateway: usize) -> f64 {
        self.gateways[gateway].expected
    }

    /// Grants what is free of `wanted`.
    pub(super) fn grant(&mut self, gateway: usize, now_us: u64, wanted: u64) {
        let used = self.store.counted(now_us) + self.outstanding;
        let granted = wanted.min(self.limit.saturating_sub(used));
        self.outstanding += granted;
        self.gateways[gateway].left += granted;
    }

    /// The same outside a sync.
    pub(super) fn ask(&mut self, gateway: usize, now_us: u64, wanted: u64) {
        self.asks += 1;
        self.grant(gateway, now_us, wanted);
    }

    /// Notes that a client asks for `units`.
    pub(super) fn arrived(&mut self, gateway: usize, units: u64) {
        self.gateways[gateway].arrived += units;
    }

    pub(super) fn left(&self, gateway: usize) -> u64 {
        self.gateways[gateway].left
    }

    /// Spends from what the gateway holds.
    pub(super) fn spend(&mut self, gateway: usize, now_us: u64, units: u64) -> bool {
        let gateway = &mut self.gateways[gateway];
        let Some(rest) = gateway.left.checked_sub(units) else {
            return false;
        };
        gateway.left = rest;
        gateway.spent.push((now_us, units));
        true
    }

    pub(super) fn messages(&self) -> Messages {
        Messages {
            keyed: 2 * self.asks,
            regular: 2 * self.syncs,
            acknowledgements: 0,
        }
    }
}
