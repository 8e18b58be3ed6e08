//! Loom models of the spending core: every interleaving (up to five
//! preemptions) of a few operations, and every value that the orderings allow a
//! load to see. Each model was seen to fail once with the bug that its comment
//! names.

mod bell;
mod keeping;
mod own;
mod recall;
mod together;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize as Tally, Ordering as TallyOrdering},
    },
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use crate::{
    Begun, Clock, Code, Granted, Line, Patience, Sample, Slot, Totals, Verdict, Waiter, clock::At,
    key::KeyCore,
};

const FOR_EVER: u64 = u64::MAX;

fn model(body: impl Fn() + Sync + Send + 'static) {
    model_with(5, body);
}

/// The same with another bound, for models that would take minutes.
fn model_with(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(body);
}

fn slot() -> Arc<Slot> {
    let line = Arc::new(Line::new(1, || ()));
    line.up();
    Arc::new(Slot::new(0, line, 4, 1))
}

fn slot_with(units: u64) -> Arc<Slot> {
    let slot = slot();
    assert_eq!(slot.grant(1, units, FOR_EVER), Granted::Units(units));
    slot
}

fn sample(slot: &Slot) -> Sample {
    let mut sample = Sample::default();
    slot.sample(&mut sample);
    sample
}

fn totals_of(slot: &Slot, generation: u64) -> Totals {
    let sample = sample(slot);
    let all = sample.ended.into_iter().chain(sample.current);
    all.into_iter()
        .find(|totals| totals.generation == generation)
        .unwrap_or_default()
}

fn admits(slot: &Arc<Slot>, clock: &impl Clock) -> u64 {
    u64::from(slot.try_spend(1, clock) == Verdict::Admitted)
}

/// Two spenders of one unit each, beside what the driver does meanwhile.
fn two_spenders(granted: u64, driver: impl Fn(&Slot) + Send + Sync + Clone + 'static) {
    model(move || {
        let slot = slot_with(granted);
        let spenders: Vec<_> = (0..2)
            .map(|_| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || admits(&slot, &At(0)))
            })
            .collect();
        driver(&slot);
        let admitted: u64 = spenders.into_iter().map(|s| s.join().unwrap()).sum();
        let totals = totals_of(&slot, 1);
        assert_eq!(
            totals.granted,
            totals.spent + totals.returned + totals.left,
            "{totals:?}"
        );
        assert_eq!(totals.spent, admitted, "{totals:?}");
    });
}

/// Planted bug: `raise_left` as a load and a store instead of one addition.
#[test]
fn refill_beside_two_spenders_loses_and_makes_no_unit() {
    two_spenders(1, |slot| {
        slot.grant(1, 2, FOR_EVER);
    });
}

/// Planted bug: `give_back` counts as returned what it wanted to take when the
/// exchange in `lower_left` failed.
#[test]
fn a_recall_beside_two_spenders_loses_and_makes_no_unit() {
    two_spenders(2, |slot| {
        slot.give_back_to(1, 1, false);
    });
}

/// Planted bug: `close` reads what is left first and stores the closed word
/// afterwards.
#[test]
fn a_close_beside_two_spenders_loses_and_makes_no_unit() {
    two_spenders(2, Slot::close);
}

/// Planted bug: `end_current` of the books forgets to add what was left.
#[test]
fn a_new_generation_beside_two_spenders_loses_and_makes_no_unit() {
    two_spenders(1, |slot| {
        assert!(slot.end());
        assert_eq!(slot.grant(1, 9, FOR_EVER), Granted::Stale);
    });
}

/// Planted bug: `take` looks at a stale copy of the word for the closed flag and
/// adds its units to whatever the word is by then (`fetch_sub`).
#[test]
fn nothing_is_admitted_after_a_close() {
    model(|| {
        let slot = slot_with(2);
        let closed = Arc::new(AtomicBool::new(false));
        let spender = {
            let (slot, closed) = (Arc::clone(&slot), Arc::clone(&closed));
            thread::spawn(move || {
                let was_closed = closed.load(Ordering::Acquire);
                let verdict = slot.try_spend(1, &At(0));
                assert!(!was_closed || verdict == Verdict::Unavailable { code: Code::Closed });
                u64::from(verdict == Verdict::Admitted)
            })
        };
        slot.close();
        closed.store(true, Ordering::Release);
        let spent = totals_of(&slot, 1).spent;
        assert_eq!(admits(&slot, &At(0)), 0);
        let admitted = spender.join().unwrap();
        assert_eq!(
            admitted, spent,
            "what was admitted was taken before the close"
        );
    });
}

