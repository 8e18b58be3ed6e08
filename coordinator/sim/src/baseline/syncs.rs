//! When gateways sync with their store. Knows nothing of what they tell it.

use rand::Rng as _;

use crate::traffic::randomness;

/// The stream of randomness that offsets are drawn from.
const OFFSETS: u64 = 500;

/// How gateways sync: every so often, each for itself or all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syncs {
    /// The interval, in microseconds.
    pub every_us: u64,
    /// Who syncs when within an interval.
    pub offsets: Offsets,
}

/// Where in an interval a gateway's sync falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// At each gateway's own moment, drawn from this seed.
    Own(u64),
    /// All at the interval's beginning.
    Aligned,
}

impl Syncs {
    /// Each gateway at its own moment.
    #[must_use]
    pub fn every(every_us: u64, seed: u64) -> Self {
        Self {
            every_us,
            offsets: Offsets::Own(seed),
        }
    }

    pub(super) fn schedule(self, gateways: usize) -> Schedule {
        let every_us = self.every_us.max(1);
        let mut offsets: Vec<(u64, usize)> = match self.offsets {
            Offsets::Own(seed) => {
                let mut randomness = randomness(seed, OFFSETS);
                (0..gateways)
                    .map(|gateway| (randomness.random_range(0..every_us), gateway))
                    .collect()
            }
            Offsets::Aligned => (0..gateways).map(|gateway| (0, gateway)).collect(),
        };
        offsets.sort_unstable();
        Schedule {
            every_us,
            offsets,
            round_us: 0,
            next: 0,
        }
    }
}

/// Whose turn it is, for ever.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    every_us: u64,
    /// In the order of time within an interval.
    offsets: Vec<(u64, usize)>,
    round_us: u64,
    next: usize,
}

impl Schedule {
    pub(super) fn next_us(&self) -> Option<u64> {
        let (offset_us, _) = self.offsets.get(self.next)?;
        Some(self.round_us + offset_us)
    }

    /// The gateway whose sync is due, once for each that is.
    pub(super) fn due(&mut self, now_us: u64) -> Option<usize> {
        let &(offset_us, gateway) = self.offsets.get(self.next)?;
        if self.round_us + offset_us > now_us {
            return None;
        }
        self.next += 1;
        if self.next == self.offsets.len() {
            self.next = 0;
            self.round_us += self.every_us;
        }
        Some(gateway)
    }

    /// All gateways that are due.
    pub(super) fn all_due(&mut self, now_us: u64) -> Vec<usize> {
        std::iter::from_fn(|| self.due(now_us)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gateway_syncs_once_an_interval_at_its_own_moment() {
        let mut schedule = Syncs::every(1_000, 7).schedule(3);
        let mut moments = [Vec::new(), Vec::new(), Vec::new()];
        while let Some(now_us) = schedule.next_us().filter(|us| *us < 3_000) {
            for gateway in schedule.all_due(now_us) {
                moments[gateway].push(now_us);
            }
        }
        for moments in &moments {
            assert_eq!(moments.len(), 3);
            assert!(moments.windows(2).all(|pair| pair[1] - pair[0] == 1_000));
        }
        assert_ne!(moments[0], moments[1]);
    }

    #[test]
    fn aligned_gateways_sync_together() {
        let syncs = Syncs {
            every_us: 1_000,
            offsets: Offsets::Aligned,
        };
        let mut schedule = syncs.schedule(3);
        assert_eq!(schedule.all_due(0), [0, 1, 2]);
        assert_eq!(schedule.all_due(999), [0; 0]);
        assert_eq!(schedule.next_us(), Some(1_000));
    }
}
