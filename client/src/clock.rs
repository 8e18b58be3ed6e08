//! The one reader of the client's clocks. Knows nothing of leases.
//!
//! Deadlines need elapsed time that is never too short, ages need elapsed time
//! that is never too long. `CLOCK_MONOTONIC_RAW` is steered by nobody but stands
//! still while the machine is suspended; `CLOCK_BOOTTIME` goes on then, but is
//! slewed by NTP. So time here is the raw clock plus all that the boot clock was
//! ever seen to gain on it; ages are the raw clock alone.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use leasehold_spend::{Clock, MILLISECOND};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const RAW: ClockId = ClockId::MonotonicRaw;
#[cfg(target_os = "linux")]
const BOOT: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const RAW: ClockId = ClockId::Monotonic;
#[cfg(not(target_os = "linux"))]
const BOOT: ClockId = ClockId::Monotonic;

/// Two readings further apart than this say nothing about how the clocks differ:
/// the thread was interrupted between them.
const BRACKET_NS: i64 = 20_000;

/// The machine's clocks, as the spending core wants them.
#[derive(Debug)]
pub(crate) struct SystemClock {
    /// Read both clocks at every look, rather than rely on the watcher.
    is_strict: bool,
    origin_ns: i64,
    /// What the boot clock has gained on the raw clock since the start.
    gained_ns: AtomicU64,
    /// How far the boot clock is ahead of the raw one, as last seen.
    lead_ns: AtomicI64,
    watch: Mutex<()>,
}

impl SystemClock {
    pub(crate) fn new(is_strict: bool) -> Self {
        let clock = Self {
            is_strict,
            // Readings begin a little above zero, which stands for "never".
            origin_ns: read(RAW).saturating_sub_unsigned(MILLISECOND),
            gained_ns: AtomicU64::new(0),
            lead_ns: AtomicI64::new(i64::MAX),
            watch: Mutex::new(()),
        };
        let (lead, _) = lead();
        clock.lead_ns.store(lead, Ordering::Relaxed);
        clock
    }

    /// Compares the clocks. The driver calls it every tenth of a second; time
    /// leaps forward when the machine was suspended.
    pub(crate) fn watch(&self) {
        let _alone = self.watch.lock();
        let (lead, bracket) = lead();
        let known = self.lead_ns.load(Ordering::Relaxed);
        if lead > known {
            // Gained before lead: a strict look in between counts the gain twice,
            // and merely stops too early.
            self.gained_ns
                .fetch_add(lead.abs_diff(known), Ordering::Relaxed);
            self.lead_ns.store(lead, Ordering::Relaxed);
        } else if bracket < BRACKET_NS {
            // The boot clock was slewed back: what it gains from here counts.
            self.lead_ns.store(lead, Ordering::Relaxed);
        }
    }

    fn raw_ns(&self) -> u64 {
        u64::try_from(read(RAW) - self.origin_ns).unwrap_or(0)
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        // Relaxed: the watcher may be late by itself; see the crate's promise.
        let now = self.raw_ns() + self.gained_ns.load(Ordering::Relaxed);
        if !self.is_strict {
            return now;
        }
        // The boot clock is read after the raw one, so an interruption in between
        // makes the lead too large, and time too late: the safe side.
        let ahead = read(BOOT) - self.origin_ns;
        let unseen = ahead - i64::try_from(now).unwrap_or(i64::MAX)
            + i64::try_from(self.gained_ns.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
            - self.lead_ns.load(Ordering::Relaxed);
        now + u64::try_from(unseen).unwrap_or(0)
    }

    #[inline]
    fn floor_ns(&self) -> u64 {
        self.raw_ns()
    }
}

/// How far the boot clock is ahead at least, and how long finding out took.
fn lead() -> (i64, i64) {
    let before = read(RAW);
    let boot = read(BOOT);
    let after = read(RAW);
    (boot - after, after - before)
}

/// Nanoseconds on one clock; they fit until the machine is 292 years up.
#[inline]
fn read(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back_and_ages_are_never_ahead_of_it() {
        for is_strict in [false, true] {
            let clock = SystemClock::new(is_strict);
            let mut before = 0;
            for _ in 0..10_000 {
                clock.watch();
                let floor = clock.floor_ns();
                let now = clock.now_ns();
                assert!(now >= floor);
                assert!(clock.floor_ns() >= floor);
                if !is_strict {
                    assert!(now >= before);
                    before = now;
                }
            }
        }
    }

    #[test]
    fn watching_alone_adds_next_to_nothing() {
        let clock = SystemClock::new(false);
        let began = clock.floor_ns();
        for _ in 0..1_000 {
            clock.watch();
        }
        let passed = clock.floor_ns() - began;
        // Far less than passed: a suspension would show as more than all of it.
        assert!(clock.gained_ns.load(Ordering::Relaxed) <= passed);
    }

    #[test]
    fn a_leap_of_the_boot_clock_is_a_leap_of_time() {
        let clock = SystemClock::new(false);
        let before = clock.now_ns();
        // As if the boot clock had stood three seconds further back until now.
        clock.lead_ns.fetch_sub(3_000_000_000, Ordering::Relaxed);
        assert!(clock.now_ns() < before + 2_000_000_000);
        clock.watch();
        assert!(clock.now_ns() >= before + 3_000_000_000);
        assert!(clock.floor_ns() < before + 2_000_000_000);
    }

    #[test]
    fn a_strict_look_needs_no_watcher() {
        let clock = SystemClock::new(true);
        let before = clock.now_ns();
        clock.lead_ns.fetch_sub(3_000_000_000, Ordering::Relaxed);
        assert!(clock.now_ns() >= before + 3_000_000_000);
    }
}
