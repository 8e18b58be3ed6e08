//! What a request does that cannot be served at once: wait in the queue, or hold
//! units until something else is decided. Knows no runtime: a waiter is polled,
//! and wakes whom it was last polled by.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    books::Release,
    clock::Clock,
    lane::Lane,
    queue::{Decision, Patience},
    slot::{AtGate, Inner, Miss, Slot},
    sync::{Ordering, taken_before_look},
    verdict::{Code, Verdict},
    word::{QUEUED, Word},
};

/// How a request begins.
#[derive(Debug)]
#[must_use = "a waiter that is dropped leaves the queue"]
pub enum Begun {
    /// It is answered.
    Answered(Verdict),
    /// It waits.
    Waits(Waiter),
}

/// A request in the queue. Dropping it gives its place up, and its units back if
/// it was served meanwhile.
#[derive(Debug)]
pub struct Waiter {
    slot: Arc<Slot>,
    lane: Lane,
    ticket: u64,
    units: u64,
    is_done: bool,
}

/// What a request wants units for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To spend them.
    Spend,
    /// To have them in use for a while.
    Permit,
}

/// Units that were taken and not decided yet. Dropping them hands them back.
#[derive(Debug)]
#[must_use = "a hold that is dropped hands its units back"]
pub struct Hold {
    slot: Arc<Slot>,
    generation: u64,
    units: u64,
    is_done: bool,
}

impl Slot {
    /// Begins a request that may wait. The driver is rung for when it does.
    pub fn spend(self: &Arc<Self>, units: u64, patience: Patience, clock: &impl Clock) -> Begun {
        self.spend_in(Lane::LOWEST, units, patience, clock)
    }

    /// Begins a request of a lane that may wait.
    pub fn spend_in(
        self: &Arc<Self>,
        lane: Lane,
        units: u64,
        patience: Patience,
        clock: &impl Clock,
    ) -> Begun {
        if self.is_gated() {
            let patience = match self.at_gate(lane, units, clock) {
                AtGate::Passed => return Begun::Answered(self.admitted()),
                // It waits for its turn as long as it waits for an answer otherwise.
                AtGate::Waits(_) if patience == Patience::OneAnswer => {
                    let wait_ns = self.max_wait_ns_in(lane);
                    Some(Patience::Until(clock.now_ns().saturating_add(wait_ns)))
                }
                AtGate::Waits(_) => Some(patience),
                AtGate::Cooling(_) | AtGate::Open => None,
            };
            if let Some(patience) = patience {
                return self.begin_after(Miss::Ask, lane, units, patience, clock);
            }
        }
        let miss = self.try_take_or_miss(lane, units, clock);
        self.begin_after(miss, lane, units, patience, clock)
    }

    /// How a request goes on that was not served at once.
    pub(crate) fn begin_after(
        self: &Arc<Self>,
        miss: Miss,
        lane: Lane,
        units: u64,
        patience: Patience,
        clock: &impl Clock,
    ) -> Begun {
        match self.wait_after(miss, lane, units, patience, clock) {
            Begun::Answered(verdict) => Begun::Answered(self.shade(verdict)),
            waits @ Begun::Waits(_) => waits,
        }
    }

    fn wait_after(
        self: &Arc<Self>,
        miss: Miss,
        lane: Lane,
        units: u64,
        patience: Patience,
        clock: &impl Clock,
    ) -> Begun {
        match self.settle_own(miss, units, clock) {
            Miss::Answer(verdict) => Begun::Answered(verdict),
            // Who waits for capacity joins the queue in spite of a refusal.
            Miss::Refused(verdict)
                if verdict.may_end() && matches!(patience, Patience::Until(_)) =>
            {
                self.join_queue(lane, units, patience, clock)
            }
            Miss::Refused(verdict) => {
                self.count_refused(units);
                Begun::Answered(verdict)
            }
            // The connection may be back before the request's time is up.
            Miss::Alone if self.may_outlast_outage(lane, patience, clock) => {
                self.join_queue(lane, units, patience, clock)
            }
            Miss::Alone => Begun::Answered(self.fail(units, Code::Disconnected, clock)),
            Miss::Ask => self.join_queue(lane, units, patience, clock),
        }
    }

