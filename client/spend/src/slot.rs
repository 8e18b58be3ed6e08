//! One key's spending state: the fast path, and the answers to those it cannot
//! serve. Knows neither the key's text nor the session nor when to ask.
//! Past 600 lines: all atomics of a key, whose orderings are argued against each other.

use std::{collections::BTreeMap, sync::Arc, task::Waker, time::Duration};

use crate::{
    books::Books,
    clock::Clock,
    failure::{Allowance, FailureMode},
    gate::Gate,
    kind::BudgetKind,
    lane::{LANES_MAX, Lane, LaneRule},
    line::Line,
    peek::Quota,
    queue::Queue,
    reserve::Reserved,
    sync::{
        AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock, taken_before_look,
    },
    verdict::{Code, Verdict},
    waiting::Use,
    word::{ESTIMATE, GATED, LEFT_MAX, Word},
};

/// Low bits of the packed refusal: the code, and whether it is for ever.
const REFUSAL_BITS: u64 = 0xff;
const REFUSAL_OPEN_ENDED: u64 = 0x80;
/// The limit is not known yet.
const LIMIT_UNKNOWN: u64 = u64::MAX >> 1;

/// One key's spending state, shared by everybody who spends it.
///
/// `try_spend` touches the word and the deadline and nothing else. Everything
/// slower (grants, hand-backs, holds, waiting) goes through the lock around the
/// books, so that granted = spent + returned + left + held whenever it is free.
#[derive(Debug)]
pub struct Slot {
    /// Units left, flags and the lease's tag: see `word`.
    pub(crate) word: AtomicU64,
    /// The deadline of the lease that the word's tag belongs to.
    pub(crate) deadline: AtomicU64,
    /// Until when requests of the lowest lane are refused locally, with the code in
    /// the low bits; 0: not. Whenever any lane is refused, this one is.
    refusal: AtomicU64,
    /// The same of the lanes above it.
    refusals_above: [AtomicU64; LANES_MAX - 1],
    /// What is refused meanwhile needs at least so many units on top of what is left: one
    /// that needs less, and no more than is free, is asked for. 0 and 1: all is refused.
    refused_from: AtomicU64,
    /// Such a one came since the refusal.
    is_cheaper_tried: AtomicBool,
    /// `limit << 1 | fails open`.
    rule: AtomicU64,
    /// What would be refused is let through.
    shadow: AtomicBool,
    /// The failure mode is an emergency allowance.
    is_emergency: AtomicBool,
    /// That allowance. Whoever holds another lock may take this one, and nobody takes
    /// another under it.
    allowance: Mutex<Allowance>,
    /// Until when the rule is taken for certain.
    rule_until: AtomicU64,
    max_wait_ns: AtomicU64,
    /// The kind of the key's budget; 0: not told yet.
    kind: AtomicU32,
    hold_max_ns: AtomicU64,
    /// The same of the lanes above the lowest.
    max_waits_above: [AtomicU64; LANES_MAX - 1],
    /// Changes with the policy's lanes; 0: they are not known.
    lanes_version: AtomicU32,
    /// The highest lane in which a request was told `Empty` since the driver looked.
    probed: AtomicU32,
    /// Requests that named a lane which the policy does not have.
    misnamed: AtomicU64,
    /// Units of requests that were not admitted from here: demand that the word
    /// does not show.
    missed: AtomicU64,
    refused: AtomicU64,
    degraded: AtomicU64,
    shadowed: AtomicU64,
    /// Requests that shadow mode let through though nobody said no.
    let_through: AtomicU64,
    acquired: AtomicU64,
    /// Units that the coordinator last said are free, and one more; 0: it never did.
    free: AtomicU64,
    /// Who leaves this many units or fewer rings. The largest number: everybody does.
    bell: AtomicU64,
    evicted: AtomicBool,
    /// An ask is under way that says somebody waits in this lane, counted from 1, so
    /// that ringing for it or one below adds nothing; 0: there is none.
    asked: AtomicU32,
    /// The coordinator has said that the rest of its answer is to come.
    to_come: AtomicBool,
    /// What callers may be told. Nobody takes another lock under this one.
    pub(crate) quota: Mutex<Option<Arc<Quota>>>,
    index: u32,
    waiters_max: usize,
    pub(crate) line: Arc<Line>,
    pub(crate) inner: Mutex<Inner>,
}

/// What the slot's lock guards.
#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) books: Books,
    pub(crate) queue: Queue,
    /// Requests that will need units of this key and wait for those of another
    /// one first: the driver asks for them, and nobody has to stand behind them.
    pub(crate) asking: Queue,
    pub(crate) gate: Gate,
    /// What the policy calls its lanes.
    pub(crate) lanes: Vec<String>,
    /// Held units that are to be settled, by their end.
    pub(crate) reserved: BTreeMap<(u64, u64), Reserved>,
    /// Whom to wake when permits may have ended, by the permit's number.
    pub(crate) watchers: BTreeMap<u64, Waker>,
    /// Permits that were recalled while they were in use: of which lease, and the
    /// returned total that was asked for.
    pub(crate) recalled: Option<(u64, u64)>,
    number: u64,
}

