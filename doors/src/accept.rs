//! Takes connections and serves a router on each. Knows nothing of what requests are told.
//!
//! Whoever comes is counted before a byte of theirs is read, and has a time for each step:
//! for the handshake, for the head of a request, and for being idle.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    caller::Caller,
    idle::{Heard, Noted, Patience, Use},
    room::{AddressPlace, Addresses, Place, Places},
    tls::ListenerTls,
};

/// A connection that is to be closed may finish what it is at.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// What somebody hears who has one connection too many.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 0\r\n\r\n";
/// How often at most it is said in the log that somebody was turned away.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// What connections may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most connections from one address (of IPv6: from one network of 64 bits).
    pub connections_per_address_max: usize,
    /// From a connection's beginning to the end of its handshake.
    pub handshake: Duration,
    /// From the beginning of a request's head to its end.
    pub header: Duration,
    /// How long a connection is kept on which nothing is asked.
    pub idle: Duration,
    /// The most bytes of a request's head: 431 beyond that.
    pub header_bytes_max: usize,
    /// The most requests at once on one connection of HTTP/2.
    pub streams_max: u32,
    /// How often it is asked on a connection of HTTP/2 whether the other end is there.
    pub ping_every: Duration,
    /// And how long it may take to say so.
    pub ping_within: Duration,
    /// What may be under way unacknowledged on a stream of HTTP/2; none: what is usual.
    pub window_bytes: Option<u32>,
}

/// Why a connection was not taken or not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are as many as there may be.
    Connections,
    /// Its address has as many as one may have.
    Address,
    /// It has not shown what was asked for, or nothing that can be read.
    Handshake,
    /// Its handshake took too long.
    HandshakeTooSlow,
    /// There are as many handshakes under way as there may be, in all or of its address: a
    /// quarter of the connections.
    Handshakes,
    /// The head of its request took too long.
    HeaderTooSlow,
}

impl Refused {
    /// The name of the limit, as configurations have it; for metrics.
    #[must_use]
    pub fn limit(self) -> &'static str {
        match self {
            Self::Connections => "connections_max",
            Self::Address => "connections_per_address_max",
            Self::Handshake => "handshake",
            Self::HandshakeTooSlow => "handshake_ms",
            Self::Handshakes => "handshakes",
            Self::HeaderTooSlow => "header_ms",
        }
    }
}

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// An address.
    Tcp(TcpListener),
    /// A path.
    Unix(UnixListener),
}

type Tls = Box<dyn Fn() -> Arc<ListenerTls> + Send + Sync>;

/// Serves connections, until it is closed. Connections of every listener that it is given
/// are counted together.
pub struct Door {
    builder: auto::Builder<TokioExecutor>,
    router: Router,
    limits: Limits,
    patience: Patience,
    places: Arc<Places>,
    addresses: Addresses,
    /// Of connections that have not shown yet what is asked for.
    handshakes: Places,
    handshakes_of_addresses: Addresses,
    tls: Option<Tls>,
    refused: fn(Refused),
    said: Mutex<Option<Instant>>,
    /// No more connections; those that are there finish what they are at.
    stop: CancellationToken,
    /// Those that are still there end.
    leave: CancellationToken,
    connections: TaskTracker,
}

impl Door {
    /// A door to a router, without TLS: each connection takes one of the `places`, and
    /// `refused` counts those that are turned away.
    #[must_use]
    pub fn new(router: Router, places: Arc<Places>, limits: Limits, refused: fn(Refused)) -> Self {
        Self {
            builder: builder(&limits),
            router,
            patience: Patience {
                before_the_first: limits.header,
                between: limits.idle,
                head: limits.header,
                answer: limits.idle,
            },
            addresses: Addresses::new(limits.connections_per_address_max),
            handshakes: Places::new(part(places.most())),
            handshakes_of_addresses: Addresses::new(part(limits.connections_per_address_max)),
            places,
            tls: None,
            refused,
            said: Mutex::new(None),
            stop: CancellationToken::new(),
            leave: CancellationToken::new(),
            connections: TaskTracker::new(),
            limits,
        }
    }

