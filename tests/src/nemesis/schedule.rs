//! Which faults happen when: drawn from the seed alone, round after round, so that
//! every kind has its turn before any has a second one. Knows only their names and
//! what goes with what.

use std::time::Duration;

use super::{draw::Draw, fault::Kind};

/// Out of so many hundred rounds, that many have two faults or three.
const COMBINED_PERCENT: u64 = 40;

/// One round: these faults, one after another, then all undone.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) number: u64,
    pub(crate) faults: Vec<Kind>,
    /// Before each but the first.
    pub(crate) stagger: Vec<Duration>,
    /// How long the last one lasts.
    pub(crate) lasts: Duration,
    /// Of peace afterwards.
    pub(crate) rest: Duration,
}

/// All rounds to come.
#[derive(Debug)]
pub(crate) struct Schedule {
    seed: u64,
    kinds: Vec<Kind>,
    deck: Vec<Kind>,
    decks: u64,
    rounds: u64,
}

/// The streams of decks lie far from those of rounds.
const DECKS: u64 = 1 << 32;

impl Schedule {
    /// `kinds` in a fixed order, at least one.
    pub(crate) fn new(seed: u64, kinds: Vec<Kind>) -> Self {
        Self {
            seed,
            kinds,
            deck: Vec::new(),
            decks: 0,
            rounds: 0,
        }
    }

    pub(crate) fn next(&mut self) -> Option<Round> {
        self.rounds += 1;
        let mut draw = Draw::new(self.seed, self.rounds);
        let first = self.deal()?;
        let mut faults = vec![first];
        if draw.chance(COMBINED_PERCENT) {
            let more = if draw.chance(25) { 2 } else { 1 };
            for _ in 0..more {
                if let Some(other) = self.deal_beside(&faults) {
                    faults.push(other);
                }
            }
        }
        let longest = faults.iter().max_by_key(|kind| kind.lasts_ms.end);
        let lasts = longest.map_or(Duration::ZERO, |kind| draw.millis(kind.lasts_ms.clone()));
        Some(Round {
            number: self.rounds,
            stagger: (1..faults.len()).map(|_| draw.millis(0..1_500)).collect(),
            faults,
            lasts,
            rest: draw.millis(500..2_500),
        })
    }

    /// The stream from which a round's faults draw.
    pub(crate) fn draw(&self, round: u64, fault: usize) -> Draw {
        let fault = u64::try_from(fault).unwrap_or(0);
        Draw::new(self.seed, (round << 8) + fault + (1 << 48))
    }

    fn deal(&mut self) -> Option<Kind> {
        if self.deck.is_empty() {
            self.decks += 1;
            self.deck.clone_from(&self.kinds);
            Draw::new(self.seed, DECKS + self.decks).shuffle(&mut self.deck);
        }
        self.deck.pop()
    }

    /// The next in the deck that goes with all of these.
    fn deal_beside(&mut self, faults: &[Kind]) -> Option<Kind> {
        let fits = |kind: &Kind| {
            faults
                .iter()
                .all(|there| there.name != kind.name && kind.scope.goes_with(there.scope))
        };
        let at = self.deck.iter().rposition(fits)?;
        Some(self.deck.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::nemesis::fault::kinds;

    fn names(seed: u64, rounds: usize) -> Vec<Vec<&'static str>> {
        let mut schedule = Schedule::new(seed, kinds());
        (0..rounds)
            .filter_map(|_| schedule.next())
            .map(|round| round.faults.iter().map(|kind| kind.name).collect())
            .collect()
    }

    #[test]
    fn one_seed_gives_one_schedule() {
        assert_eq!(names(5, 200), names(5, 200));
        assert_ne!(names(5, 200), names(6, 200));
    }

    #[test]
    fn every_kind_has_its_turn_before_any_has_a_second_one() {
        let all = kinds().len();
        for seed in 0..20 {
            let first: Vec<&str> = names(seed, all).concat().into_iter().take(all).collect();
            let distinct: BTreeSet<&str> = first.iter().copied().collect();
            assert_eq!(distinct.len(), all, "seed {seed}: {first:?}");
        }
    }

    #[test]
    fn nothing_is_combined_with_what_takes_everything_down() {
        use crate::nemesis::fault::Scope;
        let mut schedule = Schedule::new(3, kinds());
        for _ in 0..500 {
            let Some(round) = schedule.next() else { break };
            let alone = |kind: &Kind| kind.scope == Scope::System;
            assert!(
                round.faults.len() == 1 || !round.faults.iter().any(alone),
                "{:?}",
                round.faults
            );
        }
    }
}
