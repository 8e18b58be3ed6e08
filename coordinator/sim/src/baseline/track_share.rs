//! A shared counter whose gateways scale their own admissions by the share of the
//! key's traffic that they measured. Knows shares only from past syncs.

use super::{exact::Window, local, real, synced::Synced, syncs::Syncs};
use crate::{Answer, Limiter, Messages, Request};

/// How much of an interval's measured share enters the estimate.
const WEIGHT: f64 = 0.1;
/// Admissions that an estimate begins with, spread evenly, so that an interval
/// without any says nothing.
const PSEUDO_ADMITS: f64 = 1.0;

/// Counts a gateway's own admissions since its last sync by one over its share.
#[derive(Clone, Debug)]
pub struct TrackShare {
    limit: u64,
    synced: Synced,
    shares: Vec<f64>,
}

impl TrackShare {
    /// One key's limit.
    #[must_use]
    pub fn new(gateways: usize, limit: u64, window: Window, syncs: Syncs) -> Self {
        let even = 1.0 / real(gateways as u64);
        Self {
            limit,
            synced: Synced::new(gateways, window, syncs),
            shares: vec![even; gateways],
        }
    }
}

impl Limiter for TrackShare {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        let (known, since) = self.synced.known_and_since(request.gateway, request.at_us);
        let others_too = real(since) / self.shares[request.gateway];
        let before = real(known) + others_too + real(request.units.saturating_sub(1));
        let admitted = before < real(self.limit);
        if admitted {
            self.synced
                .admit(request.gateway, request.at_us, request.units);
        }
        answers.push(local(request, admitted));
    }

    fn next_us(&self) -> Option<u64> {
        self.synced.next_us()
    }

    fn advance(&mut self, now_us: u64, _answers: &mut Vec<Answer>) {
        let even = 1.0 / real(self.synced.gateways() as u64);
        for news in self.synced.sync(now_us) {
            let own = real(news.own) + PSEUDO_ADMITS * even;
            let all = real(news.all) + PSEUDO_ADMITS;
            let share = &mut self.shares[news.gateway];
            *share += WEIGHT * (own / all - *share);
        }
    }

    fn messages(&self) -> Messages {
        self.synced.messages()
    }
}
