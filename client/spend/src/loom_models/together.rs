//! Two requests for the same two keys, beside what the driver does: all of a
//! request is spent or none, no unit is lost, and nobody who can get on sleeps.

use std::task::Poll;

use super::*;
use crate::{Joint, Together};

/// Fewer preemptions than the other models: each step takes two locks and more.
fn model(body: impl Fn() + Sync + Send + 'static) {
    model_with(3, body);
}

/// Two keys on one line, with so many units each.
fn two_slots(left: [u64; 2]) -> [Arc<Slot>; 2] {
    let line = Arc::new(Line::new(2, || ()));
    line.up();
    [0, 1].map(|index: u32| {
        let slot = Slot::new(index, Arc::clone(&line), 4, 1);
        let units = left[index as usize];
        if units > 0 {
            slot.grant(1, units, FOR_EVER);
        }
        Arc::new(slot)
    })
}

fn request(slots: &[Arc<Slot>; 2]) -> Together {
    let parts = slots.iter().map(|slot| (Arc::clone(slot), 1)).collect();
    Together::new(parts, Patience::OneAnswer)
}

fn poll(request: &mut Together, woken: &Arc<Woken>) -> Poll<Joint> {
    let waker = Waker::from(Arc::clone(woken));
    request.poll(&mut Context::from_waker(&waker), &At(0))
}

fn is_balanced(totals: Totals) {
    assert_eq!(
        totals.granted,
        totals.spent + totals.returned + totals.left + totals.held,
        "{totals:?}"
    );
}

const ADMITTED: Joint = Joint::Allowed(Verdict::Admitted);

/// Planted bug: `Work::leave` keeps what is held when another part is short.
#[test]
fn two_that_try_beside_a_recall_spend_all_or_nothing() {
    model(|| {
        let slots = two_slots([1, 1]);
        let other = {
            let slots = slots.clone();
            thread::spawn(move || u64::from(request(&slots).try_spend(&At(0)) == ADMITTED))
        };
        let recall = {
            let slots = slots.clone();
            thread::spawn(move || slots[1].give_back(1))
        };
        let own = u64::from(request(&slots).try_spend(&At(0)) == ADMITTED);
        let admitted = own + other.join().unwrap();
        let recalled = recall.join().unwrap();
        let totals = [0, 1].map(|at: usize| totals_of(&slots[at], 1));
        totals.into_iter().for_each(is_balanced);
        assert_eq!(admitted + recalled, 1, "{totals:?}");
        assert_eq!(totals.map(|t| (t.spent, t.held)), [(admitted, 0); 2]);
    });
}

/// A request that lacks the second key takes of the first and gives back, beside a
/// spender and a sample.
///
/// Planted bug: `take_held` lowers what is left without counting it as held.
#[test]
fn spent_never_shrinks_while_a_request_takes_and_gives_back() {
    model(|| {
        let slots = two_slots([1, 0]);
        let other = {
            let slots = slots.clone();
            thread::spawn(move || request(&slots).try_spend(&At(0)))
        };
        assert_eq!(totals_of(&slots[0], 1).spent, 0, "nothing was spent yet");
        let admitted = admits(&slots[0], &At(0));
        let told = other.join().unwrap();
        assert!(matches!(told, Joint::Refused { .. }), "{told:?}");
        let totals = totals_of(&slots[0], 1);
        is_balanced(totals);
        assert_eq!((totals.spent, totals.held), (admitted, 0), "{totals:?}");
    });
}

/// Two requests wait for both keys while the driver brings one unit of each, the
/// later key's first: one of them gets both, and is woken for it.
///
/// Planted bugs: `Work::join` queues at every key that is lacking (each request
/// may then hold what the other one needs); and `Work::join` leaves no waker.
#[test]
fn of_two_that_wait_for_both_keys_one_gets_both() {
    model(|| {
        let slots = two_slots([0, 0]);
        let woken = [(); 2].map(|()| Arc::new(Woken::default()));
        let other = {
            let (slots, woken) = (slots.clone(), Arc::clone(&woken[1]));
            thread::spawn(move || {
                let mut request = request(&slots);
                let told = poll(&mut request, &woken);
                (request, told)
            })
        };
        let mut own = request(&slots);
        let own_told = poll(&mut own, &woken[0]);
        slots[1].grant(1, 1, FOR_EVER);
        slots[0].grant(1, 1, FOR_EVER);
        let (other, other_told) = other.join().unwrap();
        let mut admitted = 0;
        for (mut request, told, woken) in
            [(own, own_told, &woken[0]), (other, other_told, &woken[1])]
        {
            let told = match told {
                // Whoever was not woken has nothing to find.
                Poll::Pending if woken.count() > 0 => poll(&mut request, woken),
                told => told,
            };
            if told == Poll::Ready(ADMITTED) {
                admitted += 1;
            }
            // What still waits is kept: dropped, it would make room for the other.
            std::mem::forget(request);
        }
        let totals = [0, 1].map(|at: usize| totals_of(&slots[at], 1));
        totals.into_iter().for_each(is_balanced);
        assert_eq!(admitted, 1, "{totals:?}");
        assert_eq!(totals.map(|t| (t.spent, t.held)), [(1, 0); 2]);
    });
}

/// Planted bug: `ring_all` hangs up each key by itself (the driver may take the
/// first before the second is there, and asks for one only).
#[test]
fn keys_that_are_rung_for_together_are_seen_together() {
    model(|| {
        let line = Arc::new(Line::new(2, || ()));
        let ringer = {
            let line = Arc::clone(&line);
            thread::spawn(move || line.ring_all([0, 1]))
        };
        let mut first = 0;
        line.take_rung(|_| first += 1);
        ringer.join().unwrap();
        let mut second = 0;
        line.take_rung(|_| second += 1);
        assert_eq!((first.max(second), first.min(second)), (2, 0));
    });
}
