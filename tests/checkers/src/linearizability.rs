//! Admin writes and central spends take effect one after another, each at one
//! moment between its call and its return. Does not know that moment, nor whether
//! what has an unknown outcome happened: it may have at any moment since its call,
//! or never.
//!
//! A search after Wing, Gong and Lowe, object by object: whenever an operation
//! returns, those that are under way are put in every order in which it can have
//! taken effect, and only what a [`Place`] remembers is kept of how it came about.
//! Unknown operations that would do the same are counted, not told apart, and a
//! place that needed fewer of them stands for one that needed more: spends of equal
//! units keep a history narrow. One that is too wide is undecided.

use std::collections::{BTreeMap, HashMap};

use crate::{Act, Operation, Spent, Verdict};

/// Places that are looked at for one return: about 10 MB.
const PLACES_MAX: usize = 100_000;
/// Operations under way at one moment whose outcome is known.
const WIDTH_MAX: usize = 64;

/// Judges every object by itself. `checked` counts the operations that could be
/// put in order.
#[must_use]
pub fn linearizability(operations: &[Operation]) -> Verdict {
    linearizable_within(operations, PLACES_MAX)
}

fn linearizable_within(operations: &[Operation], places_max: usize) -> Verdict {
    let mut by_object: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        by_object
            .entry(&operation.object)
            .or_default()
            .push(operation);
    }
    let mut verdict = Verdict::default();
    for (object, operations) in by_object {
        let mut search = Search::new(places_max);
        for (_, event) in events(&operations) {
            match search.take(event) {
                Ok(explained) => {
                    verdict.checked = verdict.checked.saturating_add(u64::from(explained));
                }
                Err(Stuck::Impossible(operation)) => {
                    verdict.violated(
                        object,
                        operation.call_ns,
                        format!("no order explains {:?}", operation.act),
                    );
                    break;
                }
                Err(Stuck::TooWide(operation)) => {
                    verdict.undecided.push(format!(
                        "{object}: too many orders to look at when the operation called at {} returned",
                        operation.call_ns
                    ));
                    break;
                }
            }
        }
    }
    verdict
}

#[derive(Clone, Copy)]
enum Event<'a> {
    Call(&'a Operation),
    Return(&'a Operation),
}

/// Calls and returns in order; at one moment calls come first, since what only
/// touches may overlap. What has an unknown outcome never returns.
fn events<'a>(operations: &[&'a Operation]) -> Vec<(u64, Event<'a>)> {
    let mut events = Vec::new();
    for &operation in operations {
        if operation.acknowledged {
            events.push((operation.call_ns, Event::Call(operation)));
            events.push((operation.return_ns, Event::Return(operation)));
        } else if !matches!(operation.act, Act::Read(_) | Act::Used(_)) {
            events.push((operation.call_ns, Event::Call(operation)));
        }
    }
    events.sort_by_key(|&(at, event)| (at, matches!(event, Event::Return(_))));
    events
}

/// What an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State<'a> {
    Register(Option<&'a str>),
    Purse { limit: Option<u64>, used: u64 },
}

impl<'a> State<'a> {
    /// The state after the act with this answer; none: it is impossible here.
    fn after(self, act: &'a Act) -> Option<Self> {
        match (self, act) {
            (Self::Register(_), Act::Write(value)) => Some(Self::Register(value.as_deref())),
            (Self::Register(held), Act::Read(value)) => (held == value.as_deref()).then_some(self),
            (Self::Purse { used, .. }, Act::Limit(limit)) => Some(Self::Purse {
                limit: Some(*limit),
                used,
            }),
            (Self::Purse { used, .. }, Act::Used(told)) => (used == *told).then_some(self),
            (Self::Purse { limit, used }, Act::Spend { units, answer }) => {
                let free = limit.map_or(0, |limit| limit.saturating_sub(used));
                // Unknown: it matters only if it was admitted.
                let told = answer.unwrap_or(Spent {
                    admitted: true,
                    free: None,
                });
                let admitted = limit.is_some() && free >= *units;
                let left = if admitted { free - units } else { free };
                let true_to =
                    admitted == told.admitted && told.free.is_none_or(|free| free == left);
                true_to.then(|| Self::Purse {
                    limit,
                    used: if admitted { used + units } else { used },
                })
            }
            (Self::Register(_), _) | (Self::Purse { .. }, _) => None,
        }
    }
}

/// What is remembered of an order: what the object holds, and which operations
/// under way have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place<'a> {
    state: State<'a>,
    /// One bit for each slot of those with a known outcome.
    done: u64,
}

/// Places, each with the fewest unknown operations that led there, by kind. Where
/// neither of two is fewer, both are kept.
type Places<'a> = HashMap<Place<'a>, Vec<Vec<u32>>>;

