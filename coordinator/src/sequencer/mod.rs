//! The one writer: a single task that puts everything that waits into one entry
//! at a time and tells everybody what became of it. Knows the ledger and the
//! lease policy by their interfaces only, and nothing of the wire or of HTTP.
//!
//! Stop and wait: the next entry is built when the last one was applied, so the
//! lease policy always sees a complete ledger, and an entry grows with the load.

mod calendars;
mod deliver;
pub(crate) mod event;
pub(crate) mod item;
mod log;
mod openers;
mod plan;
mod pool;
mod round;
mod streams;

use std::{collections::VecDeque, time::Duration};

use leasehold_allotter::Allotter;
use leasehold_key::Key;
use leasehold_ledger::{
    FORMAT_VERSION,
    entry::{Command, SessionId},
    settings::Settings,
};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::{
    calendars::Calendars,
    event::{Event, StreamCode, StreamRefusal},
    item::{CommandItem, Item, StreamId},
    openers::Openers,
    plan::Members,
    pool::{Pool, Work},
    round::RoundError,
    streams::{Streams, turn_away},
};
use crate::{
    clock::Reading,
    raft::{Leadership, Member},
    shadowed::Shadowed,
};

pub(crate) use self::{
    calendars::{computed, roll},
    log::Log,
};

/// Items that wait in the queue before whoever sends more has to wait.
pub(crate) const QUEUE_MAX: usize = 4_096;
/// Reports taken from the queue before more are left there.
const POOL_WEIGHT_MAX: usize = 65_536;
/// Commands taken from the queue before more are left there.
const POOL_COMMANDS_MAX: usize = 4_096;
/// Cluster time moves at least this often while anything depends on it ...
const TICK_US: u64 = 1_000_000;
/// ... and this often at first, for what fell due while nobody led.
const TICK_AT_FIRST_US: u64 = 100_000;
/// How long "at first" is.
const AT_FIRST_US: u64 = 1_000_000;

/// Why a command has no outcome.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SubmitError {
    /// Nothing was written: another node leads.
    #[error("this node does not lead")]
    NotLeader {
        /// Who does, if known.
        leader: Option<Member>,
    },
    /// It may or may not be applied, now or later.
    #[error("leadership was lost while the command was under way; it may or may not be applied")]
    OutcomeUnknown,
    /// Nothing was written: too much waits already.
    #[error("too many commands wait already")]
    Overloaded,
    /// Nothing was written: some member does not read what would have to be.
    #[error(
        "this needs version {needed} of the stored formats, and only {allowed} is known to be read by every member"
    )]
    MemberTooOld {
        /// The version that it needs.
        needed: u32,
        /// The version that may be written.
        allowed: u32,
    },
    /// Nothing was written: the node is stopping.
    #[error("this node is shutting down")]
    ShuttingDown,
    /// Nothing was written: the replica has stopped.
    #[error("this node's replica has stopped")]
    Stopped,
}

/// One unbroken time of leading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reign {
    pub(crate) term: u64,
    anchor_us: u64,
    since: Reading,
}

impl Reign {
    /// That of a leadership, if it is one.
    pub(crate) const fn of(leadership: &Leadership) -> Option<Self> {
        match leadership {
            Leadership::Leading {
                term,
                anchor_us,
                since,
            } => Some(Self {
                term: *term,
                anchor_us: *anchor_us,
                since: *since,
            }),
            Leadership::Following { .. } => None,
        }
    }

    /// Cluster time now.
    pub(crate) fn now_us(&self) -> u64 {
        // Never 0, so that a cluster whose time has moved is known not to be new.
        self.anchor_us
            .saturating_add(self.since.elapsed_us())
            .max(1)
    }
}

/// The task's state.
pub(crate) struct Sequencer<L> {
    log: L,
    queue: mpsc::Receiver<Item>,
    leadership: watch::Receiver<Leadership>,
    stop: CancellationToken,
    pool: Pool,
    commands: VecDeque<CommandItem>,
    streams: Streams,
    allotter: Allotter,
    /// Which periods are to begin.
    calendars: Calendars,
    /// Keys whose rule was edited, or of which units came free by hand or with a period, with the sessions that are to hear of it yet.
    edited: VecDeque<(SessionId, Key)>,
    /// For whom accounts were opened.
    openers: Openers,
    /// Keys that sessions wanted units of and may not see any more.
    unseen: Vec<(SessionId, Key)>,
    initial_settings: Settings,
    /// What shadow policies would have refused.
    shadowed: Shadowed,
}

impl<L: Log> Sequencer<L> {
    pub(crate) fn new(
        log: L,
        queue: mpsc::Receiver<Item>,
        leadership: watch::Receiver<Leadership>,
        stop: CancellationToken,
        initial_settings: Settings,
        shadowed: Shadowed,
    ) -> Self {
        Self {
            log,
            queue,
            leadership,
            stop,
            pool: Pool::default(),
            commands: VecDeque::new(),
            streams: Streams::default(),
            allotter: Allotter::new(),
            calendars: Calendars::default(),
            edited: VecDeque::new(),
            unseen: Vec::new(),
            openers: Openers::default(),
            initial_settings,
            shadowed,
        }
    }

