//! From a configuration to a running agent, and its end. Knows nothing of what requests
//! are told.

use std::{
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use axum::{Router, middleware::from_fn_with_state, routing::get};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use leasehold_client::{BuildError, Client, http::Answers};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener},
    signal::unix::{SignalKind, signal},
    time::{interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic_health::{
    ServingStatus,
    pb::health_server::{Health, HealthServer},
    server::HealthReporter,
};

use crate::{
    agent::Agent,
    check,
    config::{Config, ConfigError, Fixed, LogFormat, Texts},
    decide::Decider,
    health,
    idle::{Noted, Patience, Use},
    listen::{self, ListenError, Socket},
    metrics::{self, Metrics},
    reload::Watcher,
    repeats::Repeats,
    rls,
    room::Room,
    said::Said,
};

/// Connections may use so much of a stop.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// A connection that is idle is kept: the gateways keep theirs for a minute or two, and
/// one that is closed on them in the moment in which they use it fails a request.
const IDLE_FOR: Duration = Duration::from_secs(300);
/// A connection on which nothing was asked yet is kept as long as somebody may take to
/// send a first request.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// How often a connection of HTTP/2 is looked at for whether its other end is there.
const PING_EVERY: Duration = Duration::from_secs(60);
const PING_WITHIN: Duration = Duration::from_secs(20);
/// What a gateway hears that has one connection too many.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 0\r\n\r\n";
/// How often at most it is said in the log that there is no room.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Why an agent did not start, or stopped.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The client could not be set up.
    #[error(transparent)]
    Client(#[from] BuildError),
    /// The process cannot hear signals.
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
}

impl ServeError {
    /// The stable code.
    #[must_use]
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Config(error) => error.code(),
            Self::Listen(error) => error.code(),
            Self::Client(_) => "invalid_config",
            Self::Signals(_) => "fatal",
        }
    }

    /// The process's exit code, as `leasehold serve` has them.
    #[must_use]
    pub(crate) fn exit_code(&self) -> u8 {
        match self.code() {
            "invalid_config" => 2,
            "port_in_use" | "cannot_listen" => 3,
            _ => 1,
        }
    }
}

/// An agent that serves.
struct Running {
    agent: Arc<Agent>,
    tcp: Option<SocketAddr>,
    socket: Option<Socket>,
    health: HealthReporter,
    stop: CancellationToken,
    connections: TaskTracker,
}

/// What every connection is served by.
struct Server {
    builder: auto::Builder<TokioExecutor>,
    router: Router,
    agent: Arc<Agent>,
    stop: CancellationToken,
    connections: TaskTracker,
    patience: Patience,
}

/// Runs an agent until a signal ends it.
///
/// # Errors
/// See [`ServeError`]; nothing is left running.
pub(crate) async fn run(path: &Path, insecure: bool) -> Result<(), ServeError> {
    let texts = Texts::read(path);
    let config = Config::parse(path, &texts, insecure)?;
    start_logging(&config.fixed);
    for note in config.notes() {
        tracing::warn!("{note}");
    }
    let stop_on = |kind| signal(kind).map_err(ServeError::Signals);
    let mut terminated = stop_on(SignalKind::terminate())?;
    let mut interrupted = stop_on(SignalKind::interrupt())?;

    let running = start(path, insecure, config, texts).await?;
    running.greet();
    let name = tokio::select! {
        _ = terminated.recv() => "SIGTERM",
        _ = interrupted.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "stopping");
    tokio::select! {
        () = running.shutdown() => tracing::info!("stopped"),
        _ = terminated.recv() => tracing::warn!("second signal: leaving at once"),
        _ = interrupted.recv() => tracing::warn!("second signal: leaving at once"),
    }
    Ok(())
}

