//! The layer around a service, with a coordinator that does as it is told: who is
//! charged what, who is refused how, and what the service within sees of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod authority;
mod fake;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fake::{Fake, builder};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use leasehold_client::{
    Client, Key,
    http::{Answers, Reason},
    tower::{Charge, Identify, Missing, QuotaLayer, header},
};
use tower::{Layer, Service, ServiceExt};

/// Answers everything with 200, and counts.
#[derive(Clone, Default)]
struct App(Arc<AtomicUsize>);

impl App {
    fn served(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Service<Request<Full<Bytes>>> for App {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Response::new(Full::from("served"))))
    }
}

fn by(name: &'static str) -> impl Identify {
    header(HeaderName::from_static(name))
}

/// `tenant/*` by the header `tenant`, without jitter.
fn tenants(client: &Client) -> QuotaLayer {
    QuotaLayer::new(client)
        .charge(Charge::to("tenant").unwrap().by(by("tenant")))
        .answers(Answers::default().jitter(Duration::ZERO..=Duration::ZERO))
}

async fn call(
    layer: &QuotaLayer,
    app: &App,
    headers: &[(&str, &str)],
) -> (StatusCode, HeaderMap, String) {
    let mut request = Request::builder().uri("/orders");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::default()).unwrap();
    let response = layer.layer(app.clone()).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    assert!(body.trailers().is_none());
    let body = String::from_utf8(body.to_bytes().into()).unwrap();
    (parts.status, parts.headers, body)
}

async fn status(layer: &QuotaLayer, app: &App, headers: &[(&str, &str)]) -> StatusCode {
    call(layer, app, headers).await.0
}

async fn client(free: &[(&str, u64)]) -> (Fake, Client) {
    let (fake, url) = Fake::start().await;
    for (key, units) in free {
        fake.give(key, *units);
    }
    (fake, builder(&url).connect().await.unwrap())
}

const ACME: (&str, &str) = ("tenant", "acme");

#[tokio::test]
async fn who_has_units_is_served_and_told_how_many_are_left() {
    let (_fake, client) = client(&[("tenant/acme", 2)]).await;
    let (layer, app) = (tenants(&client), App::default());
    let (status, headers, body) = call(&layer, &app, &[ACME]).await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "served"));
    assert_eq!(headers["ratelimit-policy"], "\"default\";q=100;w=60");
    assert_eq!(headers["ratelimit"], "\"default\";r=1");
    assert_eq!(app.served(), 1);
}

#[tokio::test]
async fn who_has_none_is_refused_and_the_service_does_not_see_it() {
    let (_fake, client) = client(&[]).await;
    let (layer, app) = (tenants(&client), App::default());
    let (status, headers, body) = call(&layer, &app, &[ACME]).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["ratelimit"], "\"default\";r=0;t=60");
    assert_eq!(headers["retry-after"], "60");
    assert_eq!(headers["content-type"], "application/problem+json");
    assert!(
        body.contains(r#""violated-policies":["default"]"#),
        "{body}"
    );
    assert!(!body.contains("acme"), "{body}");
    assert_eq!(app.served(), 0);
}

