//! Every request asks the store, which counts exactly. What exceeds its refusals
//! is a design's own loss. Knows nothing of gateways.

use leasehold_ledger::policy::Kind;

use super::exact::Exact;
use crate::{Answer, Limiter, Messages, Request, Verdict};

/// The exact reference, for windows and for buckets, for several keys.
#[derive(Clone, Debug)]
pub struct CentralLog {
    keys: Vec<Exact>,
    round_trip_us: u64,
    asked: u64,
}

impl CentralLog {
    /// A store for keys that follow `kinds`, by the key's number. Decides at the
    /// instant of arrival; the answer is there `round_trip_us` later.
    #[must_use]
    pub fn new(kinds: &[Kind], round_trip_us: u64) -> Self {
        Self {
            keys: kinds.iter().map(Exact::new).collect(),
            round_trip_us,
            asked: 0,
        }
    }

    /// Units that could be admitted at `now_us`.
    pub fn free(&mut self, key: usize, now_us: u64) -> u64 {
        self.keys.get_mut(key).map_or(0, |exact| exact.free(now_us))
    }

    /// Decides one request.
    ///
    /// # Errors
    /// In how many microseconds it would be admitted, if ever.
    pub fn decide(&mut self, request: &Request) -> Result<(), Option<u64>> {
        match self.keys.get_mut(request.key) {
            Some(exact) => exact.take(request.at_us, request.units),
            None => Err(None),
        }
    }
}

impl Limiter for CentralLog {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        self.asked += 1;
        let verdict = match self.decide(request) {
            Ok(()) => Verdict::Admitted,
            Err(retry_after_us) => Verdict::Refused { retry_after_us },
        };
        answers.push(Answer {
            id: request.id,
            at_us: request.at_us.saturating_add(self.round_trip_us),
            verdict,
            waited: true,
        });
    }

    fn next_us(&self) -> Option<u64> {
        None
    }

    fn advance(&mut self, _now_us: u64, _answers: &mut Vec<Answer>) {}

    fn messages(&self) -> Messages {
        Messages {
            keyed: 2 * self.asked,
            regular: 0,
            acknowledgements: 0,
        }
    }
}
