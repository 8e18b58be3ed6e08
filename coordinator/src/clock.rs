//! The one place that reads a clock. Knows nothing of cluster time, terms or
//! ledgers: it only says how much time has surely passed since a reading, and, for
//! people and periods, what the wall clock says.
//!
//! A leader must never run faster than real time. NTP daemons may slew the
//! ordinary monotonic clock by far more than the drift that the promise allows,
//! so elapsed time is the *smaller* of what two differently disciplined clocks
//! say: `CLOCK_MONOTONIC_RAW` is never slewed but stands still while the machine
//! is suspended, `CLOCK_BOOTTIME` counts suspension but may be slewed.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    boot_us: u64,
    raw_us: u64,
}

impl Reading {
    /// Reads both clocks.
    #[must_use]
    pub fn now() -> Self {
        Self {
            boot_us: micros(clock_gettime(ClockId::Boottime)),
            raw_us: micros(clock_gettime(ClockId::MonotonicRaw)),
        }
    }

    /// Microseconds that have surely passed between this reading and a later one,
    /// rounded down.
    #[must_use]
    pub const fn elapsed_us_until(self, later: Self) -> u64 {
        let boot = later.boot_us.saturating_sub(self.boot_us);
        let raw = later.raw_us.saturating_sub(self.raw_us);
        // Each reading is floored, so a difference may be one tick too long.
        let least = if boot < raw { boot } else { raw };
        least.saturating_sub(1)
    }

    /// Microseconds that have surely passed since this reading, rounded down.
    #[must_use]
    pub fn elapsed_us(self) -> u64 {
        self.elapsed_us_until(Self::now())
    }
}

#[cfg(test)]
impl Reading {
    /// What is read so much later.
    pub(crate) const fn later(self, us: u64) -> Self {
        Self {
            boot_us: self.boot_us + us,
            raw_us: self.raw_us + us,
        }
    }
}

/// What the wall clock says, in microseconds since 1970: for people, for telling clocks
/// that are far apart, and for the majority's wall clock, which ends periods. No decision
/// depends on it alone.
#[must_use]
pub fn wall_unix_us() -> u64 {
    micros(clock_gettime(ClockId::Realtime))
}

/// Whole microseconds, rounded down; a clock that says less than zero says zero.
fn micros(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000)
        .saturating_add(nanos / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_is_the_smaller_of_both_clocks_and_rounds_down() {
        let from = Reading {
            boot_us: 1_000,
            raw_us: 5_000,
        };
        assert_eq!(
            from.elapsed_us_until(Reading {
                boot_us: 1_500,
                raw_us: 5_400
            }),
            399
        );
        assert_eq!(
            from.elapsed_us_until(Reading {
                boot_us: 1_100,
                raw_us: 9_000
            }),
            99
        );
    }

    #[test]
    fn only_clocks_that_nobody_sets_are_read() {
        let read = |id| micros(clock_gettime(id));
        let (boot, raw) = (read(ClockId::Boottime), read(ClockId::MonotonicRaw));
        let reading = Reading::now();
        assert!((boot..=read(ClockId::Boottime)).contains(&reading.boot_us));
        assert!((raw..=read(ClockId::MonotonicRaw)).contains(&reading.raw_us));
    }

    #[test]
    fn a_clock_that_went_back_gives_no_elapsed_time() {
        let from = Reading {
            boot_us: 1_000,
            raw_us: 5_000,
        };
        assert_eq!(
            from.elapsed_us_until(Reading {
                boot_us: 900,
                raw_us: 9_000
            }),
            0
        );
    }

    #[test]
    fn elapsed_time_never_shrinks() {
        let from = Reading::now();
        let mut last = 0;
        for _ in 0..10_000 {
            let elapsed = from.elapsed_us();
            assert!(elapsed >= last);
            last = elapsed;
        }
    }
}
