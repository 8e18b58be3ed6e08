//! Reservations: what is used is spent, the rest comes back, and what nobody
//! settles counts as spent, whatever else happens meanwhile.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use fixture::*;
use leasehold_spend::{
    At, Begun, BudgetKind, Code, Line, Patience, Reservation, SECOND, Sample, Settled, Slot,
    SlotRule, Totals, Verdict,
    message::{Policy, Report},
};

const DEADLINE: u64 = 300 * SECOND;
const HOLD_MAX: u64 = 60 * SECOND;

fn slot_with(units: u64) -> Arc<Slot> {
    let slot = Slot::new(0, Arc::new(Line::new(1, || ())), 8, DEADLINE);
    let _ = slot.grant(1, units, DEADLINE);
    Arc::new(slot)
}

fn sample(slot: &Slot) -> Sample {
    let mut sample = Sample::default();
    slot.sample(&mut sample);
    sample
}

fn totals(slot: &Slot) -> Totals {
    let totals = sample(slot).current.unwrap();
    let sum = totals.spent + totals.returned + totals.left + totals.held;
    assert_eq!(sum, totals.granted, "{totals:?}");
    totals
}

fn reserve(slot: &Arc<Slot>, units: u64) -> Reservation {
    slot.try_reserve(units, &At(1)).unwrap()
}

#[test]
fn what_is_reserved_is_held_and_what_is_not_used_is_left_again() {
    let slot = slot_with(10);
    let reservation = reserve(&slot, 6);
    assert_eq!((totals(&slot).held, totals(&slot).spent), (6, 0));
    let settled = reservation.settle(2, &At(2));
    assert_eq!(settled, Settled::Within { returned: 4 });
    let totals = totals(&slot);
    assert_eq!((totals.held, totals.spent, totals.left), (0, 2, 8));
}

#[test]
fn a_reservation_that_is_dropped_was_never_made() {
    let slot = slot_with(10);
    drop(reserve(&slot, 6));
    let totals = totals(&slot);
    assert_eq!((totals.held, totals.spent, totals.left), (0, 0, 10));
}

#[test]
fn more_than_was_reserved_is_taken_from_what_is_left_and_the_rest_is_overrun() {
    let slot = slot_with(10);
    let settled = reserve(&slot, 6).settle(8, &At(2));
    let over = |taken, overrun| Settled::Over { taken, overrun };
    assert_eq!(settled, over(2, 0));
    assert_eq!((totals(&slot).spent, totals(&slot).overrun), (8, 0));
    let settled = reserve(&slot, 1).settle(7, &At(2));
    assert_eq!(settled, over(1, 5));
    assert_eq!((totals(&slot).spent, totals(&slot).overrun), (10, 5));
}

#[test]
fn what_is_left_of_a_lease_whose_time_is_over_is_not_taken_for_more() {
    let slot = slot_with(10);
    let reservation = slot.try_reserve(2, &At(DEADLINE - 1)).unwrap();
    let settled = reservation.settle(5, &At(DEADLINE));
    let (taken, overrun) = (0, 3);
    assert_eq!(settled, Settled::Over { taken, overrun });
    assert_eq!((totals(&slot).spent, totals(&slot).left), (2, 8));
}

#[test]
fn nothing_is_reserved_of_a_lease_whose_time_is_over() {
    let slot = slot_with(10);
    assert!(slot.try_reserve(2, &At(DEADLINE)).is_err());
    let totals = totals(&slot);
    assert_eq!((totals.spent, totals.held, totals.left), (0, 0, 10));
}

#[test]
fn more_is_not_taken_from_those_who_wait() {
    let slot = slot_with(5);
    let reservation = reserve(&slot, 1);
    let Begun::Waits(_waiter) = slot.spend(9, Patience::OneAnswer, &At(1)) else {
        panic!("four are left")
    };
    let (taken, overrun) = (0, 2);
    assert_eq!(
        reservation.settle(3, &At(2)),
        Settled::Over { taken, overrun }
    );
}

#[test]
fn a_reservation_that_nobody_settles_counts_as_spent_in_full() {
    let slot = slot_with(10);
    let reservation = reserve(&slot, 6);
    assert_eq!(reservation.until_ns(), HOLD_MAX + 1);
    slot.expire_reservations(HOLD_MAX);
    assert_eq!(totals(&slot).held, 6, "its time is not over");
    slot.expire_reservations(HOLD_MAX + 1);
    assert_eq!((totals(&slot).held, totals(&slot).spent), (0, 6));
    let settled = reservation.settle(1, &At(HOLD_MAX + 1));
    assert_eq!(settled, Settled::TooLate { overrun: 0 });
    assert_eq!(totals(&slot).spent, 6);
}