#[tokio::test]
async fn all_charges_are_paid_or_none_is() {
    let (fake, client) = client(&[("tenant/acme", 5), ("user/acme/ada", 1)]).await;
    let user = Charge::to("user").unwrap().by(by("tenant")).by(by("user"));
    // Either order: the one that is short comes first or last.
    let layers = [
        tenants(&client).charge(user.clone()),
        QuotaLayer::new(&client)
            .charge(user)
            .charge(Charge::to("tenant").unwrap().by(by("tenant"))),
    ];
    let app = App::default();
    let ada = [ACME, ("user", "ada")];
    assert_eq!(status(&layers[0], &app, &ada).await, StatusCode::OK);
    for layer in &layers {
        let refused = status(layer, &app, &ada).await;
        assert_eq!(refused, StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(app.served(), 1);
    client.close().await;
    assert_eq!(fake.get(|books| books.free["tenant/acme"]), 4);
}

#[tokio::test]
async fn who_says_no_name_is_refused_unless_it_is_said_otherwise() {
    let (fake, client) = client(&[("tenant/acme", 9), ("anonymous", 1)]).await;
    let (layer, app) = (tenants(&client), App::default());
    let (refused, headers, body) = call(&layer, &app, &[]).await;
    assert_eq!(refused, StatusCode::FORBIDDEN);
    assert!(!headers.contains_key("retry-after"), "{headers:?}");
    assert!(body.contains("does not say who is calling"), "{body}");
    let twice = [ACME, ("tenant", "other")];
    assert_eq!(status(&layer, &app, &twice).await, StatusCode::BAD_REQUEST);
    assert_eq!(app.served(), 0);

    let passes = layer.clone().missing(Missing::Pass);
    assert_eq!(status(&passes, &app, &[]).await, StatusCode::OK);
    assert_eq!(status(&passes, &app, &twice).await, StatusCode::BAD_REQUEST);

    let named = Charge::to("tenant").unwrap().by(by("tenant"));
    let anonymous = named.or(Charge::to("anonymous").unwrap());
    let shared = QuotaLayer::new(&client).charge(anonymous);
    assert_eq!(status(&shared, &app, &[]).await, StatusCode::OK);
    let refused = status(&shared, &app, &[]).await;
    assert_eq!(refused, StatusCode::TOO_MANY_REQUESTS);
    client.close().await;
    assert_eq!(fake.get(|books| books.free["tenant/acme"]), 9);
}

#[tokio::test]
async fn costs_and_exempt_requests_are_as_said() {
    let (fake, client) = client(&[("tenant/acme", 10)]).await;
    let cost = |request: &http::request::Parts| {
        let stated = request
            .headers
            .get("cost")
            .and_then(|cost| cost.to_str().ok());
        stated.map_or(1, |cost| cost.parse().unwrap_or(u64::MAX))
    };
    let layer = QuotaLayer::new(&client)
        .charge(Charge::to("tenant").unwrap().by(by("tenant")).cost(cost))
        .exempt(|request| request.headers.contains_key("probe"));
    let app = App::default();
    assert_eq!(
        status(&layer, &app, &[ACME, ("cost", "7")]).await,
        StatusCode::OK
    );
    assert_eq!(
        status(&layer, &app, &[ACME, ("cost", "0")]).await,
        StatusCode::OK
    );
    let (passed, headers, _) = call(&layer, &app, &[("probe", "1")]).await;
    assert_eq!(passed, StatusCode::OK);
    assert!(headers.is_empty(), "{headers:?}");
    let (refused, headers, body) = call(&layer, &app, &[ACME, ("cost", "dear")]).await;
    assert_eq!(refused, StatusCode::FORBIDDEN);
    assert!(!headers.contains_key("retry-after"), "{headers:?}");
    assert!(body.contains("of a quota of 100"), "{body}");
    client.close().await;
    assert_eq!(fake.get(|books| books.free["tenant/acme"]), 3);
}

#[tokio::test]
async fn over_grpc_a_refusal_has_no_body_and_says_when_to_come_back() {
    use tonic_types::StatusExt;

    let (_fake, client) = client(&[]).await;
    let (layer, app) = (tenants(&client), App::default());
    for content_type in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc;x=y",
        "application/grpc-web+proto",
    ] {
        let (status, headers, body) =
            call(&layer, &app, &[ACME, ("content-type", content_type)]).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, ""));
        assert_eq!(headers["content-type"], content_type);
        let status = tonic::Status::from_header_map(&headers).unwrap();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        let retry = status.get_details_retry_info().unwrap().retry_delay;
        assert!(retry > Some(Duration::from_secs(50)), "{retry:?}");
        assert_eq!(headers["ratelimit-policy"], "\"default\";q=100;w=60");
    }
    let json = [ACME, ("content-type", "application/grpcish")];
    assert_eq!(
        status(&layer, &app, &json).await,
        StatusCode::TOO_MANY_REQUESTS
    );
    let nobody = [("content-type", "application/grpc")];
    let (_, headers, _) = call(&layer, &app, &nobody).await;
    let status = tonic::Status::from_header_map(&headers).unwrap();
    assert_eq!(status.code(), tonic::Code::Unauthenticated);
    assert_eq!(app.served(), 0);
}

