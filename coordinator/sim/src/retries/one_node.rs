//! Five limiters on one machine, each with a limit of so many units per window.
//! They differ in when spent capacity comes back. None knows who asks.

use leasehold_ledger::policy::Kind;

use crate::{
    Answer, Limiter, Messages, Request, Verdict,
    baseline::{Exact, Log, Window},
};

/// How a limiter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// Capacity comes back continuously; a full bucket is one window's worth.
    TokenBucket,
    /// All comes back at the window's boundary.
    FixedWindow,
    /// The previous window's count decays as the current one fills.
    SlidingCounter,
    /// Each unit comes back one window after it was spent.
    SlidingLog,
    /// The same with a mistake: attempts that were rejected count too.
    LogOfAttempts,
}

impl Algorithm {
    /// All that limit as they should.
    pub const SOUND: [Self; 4] = [
        Self::TokenBucket,
        Self::FixedWindow,
        Self::SlidingCounter,
        Self::SlidingLog,
    ];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token bucket",
            Self::FixedWindow => "fixed window",
            Self::SlidingCounter => "sliding counter",
            Self::SlidingLog => "sliding log",
            Self::LogOfAttempts => "log that counts rejections",
        }
    }
}

/// A limiter on one machine.
#[derive(Clone, Debug)]
pub struct OneNode {
    limit: u64,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Exact(Exact),
    FixedWindow(Log),
    SlidingCounter(Counter),
    LogOfAttempts(Log),
}

impl OneNode {
    /// `limit` units per `window_us`.
    #[must_use]
    pub fn new(algorithm: Algorithm, limit: u64, window_us: u64) -> Self {
        let state = match algorithm {
            Algorithm::TokenBucket => State::Exact(Exact::new(&Kind::TokenBucket {
                capacity: limit,
                refill: limit,
                refill_period_us: window_us,
            })),
            Algorithm::SlidingLog => {
                State::Exact(Exact::new(&Kind::SlidingWindow { limit, window_us }))
            }
            Algorithm::FixedWindow => State::FixedWindow(Log::new(Window::Fixed(window_us))),
            Algorithm::SlidingCounter => State::SlidingCounter(Counter::new(window_us)),
            Algorithm::LogOfAttempts => State::LogOfAttempts(Log::new(Window::Sliding(window_us))),
        };
        Self { limit, state }
    }

    fn take(&mut self, now_us: u64, units: u64) -> Result<(), Option<u64>> {
        let limit = self.limit;
        match &mut self.state {
            State::Exact(exact) => exact.take(now_us, units),
            State::FixedWindow(log) => judge(log, limit, now_us, units).inspect(|()| {
                log.add(now_us, units);
            }),
            State::SlidingCounter(counter) => counter.take(limit, now_us, units),
            State::LogOfAttempts(log) => {
                let judged = judge(log, limit, now_us, units);
                // The mistake: recorded whatever the judgement.
                log.add(now_us, units);
                judged
            }
        }
    }
}

/// Whether `units` fit, or in how many microseconds they will.
fn judge(log: &mut Log, limit: u64, now_us: u64, units: u64) -> Result<(), Option<u64>> {
    if log.counted(now_us).saturating_add(units) <= limit {
        return Ok(());
    }
    let room = limit.checked_sub(units);
    Err(room.and_then(|room| log.falls_to_us(now_us, room)))
}

impl Limiter for OneNode {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        let verdict = match self.take(request.at_us, request.units) {
            Ok(()) => Verdict::Admitted,
            Err(retry_after_us) => Verdict::Refused { retry_after_us },
        };
        answers.push(Answer {
            id: request.id,
            at_us: request.at_us,
            verdict,
            waited: false,
        });
    }

    fn next_us(&self) -> Option<u64> {
        None
    }

    fn advance(&mut self, _now_us: u64, _answers: &mut Vec<Answer>) {}

    fn messages(&self) -> Messages {
        Messages::default()
    }
}

/// Two counts: this window's and the previous one's, of which as much is taken to
/// still count as of its window still lies within the last one.
#[derive(Clone, Debug)]
struct Counter {
    window_us: u64,
    window: u64,
    count: u64,
    previous: u64,
}

impl Counter {
    fn new(window_us: u64) -> Self {
        Self {
            window_us: window_us.max(1),
            window: 0,
            count: 0,
            previous: 0,
        }
    }

