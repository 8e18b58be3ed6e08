//! What the driver does to a slot: grants, renewals, hand-backs, refusals, the
//! end of a lease, of a session and of the client. One task calls all of it.
//! Knows neither the session nor the wire.
//! Past 600 lines: everything that moves units under the slot's lock, so that conservation
//! is checked in one place.

use std::task::Waker;

use crate::{
    books::{Lease, Totals},
    kind::BudgetKind,
    lane::{Lane, LaneRule},
    queue::{Decision, Patience, Queue},
    slot::{Inner, Slot, SlotRule},
    sync::Ordering,
    verdict::Code,
    word::{CLOSED, GATED, LEFT_MAX, OFF_PATH, QUEUED, Word},
};

/// What a slot's books say at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The present lease.
    pub current: Option<Totals>,
    /// Ended leases that are not forgotten yet.
    pub ended: Vec<Totals>,
    /// Units that requests in the queue wait for.
    pub waiting_units: u64,
    /// What the first of them costs.
    pub waiting_head: u64,
    /// How many requests wait.
    pub waiting: usize,
    /// The latest moment until which one of the first lane's waits; 0 when unknown.
    pub patient_until_ns: u64,
    /// When the first reservation counts as spent.
    pub reserved_until_ns: Option<u64>,
    /// Overrun that waits for a lease to carry it.
    pub overrun: u64,
    /// All that waits by lane, the highest first.
    pub lanes: Vec<LaneSample>,
}

/// What waits in one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneSample {
    /// Units that its requests wait for.
    pub waiting_units: u64,
    /// What the first of them costs.
    pub waiting_head: u64,
    /// How many they are.
    pub waiting: usize,
    /// The latest moment until which one of them waits; 0 when unknown.
    pub patient_until_ns: u64,
}

/// What became of a stated `granted_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// New units came.
    Units(u64),
    /// Nothing new.
    Known,
    /// Of a generation that has ended here: ignored.
    Stale,
}

impl Slot {
    /// Takes in the total that was granted to a lease, opening its generation if
    /// it is a newer one. `deadline_ns` is when the lease ends.
    pub fn grant(&self, generation: u64, granted_total: u64, deadline_ns: u64) -> Granted {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        let is_current = inner
            .books
            .current
            .as_ref()
            .is_some_and(|lease| lease.generation == generation);
        if !is_current {
            if generation <= inner.books.floor
                || inner.books.is_voided(generation)
                || inner
                    .books
                    .current
                    .as_ref()
                    .is_some_and(|l| l.generation > generation)
            {
                return Granted::Stale;
            }
            self.open_lease(&mut inner, generation, deadline_ns);
        }
        self.extend(&mut inner, deadline_ns);
        let added = self.add(&mut inner, granted_total);
        if Word(self.word.load(Ordering::Acquire)).is_closed() {
            // All of it was handed back just now, and a final report says so.
            self.end_lease(&mut inner);
        }
        self.serve(&mut inner, &mut wakes);
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
        if added == 0 {
            Granted::Known
        } else {
            Granted::Units(added)
        }
    }

    fn open_lease(&self, inner: &mut Inner, generation: u64, deadline_ns: u64) {
        self.end_lease(inner);
        // The word's tag has changed above; only now the deadline may change.
        // Release: a spender that reads this deadline sees the new tag as well,
        // and fails to take from the old lease by it. A plain store, not a
        // maximum: the new lease may end before the old one would have.
        self.deadline.store(deadline_ns, Ordering::Release);
        inner.books.open(Lease {
            is_own: self.counts_by_itself(),
            ..Lease::new(generation, deadline_ns)
        });
    }

    /// Changes the tag and moves what was left into the old lease's returns. The
    /// swap decides about every unit: a spender took it before, or never will.
    fn end_lease(&self, inner: &mut Inner) {
        let left = self.swap_for_next_lease();
        inner.books.end_current(left);
    }

