//! Who rings, and what the driver makes of it: asking ahead.

use super::{
    Arc, At, Begun, FOR_EVER, KeyCore, Patience, Poll, Slot, Verdict, Woken, admits, model,
    model_with, sample, slot, slot_with, thread, totals_of,
};
use crate::{
    MILLISECOND,
    message::{KeyGrant, Policy, Report},
};

/// Long enough for one request in ten seconds to count.
const RTT: u64 = 100 * MILLISECOND;

fn granted(granted_total: u64, basis_seq: u64) -> KeyGrant {
    KeyGrant {
        generation: 1,
        granted_total,
        basis_seq,
        policy: Some(Policy {
            limit: 100,
            timescale_us: 60_000_000,
            max_wait_us: 250_000,
            slice_factor_milli: 1500,
            ..Policy::default()
        }),
        ..KeyGrant::default()
    }
}

fn hear(key: &mut KeyCore, granted_total: u64, basis_seq: u64) {
    let grant = granted(granted_total, basis_seq);
    key.on_grant(&grant, FOR_EVER, None, RTT, 0);
}

fn is_rung(slot: &Slot) -> bool {
    let mut rung = false;
    slot.line.take_rung(|_| rung = true);
    rung
}

/// A key that asked for the first time, was given all it wanted, and has spent
/// down to three units. One more, and it is at its low-water mark.
fn key_with_three(slot: &Arc<Slot>) -> (KeyCore, u64) {
    let mut key = KeyCore::new("k".into(), Arc::clone(slot), 0);
    assert_eq!(slot.try_spend(10, &At(0)), Verdict::Empty);
    assert!(key.look(&At(0)).report);
    let mut reports: Vec<Report> = Vec::new();
    key.report(1, &At(0), &mut reports);
    let want = reports[0].want;
    hear(&mut key, want, 1);
    assert_eq!(slot.try_spend(want - 3, &At(0)), Verdict::Admitted);
    assert!(!key.look(&At(0)).report, "three are above the mark");
    is_rung(slot);
    (key, want)
}

/// Planted bugs: `set_bell` reads the word instead of writing it; and `take` rings
/// below the bell only.
#[test]
fn who_spends_down_to_a_new_bell_rings_or_is_in_the_sample_that_follows() {
    model(|| {
        let slot = slot_with(2);
        slot.set_bell(0);
        let spender = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || admits(&slot, &At(0)))
        };
        slot.set_bell(1);
        let seen = sample(&slot).current.unwrap().spent;
        assert_eq!(spender.join().unwrap(), 1);
        assert!(seen == 1 || is_rung(&slot), "nobody knows of the spend");
    });
}

/// Planted bugs: `look` does not sample again after it has raised the bell; and
/// the one above.
#[test]
fn a_spend_is_noticed_while_its_key_falls_quiet() {
    model(|| {
        let slot = slot();
        let (mut key, _) = key_with_three(&slot);
        // Far above the mark: only for its date is it of any interest.
        hear(&mut key, 90, 1);
        let again = key.look(&At(0)).again_ns.unwrap();
        is_rung(&slot);
        let spender = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || admits(&slot, &At(0)))
        };
        // The step after the last request, and the first in which it is quiet.
        let seen = totals_of(&slot, 1).spent;
        let look = key.look(&At(again));
        assert_eq!(spender.join().unwrap(), 1);
        let is_noticed = look.again_ns.is_some_and(|at| at <= 2 * again);
        assert!(is_noticed || is_rung(&slot), "seen {seen}, then {look:?}");
        assert!(key.look(&At(again)).again_ns.is_some());
    });
}

/// The first ask is answered with nothing; its want stays registered.
///
/// Planted bug: `is_low` does not look at whether a want is registered.
#[test]
fn a_low_water_mark_that_two_spenders_cross_leads_to_one_ask() {
    model(|| {
        let slot = slot();
        let (mut key, had) = key_with_three(&slot);
        let spenders: Vec<_> = (0..2)
            .map(|_| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || admits(&slot, &At(0)))
            })
            .collect();
        let mut reports = Vec::new();
        let mut asks = 0;
        let mut look_if_rung = |asks: &mut u64| {
            if is_rung(&slot) && key.look(&At(0)).report {
                *asks += 1;
                key.report(1 + *asks, &At(0), &mut reports);
                hear(&mut key, had, 1 + *asks);
            }
        };
        look_if_rung(&mut asks);
        for spender in spenders {
            assert_eq!(spender.join().unwrap(), 1);
            look_if_rung(&mut asks);
        }
        assert_eq!(asks, 1, "{reports:?}");
        assert!(
            reports[0].want > 0 && reports[0].waiting == 0,
            "{reports:?}"
        );
    });
}

/// What was asked ahead arrives while a request finds nothing and joins.
///
/// Planted bugs: `join_queue` does not serve the queue after it has joined it;
/// and `grant` does not serve it.
#[test]
fn a_grant_that_was_asked_ahead_serves_who_joins_the_queue() {
    model_with(3, || {
        let slot = slot();
        let (mut key, had) = key_with_three(&slot);
        assert_eq!(slot.try_spend(3, &At(0)), Verdict::Admitted);
        assert!(key.look(&At(0)).report, "asks ahead");
        let mut reports = Vec::new();
        key.report(2, &At(0), &mut reports);
        assert_eq!(reports[0].waiting, 0);
        let spent = totals_of(&slot, 1).spent;
        let woken = Arc::new(Woken::default());
        let request = {
            let (slot, woken) = (Arc::clone(&slot), Arc::clone(&woken));
            thread::spawn(move || match slot.spend(1, Patience::OneAnswer, &At(0)) {
                Begun::Answered(verdict) => (None, Some(verdict)),
                Begun::Waits(mut waiter) => match woken.poll(&mut waiter) {
                    Poll::Ready(verdict) => (None, Some(verdict)),
                    Poll::Pending => (Some(waiter), None),
                },
            })
        };
        hear(&mut key, had + reports[0].want, 2);
        let verdict = match request.join().unwrap() {
            (Some(mut waiter), _) => {
                assert_eq!(woken.count(), 1, "units are left, and one waits");
                let Poll::Ready(verdict) = woken.poll(&mut waiter) else {
                    panic!("woken for nothing");
                };
                verdict
            }
            (None, verdict) => verdict.unwrap(),
        };
        assert_eq!(verdict, Verdict::Admitted);
        assert_eq!(totals_of(&slot, 1).spent, spent + 1);
        key.look(&At(0));
        assert!(!key.is_urgent(), "nobody waits");
    });
}
