//! A gateway's side: the real client core and its slots, driven in virtual time.
//! Knows no ledger; what it hears and says are the core's own messages.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use leasehold_spend::{
    At, Begun, ClientCore, CoreSettings, Lane, Line, Patience, Slot, Verdict as Told, Waiter,
    message::{Incoming, Next, OpenOut, Outgoing, StreamId},
};

use super::{clock::DriftingClock, setup::RequestPatience};
use crate::request::{Answer, Request, Verdict};

/// A connection; each belongs to one gateway, and none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Connection(pub(super) u64);

/// How long a client waits before it connects again, in microseconds.
const RECONNECT_US: u64 = 50_000;

#[derive(Debug)]
struct Waiting {
    id: u64,
    waiter: Waiter,
    until_us: u64,
}

/// One gateway process.
#[derive(Debug)]
pub(super) struct Gateway {
    clock: DriftingClock,
    core: ClientCore,
    slots: Vec<Arc<Slot>>,
    patience: RequestPatience,
    connection: Option<(Connection, StreamId)>,
    connect_us: u64,
    waiting: Vec<Waiting>,
}

/// What a gateway says.
#[derive(Debug)]
pub(super) enum Said {
    Open(OpenOut),
    Message(Outgoing),
}

impl Gateway {
    /// A process that has just started.
    pub(super) fn new(
        clock: DriftingClock,
        keys: &[String],
        patience: RequestPatience,
        now_us: u64,
    ) -> Self {
        // Gateways have room for far more keys than they meet: where it is scarce, keys
        // without units give way.
        let places = u32::try_from(2 * keys.len() + 8).unwrap_or(u32::MAX);
        let line = Arc::new(Line::new(places, || ()));
        let mut core = ClientCore::new(CoreSettings::default(), line);
        let reading_ns = clock.reading_ns(now_us);
        let slots = keys
            .iter()
            .filter_map(|key| core.slot(key, reading_ns))
            .collect();
        Self {
            clock,
            core,
            slots,
            patience,
            connection: None,
            connect_us: now_us,
            waiting: Vec::new(),
        }
    }

    fn at(&self, now_us: u64) -> At {
        At(self.clock.reading_ns(now_us))
    }

    /// When it wants to connect, if it does.
    pub(super) fn connects_us(&self) -> Option<u64> {
        self.connection.is_none().then_some(self.connect_us)
    }

    /// A connection is there.
    pub(super) fn connected(&mut self, connection: Connection, now_us: u64) -> OpenOut {
        let open = self.core.start_stream(self.clock.reading_ns(now_us));
        self.connection = Some((connection, open.stream));
        open
    }

    /// The connection that it has.
    pub(super) fn connection(&self) -> Option<Connection> {
        self.connection.map(|(connection, _)| connection)
    }

    /// A connection was reset.
    pub(super) fn reset(&mut self, connection: Connection, now_us: u64) {
        if let Some((present, stream)) = self.connection
            && present == connection
        {
            self.core.on_lost(stream, self.clock.reading_ns(now_us));
            self.disconnect(now_us);
        }
    }

    fn disconnect(&mut self, now_us: u64) {
        self.connection = None;
        self.connect_us = now_us.saturating_add(RECONNECT_US);
    }

    /// A request comes.
    pub(super) fn request(&mut self, request: &Request, now_us: u64) -> Option<Answer> {
        let clock = self.at(now_us);
        let Some(slot) = self.slots.get(request.key) else {
            return Some(answer(request.id, now_us, Verdict::Unavailable, false));
        };
        let (patience, until_us) = match self.patience {
            RequestPatience::OneAnswer => (
                Patience::OneAnswer,
                now_us.saturating_add(slot.max_wait_ns().div_ceil(1_000)),
            ),
            RequestPatience::Within(us) => {
                let until_us = now_us.saturating_add(us);
                (Patience::Until(self.clock.reading_ns(until_us)), until_us)
            }
        };
        match slot.spend_in(Lane(request.lane), request.units, patience, &clock) {
            Begun::Answered(told) => Some(answer(request.id, now_us, verdict(told), false)),
            Begun::Waits(mut waiter) => {
                match waiter.poll(&mut Context::from_waker(Waker::noop()), &clock) {
                    Poll::Ready(told) => Some(answer(request.id, now_us, verdict(told), false)),
                    Poll::Pending => {
                        self.waiting.push(Waiting {
                            id: request.id,
                            waiter,
                            until_us,
                        });
                        None
                    }
                }
            }
        }
    }

    /// Takes in a message of a connection; one of an older one counts for nothing.
    pub(super) fn hear(&mut self, connection: Connection, message: Incoming, now_us: u64) {
        let Some((_, stream)) = self
            .connection
            .filter(|(present, _)| *present == connection)
        else {
            return;
        };
        match self.core.on_message(stream, message, &self.at(now_us)) {
            Next::Stay => {}
            Next::Reconnect { .. } | Next::Finished => self.disconnect(now_us),
        }
    }

    /// Decides what waits and says what there is to say.
    pub(super) fn work(&mut self, now_us: u64, said: &mut Vec<Said>, answers: &mut Vec<Answer>) {
        self.decide(now_us, answers);
        let clock = self.at(now_us);
        while let Some(message) = self.core.poll(&clock) {
            if message == Outgoing::Leave {
                self.disconnect(now_us);
                break;
            }
            said.push(Said::Message(message));
        }
    }

    fn decide(&mut self, now_us: u64, answers: &mut Vec<Answer>) {
        if self.waiting.is_empty() {
            return;
        }
        let clock = self.at(now_us);
        let mut context = Context::from_waker(Waker::noop());
        for mut waiting in std::mem::take(&mut self.waiting) {
            let told = match waiting.waiter.poll(&mut context, &clock) {
                Poll::Ready(told) => told,
                Poll::Pending if now_us < waiting.until_us => {
                    self.waiting.push(waiting);
                    continue;
                }
                Poll::Pending => waiting.waiter.give_up(&clock),
            };
            answers.push(answer(waiting.id, now_us, verdict(told), true));
        }
    }

    /// When it has something to do at the latest.
    pub(super) fn wakes_us(&self) -> Option<u64> {
        let core = self
            .core
            .next_wake()
            .map(|reading_ns| self.clock.moment_us(reading_ns));
        let waiting = self.waiting.iter().map(|waiting| waiting.until_us).min();
        [core, waiting, self.connects_us()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The process is gone: whoever waited is told nothing but that.
    pub(super) fn die(&mut self, now_us: u64, answers: &mut Vec<Answer>) {
        for waiting in self.waiting.drain(..) {
            answers.push(answer(waiting.id, now_us, Verdict::Unavailable, true));
        }
    }
}

pub(super) const fn answer(id: u64, at_us: u64, verdict: Verdict, waited: bool) -> Answer {
    Answer {
        id,
        at_us,
        verdict,
        waited,
    }
}

fn verdict(told: Told) -> Verdict {
    match told {
        Told::Admitted | Told::Estimated => Verdict::Admitted,
        Told::Denied { retry_after, .. } => Verdict::Refused {
            retry_after_us: retry_after
                .map(|after| u64::try_from(after.as_micros()).unwrap_or(u64::MAX)),
        },
        Told::Empty => Verdict::Refused {
            retry_after_us: None,
        },
        _ => Verdict::Unavailable,
    }
}
