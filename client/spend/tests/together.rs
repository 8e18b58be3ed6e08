//! One request for several keys: all of it is spent or none, whoever is short is
//! named, nothing is held past what is lacking, and whoever waits gets on.
//! Past 600 lines because it is a list of cases over one fixture.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use fixture::opened;
use leasehold_spend::{
    At, BudgetKind, ClientCore, Clock, Code, CoreSettings, FailureMode, Joint, Line, Patience,
    Sample, Slot, SlotRule, Together, Totals, Verdict,
};
use proptest::prelude::*;

const DEADLINE: u64 = 1_000_000;
const ADMITTED: Joint = Joint::Allowed(Verdict::Admitted);

struct Bench {
    line: Arc<Line>,
    woken: Arc<AtomicUsize>,
    slots: Vec<Arc<Slot>>,
}

impl Bench {
    /// One slot for each number, with so many units left.
    fn with(left: &[u64]) -> Self {
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let line = Arc::new(Line::new(8, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let slot = |(index, units): (u32, &u64)| {
            let slot = Slot::new(index, Arc::clone(&line), 8, 10 * DEADLINE);
            if *units > 0 {
                let _ = slot.grant(1, *units, DEADLINE);
            }
            Arc::new(slot)
        };
        let slots = (0..).zip(left).map(slot).collect();
        Self { line, woken, slots }
    }

    /// There is a coordinator to ask.
    fn connected(self) -> Self {
        let mut core = ClientCore::new(CoreSettings::default(), Arc::clone(&self.line));
        let open = core.start_stream(1);
        let _ = core.on_message(open.stream, opened(1, Vec::new()), &At(1));
        self
    }

    /// A request of so many units of each slot.
    fn request(&self, units: &[u64], patience: Patience) -> Together {
        let parts = self.slots.iter().zip(units);
        let parts = parts.filter(|(_, units)| **units > 0);
        let parts = parts.map(|(slot, units)| (Arc::clone(slot), *units));
        Together::new(parts.collect(), patience)
    }

    fn waits(&self, units: &[u64]) -> Together {
        let mut request = self.request(units, Patience::OneAnswer);
        assert_eq!(poll(&mut request), Poll::Pending);
        request
    }

    fn tries(&self, units: &[u64], clock: &impl Clock) -> Joint {
        self.request(units, Patience::OneAnswer).try_spend(clock)
    }

    fn rung(&self) -> Vec<u32> {
        let mut rung = Vec::new();
        self.line.take_rung(|index| rung.push(index));
        rung.sort_unstable();
        rung
    }

    fn totals(&self, place: usize) -> Totals {
        totals(&self.slots[place])
    }

    /// What is spent, held and left of each key.
    fn counts<T>(&self, count: impl Fn(Totals) -> T) -> Vec<T> {
        self.slots.iter().map(|slot| count(totals(slot))).collect()
    }
}

fn sample(slot: &Slot) -> Sample {
    let mut sample = Sample::default();
    slot.sample(&mut sample);
    sample
}

fn totals(slot: &Slot) -> Totals {
    let totals = sample(slot).current.unwrap_or_default();
    let sum = totals.spent + totals.returned + totals.left + totals.held;
    assert_eq!(sum, totals.granted, "{totals:?}");
    totals
}

fn poll(request: &mut Together) -> Poll<Joint> {
    request.poll(&mut Context::from_waker(Waker::noop()), &At(1))
}

fn refused(place: usize, verdict: Verdict) -> Joint {
    Joint::Refused { place, verdict }
}

#[test]
fn all_is_spent_or_nothing_and_who_has_too_little_is_named() {
    let bench = Bench::with(&[5, 1, 5]).connected();
    assert_eq!(bench.tries(&[1, 1, 5], &At(1)), ADMITTED);
    assert_eq!(bench.counts(|t| t.spent), [1, 1, 5]);
    bench.rung();
    let told = bench.tries(&[1, 1, 1], &At(1));
    assert_eq!(told, refused(1, Verdict::Empty));
    assert_eq!(
        bench.counts(|t| (t.spent, t.held)),
        [(1, 0), (1, 0), (5, 0)]
    );
    assert_eq!(bench.rung(), [1, 2], "all that are short are rung for");
    assert_eq!(
        bench.slots[0].counts().missed,
        0,
        "and the others are left alone"
    );
}

#[test]
fn the_driver_is_woken_once_for_all_keys_that_are_short() {
    let bench = Bench::with(&[0, 0, 0]).connected();
    let _request = bench.waits(&[1, 2, 3]);
    assert_eq!(bench.woken.load(Ordering::Relaxed), 1);
    assert_eq!(bench.rung(), [0, 1, 2]);
    let waiting: Vec<_> = bench
        .slots
        .iter()
        .map(|slot| sample(slot).waiting_units)
        .collect();
    assert_eq!(waiting, [1, 2, 3], "each key's driver knows what is needed");
}

/// Reads later at each look.
struct Passing<'a>(&'a Cell<u64>);

impl Clock for Passing<'_> {
    fn now_ns(&self) -> u64 {
        self.0.get()
    }
}

