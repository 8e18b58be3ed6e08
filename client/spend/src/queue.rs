//! The requests that wait for one key: the highest lane first, and in a lane first
//! come first served. Plain data behind the slot's lock: knows neither units nor
//! leases nor time.

use std::{collections::BTreeMap, mem, task::Waker};

use crate::{lane::Lane, verdict::Code};

/// How long a request is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// For the answer to one ask; a refusal ends its wait.
    OneAnswer,
    /// For capacity: a refusal leaves it in the queue until it gives up by
    /// itself, no later than this reading of the clock.
    Until(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    /// The lane that it came in, whatever the policy has now.
    lane: Lane,
    pub(crate) units: u64,
    pub(crate) patience: Patience,
    pub(crate) waker: Option<Waker>,
}

/// What was decided about a request that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Its units are held for it.
    Served { generation: u64, units: u64 },
    /// The coordinator's no.
    Refused { code: Code, until_ns: Option<u64> },
    /// The slot was closed.
    Closed,
}

/// Waiting and decided requests. Tickets grow, so in a lane their order is the
/// queue's.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The highest lane first; there is one at least.
    lanes: Vec<BTreeMap<u64, Waiting>>,
    decided: BTreeMap<u64, Decision>,
    next_ticket: u64,
    waiting_units: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            lanes: vec![BTreeMap::new()],
            decided: BTreeMap::new(),
            next_ticket: 0,
            waiting_units: 0,
        }
    }
}

impl Queue {
    pub(crate) fn push(&mut self, lane: Lane, units: u64, patience: Patience) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting_units = self.waiting_units.saturating_add(units);
        self.insert(
            ticket,
            Waiting {
                lane,
                units,
                patience,
                waker: None,
            },
        );
        ticket
    }

    fn insert(&mut self, ticket: u64, waiting: Waiting) {
        let place = waiting.lane.place(self.lanes.len());
        if let Some(lane) = self.lanes.get_mut(place) {
            lane.insert(ticket, waiting);
        }
    }

    /// How many lanes there are.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The policy has so many lanes now: each request goes on waiting in the one that
    /// is meant by the lane it came in.
    pub(crate) fn set_lanes(&mut self, lanes: usize) {
        let lanes = lanes.max(1);
        if lanes == self.lanes.len() {
            return;
        }
        let before = mem::replace(&mut self.lanes, vec![BTreeMap::new(); lanes]);
        for (ticket, waiting) in before.into_iter().flatten() {
            self.insert(ticket, waiting);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.iter().map(BTreeMap::len).sum()
    }

    /// How many wait in a lane or in one above it.
    pub(crate) fn len_down_to(&self, lane: Lane) -> usize {
        let lanes = lane.place(self.lanes.len()) + 1;
        self.lanes.iter().take(lanes).map(BTreeMap::len).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.iter().all(BTreeMap::is_empty)
    }

    /// Units that requests wait for.
    pub(crate) fn units(&self) -> u64 {
        self.waiting_units
    }

    /// The first request: its ticket, its cost, its patience.
    pub(crate) fn front(&self) -> Option<(u64, u64, Patience)> {
        let (_, ticket, waiting) = self.iter().next()?;
        Some((ticket, waiting.units, waiting.patience))
    }

    /// The requests in order, with the place of their lane.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, u64, &Waiting)> {
        self.lanes.iter().enumerate().flat_map(|(place, lane)| {
            lane.iter()
                .map(move |(ticket, waiting)| (place, *ticket, waiting))
        })
    }

    /// Takes a request out of the queue with a decision that its owner picks up.
    pub(crate) fn decide(&mut self, ticket: u64, decision: Decision, wakes: &mut Vec<Waker>) {
        if let Some(waiting) = self.leave(ticket) {
            self.decided.insert(ticket, decision);
            wakes.extend(waiting.waker);
        }
    }

    /// Decides about all requests that `applies` to.
    pub(crate) fn decide_where(
        &mut self,
        applies: impl Fn(&Waiting) -> bool,
        decision: Decision,
        wakes: &mut Vec<Waker>,
    ) {
        let waiting = self.iter().filter(|(.., waiting)| applies(waiting));
        let tickets: Vec<u64> = waiting.map(|(_, ticket, _)| ticket).collect();
        for ticket in tickets {
            self.decide(ticket, decision, wakes);
        }
    }

    /// Takes a request out of the queue without a decision.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<Waiting> {
        let waiting = self
            .lanes
            .iter_mut()
            .find_map(|lane| lane.remove(&ticket))?;
        self.waiting_units = self.waiting_units.saturating_sub(waiting.units);
        Some(waiting)
    }

    /// Picks a decision up, once.
    pub(crate) fn pick_up(&mut self, ticket: u64) -> Option<Decision> {
        self.decided.remove(&ticket)
    }

    /// Leaves word whom to wake.
    pub(crate) fn wake_with(&mut self, ticket: u64, waker: &Waker) {
        let waiting = self.lanes.iter_mut().find_map(|lane| lane.get_mut(&ticket));
        if let Some(waiting) = waiting {
            match &mut waiting.waker {
                Some(known) if known.will_wake(waker) => {}
                slot => *slot = Some(waker.clone()),
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_picked_up_once() {
        let mut queue = Queue::default();
        let ticket = queue.push(Lane::LOWEST, 3, Patience::OneAnswer);
        assert_eq!(queue.units(), 3);
        queue.decide(ticket, Decision::Closed, &mut Vec::new());
        assert_eq!((queue.units(), queue.is_empty()), (0, true));
        assert_eq!(queue.pick_up(ticket), Some(Decision::Closed));
        assert_eq!(queue.pick_up(ticket), None);
    }

    #[test]
    fn the_first_to_come_is_the_front() {
        let mut queue = Queue::default();
        let first = queue.push(Lane::LOWEST, 3, Patience::OneAnswer);
        queue.push(Lane::LOWEST, 1, Patience::Until(9));
        assert_eq!(queue.front(), Some((first, 3, Patience::OneAnswer)));
        queue.leave(first);
        assert_eq!(queue.front().map(|(_, units, _)| units), Some(1));
    }

    #[test]
    fn a_higher_lane_comes_before_a_lower_one_whoever_came_first() {
        let mut queue = Queue::default();
        queue.set_lanes(3);
        let low = queue.push(Lane::LOWEST, 5, Patience::OneAnswer);
        let middle = queue.push(Lane(1), 1, Patience::OneAnswer);
        let high = queue.push(Lane(0), 1, Patience::OneAnswer);
        let later = queue.push(Lane(0), 1, Patience::OneAnswer);
        let order: Vec<_> = queue
            .iter()
            .map(|(place, ticket, _)| (place, ticket))
            .collect();
        assert_eq!(order, [(0, high), (0, later), (1, middle), (2, low)]);
        assert_eq!(
            (queue.len_down_to(Lane(0)), queue.len_down_to(Lane(1))),
            (2, 3)
        );
    }

    #[test]
    fn who_waits_when_the_lanes_become_known_waits_in_the_lane_it_came_in() {
        let mut queue = Queue::default();
        let low = queue.push(Lane::LOWEST, 1, Patience::OneAnswer);
        let high = queue.push(Lane(0), 1, Patience::OneAnswer);
        queue.set_lanes(2);
        let order: Vec<_> = queue
            .iter()
            .map(|(place, ticket, _)| (place, ticket))
            .collect();
        assert_eq!(order, [(0, high), (1, low)]);
        queue.set_lanes(0);
        assert_eq!(
            (queue.lanes(), queue.front().map(|(ticket, ..)| ticket)),
            (1, Some(low))
        );
    }
}
