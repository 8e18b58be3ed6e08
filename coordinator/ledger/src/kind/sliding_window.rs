//! At most `limit` units in any interval of `window_us`. Does not know leases:
//! only units with the latest moment at which each can have been spent.

use std::collections::VecDeque;

use super::{Moment, Rebound};
use crate::{digest, exact, time};

/// Windows up to this length keep dates finely: with so many dates in so short a
/// time its key is a busy one, and units that come free in lumps are refused
/// meanwhile and stranded afterwards. Longer ones keep fewer, for there may be many.
const FINE_WINDOW_US_MAX: u64 = 60_000_000;
/// Merged dates are at most this part of a window apart ...
const FINE_PER_WINDOW: u64 = 8_192;
/// ... or this part of a longer one.
const COARSE_PER_WINDOW: u64 = 1_024;

/// Units with one date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The latest cluster time at which they can have been spent.
    pub(crate) date_us: u64,
    /// How many; never 0.
    pub(crate) units: u64,
}

impl Slot {
    fn hash(self) -> u64 {
        digest::words([self.date_us, self.units])
    }
}

/// The books of a sliding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlidingWindow {
    limit: u64,
    window_us: u64,
    /// How long a unit counts after its date.
    hold_us: u64,
    /// The sum over the slots.
    counted: u64,
    /// Strictly ascending dates.
    slots: VecDeque<Slot>,
    /// The hashes of the slots, so that a change costs one slot's.
    hashes: digest::Sum,
}

impl SlidingWindow {
    /// The most dates that any window keeps.
    pub(crate) const SLOTS_MAX: usize = 16_384;
    /// The most that a long one keeps.
    const COARSE_SLOTS_MAX: usize = 2_048;

    /// Dates kept exactly, and how far apart merged ones are at most: above that
    /// number, neighbours merge towards the later date.
    const fn resolution(&self) -> (usize, u64) {
        if self.window_us <= FINE_WINDOW_US_MAX {
            (Self::SLOTS_MAX, self.window_us.div_euclid(FINE_PER_WINDOW))
        } else {
            (
                Self::COARSE_SLOTS_MAX,
                self.window_us.div_euclid(COARSE_PER_WINDOW),
            )
        }
    }

    pub(crate) fn new(limit: u64, window_us: u64, drift_ppm: u32) -> Self {
        Self {
            limit,
            window_us,
            hold_us: time::hold_us(window_us, drift_ppm),
            counted: 0,
            slots: VecDeque::new(),
            hashes: digest::Sum::default(),
        }
    }

    /// The slots as a snapshot had them, ascending: none is merged, not even if they are
    /// more than this window keeps once the next one comes, because an edit left them so.
    pub(crate) fn restore(&mut self, slots: impl Iterator<Item = Slot>) {
        for slot in slots {
            self.counted = exact::add(self.counted, slot.units);
            self.hashes.add(slot.hash());
            self.slots.push_back(slot);
        }
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn counted(&self) -> u64 {
        self.counted
    }

    /// Every slot, the oldest first.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.slots.iter().copied()
    }

    /// Whether the slots are what they must be at a time.
    pub(crate) fn is_sound(&self, now_us: u64) -> bool {
        let mut hashes = digest::Sum::default();
        let mut counted = 0;
        for slot in &self.slots {
            hashes.add(slot.hash());
            counted = exact::add(counted, slot.units);
        }
        let dates = || self.slots.iter().map(|slot| slot.date_us);
        dates().is_sorted_by(|one, next| one < next)
            && dates().all(|date_us| date_us <= now_us)
            && self.slots.iter().all(|slot| slot.units > 0)
            && self.slots.len() <= Self::SLOTS_MAX
            && counted == self.counted
            && hashes == self.hashes
    }

    const fn ages_at(&self, slot: Slot) -> u64 {
        slot.date_us.saturating_add(self.hold_us)
    }

    pub(crate) fn settle(&mut self, now_us: u64) {
        while let Some(&slot) = self.slots.front()
            && self.ages_at(slot) <= now_us
        {
            self.counted = exact::sub(self.counted, slot.units);
            self.hashes.remove(slot.hash());
            self.slots.pop_front();
        }
    }

    pub(crate) fn counted_at(&self, now_us: u64) -> u64 {
        let aged = self
            .slots
            .iter()
            .take_while(|slot| self.ages_at(**slot) <= now_us);
        aged.fold(self.counted, |counted, slot| {
            exact::sub(counted, slot.units)
        })
    }

    pub(crate) fn charge(&mut self, units: u64, date_us: u64) {
        if units == 0 {
            return;
        }
        self.counted = exact::add(self.counted, units);
        // Nearly always the newest date.
        let place = match self.slots.back() {
            Some(newest) if newest.date_us > date_us => {
                self.slots.partition_point(|slot| slot.date_us <= date_us)
            }
            _ => self.slots.len(),
        };
        if let Some(slot) = place
            .checked_sub(1)
            .and_then(|place| self.slots.get_mut(place))
            && slot.date_us == date_us
        {
            self.hashes.remove(slot.hash());
            slot.units = exact::add(slot.units, units);
            self.hashes.add(slot.hash());
            return;
        }
        let slot = Slot { date_us, units };
        self.hashes.add(slot.hash());
        self.slots.insert(place, slot);
        if self.slots.len() > self.resolution().0 {
            self.merge();
        }
    }

