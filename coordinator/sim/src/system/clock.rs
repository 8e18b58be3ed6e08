//! Clocks that drift by a fixed rate. Real time is the run's.

/// A monotonic clock of one machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriftingClock {
    /// How fast it runs, in millionths of real time.
    rate_ppm: u64,
}

const REAL_PPM: u64 = 1_000_000;

impl DriftingClock {
    /// One that runs `rate_ppm` / 1,000,000 as fast as real time.
    pub(super) fn new(rate_ppm: u64) -> Self {
        Self {
            rate_ppm: rate_ppm.max(1),
        }
    }

    /// Its reading, in nanoseconds from when the run began.
    pub(super) fn reading_ns(self, now_us: u64) -> u64 {
        let reading = u128::from(now_us) * 1_000 * u128::from(self.rate_ppm) / u128::from(REAL_PPM);
        // Never 0: a reading of 0 stands for no reading in some places.
        u64::try_from(reading).unwrap_or(u64::MAX).max(1)
    }

    /// The first real moment at which it reads so much or more.
    pub(super) fn moment_us(self, reading_ns: u64) -> u64 {
        let us = (u128::from(reading_ns) * u128::from(REAL_PPM))
            .div_ceil(u128::from(self.rate_ppm) * 1_000);
        u64::try_from(us).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_first_at_which_the_clock_reads_so_much() {
        for rate in [999_000, 1_000_000, 1_001_000] {
            let clock = DriftingClock::new(rate);
            for reading in [1, 999, 1_000, 1_001, 123_456_789] {
                let moment = clock.moment_us(reading);
                assert!(clock.reading_ns(moment) >= reading);
                assert!(moment == 0 || clock.reading_ns(moment - 1) < reading || reading == 1);
            }
        }
    }
}
