//! What the core says, and when. Knows nothing of what is heard.

use std::sync::Arc;

use super::{
    ClientCore, Closing, IN_FLIGHT_MAX, Phase, SENT_MAX, SETTLE_EVERY, Sent, Session, Settle,
    to_usize,
};
use crate::{
    clock::{Clock, SECOND},
    key::{Brief, Look, Tallies},
    message::{Outgoing, Report, SettleOut, SyncOut},
    verdict::Code,
};

impl ClientCore {
    /// The next message, if one is due. Called until there is none, after every
    /// event and whenever `next_wake` has come. A message must be handed to the
    /// transport at once: time runs from the reading made in here.
    pub fn poll(&mut self, clock: &impl Clock) -> Option<Outgoing> {
        let now = clock.now_ns();
        self.listen(clock);
        if self.is_silent(now) {
            self.go_down(now);
            return Some(Outgoing::Leave);
        }
        // Also while nobody can be asked: what is taken too late is lost.
        self.park_if_late(now);
        if self.phase != Phase::Open {
            return None;
        }
        if let Some(settle) = self.settle(now) {
            return Some(Outgoing::Settle(settle));
        }
        if self.in_flight() >= IN_FLIGHT_MAX || matches!(self.closing, Closing::Sent(_)) {
            return None;
        }
        let is_full = self.full_due_ns <= now;
        if is_full {
            self.look_at_all(clock);
            let interval_ns = self
                .session
                .as_ref()
                .map_or(SECOND, |session| session.interval_ns);
            self.full_due_ns = now.saturating_add(interval_ns);
        }
        if self.closing == Closing::Wanted {
            return Some(self.close_message(clock));
        }
        (is_full || !self.ready.is_empty()).then(|| Outgoing::Sync(self.sync(is_full, clock)))
    }

