//! Several keys under designs that know one: each key has a limiter to itself.

use crate::{Answer, Limiter, Messages, Request};

/// One limiter per key, by the key's number.
#[derive(Clone, Debug)]
pub struct Keys<L> {
    limiters: Vec<L>,
}

impl<L: Limiter> Keys<L> {
    /// A limiter for every key.
    #[must_use]
    pub fn new(limiters: Vec<L>) -> Self {
        Self { limiters }
    }
}

impl<L: Limiter> Limiter for Keys<L> {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        self.limiters[request.key].request(request, answers);
    }

    fn next_us(&self) -> Option<u64> {
        let next = self.limiters.iter().filter_map(L::next_us);
        next.min()
    }

    fn advance(&mut self, now_us: u64, answers: &mut Vec<Answer>) {
        for limiter in &mut self.limiters {
            if limiter.next_us().is_some_and(|us| us <= now_us) {
                limiter.advance(now_us, answers);
            }
        }
    }

    /// Keyed messages of all keys. Regular syncs carry all keys at once, so those
    /// of one are those of all.
    fn messages(&self) -> Messages {
        let mut sum = Messages::default();
        for limiter in &self.limiters {
            let messages = limiter.messages();
            sum.keyed += messages.keyed;
            sum.regular = sum.regular.max(messages.regular);
        }
        sum
    }
}