/// A clock that another thread moves, and that remembers the last look.
struct Hands {
    now: AtomicU64,
    looked: Tally,
}

impl Clock for Hands {
    fn now_ns(&self) -> u64 {
        // A read-modify-write always finds the newest value, as a look at a real
        // clock does; a load may find an old one.
        let now = self.now.fetch_add(0, Ordering::AcqRel);
        self.looked
            .store(usize::try_from(now).unwrap(), TallyOrdering::Relaxed);
        now
    }
}

/// The first lease ends at 10, the second at 20, and time passes 10 while a
/// spender is at work. What it takes from the first may only be admitted by a
/// look before 10, after the take.
///
/// Planted bugs: `open_lease` stores the deadline before it changes the tag; and
/// `take` looks at the clock before the exchange.
#[test]
fn nothing_is_admitted_after_the_deadline_of_the_lease_it_was_taken_from() {
    model(|| {
        let slot = slot();
        slot.grant(1, 1, 10);
        let clock = Arc::new(Hands {
            now: AtomicU64::new(9),
            looked: Tally::new(0),
        });
        let spender = {
            let (slot, clock) = (Arc::clone(&slot), Arc::clone(&clock));
            thread::spawn(move || {
                (
                    admits(&slot, &*clock),
                    clock.looked.load(TallyOrdering::Relaxed),
                )
            })
        };
        // Everything spent of the first lease at 10 or later was spent too late.
        clock.now.swap(10, Ordering::AcqRel);
        let spent_in_time = totals_of(&slot, 1).spent;
        slot.grant(2, 1, 20);
        let (admitted, looked) = spender.join().unwrap();
        let (first, second) = (totals_of(&slot, 1), totals_of(&slot, 2));
        assert_eq!(first.granted, first.spent + first.returned, "{first:?}");
        assert_eq!(second.granted, second.spent + second.left, "{second:?}");
        assert!(first.spent + second.spent >= admitted);
        if admitted == 1 && second.spent == 0 {
            assert!(
                looked < 10,
                "admitted at {looked} from a lease that ended at 10"
            );
            assert_eq!(
                spent_in_time, 1,
                "admitted what was taken after the deadline"
            );
        }
    });
}

/// A renewal moves the deadline of the same lease while units are put aside and
/// come back.
///
/// Planted bug: `renew` raises what is left before it stores the new deadline
/// (the spender then forfeits a unit of a valid lease).
#[test]
fn a_renewal_brings_the_units_back_that_were_put_aside() {
    model(|| {
        let slot = slot();
        slot.grant(1, 1, 10);
        slot.park_if_late(10);
        let spender = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || admits(&slot, &At(12)))
        };
        slot.renew(20, 12);
        let admitted = spender.join().unwrap();
        let totals = totals_of(&slot, 1);
        assert_eq!(
            (totals.spent, totals.left),
            (admitted, 1 - admitted),
            "{totals:?}"
        );
    });
}

/// Planted bug: `sample` reads what is left before it takes the lock, so that a
/// hold which is cancelled in between is taken for spent once.
#[test]
fn spent_never_shrinks_while_holds_come_and_go() {
    for commits in [false, true] {
        model(move || {
            let slot = slot_with(2);
            let holder = {
                let slot = Arc::clone(&slot);
                thread::spawn(move || {
                    let hold = slot.hold(1).unwrap();
                    u64::from(commits && hold.commit(&At(0)))
                })
            };
            let first = totals_of(&slot, 1).spent;
            let second = totals_of(&slot, 1).spent;
            let committed = holder.join().unwrap();
            let last = totals_of(&slot, 1);
            assert!(first <= second, "spent shrank from {first} to {second}");
            assert!(
                second <= last.spent,
                "spent shrank from {second} to {}",
                last.spent
            );
            assert_eq!((last.spent, last.held), (committed, 0), "{last:?}");
        });
    }
}

/// Planted bug: `hold` lowers what is left without counting it as held until
/// the lock is taken again.
#[test]
fn a_hold_beside_a_spender_loses_and_makes_no_unit() {
    model(|| {
        let slot = slot_with(1);
        let holder = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || drop(slot.hold(1)))
        };
        let admitted = admits(&slot, &At(0));
        assert_eq!(totals_of(&slot, 1).spent, admitted);
        holder.join().unwrap();
        let totals = totals_of(&slot, 1);
        assert_eq!(
            (totals.spent, totals.left),
            (admitted, 1 - admitted),
            "{totals:?}"
        );
    });
}

