//! A shared counter whose gateways assume that each of the others did what they
//! did themselves. Knows no shares.

use super::{exact::Window, local, synced::Synced, syncs::Syncs};
use crate::{Answer, Limiter, Messages, Request};

/// Counts a gateway's own admissions since its last sync once for every gateway.
#[derive(Clone, Debug)]
pub struct AssumeOthers {
    limit: u64,
    synced: Synced,
}

impl AssumeOthers {
    /// One key's limit.
    #[must_use]
    pub fn new(gateways: usize, limit: u64, window: Window, syncs: Syncs) -> Self {
        Self {
            limit,
            synced: Synced::new(gateways, window, syncs),
        }
    }
}

impl Limiter for AssumeOthers {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        let (known, since) = self.synced.known_and_since(request.gateway, request.at_us);
        let gateways = self.synced.gateways() as u64;
        let admitted = known + since * gateways + request.units <= self.limit;
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
        self.synced.sync(now_us);
    }

    fn messages(&self) -> Messages {
        self.synced.messages()
    }
}
