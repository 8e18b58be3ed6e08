//! What the driver knows of one key: when to ask, what to want, when to report
//! and when to hand back. Knows neither the session nor the other keys.
//!
//! Past 600 lines because asking, reporting and handing back share one state; it
//! is split when parking and recall on need give each of them a policy of its own.

use std::sync::Arc;

use crate::{
    ages::Ages,
    books::Totals,
    clock::{Clock, MILLISECOND, SECOND},
    demand::Demand,
    message::{KeyGrant, LeaseState, Policy, Refusal, Report},
    refill::{Granted, Sample},
    slot::{Slot, SlotRule},
    verdict::Code,
};

/// The longest pause that this client adds to a refusal by itself, and for how
/// long a refusal without an end is believed.
const BACKOFF_MAX: u64 = SECOND;
const BACKOFF_MIN: u64 = 10 * MILLISECOND;

/// Where the key's one ask stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Nothing is wanted.
    None,
    /// To be sent with the next sync.
    Due,
    /// Sent with this sync; the answer, or the rest of it, is to come.
    Sent {
        seq: u64,
        at_ns: u64,
        waiting: u64,
        generation: u64,
        granted: u64,
    },
    /// Refused. The want stays registered, and is asked again when a request
    /// comes after the refusal's end.
    Refused,
}

/// What was last said of a lease, to say it again only when it has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    totals: Totals,
    ended: usize,
    want: u64,
    waiting: u64,
}