impl Inner {
    /// Nothing has to be accounted for and nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.books.is_empty() && self.queue.is_empty() && self.asking.is_empty()
    }

    /// A number that no other reservation or permit of the slot has.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

/// What an attempt to take units led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    Admitted,
    /// The same of a key that is counted here.
    Estimated,
    /// Too few units, or requests wait, or closed.
    Short,
    /// Taken after the deadline: forfeit.
    Late,
}

/// What became of a request at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtGate {
    /// Its turn was now, and there were units.
    Passed,
    /// The key cools down.
    Cooling(Verdict),
    /// There are units, and its turn is later, no earlier than this.
    Waits(u64),
    /// Nothing stands in its way but too few units.
    Open,
}

/// Where a request stands after the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// Answered for good.
    Answer(Verdict),
    /// A refusal still stands.
    Refused(Verdict),
    /// There is nobody to ask.
    Alone,
    /// It is worth asking.
    Ask,
}

/// Cumulative counts of a slot, for reports and demand estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Units of requests that were not admitted.
    pub missed: u64,
    /// Requests that were refused locally.
    pub refused: u64,
    /// Units allowed by the failure mode.
    pub degraded: u64,
    /// Requests that shadow mode let through and that would have been refused.
    pub shadowed: u64,
    /// Requests that shadow mode let through when nothing was held here, and nobody
    /// had said no.
    pub let_through: u64,
    /// Requests that named a lane which the policy does not have.
    pub misnamed: u64,
    /// Units of permits that were given out.
    pub acquired: u64,
}

/// What a slot needs to know of the key's policy to answer by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotRule {
    /// What kind of budget it is.
    pub kind: BudgetKind,
    /// The largest cost that can be admitted.
    pub limit: u64,
    /// What becomes of requests when there is nobody to ask.
    pub failure: FailureMode,
    /// The window that an emergency allowance is for; 0: not said.
    pub window_ns: u64,
    /// Count what would be refused, and refuse nothing.
    pub shadow: bool,
    /// How long a request waits for an answer at most.
    pub max_wait_ns: u64,
    /// How long a reservation may stay unsettled; 0: not said.
    pub hold_max_ns: u64,
    /// The least time between two units; 0: they go out as they come.
    pub release_every_ns: u64,
}

impl Slot {
    /// An empty slot. `index` is its place on the line.
    #[must_use]
    pub fn new(index: u32, line: Arc<Line>, waiters_max: usize, max_wait_ns: u64) -> Self {
        Self {
            word: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            refusal: AtomicU64::new(0),
            rule: AtomicU64::new(LIMIT_UNKNOWN << 1),
            shadow: AtomicBool::new(false),
            is_emergency: AtomicBool::new(false),
            allowance: Mutex::new(Allowance::default()),
            rule_until: AtomicU64::new(0),
            max_wait_ns: AtomicU64::new(max_wait_ns),
            kind: AtomicU32::new(0),
            hold_max_ns: AtomicU64::new(0),
            refusals_above: Default::default(),
            refused_from: AtomicU64::new(0),
            is_cheaper_tried: AtomicBool::new(false),
            max_waits_above: Default::default(),
            lanes_version: AtomicU32::new(0),
            probed: AtomicU32::new(u32::MAX),
            misnamed: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            degraded: AtomicU64::new(0),
            shadowed: AtomicU64::new(0),
            let_through: AtomicU64::new(0),
            acquired: AtomicU64::new(0),
            free: AtomicU64::new(0),
            bell: AtomicU64::new(u64::MAX),
            evicted: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            to_come: AtomicBool::new(false),
            quota: Mutex::new(None),
            index,
            waiters_max,
            line,
            inner: Mutex::new(Inner::default()),
        }
    }

    /// The slot's place on the line.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How long a request of the lowest lane waits for an answer at most.
    #[must_use]
    pub fn max_wait_ns(&self) -> u64 {
        self.max_wait_ns.load(Ordering::Relaxed)
    }

    /// How long a request of a lane waits for an answer at most.
    #[must_use]
    pub fn max_wait_ns_in(&self, lane: Lane) -> u64 {
        let above = above(&self.max_waits_above, lane);
        above.map_or_else(|| self.max_wait_ns(), |wait| wait.load(Ordering::Relaxed))
    }

    /// Changes when the policy's lanes do: until then [`lane`](Self::lane) has the same
    /// answer. 0: they are not known yet.
    #[must_use]
    pub fn lanes_version(&self) -> u32 {
        // Acquire: who finds the version finds the lanes, too, behind the lock.
        self.lanes_version.load(Ordering::Acquire)
    }