#[test]
fn one_lease_that_ends_before_the_look_spends_nothing_of_any() {
    let bench = Bench::with(&[5, 0]);
    let _ = bench.slots[1].grant(1, 5, 10);
    let now = Cell::new(10);
    let told = bench.tries(&[1, 1], &Passing(&now));
    assert!(
        matches!(told, Joint::Refused { place: 1, .. }),
        "the second lease ends at 10: {told:?}"
    );
    assert_eq!(bench.counts(|t| (t.spent, t.held)), [(0, 0), (0, 0)]);
    // A renewal brings all of it back.
    bench.slots[1].renew(20, 10);
    assert_eq!(bench.counts(|t| t.left), [5, 5]);
    assert_eq!(bench.tries(&[1, 1], &Passing(&now)), ADMITTED);
}

/// Tries to take the last unit of each key at every look.
struct Greedy<'a> {
    slots: &'a [Arc<Slot>],
    took: Cell<u64>,
}

impl Clock for Greedy<'_> {
    fn now_ns(&self) -> u64 {
        for slot in self.slots {
            let verdict = slot.try_spend(1, &At(1));
            self.took
                .set(self.took.get() + u64::from(verdict == Verdict::Admitted));
        }
        1
    }
}

#[test]
fn all_units_are_taken_before_the_clock_is_looked_at() {
    let bench = Bench::with(&[1, 1, 1]);
    let clock = Greedy {
        slots: &bench.slots,
        took: Cell::new(0),
    };
    assert_eq!(bench.tries(&[1, 1, 1], &clock), ADMITTED);
    assert_eq!(clock.took.get(), 0, "looked at before the last take");
}

#[test]
fn a_lease_that_is_replaced_under_a_request_is_judged_by_its_own_end() {
    let bench = Bench::with(&[0, 0]);
    let _ = bench.slots[0].grant(1, 1, 10);
    let mut request = bench.request(&[1, 1], Patience::OneAnswer);
    assert_eq!(poll(&mut request), Poll::Pending, "holds the first");
    // Another lease of the first key, with a later end.
    let _ = bench.slots[0].grant(2, 1, DEADLINE);
    let _ = bench.slots[1].grant(1, 1, DEADLINE);
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(request.poll(&mut context, &At(10)), Poll::Ready(ADMITTED));
    let first = sample(&bench.slots[0]);
    assert_eq!(first.ended[0].spent, 0, "its time was over");
    assert_eq!(first.current.unwrap().spent, 1);
}

#[test]
fn who_waits_holds_what_comes_before_and_nothing_of_what_comes_after() {
    let bench = Bench::with(&[1, 0, 1, 0]);
    let mut request = bench.waits(&[1, 1, 1, 1]);
    assert_eq!(bench.counts(|t| t.held), [1, 0, 0, 0]);
    let _ = bench.slots[3].grant(1, 1, DEADLINE);
    assert_eq!(poll(&mut request), Poll::Pending);
    assert_eq!(bench.counts(|t| t.held), [1, 0, 0, 0]);
    // Nobody stands in the way of others there, or of a recall.
    assert_eq!(bench.slots[2].try_spend(1, &At(1)), Verdict::Admitted);
    assert_eq!(bench.slots[3].give_back(1), 1);
    let _ = bench.slots[1].grant(1, 1, DEADLINE);
    assert_eq!(poll(&mut request), Poll::Pending, "now the third is short");
    assert_eq!(bench.counts(|t| t.held), [1, 1, 0, 0]);
    let _ = bench.slots[2].grant(1, 2, DEADLINE);
    assert_eq!(poll(&mut request), Poll::Pending);
    let _ = bench.slots[3].grant(1, 2, DEADLINE);
    assert_eq!(poll(&mut request), Poll::Ready(ADMITTED));
    assert_eq!(bench.counts(|t| t.held), [0, 0, 0, 0]);
    assert_eq!(bench.counts(|t| t.spent), [1, 1, 2, 1]);
}

