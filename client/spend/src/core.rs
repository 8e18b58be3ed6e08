//! One client's session with the coordinator as a state machine: messages and
//! readings go in, messages and the next moment to look come out. Knows no
//! transport, no runtime and no clock, so that a simulator in one thread drives
//! the very same code as the driver task.

mod hear;
mod speak;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use crate::{
    clock::SECOND,
    key::{Brief, KeyCore},
    line::Line,
    message::{LeaseState, OpenOut, SessionId, SettleOut, StreamId},
    slot::Slot,
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
}

/// An index or a bound as a size: 32 bits fit on every platform this runs on.
fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