/// What is remembered of a report until it is acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief {
    pub(crate) index: u32,
    pub(crate) generation: u64,
    pub(crate) is_final: bool,
    pub(crate) spent_total: u64,
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
    /// Local refusals end then.
    until_ns: u64,
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
    /// Some requests were not admitted between the last two samples.
    missed_now: bool,
    refused_told: u64,
    degraded_told: u64,
    last_request_ns: u64,
    /// When the oldest spend was seen that no report has stated.
    untold_since_ns: Option<u64>,
    /// A request was told `Empty` since the last answer: the ask says that one
    /// waits, so that the answer is units or a refusal that the next one is told.
    is_probe: bool,
    is_closed: bool,
    told: Option<Told>,
    /// The sync that told it, and the latest one that was acknowledged.
    told_seq: u64,
    acked_seq: u64,
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
            until_ns: 0,
            backoff_ns: BACKOFF_MIN,
            own_generation: 0,
            own_deadline_ns: u64::MAX,
            generation: 0,
            spent_seen: 0,
            spent_acked: 0,
            ages: Ages::default(),
            missed_seen: 0,
            missed_now: false,
            refused_told: 0,
            degraded_told: 0,
            last_request_ns: now_ns,
            untold_since_ns: None,
            is_probe: false,
            is_closed: false,
            told: None,
            told_seq: 0,
            acked_seq: 0,
            sample: Sample::default(),
        }
    }

    /// Samples the slot and decides whether there is something to say.
    pub(crate) fn look(&mut self, clock: &impl Clock) -> Look {
        let now = clock.now_ns();
        self.take_sample(now, clock);
        self.update_ask(now);

        let spends_due = self
            .untold_since_ns
            .map(|since| since + self.demand.window_ns() / 4);
        let report = self.ask == Ask::Due || spends_due.is_some_and(|due| due <= now);
        let mut again = None;
        let mut at =
            |moment: u64| again = Some(again.map_or(moment, |known: u64| known.min(moment)));
        if !report && let Some(due) = spends_due {
            at(due);
        }
        if self.sample.waiting > 0 && self.ask == Ask::Refused {
            at(self.until_ns.max(now + MILLISECOND));
        }
        let step = (self.demand.window_ns() / 20).clamp(5 * MILLISECOND, 50 * MILLISECOND);
        if now.saturating_sub(self.last_request_ns) < 4 * step {
            at(now + step);
        }
        Look {
            report,
            again_ns: again,
        }
    }

    fn take_sample(&mut self, now: u64, clock: &impl Clock) {
        self.slot.sample(&mut self.sample);
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
        let missed = self.slot.counts().missed;
        let missed_now = missed.wrapping_sub(self.missed_seen);
        arrived += missed_now;
        self.missed_seen = missed;
        self.missed_now = missed_now > 0;
        self.demand.record(now, arrived);
        if arrived > 0 || self.sample.waiting > 0 {
            self.last_request_ns = now;
        }
    }

    fn is_wanted(&self, now: u64) -> bool {
        self.sample.waiting > 0
            || now.saturating_sub(self.last_request_ns) <= self.demand.horizon_ns()
    }

    fn left(&self) -> u64 {
        self.sample.current.map_or(0, |current| current.left)
    }

    fn update_ask(&mut self, now: u64) {
        if self.is_closed {
            return;
        }
        // Too little, also when it is not nothing: a request may need more, or
        // more than there was to be had when the limit was last heard of.
        let is_short = self.left() == 0
            || (self.missed_now && (self.level() > self.left() || !self.slot.is_rule_fresh(now)));
        let is_empty = is_short && now == self.last_request_ns;
        let is_probe = is_empty && self.missed_now;
        let waits = self.sample.waiting > 0 || is_probe;
        let ask = match self.ask {
            Ask::None if waits || is_empty => Ask::Due,
            Ask::Refused if now >= self.until_ns && (waits || is_empty) => Ask::Due,
            Ask::Refused if !self.is_wanted(now) => Ask::None,
            // A request waits now, and the ask did not say so.
            Ask::Sent { waiting: 0, .. } if waits => Ask::Due,
            // Nothing was heard for long: the ask or its answer may be lost.
            Ask::Sent { at_ns, .. } if now.saturating_sub(at_ns) > 2 * SECOND => {
                if waits || is_empty {
                    Ask::Due
                } else {
                    Ask::None
                }
            }
            ask => ask,
        };
        match ask {
            Ask::None if self.ask != Ask::None => self.abandon_ask(),
            Ask::Due => {
                self.is_probe |= is_probe;
                self.ask = Ask::Due;
            }
            _ => {}
        }
    }

    /// The ask was answered, or is void. The queue must be looked at after this.
    fn settle_ask(&mut self, ask: Ask) {
        self.ask = ask;
        self.is_probe = false;
        self.slot.set_asked(false);
    }

    /// The ask is void, and the queue was looked at before this: who joined it
    /// meanwhile relied on the ask, so it is looked at again.
    fn abandon_ask(&mut self) {
        self.settle_ask(Ask::None);
        self.slot.ring();
    }

    /// Units that requests wait for, as the coordinator is told.
    fn waiting_told(&self) -> u64 {
        self.sample.waiting_units.max(u64::from(self.is_probe))
    }

    /// The units wanted now.
    fn want(&self) -> u64 {
        if self.ask == Ask::None {
            return 0;
        }
        self.level().saturating_sub(self.left())
    }

    /// The units that should be at hand.
    fn level(&self) -> u64 {
        let slice = self.demand.slice(self.slice_factor_milli);
        let level = match self.slot.known_limit() {
            // The request may be impossible: only the present limit is asked for.
            Some(limit) if self.sample.waiting_head > limit => 1,
            Some(limit) => slice.max(self.sample.waiting_units).min(limit.max(1)),
            None => slice.max(self.sample.waiting_units),
        };
        level.max(self.sample.waiting_head.min(1))
    }

    fn telling(&self) -> Told {
        Told {
            totals: self.sample.current.unwrap_or_default(),
            ended: self.sample.ended.len(),
            want: self.want(),
            waiting: self.waiting_told(),
        }
    }

    /// Whether anything has changed since it was last told.
    pub(crate) fn is_untold(&self) -> bool {
        let counts = self.slot.counts();
        let now = self.telling();
        self.told.map_or(now != Told::default(), |told| told != now)
            || !self.sample.ended.is_empty()
            || counts.refused != self.refused_told
            || counts.degraded != self.degraded_told
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
    pub(crate) fn is_forgettable(&self, now: u64) -> bool {
        let is_known = self
            .told
            .is_none_or(|told| told.want == 0 && self.acked_seq >= self.told_seq);
        is_known && !self.has_lease() && self.is_long_idle(now) && self.slot.is_idle()
    }

    /// Nothing is wanted any more, and nobody is served.
    pub(crate) fn close(&mut self) {
        self.slot.close();
        self.is_closed = true;
        self.settle_ask(Ask::None);
    }

    /// Whether nobody has asked for it for so long that it is handed back.
    pub(crate) fn is_long_idle(&self, now: u64) -> bool {
        now.saturating_sub(self.last_request_ns) >= 4 * self.demand.window_ns()
    }

    /// Hands back what is more than a slice, or everything when the key is idle.
    /// Called with a fresh sample.
    pub(crate) fn hand_back(&mut self, now: u64) {
        let Some(current) = self.sample.current else {
            return;
        };
        if self.sample.waiting > 0 {
            return;
        }
        let is_idle = self.is_long_idle(now);
        if is_idle && self.slot.end() {
            self.abandon_ask();
        } else {
            let kept = if is_idle {
                0
            } else {
                self.demand.slice(self.slice_factor_milli)
            };
            let excess = current.left.saturating_sub(kept);
            if excess == 0 || self.slot.give_back(excess) == 0 {
                return;
            }
        }
        self.slot.sample(&mut self.sample);
    }

    /// Appends the key's reports as part of sync `seq`.
    pub(crate) fn report(&mut self, seq: u64, clock: &impl Clock, reports: &mut Vec<Report>) {
        let now = clock.now_ns();
        self.take_sample(now, clock);
        self.update_ask(now);
        let counts = self.slot.counts();
        let told = self.telling();
        let patient_ns = self.sample.patient_until_ns.saturating_sub(now);
        let level = Report {
            key_id: self.slot.index(),
            want: told.want,
            waiting: told.waiting,
            waiting_head: self.sample.waiting_head.max(told.waiting.min(1)),
            wait_us: patient_ns / 1000,
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
                is_final: told.want == 0,
                ..level
            }),
            None => {}
        }
        let is_done = told.want == 0 && reports[before..].iter().all(|report| report.is_final);
        if let Some(first) = reports.get_mut(before) {
            first.key = (!self.is_named).then(|| Arc::clone(&self.key));
            first.refused = counts.refused.wrapping_sub(self.refused_told);
            first.degraded = counts.degraded.wrapping_sub(self.degraded_told);
        }
        (self.is_announced, self.is_named) = (true, !is_done);
        (self.refused_told, self.degraded_told) = (counts.refused, counts.degraded);
        self.untold_since_ns = None;
        self.told = Some(told);
        self.told_seq = seq;
        if self.ask == Ask::Due && told.want == 0 && self.sample.waiting == 0 {
            // Nothing to wait for: the answer says how the rule is now.
            self.abandon_ask();
        } else if self.ask == Ask::Due {
            let Totals {
                generation,
                granted,
                ..
            } = told.totals;
            self.ask = Ask::Sent {
                seq,
                at_ns: now,
                waiting: told.waiting,
                generation,
                granted,
            };
            self.slot.set_asked(told.waiting > 0);
        }
    }

    /// A report was applied.
    pub(crate) fn acknowledge(&mut self, seq: u64, brief: Brief) {
        let Brief {
            generation,
            is_final,
            spent_total,
            ..
        } = brief;
        self.acked_seq = self.acked_seq.max(seq);
        if is_final {
            self.slot.forget(generation);
        }
        if generation == self.generation {
            self.spent_acked = self.spent_acked.max(spent_total);
            self.ages
                .keep_youngest(self.spent_seen - self.spent_acked.min(self.spent_seen));
        }
    }

    /// A report may be lost: everything must be told again.
    pub(crate) fn tell_again(&mut self) {
        self.told = None;
    }

    /// A new stream: it knows no numbers and no asks.
    pub(crate) fn start_stream(&mut self) {
        (self.is_announced, self.is_named) = (false, false);
        self.told = None;
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
        if let Some(policy) = grant.policy {
            self.set_policy(policy);
        }
        self.slot.confirm_rule(now + BACKOFF_MAX);
        let head = self.sample.waiting_head;
        if self.slot.known_limit().is_some_and(|limit| head > limit) {
            self.slot.refuse_impossible();
            self.settle_ask(Ask::None);
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
            self.until_ns = 0;
            self.backoff_ns = rtt_ns.clamp(BACKOFF_MIN, BACKOFF_MAX);
            self.slot.lift_refusal();
        }
        self.slot.renew(deadline_ns, now);
        // A lease that is late already must not be forfeited unit by unit.
        self.slot.park_if_late(now);
        match (self.ask, grant.refusal) {
            // An answer to an earlier ask says nothing about this one.
            (Ask::Sent { seq, .. }, _) if grant.basis_seq < seq => {}
            (Ask::Sent { .. } | Ask::Refused, Some(refusal)) => self.refuse(refusal, now),
            (
                Ask::Sent {
                    waiting,
                    generation,
                    granted,
                    ..
                },
                None,
            ) => {
                let before = if generation == grant.generation {
                    granted
                } else {
                    0
                };
                let answered = grant.granted_total.saturating_sub(before) >= waiting.max(1);
                // By units that came now, or with a push before this answer.
                if answered {
                    self.settle_ask(Ask::None);
                } else {
                    self.slot.set_to_come();
                }
            }
            (Ask::Refused, None) if units > 0 => self.settle_ask(Ask::None),
            _ => {}
        }
    }

    fn refuse(&mut self, refusal: Refusal, now: u64) {
        if refusal.code == Code::CostAboveLimit {
            // The request's fault, not the key's: others may be served.
            self.slot.refuse_impossible();
            self.settle_ask(Ask::None);
            return;
        }
        let for_ever = refusal.retry_after_us == 0 && refusal.code != Code::Limit;
        let stated = refusal.retry_after_us.saturating_mul(1000);
        let pause = if for_ever {
            BACKOFF_MAX
        } else {
            stated.max(self.backoff_ns)
        };
        self.until_ns = now.saturating_add(pause);
        self.backoff_ns = (2 * self.backoff_ns).min(BACKOFF_MAX);
        self.settle_ask(Ask::Refused);
        self.slot.refuse(refusal.code, self.until_ns, for_ever);
    }

    /// Refuses everything for now, for a reason that no coordinator stated.
    pub(crate) fn refuse_here(&mut self, code: Code, now: u64) {
        self.refuse(
            Refusal {
                code,
                retry_after_us: BACKOFF_MAX / 1000,
            },
            now,
        );
    }

    fn set_policy(&mut self, policy: Policy) {
        self.demand
            .set_window(policy.timescale_us.saturating_mul(1000));
        self.slice_factor_milli = policy.slice_factor_milli;
        self.slot.set_rule(SlotRule {
            limit: policy.limit,
            fails_open: policy.fails_open,
            max_wait_ns: policy.max_wait_us.saturating_mul(1000),
        });
    }
}

fn of_lease(level: &Report, totals: &Totals) -> Report {
    Report {
        generation: totals.generation,
        granted_seen: totals.granted,
        spent_total: totals.spent,
        returned_total: totals.returned,
        held: totals.held,
        left: totals.left,
        ..level.clone()
    }
}
