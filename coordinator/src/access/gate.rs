//! Everybody who calls passes here, for HTTP and gRPC alike: who they are, what their
//! request takes, and whether they may. Knows nothing of what is behind it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{FromRef, FromRequestParts, MatchedPath, Request, State},
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, header, request::Parts},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use leasehold_doors::{Caller, Connection};
use metrics::counter;
use tonic::Status;

use super::{
    Access, Guarded,
    crowd::{Taken, What},
    identity::Takes,
    register::{Proof, Unknown},
    rules,
    throttle::Verdict,
    token::Token,
    visitor::{Visitor, now_unix_us},
};
use crate::admin::{BY, Kind, Problem};

/// Whom a coordinator asks for, when they proved who they are by a certificate that only
/// it has seen.
pub(crate) const ON_BEHALF_OF: HeaderName = HeaderName::from_static("leasehold-on-behalf-of");
/// How often at most it is said that somebody is slowed.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// The code of a gRPC refusal, among its trailers.
const CODE: &str = "leasehold-code";

impl Access {
    /// Lets nobody through to these routes who may not ask what they ask. Handlers find a
    /// `Visitor` among the request's extensions.
    pub fn guard(&self, routes: Router) -> Router {
        if self.is_for_everybody() {
            return routes;
        }
        routes.layer(from_fn_with_state(self.clone(), pass))
    }

    /// Who asks, by their request's extensions; none: a stranger.
    pub(crate) fn visitor(&self, extensions: &Extensions) -> Option<Visitor> {
        match extensions.get::<Visitor>() {
            Some(visitor) => Some(visitor.clone()),
            None if self.is_for_everybody() => Some(Visitor::anybody()),
            None => None,
        }
    }
}

async fn pass(State(access): State<Access>, mut request: Request, next: Next) -> Response {
    let Some(guarded) = &access.0 else {
        return next.run(request).await;
    };
    let path = request.uri().path();
    let template = request
        .extensions()
        .get::<MatchedPath>()
        .map(|route| route.as_str().to_owned());
    let takes = template
        .as_deref()
        .and_then(|template| rules::takes(request.method(), template, path));
    // Nobody else may have said who asks.
    request.extensions_mut().remove::<Visitor>();
    let who = guarded.authenticate(&access, &request);
    if takes == Some(Takes::Nothing) {
        match who {
            Ok(visitor) => {
                request.extensions_mut().insert(visitor);
            }
            Err(Unknown::Nothing) => {}
            // A probe whose token has expired is a stranger like any other: it must not
            // take the node out of service.
            Err(unknown) => count_failure(unknown),
        }
        return next.run(request).await;
    }
    let is_grpc = is_grpc(request.headers());
    let visitor = match who {
        Ok(visitor) => visitor,
        Err(unknown) => {
            let caller = request.extensions().get::<Caller>().cloned();
            return guarded.turn_away(caller, unknown, is_grpc).await;
        }
    };
    match (takes, template) {
        (Some(takes), _) if visitor.may(takes) => {}
        // Nothing is served there, and says so.
        (None, None) => {}
        (None, Some(template))
            if rules::has_other_methods(&template, |takes| visitor.may(takes)) =>
        {
            let method = request.method();
            let detail = format!("{method} is not offered here; /openapi.json lists what is");
            return refusal(is_grpc, Kind::MethodNotAllowed, &detail);
        }
        _ => {
            counter!("leasehold_forbidden_total").increment(1);
            tracing::debug!(
                identity = visitor.name(),
                "refused what its role does not allow"
            );
            let detail = format!(
                "{} is known, and its role ({}) does not allow this",
                visitor.name(),
                visitor.role().map_or("none", super::Role::as_word)
            );
            return refusal(is_grpc, Kind::Forbidden, &detail);
        }
    }
    // What histories say is who it was, not who they say they are.
    request.headers_mut().remove(BY);
    if let Ok(name) = HeaderValue::from_str(visitor.name()) {
        request.headers_mut().insert(BY, name);
    }
    let held = match guarded.make_room(&mut request, &visitor, takes) {
        Ok(held) => held,
        Err(what) => {
            counter!("leasehold_refused_total", "limit" => what.limit()).increment(1);
            let detail = format!(
                "{} has as many as limits.{} allows; nothing was changed",
                visitor.name(),
                what.limit()
            );
            return refusal(is_grpc, Kind::TooManyRequests, &detail);
        }
    };
    request.extensions_mut().insert(visitor);
    let answer = next.run(request).await;
    drop(held);
    answer
}

impl Guarded {
    /// Counts what this request takes of the node. A stream's place goes with it.
    fn make_room(
        &self,
        request: &mut Request,
        visitor: &Visitor,
        takes: Option<Takes>,
    ) -> Result<Option<Taken>, What> {
        let Some(known) = visitor.known() else {
            return Ok(None);
        };
        let name = &known.identity.name;
        let take = |what| self.crowd.take(what, name).ok_or(what);
        let by_node = request
            .extensions()
            .get::<Caller>()
            .and_then(|caller| caller.certificate.as_ref())
            .is_some_and(|certificate| certificate.is_node);
        let connection = request.extensions().get::<Connection>();
        // A coordinator asks for many on one connection.
        if let Some(connection) = connection.filter(|it| !by_node && !it.is_noted()) {
            connection.note(take(What::Connection)?);
        }
        if takes == Some(Takes::Leasing) {
            let place = take(What::Stream)?;
            request.extensions_mut().insert(Arc::new(place));
            return Ok(None);
        }
        take(What::Request).map(Some)
    }

