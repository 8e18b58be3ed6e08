//! Clocks that drift. Real time is a number of the model's.

use rand::{Rng, rngs::StdRng};

/// A monotonic clock whose rate stays within the assumed drift.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriftingClock {
    /// Real time and reading at the last change of rate.
    since_ns: u64,
    reading_ns: u64,
    rate_ppm: u64,
}

impl DriftingClock {
    pub(crate) fn new(now_ns: u64, drift_ppm: u64, rng: &mut StdRng) -> Self {
        let mut clock = Self {
            since_ns: now_ns,
            reading_ns: rng.random_range(1..1 << 50),
            rate_ppm: 0,
        };
        clock.change_rate(now_ns, drift_ppm, rng);
        clock
    }

    /// Most often as bad as it may be.
    pub(crate) fn change_rate(&mut self, now_ns: u64, drift_ppm: u64, rng: &mut StdRng) {
        if self.rate_ppm > 0 {
            self.reading_ns = self.reading_ns(now_ns);
        }
        self.since_ns = now_ns;
        self.rate_ppm = match rng.random_range(0..5) {
            0 | 1 => 1_000_000 - drift_ppm,
            2 | 3 => 1_000_000 + drift_ppm,
            _ => rng.random_range(1_000_000 - drift_ppm..=1_000_000 + drift_ppm),
        };
    }

    pub(crate) fn reading_ns(&self, now_ns: u64) -> u64 {
        let elapsed = u128::from(now_ns - self.since_ns) * u128::from(self.rate_ppm) / 1_000_000;
        self.reading_ns + u64::try_from(elapsed).expect("a test is shorter than centuries")
    }
}