    fn swap_for_next_lease(&self) -> u64 {
        // AcqRel: acquires what spenders did before they took; releases nothing
        // that they could use, since nothing is left. A loop, because the flags
        // must survive and spenders keep changing the count.
        let mut seen = self.word.load(Ordering::Acquire);
        loop {
            match self.word.compare_exchange_weak(
                seen,
                Word(seen).next_lease().0,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Word(seen).left(),
                Err(now) => seen = now,
            }
        }
    }

    fn extend(&self, inner: &mut Inner, deadline_ns: u64) {
        let Some(lease) = &mut inner.books.current else {
            return;
        };
        if deadline_ns > lease.deadline_ns {
            lease.deadline_ns = deadline_ns;
            // Release: see `open_lease`. Only forward: a spender that still reads
            // the earlier one merely stops earlier.
            self.deadline.store(deadline_ns, Ordering::Release);
        }
    }

    fn add(&self, inner: &mut Inner, granted_total: u64) -> u64 {
        let left = self.left();
        let Some(lease) = &mut inner.books.current else {
            return 0;
        };
        if lease.is_own {
            return 0;
        }
        let new = granted_total.saturating_sub(lease.granted);
        if new == 0 {
            return 0;
        }
        // Held units may come back to `left`, so they need room too.
        let taken_room = left + lease.held + lease.parked;
        // Nothing becomes left in a slot that was closed: it goes straight back.
        let is_closed = Word(self.word.load(Ordering::Acquire)).is_closed();
        let is_cooling = inner.gate.cooling_until().is_some();
        let room = if is_closed || is_cooling {
            0
        } else {
            LEFT_MAX.saturating_sub(taken_room)
        };
        let usable = new.min(room);
        lease.granted += new;
        lease.hand_back(new - usable);
        if lease.is_parked {
            lease.parked += usable;
        } else {
            self.raise_left(usable);
        }
        usable
    }

    /// Serves the queue from what is left, in order, and lifts its flag when it
    /// is empty. Called with the lock held whenever units came or the queue's
    /// front changed; wakes are called after the lock was let go.
    pub(crate) fn serve(&self, inner: &mut Inner, wakes: &mut Vec<Waker>) {
        // Through the gate the driver lets them, which knows the time.
        while let Some((ticket, units, _)) = inner.queue.front()
            && !inner.gate.is_shut()
        {
            let Some(generation) = self.set_aside(inner, units) else {
                break;
            };
            inner
                .queue
                .decide(ticket, Decision::Served { generation, units }, wakes);
        }
        if inner.queue.is_empty() {
            // Release: whoever may take again does so after all of the above.
            self.word.fetch_and(!QUEUED, Ordering::AcqRel);
        }
    }