    /// With TLS on TCP: what `tls` gives when a connection comes. Unix sockets have none.
    #[must_use]
    pub fn with_tls(mut self, tls: impl Fn() -> Arc<ListenerTls> + Send + Sync + 'static) -> Self {
        self.tls = Some(Box::new(tls));
        self
    }

    /// Takes connections until the door is closed.
    pub async fn serve(self: Arc<Self>, listener: Listener) {
        loop {
            let accepted = async {
                match &listener {
                    Listener::Tcp(listener) => {
                        let (stream, addr) = listener.accept().await?;
                        self.admit_tcp(stream, addr);
                    }
                    Listener::Unix(listener) => {
                        let (stream, _) = listener.accept().await?;
                        self.admit_unix(stream);
                    }
                }
                io::Result::Ok(())
            };
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = accepted => accepted,
            };
            if let Err(error) = accepted {
                self.say(format_args!("cannot take a connection: {error}"));
                // Out of file descriptors, mostly: they come back, and until then there
                // is no use in trying at once.
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Takes no more connections, lets those that are there finish what they are at, and
    /// ends them once `within` has passed. False: it had to.
    pub async fn close(&self, within: Duration) -> bool {
        self.stop.cancel();
        self.connections.close();
        let is_done = timeout(within, self.connections.wait()).await.is_ok();
        self.leave.cancel();
        is_done
    }

    fn admit_tcp(self: &Arc<Self>, stream: TcpStream, addr: SocketAddr) {
        // Questions are small and somebody waits for each; failing to say so costs some
        // milliseconds, nothing else.
        let _ = stream.set_nodelay(true);
        let caller = Caller {
            addr: Some(addr),
            certificate: None,
        };
        let door = Arc::clone(self);
        let Some(tls) = &self.tls else {
            match self.place(addr) {
                Err(why) => self.refuse(stream, why, Some(addr)),
                Ok(held) => self.spawn(async move {
                    let _held = held;
                    door.talk(stream, caller).await;
                }),
            }
            return;
        };
        // Whoever would be turned away behind the handshake is so before it.
        if let Err(why) = self.place(addr) {
            return self.refuse(stream, why, Some(addr));
        }
        // Whoever is silent takes no place of those who show what is asked for.
        let shaking = self.handshakes.take().and_then(|place| {
            let of_address = self.handshakes_of_addresses.take(addr.ip())?;
            Some((place, of_address))
        });
        let Some(shaking) = shaking else {
            return self.refuse(stream, Refused::Handshakes, Some(addr));
        };
        let tls = tls();
        self.spawn(async move { door.greet(stream, caller, tls, shaking).await });
    }

    /// A place for a connection.
    fn place(&self, addr: SocketAddr) -> Result<(Place, AddressPlace), Refused> {
        let place = self.places.take().ok_or(Refused::Connections)?;
        let of_address = self.addresses.take(addr.ip()).ok_or(Refused::Address)?;
        Ok((place, of_address))
    }

    fn admit_unix<S>(self: &Arc<Self>, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(place) = self.places.take() else {
            return self.refuse(stream, Refused::Connections, None);
        };
        let door = Arc::clone(self);
        self.spawn(async move {
            let _place = place;
            door.talk(stream, Caller::default()).await;
        });
    }

    fn spawn(&self, serve: impl Future<Output = ()> + Send + 'static) {
        let leave = self.leave.clone();
        self.connections.spawn(async move {
            leave.run_until_cancelled_owned(serve).await;
        });
    }

    fn refuse<S>(&self, mut stream: S, why: Refused, addr: Option<SocketAddr>)
    where
        S: AsyncWrite + Unpin + Send + 'static,
    {
        (self.refused)(why);
        let of = match (why, addr) {
            (Refused::Address, Some(addr)) => format!(" of {}", addr.ip()),
            _ => String::new(),
        };
        self.say(format_args!(
            "there are as many connections{of} as limits.{} allows",
            why.limit()
        ));
        // Whoever speaks TLS would not understand.
        if self.tls.is_some() && addr.is_some() {
            return;
        }
        tokio::spawn(async move {
            let refuse = async {
                stream.write_all(NO_ROOM).await?;
                stream.shutdown().await
            };
            // Best effort: whoever does not listen is refused all the same.
            let _ = timeout(Duration::from_secs(1), refuse).await;
        });
    }

    /// Shakes hands, and serves whoever has shown what is asked for.
    async fn greet(
        self: Arc<Self>,
        stream: TcpStream,
        mut caller: Caller,
        tls: Arc<ListenerTls>,
        shaking: (Place, AddressPlace),
    ) {
        let accepting = TlsAcceptor::from(Arc::clone(&tls.config)).accept(stream);
        let accepted = tokio::select! {
            () = self.stop.cancelled() => return,
            accepted = timeout(self.limits.handshake, accepting) => accepted,
        };
        let stream = match accepted {
            Err(_) => return self.turn_away(&caller, Refused::HandshakeTooSlow, "took too long"),
            Ok(Err(error)) => return self.turn_away(&caller, Refused::Handshake, error),
            Ok(Ok(stream)) => stream,
        };
        if let Some(chain) = stream.get_ref().1.peer_certificates() {
            caller.certificate = tls.certificate(chain);
            if caller.certificate.is_none() {
                let why = "its certificate names nobody: neither a DNS name nor a common name";
                return self.turn_away(&caller, Refused::Handshake, why);
            }
        }
        drop(shaking);
        let addr = caller
            .addr
            .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
        match self.place(addr) {
            Ok(_held) => self.talk(stream, caller).await,
            Err(why) => self.refuse(stream, why, Some(addr)),
        }
    }

    fn turn_away(&self, caller: &Caller, why: Refused, what: impl std::fmt::Display) {
        (self.refused)(why);
        let addr = caller.addr.map(|addr| addr.to_string()).unwrap_or_default();
        self.say(format_args!("a handshake with {addr} failed: {what}"));
    }

    /// Serves a connection to its end: the other side's, this process's, or that nobody
    /// uses it.
    async fn talk<S>(self: Arc<Self>, stream: S, caller: Caller)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let used = Use::new();
        let service = Noted::new(self.router.clone(), used.clone(), caller);
        let stream = TokioIo::new(Heard::new(stream, used.clone()));
        let connection = self
            .builder
            .serve_connection(stream, TowerToHyperService::new(service));
        let mut connection = std::pin::pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = used.ended(self.patience) => {
                if used.is_within_a_head() {
                    (self.refused)(Refused::HeaderTooSlow);
                }
                connection.as_mut().graceful_shutdown();
                match timeout(DRAIN_WITHIN, connection).await {
                    Ok(served) => served,
                    // It does not listen, or is within a head that has no end.
                    Err(_) => Ok(()),
                }
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection broke");
        }
    }

    /// Not more often than is of use.
    fn say(&self, problem: std::fmt::Arguments<'_>) {
        let mut said = self.said.lock();
        if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            *said = Some(Instant::now());
            tracing::warn!("{problem}");
        }
    }
}

