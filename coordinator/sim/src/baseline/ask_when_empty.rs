//! Leases with a way out: a gateway that has nothing goes to the store at once,
//! and asks for nothing ahead while its key is quiet.

use super::{leased::Leased, local, syncs::Syncs, whole};
use crate::{Answer, Limiter, Messages, Request};

/// How much of an interval's arrivals enters the estimate.
const WEIGHT: f64 = 0.2;
/// A gateway asks for so much of what it expects, and for one unit more.
const SLICE_FACTOR: f64 = 1.5;
/// A gateway that expects less than this between two syncs is idle: it asks for
/// nothing ahead of a request. The study does not say; with a half all ten figures
/// that are known of this design come out right.
const IDLE_BELOW: f64 = 0.5;

/// Never over-admits and strands little; on a quiet key it is a central log.
#[derive(Clone, Debug)]
pub struct AskWhenEmpty {
    leased: Leased,
    /// Whom the store had nothing for since its last sync.
    refused: Vec<bool>,
    round_trip_us: u64,
}

impl AskWhenEmpty {
    /// One key's limit. The store decides at the instant of arrival; a request
    /// that went to it is answered `round_trip_us` later.
    #[must_use]
    pub fn new(
        gateways: usize,
        limit: u64,
        window_us: u64,
        syncs: Syncs,
        round_trip_us: u64,
    ) -> Self {
        Self {
            leased: Leased::new(gateways, limit, window_us, syncs, WEIGHT),
            refused: vec![false; gateways],
            round_trip_us,
        }
    }

    fn slice(&self, gateway: usize) -> u64 {
        whole((SLICE_FACTOR * self.leased.expected(gateway)).ceil()) + 1
    }
}

impl Limiter for AskWhenEmpty {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        let (gateway, now_us, units) = (request.gateway, request.at_us, request.units);
        self.leased.arrived(gateway, units);
        if self.leased.spend(gateway, now_us, units) {
            answers.push(local(request, true));
            return;
        }
        if self.refused[gateway] {
            answers.push(local(request, false));
            return;
        }
        let missing = units - self.leased.left(gateway);
        let wanted = self.slice(gateway).max(missing);
        self.leased.ask(gateway, now_us, wanted);
        let admitted = self.leased.spend(gateway, now_us, units);
        self.refused[gateway] = !admitted;
        answers.push(Answer {
            at_us: now_us.saturating_add(self.round_trip_us),
            waited: true,
            ..local(request, admitted)
        });
    }

    fn next_us(&self) -> Option<u64> {
        self.leased.next_us()
    }

    fn advance(&mut self, now_us: u64, _answers: &mut Vec<Answer>) {
        while let Some(gateway) = self.leased.due(now_us) {
            self.refused[gateway] = false;
            if self.leased.expected(gateway) >= IDLE_BELOW {
                let wanted = self.slice(gateway);
                self.leased.grant(gateway, now_us, wanted);
            }
        }
    }

    fn messages(&self) -> Messages {
        self.leased.messages()
    }
}