async fn start(
    path: &Path,
    insecure: bool,
    config: Config,
    texts: Texts,
) -> Result<Running, ServeError> {
    let fixed = config.fixed.clone();
    let tcp = match fixed.tcp {
        Some(addr) => Some(listen::tcp(addr).await?),
        None => None,
    };
    let unix = fixed.unix.as_ref().map(listen::unix).transpose()?;
    let client = Client::builder()
        .endpoints(fixed.endpoints.clone())
        .holder(fixed.holder.clone())
        .keys_max(fixed.keys_max)
        .strict_clock(fixed.strict_clock)
        .before_contact(fixed.before_contact)
        .start()?;
    let (watcher, standing) = Watcher::new(path, insecure, config, texts);
    let agent = Arc::new(Agent {
        decider: Decider::new(client),
        answers: Answers::default(),
        repeats: Repeats::new(fixed.remember_for, fixed.remembered_max),
        room: Room::new(fixed.connections_max, fixed.requests_max),
        metrics: Metrics::install(),
        said: Said::default(),
        standing,
    });
    let (health, health_service) = tonic_health::server::health_reporter();
    let (stop, connections) = (CancellationToken::new(), TaskTracker::new());
    let server = Arc::new(Server {
        builder: builder(&fixed),
        router: router(&agent, health_service),
        agent: Arc::clone(&agent),
        stop: stop.clone(),
        connections: connections.clone(),
        patience: Patience {
            before_the_first: FIRST_WITHIN,
            between: IDLE_FOR,
        },
    });
    health.set_service_status("", ServingStatus::Serving).await;
    health
        .set_service_status(rls::NAME, ServingStatus::Serving)
        .await;
    let addr = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
    if let Some(listener) = tcp {
        tokio::spawn(accept(Listener::Tcp(listener), Arc::clone(&server)));
    }
    let socket = unix.map(|(listener, socket)| {
        tokio::spawn(accept(Listener::Unix(listener), server));
        socket
    });
    let metrics = keep_metrics(agent.metrics.clone());
    tokio::spawn(stop.clone().run_until_cancelled_owned(keep_watch(watcher)));
    tokio::spawn(stop.clone().run_until_cancelled_owned(metrics));
    Ok(Running {
        agent,
        tcp: addr,
        socket,
        health,
        stop,
        connections,
    })
}

fn router(agent: &Arc<Agent>, health_service: HealthServer<impl Health>) -> Router {
    let grpc = tonic::service::Routes::new(health_service)
        .add_service(rls::Service::server(Arc::clone(agent)))
        .prepare()
        .into_axum_router()
        .reset_fallback()
        .layer(from_fn_with_state(Arc::clone(agent), rls::refuse_unread));
    let http = check::router()
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::scrape))
        .with_state(Arc::clone(agent));
    grpc.merge(http)
}

async fn keep_watch(watcher: Watcher) {
    if let Err(error) = watcher.run().await {
        tracing::error!(%error, "changes of the configuration are not seen");
    }
}

async fn keep_metrics(metrics: Metrics) {
    let mut every = interval(Duration::from_secs(5));
    loop {
        every.tick().await;
        metrics.upkeep();
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Serves whoever connects, until the agent stops.
async fn accept(listener: Listener, server: Arc<Server>) {
    let mut said: Option<tokio::time::Instant> = None;
    loop {
        let accepted = async {
            match &listener {
                Listener::Tcp(listener) => {
                    let (stream, _) = listener.accept().await?;
                    // Questions are small and somebody waits for each; failing to say so
                    // costs some milliseconds, nothing else.
                    let _ = stream.set_nodelay(true);
                    io::Result::Ok(admit(stream, &server))
                }
                Listener::Unix(listener) => {
                    let (stream, _) = listener.accept().await?;
                    Ok(admit(stream, &server))
                }
            }
        };
        let told = tokio::select! {
            () = server.stop.cancelled() => return,
            told = accepted => told,
        };
        let problem = match told {
            Ok(true) => continue,
            Ok(false) => {
                metrics::connection_refused();
                "there are as many connections as limits.connections_max allows".to_owned()
            }
            Err(error) => {
                // Out of file descriptors, mostly: they come back, and until then there
                // is no use in trying at once.
                sleep(Duration::from_millis(50)).await;
                format!("cannot take a connection: {error}")
            }
        };
        if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            said = Some(tokio::time::Instant::now());
            tracing::warn!("{problem}");
        }
    }
}

/// Serves a connection if there is room for it.
fn admit<S>(stream: S, server: &Arc<Server>) -> bool
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(place) = server.agent.room.connection() else {
        tokio::spawn(async move {
            let mut stream = stream;
            let refuse = async {
                stream.write_all(NO_ROOM).await?;
                stream.shutdown().await
            };
            // Best effort: whoever does not listen is refused all the same.
            let _ = timeout(Duration::from_secs(1), refuse).await;
        });
        return false;
    };
    let server = Arc::clone(server);
    let connections = server.connections.clone();
    connections.spawn(async move {
        let _place = place;
        serve(stream, &server).await;
    });
    true
}