#[test]
fn a_refusal_of_one_leaves_the_others_untouched() {
    for (place, expected) in [(1, 1), (2, 2)] {
        let bench = Bench::with(&[3, 0, 0]);
        let mut request = bench.waits(&[2, 1, 1]);
        bench.slots[place].refuse(Code::Limit, 5_000, false);
        let told = poll(&mut request);
        let Poll::Ready(Joint::Refused { place, verdict }) = told else {
            panic!("{told:?}")
        };
        assert_eq!(place, expected, "{verdict:?}");
        assert!(matches!(
            verdict,
            Verdict::Denied {
                code: Code::Limit,
                retry_after: Some(_)
            }
        ));
        assert_eq!(bench.counts(|t| (t.left, t.held, t.spent))[0], (3, 0, 0));
        let waiting: usize = bench.slots.iter().map(|slot| sample(slot).waiting).sum();
        assert_eq!(waiting, 0, "nobody asks any more");
    }
}

#[test]
fn who_waits_for_capacity_outlasts_a_refusal_that_ends() {
    let bench = Bench::with(&[0, 0]);
    let mut request = bench.request(&[1, 1], Patience::Until(DEADLINE));
    assert_eq!(poll(&mut request), Poll::Pending);
    bench.slots[0].refuse(Code::Limit, 5_000, false);
    bench.slots[1].refuse(Code::Limit, 5_000, false);
    assert_eq!(poll(&mut request), Poll::Pending);
    bench.slots[1].refuse(Code::NoBudget, 5_000, true);
    let told = poll(&mut request);
    assert!(matches!(
        told,
        Poll::Ready(Joint::Refused {
            place: 1,
            verdict: Verdict::Denied {
                code: Code::NoBudget,
                retry_after: None
            }
        })
    ));
}

#[test]
fn units_that_are_here_are_no_reason_to_refuse() {
    let bench = Bench::with(&[0, 0]);
    let mut request = bench.waits(&[1, 1]);
    let _ = bench.slots[1].grant(1, 1, DEADLINE);
    // Somebody else wanted more of the second key than there is.
    bench.slots[1].refuse(Code::Limit, 5_000, false);
    assert_eq!(poll(&mut request), Poll::Pending);
    let _ = bench.slots[0].grant(1, 1, DEADLINE);
    assert_eq!(poll(&mut request), Poll::Ready(ADMITTED));
}

#[test]
fn a_cost_that_is_impossible_for_one_key_refuses_at_once() {
    let bench = Bench::with(&[5, 5]);
    bench.slots[1].set_rule(SlotRule {
        limit: 5,
        max_wait_ns: DEADLINE,
        ..SlotRule::default()
    });
    bench.slots[1].confirm_rule(DEADLINE);
    let denied = Verdict::Denied {
        code: Code::CostAboveLimit,
        retry_after: None,
    };
    assert_eq!(bench.tries(&[1, 6], &At(1)), refused(1, denied));
    let mut request = bench.request(&[9, 6], Patience::OneAnswer);
    assert_eq!(poll(&mut request), Poll::Ready(refused(1, denied)));
    assert_eq!(bench.counts(|t| (t.left, t.held)), [(5, 0), (5, 0)]);
}

#[test]
fn the_refusal_that_stands_longest_is_told() {
    let bench = Bench::with(&[0, 0, 0]);
    for (slot, until) in bench.slots.iter().zip([5_120, 9_216, 7_168]) {
        slot.refuse(Code::Limit, until, false);
    }
    let told = bench.tries(&[1, 1, 1], &At(1_024));
    let retry_after = Some(Duration::from_nanos(8_192));
    let code = Code::Limit;
    assert_eq!(told, refused(1, Verdict::Denied { code, retry_after }));
}

