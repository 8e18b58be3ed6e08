//! One client's session with the coordinator as a state machine: messages and
//! readings go in, messages and the next moment to look come out. Knows no
//! transport, no runtime and no clock, so that a simulator in one thread drives
//! the very same code as the driver task.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use crate::{
    clock::{Clock, SECOND},
    key::{Brief, KeyCore, Look},
    line::Line,
    message::{
        Incoming, KeyGrant, LeaseState, Next, OpenOut, Opened, Outgoing, Report, SessionId,
        SettleOut, StreamId, SyncOut,
    },
    refill::Granted,
    slot::Slot,
    verdict::Code,
};

/// Syncs that may be unanswered at once: more would only spread what could
/// travel together.
const IN_FLIGHT_MAX: usize = 4;
/// Send moments that are remembered for `basis_seq`.
const SENT_MAX: usize = 256;
/// Ended sessions that wait to be settled.
const SETTLES_MAX: usize = 8;
/// A settle that was not acknowledged is repeated after this long.
const SETTLE_EVERY: u64 = SECOND;
const REPORTS_PER_SYNC: usize = 1024;

/// What a client is told when it is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreSettings {
    /// The most requests that wait for one key.
    pub waiters_max: usize,
    /// How long a request waits until the key's policy is known.
    pub max_wait_ns: u64,
    /// How long an Open may be unanswered.
    pub open_wait_ns: u64,
}

impl Default for CoreSettings {
    fn default() -> Self {
        Self {
            waiters_max: 4096,
            max_wait_ns: SECOND / 4,
            open_wait_ns: 2 * SECOND,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down,
    Opening {
        sent_ns: u64,
        resume: Option<SessionId>,
    },
    Open,
}

/// A session, as this client knows it.
#[derive(Debug)]
struct Session {
    id: SessionId,
    /// The last moment, exclusive, at which its leases may be spent.
    deadline_ns: u64,
    /// The deadline that all slots know.
    spread_ns: u64,
    is_parked: bool,
    validity_ns: u64,
    interval_ns: u64,
    silence_ns: u64,
    next_seq: u64,
    reports_max: usize,
    keys_max: u32,
}

impl Session {
    /// When slots must be told of a deadline that they do not know yet: before
    /// the one they know has come.
    fn spread_due_ns(&self) -> Option<u64> {
        let lags = self.spread_ns < self.deadline_ns;
        lags.then(|| self.spread_ns.saturating_sub(self.validity_ns / 32))
    }
}

/// A sync that was sent.
#[derive(Debug)]
struct Sent {
    seq: u64,
    at_ns: u64,
    stream: StreamId,
    is_answered: bool,
    reports: Vec<Brief>,
}

#[derive(Debug)]
struct Settle {
    out: SettleOut,
    /// The stream it was last sent on, and when.
    sent: Option<(StreamId, u64)>,
}

/// The state machine. One task drives it; spenders touch its slots only.
#[derive(Debug)]
pub struct ClientCore {
    settings: CoreSettings,
    line: Arc<Line>,
    keys: Vec<Option<KeyCore>>,
    /// Keys that have something to say at once.
    ready: BTreeSet<u32>,
    timers: BTreeSet<(u64, u32)>,
    stream: StreamId,
    phase: Phase,
    session: Option<Session>,
    sent: VecDeque<Sent>,
    settles: VecDeque<Settle>,
    full_due_ns: u64,
    rtt_ns: u64,
    closing: Closing,
    evictable: Vec<u32>,
    unknown: Vec<LeaseState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    Wanted,
    Sent(StreamId),
    Done,
}

impl ClientCore {
    /// A core without a session whose spenders ring on `line`.
    #[must_use]
    pub fn new(settings: CoreSettings, line: Arc<Line>) -> Self {
        Self {
            settings,
            line,
            keys: Vec::new(),
            ready: BTreeSet::new(),
            timers: BTreeSet::new(),
            stream: StreamId(0),
            phase: Phase::Down,
            session: None,
            sent: VecDeque::new(),
            settles: VecDeque::new(),
            full_due_ns: 0,
            rtt_ns: 0,
            closing: Closing::No,
            evictable: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// The key's slot, made if it is new. None when the line has no room.
    pub fn slot(&mut self, key: &str, now_ns: u64) -> Option<Arc<Slot>> {
        let known = self.keys.iter().flatten().find(|core| &*core.key == key);
        if let Some(core) = known {
            return Some(Arc::clone(&core.slot));
        }
        let free = self
            .keys
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.keys.len());
        let index = u32::try_from(free)
            .ok()
            .filter(|index| *index < self.line.keys_max())?;
        let CoreSettings {
            waiters_max,
            max_wait_ns,
            ..
        } = self.settings;
        let slot = Arc::new(Slot::new(
            index,
            Arc::clone(&self.line),
            waiters_max,
            max_wait_ns,
        ));
        self.adopt(Arc::from(key), Arc::clone(&slot), now_ns);
        Some(slot)
    }

    /// Takes over a slot that was made elsewhere, at an index that is free.
    pub fn adopt(&mut self, key: Arc<str>, slot: Arc<Slot>, now_ns: u64) {
        let index = slot.index();
        let at = to_usize(index);
        if self.keys.len() <= at {
            self.keys.resize_with(at + 1, || None);
        }
        let mut core = KeyCore::new(key, slot, now_ns);
        if self.closing != Closing::No {
            core.close();
        }
        self.keys[at] = Some(core);
        // Whoever rang before the key was here rang for nobody.
        self.set_timer(index, now_ns);
    }

    /// Indexes of keys that are idle and fully accounted for.
    pub fn take_evictable(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.evictable)
    }

    /// The key and the slot at an index.
    #[must_use]
    pub fn key_at(&self, index: u32) -> Option<(&str, &Arc<Slot>)> {
        let core = self.keys.get(to_usize(index))?.as_ref()?;
        Some((&core.key, &core.slot))
    }

    /// Forgets a key whose slot was evicted.
    pub fn remove(&mut self, index: u32) {
        if let Some(core) = self.keys.get_mut(to_usize(index)).and_then(Option::take)
            && let Some(at) = core.timer_ns
        {
            self.timers.remove(&(at, index));
        }
        self.ready.remove(&index);
    }

    /// Whether a session is open on a live stream.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether the session was closed in order.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.closing == Closing::Done
    }

    /// The session, if there is one.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        self.session.as_ref().map(|session| session.id)
    }

