//! The gate, and what a gateway grants itself, beside those who spend.

use super::{Arc, At, FOR_EVER, Slot, admits, model, sample, slot, slot_with, thread, totals_of};
use crate::{BudgetKind, SlotRule, Verdict};

/// Two spenders of one unit each beside a key that begins to cool down. Planted bug:
/// `cool` hands back what is left before it bars the word.
#[test]
fn a_key_that_cools_down_beside_two_spenders_leaves_nothing_and_loses_no_unit() {
    model(|| {
        let slot = slot_with(3);
        let spenders: Vec<_> = (0..2)
            .map(|_| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || admits(&slot, &At(0)))
            })
            .collect();
        slot.cool(9);
        let cooled = totals_of(&slot, 1);
        assert_eq!(cooled.left, 0, "{cooled:?}");
        let admitted: u64 = spenders.into_iter().map(|s| s.join().unwrap()).sum();
        let last = totals_of(&slot, 1);
        assert_eq!(last.spent, admitted, "{last:?}");
        assert_eq!(last, cooled, "nothing goes out any more");
        assert_eq!(last.returned, 3 - admitted, "{last:?}");
    });
}

/// The end of a cool-down, that a spender and the driver both notice. Planted bug: the
/// bar is lifted without the lock.
#[test]
fn a_cool_down_ends_once_and_what_comes_then_is_spent() {
    model(|| {
        let slot = slot_with(1);
        slot.cool(9);
        let spender = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || admits(&slot, &At(9)))
        };
        slot.release_due(9);
        slot.grant(1, 2, FOR_EVER);
        let admitted = spender.join().unwrap() + admits(&slot, &At(9));
        let last = totals_of(&slot, 1);
        assert_eq!((last.spent, admitted), (1, 1), "{last:?}");
        assert_eq!(last.granted, last.spent + last.returned + last.left);
    });
}

fn own(units: u64) -> Arc<Slot> {
    let slot = slot();
    slot.set_rule(SlotRule {
        kind: BudgetKind::Estimate,
        limit: 9,
        ..SlotRule::default()
    });
    slot.grant(1, 0, FOR_EVER);
    assert_eq!(slot.grant_own(units, 1, 9, 0), Some(units));
    slot
}

/// A gateway that grants itself less, or more, while its units are spent. Planted bug:
/// what is left is read once and stored.
fn changes(before: u64, after: u64) {
    model(move || {
        let slot = own(before);
        let spenders: Vec<_> = (0..2)
            .map(|_| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || u64::from(slot.try_spend(1, &At(0)) == Verdict::Estimated))
            })
            .collect();
        let seen = totals_of(&slot, 1).spent;
        slot.grant_own(after, 1, 9, 0);
        let granted = totals_of(&slot, 1);
        assert!(granted.spent >= seen, "{granted:?} {seen}");
        let admitted: u64 = spenders.into_iter().map(|s| s.join().unwrap()).sum();
        let last = totals_of(&slot, 1);
        assert_eq!(last.spent, admitted, "{last:?}");
        assert_eq!(last.granted, last.spent + last.left, "{last:?}");
        // What was spent since the report counts as spent of it.
        assert!(last.granted <= after.max(last.spent), "{last:?}");
        assert!(sample(&slot).ended.is_empty());
    });
}

#[test]
fn a_gateway_that_grants_itself_less_beside_two_spenders_takes_back_no_spend() {
    changes(2, 1);
}

#[test]
fn a_gateway_that_grants_itself_more_beside_two_spenders_makes_no_unit() {
    changes(1, 2);
}
