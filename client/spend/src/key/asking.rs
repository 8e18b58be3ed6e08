//! When a key asks, for how much, and what its answers mean. Knows the key's own
//! state only: neither what others hold nor what the coordinator has.
//!
//! What is wanted is a level: a *want* stays registered until it is met, so that
//! units are pushed here when they come free. An *ask* is the message that a look
//! or a request is the reason for; there is one at a time.

use super::{Ask, BACKOFF_MAX, BACKOFF_MIN, KeyCore, Told};
use crate::{
    books::Totals,
    clock::SECOND,
    kind::BudgetKind,
    lane::{LANES_MAX, Lane},
    message::{KeyGrant, LaneWaiting, Refusal},
    refill::Granted,
    verdict::Code,
};

/// An ask that was not answered for so long is taken for lost.
const LOST_AFTER: u64 = 2 * SECOND;

/// A gateway begins an estimate with this part of the limit.
const FIRST_PARTS: u64 = 64;

impl Ask {
    /// Units that were granted since it was sent.
    fn granted_since(self, grant: &KeyGrant) -> u64 {
        let before = match self {
            Self::Sent {
                generation,
                granted,
                ..
            } if generation == grant.generation => granted,
            _ => 0,
        };
        grant.granted_total.saturating_sub(before)
    }
}

/// What requests of a lane need that is not here.
struct Missing {
    units: u64,
    head: u64,
}

/// How long a key is to last without an answer: a cluster elects within two seconds by
/// its default time-outs, and then hears again what everybody holds.
const LEADERLESS: u64 = 3 * SECOND;
/// And no more than this part of its level, so that slow keys do not ask all the time.
const KEPT: u64 = 4;
/// Free is plenty from this part of the limit on.
const PLENTY: u64 = 4;

/// The lane at a place above the lowest.
fn lane_at(place: Option<usize>) -> Lane {
    place
        .and_then(|place| u32::try_from(place).ok())
        .map_or(Lane::LOWEST, Lane)
}

impl KeyCore {
    /// Decides whether something is to be asked. Called with a fresh sample.
    pub(super) fn update_ask(&mut self, now: u64) {
        if self.is_closed {
            return;
        }
        // A request may need more than there is, or more than there was to be had
        // when the limit was last heard of.
        let is_short = self.left() == 0
            || (self.missed_now && (self.level() > self.left() || !self.slot.is_rule_fresh(now)));
        let is_probe = is_short && self.missed_now;
        let waits = self.sample.waiting > 0 || is_probe;
        let is_low = self.is_low(now);
        let ask = match self.ask {
            Ask::None if waits || is_low => Ask::Due,
            Ask::Refused if now >= self.until_ns && (waits || is_low) => Ask::Due,
            // A lower lane was refused, and that says nothing about this one.
            Ask::Refused if self.highest_waiting() < self.refused_lane => Ask::Due,
            // So does one that needed more.
            Ask::Refused if self.is_cheaper_than_refused(is_probe) => Ask::Due,
            Ask::Refused if !self.is_fresh(now) => Ask::None,
            // A request waits now, and the ask did not say so.
            Ask::Sent { waiting: 0, .. } if waits => Ask::Due,
            Ask::Sent { lane, .. } if self.highest_waiting() < lane => Ask::Due,
            Ask::Sent { at_ns, .. } if now.saturating_sub(at_ns) > LOST_AFTER => {
                if waits || is_low { Ask::Due } else { Ask::None }
            }
            ask => ask,
        };
        match ask {
            Ask::None if self.ask != Ask::None => self.abandon_ask(),
            Ask::Due => {
                self.is_probe |= is_probe;
                self.probe_lane = self.probe_lane.min(self.probed_now);
                self.wants = true;
                self.ask = Ask::Due;
            }
            _ => {}
        }
    }

    /// Whether a request waits, or was told `Empty`, that needs less than what was refused.
    fn is_cheaper_than_refused(&self, is_probe: bool) -> bool {
        let head = self.sample.waiting_head;
        (is_probe && self.slot.is_cheaper_tried()) || (head > 0 && self.slot.may_be_had(head))
    }

    /// Whether more is to be asked for before it runs out, or the coordinator is
    /// to be told that it has: a want that was registered while there was some
    /// left is served by how much that was.
    fn is_low(&self, now: u64) -> bool {
        let left = self.left();
        let is_spent = self.slot.kind() != Some(BudgetKind::Concurrency);
        if self.sample.overrun > 0 && self.sample.current.is_none() && is_spent {
            // Only a lease can carry it.
            return true;
        }
        if self.wants {
            let thought = self.thought_left();
            let low = self.low();
            return (left == 0 && thought > 0) || (left <= low && thought > low);
        }
        now == self.last_request_ns && left <= self.low() && self.level() > left
    }

