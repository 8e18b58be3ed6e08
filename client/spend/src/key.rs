//! What the driver knows of one key: what was spent of it, when to report, and
//! when to hand back what is parked here. Knows neither the session nor the other
//! keys; when to ask is `asking`'s. Past 600 lines: what one report says of a key is one state.

mod asking;

use std::sync::Arc;

use crate::{
    ages::Ages,
    books::Totals,
    clock::{Clock, MILLISECOND, SECOND},
    demand::Demand,
    lane::{LANES_MAX, Lane},
    message::{LeaseState, Policy, Report},
    refill::{Granted, Sample},
    slot::{Counts, Slot, SlotRule},
};

/// The longest pause that this client adds to a refusal by itself, and for how
/// long a refusal without an end is believed.
const BACKOFF_MAX: u64 = SECOND;
const BACKOFF_MIN: u64 = 10 * MILLISECOND;
/// A key that nobody asks for is known for so long when others need its room, and when no
/// budget is for it: callers can make up any number of such keys.
const IDLE_WITHOUT_UNITS: u64 = 2 * SECOND;

/// Where the key's one ask stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Nothing is asked; a want may be registered.
    None,
    /// To be sent with the next sync.
    Due,
    /// Sent with this sync; the answer, or the rest of it, is to come.
    Sent {
        seq: u64,
        at_ns: u64,
        /// Units that end the wait of those who wait, on top of what was left; 0:
        /// nobody waits.
        waiting: u64,
        /// What the first of them needs.
        head: u64,
        /// The highest lane in which somebody waits.
        lane: Lane,
        generation: u64,
        granted: u64,
    },
    /// Refused. The want stays registered, and is asked again when a request
    /// comes after the refusal's end, or one of a higher lane.
    Refused,
}

/// What was last said of a lease, to say it again only when it has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    totals: Totals,
    ended: usize,
    want: u64,
    waiting: u64,
    /// What waits by lane, when there are several.
    lanes: [u64; LANES_MAX],
    /// It is to hear when its cool-down ends, though it wants nothing.
    listens: bool,
}

/// What is remembered of a report until it is acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief {
    pub(crate) index: u32,
    pub(crate) generation: u64,
    pub(crate) is_final: bool,
    pub(crate) spent_total: u64,
    pub(crate) overrun_total: u64,
    pub(crate) tallies: Tallies,
}

/// Counts that are reported as what came since the last report. Of a report that is
/// lost they are reported once more, so none is ever lost, and of one that arrived
/// without our knowing some are reported twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tallies {
    refused: u64,
    degraded: u64,
    shadowed: u64,
}

impl Tallies {
    fn of(counts: &Counts) -> Self {
        Self {
            refused: counts.refused,
            degraded: counts.degraded,
            shadowed: counts.shadowed,
        }
    }

    pub(crate) fn in_report(report: &Report) -> Self {
        Self {
            refused: report.refused,
            degraded: report.degraded,
            shadowed: report.shadowed,
        }
    }

    fn less(self, other: Self) -> Self {
        Self {
            refused: self.refused.wrapping_sub(other.refused),
            degraded: self.degraded.wrapping_sub(other.degraded),
            shadowed: self.shadowed.wrapping_sub(other.shadowed),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            refused: self.refused.wrapping_add(other.refused),
            degraded: self.degraded.wrapping_add(other.degraded),
            shadowed: self.shadowed.wrapping_add(other.shadowed),
        }
    }
}

/// What a look at a key led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// It wants to be in the next sync, which should leave at once.
    pub(crate) report: bool,
    /// It wants to be looked at again then.
    pub(crate) again_ns: Option<u64>,
}

