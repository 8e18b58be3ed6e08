//! What stands between a node's sockets and its routes: TLS, limits, and what is said
//! before there are routes. Knows nothing of what is asked.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use leasehold_doors::{
    Dialer, Door, Expiry, Kept, KeptError, Limits, ListenerTls, Places, Refused, Watch,
};
use tokio::sync::watch;
use tonic::Status;
use tower::ServiceExt;

use crate::{
    admin::{self, BodyWithin, TooMuch},
    config,
    raft::PeerTls,
};

/// The most requests at once on one connection of HTTP/2.
const STREAMS_MAX: u32 = 1_024;
/// How often it is asked on a connection of HTTP/2 whether the other end is there.
const PING_EVERY: std::time::Duration = std::time::Duration::from_secs(60);
const PING_WITHIN: std::time::Duration = std::time::Duration::from_secs(20);

/// The certificates of a node's connections.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    pub(crate) clients: Option<Kept<ListenerTls>>,
    pub(crate) leader: Option<Kept<Dialer>>,
    pub(crate) peers: Option<Kept<PeerTls>>,
}

impl Certificates {
    /// Reads the files, and will read them again.
    pub(crate) fn keep(files: config::Tls, watch: &mut Watch) -> Result<Self, KeptError> {
        let mut kept = Self::default();
        if let Some(files) = files.clients {
            kept.clients = Some(watch.keep(
                "the certificates of [tls]",
                files.sources(),
                move |contents| ListenerTls::read(&files, contents),
                |tls| tls.expiries.clone(),
            )?);
        }
        if let Some(files) = files.leader {
            kept.leader = Some(watch.keep(
                "the certificates for requests that are sent on",
                files.sources(),
                move |contents| Dialer::read(&files, &[], contents),
                // Each of them is another one's, too.
                |_| Vec::new(),
            )?);
        }
        if let Some((listener, dialer)) = files.peers {
            let sources = listener.sources();
            kept.peers = Some(watch.keep(
                "the certificates of [tls.peers]",
                sources,
                move |contents| {
                    Ok(PeerTls {
                        listener: Arc::new(ListenerTls::read(&listener, contents)?),
                        dialer: Dialer::read(&dialer, &[b"h2"], contents)?,
                    })
                },
                |tls| tls.listener.expiries.clone(),
            )?);
        }
        Ok(kept)
    }

    /// Shows in metrics when they expire, and whether they are those that the files say.
    pub(crate) fn show(&self) {
        let of_clients = self
            .clients
            .iter()
            .flat_map(|tls| tls.now().expiries.clone());
        let of_peers = self.peers.iter();
        let of_peers = of_peers.flat_map(|tls| tls.now().listener.expiries.clone());
        let all: Vec<Expiry> = of_clients.chain(of_peers).collect();
        for expiry in &all {
            #[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
            let seconds = expiry.seconds_left() as f64;
            metrics::gauge!("leasehold_certificate_expires_seconds", "which" => expiry.field)
                .set(seconds);
        }
        if !all.is_empty() {
            let problems = [
                self.clients.as_ref().and_then(Kept::problem),
                self.leader.as_ref().and_then(Kept::problem),
                self.peers.as_ref().and_then(Kept::problem),
            ];
            let is_kept = problems.iter().any(Option::is_some);
            metrics::gauge!("leasehold_certificates_kept").set(f64::from(u8::from(is_kept)));
        }
    }
}

/// A connection of a client or an operator was turned away.
fn refused(why: Refused) {
    count(why.limit());
}

/// A connection of a peer was turned away.
pub(crate) fn refused_peer(why: Refused) {
    metrics::counter!("leasehold_peers_refused_total", "limit" => why.limit()).increment(1);
}

fn count(limit: &'static str) {
    metrics::counter!("leasehold_refused_total", "limit" => limit).increment(1);
}

/// What a door leads to, once there is something.
pub(crate) type Routes = watch::Receiver<Option<Router>>;

/// A door for clients or operators.
pub(crate) fn door(
    routes: Routes,
    limits: &config::Limits,
    requests: Arc<Places>,
    tls: Option<Kept<ListenerTls>>,
) -> Arc<Door> {
    let places = Arc::new(Places::new(limits.connections_max));
    let of_connections = Limits {
        connections_per_address_max: limits.connections_per_address_max,
        handshake: limits.handshake,
        header: limits.header,
        idle: limits.idle,
        header_bytes_max: limits.header_bytes_max,
        streams_max: STREAMS_MAX,
        ping_every: PING_EVERY,
        ping_within: PING_WITHIN,
        window_bytes: None,
    };
    let front = front(routes, limits, requests);
    let door = Door::new(front, places, of_connections, refused);
    Arc::new(match tls {
        Some(tls) => door.with_tls(move || tls.now()),
        None => door,
    })
}

/// Bounds what is asked, and leads to the routes.
fn front(routes: Routes, limits: &config::Limits, requests: Arc<Places>) -> Router {
    let (url_bytes_max, body) = (limits.url_bytes_max, limits.body);
    Router::new().fallback(move |mut request: Request| {
        let routes = routes.borrow().clone();
        let requests = Arc::clone(&requests);
        async move {
            let url_bytes = request
                .uri()
                .path_and_query()
                .map_or(0, |path| path.as_str().len());
            if url_bytes > url_bytes_max {
                count("url_bytes_max");
                return refuse(
                    request.headers(),
                    TooMuch::Url {
                        bytes_max: url_bytes_max,
                    },
                );
            }
            let Some(routes) = routes else {
                return admin::starting(request.uri().path());
            };
            // Whoever looks whether the node lives, or can answer, is told so however much it
            // does: one that is busy is not to be taken out of service for that.
            let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz");
            let place = requests.take();
            if place.is_none() && !is_probe {
                count("requests_max");
                return refuse(request.headers(), TooMuch::Requests);
            }
            request.extensions_mut().insert(BodyWithin(body));
            // A stream that goes on after its head has a limit of its own.
            routes.oneshot(request).await.into_response()
        }
    })
}

/// In the words of whoever asks.
fn refuse(headers: &HeaderMap, what: TooMuch) -> Response {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        let status = Status::resource_exhausted(format!("{}: {}", what.code(), what.detail()));
        return status.into_http::<axum::body::Body>();
    }
    what.into_response()
}