    /// Whether the connection was lost less than a request's longest wait ago,
    /// or the request is prepared to wait and would be refused otherwise.
    pub(crate) fn may_outlast_outage(
        &self,
        lane: Lane,
        patience: Patience,
        clock: &impl Clock,
    ) -> bool {
        let waits_anyway = matches!(patience, Patience::Until(_)) && !self.fails_open();
        waits_anyway || self.outage_is_young(lane, clock)
    }

    fn outage_is_young(&self, lane: Lane, clock: &impl Clock) -> bool {
        self.line
            .down_since_ns()
            .is_none_or(|since| clock.now_ns().saturating_sub(since) < self.max_wait_ns_in(lane))
    }

    fn join_queue(
        self: &Arc<Self>,
        lane: Lane,
        units: u64,
        patience: Patience,
        clock: &impl Clock,
    ) -> Begun {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        // From here on nobody overtakes. AcqRel: it also shows units that came
        // between the failed attempt and the lock; `serve` below finds them.
        let word = Word(self.word.fetch_or(QUEUED, Ordering::AcqRel));
        let refusal = match patience {
            // A refusal that came between the look at it and the lock counts too:
            // its queue was refused before this request could join it.
            // So does one that waits before it and cannot be had.
            Patience::OneAnswer => {
                let first = inner.queue.front().map_or(units, |(_, units, _)| units);
                let may_be_had = self.may_be_had(units) && self.may_be_had(first);
                self.local_refusal(lane, clock).filter(|_| !may_be_had)
            }
            Patience::Until(_) => None,
        };
        let answer = if word.is_closed() {
            Some(Verdict::Unavailable { code: Code::Closed })
        } else if inner.queue.len_down_to(lane) >= self.waiters_max() {
            // Lower lanes take no place from higher ones.
            let retry_after = Some(Duration::from_nanos(self.max_wait_ns_in(lane)));
            Some(Verdict::Denied {
                code: Code::TooManyWaiters,
                retry_after,
            })
        } else {
            refusal
        };
        if let Some(verdict) = answer {
            self.serve(&mut inner, &mut wakes);
            drop(inner);
            wakes.into_iter().for_each(Waker::wake);
            self.count_refused(units);
            return Begun::Answered(verdict);
        }
        let ticket = inner.queue.push(lane, units, patience);
        self.serve(&mut inner, &mut wakes);
        let is_shut = inner.gate.is_shut();
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
        if is_shut {
            // The driver's timers see to its turn.
            self.ring();
        } else {
            self.ring_unless_asked(lane);
        }
        Begun::Waits(Waiter {
            slot: Arc::clone(self),
            lane,
            ticket,
            units,
            is_done: false,
        })
    }

    /// Takes units without deciding about them.
    pub fn hold(self: &Arc<Self>, units: u64) -> Option<Hold> {
        let mut inner = self.lock();
        let generation = self.take_held(&mut inner, Lane::LOWEST, units)?;
        Some(Hold {
            slot: Arc::clone(self),
            generation,
            units,
            is_done: false,
        })
    }

    /// Takes units from what is left, for somebody who holds the lock, and leaves
    /// it open what becomes of them. Says of which lease they are. Nobody who
    /// waits in this lane or above it is overtaken.
    pub(crate) fn take_held(&self, inner: &mut Inner, lane: Lane, units: u64) -> Option<u64> {
        if inner.queue.len_down_to(lane) > 0 {
            return None;
        }
        self.set_aside(inner, units)
    }

    /// Moves units from what is left to what is held, for somebody who holds the lock.
    /// Says of which lease they are.
    pub(crate) fn set_aside(&self, inner: &mut Inner, units: u64) -> Option<u64> {
        if inner.gate.cooling_until().is_some() {
            return None;
        }
        let lease = inner
            .books
            .current
            .as_mut()
            .filter(|lease| !lease.is_parked)?;
        // Held is raised before left is lowered: a unit on its way is never taken for
        // spent.
        lease.held += units;
        if !self.lower_left(units) {
            lease.held -= units;
            return None;
        }
        Some(lease.generation)
    }

