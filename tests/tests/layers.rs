//! The layer in real servers, axum's and tonic's, over real sockets and against a real
//! node: what callers are told, and that two gateways together admit no more than the
//! limit, judged by what their callers saw.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use axum::{Router, extract::ConnectInfo, extract::MatchedPath, routing::get};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use leasehold_client::{
    Client,
    http::Answers,
    tower::{Address, Charge, Identify, QuotaLayer, header, route},
};
use leasehold_tests::{Admission, LocalCluster, Promise, clock_ns};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: u64 = 40;
const WINDOW: Duration = Duration::from_millis(500);
/// How long callers call.
const FOR: Duration = Duration::from_secs(4);
const CALLERS: usize = 3;

/// One node that follows these policies.
fn node(policies: &[(&str, Value)]) -> LocalCluster {
    let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), 1, "").unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    for (pattern, policy) in policies {
        let path = format!("/v1/budgets/{pattern}");
        let body = json!({ "policy": policy });
        let answer = cluster
            .request("PUT", &path, Some(&body), PATIENCE)
            .unwrap();
        assert!(answer.status < 300, "{path}: {answer:?}");
    }
    cluster
}

fn window(limit: u64, window: Duration) -> Value {
    json!({
        "kind": "sliding_window", "limit": limit, "public_name": "burst",
        "window_ms": u64::try_from(window.as_millis()).unwrap(),
        // However busy the machine is, an answer comes before a request gives up.
        "max_wait_ms": 10_000,
    })
}

async fn gateway(cluster: &LocalCluster, holder: &str) -> Client {
    let builder = Client::builder().endpoint(cluster.endpoints().remove(0));
    builder.holder(holder).connect().await.unwrap()
}

fn by(name: &'static str) -> impl Identify {
    header(HeaderName::from_static(name))
}

