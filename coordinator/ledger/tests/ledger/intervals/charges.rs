//! What is charged rather than counted in an interval: periods, totals, and permits, judged
//! by when clients took units in the same world.

use leasehold_ledger::{
    correction::Change,
    entry::{Command, Entry, Roll},
    policy::Kind,
};
use proptest::prelude::*;

use super::{Restores, World, play};
use crate::{
    log::{key, policy},
    ops::calendar,
};

impl World {
    /// Now and then a period begins, or somebody adds to a total: more than once by the
    /// same id.
    pub(super) fn put_charges(&mut self, entry: &mut Entry) {
        match self.kind {
            Kind::Period { .. } => {
                let begun = i64::try_from(self.begun.len()).unwrap();
                // A leader that does not know that it has begun says so again.
                let again = i64::from(self.dice.roll(4) == 0 && begun > 0);
                let start_unix_us = begun - again;
                if begun == 0 || self.dice.roll(12) == 0 {
                    entry.rolls.push(Roll {
                        calendar: calendar(0),
                        start_unix_us,
                        end_unix_us: start_unix_us + 1,
                        ends_in_us: self.dice.roll(500_000),
                    });
                }
            }
            Kind::Total { .. } if self.dice.roll(20) == 0 => {
                let id = self.dice.roll(12);
                let units = 1 + id * 3 % 8;
                self.added.insert(id, units);
                entry.commands.push(Command::Correct {
                    key: key("a"),
                    id: format!("order-{id}"),
                    change: Change::Adjust(i64::try_from(units).unwrap()),
                    reason: "they paid".to_owned(),
                    by: String::new(),
                    wall_unix_us: 0,
                });
            }
            _ => {}
        }
    }

    /// A permit is valid until it is given back or its session's deadline has come by its
    /// holder's own clock.
    pub(super) fn look_at_permits(&mut self) {
        let valid = (0..self.holders.len())
            .filter(|place| self.local_us(*place) < self.holders[*place].deadline_us)
            .map(|place| self.holders[place].lease.in_use);
        self.valid_max = self.valid_max.max(valid.sum());
    }
}

/// Units that were taken in each period, those before the first aside.
fn by_period(world: &World) -> Vec<u64> {
    let ends = world.begun.iter().skip(1).copied();
    let ends = ends.chain([world.admitted.len()]);
    let periods = world.begun.iter().zip(ends).map(|(from, to)| {
        let taken = &world.admitted[*from..to];
        taken.iter().map(|(_, units)| units).sum()
    });
    periods.collect()
}

fn check_period(seed: u64, limit: u64, carry_over: u64) -> World {
    let kind = Kind::Period {
        limit,
        calendar: calendar(0),
        carry_over,
    };
    let world = play(seed, &policy(kind), &[], Restores::Never);
    let taken = by_period(&world);
    // Of any number of periods together: what each had, and what the first one had
    // from before.
    for from in 0..taken.len() {
        let mut sum = 0;
        for (place, units) in taken[from..].iter().enumerate() {
            sum += units;
            let periods = u64::try_from(place).unwrap() + 1;
            assert!(
                sum <= periods * limit + carry_over,
                "seed {seed}: {sum} taken in {periods} periods of {limit}, {carry_over} carried"
            );
        }
    }
    world
}

fn check_total(seed: u64, limit: u64) -> World {
    let world = play(seed, &policy(Kind::Total { limit }), &[], Restores::Never);
    let taken: u64 = world.admitted.iter().map(|(_, units)| units).sum();
    let added: u64 = world.added.values().sum();
    assert!(
        taken <= limit + added,
        "seed {seed}: {taken} taken of {limit} and {added}"
    );
    world
}

fn check_permits(seed: u64, limit: u64, restores: Restores) -> World {
    let world = play(seed, &policy(Kind::Concurrency { limit }), &[], restores);
    assert!(
        world.valid_max <= limit,
        "seed {seed}: {} permits valid at one moment, of {limit}",
        world.valid_max
    );
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 8))]

    #[test]
    fn no_period_has_more_taken_than_its_limit_and_what_was_carried_over(
        seed: u64,
        limit in 1..25_u64,
        carry_over in prop_oneof![Just(0), 1..30_u64],
    ) {
        check_period(seed, limit, carry_over);
    }

    #[test]
    fn no_more_is_ever_taken_of_a_total_than_it_had_and_was_added(seed: u64, limit in 0..80_u64) {
        check_total(seed, limit);
    }

    #[test]
    fn no_more_permits_are_valid_at_one_moment_than_the_limit(seed: u64, limit in 1..25_u64) {
        check_permits(seed, limit, Restores::Never);
    }

    #[test]
    fn no_more_permits_are_valid_at_one_moment_across_restores(seed: u64, limit in 1..25_u64) {
        check_permits(seed, limit, Restores::FromAnyBackup);
    }
}

#[test]
fn the_runs_take_enough_to_mean_something() {
    let periods: Vec<World> = (0..6).map(|seed| check_period(seed, 12, 5)).collect();
    let begun: usize = periods.iter().map(|world| world.begun.len()).sum();
    let admitted: usize = periods.iter().map(|world| world.admitted.len()).sum();
    assert!(
        begun > 60 && admitted > 100,
        "{begun} periods, {admitted} admissions"
    );
    let full = (0..12).filter(|seed| {
        let world = check_total(*seed, 20);
        let taken: u64 = world.admitted.iter().map(|(_, units)| units).sum();
        taken >= 20
    });
    assert!(full.count() > 3, "totals are hardly used");
    let most = (0..12).map(|seed| check_permits(seed, 6, Restores::Never).valid_max);
    assert!(most.max() == Some(6), "permits are hardly used");
}