    /// A new stream begins; older ones count for nothing any more. What it
    /// returns must be handed to the transport at once: the session's time runs
    /// from now.
    pub fn start_stream(&mut self, now_ns: u64) -> OpenOut {
        self.stream.0 += 1;
        let resume = self.session.as_ref().map(|session| session.id);
        self.phase = Phase::Opening {
            sent_ns: now_ns,
            resume,
        };
        OpenOut {
            stream: self.stream,
            resume,
        }
    }

    /// A stream has ended without a word.
    pub fn on_lost(&mut self, stream: StreamId, now_ns: u64) {
        if stream == self.stream {
            self.go_down(now_ns);
        }
    }

    fn go_down(&mut self, now_ns: u64) {
        self.phase = Phase::Down;
        self.line.down(now_ns);
    }

    /// Hands everything back and refuses everything from now on. The next
    /// messages close the session.
    pub fn close(&mut self) {
        if self.closing != Closing::No {
            return;
        }
        self.closing = Closing::Wanted;
        self.keys.iter_mut().flatten().for_each(KeyCore::close);
        if self.session.is_none() {
            self.closing = Closing::Done;
        }
    }

    // --- what is heard -----------------------------------------------------

    /// Takes in a message of a stream.
    pub fn on_message(&mut self, stream: StreamId, message: Incoming, clock: &impl Clock) -> Next {
        if stream != self.stream || self.phase == Phase::Down {
            return Next::Stay;
        }
        let now = clock.now_ns();
        match (message, self.phase) {
            (Incoming::Moved { leader }, _) => {
                self.go_down(now);
                Next::Reconnect {
                    at_once: leader.is_some(),
                    leader,
                }
            }
            (Incoming::Refused { code, .. }, _) => self.on_refused(&code, now),
            (Incoming::Opened(opened), Phase::Opening { sent_ns, resume }) => {
                self.on_opened(opened, sent_ns, resume, clock);
                Next::Stay
            }
            (
                Incoming::Synced {
                    seq,
                    renewed,
                    grants,
                },
                Phase::Open,
            ) => {
                self.on_synced(seq, renewed, &grants, now);
                Next::Stay
            }
            (Incoming::Granted(grants), Phase::Open) => {
                grants.iter().for_each(|grant| self.on_grant(grant, now));
                Next::Stay
            }
            (
                Incoming::Recall {
                    key_id,
                    generation,
                    returned_total_target,
                    granted_total,
                },
                Phase::Open,
            ) => {
                let grant = KeyGrant {
                    key_id,
                    generation,
                    granted_total,
                    ..KeyGrant::default()
                };
                self.on_grant(&grant, now);
                if let Some(core) = self.announced(key_id) {
                    core.slot.give_back_to(generation, returned_total_target);
                    self.ready.insert(key_id);
                }
                Next::Stay
            }
            (Incoming::Settled(session), _) => {
                self.settles.retain(|settle| settle.out.session != session);
                Next::Stay
            }
            (Incoming::Closed, _) if matches!(self.closing, Closing::Sent(_)) => {
                self.closing = Closing::Done;
                self.session = None;
                self.go_down(now);
                Next::Finished
            }
            _ => Next::Stay,
        }
    }

