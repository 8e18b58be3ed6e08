//! Reservations and permits beside what the driver does: whatever comes first, a
//! unit is accounted for once.

use super::*;
use crate::{BudgetKind, Settled, SlotRule};

fn rule(kind: BudgetKind) -> SlotRule {
    SlotRule {
        kind,
        limit: 9,
        max_wait_ns: 1,
        ..SlotRule::default()
    }
}

/// A unit is reserved and handed back while the session is found to be gone: what
/// was reserved by then is settled as spent, and its owner is told that it is too
/// late.
#[test]
fn a_reservation_beside_the_end_of_its_session_is_settled_once() {
    model(|| {
        let slot = slot_with(1);
        let holder = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                let reserved = slot.try_reserve(1, &At(0)).ok();
                reserved.map(|reservation| reservation.settle(0, &At(0)))
            })
        };
        let mut settled = Vec::new();
        slot.void(&mut settled);
        let spent = match holder.join().unwrap() {
            Some(Settled::TooLate { .. }) => 1,
            Some(Settled::Within { returned: 1 }) | None => 0,
            other => panic!("{other:?}"),
        };
        assert_eq!(settled, [(1, spent)]);
        assert!(slot.is_idle(), "everything is accounted for");
    });
}

/// The driver's end of a reservation beside its holder's.
#[test]
fn a_reservation_whose_time_is_over_is_settled_or_spent_and_not_both() {
    model(|| {
        let slot = slot_with(1);
        let reservation = slot.try_reserve(1, &At(0)).unwrap();
        let until_ns = reservation.until_ns();
        let holder = thread::spawn(move || reservation.settle(0, &At(until_ns - 1)));
        slot.expire_reservations(until_ns);
        let spent = match holder.join().unwrap() {
            Settled::TooLate { .. } => 1,
            _ => 0,
        };
        let totals = totals_of(&slot, 1);
        assert_eq!((totals.spent, totals.held), (spent, 0), "{totals:?}");
        assert_eq!(totals.left, 1 - spent, "{totals:?}");
    });
}

/// Two permits of one unit each go to and fro while it is recalled.
///
/// Planted bug: `return_held` counts units as handed back and goes on holding them.
#[test]
fn permits_beside_a_recall_are_never_spent_and_never_lost() {
    model(|| {
        let slot = slot();
        slot.set_rule(rule(BudgetKind::Concurrency));
        slot.grant(1, 1, FOR_EVER);
        let holder = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || drop(slot.try_acquire(1, &At(0))))
        };
        slot.give_back_to(1, 1, true);
        assert_eq!(totals_of(&slot, 1).spent, 0);
        let own = slot.try_acquire(1, &At(0)).is_ok();
        holder.join().unwrap();
        let totals = totals_of(&slot, 1);
        assert_eq!((totals.spent, totals.held), (0, 0), "{totals:?}");
        assert_eq!(totals.left + totals.returned, 1, "{totals:?}");
        assert!(!own || totals.returned <= 1);
    });
}

/// A budget becomes one of permits beside a spender.
#[test]
fn a_spender_beside_a_change_of_kind_spends_before_it_or_not_at_all() {
    model(|| {
        let slot = slot_with(2);
        let spender = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || admits(&slot, &At(0)))
        };
        slot.set_rule(rule(BudgetKind::Concurrency));
        let spent = totals_of(&slot, 1).spent;
        let admitted = spender.join().unwrap();
        let totals = totals_of(&slot, 1);
        assert_eq!((totals.spent, totals.left), (admitted, 0), "{totals:?}");
        assert_eq!(spent, admitted, "spent after the change");
        assert_eq!(totals.returned, 2 - admitted, "{totals:?}");
    });
}

/// Whoever waits for the end of a permit is woken by the end of the session.
///
/// Planted bug: `valid_until` lets the lock go between the look and leaving its
/// waker.
#[test]
fn the_end_of_a_permit_wakes_who_waits_for_it() {
    model(|| {
        let slot = slot();
        slot.set_rule(rule(BudgetKind::Concurrency));
        slot.grant(1, 1, FOR_EVER);
        let permit = slot.try_acquire(1, &At(0)).unwrap();
        let woken = Arc::new(Woken::default());
        let holder = {
            let woken = Arc::clone(&woken);
            thread::spawn(move || {
                let waker = Waker::from(woken);
                let told = permit
                    .poll_ended(&mut Context::from_waker(&waker), &At(0))
                    .0;
                (permit, told)
            })
        };
        slot.void(&mut Vec::new());
        let (permit, told) = holder.join().unwrap();
        assert!(told.is_ready() || woken.count() == 1, "a wake-up was lost");
        assert!(!permit.is_valid(&At(0)));
    });
}
