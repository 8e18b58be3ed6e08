//! The requests that wait for one key, first come first served. Plain data
//! behind the slot's lock: knows neither units nor leases nor time.

use std::{collections::BTreeMap, task::Waker};

use crate::verdict::Code;

/// How long a request is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// For the answer to one ask; a refusal ends its wait.
    OneAnswer,
    /// For capacity: a refusal leaves it in the queue until it gives up by
    /// itself, no later than this reading of the clock.
    Until(u64),
}

#[derive(Debug)]
pub(crate) struct Waiting {
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

/// Waiting and decided requests. Tickets grow, so their order is the queue's.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: BTreeMap<u64, Waiting>,
    decided: BTreeMap<u64, Decision>,
    next_ticket: u64,
    waiting_units: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, units: u64, patience: Patience) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting_units = self.waiting_units.saturating_add(units);
        self.waiting.insert(
            ticket,
            Waiting {
                units,
                patience,
                waker: None,
            },
        );
        ticket
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Units that requests wait for.
    pub(crate) fn units(&self) -> u64 {
        self.waiting_units
    }

    /// The first request: its ticket, its cost, its patience.
    pub(crate) fn front(&self) -> Option<(u64, u64, Patience)> {
        let (ticket, waiting) = self.waiting.first_key_value()?;
        Some((*ticket, waiting.units, waiting.patience))
    }

    /// The requests in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Waiting)> {
        self.waiting
            .iter()
            .map(|(ticket, waiting)| (*ticket, waiting))
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
        let waiting = self.iter().filter(|(_, waiting)| applies(waiting));
        let tickets: Vec<u64> = waiting.map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            self.decide(ticket, decision, wakes);
        }
    }

    /// Takes a request out of the queue without a decision.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        self.waiting_units = self.waiting_units.saturating_sub(waiting.units);
        Some(waiting)
    }

    /// Picks a decision up, once.
    pub(crate) fn pick_up(&mut self, ticket: u64) -> Option<Decision> {
        self.decided.remove(&ticket)
    }

    /// Leaves word whom to wake.
    pub(crate) fn wake_with(&mut self, ticket: u64, waker: &Waker) {
        if let Some(waiting) = self.waiting.get_mut(&ticket) {
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
        let ticket = queue.push(3, Patience::OneAnswer);
        assert_eq!(queue.units(), 3);
        queue.decide(ticket, Decision::Closed, &mut Vec::new());
        assert_eq!((queue.units(), queue.is_empty()), (0, true));
        assert_eq!(queue.pick_up(ticket), Some(Decision::Closed));
        assert_eq!(queue.pick_up(ticket), None);
    }

    #[test]
    fn the_first_to_come_is_the_front() {
        let mut queue = Queue::default();
        let first = queue.push(3, Patience::OneAnswer);
        queue.push(1, Patience::Until(9));
        assert_eq!(queue.front(), Some((first, 3, Patience::OneAnswer)));
        queue.leave(first);
        assert_eq!(queue.front().map(|(_, units, _)| units), Some(1));
    }
}
