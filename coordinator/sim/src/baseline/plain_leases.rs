//! Leases that are handed back and asked for anew at every sync. Knows no other
//! moment to talk to the store.

use super::{leased::Leased, local, syncs::Syncs, whole};
use crate::{Answer, Limiter, Messages, Request};

/// How much of an interval's arrivals enters the estimate.
const WEIGHT: f64 = 0.3;
/// A gateway asks for so much of what it expects, and for one unit more.
const SLICE_FACTOR: f64 = 1.5;

/// Never over-admits; strands what quiet gateways hold.
#[derive(Clone, Debug)]
pub struct PlainLeases {
    leased: Leased,
}

impl PlainLeases {
    /// One key's limit.
    #[must_use]
    pub fn new(gateways: usize, limit: u64, window_us: u64, syncs: Syncs) -> Self {
        Self {
            leased: Leased::new(gateways, limit, window_us, syncs, WEIGHT),
        }
    }
}

impl Limiter for PlainLeases {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        self.leased.arrived(request.gateway, request.units);
        let admitted = self
            .leased
            .spend(request.gateway, request.at_us, request.units);
        answers.push(local(request, admitted));
    }

    fn next_us(&self) -> Option<u64> {
        self.leased.next_us()
    }

    fn advance(&mut self, now_us: u64, _answers: &mut Vec<Answer>) {
        while let Some(gateway) = self.leased.due(now_us) {
            let wanted = whole((SLICE_FACTOR * self.leased.expected(gateway)).ceil()) + 1;
            self.leased.grant(gateway, now_us, wanted);
        }
    }

    fn messages(&self) -> Messages {
        self.leased.messages()
    }
}