/// How many of so many connections may be within their handshake.
fn part(connections: usize) -> usize {
    (connections / 4).max(16).min(connections)
}

/// HTTP/1.1 and HTTP/2, whichever the other side begins with.
fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let header_bytes_max = u32::try_from(limits.header_bytes_max).unwrap_or(u32::MAX);
    builder
        .http1()
        .timer(TokioTimer::new())
        // Its time begins with the end of the request before.
        .header_read_timeout(limits.idle)
        // hyper takes no less.
        .max_buf_size(limits.header_bytes_max.max(8_192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.ping_every)
        .keep_alive_timeout(limits.ping_within)
        .max_header_list_size(header_bytes_max)
        .max_concurrent_streams(limits.streams_max);
    if let Some(bytes) = limits.window_bytes {
        builder
            .http2()
            .initial_stream_window_size(bytes)
            .initial_connection_window_size(bytes.saturating_mul(2));
    }
    builder
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use axum::routing::get;
    use tokio::io::AsyncReadExt;

    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const QUESTION: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    fn limits(header: Duration) -> Limits {
        Limits {
            connections_per_address_max: 10,
            handshake: header,
            header,
            idle: Duration::from_secs(300),
            header_bytes_max: 16_384,
            streams_max: 100,
            ping_every: Duration::from_secs(60),
            ping_within: Duration::from_secs(20),
            window_bytes: None,
        }
    }

    fn door(header: Duration) -> Arc<Door> {
        let limits = limits(header);
        let router = Router::new().route("/", get(|| async { "here" }));
        Arc::new(Door::new(router, Arc::new(Places::new(10)), limits, |_| {}))
    }

    async fn ask(here: &mut tokio::io::DuplexStream) {
        here.write_all(QUESTION).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = here.read(&mut answer).await.unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200 OK"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_never_asks_is_closed_however_far_it_came() {
        let half = b"GET /healthz HTTP/1.1\r\nhost: x\r\n";
        for first in [b"".as_slice(), b"PR", PREFACE, half] {
            let door = door(Duration::from_millis(50));
            let (mut here, there) = tokio::io::duplex(1 << 16);
            here.write_all(first).await.unwrap();
            let served =
                timeout(Duration::from_secs(30), door.talk(there, Caller::default())).await;
            assert!(served.is_ok(), "it is kept after {first:?}");
        }
    }

    // By a clock of its own: it goes on when nobody has anything to do.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_asks_is_kept() {
        let (mut here, there) = tokio::io::duplex(1 << 16);
        let asks = async {
            for _ in 0..2 {
                ask(&mut here).await;
                sleep(Duration::from_secs(3)).await;
            }
            drop(here);
        };
        let door = door(Duration::from_secs(2));
        tokio::join!(asks, door.talk(there, Caller::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_request_whose_head_has_no_end_is_closed() {
        let (mut here, there) = tokio::io::duplex(1 << 16);
        let trickles = async {
            ask(&mut here).await;
            let begun = Instant::now();
            for _ in 0..300 {
                if here.write_all(b"G").await.is_err() {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
            }
            begun.elapsed()
        };
        let door = door(Duration::from_secs(2));
        let (took, ()) = tokio::join!(trickles, door.talk(there, Caller::default()));
        assert!(took < Duration::from_secs(15), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_keeps_no_connection() {
        let mut limits = limits(Duration::from_secs(2));
        // Whoever wants to stay answers pings.
        limits.ping_every = Duration::from_secs(1_000_000);
        let router = Router::new().route("/", get(|| async { "here" }));
        let door = Arc::new(Door::new(router, Arc::new(Places::new(10)), limits, |_| {}));
        let (mut here, there) = tokio::io::duplex(1 << 16);
        here.write_all(PREFACE).await.unwrap();
        // SETTINGS: nothing may be sent before it is asked for.
        let no_window = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
        // HEADERS of stream 1: GET, http, /, and an authority.
        let question = [0, 0, 6, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x84, 0x41, 1, b'x'];
        here.write_all(&no_window).await.unwrap();
        here.write_all(&question).await.unwrap();
        let served = timeout(
            Duration::from_secs(1_000),
            door.talk(there, Caller::default()),
        );
        assert!(served.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_streams_keeps_its_connection() {
        let slow = || async {
            let (to, from) = tokio::io::duplex(64);
            tokio::spawn(async move {
                let mut to = to;
                for _ in 0..10 {
                    sleep(Duration::from_secs(100)).await;
                    to.write_all(b"word ").await.unwrap();
                }
            });
            axum::body::Body::from_stream(tokio_util::io::ReaderStream::new(from))
        };
        let mut door = Arc::into_inner(door(Duration::from_secs(2))).unwrap();
        door.router = Router::new().route("/", get(slow));
        let (mut here, there) = tokio::io::duplex(1 << 16);
        let asks = async {
            let question = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            here.write_all(question).await.unwrap();
            let mut answer = String::new();
            here.read_to_string(&mut answer).await.unwrap();
            answer.matches("word ").count()
        };
        let (words, ()) = tokio::join!(asks, Arc::new(door).talk(there, Caller::default()));
        assert_eq!(words, 10);
    }
}