#[test]
fn whoever_settles_too_late_is_told_so_even_if_the_driver_was_slow() {
    let slot = slot_with(10);
    let settled = reserve(&slot, 6).settle(8, &At(HOLD_MAX + 1));
    assert_eq!(settled, Settled::TooLate { overrun: 2 });
    let totals = totals(&slot);
    assert_eq!((totals.spent, totals.left, totals.overrun), (6, 4, 2));
}

#[test]
fn the_policy_says_how_long_a_reservation_may_stay() {
    let slot = slot_with(10);
    slot.set_rule(SlotRule {
        limit: 10,
        hold_max_ns: 5 * SECOND,
        ..SlotRule::default()
    });
    assert_eq!(reserve(&slot, 1).until_ns(), 5 * SECOND + 1);
}

#[test]
fn a_reservation_whose_session_ends_is_settled_as_spent_in_full() {
    let slot = slot_with(10);
    let reservation = reserve(&slot, 6);
    let permit_like = slot.hold(1).unwrap();
    let mut settled = Vec::new();
    slot.void(&mut settled);
    assert_eq!(settled, [(1, 6)], "what is only held counts as unspent");
    let too_late = Settled::TooLate { overrun: 1 };
    assert_eq!(reservation.settle(7, &At(2)), too_late);
    drop(permit_like);
    // The next lease carries what was used beyond it.
    let _ = slot.grant(2, 5, DEADLINE);
    assert_eq!((totals(&slot).left, totals(&slot).overrun), (5, 1));
}

#[test]
fn a_reservation_that_is_dropped_after_its_session_ended_gives_nothing_back() {
    let slot = slot_with(10);
    let reservation = reserve(&slot, 6);
    slot.void(&mut Vec::new());
    let _ = slot.grant(2, 5, DEADLINE);
    drop(reservation);
    let totals = totals(&slot);
    assert_eq!((totals.left, totals.held, totals.spent), (5, 0, 0));
}

#[test]
fn a_reservation_of_a_lease_that_was_replaced_is_settled_in_that_lease() {
    let slot = slot_with(10);
    let reservation = reserve(&slot, 6);
    let _ = slot.grant(2, 5, DEADLINE);
    assert_eq!(
        reservation.settle(2, &At(2)),
        Settled::Within { returned: 4 }
    );
    let ended = sample(&slot).ended[0];
    assert_eq!((ended.spent, ended.returned, ended.held), (2, 8, 0));
    assert_eq!(totals(&slot).left, 5);
}

#[test]
fn a_close_counts_reservations_as_spent() {
    let slot = slot_with(10);
    let reservation = reserve(&slot, 6);
    slot.close();
    let ended = sample(&slot).ended[0];
    assert_eq!((ended.spent, ended.returned, ended.held), (6, 4, 0));
    assert_eq!(
        reservation.settle(1, &At(2)),
        Settled::TooLate { overrun: 0 }
    );
    assert!(slot.try_reserve(0, &At(2)).is_err());
}

#[test]
fn a_reservation_that_is_settled_while_its_lease_is_late_is_put_aside_with_it() {
    let slot = slot_with(10);
    slot.set_rule(SlotRule {
        limit: 10,
        hold_max_ns: 2 * DEADLINE,
        ..SlotRule::default()
    });
    let reservation = reserve(&slot, 6);
    slot.park_if_late(DEADLINE);
    assert_eq!(
        reservation.settle(2, &At(DEADLINE + 1)),
        Settled::Within { returned: 4 }
    );
    slot.renew(2 * DEADLINE, DEADLINE + 2);
    assert_eq!((totals(&slot).left, totals(&slot).spent), (8, 2));
}

#[test]
fn nothing_may_be_reserved_and_more_used() {
    let slot = slot_with(3);
    let (taken, overrun) = (3, 1);
    let settled = reserve(&slot, 0).settle(4, &At(2));
    assert_eq!(settled, Settled::Over { taken, overrun });
}

#[test]
fn a_reservation_waits_like_a_spend() {
    let slot = slot_with(1);
    let begun = slot.reserve(3, Patience::OneAnswer, &At(1));
    let Err(Begun::Waits(mut waiter)) = begun else {
        panic!("{begun:?}")
    };
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiter.poll_reserved(&mut context, &At(1)).is_pending());
    let _ = slot.grant(1, 4, DEADLINE);
    let Poll::Ready(Ok(reservation)) = waiter.poll_reserved(&mut context, &At(2)) else {
        panic!("units have come")
    };
    assert_eq!((reservation.units(), totals(&slot).held), (3, 3));
    let _ = reservation.settle(3, &At(3));
    assert_eq!(totals(&slot).spent, 3);
}

