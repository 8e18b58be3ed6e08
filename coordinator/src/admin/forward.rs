//! A follower's answer to operators: the leader's. The whole request travels
//! once; a node that is asked by another node never asks a third.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, uri::Scheme},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use leasehold_doors::{Dialer, Kept};
use parking_lot::Mutex;

use super::{
    Admin, BODY_BYTES_MAX, BULK_BYTES_MAX, corrections,
    problem::{Kind, NotLeader, Problem},
    spend,
};
use crate::{
    access::{Visitor, on_behalf_of},
    raft::Member,
};

/// Names the node that forwarded a request.
const FORWARDED_BY: HeaderName = HeaderName::from_static("leasehold-forwarded-by");
/// What the leader has to know of a request besides its body.
const PASSED_ON: [HeaderName; 8] = [
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::ACCEPT,
    header::USER_AGENT,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    corrections::BY,
    spend::IDEMPOTENCY_KEY,
];
/// Above what a leader needs to lose a quorum and notice.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

type Plain = Client<HttpConnector, Full<Bytes>>;
type Secured = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// How long the body of a request may take to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyWithin(pub(crate) Duration);

/// Carries requests to leaders.
pub(super) struct Forwarder {
    plain: Plain,
    secured: Option<Renewed>,
}

/// A client that is made anew when its certificates change.
struct Renewed {
    certificates: Kept<Dialer>,
    made: Mutex<(Arc<Dialer>, Secured)>,
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(Duration::from_secs(1)));
    connector
}

fn secured(by: &Dialer) -> Secured {
    let mut connector = connector();
    // Whatever the URL says: the layer around it knows.
    connector.enforce_http(false);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(by.config.as_ref().clone())
        .https_only()
        .enable_http1()
        .wrap_connector(connector);
    Client::builder(TokioExecutor::new()).build(connector)
}

impl Forwarder {
    pub(super) fn new(certificates: Option<Kept<Dialer>>) -> Self {
        Self {
            plain: Client::builder(TokioExecutor::new()).build(connector()),
            secured: certificates.map(|certificates| {
                let now = certificates.now();
                let client = secured(&now);
                Renewed {
                    certificates,
                    made: Mutex::new((now, client)),
                }
            }),
        }
    }

    /// By the certificates of this moment: connections of before are not used again.
    fn secured(&self) -> Option<Secured> {
        let renewed = self.secured.as_ref()?;
        let now = renewed.certificates.now();
        let mut made = renewed.made.lock();
        if !Arc::ptr_eq(&made.0, &now) {
            *made = (Arc::clone(&now), secured(&now));
        }
        Some(made.1.clone())
    }

    async fn send(&self, by: u64, leader: &Member, request: &Whole) -> Result<Response, Problem> {
        let path = request.uri.path_and_query().map_or("/", |p| p.as_str());
        let url = format!("{}{path}", admin_url(leader).trim_end_matches('/'));
        let mut outgoing = axum::http::Request::new(Full::new(request.body.clone()));
        *outgoing.method_mut() = request.method.clone();
        *outgoing.uri_mut() = url.parse().map_err(|_| {
            Problem::new(
                Kind::LeaderUnreachable,
                format!(
                    "node {} leads, but advertises {:?}, which is not a URL",
                    leader.node_id,
                    admin_url(leader)
                ),
            )
        })?;
        for name in PASSED_ON {
            for value in request.headers.get_all(&name) {
                outgoing.headers_mut().append(&name, value.clone());
            }
        }
        outgoing
            .headers_mut()
            .insert(FORWARDED_BY, HeaderValue::from(by));
        if let Some((name, value)) = request.visitor.as_ref().and_then(on_behalf_of) {
            outgoing.headers_mut().insert(name, value);
        }
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        let unanswered = |what: String, sent: bool| {
            if sent && !reads {
                Problem::new(
                    Kind::OutcomeUnknown,
                    format!(
                        "the request was forwarded to node {}, {what}: it may or may not have taken effect",
                        leader.node_id
                    ),
                )
            } else {
                Problem::new(
                    Kind::LeaderUnreachable,
                    format!(
                        "node {} at {} leads as far as this node knows, {what}; nothing was changed",
                        leader.node_id,
                        admin_url(leader)
                    ),
                )
            }
        };
        metrics::counter!("leasehold_http_forwarded_total").increment(1);
        let is_secured = outgoing.uri().scheme() == Some(&Scheme::HTTPS);
        let sent = match (is_secured, self.secured()) {
            (true, Some(secured)) => secured.request(outgoing),
            (true, None) => {
                return Err(unanswered(
                    "but speaks TLS, and this node has no tls.ca to know it by".to_owned(),
                    false,
                ));
            }
            (false, _) => self.plain.request(outgoing),
        };
        match tokio::time::timeout(ANSWER_WITHIN, sent).await {
            Err(_) => Err(unanswered(
                "which did not answer within 10 s".to_owned(),
                true,
            )),
            Ok(Err(error)) if error.is_connect() => {
                Err(unanswered("but cannot be reached".to_owned(), false))
            }
            Ok(Err(error)) => Err(unanswered(format!("which broke off ({error})"), true)),
            Ok(Ok(answer)) => {
                let (mut parts, body) = answer.into_parts();
                for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::DATE] {
                    parts.headers.remove(name);
                }
                Ok(Response::from_parts(parts, Body::new(body)))
            }
        }
    }
}

