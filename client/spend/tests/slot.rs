//! One slot and its lease: whatever comes, every unit that was granted is spent,
//! handed back, left or held, and no unit is there twice.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use leasehold_spend::{
    At, Begun, Code, Granted, Line, Patience, SECOND, Sample, Slot, SlotRule, Totals, Verdict,
    Waiter,
};

/// The most that a slot can have left.
const LEFT_MAX: u64 = (1 << 40) - 1;
const DEADLINE: u64 = 1_000;
const LATER: u64 = 2_000;

fn slot() -> Slot {
    Slot::new(0, Arc::new(Line::new(4, || ())), 8, 10 * LATER)
}

fn with(units: u64) -> Slot {
    let slot = slot();
    assert_eq!(slot.grant(1, units, DEADLINE), Granted::Units(units));
    slot
}

fn parked(units: u64) -> Slot {
    let slot = with(units);
    slot.park_if_late(DEADLINE);
    slot
}

/// The present lease, whose books are balanced.
fn totals(slot: &Slot) -> Totals {
    let mut sample = Sample::default();
    slot.sample(&mut sample);
    let totals = sample.current.unwrap();
    let sum = totals.spent + totals.returned + totals.left + totals.held;
    assert_eq!(sum, totals.granted, "{totals:?}");
    totals
}

fn admits(slot: &Slot, now_ns: u64) -> bool {
    slot.try_spend(1, &At(now_ns)) == Verdict::Admitted
}

#[test]
fn a_total_that_was_granted_counts_once() {
    let slot = with(10);
    assert_eq!(slot.grant(1, 10, DEADLINE), Granted::Known);
    assert_eq!(slot.grant(1, 7, DEADLINE), Granted::Known);
    assert_eq!(slot.grant(1, 12, DEADLINE), Granted::Units(2));
    assert_eq!(totals(&slot).left, 12);
}

#[test]
fn a_generation_that_has_ended_is_not_opened_again() {
    let slot = with(10);
    assert!(slot.end());
    assert_eq!(slot.grant(1, 20, LATER), Granted::Stale);
    assert_eq!(slot.grant(2, 3, LATER), Granted::Units(3));
    assert_eq!(slot.grant(1, 20, LATER), Granted::Stale);
    assert_eq!(totals(&slot).left, 3);
}

#[test]
fn a_later_deadline_counts_and_an_earlier_one_does_not() {
    let slot = with(10);
    slot.grant(1, 10, LATER);
    slot.grant(1, 10, DEADLINE);
    assert!(admits(&slot, LATER - 1));
    assert!(!admits(&slot, LATER));
}

#[test]
fn what_a_slot_has_no_room_for_is_handed_back() {
    for slot in [with(LEFT_MAX - 10), parked(LEFT_MAX - 10)] {
        assert_eq!(
            slot.grant(1, LEFT_MAX + 10, DEADLINE),
            Granted::Units(10),
            "of twenty"
        );
        let totals = totals(&slot);
        assert_eq!((totals.left, totals.returned), (LEFT_MAX, 10));
    }
}

#[test]
fn units_that_come_while_a_lease_is_put_aside_are_put_aside_too() {
    let slot = parked(5);
    assert_eq!(slot.grant(1, 15, DEADLINE), Granted::Units(10));
    assert_eq!(totals(&slot).left, 15);
    assert!(!admits(&slot, DEADLINE));
    slot.renew(LATER, DEADLINE);
    for _ in 0..15 {
        assert!(admits(&slot, DEADLINE));
    }
    assert_eq!((totals(&slot).spent, totals(&slot).left), (15, 0));
}

#[test]
fn a_renewal_that_comes_too_late_brings_nothing_back() {
    for now_ns in [LATER, LATER + 1] {
        let slot = parked(5);
        slot.renew(LATER, now_ns);
        // A unit that is taken now would be forfeited.
        assert!(!admits(&slot, now_ns));
        assert_eq!((totals(&slot).spent, totals(&slot).left), (0, 5));
    }
}

#[test]
fn units_that_are_put_aside_can_be_handed_back() {
    let slot = parked(10);
    assert_eq!(slot.give_back(3), 3);
    assert_eq!(slot.give_back(4), 4);
    let totals = totals(&slot);
    assert_eq!((totals.left, totals.returned), (3, 7));
    assert_eq!(slot.give_back(9), 3);
}

#[test]
fn a_recall_counts_what_is_put_aside() {
    for whole in [false, true] {
        let slot = parked(9);
        let back = if whole { 9 } else { 5 };
        assert_eq!(slot.give_back_to(1, 100, whole), back);
        assert_eq!(totals(&slot).left, 9 - back);
    }
}

#[test]
fn a_recall_of_another_generation_takes_nothing() {
    let slot = with(9);
    assert_eq!(slot.give_back_to(2, 100, true), 0);
    assert_eq!(totals(&slot).left, 9);
}

#[test]
fn only_what_is_late_is_put_aside_and_only_once() {
    let slot = with(5);
    slot.park_if_late(DEADLINE - 1);
    assert!(admits(&slot, DEADLINE - 1));
    slot.park_if_late(DEADLINE);
    slot.park_if_late(LATER);
    assert_eq!((totals(&slot).spent, totals(&slot).left), (1, 4));
}

