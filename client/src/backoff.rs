//! How long to pause before the next attempt: capped, exponential, with full
//! jitter, so that a thousand clients do not come back in step. Knows no clock.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
/// While an election may be under way, so that its end is noticed soon.
const PROMPT: Duration = Duration::from_millis(500);
/// How many attempts are prompt: about three seconds of them.
const PROMPT_ATTEMPTS: u32 = 16;
const LONGEST: Duration = Duration::from_secs(2);

/// Counts attempts that failed in a row.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failed: u32,
}

impl Backoff {
    /// The longest pause that the next attempt may be asked to make.
    fn ceiling(&self) -> Duration {
        let longest = if self.failed < PROMPT_ATTEMPTS {
            PROMPT
        } else {
            LONGEST
        };
        FIRST.saturating_mul(1 << self.failed.min(10)).min(longest)
    }

    /// An attempt failed: the pause before the next, anywhere up to the ceiling.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.ceiling().mul_f64(rand::random::<f64>());
        self.failed = self.failed.saturating_add(1);
        pause
    }

    /// An attempt succeeded.
    pub(crate) fn reset(&mut self) {
        self.failed = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_and_start_over() {
        let mut backoff = Backoff::default();
        for _ in 0..100 {
            let ceiling = backoff.ceiling();
            let longest = if backoff.failed < PROMPT_ATTEMPTS {
                PROMPT
            } else {
                LONGEST
            };
            assert!(backoff.pause() <= ceiling && ceiling <= longest);
        }
        assert_eq!(backoff.ceiling(), LONGEST);
        backoff.reset();
        assert_eq!(backoff.ceiling(), FIRST);
    }
}