    /// Lets requests through the gate whose turn has come. Says when the next one's
    /// is, if units are there for it.
    pub fn release_due(&self, now_ns: u64) -> Option<u64> {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        if !inner.gate.is_shut() {
            return None;
        }
        let mut next = None;
        if inner.gate.thaw(now_ns) {
            self.unbar(&inner);
            self.serve(&mut inner, &mut wakes);
            while let Some((ticket, units, _)) = inner.queue.front() {
                if self.left() < units {
                    break;
                }
                next = inner.gate.turn_after(now_ns);
                if next.is_some() {
                    break;
                }
                let Some(generation) = self.set_aside(&mut inner, units) else {
                    break;
                };
                inner.gate.passed(units, now_ns);
                inner
                    .queue
                    .decide(ticket, Decision::Served { generation, units }, &mut wakes);
            }
            self.serve(&mut inner, &mut wakes);
        } else {
            next = inner.gate.cooling_until();
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
        next
    }

    /// The key cools down: what is left is handed back, and until `until_ns` nothing is
    /// admitted, whatever comes.
    pub fn cool(&self, until_ns: u64) {
        let mut inner = self.lock();
        inner.gate.cool(until_ns);
        // First the bar, then what is left: in the word's order a take is before it, or
        // finds it.
        self.word.fetch_or(GATED, Ordering::AcqRel);
        let Some(lease) = &mut inner.books.current else {
            return;
        };
        if lease.is_parked {
            let parked = std::mem::take(&mut lease.parked);
            lease.hand_back(parked);
        }
        let left = self.left();
        if self.lower_left(left) {
            lease.hand_back(left);
        }
    }

    /// The key cools down no longer, whatever was said.
    pub fn end_cool_down(&self) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        if inner.gate.cooling_until().is_none() {
            return;
        }
        inner.gate.end_cool_down();
        self.unbar(&inner);
        self.serve(&mut inner, &mut wakes);
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Until when the key cools down, if it does.
    pub(crate) fn cooling_until(&self) -> Option<u64> {
        if !self.is_gated() {
            return None;
        }
        self.lock().gate.cooling_until()
    }

    /// The session was renewed: its leases may be spent until `deadline_ns`.
    /// `now_ns` decides whether units that were put aside come back.
    pub fn renew(&self, deadline_ns: u64, now_ns: u64) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        self.extend(&mut inner, deadline_ns);
        let unparked = match &mut inner.books.current {
            Some(lease) if lease.is_parked && now_ns < lease.deadline_ns => {
                lease.is_parked = false;
                Some(lease.parked)
            }
            _ => None,
        };
        if let Some(units) = unparked {
            // Left is raised before parked is lowered.
            self.raise_left(units);
            if let Some(lease) = &mut inner.books.current {
                lease.parked = 0;
            }
            self.serve(&mut inner, &mut wakes);
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Puts what is left aside if the lease's deadline has passed, so that no
    /// more units are forfeited by spenders who come too late.
    pub fn park_if_late(&self, now_ns: u64) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        if self.park(&mut inner, now_ns) {
            Self::wake_watchers(&mut inner, &mut wakes);
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// The same for somebody who holds the lock; says whether it was late.
    pub(crate) fn park(&self, inner: &mut Inner, now_ns: u64) -> bool {
        let Some(lease) = &mut inner.books.current else {
            return false;
        };
        if now_ns < lease.deadline_ns {
            return false;
        }
        if lease.is_parked {
            return true;
        }
        // The tag changes too: it costs nothing, and a spender that was asleep
        // cannot come back to units that were put aside and returned meanwhile.
        // Under the lock nobody sees the units between left and parked.
        lease.parked = self.swap_for_next_lease();
        lease.is_parked = true;
        true
    }

    /// Hands back up to `units` of what is left, nothing while requests wait.
    /// Returns how many.
    pub fn give_back(&self, units: u64) -> u64 {
        let mut inner = self.lock();
        if !inner.queue.is_empty() {
            return 0;
        }
        let Some(lease) = &mut inner.books.current else {
            return 0;
        };
        if lease.is_parked {
            let back = units.min(lease.parked);
            lease.parked -= back;
            lease.hand_back(back);
            return back;
        }
        loop {
            let back = units.min(self.left());
            // A spender may be faster; then there is less to give back.
            if back == 0 || self.lower_left(back) {
                lease.hand_back(back);
                return back;
            }
        }
    }

    /// Answers a recall: hands back towards a target for `returned_total` of one
    /// generation, and nothing while requests wait. Unless the `whole` is asked for,
    /// no more than half of what is left (rounded up): the target is half of what the
    /// coordinator believes to be left, which may be more than there is.
    pub fn give_back_to(&self, generation: u64, returned_total_target: u64, whole: bool) -> u64 {
        let missing = {
            let inner = self.lock();
            let lease = inner
                .books
                .current
                .as_ref()
                .filter(|l| l.generation == generation);
            lease.map_or(0, |lease| {
                let there = self.left() + lease.parked;
                let most = if whole { there } else { there.div_ceil(2) };
                returned_total_target
                    .saturating_sub(lease.returned)
                    .min(most)
            })
        };
        // Only the driver raises `returned` of a present lease of spent units, so the
        // lock may be let go in between.
        let back = self.give_back(missing);
        self.owe(generation, returned_total_target);
        back
    }

    /// Permits that are in use cannot be handed back now. Others may wait for them
    /// just when they always are: so they go back when they are dropped.
    fn owe(&self, generation: u64, returned_total_target: u64) {
        if Word(self.word.load(Ordering::Acquire)).is_off_path() {
            self.lock().recalled = Some((generation, returned_total_target));
        }
    }

    /// Ends the present lease: all that is left of it is handed back, and a
    /// final report of it is due. False, and nothing is done, while anything is
    /// held of it: no final report could be made, and the coordinator would go
    /// on adding to a lease that has ended here.
    pub fn end(&self) -> bool {
        let mut inner = self.lock();
        if inner.books.current.as_ref().is_some_and(|l| l.held > 0) {
            return false;
        }
        self.end_lease(&mut inner);
        true
    }

    /// Takes over a lease that the coordinator granted in a message that never
    /// arrived and that is too old to be used: it is handed back.
    pub fn adopt_unseen(&self, generation: u64, granted_total: u64, spent_total: u64) {
        let mut inner = self.lock();
        inner
            .books
            .adopt_unseen(generation, granted_total, spent_total);
    }

    /// Ends every lease because the session is gone. Appends what was spent of
    /// each generation.
    pub fn void(&self, settled: &mut Vec<(u64, u64)>) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        // Reservations were admitted, and nobody will hear of their outcome.
        Self::spend_reserved(&mut inner);
        let left = self.swap_for_next_lease();
        inner.books.void(left, settled);
        Self::wake_watchers(&mut inner, &mut wakes);
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Ends the slot: what is left is handed back, who waits is told, what is
    /// reserved counts as spent, what is held otherwise can only be released.
    pub fn close(&self) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        // The flag and the tag change in one swap, so a unit was taken before it
        // or never. AcqRel as for any other end of a lease.
        let mut seen = self.word.load(Ordering::Acquire);
        let left = loop {
            let closed = Word(seen).next_lease().0 | CLOSED;
            match self
                .word
                .compare_exchange_weak(seen, closed, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break Word(seen).left(),
                Err(now) => seen = now,
            }
        };
        Self::spend_reserved(&mut inner);
        inner.books.end_current(left);
        Self::wake_watchers(&mut inner, &mut wakes);
        let Inner { queue, asking, .. } = &mut *inner;
        for queue in [queue, asking] {
            queue.decide_where(|_| true, Decision::Closed, &mut wakes);
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Takes an idle slot out of service for good. False if it still has
    /// anything to account for or anybody waiting.
    pub fn evict(&self) -> bool {
        let inner = self.lock();
        if !inner.is_empty() {
            return false;
        }
        // Before the flag in the word: see `is_evicted`.
        self.mark_evicted();
        self.word.fetch_or(CLOSED, Ordering::AcqRel);
        true
    }

    /// The coordinator's no. Refuses the queue, except requests that wait for
    /// capacity, and everything that comes until `until_ns`. `open_ended`: nobody is told
    /// when to try again. Then those who wait for capacity go on only after a `Limit`: an
    /// operator may add units.
    pub fn refuse(&self, code: Code, until_ns: u64, open_ended: bool) {
        self.refuse_from(Lane(0), 1, code, until_ns, open_ended);
    }

    /// The coordinator's no to a lane and those below it; the lanes above go on, and so do
    /// requests that need less than `least` units on top of what is left, if as many are
    /// free.
    pub fn refuse_from(&self, lane: Lane, least: u64, code: Code, until_ns: u64, open_ended: bool) {
        let for_ever = open_ended && code != Code::Limit;
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        // Before the queue is looked at: nobody joins it between the two, since
        // that takes the lock.
        let lanes = inner.queue.lanes();
        let first = lane.place(lanes);
        self.store_refusal((first, lanes), least, code, until_ns, open_ended);
        self.serve(&mut inner, &mut wakes);
        // Behind one that stays and cannot be had nobody is served.
        let mut is_blocked = false;
        let refused: Vec<u64> = inner
            .queue
            .iter()
            .filter(|(place, ..)| *place >= first)
            .filter(|(.., waiting)| {
                let may_be_had = !is_blocked && self.may_be_had(waiting.units);
                let stays = waiting.patience != Patience::OneAnswer && !for_ever;
                is_blocked |= stays && !may_be_had;
                !stays && !may_be_had
            })
            .map(|(_, ticket, _)| ticket)
            .collect();
        let decision = Decision::Refused {
            code,
            until_ns: (!open_ended).then_some(until_ns),
        };
        self.refuse_all(&mut inner, refused, decision, &mut wakes);
        // Whose units are here is refused nothing.
        let left = self.left();
        let asking = inner.asking.iter();
        let refused: Vec<u64> = asking
            .filter(|(place, ..)| *place >= first)
            .filter(|(.., waiting)| waiting.patience == Patience::OneAnswer || for_ever)
            .filter(|(.., waiting)| waiting.units > left)
            .map(|(_, ticket, _)| ticket)
            .collect();
        for ticket in refused {
            inner.asking.decide(ticket, decision, &mut wakes);
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }

    fn refuse_all(
        &self,
        inner: &mut Inner,
        refused: Vec<u64>,
        decision: Decision,
        wakes: &mut Vec<Waker>,
    ) {
        for ticket in refused {
            // One that was behind a refused request may fit what is left.
            self.serve(inner, wakes);
            inner.queue.decide(ticket, decision, wakes);
        }
        self.serve(inner, wakes);
    }

    /// The coordinator says that a cost is above the limit: refuses waiting
    /// requests above the limit that is known, or else the first one, which the
    /// ask was for.
    pub fn refuse_impossible(&self) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        let first = inner.queue.front().or_else(|| inner.asking.front());
        let least = match (self.known_limit(), first) {
            (Some(limit), _) => limit.saturating_add(1),
            (None, Some((_, units, _))) => units,
            (None, None) => return,
        };
        self.refuse_above(&mut inner, least, &mut wakes);
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }

    fn refuse_above(&self, inner: &mut Inner, least: u64, wakes: &mut Vec<Waker>) {
        let impossible: Vec<u64> = inner
            .queue
            .iter()
            .filter(|(.., waiting)| waiting.units >= least)
            .map(|(_, ticket, _)| ticket)
            .collect();
        let decision = Decision::Refused {
            code: Code::CostAboveLimit,
            until_ns: None,
        };
        if !impossible.is_empty() {
            self.refuse_all(inner, impossible, decision, wakes);
        }
        inner
            .asking
            .decide_where(|waiting| waiting.units >= least, decision, wakes);
    }

    /// Ends local refusals: units came, or may come.
    pub fn lift_refusal(&self) {
        let inner = self.lock();
        if inner.gate.cooling_until().is_none() {
            self.clear_refusal(inner.queue.lanes());
        }
    }

    /// Units that requests of lanes above this one need on top of what is left; 1 at
    /// least if any waits.
    pub(crate) fn missing_above(&self, lane: Lane) -> u64 {
        if lane == Lane(0) {
            return 0;
        }
        let inner = self.lock();
        let first = lane.place(inner.queue.lanes());
        let above = inner.queue.iter().filter(|(place, ..)| *place < first);
        let units = above.fold(0_u64, |sum, (.., waiting)| {
            sum.saturating_add(waiting.units)
        });
        units.saturating_sub(self.left()).max(units.min(1))
    }

    /// Takes in the lanes of the policy, the highest first.
    pub fn set_lanes(&self, rules: &[LaneRule]) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        self.store_lanes(&mut inner, rules);
        // Another request may be the first now.
        self.serve(&mut inner, &mut wakes);
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Takes in the policy. Refuses waiting requests that can never be admitted.
    pub fn set_rule(&self, rule: SlotRule) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        self.set_path(&mut inner, rule.kind);
        self.store_rule(rule);
        self.mark_kind(rule.kind);
        let lease = inner.books.current.as_ref();
        if lease.is_some_and(|lease| lease.is_own != self.counts_by_itself()) {
            // Another kind of budget: what is here was granted in another way, and
            // nothing of it may be spent any more.
            self.end_lease(&mut inner);
        }
        inner.gate.set_pace(rule.release_every_ns);
        if inner.gate.is_shut() {
            self.word.fetch_or(GATED, Ordering::AcqRel);
        } else {
            self.unbar(&inner);
            self.serve(&mut inner, &mut wakes);
        }
        self.refuse_above(&mut inner, rule.limit.saturating_add(1), &mut wakes);
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Keeps spenders off units that are permits, and permits off units that are
    /// spent: what is left of the other kind goes back.
    fn set_path(&self, inner: &mut Inner, kind: BudgetKind) {
        let has_permits = kind == BudgetKind::Concurrency;
        let had_permits = self.kind() == Some(BudgetKind::Concurrency);
        if has_permits == had_permits {
            return;
        }
        // AcqRel, both: who is on the path took before, or finds the flag; and who
        // finds no flag finds nothing left of the permits.
        if has_permits {
            self.word.fetch_or(OFF_PATH, Ordering::AcqRel);
        }
        self.return_all(inner);
        if had_permits {
            self.word.fetch_and(!OFF_PATH, Ordering::AcqRel);
        }
    }

    fn return_all(&self, inner: &mut Inner) {
        let Some(lease) = &mut inner.books.current else {
            return;
        };
        let parked = std::mem::take(&mut lease.parked);
        lease.hand_back(parked);
        loop {
            let left = self.left();
            // A spender may be faster; then there is less to give back. Nothing can
            // be taken off a closed slot, and nothing is left there.
            if left == 0 || self.lower_left(left) {
                lease.hand_back(left);
                return;
            }
        }
    }

    /// A report that told of so much overrun was acknowledged.
    pub(crate) fn note_overrun(&self, generation: u64, total: u64) {
        self.lock().books.note_overrun(generation, total);
    }

    /// There is nobody to charge overrun to that no lease carries.
    pub(crate) fn drop_overrun(&self) {
        self.lock().books.overrun = 0;
    }

    /// Forgets an ended generation whose final report was acknowledged.
    pub fn forget(&self, generation: u64) {
        self.lock().books.forget(generation);
    }

    /// The books as of now. The clock must be read *after* this to date what was
    /// spent: a unit that is no longer left was taken before.
    pub fn sample(&self, sample: &mut Sample) {
        let inner = self.lock();
        // With the lock held nobody but spenders moves anything, and they only
        // lower what is left. So what counts as spent here was really taken.
        let left = self.left();
        sample.current = inner.books.totals(left, &mut sample.ended);
        sample.reserved_until_ns = inner.reserved.first_key_value().map(|((at, _), _)| *at);
        sample.overrun = inner.books.overrun;
        let Inner { queue, asking, .. } = &*inner;
        // Who asks here and waits elsewhere is in need only if too few are left.
        let is_asked = asking.units() > left || !(asking.is_empty() || queue.is_empty());
        let asking = is_asked.then_some(asking);
        // Who only waits for its turn needs nothing more.
        let is_slow = inner.gate.is_paced() && queue.units() <= left;
        let queues = [(!is_slow).then_some(queue), asking];
        let all = || queues.into_iter().flatten();
        sample.waiting_units = all().map(Queue::units).fold(0, u64::saturating_add);
        sample.waiting = all().map(Queue::len).sum();
        sample.lanes.clear();
        sample.lanes.resize(queue.lanes(), LaneSample::default());
        for (place, _, waiting) in all().flat_map(Queue::iter) {
            let Some(lane) = sample.lanes.get_mut(place) else {
                continue;
            };
            if lane.waiting == 0 {
                lane.waiting_head = waiting.units;
            }
            lane.waiting += 1;
            lane.waiting_units = lane.waiting_units.saturating_add(waiting.units);
            if let Patience::Until(until) = waiting.patience {
                lane.patient_until_ns = lane.patient_until_ns.max(until);
            }
        }
        let first = sample.lanes.iter().find(|lane| lane.waiting > 0);
        let first = first.copied().unwrap_or_default();
        sample.waiting_head = first.waiting_head;
        sample.patient_until_ns = first.patient_until_ns;
    }

    /// Whether nothing has to be accounted for and nobody waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lock().is_empty()
    }
}