    /// Who asks. A token is looked at first, and decides if there is one.
    fn authenticate(&self, access: &Access, request: &Request) -> Result<Visitor, Unknown> {
        let headers = request.headers();
        let certificate = request
            .extensions()
            .get::<Caller>()
            .and_then(|caller| caller.certificate.as_ref());
        let identities = self.identities.now();
        let (identity, proof): (_, Proof) = match (token(headers)?, certificate) {
            (Some(token), _) => identities.by_token(&token, now_unix_us())?,
            (None, None) => return Err(Unknown::Nothing),
            (None, Some(node)) if node.is_node => {
                let name = headers.get(ON_BEHALF_OF).ok_or(Unknown::Nothing)?;
                let name = name.to_str().map_err(|_| Unknown::Malformed)?;
                identities.by_certificate(name)?
            }
            (None, Some(certificate)) => identities.by_certificate(&certificate.name)?,
        };
        Ok(Visitor::new(identity, proof, access.clone()))
    }

    /// Not more often than is of use: whoever is slowed must not fill the disk.
    fn say_slowed(&self, addr: Option<std::net::IpAddr>, unknown: Unknown) {
        let mut said = self.said.lock();
        if said.is_some_and(|said| said.elapsed() < SAY_EVERY) {
            return;
        }
        *said = Some(Instant::now());
        let addr = addr.map_or_else(|| "a Unix socket".to_owned(), |addr| addr.to_string());
        tracing::warn!(
            addr,
            reason = unknown.as_word(),
            "keeps failing to prove who it is, and is answered late: a token that was revoked or has expired, or somebody who guesses"
        );
    }

    /// Answers whoever is not known, after a while if they come again and again.
    async fn turn_away(&self, caller: Option<Caller>, unknown: Unknown, is_grpc: bool) -> Response {
        count_failure(unknown);
        let caller = caller.unwrap_or_default();
        let addr = caller.addr;
        let is_node = caller
            .certificate
            .is_some_and(|certificate| certificate.is_node);
        tracing::debug!(?addr, reason = unknown.as_word(), "not known");
        // Who shows nothing guesses nothing, and who comes by a node was slowed there.
        if unknown != Unknown::Nothing && !is_node {
            let addr = addr.map(|addr| addr.ip());
            match self.throttle.failed(addr, Instant::now()) {
                Verdict::After(wait, waiting) if !wait.is_zero() => {
                    counter!("leasehold_unauthenticated_slowed_total").increment(1);
                    self.say_slowed(addr, unknown);
                    tokio::time::sleep(wait).await;
                    drop(waiting);
                }
                Verdict::After(..) => {}
                Verdict::Later => {
                    counter!("leasehold_unauthenticated_slowed_total").increment(1);
                    let detail =
                        "too many attempts to prove who you are have failed; nothing was changed";
                    return refusal(is_grpc, Kind::TooManyRequests, detail);
                }
            }
        }
        refusal(
            is_grpc,
            Kind::Unauthenticated,
            "a valid token (Authorization: Bearer …) or client certificate is needed; nothing was changed",
        )
    }
}

fn count_failure(unknown: Unknown) {
    counter!("leasehold_unauthenticated_total", "reason" => unknown.as_word()).increment(1);
}

/// The token that a request shows.
fn token(headers: &HeaderMap) -> Result<Option<Token>, Unknown> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Unknown::Malformed);
    }
    let shown = value.to_str().ok().and_then(|value| value.split_once(' '));
    let (scheme, token) = shown.ok_or(Unknown::Malformed)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Unknown::Malformed);
    }
    Token::parse(token.trim())
        .map(Some)
        .ok_or(Unknown::Malformed)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The same no for HTTP and gRPC.
fn refusal(is_grpc: bool, kind: Kind, detail: &str) -> Response {
    if !is_grpc {
        return Problem::new(kind, detail).into_response();
    }
    let status = match kind {
        Kind::Unauthenticated => Status::unauthenticated(detail),
        Kind::TooManyRequests => Status::resource_exhausted(detail),
        Kind::MethodNotAllowed => Status::unimplemented(detail),
        _ => Status::permission_denied(detail),
    };
    with_code(status, kind.code()).into_http::<Body>()
}

/// A status with its stable code.
pub(crate) fn with_code(mut status: Status, code: &'static str) -> Status {
    status
        .metadata_mut()
        .insert(CODE, tonic::metadata::MetadataValue::from_static(code));
    status
}

/// The header by which a request is forwarded for a visitor whom only this node has seen.
pub(crate) fn on_behalf_of(visitor: &Visitor) -> Option<(HeaderName, HeaderValue)> {
    if !visitor.is_by_certificate() {
        return None;
    }
    let name = HeaderValue::from_str(visitor.name()).ok()?;
    Some((ON_BEHALF_OF, name))
}

/// For handlers behind the gate.
impl<S> FromRequestParts<S> for Visitor
where
    Access: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let access = <Access as FromRef<S>>::from_ref(state);
        access.visitor(&parts.extensions).ok_or_else(|| {
            Problem::new(
                Kind::Unauthenticated,
                "nobody said who asks; nothing was changed",
            )
        })
    }
}