    /// Whether permits came back that somebody may wait for elsewhere: nothing was
    /// free when the coordinator last spoke, and it believes that all of them are in
    /// use. What is spent frees nothing by being told, so it can wait.
    pub(super) fn has_spare_permits(&self) -> bool {
        self.slot.kind() == Some(BudgetKind::Concurrency)
            && self.slot.known_free() == Some(0)
            && self.told.is_some()
            && self.sample.waiting == 0
            && (self.is_returned_untold() || (self.left() > 0 && self.thought_left() == 0))
    }

    fn is_returned_untold(&self) -> bool {
        let now = self.sample.current.unwrap_or_default();
        self.told.is_some_and(|told| {
            told.totals.generation == now.generation && told.totals.returned < now.returned
        })
    }

    /// What the coordinator believes to be left: what it was told, and what it has
    /// granted since.
    fn thought_left(&self) -> u64 {
        let now = self.sample.current.unwrap_or_default();
        let Some(told) = self.told else { return 0 };
        let told = told.totals;
        if told.generation == now.generation {
            told.left + now.granted.saturating_sub(told.granted)
        } else {
            now.granted
        }
    }

    /// How much may be left when more is asked for; always less than the level. It lasts
    /// through the round trip, and while plenty is free also until somebody leads again
    /// should the leader die: asking earlier takes nothing from others then.
    fn low(&self) -> u64 {
        let level = self.level();
        let mut low = self.demand.low_water(self.rtt_ns);
        if self.is_plenty_free() {
            low = low.max(self.demand.low_water(LEADERLESS).min(level / KEPT));
        }
        low.min(level.saturating_sub(1))
    }

    /// Whether a good part of the limit was free when the coordinator last spoke.
    fn is_plenty_free(&self) -> bool {
        let known = self.slot.known_free().zip(self.slot.known_limit());
        known.is_some_and(|(free, limit)| free >= limit / PLENTY)
    }

    /// Who spends down to so much is to ring. While nothing was spent lately
    /// everybody is: the age of a spend counts from when it is noticed.
    pub(super) fn bell(&self, now: u64) -> u64 {
        if self.is_quiet(now) {
            u64::MAX
        } else {
            self.low()
        }
    }

    /// Whether a request came within the last demand horizon.
    fn is_fresh(&self, now: u64) -> bool {
        self.sample.waiting > 0
            || now.saturating_sub(self.last_request_ns) <= self.demand.horizon_ns()
    }

    pub(super) fn left(&self) -> u64 {
        self.sample.current.map_or(0, |current| current.left)
    }

    /// The ask was answered, or is void. The queue must be looked at after this.
    pub(super) fn settle_ask(&mut self, ask: Ask) {
        self.ask = ask;
        self.is_probe = false;
        self.probe_lane = Lane::LOWEST;
        self.slot.set_asked(None);
    }

    /// The ask was answered with units, or there is nothing more to wait for: a refusal
    /// of lower lanes stands until its end.
    fn end_ask(&mut self, now: u64) {
        let is_refused = now < self.until_ns && self.refused_lane > Lane(0);
        self.settle_ask(if is_refused { Ask::Refused } else { Ask::None });
    }

    /// The ask is void, and the queue was looked at before this: who joined it
    /// meanwhile relied on the ask, so it is looked at again.
    pub(super) fn abandon_ask(&mut self) {
        self.settle_ask(Ask::None);
        self.slot.ring();
    }

    /// What the requests of each lane need on top of what is left here, and the first
    /// of them: what is left goes to the highest lane. 1 at least where any waits.
    fn missing(&self) -> impl Iterator<Item = Missing> {
        let mut left = self.left();
        self.sample.lanes.iter().map(move |lane| {
            let beyond = |units: u64| units.saturating_sub(left).max(units.min(1));
            let missing = Missing {
                units: beyond(lane.waiting_units),
                head: beyond(lane.waiting_head),
            };
            left = left.saturating_sub(lane.waiting_units);
            missing
        })
    }

    /// Units that requests wait for, as the coordinator is told: it knows what is left
    /// here as something else, and would refuse a request that lacks less than is free.
    pub(super) fn waiting_told(&self) -> u64 {
        let probe = u64::from(self.probe_place().is_some());
        self.missing()
            .fold(probe, |sum, lane| sum.saturating_add(lane.units))
    }