#[test]
fn a_request_that_is_dropped_gives_back_what_it_held_and_its_place() {
    let bench = Bench::with(&[1, 0, 0]);
    let first = bench.waits(&[1, 1, 1]);
    let mut second = bench.waits(&[0, 1, 0]);
    drop(first);
    assert_eq!(bench.counts(|t| (t.left, t.held))[0], (1, 0));
    let _ = bench.slots[1].grant(1, 1, DEADLINE);
    assert_eq!(poll(&mut second), Poll::Ready(ADMITTED));
    let last = sample(&bench.slots[2]);
    assert_eq!((last.waiting, last.waiting_units), (0, 0));
}

#[test]
fn a_request_that_is_dropped_when_it_was_just_served_gives_its_units_back() {
    let bench = Bench::with(&[0, 0]);
    let request = bench.waits(&[1, 1]);
    let _ = bench.slots[0].grant(1, 1, DEADLINE);
    assert_eq!(bench.totals(0).held, 1);
    drop(request);
    assert_eq!((bench.totals(0).held, bench.totals(0).left), (0, 1));
    assert_eq!(bench.slots[0].try_spend(1, &At(1)), Verdict::Admitted);
}

#[test]
fn a_close_refuses_and_hands_back() {
    let bench = Bench::with(&[2, 0]);
    let mut request = bench.waits(&[1, 1]);
    bench.slots.iter().for_each(|slot| slot.close());
    let told = poll(&mut request);
    let closed = Verdict::Unavailable { code: Code::Closed };
    assert!(
        matches!(told, Poll::Ready(Joint::Refused { verdict, .. }) if verdict == closed),
        "{told:?}"
    );
    let ended = sample(&bench.slots[0]).ended[0];
    assert_eq!((ended.returned, ended.held, ended.spent), (2, 0, 0));
}

#[test]
fn when_the_time_is_up_what_has_come_is_taken_and_else_nothing() {
    for comes in [false, true] {
        let bench = Bench::with(&[1, 0]);
        let request = bench.waits(&[1, 1]);
        if comes {
            let _ = bench.slots[1].grant(1, 1, DEADLINE);
        }
        let told = request.give_up(&At(1));
        if comes {
            assert_eq!(told, ADMITTED);
        } else {
            assert!(matches!(told, Joint::Refused { place: 1, .. }), "{told:?}");
        }
        let spent = u64::from(comes);
        assert_eq!(bench.counts(|t| (t.spent, t.held)), [(spent, 0); 2]);
    }
}

#[test]
fn a_part_that_nobody_can_be_asked_for_is_the_failure_modes() {
    for fails_open in [false, true] {
        let bench = Bench::with(&[3, 0]);
        // The line is down, for longer than a request waits.
        bench.slots[1].set_rule(SlotRule {
            limit: 5,
            failure: if fails_open {
                FailureMode::Open
            } else {
                FailureMode::Closed
            },
            max_wait_ns: 1,
            ..SlotRule::default()
        });
        let told = bench.tries(&[2, 1], &At(500));
        let code = Code::Disconnected;
        let expected = if fails_open {
            Joint::Allowed(Verdict::Degraded)
        } else {
            refused(1, Verdict::Unavailable { code })
        };
        assert_eq!(told, expected);
        let spent = if fails_open { 2 } else { 0 };
        assert_eq!(bench.totals(0).spent, spent);
        assert_eq!(bench.slots[1].counts().degraded, u64::from(fails_open));
    }
}

#[test]
fn a_part_in_shadow_mode_refuses_nothing_and_is_counted() {
    let bench = Bench::with(&[3, 0]).connected();
    bench.slots[1].set_rule(SlotRule {
        limit: 5,
        shadow: true,
        max_wait_ns: DEADLINE,
        ..SlotRule::default()
    });
    let shadowed = |code| Joint::Allowed(Verdict::Shadowed { code });
    assert_eq!(bench.tries(&[1, 1], &At(1)), shadowed(Code::Empty));
    let mut request = bench.waits(&[1, 1]);
    bench.slots[1].refuse(Code::Limit, 5_000, false);
    assert_eq!(poll(&mut request), Poll::Ready(shadowed(Code::Limit)));
    assert_eq!(bench.tries(&[1, 1], &At(1)), shadowed(Code::Limit));
    assert_eq!(bench.totals(0).spent, 3);
    let counts = bench.slots[1].counts();
    let counted = (counts.shadowed, counts.let_through, counts.refused);
    assert_eq!(counted, (2, 1, 0));
    // The other key refuses all the same, and then this one is let alone.
    let told = bench.tries(&[1, 1], &At(1));
    assert!(matches!(told, Joint::Refused { place: 0, .. }), "{told:?}");
    assert_eq!(bench.slots[1].counts().shadowed, 2);
}

