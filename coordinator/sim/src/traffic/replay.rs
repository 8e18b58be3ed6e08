//! Requests that arrived somewhere else before, at the moments at which they did.

use crate::{drive::Source, request::Request};

/// Recorded requests, in the order of time.
#[derive(Clone, Debug)]
pub struct Replay {
    requests: Vec<Request>,
    next: usize,
}

impl Replay {
    /// These requests, in any order. Those of the same moment keep theirs.
    #[must_use]
    pub fn new(mut requests: Vec<Request>) -> Self {
        requests.sort_by_key(|request| request.at_us);
        Self { requests, next: 0 }
    }

    /// The first moment at which all have arrived.
    #[must_use]
    pub fn end_us(&self) -> u64 {
        self.requests
            .last()
            .map_or(0, |last| last.at_us.saturating_add(1))
    }
}

impl Source for Replay {
    fn next_us(&self) -> Option<u64> {
        self.requests.get(self.next).map(|request| request.at_us)
    }

    fn next_request(&mut self) -> Request {
        let next = self.requests.get(self.next).copied();
        self.next += 1;
        // Asked for more than there are: there is nothing better to say.
        next.unwrap_or(Request {
            id: 0,
            at_us: u64::MAX,
            gateway: 0,
            key: 0,
            units: 1,
            lane: crate::LOWEST_LANE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_at_their_moments_whatever_order_they_were_given_in() {
        let request = |at_us, gateway| Request {
            id: 0,
            at_us,
            gateway,
            key: 0,
            units: 1,
            lane: crate::LOWEST_LANE,
        };
        let mut replay = Replay::new(vec![request(7, 0), request(3, 1), request(3, 2)]);
        assert_eq!(replay.end_us(), 8);
        let mut came = Vec::new();
        while let Some(at_us) = replay.next_us() {
            came.push((at_us, replay.next_request().gateway));
        }
        assert_eq!(came, [(3, 1), (3, 2), (7, 0)]);
    }
}