    /// How many of those the first request needs.
    pub(super) fn head_told(&self) -> u64 {
        let first = self.missing().find(|lane| lane.units > 0);
        let probe = u64::from(self.is_probe);
        first.map_or(probe, |lane| lane.head)
    }

    /// Where a request counts as waiting that was told `Empty`: nowhere, when one waits
    /// in its lane or above.
    fn probe_place(&self) -> Option<usize> {
        let lanes = &self.sample.lanes;
        let place = self.probe_lane.place(lanes.len());
        let is_there = lanes.iter().take(place + 1).any(|lane| lane.waiting > 0);
        (self.is_probe && !is_there).then_some(place)
    }

    /// The highest lane in which a request waits, or was told `Empty` just now.
    fn highest_waiting(&self) -> Lane {
        let waits = self.sample.lanes.iter().position(|lane| lane.waiting > 0);
        let waits = waits.filter(|place| place + 1 < self.sample.lanes.len());
        lane_at(waits).min(self.probed_now)
    }

    /// Units that requests wait for by lane, when there are several lanes.
    pub(super) fn lanes_told(&self) -> [u64; LANES_MAX] {
        let mut told = [0; LANES_MAX];
        if self.sample.lanes.len() > 1 {
            let probe = self.probe_place();
            for (place, (units, lane)) in told.iter_mut().zip(self.missing()).enumerate() {
                *units = lane.units + u64::from(probe == Some(place));
            }
        }
        told
    }

    /// The same for a report.
    pub(super) fn lanes_waiting(&self, told: &Told, now: u64) -> Vec<LaneWaiting> {
        let lanes = (0..).zip(told.lanes).zip(self.missing());
        lanes
            .zip(&self.sample.lanes)
            .filter(|(((_, waiting), _), _)| *waiting > 0)
            .map(|(((lane, waiting), missing), sample)| LaneWaiting {
                lane,
                waiting,
                head: missing.head.max(1),
                wait_us: sample.patient_until_ns.saturating_sub(now) / 1000,
            })
            .collect()
    }

    /// The units wanted now.
    pub(super) fn want(&self) -> u64 {
        if self.wants {
            self.level().saturating_sub(self.left())
        } else {
            0
        }
    }

    /// The units that should be at hand.
    pub(super) fn level(&self) -> u64 {
        let slice = match self.slot.kind() {
            // Permits come back by themselves: only who waits is asked for.
            Some(BudgetKind::Concurrency) => u64::from(self.waiting_told() > 0),
            _ => self.demand.slice(self.slice_factor_milli),
        };
        let level = match self.slot.known_limit() {
            // The request may be impossible: only the present limit is asked for.
            Some(limit) if self.sample.waiting_head > limit => 1,
            Some(limit) => slice.max(self.sample.waiting_units).min(limit.max(1)),
            None => slice.max(self.sample.waiting_units),
        };
        level.max(self.sample.waiting_head.min(1))
    }

    /// A report with this in it was made, as part of sync `seq`.
    pub(super) fn asked(&mut self, told: &Told, seq: u64, now: u64) {
        self.wants = told.want > 0;
        if self.ask != Ask::Due {
            return;
        }
        if told.want == 0 && self.sample.waiting == 0 {
            // Nothing to wait for: the answer says how the rule is now.
            self.slot.refuse_any_cost();
            self.abandon_ask();
            return;
        }
        let Totals {
            generation,
            granted,
            ..
        } = told.totals;
        let highest = told.lanes.iter().position(|waiting| *waiting > 0);
        let above = highest.filter(|place| place + 1 < self.sample.lanes.len());
        let lane = lane_at(above);
        self.ask = Ask::Sent {
            seq,
            at_ns: now,
            // Some of what they wait for may be above the limit.
            waiting: told.waiting.min(told.want.max(1)),
            head: self.head_told(),
            lane,
            generation,
            granted,
        };
        // Without lanes there is one, the first.
        let place = highest.or((told.waiting > 0).then_some(0));
        self.slot
            .set_asked(place.and_then(|place| u32::try_from(place).ok()));
    }

    /// The coordinator wants units back: half of what is left or the `whole`, towards
    /// its target, and nothing while requests wait here. What is wanted is stated anew.
    pub(crate) fn recall(&mut self, generation: u64, returned_total_target: u64, whole: bool) {
        self.slot
            .give_back_to(generation, returned_total_target, whole);
        // One that crossed the return of everything finds a key that wants nothing.
        if self.sample.current.is_some() {
            self.wants = !self.is_closed;
        }
    }

