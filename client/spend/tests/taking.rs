//! What a take is judged by: the clock does things of its own when it is looked at,
//! so that the order of taking and looking shows.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{cell::Cell, sync::Arc};

use leasehold_spend::{At, Clock, Line, Sample, Slot, Totals, Verdict};

/// Does something at each look.
struct Watched<F: Fn() -> u64>(F);

impl<F: Fn() -> u64> Clock for Watched<F> {
    fn now_ns(&self) -> u64 {
        (self.0)()
    }
}

/// With five units of generation 1 until 100.
fn slot() -> Arc<Slot> {
    let line = Arc::new(Line::new(1, || ()));
    let slot = Arc::new(Slot::new(0, line, 4, 250));
    let _ = slot.grant(1, 5, 100);
    slot
}

fn sample(slot: &Slot) -> Sample {
    let mut sample = Sample::default();
    slot.sample(&mut sample);
    sample
}

fn current(slot: &Slot) -> Totals {
    sample(slot).current.unwrap()
}

#[test]
fn units_are_taken_before_the_clock_is_looked_at() {
    let slot = slot();
    let left_at_look = Cell::new(None);
    let clock = Watched(|| {
        left_at_look.set(Some(current(&slot).left));
        99
    });
    assert_eq!(slot.try_spend(2, &clock), Verdict::Admitted);
    assert_eq!(left_at_look.get(), Some(3), "looked at after the take");
}

#[test]
fn a_take_is_judged_by_the_deadline_of_the_lease_it_was_taken_from() {
    let slot = slot();
    let clock = Watched(|| {
        // A newer lease opens while the spender is on its way to the clock.
        let _ = slot.grant(2, 5, 1_000);
        100
    });
    assert!(!slot.try_spend(1, &clock).is_allowed());
    let sample = sample(&slot);
    let (old, new) = (sample.ended[0], sample.current.unwrap());
    assert_eq!((old.generation, old.spent, old.returned), (1, 1, 4));
    assert_eq!((new.generation, new.left), (2, 5));
}

#[test]
fn a_unit_that_was_taken_too_late_is_forfeit_and_never_left_again() {
    let slot = slot();
    assert!(!slot.try_spend(1, &At(100)).is_allowed());
    let totals = current(&slot);
    assert_eq!((totals.left, totals.spent), (4, 1));
}

#[test]
fn a_hold_is_committed_before_its_lease_s_deadline_and_not_at_it() {
    let slot = slot();
    assert!(slot.hold(2).unwrap().commit(&At(99)));
    assert!(!slot.hold(2).unwrap().commit(&At(100)));
    let totals = current(&slot);
    assert_eq!((totals.left, totals.held, totals.spent), (3, 0, 2));
}

#[test]
fn a_hold_is_judged_by_the_deadline_of_the_lease_it_was_taken_from() {
    let slot = slot();
    let hold = slot.hold(2).unwrap();
    let _ = slot.grant(2, 5, 1_000);
    assert!(!hold.commit(&At(100)));
    assert_eq!(current(&slot).left, 5, "it goes back to its own lease");
    assert_eq!(sample(&slot).ended[0].returned, 5);
}
