//! A shared counter whose gateways scale their own admissions by the share of the
//! key's traffic that they measured. Knows shares only from past syncs.

use super::{exact::Window, local, real, synced::Synced, syncs::Syncs};
use crate::{Answer, Limiter, Messages, Request};

/// How much of an interval's admissions enters the estimates.
const WEIGHT: f64 = 0.1;
/// Admissions that are added to the estimate of all, spread evenly, so that a
/// gateway without any has a share too.
const PSEUDO_ADMITS: f64 = 1.0;

/// Counts a gateway's own admissions since its last sync by one over its share.
#[derive(Clone, Debug)]
pub struct TrackShare {
    limit: u64,
    synced: Synced,
    /// Admissions between two of a gateway's syncs, as far as known.
    admissions: Vec<Admissions>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Admissions {
    own: f64,
    all: f64,
}

impl TrackShare {
    /// One key's limit.
    #[must_use]
    pub fn new(gateways: usize, limit: u64, window: Window, syncs: Syncs) -> Self {
        Self {
            limit,
            synced: Synced::new(gateways, window, syncs),
            admissions: vec![Admissions::default(); gateways],
        }
    }

    fn share(&self, gateway: usize) -> f64 {
        let Admissions { own, all } = self.admissions[gateway];
        let even = 1.0 / real(self.synced.gateways() as u64);
        (own + PSEUDO_ADMITS * even) / (all + PSEUDO_ADMITS)
    }
}

impl Limiter for TrackShare {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        let (known, since) = self.synced.known_and_since(request.gateway, request.at_us);
        let others_too = real(since) / self.share(request.gateway);
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
        for news in self.synced.sync(now_us) {
            let Admissions { own, all } = &mut self.admissions[news.gateway];
            *own += WEIGHT * (real(news.own) - *own);
            *all += WEIGHT * (real(news.all) - *all);
        }
    }

    fn messages(&self) -> Messages {
        self.synced.messages()
    }
}