    /// Takes in what a message says of this key. `own_deadline_ns` is the limit
    /// that it states for the lease itself.
    pub(crate) fn on_grant(
        &mut self,
        grant: &KeyGrant,
        session_deadline_ns: u64,
        own_deadline_ns: Option<u64>,
        rtt_ns: u64,
        now: u64,
    ) {
        let states_own = own_deadline_ns.is_some();
        let own_deadline_ns = own_deadline_ns.unwrap_or(u64::MAX);
        self.rtt_ns = rtt_ns;
        let head = self.sample.waiting_head;
        let was_impossible = self.slot.known_limit().is_some_and(|limit| head > limit);
        let mut ends_cool_down = false;
        if let Some(policy) = &grant.policy {
            let before_ns = self.cooldown_ns;
            self.set_policy(policy);
            // With the first word on a new stream: what was decided before that was not
            // heard here.
            let is_news = !self.is_policy_told || self.cooldown_ns != before_ns;
            ends_cool_down = is_news && self.slot.cooling_until().is_some();
            self.is_policy_told = true;
        }
        self.slot.set_holders(grant.holders);
        if let Some(free) = grant.free {
            self.slot.set_free(free);
        }
        self.slot.confirm_rule(now + BACKOFF_MAX);
        let is_impossible = self.slot.known_limit().is_some_and(|limit| head > limit);
        if is_impossible {
            self.slot.refuse_impossible();
        }
        if is_impossible || was_impossible {
            // It is gone, or possible by now: the ask was for less than it needs.
            self.settle_ask(Ask::None);
        }
        if grant.ask_anew || ends_cool_down {
            self.ask_anew();
        }
        let mut units = 0;
        if grant.generation > self.own_generation {
            (self.own_generation, self.own_deadline_ns) = (grant.generation, own_deadline_ns);
        } else if grant.generation == self.own_generation && states_own {
            self.own_deadline_ns = own_deadline_ns.max(self.own_deadline_ns);
        }
        let deadline_ns = session_deadline_ns.min(self.own_deadline_ns);
        if grant.generation != 0
            && let Granted::Units(new) =
                self.slot
                    .grant(grant.generation, grant.granted_total, deadline_ns)
        {
            units = new;
            // What went to requests of higher lanes says nothing to those below.
            let is_cooling = self.slot.cooling_until().is_some();
            if !is_cooling && (self.sample.lanes.len() < 2 || self.slot.left() > 0) {
                self.until_ns = 0;
                self.backoff_ns = rtt_ns.clamp(BACKOFF_MIN, BACKOFF_MAX);
                self.slot.lift_refusal();
            }
            self.note_granted(grant);
        }
        self.slot.renew(deadline_ns, now);
        // A lease that is late already must not be forfeited unit by unit.
        self.slot.park_if_late(now);
        if grant.refusal.is_none() && self.grant_own(grant, now) {
            return;
        }
        match (self.ask, grant.refusal) {
            // It is about the key, whatever was asked.
            (ask, Some(refusal)) if refusal.code == Code::Cooldown => {
                self.refuse(refusal, ask.granted_since(grant), now);
            }
            // An answer to an earlier ask says nothing about this one.
            (Ask::Sent { seq, .. }, _) if grant.basis_seq < seq => {}
            (ask @ (Ask::Sent { .. } | Ask::Refused), Some(refusal)) => {
                self.refuse(refusal, ask.granted_since(grant), now);
            }
            // Nobody waits, and the want is registered.
            (Ask::Sent { waiting: 0, .. }, None) => self.end_ask(now),
            (ask @ Ask::Sent { waiting, .. }, None) => {
                let answered = ask.granted_since(grant) >= waiting;
                // By units that came now, or with a push before this answer.
                if answered {
                    self.end_ask(now);
                } else {
                    self.slot.set_to_come();
                }
            }
            (Ask::Refused, None) if units > 0 => self.end_ask(now),
            _ => {}
        }
    }

    /// What was refused may be there by now: nothing is refused by what was said before,
    /// and a cool-down that still runs is stated again by the next answer.
    pub(super) fn ask_anew(&mut self) {
        self.until_ns = 0;
        self.slot.end_cool_down();
        self.backoff_ns = BACKOFF_MIN;
        self.slot.lift_refusal();
        if self.ask == Ask::Refused {
            // Whoever waits in spite of the refusal is asked for again.
            self.abandon_ask();
        }
    }

