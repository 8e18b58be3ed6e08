//! No sharing at all: each gateway admits its part of the limit. Knows no store.

use super::{
    exact::{Log, Window},
    local,
};
use crate::{Answer, Limiter, Messages, Request};

/// L/K for each of K gateways. The part is a fraction and a gateway admits as long
/// as its count is below it, so 100 over 32 gateways are 4 for each.
#[derive(Clone, Debug)]
pub struct Split {
    limit: u64,
    logs: Vec<Log>,
}

impl Split {
    /// One key's limit, split over `gateways`.
    #[must_use]
    pub fn new(gateways: usize, limit: u64, window_us: u64) -> Self {
        Self {
            limit,
            logs: vec![Log::new(Window::Sliding(window_us)); gateways],
        }
    }
}

impl Limiter for Split {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        let gateways = self.logs.len() as u64;
        let log = &mut self.logs[request.gateway];
        // count + (units − 1) < L/K, in whole numbers.
        let before = log.counted(request.at_us) + request.units.saturating_sub(1);
        let admitted = before * gateways < self.limit;
        if admitted {
            log.add(request.at_us, request.units);
        }
        answers.push(local(request, admitted));
    }

    fn next_us(&self) -> Option<u64> {
        None
    }

    fn advance(&mut self, _now_us: u64, _answers: &mut Vec<Answer>) {}

    fn messages(&self) -> Messages {
        Messages::default()
    }
}