    /// Merges dates within a fraction of the window, each group towards its
    /// latest: units count longer than they must, never shorter.
    fn merge(&mut self) {
        let (slots_max, near_us) = self.resolution();
        let mut merged: VecDeque<Slot> = VecDeque::with_capacity(slots_max);
        let mut group_from_us = 0;
        for slot in self.slots.drain(..) {
            match merged.back_mut() {
                Some(group) if slot.date_us.saturating_sub(group_from_us) <= near_us => {
                    group.date_us = slot.date_us;
                    group.units = exact::add(group.units, slot.units);
                }
                _ => {
                    group_from_us = slot.date_us;
                    merged.push_back(slot);
                }
            }
        }
        self.slots = merged;
        self.hashes = digest::Sum::default();
        for slot in &self.slots {
            self.hashes.add(slot.hash());
        }
    }

    pub(crate) fn refund(&mut self, units: u64, date_us: u64, now_us: u64) -> u64 {
        if date_us.saturating_add(self.hold_us) <= now_us {
            return 0;
        }
        // The units are in the first slot from their date on. Should an earlier
        // date have come between since a merge, units with an earlier date go
        // instead: those that stay count longer, which is safe.
        let mut place = self.slots.partition_point(|slot| slot.date_us < date_us);
        let mut left = units;
        while left > 0
            && let Some(slot) = self.slots.get_mut(place)
        {
            let taken = left.min(slot.units);
            self.hashes.remove(slot.hash());
            slot.units = exact::sub(slot.units, taken);
            left = exact::sub(left, taken);
            self.counted = exact::sub(self.counted, taken);
            if slot.units == 0 {
                self.slots.remove(place);
            } else {
                self.hashes.add(slot.hash());
                place = place.saturating_add(1);
            }
        }
        exact::sub(units, left)
    }

    /// Uncounts units by hand, the latest dates first; gives how many.
    pub(crate) fn uncount(&mut self, units: u64) -> u64 {
        let mut left = units;
        while left > 0
            && let Some(slot) = self.slots.back_mut()
        {
            let taken = left.min(slot.units);
            self.hashes.remove(slot.hash());
            slot.units = exact::sub(slot.units, taken);
            left = exact::sub(left, taken);
            self.counted = exact::sub(self.counted, taken);
            if slot.units == 0 {
                self.slots.pop_back();
            } else {
                self.hashes.add(slot.hash());
            }
        }
        exact::sub(units, left)
    }

    pub(crate) fn drained_when(&self, units: u64) -> Option<u64> {
        let mut drained = 0_u64;
        self.slots.iter().find_map(|slot| {
            drained = drained.saturating_add(slot.units);
            (drained >= units).then(|| self.ages_at(*slot))
        })
    }

    pub(crate) fn idle_when(&self) -> u64 {
        self.slots.back().map_or(0, |slot| self.ages_at(*slot))
    }

    /// Follows an edit; the books are settled under the old rule already.
    pub(crate) fn rebind(
        &mut self,
        limit: u64,
        window_us: u64,
        moment: &Moment<'_>,
        outstanding: u64,
    ) -> Rebound {
        let (old_window_us, old_hold_us) = (self.window_us, self.hold_us);
        self.limit = limit;
        self.window_us = window_us;
        self.hold_us = time::hold_us(window_us, moment.drift_ppm);
        self.settle(moment.now_us);
        if window_us > old_window_us {
            // Units that the shorter window has forgotten may lie in the longer one.
            let used = exact::add(self.counted, outstanding);
            self.charge(limit.saturating_sub(used), moment.unknown_until_us());
        }
        // A unit that the shorter hold has forgotten does not count again when the drift's
        // bound is raised: nothing of it may be refunded from the units that do.
        if window_us == old_window_us && self.hold_us <= old_hold_us {
            Rebound::Compatible
        } else {
            Rebound::NewEpoch
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        digest::words([1, self.counted, self.hashes.value()])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects, reason = "tests")]

    use super::*;

    fn window(limit: u64) -> SlidingWindow {
        SlidingWindow::new(limit, 1_000_000, 0)
    }

    #[test]
    fn units_count_until_their_own_date_ages() {
        let mut books = window(10);
        books.charge(3, 100);
        books.charge(2, 50);
        books.charge(1, 100);
        assert_eq!(books.counted(), 6);
        assert_eq!(books.counted_at(1_000_050), 6);
        assert_eq!(books.counted_at(1_000_051), 4);
        assert_eq!(books.drained_when(2), Some(1_000_051));
        assert_eq!(books.drained_when(3), Some(1_000_101));
        assert_eq!(books.drained_when(7), None);
        books.settle(1_000_101);
        assert_eq!((books.counted(), books.slots().count()), (0, 0));
        assert_eq!(books.hashes, digest::Sum::default());
    }

    #[test]
    fn merging_bounds_the_slots_and_only_moves_dates_later() {
        let mut books = window(u64::MAX >> 11);
        for spend in 0..40_000_u64 {
            books.charge(1, spend * 25);
            assert!(books.slots.len() <= SlidingWindow::SLOTS_MAX);
        }
        assert_eq!(books.counted(), 40_000);
        assert!(books.slots.len() < 20_000, "some were merged");
        let mut before = 0;
        for slot in books.slots() {
            assert!(slot.date_us >= before);
            before = slot.date_us + 25;
        }
        let mut seen = 0;
        for slot in books.slots() {
            // The first units of a slot are dated late by W/8192 at most, twice over
            // when a merged slot was merged again.
            seen += slot.units;
            let own_date = (seen - 1) * 25;
            assert!(slot.date_us >= own_date && slot.date_us <= own_date + 2 * 1_000_000 / 8_192);
        }
    }

    #[test]
    fn a_refund_finds_units_that_were_merged() {
        let mut books = window(100_000);
        books.charge(7, 500);
        for spend in 0..17_000_u64 {
            books.charge(1, 501 + spend);
        }
        let counted = books.counted();
        assert_eq!(books.refund(7, 500, 2_000), 7);
        assert_eq!(books.counted(), counted - 7);
        assert_eq!(books.refund(7, 500, 1_000_501), 0);
    }
}