#[test]
fn units_that_come_too_late_for_a_reservation_go_back() {
    let slot = slot_with(1);
    let Err(Begun::Waits(mut waiter)) = slot.reserve(3, Patience::OneAnswer, &At(1)) else {
        panic!("one is left")
    };
    let _ = slot.grant(1, 4, DEADLINE);
    let mut context = Context::from_waker(Waker::noop());
    let told = waiter.poll_reserved(&mut context, &At(DEADLINE));
    let code = Code::NoAnswer;
    assert!(
        matches!(&told, Poll::Ready(Err(Verdict::Unavailable { code: told })) if *told == code),
        "{told:?}"
    );
    assert_eq!((totals(&slot).held, totals(&slot).spent), (0, 0));
}

/// A client whose key has so many units and a short life of reservations.
fn client(units: u64) -> Client {
    let mut client = Client::open();
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    let mut given = leasehold_spend::message::KeyGrant { ..grant(5, units) };
    given.policy = Some(Policy {
        hold_max_us: 5_000_000,
        kind: BudgetKind::Window,
        ..policy(100)
    });
    client.synced(seq, vec![given]);
    answer_all(&mut client);
    client.after(SECOND);
    answer_all(&mut client);
    client
}

/// Answers everything that is said, and says what the lease's last report was.
fn answer_all(client: &mut Client) -> Option<Report> {
    let mut last = None;
    loop {
        let said = client.syncs();
        if said.is_empty() {
            return last;
        }
        for sync in said {
            client.synced(sync.seq, Vec::new());
            let of_lease = |report: &Report| report.generation == 5;
            last = sync.reports.into_iter().rfind(of_lease).or(last);
        }
    }
}

#[test]
fn the_driver_counts_a_reservation_as_spent_when_its_time_is_over() {
    let mut client = client(10);
    let reservation = client.slot.try_reserve(4, &At(client.now)).unwrap();
    client.after(SECOND);
    let report = answer_all(&mut client).unwrap();
    assert_eq!((report.held, report.spent_total), (4, 0));
    for _ in 0..4 {
        assert_eq!(sample(&client.slot).current.unwrap().spent, 0);
        let due = client.core.next_wake().unwrap();
        assert!(due <= client.now + 4 * SECOND, "{due}");
        client.after(SECOND);
        answer_all(&mut client);
    }
    let totals = sample(&client.slot).current.unwrap();
    assert_eq!((totals.held, totals.spent), (0, 4));
    drop(reservation);
    assert_eq!(sample(&client.slot).current.unwrap().spent, 4);
}

#[test]
fn overrun_is_told_and_told_again_when_a_report_is_lost() {
    let mut client = client(2);
    let reservation = client.slot.try_reserve(2, &At(client.now)).unwrap();
    let _ = reservation.settle(5, &At(client.now));
    client.after(2 * SECOND);
    assert_eq!(client.report(5).overrun_total, 3);
    // Not answered: the stream is lost, and the next one tells it again.
    client.reconnect();
    client.hear(opened(1, Vec::new()));
    let report = answer_all(&mut client).unwrap();
    assert_eq!(report.overrun_total, 3);
    // Once there is nothing to say, overrun alone is reason enough.
    let mut seconds = 0;
    while answer_all(client.after(2 * SECOND)).is_some() {
        seconds += 2;
        assert!(seconds < 1_000, "it never falls silent");
    }
    let settled = client.slot.try_reserve(0, &At(client.now)).unwrap();
    let _ = settled.settle(1, &At(client.now));
    let report = answer_all(client.after(2 * SECOND)).unwrap();
    assert_eq!((report.overrun_total, report.spent_total), (4, 2));
}

#[test]
fn overrun_that_was_never_acknowledged_outlives_its_session_and_finds_a_lease() {
    for acknowledged in [false, true] {
        let mut client = client(2);
        let reservation = client.slot.try_reserve(2, &At(client.now)).unwrap();
        let _ = reservation.settle(5, &At(client.now));
        client.after(2 * SECOND);
        let sync = client.sync();
        assert!(sync.reports.iter().any(|report| report.overrun_total == 3));
        if acknowledged {
            client.synced(sync.seq, Vec::new());
            client.outgoing();
        }
        client.reconnect();
        client.hear(leasehold_spend::message::Incoming::Refused {
            code: "session_expired".to_owned(),
            detail: String::new(),
        });
        client.reconnect();
        client.hear(opened(2, Vec::new()));
        let overrun = if acknowledged { 0 } else { 3 };
        assert_eq!(sample(&client.slot).overrun, overrun);
        if !acknowledged {
            // Nobody wants units: it asks for a lease that carries it.
            let mut wants = 0;
            for _ in 0..5 {
                let said = client.after(SECOND).syncs();
                wants += said
                    .iter()
                    .flat_map(|s| &s.reports)
                    .map(|r| r.want)
                    .sum::<u64>();
            }
            assert!(wants > 0);
            assert!(!client.slot.is_idle());
            let _ = client.slot.grant(9, 1, client.now + DEADLINE);
            assert_eq!(sample(&client.slot).current.unwrap().overrun, 3);
        }
    }
}