    fn on_refused(&mut self, code: &str, now: u64) -> Next {
        let mut at_once = false;
        match code {
            "session_expired" => {
                self.lose_session(true);
                at_once = true;
            }
            // Another process goes on with this session, or may not: its books
            // are no longer ours to settle.
            "superseded" | "identity_mismatch" => self.lose_session(false),
            _ => {}
        }
        self.go_down(now);
        if self.closing == Closing::Done {
            return Next::Finished;
        }
        Next::Reconnect {
            leader: None,
            at_once,
        }
    }

    /// Voids every lease. What was spent of them is settled later.
    fn lose_session(&mut self, settle: bool) {
        let Some(session) = self.session.take() else {
            return;
        };
        let mut leases = Vec::new();
        let mut spent = Vec::new();
        for core in self.keys.iter_mut().flatten() {
            core.void(&mut spent);
            let key = &core.key;
            leases.extend(
                spent
                    .drain(..)
                    .map(|(generation, spent)| (Arc::clone(key), generation, spent)),
            );
        }
        self.sent.clear();
        self.ready.clear();
        if settle && !leases.is_empty() {
            if self.settles.len() >= SETTLES_MAX {
                self.settles.pop_front();
            }
            let out = SettleOut {
                session: session.id,
                leases,
            };
            self.settles.push_back(Settle { out, sent: None });
        }
        if self.closing != Closing::No {
            self.closing = Closing::Done;
        }
    }

    fn on_opened(
        &mut self,
        opened: Opened,
        sent_ns: u64,
        resume: Option<SessionId>,
        clock: &impl Clock,
    ) {
        let now = clock.now_ns();
        let is_resumed = self
            .session
            .as_ref()
            .is_some_and(|session| session.id == opened.session);
        if !is_resumed {
            // Asked to resume and given another: the old one is gone.
            self.lose_session(resume.is_some());
            let deadline_ns = sent_ns.saturating_add(opened.validity_us.saturating_mul(1000));
            self.session = Some(Session {
                id: opened.session,
                deadline_ns,
                spread_ns: deadline_ns,
                is_parked: false,
                validity_ns: 0,
                interval_ns: 0,
                silence_ns: 0,
                next_seq: 1,
                reports_max: 0,
                keys_max: 0,
            });
        }
        if let Some(session) = &mut self.session {
            // A resume does not renew: the deadline moves with the first sync.
            session.validity_ns = opened.validity_us.saturating_mul(1000);
            session.interval_ns = opened
                .sync_interval_us
                .saturating_mul(1000)
                .max(SECOND / 100);
            session.silence_ns = (opened.session_ttl_us.saturating_mul(1000) / 4).max(SECOND / 10);
            session.reports_max = match opened.reports_per_sync_max {
                0 => REPORTS_PER_SYNC,
                max => to_usize(max),
            };
            session.keys_max = match opened.keys_per_session_max {
                0 => u32::MAX,
                max => max,
            };
        }
        self.phase = Phase::Open;
        self.line.up();
        self.keys
            .iter_mut()
            .flatten()
            .for_each(KeyCore::start_stream);
        if is_resumed {
            self.reconcile(opened.leases);
        }
        // A resume restates everything at once; so do requests that waited.
        self.full_due_ns = now;
    }

