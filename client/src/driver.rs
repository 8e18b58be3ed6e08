//! The one task behind a client: a thin shell around the core that carries its
//! messages, wakes it in time, and goes from endpoint to endpoint. Decides
//! nothing about units.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_credentials::Credentials;
use leasehold_spend::{
    ClientCore, Clock, Line,
    message::{Incoming, Next, Outgoing, StreamId},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    backoff::Backoff,
    clock::SystemClock,
    convert::{self, Identity},
    registry::Registry,
    transport::{self, Dialed, Inbox, Outbox},
};

/// How often the clocks are compared at least.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// How long one attempt to connect may take.
const DIAL_WITHIN: Duration = Duration::from_secs(1);
/// Hints to a leader that are followed in a row without a pause.
const MOVES_MAX: u32 = 3;

/// What handles and the driver share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: SystemClock,
    pub(crate) registry: Registry,
    pub(crate) line: Arc<Line>,
    pub(crate) notify: Arc<Notify>,
    pub(crate) is_closing: AtomicBool,
    /// What went wrong last, for whoever waits for the first session.
    pub(crate) last_error: Mutex<String>,
}

/// Held by every handle: when the last one goes, the driver ends.
#[derive(Debug)]
pub(crate) struct Alive(pub(crate) Arc<Notify>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// What the driver tells those who wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// A session was opened at least once.
    pub(crate) was_open: bool,
    /// The driver has ended.
    pub(crate) is_over: bool,
}

type Pending<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;

/// Where the connection stands.
enum Link {
    /// Pausing before the next attempt.
    Idle(Instant),
    Dialing(Pending<Dialed>),
    Opening {
        stream: StreamId,
        outbox: Outbox,
        inbox: Pending<Inbox>,
    },
    Up {
        stream: StreamId,
        outbox: Outbox,
        inbox: Box<Inbox>,
    },
}

/// What happened on the link.
enum Event {
    Due,
    Dialed(Result<Dialed, String>),
    Began(Result<Inbox, String>),
    Heard(Result<Option<Incoming>, String>),
}

impl Link {
    /// The next thing that happens; may be dropped and called again.
    async fn next(&mut self) -> Event {
        match self {
            Self::Idle(until) => {
                tokio::time::sleep_until(*until).await;
                Event::Due
            }
            Self::Dialing(dialed) => Event::Dialed(dialed.await),
            Self::Opening { inbox, .. } => Event::Began(inbox.await),
            Self::Up { inbox, .. } => Event::Heard(match inbox.message().await {
                Ok(Some(message)) => convert::incoming(message)
                    .map(Some)
                    .map_err(|error| error.to_string()),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            }),
        }
    }

    fn stream(&self) -> Option<StreamId> {
        match self {
            Self::Opening { stream, .. } | Self::Up { stream, .. } => Some(*stream),
            _ => None,
        }
    }

    fn outbox(&self) -> Option<&Outbox> {
        match self {
            Self::Opening { outbox, .. } | Self::Up { outbox, .. } => Some(outbox),
            _ => None,
        }
    }
}

/// The driver's own state.
pub(crate) struct Driver {
    pub(crate) core: ClientCore,
    pub(crate) shared: Arc<Shared>,
    pub(crate) alive: Weak<Alive>,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) identity: Identity,
    pub(crate) endpoints: Vec<String>,
    pub(crate) credentials: Arc<Credentials>,
}

impl Driver {
    /// Drives until the session is closed or the last handle is gone.
    pub(crate) async fn run(self) {
        let progress = self.progress.clone();
        let mut errand = Errand {
            link: Link::Idle(Instant::now()),
            backoff: Backoff::default(),
            at: 0,
            leader: None,
            moves: 0,
            driver: self,
        };
        errand.run().await;
        errand.driver.core.close();
        // Those that came last are closed as well: nobody will look at them.
        errand.meet_newcomers();
        progress.send_modify(|progress| progress.is_over = true);
    }
}

/// The driver at work.
struct Errand {
    driver: Driver,
    link: Link,
    backoff: Backoff,
    /// Which endpoint is next.
    at: usize,
    /// Whom a node named as the leader.
    leader: Option<String>,
    moves: u32,
}

impl Errand {
    async fn run(&mut self) {
        let shared = Arc::clone(&self.driver.shared);
        loop {
            shared.clock.watch();
            if self.driver.alive.strong_count() == 0 {
                return;
            }
            self.meet_newcomers();
            if shared.is_closing.load(Ordering::Acquire) {
                self.driver.core.close();
            }
            self.speak();
            if self.driver.core.is_finished() {
                return;
            }
            self.tidy();

            let now = shared.clock.now_ns();
            let wake = self.driver.core.next_wake().map_or(WATCH_EVERY, |at| {
                Duration::from_nanos(at.saturating_sub(now)).min(WATCH_EVERY)
            });
            tokio::select! {
                biased;
                event = self.link.next() => self.on_event(event),
                () = shared.notify.notified() => {}
                () = tokio::time::sleep(wake) => {}
            }
        }
    }

    fn meet_newcomers(&mut self) {
        let now = self.driver.shared.clock.now_ns();
        for (key, slot) in self.driver.shared.registry.take_newcomers() {
            self.driver.core.adopt(Arc::from(key.as_str()), slot, now);
        }
    }

