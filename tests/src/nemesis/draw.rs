//! Chance, from a seed: every round has a stream of its own, so that what one round
//! draws changes nothing for the next. Knows nothing of what is drawn for.

use std::{ops::Range, time::Duration};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};

/// A stream of choices.
#[derive(Debug)]
pub(crate) struct Draw(StdRng);

impl Draw {
    /// The stream of one purpose.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        // Both spread over all bits, so that neighbours have nothing in common.
        let spread = |number: u64| {
            let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ (mixed >> 29)
        };
        Self(StdRng::seed_from_u64(
            spread(seed.wrapping_add(1)) ^ spread(purpose).rotate_left(17),
        ))
    }

    /// One of so many; 0 of none.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        // Drawn in any case, so that later draws do not depend on the count.
        let drawn: u64 = self.0.random();
        let count = u64::try_from(count.max(1)).unwrap_or(1);
        usize::try_from(drawn % count).unwrap_or(0)
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let index = self.index(from.len());
        from.get(index).copied()
    }

    pub(crate) fn number(&mut self, range: Range<u64>) -> u64 {
        self.0.random_range(range)
    }

    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.number(range))
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.number(0..100) < percent
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        items.shuffle(&mut self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_and_purpose_give_one_stream_and_others_another() {
        let stream = |seed, purpose| {
            let mut draw = Draw::new(seed, purpose);
            (0..20).map(|_| draw.number(0..1_000)).collect::<Vec<_>>()
        };
        assert_eq!(stream(7, 3), stream(7, 3));
        assert_ne!(stream(7, 3), stream(7, 4));
        assert_ne!(stream(7, 3), stream(8, 3));
    }

    #[test]
    fn what_there_is_to_choose_from_changes_nothing_for_later_draws() {
        let (mut one, mut other) = (Draw::new(1, 1), Draw::new(1, 1));
        one.index(3);
        other.index(5);
        assert_eq!(one.number(0..1_000_000), other.number(0..1_000_000));
    }
}