    /// The lane that the policy calls so, and whether it has one. If not, or as long
    /// as the policy is not known, it is the lowest.
    #[must_use]
    pub fn lane(&self, name: &str) -> (Lane, bool) {
        let inner = self.lock();
        let place = inner.lanes.iter().position(|known| known == name);
        // The lowest goes by one name only.
        let is_above = |place: &usize| place + 1 < inner.lanes.len().min(LANES_MAX);
        let lane = place
            .filter(is_above)
            .and_then(|place| u32::try_from(place).ok())
            .map_or(Lane::LOWEST, Lane);
        (lane, place.is_some())
    }

    /// A request named a lane that there is not.
    pub fn count_misnamed(&self) {
        self.misnamed.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the slot was taken out of service because its key was idle; the
    /// key may live on in another slot.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        // Acquire pairs with the release in `evict`: who finds the word closed
        // because of an eviction finds this set too, since it is set before.
        self.evicted.load(Ordering::Acquire)
    }

    /// Spends units from what is held here, without waiting.
    #[inline]
    pub fn try_spend(&self, units: u64, clock: &impl Clock) -> Verdict {
        self.try_spend_in(Lane::LOWEST, units, clock)
    }

    /// Spends units for a request of a lane from what is held here, without waiting.
    /// What is left is anybody's: lanes make a difference when there is too little.
    #[inline]
    pub fn try_spend_in(&self, lane: Lane, units: u64, clock: &impl Clock) -> Verdict {
        match self.take(units, clock) {
            Take::Admitted => Verdict::Admitted,
            Take::Estimated => Verdict::Estimated,
            Take::Short | Take::Late => self.shade(self.try_more(lane, units, clock)),
        }
    }

    pub(crate) fn is_gated(&self) -> bool {
        Word(self.word.load(Ordering::Acquire)).is_gated()
    }

    /// What the gate says to a request that found the word barred by it.
    pub(crate) fn at_gate(&self, lane: Lane, units: u64, clock: &impl Clock) -> AtGate {
        let now = clock.now_ns();
        let mut inner = self.lock();
        let word = Word(self.word.load(Ordering::Acquire));
        if !word.is_gated() || word.is_closed() || units == 0 {
            return AtGate::Open;
        }
        if !inner.gate.thaw(now) {
            let until = inner.gate.cooling_until().unwrap_or(now);
            let retry_after = Some(Duration::from_nanos(until.saturating_sub(now)));
            let code = Code::Cooldown;
            return AtGate::Cooling(Verdict::Denied { code, retry_after });
        }
        self.unbar(&inner);
        if units > word.left() {
            return AtGate::Open;
        }
        let ahead = inner.queue.len_down_to(lane) > 0;
        match inner.gate.turn_after(now) {
            None if !ahead => {}
            turn => return AtGate::Waits(turn.unwrap_or(now)),
        }
        let Some(generation) = self.set_aside(&mut inner, units) else {
            return AtGate::Open;
        };
        inner.gate.passed(units, now);
        drop(inner);
        if self.commit(generation, units, clock) {
            return AtGate::Passed;
        }
        self.release(generation, units);
        AtGate::Open
    }

    /// Lets the fast path go on if nothing stands in its way. Called with the lock held.
    pub(crate) fn unbar(&self, inner: &Inner) {
        if !inner.gate.is_shut() {
            // AcqRel: whoever takes from now on does so after all that was done under
            // the lock.
            self.word.fetch_and(!GATED, Ordering::AcqRel);
        }
    }

    fn try_more(&self, lane: Lane, units: u64, clock: &impl Clock) -> Verdict {
        if self.is_gated() {
            match self.at_gate(lane, units, clock) {
                AtGate::Passed => return self.admitted(),
                AtGate::Cooling(verdict) => {
                    self.count_refused(units);
                    return verdict;
                }
                AtGate::Waits(turn_ns) => {
                    self.count_refused(units);
                    let wait_ns = turn_ns.saturating_sub(clock.now_ns());
                    return Verdict::Denied {
                        code: Code::Limit,
                        retry_after: Some(Duration::from_nanos(wait_ns)),
                    };
                }
                AtGate::Open => {
                    let take = self.take(units, clock);
                    if matches!(take, Take::Admitted | Take::Estimated) {
                        return self.admitted();
                    }
                }
            }
        }
        let miss = self.miss(lane, units, clock);
        match self.settle_own(miss, units, clock) {
            Miss::Answer(verdict) => verdict,
            miss => self.answer_miss(miss, lane, units, clock),
        }
    }

