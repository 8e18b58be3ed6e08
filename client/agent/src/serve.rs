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
use leasehold_client::{BuildError, Client, http::Answers};
use leasehold_doors::{
    Door, Kept, KeptError, Limits, Listener, ListenerFiles, ListenerTls, Places, Watch,
};
use thiserror::Error;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::interval,
};
use tokio_util::sync::CancellationToken;
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
    listen::{self, ListenError, Socket},
    metrics::{self, Metrics},
    reload::Watcher,
    repeats::Repeats,
    rls,
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
/// Why an agent did not start, or stopped.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A certificate or a key cannot be used.
    #[error(transparent)]
    Files(#[from] KeptError),
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
            Self::Files(_) | Self::Client(_) => "invalid_config",
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
    door: Arc<Door>,
    stop: CancellationToken,
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
    let mut files = Watch::default();
    let tls = fixed.tls.clone().map(|tls| keep(tls, &mut files));
    let tls = tls.transpose()?;
    let client = Client::builder()
        .endpoints(fixed.endpoints.clone())
        .credentials(fixed.calling.credentials())
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
        connections: Arc::new(Places::new(fixed.connections_max)),
        requests: Places::new(fixed.requests_max),
        tls,
        metrics: Metrics::install(),
        said: Said::default(),
        standing,
    });
    let (health, health_service) = tonic_health::server::health_reporter();
    let stop = CancellationToken::new();
    let door = Door::new(
        router(&agent, health_service),
        Arc::clone(&agent.connections),
        limits(&fixed),
        metrics::connection_refused,
    );
    let door = Arc::new(match agent.tls.clone() {
        Some(tls) => door.with_tls(move || tls.now()),
        None => door,
    });
    health.set_service_status("", ServingStatus::Serving).await;
    health
        .set_service_status(rls::NAME, ServingStatus::Serving)
        .await;
    let addr = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
    if let Some(listener) = tcp {
        tokio::spawn(Arc::clone(&door).serve(Listener::Tcp(listener)));
    }
    let socket = unix.map(|(listener, socket)| {
        tokio::spawn(Arc::clone(&door).serve(Listener::Unix(listener)));
        socket
    });
    let metrics = keep_metrics(agent.metrics.clone());
    tokio::spawn(stop.clone().run_until_cancelled_owned(keep_watch(watcher)));
    tokio::spawn(stop.clone().run_until_cancelled_owned(metrics));
    if !files.is_empty() {
        tokio::spawn(stop.clone().run_until_cancelled_owned(keep_files(files)));
    }
    Ok(Running {
        agent,
        tcp: addr,
        socket,
        health,
        door,
        stop,
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

/// Reads the certificates, and will read them again.
pub(crate) fn keep(
    files: ListenerFiles,
    watch: &mut Watch,
) -> Result<Kept<ListenerTls>, KeptError> {
    let sources = files.sources();
    watch.keep(
        "the certificates of [listen.tls]",
        sources,
        move |contents| ListenerTls::read(&files, contents),
        |tls| tls.expiries.clone(),
    )
}

async fn keep_files(files: Watch) {
    if let Err(error) = files.run().await {
        tracing::error!(%error, "changes of the certificates are not seen");
    }
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

/// What connections may take.
fn limits(fixed: &Fixed) -> Limits {
    Limits {
        // Gateways are few, and often all behind one address.
        connections_per_address_max: fixed.connections_max,
        handshake: FIRST_WITHIN,
        header: FIRST_WITHIN,
        idle: IDLE_FOR,
        header_bytes_max: fixed.header_bytes_max,
        streams_max: u32::try_from(fixed.requests_max).unwrap_or(u32::MAX),
        ping_every: PING_EVERY,
        ping_within: PING_WITHIN,
        window_bytes: None,
    }
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
        if !self.door.close(DRAIN_WITHIN).await {
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
    use tonic::codegen::Service;

    use leasehold_doors::{Contents, Dialer, DialerFiles};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::authority::{Authority, Folder};
    use crate::rls::pb::{
        envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code},
        google::protobuf::value::Kind,
    };

    fn router_of_tests() -> Router {
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
            connections: Arc::new(Places::new(10)),
            requests: Places::new(10),
            tls: None,
            metrics: Metrics::install(),
            said: Said::default(),
            standing,
        });
        let (_, health_service) = tonic_health::server::health_reporter();
        router(&agent, health_service)
    }

    async fn told(port: u16, files: DialerFiles, path: &str) -> Result<String, io::Error> {
        let contents = Contents::read(&files.sources());
        let dialer = Dialer::read(&files, &[b"http/1.1"], &contents).unwrap();
        let mut stream = dialer.dial("localhost", port).await?;
        let question = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn a_gateway_that_shows_no_certificate_is_told_nothing_where_one_is_asked_for() {
        let dir = Folder::new();
        let (own, gateways) = (Authority::new("agents"), Authority::new("gateways"));
        let (chain, key) = own.issue(&["localhost"]);
        let file = |name, text: &str| dir.write(name, text).path.display().to_string();
        let text = format!(
            "[check]\nkey = \"edge\"\n[listen]\ntcp = \"127.0.0.1:0\"\n[listen.tls]\n\
             certificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n",
            file("certificate", &chain),
            file("key", &key),
            file("client_ca", &gateways.pem)
        );
        let (path, texts) = (Path::new("agent.toml"), Texts::of(&text));
        let config = Config::parse(path, &texts, false).unwrap();
        let running = start(path, false, config, texts).await.unwrap();
        let port = running.tcp.unwrap().port();
        let gateway = || dir.dialer(&own, Some(gateways.issue(&["edge-1"])));
        let answer = told(port, gateway(), "/metrics").await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains("leasehold_agent_certificate_expires_seconds{"));
        for nobody in [None, Some(own.issue(&["edge-1"]))] {
            let answer = told(port, dir.dialer(&own, nobody), "/healthz").await;
            assert!(answer.is_err(), "{answer:?}");
        }
        running.shutdown().await;
    }

    /// What the agent answers to the bytes of a question: HTTP's status, and the message.
    async fn asked(message: &[u8]) -> (http::HeaderMap, RateLimitResponse) {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let frame = [&[0], length.as_slice(), message].concat();
        let request = http::Request::post(format!("/{}/ShouldRateLimit", rls::NAME))
            .header("content-type", "application/grpc")
            .body(Body::from(frame))
            .unwrap();
        let mut router = router_of_tests();
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