async fn axum_with(layer: QuotaLayer) -> SocketAddr {
    let app = Router::new()
        .route("/orders/{id}", get(|| async { "an order" }))
        .route("/healthz", get(|| async { "well" }))
        .layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

async fn tonic_with(layer: QuotaLayer) -> SocketAddr {
    let (_, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// Calls over connections that are kept.
#[derive(Clone)]
struct Calls(HttpClient<HttpConnector, Empty<Bytes>>);

struct Told {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Told {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }

    /// A parameter of the only item of a list.
    fn parameter(&self, field: &str, name: &str) -> Option<u64> {
        let (_, rest) = self.header(field)?.split_once(&format!(";{name}="))?;
        rest.split(';').next()?.parse().ok()
    }
}

impl Calls {
    fn new() -> Self {
        Self(HttpClient::builder(TokioExecutor::new()).build_http())
    }

    async fn get(&self, to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Told {
        let mut request = Request::get(format!("http://{to}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::new()).unwrap();
        let (parts, body) = self.0.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Told {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.into()).unwrap(),
        }
    }
}

fn judge(admissions: &[Admission], refused: usize) {
    let promise = Promise::Window {
        limit: LIMIT,
        window_us: u64::try_from(WINDOW.as_micros()).unwrap(),
    };
    let judged = promise.judge(admissions);
    assert_eq!(judged.over_admitted, 0, "{judged:?}");
    // A limit that is hardly used, or never refuses, is easily kept.
    assert!(judged.admitted > 2 * LIMIT, "{judged:?}");
    assert!(refused > 20, "{refused} refused, {judged:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_of_axum_admit_no_more_than_the_limit_and_say_what_is_documented() {
    let cluster = node(&[("tenant/*", window(LIMIT, WINDOW))]);
    let mut gateways = Vec::new();
    for holder in ["gw-1", "gw-2"] {
        let client = gateway(&cluster, holder).await;
        let charge = Charge::to("tenant").unwrap().by(by("x-tenant"));
        gateways.push(axum_with(QuotaLayer::new(&client).charge(charge)).await);
    }
    let calls = Calls::new();
    let mut callers = Vec::new();
    for caller in 0..2 * CALLERS {
        let (calls, to) = (calls.clone(), gateways[caller % 2]);
        callers.push(tokio::spawn(async move {
            let (mut admitted, mut refused) = (Vec::new(), Vec::new());
            let end = Instant::now() + FOR;
            while Instant::now() < end {
                let call_ns = clock_ns();
                let told = calls.get(to, "/orders/7", &[("x-tenant", "acme")]).await;
                let return_ns = clock_ns();
                assert_eq!(told.header("ratelimit-policy"), Some("\"burst\";q=40;w=1"));
                assert!(told.parameter("ratelimit", "r").unwrap() <= LIMIT);
                match told.status {
                    StatusCode::OK => admitted.push(Admission {
                        units: 1,
                        call_ns,
                        return_ns,
                    }),
                    _ => refused.push(told),
                }
                // Not a flood: refusals are answered from here, at once.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            (admitted, refused)
        }));
    }
    let (mut admissions, mut refusals) = (Vec::new(), Vec::new());
    for caller in callers {
        let (admitted, refused) = caller.await.unwrap();
        admissions.extend(admitted);
        refusals.extend(refused);
    }
    judge(&admissions, refusals.len());
    for told in &refusals {
        assert_eq!(told.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(
            told.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(told.parameter("ratelimit", "r"), Some(0));
        let until = told.parameter("ratelimit", "t").unwrap();
        assert!(told.number("retry-after").unwrap() >= until.max(1));
        let body: Value = serde_json::from_str(&told.body).unwrap();
        assert_eq!(
            body,
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "The quota is used up",
                "status": 429,
                "violated-policies": ["burst"],
            })
        );
    }
    // Refused together, they are not told to come back together.
    let mut said: Vec<u64> = refusals
        .iter()
        .filter_map(|told| told.number("retry-after"))
        .collect();
    said.sort_unstable();
    said.dedup();
    assert!(said.len() > 1, "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_of_tonic_admit_no_more_than_the_limit_and_say_when_to_come_back() {
    let cluster = node(&[("caller/*", window(LIMIT, WINDOW))]);
    let mut callers = Vec::new();
    for holder in ["gw-1", "gw-2"] {
        let client = gateway(&cluster, holder).await;
        let charge = Charge::to("caller").unwrap().by(by("x-caller"));
        let address = tonic_with(QuotaLayer::new(&client).charge(charge)).await;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let anonymous = HealthClient::new(channel);
        let mut unnamed = anonymous.clone();
        let status = unnamed.check(HealthCheckRequest::default()).await;
        let status = status.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unauthenticated);
        for _ in 0..CALLERS {
            let mut health = anonymous.clone();
            callers.push(tokio::spawn(async move {
                let (mut admitted, mut refused) = (Vec::new(), 0);
                let end = Instant::now() + FOR;
                while Instant::now() < end {
                    let mut request = tonic::Request::new(HealthCheckRequest::default());
                    let metadata = request.metadata_mut();
                    metadata.insert("x-caller", "ada".parse().unwrap());
                    let call_ns = clock_ns();
                    let told = health.check(request).await;
                    let return_ns = clock_ns();
                    match told {
                        Ok(response) => {
                            let policy = response.metadata().get("ratelimit-policy");
                            assert_eq!(policy.unwrap(), "\"burst\";q=40;w=1");
                            admitted.push(Admission {
                                units: 1,
                                call_ns,
                                return_ns,
                            });
                        }
                        Err(status) => {
                            assert_eq!(status.code(), tonic::Code::ResourceExhausted);
                            assert_eq!(status.message(), "The quota is used up");
                            let retry = status.get_details_retry_info().unwrap();
                            assert!(retry.retry_delay.unwrap() > Duration::ZERO);
                            refused += 1;
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                (admitted, refused)
            }));
        }
    }
    let (mut admissions, mut refusals) = (Vec::new(), 0);
    for caller in callers {
        let (admitted, refused) = caller.await.unwrap();
        admissions.extend(admitted);
        refusals += refused;
    }
    judge(&admissions, refusals);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_part_of_a_layer_is_at_work_in_a_server() {
    let minute = Duration::from_secs(60);
    let lanes = json!({
        "kind": "sliding_window", "limit": 10, "window_ms": 60_000, "public_name": "shop",
        "lanes": [{"name": "payment", "reserve": 4}, {"name": "anonymous"}],
    });
    let cluster = node(&[
        ("route/*", window(1_000, minute)),
        ("address/*", window(3, minute)),
        ("shop", lanes),
        ("tenant/*", window(5, minute)),
        ("seat/*/*", window(2, minute)),
    ]);
    let client = gateway(&cluster, "gw-1").await;
    let calls = Calls::new();
    let ok = StatusCode::OK;
    let refused = StatusCode::TOO_MANY_REQUESTS;

    // By route and by address: spoofed headers change nothing, and what is exempt passes.
    let peer = |peer: &ConnectInfo<SocketAddr>| Some(peer.0);
    let layer = QuotaLayer::new(&client)
        .charge(Charge::to("route").unwrap().by(route(MatchedPath::as_str)))
        .charge(Charge::to("address").unwrap().by(Address::peer(peer)))
        .exempt(|request| request.uri.path() == "/healthz");
    let to = axum_with(layer).await;
    for (nth, expected) in [ok, ok, ok, refused].into_iter().enumerate() {
        let forged = format!("203.0.113.{nth}");
        let told = calls
            .get(to, "/orders/7", &[("x-forwarded-for", &forged)])
            .await;
        assert_eq!(told.status, expected, "{nth}: {}", told.body);
        assert!(!told.body.contains("127.0.0.1"), "{}", told.body);
    }
    let told = calls.get(to, "/healthz", &[]).await;
    assert_eq!((told.status, told.header("ratelimit")), (ok, None));
    // No route, no name, no service.
    let told = calls.get(to, "/made/up", &[]).await;
    assert_eq!(told.status, StatusCode::FORBIDDEN);
    let key = "/v1/accounts/route/GET%20%2Forders%2F%7Bid%7D";
    let known = tokio::task::block_in_place(|| cluster.request("GET", key, None, PATIENCE));
    assert_eq!(known.unwrap().status, 200);

    // A trusted proxy in front tells callers apart.
    let charge = Charge::to("address")
        .unwrap()
        .by(Address::peer(peer).behind(["127.0.0.0/8".parse().unwrap()]));
    let to = axum_with(QuotaLayer::new(&client).charge(charge)).await;
    for (caller, expected) in [
        ("198.51.100.1", ok),
        ("198.51.100.1", ok),
        ("198.51.100.1", ok),
        ("198.51.100.1", refused),
        ("198.51.100.2", ok),
    ] {
        let forwarded = format!("8.8.8.8, {caller}");
        let told = calls
            .get(to, "/orders/7", &[("x-forwarded-for", &forwarded)])
            .await;
        assert_eq!(told.status, expected, "{caller}");
    }

    // What is kept for payments is there for payments.
    let lane = |request: &http::request::Parts| {
        Some(request.headers.get("x-lane")?.to_str().ok()?.to_owned())
    };
    let layer = QuotaLayer::new(&client)
        .charge(Charge::to("shop").unwrap())
        .lane(lane);
    let to = axum_with(layer).await;
    let mut served = 0;
    for _ in 0..12 {
        served += u32::from(calls.get(to, "/orders/7", &[]).await.status == ok);
    }
    assert!((1..=6).contains(&served), "{served}");
    let told = calls.get(to, "/orders/7", &[("x-lane", "payment")]).await;
    assert_eq!(told.status, ok, "{}", told.body);

    // All charges or none: the seats refuse, and the tenant is not charged for it.
    let seat = Charge::to("seat")
        .unwrap()
        .by(by("x-tenant"))
        .by(by("x-user"));
    let layer = QuotaLayer::new(&client)
        .charge(Charge::to("tenant").unwrap().by(by("x-tenant")))
        .charge(seat)
        .answers(Answers::default().legacy(true));
    let to = axum_with(layer).await;
    for user in ["ada", "ada", "ada", "ada", "ada", "eve", "eve", "eve"] {
        calls
            .get(to, "/orders/7", &[("x-tenant", "acme"), ("x-user", user)])
            .await;
    }
    let told = calls
        .get(to, "/orders/7", &[("x-tenant", "acme"), ("x-user", "zoe")])
        .await;
    assert_eq!(told.status, ok, "{}", told.body);
    assert_eq!(told.number("x-ratelimit-remaining"), Some(0));
    let told = calls
        .get(to, "/orders/7", &[("x-tenant", "acme"), ("x-user", "zoe")])
        .await;
    assert_eq!(told.status, refused, "the tenant's five are used up");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_coordinator_the_policy_decides() {
    let minute = Duration::from_secs(60);
    let (closed, mut open) = (window(2, minute), window(2, minute));
    open["failure_mode"] = json!("open");
    let mut cluster = node(&[("closed/*", closed), ("open/*", open)]);
    let client = gateway(&cluster, "gw-1").await;
    let mut gateways = Vec::new();
    for base in ["closed", "open"] {
        let charge = Charge::to(base).unwrap().by(by("x-tenant"));
        gateways.push(axum_with(QuotaLayer::new(&client).charge(charge)).await);
    }
    let calls = Calls::new();
    let acme = [("x-tenant", "acme")];
    for to in &gateways {
        let told = calls.get(*to, "/orders/7", &acme).await;
        assert_eq!(told.status, StatusCode::OK);
        assert_eq!(told.header("quota-degraded"), None);
    }
    tokio::task::block_in_place(|| cluster.kill(0));
    // What is held here is spent first.
    let give_up = Instant::now() + PATIENCE;
    let told = loop {
        let told = calls.get(gateways[0], "/orders/7", &acme).await;
        if told.status == StatusCode::SERVICE_UNAVAILABLE {
            break told;
        }
        assert!(Instant::now() < give_up, "{}: {}", told.status, told.body);
    };
    assert!(
        told.body.contains("#temporary-reduced-capacity"),
        "{}",
        told.body
    );
    assert!(told.number("retry-after").unwrap() >= 1);
    loop {
        let told = calls.get(gateways[1], "/orders/7", &acme).await;
        assert_eq!(told.status, StatusCode::OK, "{}", told.body);
        if told.header("quota-degraded") == Some("unreachable") {
            break;
        }
        assert!(Instant::now() < give_up);
    }
}