    /// As `take_held`, and through the gate: only when the units' turn is now.
    pub(crate) fn take_in_turn(
        &self,
        inner: &mut Inner,
        lane: Lane,
        units: u64,
        clock: &impl Clock,
    ) -> Option<u64> {
        if !inner.gate.is_shut() {
            return self.take_held(inner, lane, units);
        }
        let now = clock.now_ns();
        let is_open = inner.gate.thaw(now);
        self.unbar(inner);
        if !is_open || inner.gate.turn_after(now).is_some() {
            return None;
        }
        let generation = self.take_held(inner, lane, units)?;
        inner.gate.passed(units, now);
        Some(generation)
    }

    /// Takes units, then looks at the clock, and keeps them if their lease is valid
    /// and the budget is of the right kind. What is kept is kept under the same lock:
    /// no end of the session finds the units without their owner.
    pub(crate) fn take_as<T>(
        self: &Arc<Self>,
        usage: Use,
        units: u64,
        clock: &impl Clock,
        keep: impl FnOnce(&Arc<Self>, &mut Inner, u64, u64) -> T,
    ) -> Option<T> {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        if self.is_closed() || self.wrong_kind(usage).is_some() {
            return None;
        }
        if units == 0 {
            return Some(keep(self, &mut inner, 0, 0));
        }
        let generation = self.take_in_turn(&mut inner, Lane::LOWEST, units, clock)?;
        let kept = self.look_and_keep(&mut inner, generation, units, clock, keep);
        if kept.is_none() {
            // Put aside first: nothing of it may be left once more.
            self.park(&mut inner, clock.now_ns());
            self.give_up_held(&mut inner, generation, units, &mut wakes);
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
        if kept.is_some() && self.is_at_bell(self.left()) {
            self.ring();
        }
        kept
    }

    fn look_and_keep<T>(
        self: &Arc<Self>,
        inner: &mut Inner,
        generation: u64,
        units: u64,
        clock: &impl Clock,
        keep: impl FnOnce(&Arc<Self>, &mut Inner, u64, u64) -> T,
    ) -> Option<T> {
        taken_before_look();
        let is_valid = inner.books.is_valid(generation, clock.now_ns()) && !self.is_closed();
        is_valid.then(|| keep(self, inner, generation, units))
    }

    pub(crate) fn commit(&self, generation: u64, units: u64, clock: &impl Clock) -> bool {
        let mut inner = self.lock();
        // The units were taken before; now the look. The lock keeps a closing,
        // a voiding and every sample out until the decision is in the books.
        let word = Word(self.word.load(Ordering::Acquire));
        let is_committed = !word.is_closed()
            && !word.is_off_path()
            && inner.books.commit(generation, units, clock.now_ns());
        drop(inner);
        // A spend like any other: the driver dates it, and asks ahead.
        if is_committed && self.is_at_bell(word.left()) {
            self.ring();
        }
        is_committed
    }

    pub(crate) fn release(&self, generation: u64, units: u64) {
        let mut wakes = Vec::new();
        self.give_up_held(&mut self.lock(), generation, units, &mut wakes);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Decides held units as unspent, for somebody who holds the lock.
    pub(crate) fn give_up_held(
        &self,
        inner: &mut Inner,
        generation: u64,
        units: u64,
        wakes: &mut Vec<Waker>,
    ) {
        // Nothing is left while the key cools down.
        let is_closed = Word(self.word.load(Ordering::Acquire)).is_closed()
            || inner.gate.cooling_until().is_some();
        let raise = |units| self.raise_left(units);
        if inner.books.release(generation, units, is_closed, raise) == Release::ToLeft {
            self.serve(inner, wakes);
        }
    }
}

impl Hold {
    /// Decides the units as spent. False: the lease's deadline has passed, or
    /// the client was closed; they are handed back.
    #[must_use = "units that were not committed were not admitted"]
    pub fn commit(mut self, clock: &impl Clock) -> bool {
        let committed = self.slot.commit(self.generation, self.units, clock);
        self.is_done = committed;
        committed
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.is_done {
            self.slot.release(self.generation, self.units);
        }
    }
}

impl Waiter {
    /// The verdict, once there is one.
    pub fn poll(&mut self, context: &mut Context<'_>, clock: &impl Clock) -> Poll<Verdict> {
        let decision = self.poll_decision(context);
        decision.map(|decision| self.conclude(decision, clock))
    }

    pub(crate) fn poll_decision(&mut self, context: &mut Context<'_>) -> Poll<Decision> {
        let decision = {
            let mut inner = self.slot.lock();
            let decision = inner.queue.pick_up(self.ticket);
            if decision.is_none() {
                // With the lock held: whoever decides next finds this waker.
                inner.queue.wake_with(self.ticket, context.waker());
            }
            decision
        };
        match decision {
            Some(decision) => Poll::Ready(decision),
            None => Poll::Pending,
        }
    }

    /// Stops waiting because the time is up: the verdict if one is there; else
    /// the refusal that stands, or the failure mode's answer.
    pub fn give_up(mut self, clock: &impl Clock) -> Verdict {
        match self.leave() {
            Some(decision) => self.conclude(decision, clock),
            None => self.time_out(Use::Spend, clock),
        }
    }

    /// What a request is told whose time is up before it was answered.
    pub(crate) fn time_out(&self, usage: Use, clock: &impl Clock) -> Verdict {
        let wrong = self.slot.wrong_kind(usage);
        let verdict = wrong.unwrap_or_else(|| self.slot.time_out(self.lane, self.units, clock));
        self.slot.shade(verdict)
    }

    /// Leaves the queue: with the decision, if there is one.
    pub(crate) fn leave(&mut self) -> Option<Decision> {
        let mut wakes = Vec::new();
        let mut inner = self.slot.lock();
        let decision = inner.queue.pick_up(self.ticket);
        if decision.is_none() && inner.queue.leave(self.ticket).is_some() {
            // Whoever is next may fit what is left.
            self.slot.serve(&mut inner, &mut wakes);
            self.slot.ring();
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
        self.is_done = true;
        decision
    }

    /// What the request costs.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    fn conclude(&mut self, decision: Decision, clock: &impl Clock) -> Verdict {
        match decision {
            Decision::Served { generation, units }
                if self.slot.commit(generation, units, clock) =>
            {
                self.is_done = true;
                self.slot.admitted()
            }
            decision => self.refusal(Use::Spend, decision, clock),
        }
    }

    /// What a decision means for a request that keeps its units for a while.
    pub(crate) fn conclude_as<T>(
        &mut self,
        usage: Use,
        decision: Decision,
        clock: &impl Clock,
        keep: impl FnOnce(&Arc<Slot>, &mut Inner, u64, u64) -> T,
    ) -> Result<T, Verdict> {
        if let Decision::Served { generation, units } = decision
            && self.slot.wrong_kind(usage).is_none()
        {
            let slot = &self.slot;
            let mut inner = slot.lock();
            if let Some(kept) = slot.look_and_keep(&mut inner, generation, units, clock, keep) {
                self.is_done = true;
                return Ok(kept);
            }
        }
        Err(self.refusal(usage, decision, clock))
    }

    /// The answer of a decision that admits nothing, or whose units came to nothing.
    fn refusal(&mut self, usage: Use, decision: Decision, clock: &impl Clock) -> Verdict {
        self.is_done = true;
        let verdict = match decision {
            Decision::Served { generation, units } => {
                self.slot.release(generation, units);
                if self.slot.is_closed() {
                    Verdict::Unavailable { code: Code::Closed }
                } else {
                    let wrong = self.slot.wrong_kind(usage);
                    wrong.unwrap_or_else(|| self.slot.fail(units, Code::NoAnswer, clock))
                }
            }
            Decision::Refused { code, until_ns } => {
                self.slot.count_refused(self.units);
                let now = clock.now_ns();
                let retry_after =
                    until_ns.map(|until| Duration::from_nanos(until.saturating_sub(now)));
                Verdict::Denied { code, retry_after }
            }
            Decision::Closed => Verdict::Unavailable { code: Code::Closed },
        };
        self.slot.shade(verdict)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut wakes = Vec::new();
        let mut inner = self.slot.lock();
        let decision = inner.queue.pick_up(self.ticket);
        if decision.is_none() && inner.queue.leave(self.ticket).is_some() {
            self.slot.serve(&mut inner, &mut wakes);
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
        if let Some(Decision::Served { generation, units }) = decision {
            self.slot.release(generation, units);
        }
        self.slot.ring();
    }
}
