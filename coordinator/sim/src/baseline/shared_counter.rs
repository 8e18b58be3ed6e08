//! The usual answer: a counter in a store that every gateway syncs with now and
//! then. Each admits as if the others had admitted nothing since.

use super::{exact::Window, local, synced::Synced, syncs::Syncs};
use crate::{Answer, Limiter, Messages, Request};

/// Admits while the store's count at the last sync and the gateway's own
/// admissions since are below the limit.
#[derive(Clone, Debug)]
pub struct SharedCounter {
    limit: u64,
    synced: Synced,
}

impl SharedCounter {
    /// One key's limit.
    #[must_use]
    pub fn new(gateways: usize, limit: u64, window: Window, syncs: Syncs) -> Self {
        Self {
            limit,
            synced: Synced::new(gateways, window, syncs),
        }
    }
}

impl Limiter for SharedCounter {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        let (known, since) = self.synced.known_and_since(request.gateway, request.at_us);
        let admitted = known + since + request.units <= self.limit;
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