    /// Sends what is due.
    fn speak(&mut self) {
        while let Some(out) = self.driver.core.poll(&self.driver.shared.clock) {
            if out == Outgoing::Leave {
                self.fail("the coordinator is silent".to_owned());
                continue;
            }
            let sent = convert::outgoing(out)
                .zip(self.link.outbox())
                .is_some_and(|(message, outbox)| outbox.try_send(message).is_ok());
            if !sent {
                self.lose("the connection takes no more messages".to_owned());
            }
        }
    }

    /// Lets idle keys go, and takes in leases of keys that are not known here.
    fn tidy(&mut self) {
        let Driver { core, shared, .. } = &mut self.driver;
        for index in core.take_evictable() {
            let Some((key, slot)) = core.key_at(index) else {
                continue;
            };
            if shared.registry.evict(key, slot) {
                core.remove(index);
            }
        }
        for lease in core.take_unknown() {
            let slot = lease
                .key
                .parse()
                .ok()
                .and_then(|key| shared.registry.slot(&key));
            if let Some(slot) = slot {
                slot.adopt_unseen(lease.generation, lease.granted_total, lease.spent_total);
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Due => self.dial(),
            Event::Dialed(Ok(dialed)) => self.open(dialed),
            Event::Began(Ok(inbox)) => {
                let idle = Link::Idle(Instant::now());
                if let Link::Opening { stream, outbox, .. } =
                    std::mem::replace(&mut self.link, idle)
                {
                    self.link = Link::Up {
                        stream,
                        outbox,
                        inbox: Box::new(inbox),
                    };
                }
            }
            Event::Heard(Ok(Some(message))) => self.hear(message),
            Event::Heard(Ok(None)) => self.lose("the coordinator ended the stream".to_owned()),
            Event::Dialed(Err(error)) | Event::Began(Err(error)) | Event::Heard(Err(error)) => {
                self.lose(error);
            }
        }
    }

    fn endpoint(&self) -> &str {
        let listed = &self.driver.endpoints[self.at % self.driver.endpoints.len()];
        self.leader.as_ref().unwrap_or(listed)
    }

    fn dial(&mut self) {
        let url = self.endpoint().to_owned();
        let credentials = Arc::clone(&self.driver.credentials);
        let dialed = transport::dial(url, credentials, DIAL_WITHIN);
        self.link = Link::Dialing(Box::pin(dialed));
    }

    fn open(&mut self, dialed: Dialed) {
        // Time runs from this reading, before the message is handed over.
        let open = self
            .driver
            .core
            .start_stream(self.driver.shared.clock.now_ns());
        let (outbox, messages) = transport::outbox(convert::open(&self.driver.identity, &open));
        let inbox = Box::pin(transport::open(dialed, messages));
        self.link = Link::Opening {
            stream: open.stream,
            outbox,
            inbox,
        };
    }

    fn hear(&mut self, message: Incoming) {
        let Some(stream) = self.link.stream() else {
            return;
        };
        let refusal = match &message {
            Incoming::Refused { code, detail } => Some(self.refused(code, detail)),
            Incoming::Moved { leader: None } => Some("no leader is known".to_owned()),
            _ => None,
        };
        let was_open = self.driver.core.is_open();
        let next = self
            .driver
            .core
            .on_message(stream, message, &self.driver.shared.clock);
        if !was_open && self.driver.core.is_open() {
            tracing::info!(endpoint = self.endpoint(), "session open");
            self.backoff.reset();
            self.moves = 0;
            self.driver
                .progress
                .send_modify(|progress| progress.was_open = true);
        }
        match next {
            Next::Stay | Next::Finished => {}
            Next::Reconnect {
                leader: Some(leader),
                ..
            } if transport::is_secured(self.endpoint()) && !transport::is_secured(&leader) => {
                self.fail(format!(
                    "the leader is said to be at {leader}, without TLS, where this client does not follow: \
                     every node must be served with TLS, or none"
                ));
            }
            Next::Reconnect {
                leader: Some(leader),
                ..
            } if self.moves < MOVES_MAX => {
                self.moves += 1;
                tracing::debug!(%leader, "the leader is elsewhere");
                self.leader = Some(leader);
                self.link = Link::Idle(Instant::now());
            }
            Next::Reconnect {
                at_once: true,
                leader: None,
            } if self.moves < MOVES_MAX => {
                self.moves += 1;
                self.link = Link::Idle(Instant::now());
            }
            Next::Reconnect { .. } => {
                self.fail(refusal.unwrap_or_else(|| "sent in circles".to_owned()));
            }
        }
    }

    /// What a refusal means.
    fn refused(&self, code: &str, detail: &str) -> String {
        match code {
            "unauthenticated" => {
                let advice = self.driver.credentials.unknown_caller();
                format!("refused, {code}: {detail}: {advice}")
            }
            _ => format!("refused, {code}: {detail}"),
        }
    }

    /// The stream has broken.
    fn lose(&mut self, error: String) {
        if let Some(stream) = self.link.stream() {
            let now = self.driver.shared.clock.now_ns();
            self.driver.core.on_lost(stream, now);
        }
        self.fail(error);
    }

    /// On to the next endpoint, after a pause.
    fn fail(&mut self, error: String) {
        let pause = self.backoff.pause();
        tracing::warn!(endpoint = self.endpoint(), %error, ?pause, "no session");
        *self.driver.shared.last_error.lock() = format!("{}: {error}", self.endpoint());
        // A named leader is not the list's: the list goes on where it was.
        if self.leader.take().is_none() {
            self.at = (self.at + 1) % self.driver.endpoints.len();
        }
        self.moves = 0;
        self.link = Link::Idle(Instant::now() + pause);
    }
}