/// Serves a connection to its end: the other side's, this process's, or that nobody uses it.
async fn serve<S>(stream: S, server: &Server)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let used = Use::new();
    let service = TowerToHyperService::new(Noted::new(server.router.clone(), used.clone()));
    let connection = server
        .builder
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = server.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = used.ended(server.patience) => {
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

/// HTTP/1.1 and HTTP/2 without TLS, whichever the gateway begins with.
fn builder(fixed: &Fixed) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let header_bytes_max = u32::try_from(fixed.header_bytes_max).unwrap_or(u32::MAX);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_FOR)
        .max_buf_size(fixed.header_bytes_max);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN)
        .max_header_list_size(header_bytes_max)
        .max_concurrent_streams(u32::try_from(fixed.requests_max).unwrap_or(u32::MAX));
    builder
}

impl Running {
    /// Where it listens, for people and for whoever started it.
    fn greet(&self) {
        let mut line = format!("leasehold-agent {}", env!("CARGO_PKG_VERSION"));
        if let Some(addr) = self.tcp {
            line.push_str(&format!(" tcp={addr}"));
        }
        if let Some(path) = self.socket.as_ref().map(Socket::path) {
            line.push_str(&format!(" unix={}", path.display()));
        }
        line.push('\n');
        // Nobody may be reading; the agent serves all the same.
        let mut out = io::stdout().lock();
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        tracing::info!(
            tcp = self.tcp.map(tracing::field::display),
            unix = self
                .socket
                .as_ref()
                .map(|socket| socket.path().display().to_string()),
            "serving"
        );
    }

    /// Takes no more connections, finishes the requests that are here, hands everything
    /// back, and removes the socket.
    async fn shutdown(self) {
        self.health
            .set_service_status("", ServingStatus::NotServing)
            .await;
        self.health
            .set_service_status(rls::NAME, ServingStatus::NotServing)
            .await;
        self.stop.cancel();
        drop(self.socket);
        self.connections.close();
        if timeout(DRAIN_WITHIN, self.connections.wait())
            .await
            .is_err()
        {
            tracing::warn!("connections did not end within 5 s: leaving them");
        }
        self.agent.decider.client().close().await;
    }
}