#[tokio::test]
async fn nobody_to_ask_is_503_or_a_marked_answer_as_the_policy_says() {
    let (fake, client) = client(&[("tenant/acme", 1)]).await;
    let (layer, app) = (tenants(&client), App::default());
    fake.set(|books| books.max_wait_us = 20_000);
    assert_eq!(status(&layer, &app, &[ACME]).await, StatusCode::OK);
    fake.set(|books| books.is_silent = true);
    let (closed, headers, body) = call(&layer, &app, &[ACME]).await;
    assert_eq!(closed, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(headers["retry-after"], "1");
    assert!(body.contains("#temporary-reduced-capacity"), "{body}");
    assert!(!headers.contains_key("quota-degraded"));

    fake.set(|books| (books.is_silent, books.fails_open) = (false, true));
    fake.give("tenant/open", 1);
    let open = [("tenant", "open")];
    assert_eq!(status(&layer, &app, &open).await, StatusCode::OK);
    fake.set(|books| books.is_silent = true);
    let (passed, headers, _) = call(&layer, &app, &open).await;
    assert_eq!(passed, StatusCode::OK);
    assert_eq!(headers["quota-degraded"], "unreachable");
}

#[tokio::test]
async fn keys_beyond_the_clients_bound_are_503() {
    let (fake, url) = Fake::start().await;
    fake.give("tenant/acme", 1);
    let client = builder(&url).keys_max(1).connect().await.unwrap();
    let (layer, app) = (tenants(&client), App::default());
    let held = client.budget("tenant/acme").unwrap();
    let (status, headers, _) = call(&layer, &app, &[("tenant", "other")]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(headers["retry-after"], "1");
    drop(held);
}

#[tokio::test]
async fn one_key_is_spent_and_rendered_at_once() {
    let (_fake, client) = client(&[("tenant/acme", 2)]).await;
    let answers = Answers::default();
    let key = || Key::parse("tenant/acme").unwrap();
    let answer = answers.spend(&client, key(), 2).await;
    assert!(answer.is_allowed && answer.body.is_none());
    let answer = answers.spend(&client, key(), 1).await;
    assert_eq!(answer.reason, Some(Reason::QuotaExceeded));
    assert!(answer.retry_after >= Some(Duration::from_secs(59)));
    let [shown] = &answer.shown[..] else {
        panic!("{:?}", answer.shown);
    };
    assert_eq!((shown.limit, shown.remaining), (100, 0));
}

#[tokio::test]
async fn a_hook_has_the_last_word() {
    let (_fake, client) = client(&[("tenant/acme", 1)]).await;
    let layer = tenants(&client).on_answer(|request, answer| {
        let path = request.uri.path().parse().unwrap();
        answer.headers.insert("x-path", path);
        if answer.reason == Some(Reason::QuotaExceeded) {
            answer.status = StatusCode::IM_A_TEAPOT;
            answer.body = Some("short and stout".into());
        }
    });
    let app = App::default();
    let (passed, headers, _) = call(&layer, &app, &[ACME]).await;
    assert_eq!(
        (passed, &headers["x-path"]),
        (StatusCode::OK, &"/orders".parse().unwrap())
    );
    let (refused, headers, body) = call(&layer, &app, &[ACME]).await;
    assert_eq!(
        (refused, body.as_str()),
        (StatusCode::IM_A_TEAPOT, "short and stout")
    );
    assert_eq!(headers["x-path"], "/orders");
    let (nobody, headers, _) = call(&layer, &app, &[]).await;
    assert_eq!(nobody, StatusCode::FORBIDDEN);
    assert_eq!(headers["x-path"], "/orders");
}

/// A service that panics unless it is called after it was ready, and whose clones are
/// not ready, as those of a concurrency limit.
#[derive(Default)]
struct Fussy {
    is_ready: bool,
}

impl Clone for Fussy {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<Full<Bytes>>> for Fussy {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.is_ready),
            "called before it was ready"
        );
        std::future::ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let (_fake, client) = client(&[("tenant/acme", 9)]).await;
    let mut service = tenants(&client).layer(Fussy::default());
    for _ in 0..3 {
        let request = Request::builder().header("tenant", "acme");
        let request = request.body(Full::default()).unwrap();
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}