    /// Compares the coordinator's books with ours: grants that were lost on the
    /// way are taken in, or handed back if they are too old.
    fn reconcile(&mut self, leases: Vec<LeaseState>) {
        let Some(session) = &self.session else { return };
        let known: HashMap<&str, &KeyCore> = self
            .keys
            .iter()
            .flatten()
            .map(|core| (&*core.key, core))
            .collect();
        for lease in leases {
            let Some(core) = known.get(&*lease.key) else {
                self.unknown.push(lease);
                continue;
            };
            let LeaseState {
                generation,
                granted_total,
                spent_total,
                ..
            } = lease;
            // Their own limit, if they have one, is restated by the next answer.
            if core
                .slot
                .grant(generation, granted_total, session.deadline_ns)
                == Granted::Stale
            {
                core.slot
                    .adopt_unseen(generation, granted_total, spent_total);
            }
        }
    }

    /// Leases that the coordinator has in its books for keys which are not known
    /// here. The owner adopts a slot for each, hands it to
    /// [`Slot::adopt_unseen`], and so the lease back.
    pub fn take_unknown(&mut self) -> Vec<LeaseState> {
        std::mem::take(&mut self.unknown)
    }

    fn on_synced(&mut self, seq: u64, renewed: bool, grants: &[KeyGrant], now: u64) {
        let stream = self.stream;
        let Some(at) = self
            .sent
            .iter()
            .position(|sent| sent.seq == seq && sent.stream == stream)
        else {
            return;
        };
        // A stream keeps its order: what was sent before and not answered is
        // lost, and must be told again.
        for lost in self
            .sent
            .iter_mut()
            .take(at)
            .filter(|sent| !sent.is_answered)
        {
            lost.is_answered = true;
            for Brief { index, .. } in lost.reports.drain(..) {
                if let Some(Some(core)) = self.keys.get_mut(to_usize(index)) {
                    core.tell_again();
                }
            }
        }
        let sent = &mut self.sent[at];
        sent.is_answered = true;
        let sent_ns = sent.at_ns;
        for brief in sent.reports.drain(..) {
            if let Some(Some(core)) = self.keys.get_mut(to_usize(brief.index)) {
                core.acknowledge(seq, brief);
            }
        }
        let rtt = now.saturating_sub(sent_ns);
        self.rtt_ns = if self.rtt_ns == 0 {
            rtt
        } else {
            (7 * self.rtt_ns + rtt) / 8
        };
        if renewed {
            self.renew(sent_ns, now);
        }
        for grant in grants {
            // What answers a sync is based on it, whatever it says.
            let basis_seq = grant.basis_seq.max(seq);
            self.on_grant(
                &KeyGrant {
                    basis_seq,
                    ..grant.clone()
                },
                now,
            );
        }
    }

    fn renew(&mut self, sent_ns: u64, now: u64) {
        let Some(session) = &mut self.session else {
            return;
        };
        // From the moment before the sync was handed to the transport.
        let deadline_ns = sent_ns.saturating_add(session.validity_ns);
        session.deadline_ns = session.deadline_ns.max(deadline_ns);
        // Many keys and many syncs: a slot may lag a little behind, it then only
        // stops earlier.
        let gained = session.deadline_ns - session.spread_ns;
        if session.is_parked || gained > session.validity_ns / 32 {
            self.spread(now);
        }
    }

