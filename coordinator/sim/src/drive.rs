//! Brings requests to a limiter and answers back, in the order of time. Knows
//! neither.

use crate::{
    limiter::Limiter,
    record::Record,
    request::{Answer, Request},
};

/// Where requests come from.
pub trait Source {
    /// When the next request arrives; none: no more come unless something is
    /// answered.
    fn next_us(&self) -> Option<u64>;

    /// The next request, which arrives at [`Source::next_us`]. Its number is set by
    /// the caller.
    fn next_request(&mut self) -> Request;

    /// A request was answered: a client may try again because of it.
    fn answered(&mut self, _request: &Request, _answer: &Answer) {}
}

/// Runs until `until_us`, and notes what becomes of every request that arrived
/// before. Requests that are unanswered then stay unanswered.
pub fn drive(
    limiter: &mut dyn Limiter,
    source: &mut dyn Source,
    until_us: u64,
    record: &mut Record,
) {
    let mut answers = Vec::new();
    loop {
        let arrival = source.next_us().unwrap_or(u64::MAX);
        let inside = limiter.next_us().unwrap_or(u64::MAX);
        let now_us = arrival.min(inside);
        if now_us >= until_us {
            break;
        }
        // What is due happens before a request that comes at the same moment.
        if inside <= arrival {
            limiter.advance(now_us, &mut answers);
        } else {
            let mut request = source.next_request();
            request.id = record.arrived(&request);
            limiter.request(&request, &mut answers);
        }
        for answer in answers.drain(..) {
            if let Some(request) = record.answered(&answer) {
                source.answered(&request, &answer);
            }
        }
    }
}