fn admin_url(member: &Member) -> &str {
    if member.admin_url.is_empty() {
        &member.client_url
    } else {
        &member.admin_url
    }
}

/// A request with its whole body, so that it can be answered here or there.
struct Whole {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    visitor: Option<Visitor>,
}

/// Answers on the leader, forwards elsewhere.
pub(super) async fn to_leader(
    State(admin): State<Admin>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let is_bulk = parts.method == Method::PUT && parts.uri.path() == "/v1/budgets";
    let bound = if is_bulk {
        BULK_BYTES_MAX
    } else {
        BODY_BYTES_MAX
    };
    let within = parts.extensions.get::<BodyWithin>().copied();
    let within = within.unwrap_or(BodyWithin(ANSWER_WITHIN)).0;
    let Ok(body) = tokio::time::timeout(within, to_bytes(body, bound)).await else {
        return Problem::new(
            Kind::BodyTooSlow,
            format!(
                "the body was not here within {} ms; nothing was changed",
                within.as_millis()
            ),
        )
        .into_response();
    };
    let Ok(body) = body else {
        return Problem::new(
            Kind::BodyTooLarge,
            format!("a body has at most {bound} bytes here"),
        )
        .into_response();
    };
    let whole = Whole {
        method: parts.method.clone(),
        uri: parts.uri.clone(),
        headers: parts.headers.clone(),
        body: body.clone(),
        visitor: admin.access.visitor(&parts.extensions),
    };
    let hopped = parts.headers.contains_key(FORWARDED_BY);
    // Alone in answering without a leader: it is what an operator then looks at.
    let diagnosis = whole.method == Method::GET && whole.uri.path() == "/v1/cluster";
    let view = admin.node.leader();
    let by = admin.node.config().replica.node_id;
    let here = Request::from_parts(parts, Body::from(body));
    if view.is_self {
        let answer = next.run(here).await;
        // Leadership may have moved in the meantime; nothing was changed here then.
        return match answer.extensions().get::<NotLeader>() {
            Some(NotLeader(Some(leader))) if !hopped && leader.node_id != by => admin
                .forwarder
                .send(by, leader, &whole)
                .await
                .into_response(),
            _ => answer,
        };
    }
    match view.member {
        Some(leader) if !hopped => match admin.forwarder.send(by, &leader, &whole).await {
            Err(_) if diagnosis => next.run(here).await,
            answer => answer.into_response(),
        },
        _ if diagnosis => next.run(here).await,
        _ if hopped => Problem::new(
            Kind::NoLeader,
            format!(
                "another node took node {by} for the leader, which it is not; nothing was changed"
            ),
        )
        .into_response(),
        _ => Problem::no_leader().into_response(),
    }
}

/// Counts every answer of the API by the class of its status.
pub(super) async fn count(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let class = match response.status().as_u16() {
        0..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    };
    metrics::counter!("leasehold_http_requests_total", "class" => class).increment(1);
    response
}

/// Over plain HTTP to another host than this one, browsers send no more than `Origin`.
fn is_own_origin(request: &Request) -> bool {
    let Some(origin) = request.headers().get(header::ORIGIN) else {
        return true;
    };
    let host = request
        .headers()
        .get(header::HOST)
        .map(HeaderValue::as_bytes);
    let host = host.or_else(|| {
        request
            .uri()
            .authority()
            .map(|host| host.as_str().as_bytes())
    });
    let origin = origin.to_str().unwrap_or_default();
    let named = origin.split_once("://").map(|(_, host)| host.as_bytes());
    named.is_some() && named == host
}

/// A web page that an operator happens to visit must not reach a loopback API.
/// Browsers say where a request comes from; other clients say nothing.
pub(super) async fn refuse_other_origins(request: Request, next: Next) -> Response {
    let site = request
        .headers()
        .get("sec-fetch-site")
        .map(HeaderValue::as_bytes);
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let same_site = matches!(site, None | Some(b"same-origin" | b"none"));
    if reads || (same_site && is_own_origin(&request)) {
        return next.run(request).await;
    }
    Problem::new(
        Kind::CrossOrigin,
        "this request comes from a page of another origin",
    )
    .into_response()
}