    /// Tells every slot the session's deadline.
    fn spread(&mut self, now: u64) {
        let Some(session) = &mut self.session else {
            return;
        };
        session.spread_ns = session.deadline_ns;
        session.is_parked = now >= session.deadline_ns;
        self.keys
            .iter()
            .flatten()
            .for_each(|core| core.renew(session.deadline_ns, now));
    }

    fn announced(&mut self, key_id: u32) -> Option<&mut KeyCore> {
        self.keys
            .get_mut(to_usize(key_id))?
            .as_mut()
            .filter(|core| core.is_announced)
    }

    fn on_grant(&mut self, grant: &KeyGrant, now: u64) {
        let Some(session) = &self.session else { return };
        let session_deadline_ns = session.deadline_ns;
        let own_deadline_ns = (grant.valid_for_us != 0).then(|| {
            // From when the sync was sent that the grant is based on. If that is
            // not remembered, the lease is taken for ended.
            let basis = self.sent.iter().find(|sent| sent.seq == grant.basis_seq);
            basis.map_or(0, |sent| {
                sent.at_ns
                    .saturating_add(grant.valid_for_us.saturating_mul(1000))
            })
        });
        let rtt_ns = self.rtt_ns;
        let Some(core) = self.announced(grant.key_id) else {
            return;
        };
        core.on_grant(grant, session_deadline_ns, own_deadline_ns, rtt_ns, now);
        self.set_timer(grant.key_id, now);
    }

    // --- what is said ------------------------------------------------------

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
        if self.phase != Phase::Open {
            return None;
        }
        self.park_if_late(now);
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
            self.full_due_ns = now + interval_ns;
        }
        if self.closing == Closing::Wanted {
            return Some(self.close_message(clock));
        }
        (is_full || !self.ready.is_empty()).then(|| Outgoing::Sync(self.sync(clock)))
    }

    /// When `poll` has something to do at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Option<u64> {
        let mut wake = self.timers.first().map(|(at, _)| *at);
        let mut at = |moment: u64| wake = Some(wake.map_or(moment, |known| known.min(moment)));
        if let Some(moment) = self.silent_at() {
            at(moment);
        }
        if self.phase == Phase::Open {
            if self.in_flight() < IN_FLIGHT_MAX {
                at(self.full_due_ns);
            }
            if let Some(session) = self.session.as_ref().filter(|session| !session.is_parked) {
                at(session.spread_due_ns().unwrap_or(session.deadline_ns));
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
        let keys_max = self
            .session
            .as_ref()
            .map_or(u32::MAX, |session| session.keys_max);
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

    fn set_timer(&mut self, index: u32, at_ns: u64) {
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
        for at in 0..self.keys.len() {
            let Ok(index) = u32::try_from(at) else { break };
            self.look_at(index, clock);
            let Some(core) = &mut self.keys[at] else {
                continue;
            };
            core.hand_back(now);
            if core.is_untold() {
                self.ready.insert(index);
            } else if core.is_forgettable(now) {
                self.evictable.push(index);
            }
        }
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

    fn sync(&mut self, clock: &impl Clock) -> SyncOut {
        // Read before anything is sampled and before the message leaves: the
        // session's new deadline is counted from here.
        let at_ns = clock.now_ns();
        let Some(session) = &mut self.session else {
            return SyncOut {
                seq: 0,
                reports: Vec::new(),
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
        SyncOut { seq, reports }
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
        let out = self.sync(clock);
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
            Phase::Opening { sent_ns, .. } => Some(sent_ns + self.settings.open_wait_ns),
            Phase::Open => {
                let silence_ns = self.session.as_ref().map_or(SECOND, |s| s.silence_ns);
                self.unanswered().next().map(|sent| sent.at_ns + silence_ns)
            }
        }
    }

    fn is_silent(&self, now: u64) -> bool {
        self.silent_at().is_some_and(|at| at <= now)
    }
}

/// An index or a bound as a size: 32 bits fit on every platform this runs on.
fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