enum Stuck<'a> {
    Impossible(&'a Operation),
    TooWide(&'a Operation),
}

struct Search<'a> {
    places: Places<'a>,
    /// Those under way with a known outcome; a place's bit says whether it is done.
    slots: [Option<&'a Operation>; WIDTH_MAX],
    /// What unknown operations would do, and how many would.
    unknown: Vec<(&'a Act, u32)>,
    places_max: usize,
}

impl<'a> Search<'a> {
    fn new(places_max: usize) -> Self {
        Self {
            places: HashMap::new(),
            slots: [None; WIDTH_MAX],
            unknown: Vec::new(),
            places_max,
        }
    }

    /// True when one more operation was explained.
    fn take(&mut self, event: Event<'a>) -> Result<bool, Stuck<'a>> {
        match event {
            Event::Call(operation) => {
                self.call(operation)?;
                Ok(false)
            }
            Event::Return(operation) => {
                self.explain(operation)?;
                Ok(true)
            }
        }
    }

    fn call(&mut self, operation: &'a Operation) -> Result<(), Stuck<'a>> {
        if self.places.is_empty() {
            let state = match operation.act {
                Act::Write(_) | Act::Read(_) => State::Register(None),
                Act::Limit(_) | Act::Spend { .. } | Act::Used(_) => State::Purse {
                    limit: None,
                    used: 0,
                },
            };
            self.places.insert(Place { state, done: 0 }, vec![vec![]]);
        }
        if operation.acknowledged {
            let free = self.slots.iter_mut().find(|slot| slot.is_none());
            *free.ok_or(Stuck::TooWide(operation))? = Some(operation);
        } else if let Some((_, count)) = self
            .unknown
            .iter_mut()
            .find(|(act, _)| **act == operation.act)
        {
            *count += 1;
        } else {
            self.unknown.push((&operation.act, 1));
        }
        Ok(())
    }

    /// Keeps the places in which the operation has taken effect, and those that
    /// come about when it does now, after others under way that did not have to yet.
    fn explain(&mut self, operation: &'a Operation) -> Result<(), Stuck<'a>> {
        let slot = self
            .slots
            .iter()
            .position(|slot| slot.is_some_and(|other| std::ptr::eq(other, operation)))
            .ok_or(Stuck::Impossible(operation))?;
        let bit = 1_u64 << slot;
        let mut kept = Places::new();
        let mut seen = Places::new();
        let mut to_do: Vec<(Place<'a>, Vec<u32>)> = Vec::new();
        for (place, ways) in self.places.drain() {
            for unknown in ways {
                if enter(&mut seen, place, &unknown) {
                    to_do.push((place, unknown));
                }
            }
        }
        let mut looked_at = to_do.len();
        let unknown_kinds: Vec<(usize, &Act, u32)> = self
            .unknown
            .iter()
            .enumerate()
            .filter(|(_, (act, _))| self.matters(act))
            .map(|(kind, &(act, count))| (kind, act, count))
            .collect();
        while let Some((place, unknown)) = to_do.pop() {
            if place.done & bit != 0 {
                let done = place.done & !bit;
                enter(&mut kept, Place { done, ..place }, &unknown);
                continue;
            }
            let known = (0..WIDTH_MAX).filter_map(|slot| {
                let done = place.done | 1 << slot;
                let state = place.state.after(&self.slots[slot]?.act)?;
                (done != place.done).then(|| (Place { state, done }, unknown.clone()))
            });
            let or_unknown = unknown_kinds.iter().filter_map(|&(kind, act, count)| {
                let state = place.state.after(act)?;
                let mut unknown = unknown.clone();
                unknown.resize(unknown.len().max(kind + 1), 0);
                unknown[kind] += 1;
                let new = state != place.state && unknown[kind] <= count;
                new.then_some((Place { state, ..place }, unknown))
            });
            for (next, unknown) in known.chain(or_unknown) {
                if enter(&mut seen, next, &unknown) {
                    looked_at += 1;
                    if looked_at > self.places_max {
                        return Err(Stuck::TooWide(operation));
                    }
                    to_do.push((next, unknown));
                }
            }
        }
        self.slots[slot] = None;
        self.places = kept;
        if self.places.is_empty() {
            return Err(Stuck::Impossible(operation));
        }
        Ok(())
    }
}

impl Search<'_> {
    /// Whether it can matter now that an unknown operation took effect. A write that
    /// nobody under way has read may as well come later, or never.
    fn matters(&self, act: &Act) -> bool {
        let Act::Write(value) = act else { return true };
        self.slots
            .iter()
            .flatten()
            .any(|operation| matches!(&operation.act, Act::Read(read) if read == value))
    }
}

/// Adds a way to a place, unless one that needed no more is there already; then
/// those that needed more are dropped.
fn enter<'a>(places: &mut Places<'a>, place: Place<'a>, unknown: &[u32]) -> bool {
    let no_more = |a: &[u32], b: &[u32]| {
        (0..a.len().max(b.len())).all(|kind| a.get(kind).unwrap_or(&0) <= b.get(kind).unwrap_or(&0))
    };
    let ways = places.entry(place).or_default();
    if ways.iter().any(|way| no_more(way, unknown)) {
        return false;
    }
    ways.retain(|way| !no_more(unknown, way));
    ways.push(unknown.to_vec());
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operation(call_ns: u64, return_ns: u64, act: Act) -> Operation {
        Operation {
            object: "o".to_owned(),
            call_ns,
            return_ns,
            acknowledged: true,
            act,
        }
    }

    fn unknown(call_ns: u64, act: Act) -> Operation {
        Operation {
            acknowledged: false,
            ..operation(call_ns, call_ns + 5, act)
        }
    }

    fn write(value: &str) -> Act {
        Act::Write(Some(value.to_owned()))
    }

    fn read(value: &str) -> Act {
        Act::Read(Some(value.to_owned()))
    }

    fn spend(units: u64, admitted: bool, free: u64) -> Act {
        let free = Some(free);
        Act::Spend {
            units,
            answer: Some(Spent { admitted, free }),
        }
    }

    fn fine(history: &[Operation]) -> bool {
        let verdict = linearizability(history);
        assert!(verdict.undecided.is_empty(), "{verdict:?}");
        verdict.is_fine()
    }

    #[test]
    fn a_stale_read_is_found() {
        let before = [
            operation(0, 1, write("a")),
            operation(2, 9, write("b")),
            operation(3, 4, read("b")),
        ];
        for (value, good) in [("b", true), ("a", false)] {
            let mut history = before.to_vec();
            history.push(operation(5, 6, read(value)));
            assert_eq!(fine(&history), good, "{value}");
        }
    }

    #[test]
    fn overlapping_writes_may_land_in_either_order_but_in_one() {
        let writes = [operation(0, 9, write("a")), operation(0, 9, write("b"))];
        for (first, second, good) in [("a", "b", true), ("b", "a", true), ("a", "a", true)] {
            let mut history = writes.to_vec();
            history.push(operation(2, 3, read(first)));
            history.push(operation(4, 5, read(second)));
            assert_eq!(fine(&history), good);
        }
        let mut history = writes.to_vec();
        history.extend([(10, "a"), (12, "b")].map(|(at, v)| operation(at, at + 1, read(v))));
        assert!(!fine(&history), "both cannot be the last");
    }

    #[test]
    fn two_spends_of_the_last_unit_are_found() {
        let purse = operation(0, 1, Act::Limit(1));
        let kept = [
            purse.clone(),
            operation(2, 9, spend(1, true, 0)),
            operation(2, 9, spend(1, false, 0)),
        ];
        assert!(fine(&kept));
        let broken = [
            purse,
            operation(2, 9, spend(1, true, 0)),
            operation(2, 9, spend(1, true, 0)),
        ];
        assert!(!fine(&broken));
    }

    #[test]
    fn a_spend_that_vanished_shows_in_the_next_answer() {
        let until = [
            operation(0, 1, Act::Limit(10)),
            operation(2, 3, spend(4, true, 6)),
        ];
        for (free, good) in [(5, true), (9, false), (4, false)] {
            let mut history = until.to_vec();
            history.push(operation(4, 5, spend(1, true, free)));
            assert_eq!(fine(&history), good, "{free}");
        }
        let mut history = until.to_vec();
        history.push(operation(4, 5, Act::Used(3)));
        assert!(!fine(&history));
    }

    #[test]
    fn a_spend_with_an_unknown_outcome_may_come_late_once_or_never() {
        let until = [
            operation(0, 1, Act::Limit(10)),
            unknown(
                2,
                Act::Spend {
                    units: 3,
                    answer: None,
                },
            ),
            operation(20, 21, spend(1, true, 9)),
        ];
        for (later, free, good) in [
            (operation(30, 31, spend(1, true, 8)), 8, true),
            (operation(30, 31, spend(1, true, 5)), 5, true),
            (operation(30, 31, spend(1, true, 2)), 2, false),
        ] {
            let mut history = until.to_vec();
            history.push(later);
            assert_eq!(fine(&history), good, "{free}");
        }
    }

    #[test]
    fn a_raised_limit_can_be_spent_and_a_lowered_one_cannot() {
        let history = |last: Act| {
            [
                operation(0, 1, Act::Limit(2)),
                operation(2, 3, spend(2, true, 0)),
                operation(4, 5, Act::Limit(5)),
                operation(6, 7, spend(2, true, 1)),
                operation(8, 9, Act::Limit(3)),
                operation(10, 11, last),
            ]
        };
        assert!(fine(&history(spend(1, false, 0))));
        assert!(!fine(&history(spend(1, true, 0))));
    }

    #[test]
    fn a_history_too_wide_to_search_is_undecided() {
        // Eight writers at once, whose values nobody reads until all returned.
        let mut history: Vec<_> = (0..8)
            .map(|i| operation(i, 100 + i, write(&i.to_string())))
            .collect();
        history.push(operation(200, 201, read("0")));
        let verdict = linearizable_within(&history, 50);
        assert!(verdict.violations.is_empty() && verdict.undecided.len() == 1);
        assert!(!verdict.is_fine());
        assert!(fine(&history));
        let wide: Vec<_> = (0..65)
            .map(|i| operation(0, 100, write(&i.to_string())))
            .collect();
        assert_eq!(linearizability(&wide).undecided.len(), 1);
    }

    #[test]
    fn long_histories_with_many_unknown_outcomes_are_judged_quickly() {
        let mut history = vec![operation(0, 1, Act::Limit(1_000_000))];
        let mut free = 1_000_000;
        for i in 0..20_000_u64 {
            let at = 10 * i + 10;
            if i % 100 == 0 {
                history.push(unknown(
                    at,
                    Act::Spend {
                        units: 1,
                        answer: None,
                    },
                ));
                // Every other one happened, two answers later.
                free -= u64::from(i % 200 == 0);
            } else {
                free -= 2;
                history.push(operation(at, at + 9, spend(2, true, free)));
            }
        }
        assert!(fine(&history));
        let last = history.len() - 1;
        history[last].act = spend(2, true, free + 500);
        assert!(!fine(&history));
    }

    #[test]
    fn thousands_of_unknown_writes_of_different_values_are_judged_quickly() {
        let mut history = Vec::new();
        for i in 0..3_000_u64 {
            let at = 10 * i;
            history.push(unknown(at, write(&format!("unknown {i}"))));
            history.push(operation(at + 1, at + 2, write(&format!("known {i}"))));
            history.push(operation(at + 3, at + 4, read(&format!("known {i}"))));
        }
        // One of them happened late.
        history.push(operation(40_000, 40_001, read("unknown 7")));
        assert!(fine(&history));
        // It cannot happen twice.
        history.push(operation(40_002, 40_003, write("known")));
        history.push(operation(40_004, 40_005, read("unknown 7")));
        assert!(!fine(&history));
    }

    /// All orders, one operation after another.
    fn brute<'a>(left: &[&'a Operation], state: State<'a>) -> bool {
        let known = |operation: &&Operation| operation.acknowledged;
        if !left.iter().any(known) {
            return true;
        }
        left.iter().enumerate().any(|(i, next)| {
            let first = left
                .iter()
                .all(|other| !known(other) || other.return_ns >= next.call_ns);
            let mut rest = left.to_vec();
            rest.remove(i);
            first
                && state
                    .after(&next.act)
                    .is_some_and(|state| brute(&rest, state))
        })
    }

    fn acts(purse: bool) -> impl Strategy<Value = (Act, bool)> {
        let known = any::<bool>();
        (0_u8..3, 0_u64..4, known).prop_map(move |(kind, value, known)| {
            let act = match (purse, kind) {
                (false, 0) => Act::Read((value > 0).then(|| value.to_string())),
                (false, _) => Act::Write((value > 0).then(|| value.to_string())),
                (true, 0) => Act::Limit(value),
                (true, 1) => Act::Used(value),
                (true, _) => Act::Spend {
                    units: value,
                    answer: known.then_some(Spent {
                        admitted: value % 2 == 0,
                        free: value.checked_sub(2),
                    }),
                },
            };
            let reads = matches!(act, Act::Read(_) | Act::Used(_));
            (act, known || reads)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn it_agrees_with_trying_every_order(
            raw in any::<bool>().prop_flat_map(|purse| proptest::collection::vec(
                ((0_u64..14, 0_u64..6), acts(purse)), 1..7)),
        ) {
            let history: Vec<_> = raw
                .into_iter()
                .map(|((call, took), (act, acknowledged))| Operation {
                    acknowledged, ..operation(call, call + took, act)
                })
                .collect();
            let left: Vec<_> = history.iter().collect();
            let state = match history[0].act {
                Act::Write(_) | Act::Read(_) => State::Register(None),
                _ => State::Purse { limit: None, used: 0 },
            };
            prop_assert_eq!(fine(&history), brute(&left, state));
        }
    }
}