/// Counts its wake-ups.
#[derive(Default)]
struct Woken(Tally);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, TallyOrdering::Relaxed);
    }
}

impl Woken {
    fn poll(self: &Arc<Self>, waiter: &mut Waiter) -> Poll<Verdict> {
        let waker = Waker::from(Arc::clone(self));
        waiter.poll(&mut Context::from_waker(&waker), &At(0))
    }

    fn count(&self) -> usize {
        self.0.load(TallyOrdering::Relaxed)
    }
}

/// One request waits while the driver does what should end its wait.
/// `again`: the driver comes again when it is rung for.
fn one_waiter(again: bool, driver: impl Fn(&Slot) + Send + Sync + Clone + 'static) {
    model(move || {
        let slot = slot();
        let woken = Arc::new(Woken::default());
        let waiter = {
            let (slot, woken) = (Arc::clone(&slot), Arc::clone(&woken));
            thread::spawn(move || match slot.spend(1, Patience::OneAnswer, &At(0)) {
                Begun::Answered(verdict) => (None, Some(verdict)),
                Begun::Waits(mut waiter) => match woken.poll(&mut waiter) {
                    Poll::Ready(verdict) => (None, Some(verdict)),
                    Poll::Pending => (Some(waiter), None),
                },
            })
        };
        driver(&slot);
        let (pending, verdict) = waiter.join().unwrap();
        let verdict = match pending {
            // Both threads are done: whoever still waits must have been woken,
            // unless it came after the driver, which then was rung for.
            Some(mut waiter) if woken.count() == 1 => match woken.poll(&mut waiter) {
                Poll::Ready(verdict) => Some(verdict),
                Poll::Pending => panic!("woken for nothing"),
            },
            Some(mut waiter) => {
                let mut rung = 0;
                slot.line.take_rung(|_| rung += 1);
                assert_eq!(rung, 1, "the driver looks at who came after it");
                assert!(again, "nobody will ever decide about who still waits");
                driver(&slot);
                assert_eq!(woken.count(), 1, "a wake-up was lost");
                match woken.poll(&mut waiter) {
                    Poll::Ready(verdict) => Some(verdict),
                    Poll::Pending => panic!("woken for nothing"),
                }
            }
            None => verdict,
        };
        let totals = totals_of(&slot, 1);
        let admitted = u64::from(verdict == Some(Verdict::Admitted));
        assert_eq!(totals.spent, admitted, "{totals:?}");
        assert_eq!(
            totals.granted,
            totals.spent + totals.returned + totals.left,
            "{totals:?}"
        );
    });
}

/// Planted bug: `poll` lets the lock go between looking for a decision and
/// leaving its waker.
#[test]
fn a_grant_wakes_who_waits() {
    one_waiter(true, |slot| {
        // Grants again when it is called again: one more unit than before.
        let granted = totals_of(slot, 1).granted;
        slot.grant(1, granted + 1, FOR_EVER);
    });
}

/// Planted bug: `join_queue` does not look at the refusal again once it has the
/// lock.
#[test]
fn a_refusal_wakes_who_waits() {
    one_waiter(false, |slot| {
        slot.refuse(Code::Limit, FOR_EVER - 256, false)
    });
}

/// Planted bug: `close` decides about the queue before it sets the flag, and
/// lets the lock go in between.
#[test]
fn a_close_wakes_who_waits() {
    one_waiter(false, Slot::close);
}

/// Two requests wait for one key; whoever came first is served first, and a
/// spender does not overtake them.
///
/// Planted bug: `join_queue` does not set the queue's flag (the grant is then
/// taken by the spender, and the waiter waits on).
#[test]
fn nobody_overtakes_who_waits() {
    model(|| {
        let slot = slot();
        let woken = Arc::new(Woken::default());
        let Begun::Waits(mut waiter) = slot.spend(2, Patience::OneAnswer, &At(0)) else {
            panic!("nothing is held here");
        };
        assert_eq!(woken.poll(&mut waiter), Poll::Pending);
        let spender = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || admits(&slot, &At(0)))
        };
        slot.grant(1, 1, FOR_EVER);
        slot.grant(1, 2, FOR_EVER);
        assert_eq!(spender.join().unwrap(), 0, "overtook a request that waited");
        assert_eq!(woken.poll(&mut waiter), Poll::Ready(Verdict::Admitted));
    });
}

