//! Permits: they are held and never spent, come back when they are dropped, end
//! with their lease, and nothing else is to be had of a concurrency budget.

#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod fixture;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use fixture::*;
use leasehold_spend::{
    At, Begun, BudgetKind, Code, Joint, Line, Patience, Permit, SECOND, Sample, Slot, SlotRule,
    Together, Totals, Verdict, Waiter,
    message::{Incoming, KeyGrant, Policy, Report},
};

const DEADLINE: u64 = 1_000;
const LATER: u64 = 2_000;
const WRONG_KIND: Verdict = Verdict::Denied {
    code: Code::WrongKind,
    retry_after: None,
};

fn rule(kind: BudgetKind) -> SlotRule {
    SlotRule {
        kind,
        limit: 10,
        max_wait_ns: LATER,
        ..SlotRule::default()
    }
}

fn slot_of(kind: BudgetKind, units: u64) -> Arc<Slot> {
    let slot = Slot::new(0, Arc::new(Line::new(1, || ())), 8, LATER);
    slot.set_rule(rule(kind));
    let _ = slot.grant(1, units, DEADLINE);
    Arc::new(slot)
}

fn permits(units: u64) -> Arc<Slot> {
    slot_of(BudgetKind::Concurrency, units)
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

fn acquire(slot: &Arc<Slot>, units: u64) -> Permit {
    slot.try_acquire(units, &At(1)).unwrap()
}

#[test]
fn a_permit_is_held_while_it_is_in_use_and_left_again_afterwards() {
    let slot = permits(3);
    let permit = acquire(&slot, 2);
    assert_eq!((totals(&slot).held, totals(&slot).left), (2, 1));
    assert!(slot.try_acquire(2, &At(1)).is_err());
    assert!(permit.is_valid(&At(1)));
    drop(permit);
    let totals = totals(&slot);
    assert_eq!((totals.held, totals.left, totals.spent), (0, 3, 0));
}

#[test]
fn nothing_is_spent_of_a_concurrency_budget() {
    let slot = permits(3);
    assert_eq!(slot.try_spend(1, &At(1)), WRONG_KIND);
    let Begun::Answered(told) = slot.spend(1, Patience::Until(LATER), &At(1)) else {
        panic!("it waits")
    };
    assert_eq!(told, WRONG_KIND);
    assert_eq!(slot.try_reserve(1, &At(1)).unwrap_err(), WRONG_KIND);
    let told = Together::new(vec![(Arc::clone(&slot), 1)], Patience::OneAnswer).try_spend(&At(1));
    let verdict = WRONG_KIND;
    assert_eq!(told, Joint::Refused { place: 0, verdict });
    assert_eq!((totals(&slot).left, totals(&slot).spent), (3, 0));
}

#[test]
fn no_permits_are_had_of_what_is_spent() {
    let slot = slot_of(BudgetKind::Window, 3);
    assert_eq!(slot.try_acquire(1, &At(1)).unwrap_err(), WRONG_KIND);
    assert_eq!(slot.try_acquire(9, &At(1)).unwrap_err(), WRONG_KIND);
    assert_eq!(slot.try_acquire(0, &At(1)).unwrap_err(), WRONG_KIND);
    assert_eq!((totals(&slot).left, totals(&slot).held), (3, 0));
    assert!(slot.try_reserve(1, &At(1)).is_ok());
}

#[test]
fn who_waits_for_the_wrong_thing_gives_back_what_came_and_is_told() {
    let new = || Arc::new(Slot::new(0, Arc::new(Line::new(1, || ())), 8, LATER));
    let mut context = Context::from_waker(Waker::noop());
    let slot = new();
    let Begun::Waits(mut spender) = slot.spend(1, Patience::OneAnswer, &At(1)) else {
        panic!("nothing is there")
    };
    slot.set_rule(rule(BudgetKind::Concurrency));
    let _ = slot.grant(1, 2, DEADLINE);
    assert_eq!(spender.poll(&mut context, &At(1)), Poll::Ready(WRONG_KIND));
    assert_eq!((totals(&slot).left, totals(&slot).spent), (2, 0));

    let slot = new();
    let waits = |slot: &Arc<Slot>| -> Waiter {
        match slot.acquire(1, Patience::OneAnswer, &At(1)) {
            Err(Begun::Waits(waiter)) => waiter,
            other => panic!("{other:?}"),
        }
    };
    let (mut first, second) = (waits(&slot), waits(&slot));
    slot.set_rule(rule(BudgetKind::Window));
    let _ = slot.grant(1, 1, DEADLINE);
    let Poll::Ready(told) = first.poll_permit(&mut context, &At(1)) else {
        panic!("it waits on")
    };
    assert_eq!(told.unwrap_err(), WRONG_KIND);
    assert_eq!(second.give_up_permit(&At(1)).unwrap_err(), WRONG_KIND);
    assert_eq!((totals(&slot).left, totals(&slot).held), (1, 0));
}

#[test]
fn a_budget_that_becomes_another_kind_keeps_nothing_of_the_former() {
    let slot = slot_of(BudgetKind::Window, 3);
    slot.set_rule(rule(BudgetKind::Concurrency));
    assert_eq!((totals(&slot).left, totals(&slot).returned), (0, 3));
    let _ = slot.grant(2, 3, DEADLINE);
    let permit = acquire(&slot, 1);
    // The same rule again changes nothing.
    slot.set_rule(rule(BudgetKind::Concurrency));
    assert_eq!(totals(&slot).left, 2);
    slot.set_rule(rule(BudgetKind::Bucket));
    assert_eq!((totals(&slot).left, totals(&slot).returned), (0, 2));
    assert_eq!(totals(&slot).held, 1);
    let _ = slot.grant(3, 1, DEADLINE);
    assert_eq!(slot.try_spend(1, &At(1)), Verdict::Admitted);
    drop(permit);
    assert_eq!(totals(&slot).left, 0, "it was of a lease that has ended");
}

#[test]
fn a_permit_ends_with_its_lease_and_a_renewal_prolongs_it() {
    let slot = permits(3);
    let (first, second) = (acquire(&slot, 1), acquire(&slot, 1));
    assert!(first.is_valid(&At(DEADLINE - 1)) && !first.is_valid(&At(DEADLINE)));
    slot.renew(LATER, DEADLINE);
    assert!(!first.is_valid(&At(1)), "it was found to have ended");
    assert!(second.is_valid(&At(DEADLINE)) && !second.is_valid(&At(LATER)));
}

#[test]
fn no_permit_is_given_of_a_lease_that_has_ended() {
    let slot = permits(3);
    assert!(slot.try_acquire(1, &At(DEADLINE)).is_err());
    assert_eq!((totals(&slot).held, totals(&slot).left), (0, 3));
    // It was put aside: also for those who read an earlier time.
    assert!(slot.try_acquire(1, &At(1)).is_err());
    slot.renew(LATER, DEADLINE);
    assert!(slot.try_acquire(1, &At(DEADLINE)).is_ok());
}

#[test]
fn a_permit_that_has_ended_stays_held_until_it_is_dropped() {
    let slot = permits(1);
    let permit = acquire(&slot, 1);
    slot.park_if_late(DEADLINE);
    assert!(!permit.is_valid(&At(DEADLINE)));
    slot.renew(LATER, DEADLINE);
    assert!(slot.try_acquire(1, &At(DEADLINE)).is_err());
    drop(permit);
    assert!(slot.try_acquire(1, &At(DEADLINE)).is_ok());
}

struct Flag(AtomicUsize);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn whoever_waits_for_the_end_of_a_permit_is_woken_when_it_may_have_come() {
    type End = (&'static str, fn(&Slot));
    let ends: [End; 3] = [
        ("late", |slot| slot.park_if_late(DEADLINE)),
        ("void", |slot| slot.void(&mut Vec::new())),
        ("close", Slot::close),
    ];
    for (what, end) in ends {
        let slot = permits(1);
        let permit = acquire(&slot, 1);
        let flag = Arc::new(Flag(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&flag));
        let mut context = Context::from_waker(&waker);
        let told = permit.poll_ended(&mut context, &At(1));
        assert_eq!(told, (Poll::Pending, DEADLINE), "{what}");
        end(&slot);
        assert_eq!(flag.0.load(Ordering::Relaxed), 1, "{what}");
        let now = if what == "late" { DEADLINE } else { 1 };
        assert!(permit.poll_ended(&mut context, &At(now)).0.is_ready());
        assert!(!permit.is_valid(&At(now)), "{what}");
    }
}

#[test]
fn permits_of_a_session_that_is_gone_do_not_come_back() {
    let slot = permits(2);
    let permit = acquire(&slot, 1);
    let mut settled = Vec::new();
    slot.void(&mut settled);
    assert_eq!(settled, [(1, 0)], "none was spent");
    let _ = slot.grant(2, 1, DEADLINE);
    drop(permit);
    assert_eq!((totals(&slot).left, totals(&slot).held), (1, 0));
}

#[test]
fn permits_go_to_those_who_wait_in_order() {
    let slot = permits(2);
    let permit = acquire(&slot, 2);
    let Err(Begun::Waits(mut waiter)) = slot.acquire(2, Patience::OneAnswer, &At(1)) else {
        panic!("none is left")
    };
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiter.poll_permit(&mut context, &At(1)).is_pending());
    drop(permit);
    assert!(slot.try_acquire(1, &At(1)).is_err(), "nobody overtakes");
    let Poll::Ready(Ok(permit)) = waiter.poll_permit(&mut context, &At(1)) else {
        panic!("it waits on")
    };
    assert_eq!((permit.units(), totals(&slot).held), (2, 2));
}

#[test]
fn permits_that_were_recalled_while_in_use_go_back_when_they_are_dropped() {
    let slot = permits(3);
    let all = [1, 1, 1].map(|units| acquire(&slot, units));
    assert_eq!(slot.give_back_to(1, 2, false), 0, "all are in use");
    let mut back = Vec::new();
    for permit in all {
        drop(permit);
        back.push((totals(&slot).returned, totals(&slot).left));
    }
    assert_eq!(back, [(1, 0), (2, 0), (2, 1)]);
}

#[test]
fn no_permit_at_all_is_always_allowed() {
    let slot = permits(0);
    let nothing = slot.try_acquire(0, &At(DEADLINE)).unwrap();
    assert!(nothing.is_valid(&At(LATER)));
    slot.close();
    assert!(!nothing.is_valid(&At(1)));
}

/// A client whose key `k` has so many permits, none of which is free elsewhere.
fn client(units: u64) -> Client {
    let mut client = Client::open();
    let asks = client.slot.try_acquire(1, &At(client.now));
    assert_eq!(asks.unwrap_err(), Verdict::Empty);
    let seq = client.sync().seq;
    client.synced(seq, vec![given(units)]);
    answer_all(&mut client);
    client
}

fn given(granted_total: u64) -> KeyGrant {
    KeyGrant {
        free: Some(0),
        policy: Some(Policy {
            kind: BudgetKind::Concurrency,
            ..policy(10)
        }),
        ..grant(5, granted_total)
    }
}

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
fn permits_in_use_are_reported_held_and_never_spent() {
    let mut client = client(3);
    let permit = client.slot.try_acquire(2, &At(client.now)).unwrap();
    let report = answer_all(client.after(2 * SECOND)).unwrap();
    let counts = (report.held, report.left, report.spent_total);
    assert_eq!(counts, (2, 1, 0));
    assert_eq!(report.want, 0, "permits are asked for when somebody waits");
    drop(permit);
    let report = answer_all(client.after(2 * SECOND)).unwrap();
    let counts = (report.held, report.left, report.spent_total);
    assert_eq!(counts, (0, 3, 0));
}

#[test]
fn a_permit_that_comes_back_is_told_at_once_when_none_is_free_elsewhere() {
    let mut client = client(1);
    let permit = client.slot.try_acquire(1, &At(client.now)).unwrap();
    let report = answer_all(client.after(2 * SECOND)).unwrap();
    assert_eq!((report.held, report.left), (1, 0));
    client.after(MS);
    drop(permit);
    let report = answer_all(&mut client).expect("told at once");
    assert_eq!((report.held, report.left), (0, 1));
    // From now on it is known that this gateway has one: to and fro is not news.
    for _ in 0..3 {
        client.after(MS);
        drop(client.slot.try_acquire(1, &At(client.now)).unwrap());
        assert_eq!(answer_all(&mut client), None);
    }
}

#[test]
fn a_recall_of_permits_in_use_is_answered_when_they_are_dropped() {
    let mut client = client(1);
    let permit = client.slot.try_acquire(1, &At(client.now)).unwrap();
    answer_all(client.after(2 * SECOND));
    client.hear(Incoming::Recall {
        key_id: 0,
        generation: 5,
        returned_total_target: 1,
        granted_total: 1,
        whole: false,
    });
    answer_all(&mut client);
    client.after(MS);
    drop(permit);
    let report = answer_all(&mut client).expect("told at once");
    assert_eq!((report.returned_total, report.held), (1, 0));
}

#[test]
fn a_peek_says_what_is_known_and_takes_nothing() {
    let mut client = client(3);
    client.synced(0, Vec::new());
    let more = KeyGrant {
        free: Some(7),
        ..given(3)
    };
    client.hear(Incoming::Granted(vec![more]));
    let peek = client.slot.peek(&At(client.now));
    assert_eq!((peek.remaining, peek.here, peek.limit), (10, 3, Some(10)));
    assert_eq!(peek.kind, Some(BudgetKind::Concurrency));
    assert_eq!((peek.refused, peek.retry_after), (None, None));
    client.slot.refuse(Code::Limit, client.now + SECOND, false);
    let peek = client.slot.peek(&At(client.now));
    assert_eq!(peek.refused, Some(Code::Limit));
    assert!(peek.retry_after.unwrap().as_millis() >= 1_000);
    assert_eq!(sample(&client.slot).current.unwrap().left, 3);
}