    /// Takes what this gateway may spend by itself of a key that it counts by itself.
    /// Says whether the answer is dealt with.
    fn grant_own(&mut self, grant: &KeyGrant, now: u64) -> bool {
        // Not every message says what is free.
        let is_told = grant.holders > 0 || self.slot.kind() == Some(BudgetKind::Unlimited);
        if !is_told || grant.generation == 0 || !self.slot.counts_by_itself() {
            return false;
        }
        // The first answer of a lease: others may have come at the same moment, and
        // each be told that it is alone.
        let is_first = grant.generation != self.generation;
        let (spent_known, most) = if is_first {
            let few = self.slot.limit().div_ceil(FIRST_PARTS);
            (0, few.max(self.sample.waiting_units))
        } else {
            (self.spent_acked, u64::MAX)
        };
        let free = grant.free.unwrap_or(0);
        let left = self.slot.grant_own(free, grant.holders, most, spent_known);
        match left {
            None => return false,
            Some(0) => {
                // The others have spent it: until somebody's spends are old.
                let pause = (self.demand.window_ns() / 20).clamp(BACKOFF_MIN, BACKOFF_MAX);
                self.until_ns = now.saturating_add(pause);
                self.refused_lane = Lane(0);
                self.settle_ask(Ask::Refused);
                self.slot.refuse(Code::Limit, self.until_ns, false);
            }
            Some(_) => {
                self.until_ns = 0;
                self.slot.lift_refusal();
                self.wants = is_first;
                // By the next answer it is known how many they are.
                self.settle_ask(if is_first { Ask::Due } else { Ask::None });
            }
        }
        true
    }

    /// What was granted since it was told meets the want, or part of it.
    fn note_granted(&mut self, grant: &KeyGrant) {
        let Some(told) = &self.told else { return };
        let before = if told.totals.generation == grant.generation {
            told.totals.granted
        } else {
            0
        };
        if grant.granted_total.saturating_sub(before) >= told.want {
            self.wants = false;
        }
    }

    pub(super) fn refuse(&mut self, refusal: Refusal, granted_since: u64, now: u64) {
        self.has_no_budget = refusal.code == Code::NoBudget;
        if refusal.code == Code::CostAboveLimit {
            // The request's fault, not the key's: others may be served.
            self.slot.refuse_impossible();
            self.settle_ask(Ask::None);
            return;
        }
        let for_ever = refusal.retry_after_us == 0 && refusal.code != Code::Limit;
        let stated = refusal.retry_after_us.saturating_mul(1000);
        let mut code = refusal.code;
        let mut stated = stated;
        if code == Code::Limit && self.cooldown_ns > 0 {
            code = Code::Cooldown;
            stated = stated.max(self.cooldown_ns);
        }
        // Units that only somebody's hand frees are asked for again now and then all the
        // same, but nobody is told to come back for them.
        let open_ended = for_ever || (refusal.retry_after_us == 0 && code == Code::Limit);
        let pause = if for_ever {
            BACKOFF_MAX
        } else {
            stated.max(self.backoff_ns)
        };
        if for_ever {
            self.slot.drop_overrun();
        }
        self.until_ns = now.saturating_add(pause);
        self.backoff_ns = (2 * self.backoff_ns).min(BACKOFF_MAX);
        if code == Code::Cooldown {
            self.slot.cool(self.until_ns);
        }
        let lane = Lane(refusal.lane);
        self.refused_lane = lane;
        self.refused_from = match self.ask {
            // Free is what may be had in any lane, now.
            Ask::Sent { head, .. } if code == Code::Limit && lane == Lane(0) => head.max(1),
            Ask::Refused if code == Code::Limit => self.refused_from,
            _ => 1,
        };
        // The ask goes on for those who wait in a lane above.
        let above = self.slot.missing_above(lane);
        match &mut self.ask {
            Ask::Sent { waiting, .. } if above > 0 => {
                *waiting = granted_since.saturating_add(above);
                self.slot.set_to_come();
            }
            _ => self.settle_ask(Ask::Refused),
        }
        self.slot
            .refuse_from(lane, self.refused_from, code, self.until_ns, open_ended);
    }

    /// Refuses everything for now, for a reason that no coordinator stated.
    pub(crate) fn refuse_here(&mut self, code: Code, now: u64) {
        self.refuse(
            Refusal {
                code,
                retry_after_us: BACKOFF_MAX / 1000,
                lane: 0,
            },
            0,
            now,
        );
    }
}
