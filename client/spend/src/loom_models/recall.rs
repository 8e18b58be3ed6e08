//! Recalls beside those who spend and those who wait.

use super::{
    Arc, At, AtomicBool, Begun, FOR_EVER, KeyCore, Ordering, Patience, Poll, Slot, Totals, Verdict,
    Woken, admits, model, slot_with, thread, totals_of,
};

/// Two spenders of one unit each beside what the driver does with a key of which
/// three units are left. Hands the totals before and after to `judge`.
fn two_spenders_of_three(recall: fn(&Slot), most: fn(u64) -> u64, judge: fn(Totals)) {
    model(move || {
        let slot = slot_with(3);
        let spenders: Vec<_> = (0..2)
            .map(|_| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || admits(&slot, &At(0)))
            })
            .collect();
        let before = totals_of(&slot, 1);
        recall(&slot);
        let after = totals_of(&slot, 1);
        let admitted: u64 = spenders.into_iter().map(|s| s.join().unwrap()).sum();
        let last = totals_of(&slot, 1);
        assert_eq!(3, last.spent + last.returned + last.left, "{last:?}");
        assert_eq!(last.spent, admitted, "{last:?}");
        assert!(before.spent <= after.spent, "{before:?} {after:?}");
        assert!(after.spent <= last.spent, "{after:?} {last:?}");
        assert!(after.returned <= most(before.left), "{before:?} {after:?}");
        judge(last);
    });
}

/// Planted bug: `give_back_to` does not halve what is there.
#[test]
fn a_recall_beside_two_spenders_takes_half_of_what_is_left_at_most() {
    two_spenders_of_three(
        |slot| {
            slot.give_back_to(1, 9, false);
        },
        |left| left.div_ceil(2),
        |last| assert!(last.returned >= 1, "a third unit is left: {last:?}"),
    );
}

/// Planted bug: `give_back_to` takes the target for a number of units.
#[test]
fn a_recall_beside_two_spenders_that_comes_twice_stays_within_its_target() {
    two_spenders_of_three(
        |slot| {
            slot.give_back_to(1, 1, false);
            slot.give_back_to(1, 1, false);
        },
        |left| left.div_ceil(2),
        |last| assert_eq!(last.returned, 1, "{last:?}"),
    );
}

/// Planted bug: `give_back_to` hands back what a spender has taken meanwhile.
#[test]
fn a_recall_of_the_whole_beside_two_spenders_takes_what_is_left_and_no_more() {
    two_spenders_of_three(
        |slot| {
            slot.give_back_to(1, 9, true);
        },
        |left| left,
        |last| assert_eq!(last.left, 0, "{last:?}"),
    );
}

/// One unit is left when a request for two comes and a recall arrives. Who waits
/// then is in the report, or rings.
///
/// Planted bugs: `give_back` does not look at the queue; and `join_queue` does
/// not ring.
#[test]
fn a_recall_leaves_what_a_waiting_request_will_use() {
    model(|| {
        let slot = slot_with(1);
        let mut key = KeyCore::new("k".into(), Arc::clone(&slot), 0);
        key.look(&At(0));
        slot.line.take_rung(|_| ());
        let woken = Arc::new(Woken::default());
        let waits = Arc::new(AtomicBool::new(false));
        let waiter = {
            let (slot, woken, waits) = (Arc::clone(&slot), Arc::clone(&woken), Arc::clone(&waits));
            thread::spawn(move || {
                let Begun::Waits(mut waiter) = slot.spend(2, Patience::OneAnswer, &At(0)) else {
                    panic!("there are never two units");
                };
                waits.store(true, Ordering::Release);
                assert_eq!(woken.poll(&mut waiter), Poll::Pending);
                waiter
            })
        };
        let was_waiting = waits.load(Ordering::Acquire);
        key.recall(1, 1, false);
        let mut reports = Vec::new();
        key.report(1, &At(0), &mut reports);
        let mut waiter = waiter.join().unwrap();
        let returned = totals_of(&slot, 1).returned;
        assert!(!was_waiting || returned == 0, "taken from who waits");

        let mut rung = 0;
        slot.line.take_rung(|_| rung += 1);
        let asks = rung == 1 && key.look(&At(0)).report;
        if asks {
            key.report(2, &At(0), &mut reports);
        }
        let told = reports.last().map_or(0, |report| report.waiting);
        // What is left here is part of the two.
        assert_eq!(told, 1 + returned, "nobody asks for who waits: {reports:?}");
        assert_eq!(woken.count(), 0);
        slot.grant(1, 2 + returned, FOR_EVER);
        assert_eq!(woken.poll(&mut waiter), Poll::Ready(Verdict::Admitted));
    });
}