    /// The answer to a request that does not wait.
    pub(crate) fn answer_miss(
        &self,
        miss: Miss,
        lane: Lane,
        units: u64,
        clock: &impl Clock,
    ) -> Verdict {
        match miss {
            Miss::Answer(verdict) => verdict,
            Miss::Refused(verdict) => {
                self.count_refused(units);
                verdict
            }
            Miss::Alone => self.fail(units, Code::Disconnected, clock),
            Miss::Ask if self.overtake(lane, units, clock) => Verdict::Admitted,
            Miss::Ask => {
                if lane != Lane::LOWEST {
                    // Before the count: whoever finds that finds this.
                    self.probed.fetch_min(lane.0, Ordering::Relaxed);
                }
                self.count_missed(units);
                self.ring_unless_asked(lane);
                Verdict::Empty
            }
        }
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow.load(Ordering::Relaxed) && !self.is_evicted()
    }

    /// What a request is told in the end: in shadow mode nothing is refused.
    pub(crate) fn shade(&self, verdict: Verdict) -> Verdict {
        // Relaxed: it decides what a request is told that was not admitted.
        if !self.shadow.load(Ordering::Relaxed) {
            return verdict;
        }
        let code = match verdict {
            Verdict::Denied { code, .. } => code,
            // The key lives on in another slot, which will say.
            Verdict::Unavailable { .. } if self.is_evicted() => return verdict,
            Verdict::Unavailable { code } => code,
            Verdict::Empty => {
                self.let_through.fetch_add(1, Ordering::Relaxed);
                return Verdict::Shadowed { code: Code::Empty };
            }
            _ => return verdict,
        };
        self.shadowed.fetch_add(1, Ordering::Relaxed);
        Verdict::Shadowed { code }
    }

    /// Takes units past requests of lower lanes that wait for more than there is.
    fn overtake(&self, lane: Lane, units: u64, clock: &impl Clock) -> bool {
        if lane == Lane::LOWEST || self.left() < units {
            return false;
        }
        let generation = {
            let mut inner = self.lock();
            if inner.queue.len_down_to(lane) > 0 {
                return false;
            }
            match self.set_aside(&mut inner, units) {
                Some(generation) => generation,
                None => return false,
            }
        };
        let is_committed = self.commit(generation, units, clock);
        if !is_committed {
            self.release(generation, units);
        }
        is_committed
    }

    /// As `try_spend`, but leaves it to the caller what to do when it must ask.
    #[inline]
    pub(crate) fn try_take_or_miss(&self, lane: Lane, units: u64, clock: &impl Clock) -> Miss {
        match self.take(units, clock) {
            Take::Admitted => Miss::Answer(Verdict::Admitted),
            Take::Estimated => Miss::Answer(Verdict::Estimated),
            Take::Short | Take::Late => self.miss(lane, units, clock),
        }
    }