/// Planted bug: dropping a waiter leaves a decision that came meanwhile behind
/// (its units stay held for ever).
#[test]
fn a_waiter_that_is_dropped_while_it_is_served_gives_its_units_back() {
    model(|| {
        let slot = slot();
        let Begun::Waits(waiter) = slot.spend(1, Patience::OneAnswer, &At(0)) else {
            panic!("nothing is held here");
        };
        let quitter = thread::spawn(move || drop(waiter));
        slot.grant(1, 1, FOR_EVER);
        quitter.join().unwrap();
        let totals = totals_of(&slot, 1);
        assert_eq!(
            (totals.left, totals.held, totals.spent),
            (1, 0, 0),
            "{totals:?}"
        );
        assert_eq!(admits(&slot, &At(0)), 1, "the queue's flag was lifted");
    });
}

/// A hold is decided while the session is found to be gone, and settled: what is
/// settled as unspent is not admitted afterwards, and no unit is settled twice.
///
/// Planted bug: `void` keeps the leases of which something is held, so that a
/// hold may still be committed after it was settled as unspent.
#[test]
fn a_hold_is_settled_once() {
    model(|| {
        let slot = slot_with(1);
        let hold = slot.hold(1).unwrap();
        let holder = thread::spawn(move || u64::from(hold.commit(&At(0))));
        let mut settled = Vec::new();
        slot.void(&mut settled);
        let committed = holder.join().unwrap();
        assert_eq!(settled, [(1, committed)]);
        assert!(slot.is_idle(), "everything is accounted for");
        let mut again = Vec::new();
        slot.void(&mut again);
        assert_eq!(again, [], "settled twice");
    });
}

/// Planted bug: `void` reads what is left before the swap that ends the lease.
#[test]
fn what_is_spent_while_the_session_ends_is_settled_as_spent() {
    model(|| {
        let slot = slot_with(2);
        let spender = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || admits(&slot, &At(0)))
        };
        let mut settled = Vec::new();
        slot.void(&mut settled);
        let admitted = spender.join().unwrap();
        assert_eq!(settled, [(1, admitted)]);
    });
}

/// Planted bug: `take_rung` clears the flag after it called for the look.
#[test]
fn a_ring_is_never_lost() {
    model(|| {
        let line = Arc::new(Line::new(2, || ()));
        let done = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let ringer = {
            let (line, done) = (Arc::clone(&line), Arc::clone(&done));
            thread::spawn(move || {
                for index in [0_u32, 1] {
                    done[index as usize].store(true, Ordering::Relaxed);
                    line.ring(index);
                }
            })
        };
        line.ring(0);
        let seen = [Tally::new(0), Tally::new(0)];
        let look = || {
            line.take_rung(|index| {
                let index = index as usize;
                let was_done = done[index].load(Ordering::Relaxed);
                seen[index].fetch_or(usize::from(was_done), TallyOrdering::Relaxed);
            });
        };
        look();
        ringer.join().unwrap();
        look();
        for seen in &seen {
            assert_eq!(
                seen.load(TallyOrdering::Relaxed),
                1,
                "rung for, and not looked at"
            );
        }
    });
}

/// The driver gives up an ask that nobody waits for, while a request joins the
/// queue and relies on it.
///
/// Planted bug: `abandon_ask` does not ring.
#[test]
fn a_request_that_joins_while_the_ask_is_given_up_is_not_forgotten() {
    model(|| {
        let slot = slot();
        let mut key = KeyCore::new("k".into(), Arc::clone(&slot), 0);
        let first = slot.spend(1, Patience::OneAnswer, &At(1));
        assert!(key.look(&At(1)).report, "asks");
        key.report(1, &At(1), &mut Vec::new());
        drop(first);
        slot.line.take_rung(|_| ());
        let late = At(3_000_000_000);
        let waiter = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.spend(1, Patience::OneAnswer, &late))
        };
        let asks = key.look(&late).report;
        // Kept: a waiter that is dropped rings.
        let begun = waiter.join().unwrap();
        assert!(matches!(begun, Begun::Waits(_)));
        let mut rung = 0;
        slot.line.take_rung(|_| rung += 1);
        assert!(asks || rung == 1, "nobody will look at who waits");
    });
}