    /// When `poll` has something to do at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        let mut wake = self.timers.first().map(|(at, _)| *at);
        let mut at = |moment: u64| wake = Some(wake.map_or(moment, |known| known.min(moment)));
        if let Some(moment) = self.silent_at() {
            at(moment);
        }
        if let Some(session) = self.session.as_ref().filter(|session| !session.is_parked) {
            at(session.spread_due_ns().unwrap_or(session.deadline_ns));
        }
        if self.phase == Phase::Open {
            if self.in_flight() < IN_FLIGHT_MAX {
                at(self.full_due_ns);
            }
            if let Some(Settle {
                sent: Some((_, sent)),
                ..
            }) = self.settles.front()
            {
                at(sent + SETTLE_EVERY);
            }
        }
        wake
    }

    /// Looks at keys that were rung for or whose moment has come.
    fn listen(&mut self, clock: &impl Clock) {
        let now = clock.now_ns();
        let line = Arc::clone(&self.line);
        line.take_rung(|index| self.look_at(index, clock));
        while let Some((at, index)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, index));
            if let Some(Some(core)) = self.keys.get_mut(to_usize(index)) {
                core.timer_ns = None;
            }
            self.look_at(index, clock);
        }
    }

    fn look_at(&mut self, index: u32, clock: &impl Clock) {
        let keys_max = self.keys_max();
        let Some(Some(core)) = self.keys.get_mut(to_usize(index)) else {
            return;
        };
        let Look { report, again_ns } = core.look(clock);
        if report && index >= keys_max {
            core.refuse_here(Code::TooManyKeys, clock.now_ns());
        } else if report && self.phase == Phase::Open {
            self.ready.insert(index);
        }
        if let Some(again_ns) = again_ns {
            self.set_timer(index, again_ns);
        }
    }

    /// The most keys that the session may have.
    fn keys_max(&self) -> u32 {
        let session = self.session.as_ref();
        session.map_or(u32::MAX, |session| session.keys_max)
    }

    pub(super) fn set_timer(&mut self, index: u32, at_ns: u64) {
        let Some(Some(core)) = self.keys.get_mut(to_usize(index)) else {
            return;
        };
        if let Some(known) = core.timer_ns {
            if known <= at_ns {
                return;
            }
            self.timers.remove(&(known, index));
        }
        core.timer_ns = Some(at_ns);
        self.timers.insert((at_ns, index));
    }

    fn look_at_all(&mut self, clock: &impl Clock) {
        let now = clock.now_ns();
        let keys_max = self.keys_max();
        let is_crowded = self.is_crowded();
        for at in 0..self.keys.len() {
            let Ok(index) = u32::try_from(at) else { break };
            self.look_at(index, clock);
            let Some(core) = &mut self.keys[at] else {
                continue;
            };
            core.hand_back(now, is_crowded);
            // Of keys beyond its bound the coordinator knows nothing, and would
            // end a stream that spoke of them.
            if core.is_untold(now) && index < keys_max {
                self.ready.insert(index);
            } else if core.is_forgettable(now, is_crowded) {
                self.evictable.push(index);
            }
        }
    }

    /// Whether there is hardly room for new keys, here or in the session.
    fn is_crowded(&self) -> bool {
        let most = to_usize(self.line.keys_max().min(self.keys_max()));
        self.keys.iter().flatten().count() >= most - most / 8
    }

    fn park_if_late(&mut self, now: u64) {
        let spread_due_ns = self.session.as_ref().and_then(Session::spread_due_ns);
        if spread_due_ns.is_some_and(|due| due <= now) {
            self.spread(now);
        }
        let Some(session) = self.session.as_mut().filter(|session| !session.is_parked) else {
            return;
        };
        if now >= session.deadline_ns {
            session.is_parked = true;
            self.keys
                .iter()
                .flatten()
                .for_each(|core| core.slot.park_if_late(now));
        }
    }

    fn settle(&mut self, now: u64) -> Option<SettleOut> {
        let stream = self.stream;
        let settle = self.settles.front_mut()?;
        let is_due = settle
            .sent
            .is_none_or(|(sent_on, at)| sent_on != stream || at + SETTLE_EVERY <= now);
        is_due.then(|| {
            settle.sent = Some((stream, now));
            settle.out.clone()
        })
    }

    fn sync(&mut self, is_regular: bool, clock: &impl Clock) -> SyncOut {
        // Read before anything is sampled and before the message leaves: the
        // session's new deadline is counted from here.
        let at_ns = clock.now_ns();
        let Some(session) = &mut self.session else {
            return SyncOut {
                seq: 0,
                reports: Vec::new(),
                is_regular,
            };
        };
        let seq = session.next_seq;
        session.next_seq += 1;
        let reports_max = session.reports_max;
        let mut reports: Vec<Report> = Vec::new();
        // Who waits for an answer goes first.
        for is_urgent in [true, false] {
            let keys = &mut self.keys;
            self.ready.retain(|index| {
                let Some(Some(core)) = keys.get_mut(to_usize(*index)) else {
                    return false;
                };
                let is_full = reports.len() + core.reports_max() > reports_max;
                if core.is_urgent() != is_urgent || (is_full && !reports.is_empty()) {
                    return true;
                }
                core.report(seq, clock, &mut reports);
                false
            });
        }
        self.remember(seq, at_ns, &reports);
        SyncOut {
            seq,
            reports,
            is_regular,
        }
    }

    fn remember(&mut self, seq: u64, at_ns: u64, reports: &[Report]) {
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }
        let brief = |report: &Report| Brief {
            index: report.key_id,
            generation: report.generation,
            is_final: report.is_final,
            spent_total: report.spent_total,
            tallies: Tallies::in_report(report),
            overrun_total: report.overrun_total,
        };
        self.sent.push_back(Sent {
            seq,
            at_ns,
            stream: self.stream,
            is_answered: false,
            reports: reports.iter().map(brief).collect(),
        });
    }

    /// The message that ends the session, or one that makes room for it when
    /// there are more leases than one message may carry.
    fn close_message(&mut self, clock: &impl Clock) -> Outgoing {
        for (index, core) in (0_u32..).zip(&mut self.keys) {
            if let Some(core) = core {
                core.look(clock);
                if core.has_lease() {
                    self.ready.insert(index);
                }
            }
        }
        let out = self.sync(false, clock);
        if self.ready.is_empty() {
            self.closing = Closing::Sent(self.stream);
            Outgoing::Close(out)
        } else {
            Outgoing::Sync(out)
        }
    }

    fn unanswered(&self) -> impl Iterator<Item = &Sent> {
        self.sent
            .iter()
            .filter(|sent| sent.stream == self.stream && !sent.is_answered)
    }

    fn in_flight(&self) -> usize {
        self.unanswered().count()
    }

    fn silent_at(&self) -> Option<u64> {
        match self.phase {
            Phase::Down => None,
            Phase::Opening { sent_ns, .. } => {
                Some(sent_ns.saturating_add(self.settings.open_wait_ns))
            }
            Phase::Open => {
                let silence_ns = self.session.as_ref().map_or(SECOND, |s| s.silence_ns);
                let oldest = self.unanswered().next();
                oldest.map(|sent| sent.at_ns.saturating_add(silence_ns))
            }
        }
    }

    fn is_silent(&self, now: u64) -> bool {
        self.silent_at().is_some_and(|at| at <= now)
    }
}