#[test]
fn a_part_that_is_paced_waits_for_its_turn_and_one_without_a_limit_for_nothing() {
    let bench = Bench::with(&[0, 0]).connected();
    bench.slots[0].set_rule(SlotRule {
        kind: BudgetKind::Paced,
        limit: 5,
        max_wait_ns: DEADLINE,
        release_every_ns: 10_000_000,
        ..SlotRule::default()
    });
    let _ = bench.slots[0].grant(1, 3, DEADLINE);
    bench.slots[1].set_rule(SlotRule {
        kind: BudgetKind::Unlimited,
        limit: 0,
        max_wait_ns: DEADLINE,
        ..SlotRule::default()
    });
    // Nobody waits for a budget without a limit, even before it has a lease.
    let told = bench.tries(&[1, 1], &At(1_000));
    assert_eq!(told, Joint::Allowed(Verdict::Degraded));
    let told = bench.tries(&[1, 1], &At(1_001));
    assert!(matches!(told, Joint::Refused { place: 0, .. }), "{told:?}");
    assert_eq!((bench.totals(0).spent, bench.totals(0).held), (1, 0));
    let mut request = bench.waits(&[1, 1]);
    assert!(bench.rung().contains(&0), "the driver sees to its turn");
    assert!(bench.slots[0].release_due(10_000_001).is_none());
    let told = request.poll(&mut Context::from_waker(Waker::noop()), &At(2));
    assert!(told.is_ready());
    assert_eq!((bench.totals(0).spent, bench.totals(0).held), (2, 0));
}

#[test]
fn requests_with_crossed_sets_are_served_one_after_the_other() {
    let bench = Bench::with(&[0, 0]);
    let mut first = bench.waits(&[1, 1]);
    let mut second = bench.waits(&[1, 1]);
    // The second key's units come first, and one at a time.
    for granted in 1..=2 {
        let _ = bench.slots[1].grant(1, granted, DEADLINE);
        assert_eq!(poll(&mut first), Poll::Pending);
        assert_eq!(poll(&mut second), Poll::Pending);
    }
    let _ = bench.slots[0].grant(1, 1, DEADLINE);
    assert_eq!(poll(&mut second), Poll::Pending);
    assert_eq!(poll(&mut first), Poll::Ready(ADMITTED));
    let _ = bench.slots[0].grant(1, 2, DEADLINE);
    assert_eq!(poll(&mut second), Poll::Ready(ADMITTED));
    assert_eq!(bench.counts(|t| (t.spent, t.left)), [(2, 0), (2, 0)]);
}

struct Flag(AtomicUsize);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

const KEYS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Grant(usize, u64),
    Spend(usize, u64),
    GiveBack(usize, u64),
    Refuse(usize),
    Begin([u64; KEYS], bool),
    Try([u64; KEYS]),
    GiveUp(usize),
    Drop(usize),
    /// A newer lease.
    Renewed(usize, u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0..KEYS;
    let units = || [0..3_u64, 0..3, 0..3];
    let op = prop_oneof![
        4 => (key.clone(), 1..4_u64).prop_map(|(key, units)| Op::Grant(key, units)),
        2 => (key.clone(), 1..3_u64).prop_map(|(key, units)| Op::Spend(key, units)),
        1 => (key.clone(), 1..3_u64).prop_map(|(key, units)| Op::GiveBack(key, units)),
        1 => key.clone().prop_map(Op::Refuse),
        4 => (units(), any::<bool>()).prop_map(|(units, patient)| Op::Begin(units, patient)),
        2 => units().prop_map(Op::Try),
        1 => (0..4_usize).prop_map(Op::GiveUp),
        1 => (0..4_usize).prop_map(Op::Drop),
        1 => (key, 1..4_u64).prop_map(|(key, units)| Op::Renewed(key, units)),
    ];
    proptest::collection::vec(op, 0..40)
}

/// What the books should say, by hand.
struct Model {
    bench: Bench,
    generation: [u64; KEYS],
    granted: [u64; KEYS],
    spent: [u64; KEYS],
    waiting: Vec<([u64; KEYS], Together, Arc<Flag>)>,
}