    /// Runs until stopped, or until nobody can send it anything any more.
    pub(crate) async fn run(mut self) {
        while !self.stop.is_cancelled() {
            let leadership = self.leadership.borrow_and_update().clone();
            let goes_on = match (Reign::of(&leadership), leadership) {
                (Some(reign), _) => self.lead(reign).await,
                (None, Leadership::Following { leader }) => self.follow(leader).await,
                (None, Leadership::Leading { .. }) => false,
            };
            if !goes_on {
                break;
            }
        }
        self.turn_everybody_away(
            &Event::Refused(StreamRefusal {
                code: StreamCode::ShuttingDown,
                detail: "this node is shutting down".to_owned(),
            }),
            &SubmitError::ShuttingDown,
        );
        self.queue.close();
        while let Ok(item) = self.queue.try_recv() {
            self.accept(item);
        }
        self.turn_everybody_away(
            &Event::Refused(StreamRefusal {
                code: StreamCode::ShuttingDown,
                detail: "this node is shutting down".to_owned(),
            }),
            &SubmitError::ShuttingDown,
        );
    }

    /// Sends everybody to the leader until that changes; false: nothing goes on.
    async fn follow(&mut self, leader: Option<Member>) -> bool {
        let moved = Event::Moved(leader.as_ref().map_or_else(String::new, client_url));
        let not_leader = SubmitError::NotLeader { leader };
        loop {
            self.turn_everybody_away(&moved, &not_leader);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return true,
                changed = self.leadership.changed() => return changed.is_ok(),
                item = self.queue.recv() => match item {
                    // The value of a watch is there before its waiters are woken: whoever
                    // sent this may have seen it already.
                    Some(item) => {
                        self.accept(item);
                        match self.leadership.has_changed() {
                            Ok(false) => {}
                            Ok(true) => return true,
                            Err(_) => return false,
                        }
                    }
                    None => return false,
                },
            }
        }
    }

    /// Writes entries until this reign ends; false: nothing goes on.
    async fn lead(&mut self, reign: Reign) -> bool {
        // Said once a term where the term is won. Here it may come again and again:
        // while no quorum answers, every request ends a reign that begins anew.
        tracing::debug!(term = reign.term, "a reign begins");
        self.allotter = Allotter::new();
        self.shadowed.begin(reign.term);
        // Every stream is a new one and will be told what is in force.
        self.edited.clear();
        self.unseen.clear();
        self.openers = Openers::default();
        self.calendars = Calendars::default();
        let log = self.log.clone();
        log.with_ledger(|ledger| self.calendars.refresh(ledger));
        self.found(&reign);
        let first_us = reign.now_us();
        let mut entry_us = first_us;
        let mut more_due = true;
        let mut needs_time = true;
        let mut is_first = true;
        loop {
            if self.stop.is_cancelled() {
                return true;
            }
            if self.leadership.has_changed().unwrap_or(true) {
                let leadership = self.leadership.borrow_and_update().clone();
                match Reign::of(&leadership) {
                    Some(now) if now.term == reign.term => {}
                    _ => {
                        self.step_down(&leadership);
                        return true;
                    }
                }
            }
            // The first entry is the reign's own: a new cluster has its settings before
            // anybody's session opens under them.
            if !is_first {
                self.drain();
            }
            is_first = false;
            let now_us = reign.now_us();
            let tick = if now_us < first_us.saturating_add(AT_FIRST_US) {
                TICK_AT_FIRST_US
            } else {
                TICK_US
            };
            let tick_us = entry_us.saturating_add(tick);
            let is_due = more_due
                || !self.pool.is_empty()
                || !self.commands.is_empty()
                || !self.edited.is_empty()
                || !self.unseen.is_empty()
                || self.allotter.is_due(now_us)
                || self.is_period_due(now_us)
                || (needs_time && tick_us <= now_us);
            if is_due {
                match self.round(&reign).await {
                    Ok(applied) => {
                        entry_us = now_us;
                        more_due = applied.more_due;
                        needs_time = applied.needs_time;
                    }
                    Err(RoundError { leader }) => {
                        self.lose(leader).await;
                        return true;
                    }
                }
                continue;
            }
            let mut wake_us = self.allotter.next_wake_us().unwrap_or(u64::MAX);
            if needs_time {
                wake_us = wake_us.min(tick_us);
            }
            if let Some(look_us) = self.calendars.next_look_us() {
                wake_us = wake_us.min(look_us);
            }
            let pause = Duration::from_micros(wake_us.saturating_sub(now_us).min(3_600_000_000));
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return true,
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        return false;
                    }
                    // Looked at above: `has_changed` no longer says so.
                    let leadership = self.leadership.borrow().clone();
                    if Reign::of(&leadership).is_none_or(|now| now.term != reign.term) {
                        self.step_down(&leadership);
                        return true;
                    }
                }
                item = self.queue.recv() => match item {
                    Some(item) => self.accept(item),
                    None => return false,
                },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Whether an entry is to be made because a period begins.
    fn is_period_due(&mut self, now_us: u64) -> bool {
        let looks = self
            .calendars
            .next_look_us()
            .is_some_and(|look_us| look_us <= now_us);
        looks
            && self
                .calendars
                .is_due(now_us, self.log.majority_wall_unix_us())
    }

    /// Cluster time moves with this task's first entry ever: before that, the
    /// cluster is new, and that entry gives it its id and its settings.
    fn found(&mut self, reign: &Reign) {
        if reign.anchor_us != 0 {
            return;
        }
        let (settled, named) = self.log.with_ledger(|ledger| {
            (
                *ledger.settings() == self.initial_settings,
                ledger.cluster_id().is_some(),
            )
        });
        if !named {
            // Nobody ever took part who reads less.
            self.do_first(Command::RaiseFormat {
                version: FORMAT_VERSION,
            });
        }
        if !settled {
            self.do_first(Command::PutSettings(self.initial_settings.clone()));
        }
        if !named && let Some(cluster_id) = draw_id() {
            self.do_first(Command::NameCluster { cluster_id });
        }
    }

    /// Lets newer formats be written once every member reads them.
    fn raise_format(&mut self, allowed: u32, members: Members) {
        let version = members.format_version.unwrap_or(0).min(FORMAT_VERSION);
        if version > allowed {
            self.do_first(Command::RaiseFormat { version });
        }
    }

    /// Nobody waits for the outcome: if there is none, the next leader finds the
    /// cluster new or finds it done.
    fn do_first(&mut self, command: Command) {
        let (reply, _) = oneshot::channel();
        self.commands.push_front(CommandItem {
            command,
            is_unseen: false,
            spender: None,
            reply,
        });
    }

    /// An entry failed: waits until the replica says who leads now, so that
    /// nothing is proposed under a term that may be over.
    async fn lose(&mut self, leader: Option<Member>) {
        let moved = Event::Moved(leader.as_ref().map_or_else(String::new, client_url));
        self.turn_everybody_away(&moved, &SubmitError::NotLeader { leader });
        // When the replica goes on leading the same term, nothing changes and this
        // only pauses; otherwise the change ends it.
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {}
            _ = self.leadership.changed() => {}
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }

    fn step_down(&mut self, leadership: &Leadership) {
        let leader = match leadership {
            Leadership::Following { leader } => leader.clone(),
            Leadership::Leading { .. } => None,
        };
        tracing::info!(
            leader = leader.as_ref().map(|leader| leader.node_id),
            "no longer leading"
        );
        let moved = Event::Moved(leader.as_ref().map_or_else(String::new, client_url));
        self.turn_everybody_away(&moved, &SubmitError::NotLeader { leader });
    }

    fn drain(&mut self) {
        while self.pool.weight() < POOL_WEIGHT_MAX && self.commands.len() < POOL_COMMANDS_MAX {
            match self.queue.try_recv() {
                Ok(item) => self.accept(item),
                Err(_) => break,
            }
        }
    }

    fn accept(&mut self, item: Item) {
        match item {
            Item::Open {
                stream,
                link,
                open,
                opened,
            } => self.pool.push(stream, Work::Open { link, open, opened }),
            Item::Message {
                stream,
                message,
                permit,
            } => {
                // What comes from a stream that was ended is void.
                if self.streams.get(stream).is_some() {
                    self.pool.push(stream, Work::Message { message, permit });
                }
            }
            Item::Sight { stream } => self.look_anew(stream),
            Item::Gone { stream } => {
                self.pool.drop_stream(stream);
                self.streams.remove(stream);
                self.detach();
            }
            Item::Command(command) => self.commands.push_back(command),
        }
    }

    /// Whoever speaks on a stream may use other keys than before: what they wanted of those
    /// that they may not is void, and they hear so.
    fn look_anew(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.get_mut(stream) else {
            return;
        };
        let session = entry.session;
        let (lost, found) = entry.look_anew();
        for key in lost {
            if self.allotter.forget(session, &key) {
                self.unseen.push((session, key));
            }
        }
        self.edited
            .extend(found.into_iter().map(|key| (session, key)));
    }

    fn detach(&mut self) {
        for session in self.streams.take_detached() {
            self.allotter.detach(session);
        }
    }

    /// Ends every stream with a last word and answers every command that waits.
    fn turn_everybody_away(&mut self, event: &Event, error: &SubmitError) {
        self.streams.tell_all(event);
        for (_, work) in self.pool.drain() {
            if let Work::Open { link, .. } = work {
                turn_away(&link, event.clone());
            }
        }
        for command in self.commands.drain(..) {
            // Nobody waits any more: nothing to say.
            drop(command.reply.send(Err(error.clone())));
        }
        metrics::gauge!("leasehold_streams").set(0.0);
    }
}

/// An id that nobody can guess and nobody draws again; none: the operating system
/// has no randomness now.
pub(crate) fn draw_id() -> Option<u128> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(u128::from_be_bytes(bytes))
}

fn client_url(member: &Member) -> String {
    member.client_url.clone()
}

#[cfg(test)]
mod tests;