    /// Takes, then looks.
    #[inline]
    fn take(&self, units: u64, clock: &impl Clock) -> Take {
        // Acquire: pairs with the release that made units of a lease available,
        // which comes after the store of that lease's deadline. So the deadline
        // read below is this lease's, or a later one.
        let mut seen = self.word.load(Ordering::Acquire);
        loop {
            let word = Word(seen);
            if word.is_barred() || units > word.left() || units == 0 {
                return Take::Short;
            }
            // Acquire: pairs with the release that stores a deadline. If it is
            // already the *next* lease's, then the swap that ended this one
            // happened before our exchange, which must therefore fail: the tag
            // has changed. A later deadline of the same lease is as good as ours.
            let deadline = self.deadline.load(Ordering::Acquire);
            // AcqRel: the release half keeps the loads above before the take.
            // The acquire half keeps the look below after it.
            match self.word.compare_exchange_weak(
                seen,
                seen - units,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    taken_before_look();
                    if clock.now_ns() >= deadline {
                        // Forfeit: no longer left, so it counts as spent. To put
                        // it back would be to hand it to the next lease.
                        return Take::Late;
                    }
                    // Whoever empties the slot rings in any case, since the bell is
                    // never below 0.
                    if self.is_at_bell(word.left() - units) {
                        self.ring();
                    }
                    if word.0 & ESTIMATE != 0 {
                        return Take::Estimated;
                    }
                    return Take::Admitted;
                }
                Err(now) => seen = now,
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        // Acquire: who sees the flag also sees whether it was an eviction.
        Word(self.word.load(Ordering::Acquire)).is_closed()
    }

    /// What a request is told that wants permits where units are spent, or the other
    /// way round. None as long as the kind is not known.
    pub(crate) fn wrong_kind(&self, usage: Use) -> Option<Verdict> {
        let has_permits = self.kind()? == BudgetKind::Concurrency;
        let code = Code::WrongKind;
        let retry_after = None;
        (has_permits != (usage == Use::Permit)).then_some(Verdict::Denied { code, retry_after })
    }

    /// The answer to a request that the fast path did not admit.
    pub(crate) fn miss(&self, lane: Lane, units: u64, clock: &impl Clock) -> Miss {
        self.miss_as(Use::Spend, lane, units, clock)
    }

    /// The same of a request for either use.
    pub(crate) fn miss_as(&self, usage: Use, lane: Lane, units: u64, clock: &impl Clock) -> Miss {
        // Acquire: who sees the flag also sees whether it was an eviction.
        let word = Word(self.word.load(Ordering::Acquire));
        if word.is_closed() {
            return Miss::Answer(Verdict::Unavailable { code: Code::Closed });
        }
        let is_suspect = usage == Use::Permit || word.is_off_path();
        if let Some(verdict) = is_suspect.then(|| self.wrong_kind(usage)).flatten() {
            self.count_refused(0);
            return Miss::Answer(verdict);
        }
        if units == 0 {
            return Miss::Answer(Verdict::Admitted);
        }
        if self.is_impossible(units, clock) {
            self.count_refused(0);
            let code = Code::CostAboveLimit;
            return Miss::Answer(Verdict::Denied {
                code,
                retry_after: None,
            });
        }
        if let Some(verdict) = self.local_refusal(lane, clock) {
            if !self.may_be_had(units) {
                return Miss::Refused(verdict);
            }
            // Before it is counted: whoever finds that finds this.
            self.is_cheaper_tried.store(true, Ordering::Relaxed);
        }
        if self.line.is_up() {
            Miss::Ask
        } else {
            Miss::Alone
        }
    }

    /// Whether a cost can never be admitted. What is known of the limit is
    /// trusted for a while only: it may have been raised since, and nobody would
    /// ever say so to a client that does not ask.
    fn is_impossible(&self, units: u64, clock: &impl Clock) -> bool {
        let is_above = || {
            let has_limit = self.kind() != Some(BudgetKind::Unlimited);
            units > self.limit() && has_limit && self.is_rule_fresh(clock.now_ns())
        };
        units > LEFT_MAX || is_above()
    }

    pub(crate) fn is_rule_fresh(&self, now_ns: u64) -> bool {
        now_ns < self.rule_until.load(Ordering::Relaxed)
    }

    /// Whether a request needs less than what was refused, and no more than is free as far
    /// as is known.
    pub(crate) fn may_be_had(&self, units: u64) -> bool {
        let missing = units.saturating_sub(self.left()).max(1);
        // Relaxed: it only decides between a refusal and an ask.
        missing < self.refused_from.load(Ordering::Relaxed)
            && self.known_free().is_some_and(|free| missing <= free)
    }

    /// Whether a request that may be had came since the refusal.
    pub(crate) fn is_cheaper_tried(&self) -> bool {
        self.is_cheaper_tried.load(Ordering::Relaxed)
    }

    /// From here on what is refused meanwhile is refused whatever it costs.
    pub(crate) fn refuse_any_cost(&self) {
        self.refused_from.store(0, Ordering::Relaxed);
    }

    /// The refusal that still stands, if one does.
    pub(crate) fn local_refusal(&self, lane: Lane, clock: &impl Clock) -> Option<Verdict> {
        // Relaxed: one self-contained value that only decides between a refusal
        // and an ask.
        let refusal = above(&self.refusals_above, lane).unwrap_or(&self.refusal);
        let packed = refusal.load(Ordering::Relaxed);
        let until = packed & !REFUSAL_BITS;
        if until == 0 {
            return None;
        }
        let now = clock.now_ns();
        (now < until).then(|| {
            let code = Code::from_number(packed & REFUSAL_BITS & !REFUSAL_OPEN_ENDED);
            let open_ended = packed & REFUSAL_OPEN_ENDED != 0;
            let retry_after = (!open_ended).then(|| Duration::from_nanos(until - now));
            Verdict::Denied { code, retry_after }
        })
    }

    /// The failure mode's answer: there is nobody to ask, or no answer came.
    pub fn fail(&self, units: u64, code: Code, clock: &impl Clock) -> Verdict {
        self.count_missed(units);
        let is_emergency = self.is_emergency.load(Ordering::Relaxed);
        if self.fails_open() || (is_emergency && lock(&self.allowance).take(units, clock.now_ns()))
        {
            self.degraded.fetch_add(units, Ordering::Relaxed);
            Verdict::Degraded
        } else {
            Verdict::Unavailable { code }
        }
    }

    /// Lets a request through without units.
    pub(crate) fn degrade(&self, units: u64) -> Verdict {
        self.count_missed(units);
        self.degraded.fetch_add(units, Ordering::Relaxed);
        Verdict::Degraded
    }

    pub(crate) fn fails_open(&self) -> bool {
        self.rule.load(Ordering::Relaxed) & 1 == 1
    }

    /// The largest cost that can be admitted, as far as is known.
    pub(crate) fn limit(&self) -> u64 {
        self.rule.load(Ordering::Relaxed) >> 1
    }

    /// The limit, once the coordinator said it.
    #[must_use]
    pub fn known_limit(&self) -> Option<u64> {
        Some(self.limit()).filter(|limit| *limit != LIMIT_UNKNOWN)
    }

    /// The kind of the key's budget, once the coordinator said it.
    #[must_use]
    pub fn kind(&self) -> Option<BudgetKind> {
        BudgetKind::from_number(self.kind.load(Ordering::Relaxed))
    }

    /// How long a reservation may stay unsettled, if the policy says so.
    pub(crate) fn hold_max_ns(&self) -> u64 {
        self.hold_max_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn store_rule(&self, rule: SlotRule) {
        let limit = rule.limit.min(LIMIT_UNKNOWN - 1);
        let fails_open = rule.failure == FailureMode::Open;
        // Relaxed, all: they choose between refusals and time-outs only.
        self.rule
            .store((limit << 1) | u64::from(fails_open), Ordering::Relaxed);
        self.shadow.store(rule.shadow, Ordering::Relaxed);
        let stated = match rule.failure {
            FailureMode::Emergency { units } => Some(units),
            FailureMode::Closed | FailureMode::Open => None,
        };
        self.is_emergency.store(stated.is_some(), Ordering::Relaxed);
        lock(&self.allowance).set_rule(stated.unwrap_or(0), limit, rule.window_ns);
        self.max_wait_ns.store(rule.max_wait_ns, Ordering::Relaxed);
        self.kind.store(rule.kind as u32, Ordering::Relaxed);
        self.hold_max_ns.store(rule.hold_max_ns, Ordering::Relaxed);
    }

    /// What becomes of requests that nobody can be asked about as long as the key's
    /// policy is not known.
    pub fn set_before_contact(&self, failure: FailureMode) {
        if self.known_limit().is_some() {
            return;
        }
        let fails_open = failure == FailureMode::Open;
        self.rule.store(
            (LIMIT_UNKNOWN << 1) | u64::from(fails_open),
            Ordering::Relaxed,
        );
        if let FailureMode::Emergency { units } = failure {
            lock(&self.allowance).set_before_contact(units);
            self.is_emergency.store(true, Ordering::Relaxed);
        }
    }

    /// How many gateways hold the key, this one included; 0: not said.
    pub(crate) fn set_holders(&self, holders: u64) {
        lock(&self.allowance).set_holders(holders);
    }

    /// The coordinator answered for this key: what is known of its rule holds
    /// until `until_ns`.
    pub fn confirm_rule(&self, until_ns: u64) {
        self.rule_until.store(until_ns, Ordering::Relaxed);
    }

    /// Refuses the lane at this place and those below it, of so many, what needs `least`
    /// units or more. Called with the lock held.
    pub(crate) fn store_refusal(
        &self,
        (place, lanes): (usize, usize),
        least: u64,
        code: Code,
        until_ns: u64,
        open_ended: bool,
    ) {
        let until = until_ns.saturating_add(REFUSAL_BITS) & !REFUSAL_BITS;
        let flag = if open_ended { REFUSAL_OPEN_ENDED } else { 0 };
        let packed = until | flag | code as u64;
        // Relaxed, all: see `local_refusal`.
        self.refused_from.store(least, Ordering::Relaxed);
        self.is_cheaper_tried.store(false, Ordering::Relaxed);
        let above = self.refusals_above.iter().take(lanes.saturating_sub(1));
        for refusal in above.skip(place) {
            refusal.store(packed, Ordering::Relaxed);
        }
        self.refusal.store(packed, Ordering::Relaxed);
    }

    /// Called with the lock held.
    pub(crate) fn clear_refusal(&self, lanes: usize) {
        let above = self.refusals_above.iter().take(lanes.saturating_sub(1));
        for refusal in above {
            refusal.store(0, Ordering::Relaxed);
        }
        self.refusal.store(0, Ordering::Relaxed);
    }

    /// Takes in the lanes of the policy. Called with the lock held.
    pub(crate) fn store_lanes(&self, inner: &mut Inner, rules: &[LaneRule]) {
        // Those that cannot be told apart wait as the last of them does.
        let told_apart = rules.len().min(LANES_MAX);
        for (wait, rule) in self.max_waits_above.iter().zip(rules) {
            wait.store(rule.max_wait_ns, Ordering::Relaxed);
        }
        if let Some(lowest) = rules.last() {
            self.max_wait_ns
                .store(lowest.max_wait_ns, Ordering::Relaxed);
        }
        let is_known = self.lanes_version.load(Ordering::Relaxed) != 0;
        let is_same = inner.lanes.iter().eq(rules.iter().map(|rule| &rule.name));
        if is_known && is_same {
            return;
        }
        inner.lanes = rules.iter().map(|rule| rule.name.clone()).collect();
        inner.queue.set_lanes(told_apart);
        inner.asking.set_lanes(told_apart);
        // A refusal was about other lanes.
        self.clear_refusal(LANES_MAX);
        // Release: see `lanes_version`. It wraps past 0, which means unknown.
        let next = self.lanes_version.load(Ordering::Relaxed).wrapping_add(1);
        self.lanes_version.store(next.max(1), Ordering::Release);
    }

    /// The highest lane in which a request was told `Empty` since the last call, if it
    /// was one above the lowest.
    pub(crate) fn take_probed(&self) -> Lane {
        // Relaxed, both: it decides for which lane an ask says that one waits.
        match self.probed.load(Ordering::Relaxed) {
            u32::MAX => Lane::LOWEST,
            _ => Lane(self.probed.swap(u32::MAX, Ordering::Relaxed)),
        }
    }

    /// The coordinator said how much is free.
    pub(crate) fn set_free(&self, units: u64) {
        // Relaxed: an estimate.
        self.free.store(units.saturating_add(1), Ordering::Relaxed);
    }

    /// Units that the coordinator last said are free.
    pub(crate) fn known_free(&self) -> Option<u64> {
        self.free.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Counts as of now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        // Relaxed: estimates and statistics.
        Counts {
            missed: self.missed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            degraded: self.degraded.load(Ordering::Relaxed),
            shadowed: self.shadowed.load(Ordering::Relaxed),
            let_through: self.let_through.load(Ordering::Relaxed),
            misnamed: self.misnamed.load(Ordering::Relaxed),
            acquired: self.acquired.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count_missed(&self, units: u64) {
        self.missed.fetch_add(units, Ordering::Relaxed);
    }

    pub(crate) fn count_acquired(&self, units: u64) {
        self.acquired.fetch_add(units, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self, units: u64) {
        self.count_missed(units);
        if self.shadow.load(Ordering::Relaxed) {
            // It is let through, and counted as such.
            return;
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks the driver to look at this key.
    pub(crate) fn ring(&self) {
        self.line.ring(self.index);
    }

    /// Rings only if the driver has something to do about it. Whoever joined the
    /// queue before calls it after: see `set_asked`.
    pub(crate) fn ring_unless_asked(&self, lane: Lane) {
        if !self.is_asked(lane) {
            self.ring();
        }
    }

    /// The driver says for which lane, by its place, an ask of waiting requests is
    /// under way, and always looks at the queue after it said that there is none. So no request is forgotten:
    /// if that look came before the request joined (under the same lock), then
    /// the request finds the no, and rings; else the look finds the request. A
    /// `try_spend` takes no lock and may be missed; the next one rings.
    pub(crate) fn set_asked(&self, lane: Option<u32>) {
        let asked = lane.map_or(0, |lane| lane.saturating_add(1));
        // Release, with the acquire above; the lock orders the rest.
        self.asked.store(asked, Ordering::Release);
        self.to_come.store(false, Ordering::Relaxed);
    }

    /// The coordinator has heard of the ask, and will answer it.
    pub(crate) fn set_to_come(&self) {
        self.to_come.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_asked(&self, lane: Lane) -> bool {
        let asked = self.asked.load(Ordering::Acquire);
        asked != 0 && lane.0.saturating_add(1) >= asked
    }

    /// Whether a request whose time is up is the failure mode's to answer.
    pub(crate) fn is_left_alone(&self, lane: Lane, clock: &impl Clock) -> bool {
        let is_up = self.line.is_up() && self.to_come.load(Ordering::Relaxed);
        !is_up && self.local_refusal(lane, clock).is_none()
    }

    /// What a request is told whose time is up before it was answered.
    pub(crate) fn time_out(&self, lane: Lane, units: u64, clock: &impl Clock) -> Verdict {
        if let Some(verdict) = self.local_refusal(lane, clock) {
            self.count_refused(units);
            return verdict;
        }
        if !self.line.is_up() {
            return self.fail(units, Code::Disconnected, clock);
        }
        // What is paced and here only had to wait for its turn.
        let is_slow = self.is_gated() && self.left() > 0;
        if is_slow || self.to_come.load(Ordering::Relaxed) {
            // There is somebody to ask, who has nothing to give yet: that is a
            // no, and not for the failure mode to overrule.
            self.count_refused(units);
            let retry_after = Some(Duration::from_nanos(self.max_wait_ns_in(lane)));
            return Verdict::Denied {
                code: Code::Limit,
                retry_after,
            };
        }
        self.fail(units, Code::NoAnswer, clock)
    }

    /// From now on, whoever leaves this many units or fewer rings. Spends that
    /// did not ring because of the former number are in the next sample.
    pub(crate) fn set_bell(&self, left: u64) {
        self.bell.store(left, Ordering::Relaxed);
        // AcqRel, and a write though it changes nothing: in the word's order each
        // take is before this, and then the sample that follows has it, or after,
        // and then it has acquired the store above and rings by the new number.
        self.word.fetch_or(0, Ordering::AcqRel);
    }

    /// Whether who leaves this many units is to ring.
    pub(crate) fn is_at_bell(&self, left: u64) -> bool {
        // Relaxed: for `take` see `set_bell`. Who commits a hold does so under the
        // lock, so it is in the sample that follows a new bell, or knows that bell.
        left <= self.bell.load(Ordering::Relaxed)
    }

    pub(crate) fn waiters_max(&self) -> usize {
        self.waiters_max
    }

    pub(crate) fn mark_evicted(&self) {
        self.evicted.store(true, Ordering::Release);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Takes units off the word for somebody who holds the lock. The queue's
    /// flag does not stop it: the lock holder serves the queue.
    pub(crate) fn lower_left(&self, units: u64) -> bool {
        // Acquire/AcqRel as in `take`; a failure only means that a spender was
        // faster, and is tried again with what it left.
        let mut seen = self.word.load(Ordering::Acquire);
        loop {
            let word = Word(seen);
            if word.is_closed() || units > word.left() {
                return false;
            }
            match self.word.compare_exchange_weak(
                seen,
                seen - units,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Puts units back or adds new ones, for somebody who holds the lock.
    pub(crate) fn raise_left(&self, units: u64) {
        // Release: the deadline that these units are judged by was stored before.
        // Only holders of the lock raise the count, and they keep the sum of all
        // units below `LEFT_MAX`, so it never runs into the flags.
        self.word.fetch_add(units, Ordering::AcqRel);
    }

    pub(crate) fn left(&self) -> u64 {
        // Acquire: what the spenders did before they lowered it is done.
        Word(self.word.load(Ordering::Acquire)).left()
    }
}

/// What is kept for a lane above the lowest.
fn above(all: &[AtomicU64], lane: Lane) -> Option<&AtomicU64> {
    all.get(usize::try_from(lane.0).ok()?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::At;

    fn slot() -> Slot {
        let line = Arc::new(Line::new(1, || ()));
        line.up();
        Slot::new(0, line, 4, 250)
    }

    #[test]
    fn units_that_come_after_a_close_go_straight_back() {
        let slot = slot();
        slot.close();
        let _ = slot.grant(1, 5, 100);
        assert_eq!(slot.left(), 0);
        assert_eq!(slot.give_back(5), 0);
        let mut sample = crate::Sample::default();
        slot.sample(&mut sample);
        assert_eq!(
            sample.current, None,
            "nothing to wait for: a final report is due"
        );
        let totals = sample.ended[0];
        assert_eq!((totals.granted, totals.returned, totals.spent), (5, 5, 0));
    }

    #[test]
    fn nothing_held_is_empty_and_rings() {
        let slot = slot();
        assert_eq!(slot.try_spend(1, &At(5)), Verdict::Empty);
        let mut rung = 0;
        slot.line.take_rung(|_| rung += 1);
        assert_eq!(rung, 1);
        assert_eq!(slot.counts().missed, 1);
    }

    #[test]
    fn no_units_are_always_admitted() {
        assert_eq!(slot().try_spend(0, &At(5)), Verdict::Admitted);
    }

    #[test]
    fn a_cost_that_no_word_can_hold_is_never_admitted() {
        let denied = Verdict::Denied {
            code: Code::CostAboveLimit,
            retry_after: None,
        };
        assert_eq!(slot().try_spend(u64::MAX, &At(5)), denied);
        assert_eq!(slot().try_spend(LEFT_MAX + 1, &At(5)), denied);
    }

    #[test]
    fn a_refusal_stands_until_its_moment_and_no_longer() {
        let slot = slot();
        slot.store_refusal((0, 1), 1, Code::Limit, 1024, false);
        let verdict = slot.try_spend(1, &At(1000));
        assert_eq!(verdict.retry_after(), Some(Duration::from_nanos(24)));
        assert_eq!(slot.try_spend(1, &At(1024)), Verdict::Empty);
        assert_eq!(
            slot.counts(),
            Counts {
                missed: 2,
                refused: 1,
                ..Counts::default()
            }
        );
    }

    #[test]
    fn with_nobody_to_ask_the_failure_mode_answers() {
        let slot = slot();
        slot.line.down(3);
        let closed = Verdict::Unavailable {
            code: Code::Disconnected,
        };
        assert_eq!(slot.try_spend(1, &At(5)), closed);
        slot.store_rule(SlotRule {
            limit: 9,
            failure: FailureMode::Open,
            max_wait_ns: 1,
            ..SlotRule::default()
        });
        assert_eq!(slot.try_spend(2, &At(5)), Verdict::Degraded);
        assert_eq!(slot.counts().degraded, 2);
    }
}