impl Model {
    fn spent_of(&self, place: usize) -> u64 {
        let sample = sample(&self.bench.slots[place]);
        let ended: u64 = sample.ended.iter().map(|totals| totals.spent).sum();
        ended + sample.current.map_or(0, |totals| totals.spent)
    }

    fn held_of(&self, place: usize) -> u64 {
        let sample = sample(&self.bench.slots[place]);
        let ended: u64 = sample.ended.iter().map(|totals| totals.held).sum();
        ended + sample.current.map_or(0, |totals| totals.held)
    }

    fn count(&mut self, units: [u64; KEYS], told: Joint) {
        if told == ADMITTED {
            for (spent, units) in self.spent.iter_mut().zip(units) {
                *spent += units;
            }
        }
    }

    /// Polls who was woken, until nobody is.
    fn run(&mut self) {
        loop {
            let woken = |(_, _, flag): &([u64; KEYS], Together, Arc<Flag>)| {
                flag.0.swap(0, Ordering::Relaxed) > 0
            };
            let Some(at) = self.waiting.iter().position(woken) else {
                return;
            };
            let (units, request, flag) = &mut self.waiting[at];
            let waker = Waker::from(Arc::clone(flag));
            let units = *units;
            if let Poll::Ready(told) = request.poll(&mut Context::from_waker(&waker), &At(1)) {
                drop(self.waiting.remove(at).1);
                self.count(units, told);
            }
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Grant(key, units) => {
                self.granted[key] += units;
                let slot = &self.bench.slots[key];
                let _ = slot.grant(self.generation[key], self.granted[key], DEADLINE);
            }
            Op::Renewed(key, units) => {
                self.generation[key] += 1;
                self.granted[key] = units;
                let slot = &self.bench.slots[key];
                let _ = slot.grant(self.generation[key], units, DEADLINE);
            }
            Op::Spend(key, units) => {
                if self.bench.slots[key].try_spend(units, &At(1)) == Verdict::Admitted {
                    self.spent[key] += units;
                }
            }
            Op::GiveBack(key, units) => {
                self.bench.slots[key].give_back(units);
            }
            Op::Refuse(key) => self.bench.slots[key].refuse(Code::Limit, 512, false),
            Op::Try(units) => {
                let told = self.bench.tries(&units, &At(1));
                self.count(units, told);
            }
            Op::Begin(units, patient) => {
                let patience = if patient {
                    Patience::Until(DEADLINE)
                } else {
                    Patience::OneAnswer
                };
                let request = self.bench.request(&units, patience);
                let flag = Arc::new(Flag(AtomicUsize::new(1)));
                self.waiting.push((units, request, flag));
            }
            Op::GiveUp(at) if at < self.waiting.len() => {
                let (units, request, _) = self.waiting.remove(at);
                let told = request.give_up(&At(1));
                self.count(units, told);
            }
            Op::Drop(at) if at < self.waiting.len() => {
                let (_, request, _) = self.waiting.remove(at);
                drop(request);
            }
            Op::GiveUp(_) | Op::Drop(_) => {}
        }
        self.run();
        for place in 0..KEYS {
            assert_eq!(self.spent_of(place), self.spent[place], "key {place}");
            // What is held is wanted by those who wait, and they hold no key after
            // the first that they lack: so nobody who waits holds the last key.
            let wanted: u64 = self.waiting.iter().map(|(units, ..)| units[place]).sum();
            let held = self.held_of(place);
            assert!(held <= wanted, "key {place}: {held} held, {wanted} wanted");
        }
        assert_eq!(self.held_of(KEYS - 1), 0, "whoever has all is answered");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn whatever_comes_all_or_none_is_spent_and_everybody_gets_on(ops in ops()) {
        let mut model = Model {
            bench: Bench::with(&[0; KEYS]),
            generation: [1; KEYS],
            granted: [0; KEYS],
            spent: [0; KEYS],
            waiting: Vec::new(),
        };
        for op in ops {
            model.apply(op);
        }
        // Units for all who wait: nobody is forgotten.
        for key in 0..KEYS {
            model.bench.slots[key].lift_refusal();
            model.apply(Op::Grant(key, 200));
        }
        prop_assert_eq!(model.waiting.len(), 0);
        for place in 0..KEYS {
            prop_assert_eq!(model.held_of(place), 0);
        }
    }
}