/// One key, seen by the driver.
#[derive(Debug)]
pub(crate) struct KeyCore {
    pub(crate) key: Arc<str>,
    pub(crate) slot: Arc<Slot>,
    /// The stream knows which key the number stands for.
    pub(crate) is_announced: bool,
    /// It knows it for sure: a number that is done with may be forgotten.
    is_named: bool,
    /// When the key is due for its next look, as the core's timers have it.
    pub(crate) timer_ns: Option<u64>,
    demand: Demand,
    slice_factor_milli: u32,
    ask: Ask,
    /// A want is registered with the coordinator, or will be by the next report.
    wants: bool,
    /// How long an answer takes.
    rtt_ns: u64,
    /// Local refusals end then.
    until_ns: u64,
    /// How long a key stays refused once it was.
    cooldown_ns: u64,
    /// The policy was told on this stream.
    is_policy_told: bool,
    /// The highest lane that is refused until then.
    refused_lane: Lane,
    /// What needs so many units on top of what is left, or more, is refused until then.
    refused_from: u64,
    backoff_ns: u64,
    /// The newest lease that was granted, and its own limit.
    own_generation: u64,
    own_deadline_ns: u64,
    /// The lease that the counts below are of.
    generation: u64,
    spent_seen: u64,
    spent_acked: u64,
    ages: Ages,
    missed_seen: u64,
    acquired_seen: u64,
    /// Some requests were not admitted between the last two samples.
    missed_now: bool,
    /// What was said of the counts, and what of that is known to have arrived.
    tallies_told: Tallies,
    tallies_acked: Tallies,
    last_request_ns: u64,
    /// Who spends down to this rings, as the slot was told.
    bell: u64,
    /// When the oldest spend was seen that no report has stated.
    untold_since_ns: Option<u64>,
    /// A request was told `Empty` since the last answer: the ask says that one
    /// waits, so that the answer is units or a refusal that the next one is told.
    is_probe: bool,
    /// The highest lane of such a request.
    probe_lane: Lane,
    /// The highest lane of one between the last two samples.
    probed_now: Lane,
    is_closed: bool,
    /// No budget is for it, as the coordinator said last.
    has_no_budget: bool,
    told: Option<Told>,
    /// The coordinator may have a want of it on this stream.
    is_want_known: bool,
    /// The sync that told it.
    told_seq: u64,
    sample: Sample,
}

impl KeyCore {
    pub(crate) fn new(key: Arc<str>, slot: Arc<Slot>, now_ns: u64) -> Self {
        Self {
            key,
            slot,
            is_announced: false,
            is_named: false,
            timer_ns: None,
            demand: Demand::new(now_ns),
            slice_factor_milli: 1500,
            ask: Ask::None,
            wants: false,
            rtt_ns: 0,
            until_ns: 0,
            cooldown_ns: 0,
            is_policy_told: false,
            refused_lane: Lane(0),
            refused_from: 1,
            backoff_ns: BACKOFF_MIN,
            own_generation: 0,
            own_deadline_ns: u64::MAX,
            generation: 0,
            spent_seen: 0,
            spent_acked: 0,
            ages: Ages::default(),
            missed_seen: 0,
            acquired_seen: 0,
            missed_now: false,
            tallies_told: Tallies::default(),
            tallies_acked: Tallies::default(),
            last_request_ns: now_ns,
            bell: u64::MAX,
            untold_since_ns: None,
            is_probe: false,
            probe_lane: Lane::LOWEST,
            probed_now: Lane::LOWEST,
            is_closed: false,
            has_no_budget: false,
            told: None,
            is_want_known: false,
            told_seq: 0,
            sample: Sample::default(),
        }
    }

    /// Samples the slot and decides whether there is something to say.
    pub(crate) fn look(&mut self, clock: &impl Clock) -> Look {
        let now = clock.now_ns();
        let turn_ns = if self.slot.is_gated() {
            self.slot.release_due(now)
        } else {
            None
        };
        self.take_sample(now, clock);
        self.update_ask(now);
        let bell = self.bell(now);
        if bell != self.bell {
            let is_higher = bell > self.bell;
            self.bell = bell;
            self.slot.set_bell(bell);
            if is_higher {
                // What was spent before and did not ring is in this sample.
                self.take_sample(now, clock);
                self.update_ask(now);
            }
        }

        let spends_due = self
            .untold_since_ns
            .map(|since| since + self.demand.window_ns() / 4);
        let report = self.ask == Ask::Due
            || spends_due.is_some_and(|due| due <= now)
            || self.has_spare_permits();
        let mut again = None;
        let mut at =
            |moment: u64| again = Some(again.map_or(moment, |known: u64| known.min(moment)));
        if !report && let Some(due) = spends_due {
            at(due);
        }
        if let Some(turn_ns) = turn_ns {
            at(turn_ns);
        }
        if let Some(until) = self.sample.reserved_until_ns {
            at(until.max(now + MILLISECOND));
        }
        if self.sample.waiting > 0 && self.ask == Ask::Refused {
            at(self.until_ns.max(now + MILLISECOND));
        }
        if !self.is_quiet(now) {
            at(self.last_request_ns + self.step_ns());
        }
        Look {
            report,
            again_ns: again,
        }
    }