#[test]
fn a_slot_says_where_it_is_and_how_long_its_requests_wait() {
    let slot = Slot::new(3, Arc::new(Line::new(4, || ())), 8, 77);
    assert_eq!((slot.index(), slot.max_wait_ns()), (3, 77));
    assert_eq!(slot.known_limit(), None);
    slot.set_rule(SlotRule {
        limit: 5,
        max_wait_ns: 78,
        ..SlotRule::default()
    });
    assert_eq!((slot.known_limit(), slot.max_wait_ns()), (Some(5), 78));
    // The largest limit that can be told from an unknown one.
    slot.set_rule(SlotRule {
        limit: u64::MAX,
        failure: leasehold_spend::FailureMode::Open,
        max_wait_ns: 78,
        ..SlotRule::default()
    });
    assert_eq!(slot.known_limit(), Some((u64::MAX >> 1) - 1));
    assert_eq!(slot.fail(1, Code::Disconnected, &At(0)), Verdict::Degraded);
}

#[test]
fn a_cost_is_impossible_above_the_limit_for_as_long_as_the_limit_is_known() {
    let slot = slot();
    slot.set_rule(SlotRule {
        limit: 5,
        max_wait_ns: 0,
        ..SlotRule::default()
    });
    slot.confirm_rule(DEADLINE);
    let is_impossible = |units, now_ns| {
        let verdict = slot.try_spend(units, &At(now_ns));
        matches!(
            verdict,
            Verdict::Denied {
                code: Code::CostAboveLimit,
                ..
            }
        )
    };
    assert!(is_impossible(6, DEADLINE - 1) && !is_impossible(5, DEADLINE - 1));
    assert!(!is_impossible(6, DEADLINE));
    assert!(is_impossible(LEFT_MAX + 1, DEADLINE) && !is_impossible(LEFT_MAX, DEADLINE));
}

#[test]
fn a_slot_is_evicted_only_when_nothing_is_owed() {
    let slot = with(5);
    assert!(!slot.is_evicted());
    assert!(!slot.evict() && !slot.is_idle());
    assert!(slot.end());
    assert!(!slot.evict(), "its end was not acknowledged");
    slot.forget(1);
    assert!(slot.is_idle() && slot.evict() && slot.is_evicted());
    assert!(!admits(&slot, 0));
}

#[test]
fn a_slot_that_was_closed_twice_is_closed_and_hands_back_what_comes() {
    let slot = with(5);
    slot.close();
    slot.close();
    let closed = Verdict::Unavailable { code: Code::Closed };
    assert_eq!(slot.try_spend(1, &At(0)), closed);
    assert_eq!(slot.grant(2, 7, LATER), Granted::Known, "none to spend");
    assert_eq!(slot.try_spend(1, &At(0)), closed);
    let mut sample = Sample::default();
    slot.sample(&mut sample);
    let returned: Vec<_> = sample.ended.iter().map(|lease| lease.returned).collect();
    assert_eq!((sample.current, returned), (None, vec![5, 7]));
}

const PATIENT: Patience = Patience::Until(LATER);

fn waits(slot: &Arc<Slot>, units: u64, patience: Patience) -> Waiter {
    match slot.spend(units, patience, &At(0)) {
        Begun::Waits(waiter) => waiter,
        Begun::Answered(verdict) => panic!("{verdict:?}"),
    }
}

/// The code of its refusal, which says when to come back unless it is for ever;
/// none: it waits on.
fn refusal(waiter: &mut Waiter) -> Option<Code> {
    match waiter.poll(&mut Context::from_waker(Waker::noop()), &At(0)) {
        Poll::Pending => None,
        Poll::Ready(Verdict::Denied { code, retry_after }) => {
            assert_eq!(
                retry_after.is_some(),
                code == Code::Limit,
                "{retry_after:?}"
            );
            Some(code)
        }
        Poll::Ready(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_ends_the_wait_for_an_answer_and_not_the_wait_for_units() {
    let slot = Arc::new(slot());
    let mut one = waits(&slot, 1, Patience::OneAnswer);
    let mut patient = waits(&slot, 1, PATIENT);
    slot.refuse(Code::Limit, LATER, false);
    assert_eq!(refusal(&mut one), Some(Code::Limit));
    assert_eq!(refusal(&mut patient), None);
    slot.refuse(Code::NoBudget, LATER, true);
    assert_eq!(refusal(&mut patient), Some(Code::NoBudget));
}

#[test]
fn a_refusal_stands_until_its_time_or_until_it_is_lifted() {
    let slot = slot();
    let is_refused = |now_ns| {
        matches!(
            slot.try_spend(1, &At(now_ns)),
            Verdict::Denied {
                code: Code::Limit,
                ..
            }
        )
    };
    slot.refuse(Code::Limit, 3 * SECOND, false);
    assert!(is_refused(2 * SECOND) && !is_refused(4 * SECOND));
    slot.refuse(Code::Limit, 3 * SECOND, false);
    slot.lift_refusal();
    assert!(!is_refused(2 * SECOND));
}

#[test]
fn a_cost_that_can_never_be_met_ends_every_wait_for_it() {
    let slot = Arc::new(slot());
    let mut first = waits(&slot, 9, PATIENT);
    let mut small = waits(&slot, 8, PATIENT);
    let mut large = waits(&slot, 10, PATIENT);
    // Without a known limit, the ask was for the first.
    slot.refuse_impossible();
    assert_eq!(refusal(&mut first), Some(Code::CostAboveLimit));
    assert_eq!(refusal(&mut large), Some(Code::CostAboveLimit));
    assert_eq!(refusal(&mut small), None);
    let rule = |limit| SlotRule {
        limit,
        max_wait_ns: 10 * LATER,
        ..SlotRule::default()
    };
    slot.set_rule(rule(8));
    assert_eq!(refusal(&mut small), None);
    slot.refuse_impossible();
    assert_eq!(refusal(&mut small), None);
    slot.set_rule(rule(7));
    assert_eq!(refusal(&mut small), Some(Code::CostAboveLimit));
}
