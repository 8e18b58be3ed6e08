//! One request that spends several keys: all of them or none. Knows neither the
//! keys' texts nor a runtime, and trusts its caller for the order. Past 600 lines with
//! the argument why nobody blocks anybody for good.
//!
//! # Take, then look, then commit
//!
//! A step locks all slots. Units are taken from one key after another and *held*:
//! they are neither left nor spent, and a report says so. Once the last one is
//! taken the clock is read, once; each lease must be valid then. Only then is
//! anything decided, with all locks still held: no sample, no recall and no close
//! sees a part of it, and no unit that was reported spent ever comes back. Each of
//! these units was taken before that look, as a single spend's is, so the one look
//! judges them all.
//!
//! # Nobody waits for ever
//!
//! The caller lists the keys in one order that is the same for all requests, in
//! this process and in every other (the keys' texts). A request waits in the queue
//! of one key only, the first that it lacks, and holds nothing of any key after
//! that one. Of the others that it lacks it *asks*: their drivers hear of it in the
//! same moment, so that one message asks for everything, but it stands in nobody's
//! way there and takes nothing.
//!
//! So of all requests that wait, whichever gateways they are in, look at one that
//! waits for the last key in that order. Units of that key are held by nobody who
//! waits: whoever holds some has all that comes before it, and would wait for a
//! later one. They are spent, or free, or left somewhere, from where a recall
//! brings them. The request gets them or is refused; then the same is true of the
//! others. A request gives nothing back that it holds until it is answered, so it
//! waits once for each key at most, and two with crossed sets cannot push each
//! other to and fro.
//!
//! A refusal, a time-out and a drop release everything, under all locks at once.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    clock::Clock,
    kind::BudgetKind,
    lane::Lane,
    queue::{Decision, Patience},
    slot::{Inner, Miss, Slot},
    sync::{MutexGuard, Ordering, taken_before_look},
    verdict::{Code, Verdict},
    waiting::Use,
    word::QUEUED,
};

/// What a request for several keys is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a verdict that nobody reads lets every request through"]
pub enum Joint {
    /// All of it is allowed: `Admitted`; `Degraded` if the failure mode let a part
    /// through; else `Shadowed` if shadow mode did.
    Allowed(Verdict),
    /// Nothing of it was spent.
    Refused {
        /// Which part is to blame, as the request listed them.
        place: usize,
        /// Why.
        verdict: Verdict,
    },
}

/// How one part of the request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing is done about it yet.
    Open,
    /// It was asked for, under this ticket.
    Asks(u64),
    /// It waits in the queue, under this ticket.
    Waits(u64),
    /// Its units are held, of this lease.
    Held(u64),
    /// There is nobody to ask: the failure mode answers for it, for this reason.
    Alone(Code),
    /// It would be refused so, and is let through: shadow mode.
    Shadowed(Verdict),
}

/// A request for units of several keys. Dropped, it gives back what it holds.
#[derive(Debug)]
#[must_use = "a request that is dropped gives back what it holds"]
pub struct Together {
    parts: Vec<(Arc<Slot>, u64)>,
    /// The lane that the request is in at each of them.
    lanes: Vec<Lane>,
    standings: Vec<Standing>,
    patience: Patience,
    is_done: bool,
}

/// What a step may do about units that are not here.
#[derive(Clone, Copy)]
enum Then<'a> {
    /// Leave it at that, and have the driver ask.
    Miss,
    /// Wait for them, and wake this task.
    Wait(&'a Waker),
    /// The time is up.
    GiveUp,
}

/// What a step did besides, to be done once the locks are let go.
#[derive(Default)]
struct Aftermath {
    wakes: Vec<Waker>,
    rings: Vec<usize>,
}

type Guards<'a> = [MutexGuard<'a, Inner>];

impl Together {
    /// A request for the units of each slot, in the lowest lane of each. No slot may be
    /// listed twice, and all requests must list theirs in the same order; parts of no
    /// units are met.
    pub fn new(parts: Vec<(Arc<Slot>, u64)>, patience: Patience) -> Self {
        let standings = vec![Standing::Open; parts.len()];
        let lanes = vec![Lane::LOWEST; parts.len()];
        debug_assert!(
            parts.iter().enumerate().all(|(place, (slot, _))| {
                parts[..place]
                    .iter()
                    .all(|(other, _)| !Arc::ptr_eq(slot, other))
            }),
            "a slot is listed twice"
        );
        Self {
            parts,
            lanes,
            standings,
            patience,
            is_done: false,
        }
    }

