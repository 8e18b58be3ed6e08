//! Permits of a concurrency budget: units that are in use for a while and come
//! back. Knows nothing of how a request waits, nor of the wire.
//!
//! A permit's units are *held* from the take on, never spent: the coordinator's
//! books have them outstanding, so over all gateways no more than the limit are in
//! use. It is valid until it is dropped, and as long as its lease is: a renewal of
//! the session prolongs it. When the lease's deadline passes, the coordinator may
//! soon count the units as free (it waits longer than this client), so from then on
//! the permit has ended, whatever its holder does: it can ask and be woken. Its
//! units stay held here until it is dropped all the same. If the session goes on
//! after all, nobody else in this process got them while the work was still at it.
//!
//! What was found to have ended stays ended, even if a late renewal comes.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    clock::Clock,
    lane::Lane,
    queue::Patience,
    slot::{Inner, Slot},
    sync::{AtomicBool, Ordering},
    verdict::Verdict,
    waiting::{Begun, Use, Waiter},
};

/// Units of a concurrency budget in use. Dropped, it hands them back.
#[derive(Debug)]
#[must_use = "a permit that is dropped has ended"]
pub struct Permit {
    slot: Arc<Slot>,
    generation: u64,
    units: u64,
    number: u64,
    has_ended: AtomicBool,
}

impl Slot {
    /// Takes permits, or begins to wait for them.
    ///
    /// # Errors
    /// How it goes on: the answer, if it is not admitted, or the wait.
    pub fn acquire(
        self: &Arc<Self>,
        units: u64,
        patience: Patience,
        clock: &impl Clock,
    ) -> Result<Permit, Begun> {
        if let Some(permit) = self.take_as(Use::Permit, units, clock, Slot::keep_permit) {
            return Ok(permit);
        }
        let miss = self.miss_as(Use::Permit, Lane::LOWEST, units, clock);
        Err(self.begin_after(miss, Lane::LOWEST, units, patience, clock))
    }

    /// Takes permits of what is here.
    ///
    /// # Errors
    /// The answer, if it is not admitted.
    pub fn try_acquire(
        self: &Arc<Self>,
        units: u64,
        clock: &impl Clock,
    ) -> Result<Permit, Verdict> {
        if let Some(permit) = self.take_as(Use::Permit, units, clock, Slot::keep_permit) {
            return Ok(permit);
        }
        let miss = self.miss_as(Use::Permit, Lane::LOWEST, units, clock);
        let verdict = self.answer_miss(miss, Lane::LOWEST, units, clock);
        Err(self.shade(verdict))
    }

    /// Turns held units into a permit.
    fn keep_permit(self: &Arc<Self>, inner: &mut Inner, generation: u64, units: u64) -> Permit {
        self.count_acquired(units);
        Permit {
            slot: Arc::clone(self),
            generation,
            units,
            number: inner.next_number(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Wakes whoever waits for the end of a permit: it may have come.
    pub(crate) fn wake_watchers(inner: &mut Inner, wakes: &mut Vec<Waker>) {
        wakes.extend(std::mem::take(&mut inner.watchers).into_values());
    }
}

impl Permit {
    /// How many units it has.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Whether its lease is still valid. Once it was not, it never is again.
    #[must_use]
    pub fn is_valid(&self, clock: &impl Clock) -> bool {
        self.valid_until(None, clock).is_some()
    }

    /// Ready once it has ended. Pending: until when it is valid if nothing renews it;
    /// the context is woken when it may have ended before, and has to look by itself
    /// at that moment.
    pub fn poll_ended(&self, context: &mut Context<'_>, clock: &impl Clock) -> (Poll<()>, u64) {
        match self.valid_until(Some(context.waker()), clock) {
            Some(until_ns) => (Poll::Pending, until_ns),
            None => (Poll::Ready(()), 0),
        }
    }

    fn valid_until(&self, watcher: Option<&Waker>, clock: &impl Clock) -> Option<u64> {
        // Relaxed: it only remembers, and the lock orders what it remembers.
        if self.has_ended.load(Ordering::Relaxed) {
            return None;
        }
        let mut inner = self.slot.lock();
        let is_closed = self.slot.is_closed();
        let deadline_ns = if self.units == 0 {
            Some(u64::MAX)
        } else {
            inner.books.deadline_ns(self.generation)
        };
        let until_ns = deadline_ns.filter(|until| !is_closed && clock.now_ns() < *until);
        match (until_ns, watcher) {
            (Some(_), Some(waker)) => {
                inner.watchers.insert(self.number, waker.clone());
            }
            (Some(_), None) => {}
            (None, _) => self.has_ended.store(true, Ordering::Relaxed),
        }
        until_ns
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut wakes = Vec::new();
        let mut inner = self.slot.lock();
        inner.watchers.remove(&self.number);
        let was_empty = self.slot.left() == 0;
        let back = match inner.recalled {
            Some((generation, target)) if generation == self.generation => {
                inner.books.return_held(generation, self.units, target)
            }
            _ => 0,
        };
        let kept = self.units - back;
        if kept > 0 {
            self.slot
                .give_up_held(&mut inner, self.generation, kept, &mut wakes);
        }
        let is_spare = back > 0 || (was_empty && self.slot.left() > 0);
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
        // Somebody elsewhere may wait for it.
        if is_spare {
            self.slot.ring();
        }
    }
}

impl Waiter {
    /// As [`poll`](Self::poll), of a request that wants permits.
    pub fn poll_permit(
        &mut self,
        context: &mut Context<'_>,
        clock: &impl Clock,
    ) -> Poll<Result<Permit, Verdict>> {
        let decision = self.poll_decision(context);
        decision.map(|decision| self.conclude_as(Use::Permit, decision, clock, Slot::keep_permit))
    }

    /// As [`give_up`](Self::give_up), of a request that wants permits.
    ///
    /// # Errors
    /// The answer, if it is not admitted.
    pub fn give_up_permit(mut self, clock: &impl Clock) -> Result<Permit, Verdict> {
        match self.leave() {
            Some(decision) => self.conclude_as(Use::Permit, decision, clock, Slot::keep_permit),
            None => Err(self.time_out(Use::Permit, clock)),
        }
    }
}