    fn take_sample(&mut self, now: u64, clock: &impl Clock) {
        self.slot.sample(&mut self.sample);
        if self.sample.reserved_until_ns.is_some_and(|at| at <= now) {
            self.slot.expire_reservations(now);
            self.slot.sample(&mut self.sample);
        }
        // After the sample: whatever it shows as spent was spent before this.
        let after_ns = clock.floor_ns();
        let mut arrived = 0;
        if let Some(current) = self.sample.current {
            if current.generation != self.generation {
                self.generation = current.generation;
                (self.spent_seen, self.spent_acked) = (0, 0);
                self.ages.clear();
            }
            arrived = current.spent.saturating_sub(self.spent_seen);
            self.spent_seen = self.spent_seen.max(current.spent);
            self.ages.seen(after_ns, arrived);
            if arrived > 0 {
                self.untold_since_ns.get_or_insert(now);
            }
        }
        let Counts {
            missed, acquired, ..
        } = self.slot.counts();
        // Permits that were taken are demand that is never spent.
        arrived += acquired.wrapping_sub(self.acquired_seen);
        self.acquired_seen = acquired;
        let missed_now = missed.wrapping_sub(self.missed_seen);
        arrived += missed_now;
        self.missed_seen = missed;
        self.missed_now = missed_now > 0;
        self.probed_now = self.slot.take_probed();
        self.demand.record(now, arrived);
        if arrived > 0 || self.sample.waiting > 0 {
            self.last_request_ns = now;
        }
    }

    /// How long after a look the next one is, while there are requests.
    fn step_ns(&self) -> u64 {
        (self.demand.window_ns() / 20).clamp(5 * MILLISECOND, 50 * MILLISECOND)
    }

    /// Whether nothing was noticed for so long that the next spend has to ring.
    fn is_quiet(&self, now: u64) -> bool {
        now.saturating_sub(self.last_request_ns) >= self.step_ns()
    }

    fn telling(&self, now: u64) -> Told {
        Told {
            totals: self.sample.current.unwrap_or_default(),
            ended: self.sample.ended.len(),
            want: self.want(),
            waiting: self.waiting_told(),
            lanes: self.lanes_told(),
            listens: self.listens(now),
        }
    }

    /// Whether it is to hear when somebody ends its cool-down. Of a key that nobody asks
    /// for, the next request asks instead.
    fn listens(&self, now: u64) -> bool {
        !self.is_closed && !self.is_long_idle(now, false) && self.slot.cooling_until().is_some()
    }

    /// Whether anything has changed since it was last told.
    pub(crate) fn is_untold(&self, now: u64) -> bool {
        let counts = self.slot.counts();
        let now = self.telling(now);
        self.told
            .map_or(now != Told::default() || self.is_want_known, |told| {
                told != now
            })
            || !self.sample.ended.is_empty()
            || Tallies::of(&counts) != self.tallies_told
    }

    /// Whether a request waits for an answer.
    pub(crate) fn is_urgent(&self) -> bool {
        self.waiting_told() > 0
    }

    /// Whether the key has any lease to account for.
    pub(crate) fn has_lease(&self) -> bool {
        self.sample.current.is_some() || !self.sample.ended.is_empty()
    }

    /// How many reports the key takes at most.
    pub(crate) fn reports_max(&self) -> usize {
        self.sample.ended.len() + 1
    }

    /// Whether the key can be forgotten: nobody asks, nothing is left to account
    /// for, and the coordinator knows that nothing is wanted, so that no grant
    /// can be on its way to a key that is not there any more.
    pub(crate) fn is_forgettable(&self, now: u64, is_crowded: bool) -> bool {
        self.tallies_acked == Tallies::of(&self.slot.counts())
            && !self.is_want_known
            && !self.has_lease()
            && self.is_long_idle(now, is_crowded)
            && self.slot.is_idle()
    }