/// Logs to stderr: for people, or one JSON object a line.
fn start_logging(fixed: &Fixed) {
    // It was read as a filter before.
    let filter = tracing_subscriber::EnvFilter::try_new(&fixed.log_filter).unwrap_or_default();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    // A second subscriber in one process is a test's; the first one stays.
    let _ = match fixed.log_format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .try_init(),
    };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use axum::body::Body;
    use http_body_util::BodyExt;
    use prost::Message;
    use tokio::io::AsyncReadExt;
    use tonic::codegen::Service;

    use super::*;
    use crate::rls::pb::{
        envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code},
        google::protobuf::value::Kind,
    };

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn server(before_the_first: Duration) -> Server {
        let text = "[check]\nkey = \"edge\"\n";
        let path = Path::new("agent.toml");
        let texts = Texts::of(text);
        let config = Config::parse(path, &texts, false).unwrap();
        let fixed = config.fixed.clone();
        // Nobody is there; nothing here needs anybody.
        let client = Client::builder()
            .endpoints(["http://127.0.0.1:1".to_owned()])
            .holder("tests".to_owned())
            .start()
            .unwrap();
        let (_, standing) = Watcher::new(path, false, config, texts);
        let agent = Arc::new(Agent {
            decider: Decider::new(client),
            answers: Answers::default(),
            repeats: Repeats::new(fixed.remember_for, fixed.remembered_max),
            room: Room::new(10, 10),
            metrics: Metrics::install(),
            said: Said::default(),
            standing,
        });
        let (_, health_service) = tonic_health::server::health_reporter();
        Server {
            builder: builder(&fixed),
            router: router(&agent, health_service),
            agent,
            stop: CancellationToken::new(),
            connections: TaskTracker::new(),
            patience: Patience {
                before_the_first,
                between: Duration::from_secs(300),
            },
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_never_asks_is_closed_however_far_it_came() {
        let server = server(Duration::from_millis(50));
        let half = b"GET /healthz HTTP/1.1\r\nhost: x\r\n";
        for first in [b"".as_slice(), b"PR", PREFACE, half] {
            let (mut here, there) = tokio::io::duplex(1 << 16);
            here.write_all(first).await.unwrap();
            let served = timeout(Duration::from_secs(30), serve(there, &server)).await;
            assert!(served.is_ok(), "it is kept after {first:?}");
        }
    }

    // By a clock of its own: it goes on when nobody has anything to do.
    #[tokio::test(start_paused = true)]
    async fn a_connection_that_asks_is_kept() {
        let server = server(Duration::from_secs(2));
        let (mut here, there) = tokio::io::duplex(1 << 16);
        let asks = async {
            for _ in 0..2 {
                let question = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
                here.write_all(question).await.unwrap();
                let mut answer = vec![0; 4096];
                let length = here.read(&mut answer).await.unwrap();
                assert!(answer[..length].starts_with(b"HTTP/1.1 200 OK"));
                sleep(Duration::from_secs(3)).await;
            }
            drop(here);
        };
        tokio::join!(asks, serve(there, &server));
    }

    /// What the agent answers to the bytes of a question: HTTP's status, and the message.
    async fn asked(message: &[u8]) -> (http::HeaderMap, RateLimitResponse) {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let frame = [&[0], length.as_slice(), message].concat();
        let request = http::Request::post(format!("/{}/ShouldRateLimit", rls::NAME))
            .header("content-type", "application/grpc")
            .body(Body::from(frame))
            .unwrap();
        let mut router = server(Duration::from_secs(10)).router;
        let answer = router.call(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let body = answer.into_body().collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        let bytes = body.to_bytes();
        assert!(bytes.len() > 5, "there is no message: {trailers:?}");
        (trailers, RateLimitResponse::decode(&bytes[5..]).unwrap())
    }

    #[tokio::test]
    async fn what_envoy_asks_and_cannot_be_read_is_refused_and_no_error() {
        // A descriptor with one entry, whose value ends within a character.
        let entry = [b"\x0a\x04user".as_slice(), b"\x12\x02a\xc3"].concat();
        let within = |tag: u8, inner: &[u8]| {
            let length = u8::try_from(inner.len()).unwrap();
            [&[tag, length], inner].concat()
        };
        let not_utf8 = within(0x12, &within(0x0a, &entry));
        let too_long = [b"\x0a\x80\x80\x20".as_slice(), &[b'x'; 1 << 19]].concat();
        for message in [not_utf8.as_slice(), &too_long, b"\xff\xff"] {
            let (trailers, told) = asked(message).await;
            assert_eq!(trailers["grpc-status"], "0");
            assert_eq!(told.overall_code(), Code::OverLimit);
            let status = &told.dynamic_metadata.unwrap().fields["status"];
            assert_eq!(status.kind, Some(Kind::NumberValue(400.0)));
        }
    }
}