    fn take(&mut self, limit: u64, now_us: u64, units: u64) -> Result<(), Option<u64>> {
        let window = now_us / self.window_us;
        if window != self.window {
            self.previous = if window == self.window + 1 {
                self.count
            } else {
                0
            };
            (self.window, self.count) = (window, 0);
        }
        let into_us = now_us % self.window_us;
        let Some(limit) = (limit + 1).checked_sub(units.max(1)) else {
            return Err(None);
        };
        let opens_us = Self::opens_us(self.window_us, self.previous, self.count, limit);
        match opens_us {
            Some(opens_us) if opens_us <= into_us => {
                self.count += units;
                Ok(())
            }
            Some(opens_us) => Err(Some(opens_us - into_us)),
            // Not in this window: in the next one this count is the previous one.
            None => {
                let rest_us = self.window_us - into_us;
                let next_us = Self::opens_us(self.window_us, self.count, 0, limit);
                Err(next_us.map(|us| rest_us + us))
            }
        }
    }

    /// How far into a window `previous × (1 − elapsed) + count < limit` begins to
    /// hold, if it does in that window.
    fn opens_us(window_us: u64, previous: u64, count: u64, limit: u64) -> Option<u64> {
        let room = limit.checked_sub(count).filter(|room| *room > 0)?;
        if previous < room {
            return Some(0);
        }
        // previous × rest < room × window.
        let rest = (u128::from(room) * u128::from(window_us)).div_ceil(u128::from(previous)) - 1;
        let rest_us = u64::try_from(rest).unwrap_or(u64::MAX);
        Some(window_us.saturating_sub(rest_us)).filter(|opens_us| *opens_us < window_us)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_precision_loss, clippy::unwrap_used)]

    use rand::Rng as _;

    use super::*;
    use crate::traffic::randomness;

    const LIMIT: u64 = 10;
    const WINDOW_US: u64 = 1_000;

    /// A moment's stated wait is right if nobody asks in between: just then the
    /// request is admitted, and just before it is not.
    fn states_the_next_free_moment(algorithm: Algorithm) {
        let mut randomness = randomness(1, 0);
        let mut limiter = OneNode::new(algorithm, LIMIT, WINDOW_US);
        let (mut now_us, mut refusals) = (0, 0);
        for _ in 0..20_000 {
            now_us += randomness.random_range(0..120);
            let before = limiter.clone();
            if let Err(wait_us) = limiter.take(now_us, 1) {
                refusals += 1;
                let wait_us = wait_us.unwrap();
                assert_eq!(before.clone().take(now_us + wait_us, 1), Ok(()));
                assert!(before.clone().take(now_us + wait_us - 1, 1).is_err());
            }
        }
        assert!(refusals > 100);
    }

    #[test]
    fn every_sound_limiter_states_when_it_will_admit() {
        for algorithm in Algorithm::SOUND {
            states_the_next_free_moment(algorithm);
        }
    }

    #[test]
    fn a_sliding_counter_decides_as_its_formula_says() {
        let mut randomness = randomness(2, 0);
        let mut limiter = OneNode::new(Algorithm::SlidingCounter, LIMIT, WINDOW_US);
        let (mut window, mut count, mut previous) = (0, 0_u64, 0_u64);
        let mut now_us = 0_u64;
        for _ in 0..20_000 {
            now_us += randomness.random_range(0..120);
            if now_us / WINDOW_US != window {
                let next = now_us / WINDOW_US == window + 1;
                previous = if next { count } else { 0 };
                (window, count) = (now_us / WINDOW_US, 0);
            }
            let elapsed = (now_us % WINDOW_US) as f64 / WINDOW_US as f64;
            let admit = previous as f64 * (1.0 - elapsed) + (count as f64) < LIMIT as f64 - 1e-9;
            count += u64::from(admit);
            assert_eq!(limiter.take(now_us, 1).is_ok(), admit);
        }
    }

    #[test]
    fn counting_rejections_locks_the_limiter_for_as_long_as_it_is_asked() {
        let mut right = OneNode::new(Algorithm::SlidingLog, LIMIT, WINDOW_US);
        let mut wrong = OneNode::new(Algorithm::LogOfAttempts, LIMIT, WINDOW_US);
        let asked = (0..100_000_u64).step_by(7);
        let admitted = |limiter: &mut OneNode| {
            asked
                .clone()
                .filter(|now_us| limiter.take(*now_us, 1).is_ok())
                .count()
        };
        assert!(admitted(&mut right) >= 990);
        assert_eq!(admitted(&mut wrong), 10);
    }
}