    /// Nothing is wanted any more, and nobody is served.
    pub(crate) fn close(&mut self) {
        self.slot.close();
        self.is_closed = true;
        self.wants = false;
        self.settle_ask(Ask::None);
    }

    /// Whether nobody has asked for it for so long that it is handed back. What has units
    /// stays as long whoever else needs room.
    fn is_long_idle(&self, now: u64, is_crowded: bool) -> bool {
        let kept_for = 4 * self.demand.window_ns();
        let gives_way = self.left() == 0 && (is_crowded || self.has_no_budget);
        let kept_for = if gives_way {
            kept_for.min(IDLE_WITHOUT_UNITS)
        } else {
            kept_for
        };
        now.saturating_sub(self.last_request_ns) >= kept_for
    }

    /// Hands everything back when the key is idle; until then its units stay
    /// parked here. Called with a fresh sample.
    pub(crate) fn hand_back(&mut self, now: u64, is_crowded: bool) {
        if self.sample.waiting > 0 || !self.is_long_idle(now, is_crowded) {
            return;
        }
        self.wants = false;
        let Some(current) = self.sample.current else {
            return;
        };
        if self.slot.end() {
            self.abandon_ask();
        } else if self.slot.give_back(current.left) == 0 {
            return;
        }
        self.slot.sample(&mut self.sample);
    }

    /// Appends the key's reports as part of sync `seq`.
    pub(crate) fn report(&mut self, seq: u64, clock: &impl Clock, reports: &mut Vec<Report>) {
        let now = clock.now_ns();
        self.take_sample(now, clock);
        self.update_ask(now);
        let tallies = Tallies::of(&self.slot.counts());
        let untold = tallies.less(self.tallies_told);
        let told = self.telling(now);
        let patient_ns = self.sample.patient_until_ns.saturating_sub(now);
        let level = Report {
            key_id: self.slot.index(),
            want: told.want,
            waiting: told.waiting,
            waiting_head: self.head_told(),
            wait_us: patient_ns / 1000,
            lanes: self.lanes_waiting(&told, now),
            peak: self.demand.peak(),
            demand_milli: self.demand.milli_per_second(),
            ..Report::default()
        };
        let before = reports.len();
        for ended in &self.sample.ended {
            reports.push(Report {
                is_final: ended.held == 0,
                ..of_lease(&level, ended)
            });
        }
        match &self.sample.current {
            Some(current) => {
                let spent_ages = self.ages.report(clock.floor_ns());
                reports.push(Report {
                    spent_ages,
                    ..of_lease(&level, current)
                });
            }
            // Of no lease, and nothing wanted: the key is done with.
            None if told.want > 0 || before == reports.len() => reports.push(Report {
                is_final: told.want == 0 && !told.listens,
                ..level
            }),
            None => {}
        }
        let is_done = told.want == 0 && reports[before..].iter().all(|report| report.is_final);
        if let Some(first) = reports.get_mut(before) {
            first.key = (!self.is_named).then(|| Arc::clone(&self.key));
            (first.refused, first.degraded) = (untold.refused, untold.degraded);
            first.shadowed = untold.shadowed;
        }
        (self.is_announced, self.is_named) = (true, !is_done);
        if is_done && self.slot.cooling_until().is_some() {
            // Nobody says any more whether it still does.
            self.ask_anew();
        }
        self.tallies_told = tallies;
        self.untold_since_ns = None;
        self.told = Some(told);
        self.told_seq = seq;
        // Also when nothing is wanted: until that is acknowledged.
        self.is_want_known = true;
        self.asked(&told, seq, now);
    }

    /// A report was applied.
    pub(crate) fn acknowledge(&mut self, seq: u64, brief: Brief) {
        let Brief {
            generation,
            is_final,
            spent_total,
            tallies,
            overrun_total,
            ..
        } = brief;
        self.tallies_acked = self.tallies_acked.and(tallies);
        if overrun_total > 0 {
            self.slot.note_overrun(generation, overrun_total);
        }
        if seq == self.told_seq && self.told.is_some_and(|told| told.want == 0) {
            self.is_want_known = false;
        }
        if is_final {
            self.slot.forget(generation);
        }
        if generation == self.generation {
            self.spent_acked = self.spent_acked.max(spent_total);
            self.ages
                .keep_youngest(self.spent_seen - self.spent_acked.min(self.spent_seen));
        }
    }