    /// The same request in these lanes, one for each part.
    pub fn in_lanes(mut self, lanes: impl IntoIterator<Item = Lane>) -> Self {
        for (lane, stated) in self.lanes.iter_mut().zip(lanes) {
            *lane = stated;
        }
        self
    }

    /// Spends what is here, without waiting. `Empty` names the first key that has
    /// too little; all that have are asked for.
    pub fn try_spend(mut self, clock: &impl Clock) -> Joint {
        match self.step(clock, Then::Miss) {
            Poll::Ready(joint) => joint,
            // Not reached: a step waits only if it may.
            Poll::Pending => self.refused(0, Verdict::Empty),
        }
    }

    /// The answer, once there is one.
    pub fn poll(&mut self, context: &mut Context<'_>, clock: &impl Clock) -> Poll<Joint> {
        self.step(clock, Then::Wait(context.waker()))
    }

    /// Stops waiting because the time is up: takes what has come meanwhile, or
    /// says what the first key that is lacking would say.
    pub fn give_up(mut self, clock: &impl Clock) -> Joint {
        match self.step(clock, Then::GiveUp) {
            Poll::Ready(joint) => joint,
            Poll::Pending => self.refused(0, Verdict::Empty),
        }
    }

    /// How long it waits for one answer each at most: as long as the most patient
    /// of its keys lets a request wait.
    #[must_use]
    pub fn max_wait_ns(&self) -> u64 {
        let parts = self.parts.iter().zip(&self.lanes);
        let waits = parts.map(|((slot, _), lane)| slot.max_wait_ns_in(*lane));
        waits.max().unwrap_or(0)
    }

    fn refused(&self, place: usize, verdict: Verdict) -> Joint {
        Joint::Refused { place, verdict }
    }

    fn step(&mut self, clock: &impl Clock, then: Then<'_>) -> Poll<Joint> {
        let mut after = Aftermath::default();
        let mut work = Work {
            parts: &self.parts,
            lanes: &self.lanes,
            standings: &mut self.standings,
            patience: self.patience,
        };
        let answer = {
            let mut guards: Vec<_> = self.parts.iter().map(|(slot, _)| slot.lock()).collect();
            let answer = work.step(&mut guards, clock, then, &mut after);
            if answer.is_ready() {
                work.release_all(&mut guards, &mut after);
            }
            answer
        };
        self.is_done = answer.is_ready();
        self.follow_up(after);
        answer
    }

    fn follow_up(&self, after: Aftermath) {
        after.wakes.into_iter().for_each(Waker::wake);
        let slots = after.rings.into_iter().filter_map(|at| self.parts.get(at));
        let mut slots = slots.map(|(slot, _)| slot).peekable();
        // In one go, so that one message tells of all.
        while let Some(first) = slots.peek().map(|slot| Arc::clone(&slot.line)) {
            let same = std::iter::from_fn(|| slots.next_if(|slot| Arc::ptr_eq(&slot.line, &first)));
            first.ring_all(same.map(|slot| slot.index()));
        }
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut after = Aftermath::default();
        let mut work = Work {
            parts: &self.parts,
            lanes: &self.lanes,
            standings: &mut self.standings,
            patience: self.patience,
        };
        {
            let mut guards: Vec<_> = self.parts.iter().map(|(slot, _)| slot.lock()).collect();
            work.release_all(&mut guards, &mut after);
        }
        self.follow_up(after);
    }
}

/// The request while all locks are held.
struct Work<'a> {
    parts: &'a [(Arc<Slot>, u64)],
    lanes: &'a [Lane],
    standings: &'a mut [Standing],
    patience: Patience,
}

