//! How much a key is asked for, from counts sampled at irregular moments. Knows
//! nothing of leases: arrivals go in, a rate, a peak and a slice come out.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "an estimate: floats in, whole units out, saturating"
)]

use crate::clock::{MILLISECOND, SECOND};

/// Parts that a horizon is counted in.
const PARTS: usize = 4;
/// No time constant follows a policy's timescale out of these bounds.
const WINDOW_MIN: u64 = 60 * MILLISECOND;
const WINDOW_MAX: u64 = 60 * SECOND;

/// Arrivals of one key over its demand horizon H = W/6.
#[derive(Debug)]
pub(crate) struct Demand {
    window_ns: u64,
    /// Arrivals in each part of the horizon, oldest overwritten first.
    parts: [f64; PARTS],
    part: usize,
    part_began_ns: u64,
    /// Most arrivals in any horizon lately; halves in W × ln 2.
    peak: f64,
    /// Smoothed arrivals per nanosecond.
    rate: f64,
    began_ns: u64,
    at_ns: u64,
}

impl Demand {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            window_ns: 10 * SECOND,
            parts: [0.0; PARTS],
            part: 0,
            part_began_ns: now_ns,
            peak: 0.0,
            rate: 0.0,
            began_ns: now_ns,
            at_ns: now_ns,
        }
    }

    /// Follows the policy's timescale, bounded.
    pub(crate) fn set_window(&mut self, window_ns: u64) {
        self.window_ns = window_ns.clamp(WINDOW_MIN, WINDOW_MAX);
    }

    /// W, bounded.
    pub(crate) fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// H.
    pub(crate) fn horizon_ns(&self) -> u64 {
        self.window_ns / 6
    }

    /// Counts arrivals since the previous call.
    pub(crate) fn record(&mut self, now_ns: u64, units: u64) {
        let now_ns = now_ns.max(self.at_ns);
        self.roll(now_ns);
        let units = units as f64;
        self.parts[self.part] += units;

        let passed = (now_ns - self.at_ns) as f64;
        self.peak *= (-passed / self.window_ns as f64).exp();
        self.peak = self.peak.max(self.parts.iter().sum());

        // An average over what is known at first, then over five windows: a
        // young key is neither taken for idle nor for a flood.
        let known = (now_ns - self.began_ns) as f64;
        let memory = known.clamp(self.horizon_ns() as f64, 5.0 * self.window_ns as f64);
        self.rate = self.rate * (-passed / memory).exp() + units / memory;
        self.at_ns = now_ns;
    }

    fn roll(&mut self, now_ns: u64) {
        let part_ns = (self.horizon_ns() / PARTS as u64).max(1);
        let steps = now_ns.saturating_sub(self.part_began_ns) / part_ns;
        for _ in 0..steps.min(PARTS as u64) {
            self.part = (self.part + 1) % PARTS;
            self.parts[self.part] = 0.0;
        }
        self.part_began_ns += steps * part_ns;
    }

    /// Most arrivals in any horizon lately.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.ceil() as u64
    }

    /// Smoothed demand in thousandths of a unit per second.
    pub(crate) fn milli_per_second(&self) -> u64 {
        (self.rate * SECOND as f64 * 1000.0) as u64
    }

    /// What may be left when more is asked for: at the rate of the peak, what is
    /// there lasts through one round trip but for one time in a hundred.
    pub(crate) fn low_water(&self, rtt_ns: u64) -> u64 {
        low_water(self.peak * rtt_ns as f64 / self.horizon_ns() as f64)
    }

    /// The units that one gateway should have at hand: `factor` times the mean
    /// over a horizon, or the peak over one if that is larger; at least 1.
    pub(crate) fn slice(&self, factor_milli: u32) -> u64 {
        let mean = self.rate * self.horizon_ns() as f64;
        let slice = (mean * f64::from(factor_milli) / 1000.0).max(self.peak);
        (slice.ceil() as u64).max(1)
    }
}

/// The chance that a key runs dry before what it asked for ahead has come.
const DRY_RISK: f64 = 0.01;
/// Up to this mean the Poisson distribution is summed, above it is taken for normal.
const SUMMED_MAX: f64 = 64.0;
/// The normal distribution's 99th percentile, in standard deviations.
const NORMAL_99: f64 = 2.326;

/// The least m with P(Poisson(mean) > m) at most 1 %.
fn low_water(mean: f64) -> u64 {
    if mean > SUMMED_MAX {
        return (mean + NORMAL_99 * mean.sqrt()).ceil() as u64;
    }
    let (mut units, mut term) = (0_u64, (-mean).exp());
    let mut below = term;
    while 1.0 - below > DRY_RISK {
        units += 1;
        term *= mean / units as f64;
        below += term;
    }
    units
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn steady(per_second: u64, seconds: u64) -> Demand {
        let mut demand = Demand::new(0);
        demand.set_window(60 * SECOND);
        for step in 1..=seconds * 10 {
            demand.record(step * 100 * MILLISECOND, per_second / 10);
        }
        demand
    }

    #[test]
    fn steady_demand_is_one_and_a_half_horizons() {
        let demand = steady(10, 600);
        assert!((9_500..=10_500).contains(&demand.milli_per_second()));
        assert!(
            (145..=155).contains(&demand.slice(1500)),
            "{}",
            demand.slice(1500)
        );
    }

    #[test]
    fn a_burst_is_believed_at_once() {
        let mut demand = Demand::new(0);
        demand.record(MILLISECOND, 500);
        assert_eq!(demand.slice(1500), 750);
        assert_eq!(demand.peak(), 500);
    }

    #[test]
    fn an_idle_key_wants_one_unit_in_the_end() {
        let mut demand = steady(10, 60);
        demand.record(60 * SECOND + 3_600 * SECOND, 0);
        assert_eq!(demand.slice(1500), 1);
    }

    #[test]
    fn low_water_is_the_least_that_lasts_through_a_round_trip_99_times_in_100() {
        // P(Poisson(0.01) > 0) = 1.0 %, P(Poisson(1) > 3) = 1.9 %, > 4: 0.4 %.
        for (mean, units) in [(0.0, 0), (0.01, 0), (0.011, 1), (1.0, 4), (10.0, 18)] {
            assert_eq!(low_water(mean), units, "mean {mean}");
        }
        let (summed, normal) = (low_water(63.9), low_water(64.1));
        assert!(normal.abs_diff(summed) <= 2, "{summed} and {normal}");
    }

    #[test]
    fn a_clock_that_stands_still_is_harmless() {
        let mut demand = Demand::new(5);
        demand.record(5, 1);
        demand.record(5, 1);
        assert_eq!(demand.peak(), 2);
    }
}