    /// A report may be lost: everything must be told again, also what it counted if
    /// it was of the present stream. (A new stream begins with all that is not known
    /// to have arrived.)
    pub(crate) fn tell_again(&mut self, lost: Option<Brief>) {
        self.told = None;
        if let Some(lost) = lost {
            self.tallies_told = self.tallies_told.less(lost.tallies);
        }
    }

    /// A new stream: it knows no numbers and no asks.
    pub(crate) fn start_stream(&mut self) {
        (self.is_announced, self.is_named) = (false, false);
        (self.told, self.is_want_known) = (None, false);
        self.is_policy_told = false;
        self.tallies_told = self.tallies_acked;
        // What is wanted stays wanted, and is restated with everything else.
        if matches!(self.ask, Ask::Sent { .. } | Ask::Due) {
            self.settle_ask(Ask::None);
        }
    }

    /// The session is gone. What its leases have spent goes to `settled`.
    pub(crate) fn void(&mut self, settled: &mut Vec<(u64, u64)>) {
        self.slot.void(settled);
        self.ages.clear();
        (self.generation, self.spent_seen, self.spent_acked) = (0, 0, 0);
        (self.own_generation, self.own_deadline_ns) = (0, u64::MAX);
        self.untold_since_ns = None;
        self.start_stream();
        self.slot.sample(&mut self.sample);
    }

    /// Moves the deadline of the present lease with its session's, as far as its
    /// own limit allows.
    pub(crate) fn renew(&self, session_deadline_ns: u64, now: u64) {
        self.slot
            .renew(session_deadline_ns.min(self.own_deadline_ns), now);
    }

    /// Takes in what the coordinator's books say of a lease of this key: a grant
    /// that was lost is taken in, or handed back if it is too old.
    pub(crate) fn reconcile(&self, lease: &LeaseState, session_deadline_ns: u64, now: u64) {
        let LeaseState {
            generation,
            granted_total,
            spent_total,
            ..
        } = *lease;
        // Its own limit, if it has one that was never heard of here, is restated
        // by the next answer.
        let own = generation == self.own_generation;
        let own_deadline_ns = if own { self.own_deadline_ns } else { u64::MAX };
        let deadline_ns = session_deadline_ns.min(own_deadline_ns);
        if self.slot.grant(generation, granted_total, deadline_ns) == Granted::Stale {
            self.slot
                .adopt_unseen(generation, granted_total, spent_total);
        }
        self.slot.renew(deadline_ns, now);
        self.slot.park_if_late(now);
    }

    fn set_policy(&mut self, policy: &Policy) {
        self.demand
            .set_window(policy.timescale_us.saturating_mul(1000));
        self.slice_factor_milli = policy.slice_factor_milli;
        self.slot.set_rule(SlotRule {
            limit: policy.limit,
            failure: policy.failure,
            window_ns: policy.window_us.saturating_mul(1000),
            shadow: policy.shadow,
            max_wait_ns: policy.max_wait_us.saturating_mul(1000),
            kind: policy.kind,
            hold_max_ns: policy.hold_max_us.saturating_mul(1000),
            release_every_ns: policy.release_every_ns,
        });
        // A shadow refuses nothing: there is nothing to cool down after.
        self.cooldown_ns = match policy.shadow {
            true => 0,
            false => policy.cooldown_us.saturating_mul(1000),
        };
        self.slot.set_lanes(&policy.lanes);
        self.slot.set_quota(policy);
    }
}

fn of_lease(level: &Report, totals: &Totals) -> Report {
    if totals.is_own {
        // The coordinator granted nothing, and hears what was spent.
        return Report {
            generation: totals.generation,
            spent_total: totals.spent,
            ..level.clone()
        };
    }
    Report {
        generation: totals.generation,
        granted_seen: totals.granted,
        spent_total: totals.spent,
        returned_total: totals.returned,
        held: totals.held,
        left: totals.left,
        overrun_total: totals.overrun,
        ..level.clone()
    }
}