impl Work<'_> {
    fn step(
        &mut self,
        guards: &mut Guards<'_>,
        clock: &impl Clock,
        then: Then<'_>,
        after: &mut Aftermath,
    ) -> Poll<Joint> {
        if let Some(joint) = self.pick_up(guards, clock) {
            return Poll::Ready(joint);
        }
        loop {
            let answer = match self.take(guards, clock) {
                // None if some lease had ended: its part is open again.
                None => self.look(guards, clock, after).map(Poll::Ready),
                // None if one part is the failure mode's: on with the others.
                Some(short) => self.miss(short, guards, clock, then, after),
            };
            if let Some(answer) = answer {
                return answer;
            }
        }
    }

    /// Picks up what was decided since the last step. A refusal of one part
    /// refuses all.
    fn pick_up(&mut self, guards: &mut Guards<'_>, clock: &impl Clock) -> Option<Joint> {
        let mut worst = Worst::default();
        for (place, standing) in self.standings.iter_mut().enumerate() {
            let (slot, units) = &self.parts[place];
            let decision = match *standing {
                Standing::Waits(ticket) => guards[place].queue.pick_up(ticket),
                Standing::Asks(ticket) => guards[place].asking.pick_up(ticket),
                _ => None,
            };
            match decision {
                None => {}
                Some(Decision::Served { generation, .. }) => {
                    *standing = Standing::Held(generation);
                }
                Some(Decision::Refused { code, until_ns }) => {
                    *standing = Standing::Open;
                    slot.count_refused(*units);
                    let now = clock.now_ns();
                    let retry_after =
                        until_ns.map(|until| Duration::from_nanos(until.saturating_sub(now)));
                    let verdict = Verdict::Denied { code, retry_after };
                    *standing = worst.note(place, slot, verdict);
                }
                Some(Decision::Closed) => {
                    *standing = Standing::Open;
                    let verdict = Verdict::Unavailable { code: Code::Closed };
                    *standing = worst.note(place, slot, verdict);
                }
            }
        }
        worst.into_joint()
    }

    /// Takes one part after another, up to the first of which there is too little.
    fn take(&mut self, guards: &mut Guards<'_>, clock: &impl Clock) -> Option<usize> {
        for (place, (slot, units)) in self.parts.iter().enumerate() {
            let inner = &mut *guards[place];
            let ticket = match self.standings[place] {
                Standing::Held(_) | Standing::Alone(_) | Standing::Shadowed(_) => continue,
                _ if *units == 0 => continue,
                Standing::Waits(_) => return Some(place),
                Standing::Asks(ticket) => Some(ticket),
                Standing::Open => None,
            };
            if slot.wrong_kind(Use::Spend).is_some() {
                return Some(place);
            }
            let Some(generation) = slot.take_in_turn(inner, self.lanes[place], *units, clock)
            else {
                return Some(place);
            };
            self.standings[place] = Standing::Held(generation);
            ticket.and_then(|ticket| inner.asking.leave(ticket));
        }
        None
    }

    /// Everything is taken: now the look. None if a lease has ended under its
    /// units; they were given back.
    fn look(
        &mut self,
        guards: &mut Guards<'_>,
        clock: &impl Clock,
        after: &mut Aftermath,
    ) -> Option<Joint> {
        taken_before_look();
        let now = clock.now_ns();
        let mut is_late = false;
        for (place, (slot, units)) in self.parts.iter().enumerate() {
            let Standing::Held(generation) = self.standings[place] else {
                continue;
            };
            let inner = &mut *guards[place];
            let refusal = if slot.is_closed() {
                Some(Verdict::Unavailable { code: Code::Closed })
            } else {
                slot.wrong_kind(Use::Spend)
            };
            if let Some(verdict) = refusal {
                if !slot.is_shadow() {
                    return Some(Joint::Refused { place, verdict });
                }
                self.standings[place] = Standing::Shadowed(verdict);
                slot.give_up_held(inner, generation, *units, &mut after.wakes);
                continue;
            }
            if !inner.books.is_valid(generation, now) {
                self.standings[place] = Standing::Open;
                // Put aside first: nothing of it may be left once more.
                slot.park(inner, now);
                slot.give_up_held(inner, generation, *units, &mut after.wakes);
                is_late = true;
            }
        }
        if is_late {
            return None;
        }
        let mut verdict = Verdict::Admitted;
        for (place, (slot, units)) in self.parts.iter().enumerate() {
            let answer = match self.standings[place] {
                Standing::Alone(_) if slot.kind() == Some(BudgetKind::Unlimited) => {
                    slot.degrade(*units)
                }
                Standing::Alone(code) => slot.fail(*units, code, clock),
                Standing::Shadowed(refusal) => refusal,
                _ => continue,
            };
            match slot.shade(answer) {
                Verdict::Degraded => verdict = Verdict::Degraded,
                shadowed @ Verdict::Shadowed { .. } if verdict == Verdict::Admitted => {
                    verdict = shadowed;
                }
                answer if answer.is_allowed() => {}
                verdict => return Some(Joint::Refused { place, verdict }),
            }
        }
        for (place, (slot, units)) in self.parts.iter().enumerate() {
            if let Standing::Held(generation) = self.standings[place] {
                let is_committed = guards[place].books.commit(generation, *units, now);
                debug_assert!(is_committed, "it was valid a moment ago, under the lock");
                self.standings[place] = Standing::Open;
                if verdict == Verdict::Admitted {
                    verdict = slot.admitted();
                }
                // A spend like any other: the driver dates it, and asks ahead.
                if slot.is_at_bell(slot.left()) {
                    after.rings.push(place);
                }
            }
        }
        Some(Joint::Allowed(verdict))
    }

    /// What becomes of the request when there is too little at one place. None:
    /// go on taking.
    fn miss(
        &mut self,
        short: usize,
        guards: &mut Guards<'_>,
        clock: &impl Clock,
        then: Then<'_>,
        after: &mut Aftermath,
    ) -> Option<Poll<Joint>> {
        if matches!(then, Then::GiveUp) {
            let (slot, units) = &self.parts[short];
            if !slot.is_closed() && slot.is_left_alone(self.lanes[short], clock) {
                self.leave(short, guards, after);
                let is_up = slot.line.is_up();
                let code = if is_up {
                    Code::NoAnswer
                } else {
                    Code::Disconnected
                };
                self.standings[short] = Standing::Alone(code);
                return None;
            }
            let verdict = slot.time_out(self.lanes[short], *units, clock);
            if slot.is_shadow() {
                self.leave(short, guards, after);
                self.standings[short] = Standing::Shadowed(verdict);
                return None;
            }
            let place = short;
            return Some(Poll::Ready(Joint::Refused { place, verdict }));
        }
        if let Standing::Asks(ticket) = self.standings[short] {
            // Its turn has come: from now on it waits.
            guards[short].asking.leave(ticket);
            self.standings[short] = Standing::Open;
        }
        // What each key would say to this part alone.
        let mut worst = Worst::default();
        let mut lacking = Vec::new();
        for (place, (slot, units)) in self.parts.iter().enumerate().skip(short) {
            let lane = self.lanes[place];
            let is_first = guards[place].queue.len_down_to(lane) == 0;
            let is_here = is_first && *units <= slot.left();
            let is_met = *units == 0 || (is_here && place > short);
            if is_met || self.standings[place] != Standing::Open {
                continue;
            }
            let miss = slot.miss(lane, *units, clock);
            if slot.counts_by_itself() && !matches!(miss, Miss::Answer(_) | Miss::Refused(_)) {
                // Nobody ever waits for it: see `settle_own`.
                if !slot.is_asked(lane) {
                    after.rings.push(place);
                }
                self.standings[place] = match miss {
                    Miss::Alone => Standing::Alone(Code::Disconnected),
                    _ => slot.own_answer(&guards[place]).map_or(
                        Standing::Alone(Code::NoAnswer),
                        |verdict| {
                            slot.count_refused(*units);
                            worst.note(place, slot, verdict)
                        },
                    ),
                };
                continue;
            }
            match miss {
                Miss::Answer(verdict) => self.standings[place] = worst.note(place, slot, verdict),
                // Who waits for capacity joins the queue in spite of a refusal.
                Miss::Refused(verdict)
                    if verdict.may_end()
                        && matches!(self.patience, Patience::Until(_))
                        && matches!(then, Then::Wait(_)) =>
                {
                    lacking.push(place);
                }
                Miss::Refused(verdict) => {
                    slot.count_refused(*units);
                    self.standings[place] = worst.note(place, slot, verdict);
                }
                // The connection may be back before the request's time is up.
                Miss::Alone
                    if matches!(then, Then::Wait(_))
                        && slot.may_outlast_outage(lane, self.patience, clock) =>
                {
                    lacking.push(place);
                }
                Miss::Alone => self.standings[place] = Standing::Alone(Code::Disconnected),
                Miss::Ask => lacking.push(place),
            }
        }
        if let Some(joint) = worst.into_joint() {
            return Some(Poll::Ready(joint));
        }
        if matches!(
            self.standings[short],
            Standing::Alone(_) | Standing::Shadowed(_)
        ) {
            return None;
        }
        if let Then::Wait(waker) = then {
            return self.join(short, lacking, guards, waker, after);
        }
        let verdict = Verdict::Empty;
        for place in lacking {
            let (slot, units) = &self.parts[place];
            slot.count_missed(*units);
            if !slot.is_asked(self.lanes[place]) {
                after.rings.push(place);
            }
            if slot.is_shadow() {
                self.standings[place] = Standing::Shadowed(verdict);
            }
        }
        let place = short;
        let is_let_through = matches!(self.standings[short], Standing::Shadowed(_));
        (!is_let_through).then_some(Poll::Ready(Joint::Refused { place, verdict }))
    }

    /// Waits in the queue of the first part that is lacking, and asks for the
    /// others. None: that part is let through after all, so go on taking.
    fn join(
        &mut self,
        short: usize,
        lacking: Vec<usize>,
        guards: &mut Guards<'_>,
        waker: &Waker,
        after: &mut Aftermath,
    ) -> Option<Poll<Joint>> {
        for (place, (slot, units)) in self.parts.iter().enumerate().skip(short) {
            let lane = self.lanes[place];
            let Inner { queue, asking, .. } = &mut *guards[place];
            if lacking.contains(&place) {
                let line = if place == short { queue } else { asking };
                // Lower lanes take no place from higher ones.
                if line.len_down_to(lane) >= slot.waiters_max() {
                    self.standings[place] = Standing::Open;
                    slot.count_refused(*units);
                    let retry_after = Some(Duration::from_nanos(slot.max_wait_ns_in(lane)));
                    let code = Code::TooManyWaiters;
                    let verdict = Verdict::Denied { code, retry_after };
                    if !slot.is_shadow() {
                        return Some(Poll::Ready(Joint::Refused { place, verdict }));
                    }
                    self.standings[place] = Standing::Shadowed(verdict);
                    if place == short {
                        return None;
                    }
                    continue;
                }
                let ticket = line.push(lane, *units, self.patience);
                if place == short {
                    self.standings[place] = Standing::Waits(ticket);
                    // From here on nobody overtakes. What is left was looked at with
                    // the lock held, and only shrank since. AcqRel as in `join_queue`.
                    slot.word.fetch_or(QUEUED, Ordering::AcqRel);
                } else {
                    self.standings[place] = Standing::Asks(ticket);
                }
                // See `Slot::set_asked`: the driver looks under the lock that is
                // held here, before or after this.
                if guards[place].gate.is_shut() || !slot.is_asked(lane) {
                    after.rings.push(place);
                }
            }
            let Inner { queue, asking, .. } = &mut *guards[place];
            match self.standings[place] {
                Standing::Waits(ticket) => queue.wake_with(ticket, waker),
                Standing::Asks(ticket) => asking.wake_with(ticket, waker),
                _ => {}
            }
        }
        Some(Poll::Pending)
    }

    /// Leaves the queue at one place, where nothing was decided.
    fn leave(&mut self, place: usize, guards: &mut Guards<'_>, after: &mut Aftermath) {
        let (slot, units) = &self.parts[place];
        let inner = &mut *guards[place];
        let standing = std::mem::replace(&mut self.standings[place], Standing::Open);
        match standing {
            Standing::Open | Standing::Alone(_) | Standing::Shadowed(_) => {}
            Standing::Asks(ticket) => {
                inner.asking.pick_up(ticket);
                inner.asking.leave(ticket);
                after.rings.push(place);
            }
            Standing::Waits(ticket) => {
                inner.queue.leave(ticket);
                if let Some(Decision::Served { generation, units }) = inner.queue.pick_up(ticket) {
                    slot.give_up_held(inner, generation, units, &mut after.wakes);
                }
                // Whoever is next may fit what is left.
                slot.serve(inner, &mut after.wakes);
                after.rings.push(place);
            }
            Standing::Held(generation) => {
                slot.give_up_held(inner, generation, *units, &mut after.wakes);
            }
        }
    }

    fn release_all(&mut self, guards: &mut Guards<'_>, after: &mut Aftermath) {
        for place in 0..self.parts.len() {
            self.leave(place, guards, after);
        }
    }
}

/// Of several refusals the one that stands longest.
#[derive(Default)]
struct Worst(Option<(usize, Verdict)>);

impl Worst {
    /// How the part stands whose answer this is.
    fn note(&mut self, place: usize, slot: &Slot, verdict: Verdict) -> Standing {
        if slot.is_shadow() {
            return Standing::Shadowed(verdict);
        }
        let rank = |verdict: &Verdict| verdict.retry_after().unwrap_or(Duration::MAX);
        if self
            .0
            .is_none_or(|(_, known)| rank(&verdict) > rank(&known))
        {
            self.0 = Some((place, verdict));
        }
        Standing::Open
    }

    fn into_joint(self) -> Option<Joint> {
        self.0
            .map(|(place, verdict)| Joint::Refused { place, verdict })
    }
}
