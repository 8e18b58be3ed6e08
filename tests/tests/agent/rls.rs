//! Envoy's rate limit service.

use std::{path::Path, time::Duration};

pub(crate) use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::{
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_response::rate_limit::Unit,
            rate_limit_service_client::RateLimitServiceClient,
        },
    },
    google::protobuf::UInt64Value,
};
use leasehold_tests::AgentProcess;
use serde_json::json;
use tonic::{Status, transport::Channel};

use crate::setup::{PATIENCE, Setup, stop};

const PLAIN: &str = "[rls]\n";

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) struct Envoy(RateLimitServiceClient<Channel>);

impl Envoy {
    pub(crate) async fn at(agent: &AgentProcess) -> Self {
        let url = format!("http://{}", agent.addr());
        Self(RateLimitServiceClient::connect(url).await.unwrap())
    }

    /// By a Unix socket instead.
    async fn on(socket: &Path) -> Self {
        let url = format!("unix://{}", socket.display());
        Self(RateLimitServiceClient::connect(url).await.unwrap())
    }

    pub(crate) async fn ask(&mut self, request: RateLimitRequest) -> RateLimitResponse {
        self.try_ask(request).await.unwrap()
    }

    pub(crate) async fn try_ask(
        &mut self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let answer = self.0.should_rate_limit(request).await;
        answer.map(tonic::Response::into_inner)
    }
}

pub(crate) fn descriptor(entries: &[(&str, &str)], hits: Option<u64>) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        hits_addend: hits.map(|value| UInt64Value { value }),
        ..RateLimitDescriptor::default()
    }
}

pub(crate) fn request(descriptors: Vec<RateLimitDescriptor>, hits: u32) -> RateLimitRequest {
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors,
        hits_addend: hits,
    }
}

#[test]
fn envoy_is_answered_on_a_unix_socket_by_the_same_books() {
    let setup = Setup::new();
    setup.put_window("edge/*", 2);
    let socket = setup.cluster.dir().join("envoy.sock");
    let listen = format!("unix = {socket:?}");
    let agent = setup.agent_of(&format!("{}{PLAIN}", setup.head(&listen)));
    agent.wait_ready(PATIENCE).unwrap();
    runtime().block_on(async {
        let mut by_socket = Envoy::on(&socket).await;
        let mut by_tcp = Envoy::at(&agent).await;
        let ada = || request(vec![descriptor(&[("user", "ada")], None)], 1);
        let mut overall = Vec::new();
        overall.push(by_socket.ask(ada()).await.overall_code());
        overall.push(by_tcp.ask(ada()).await.overall_code());
        overall.push(by_socket.ask(ada()).await.overall_code());
        assert_eq!(overall, [Code::Ok, Code::Ok, Code::OverLimit]);
    });
    stop(agent);
    assert_eq!(setup.spent("edge/user=ada"), 2);
}

fn codes(answer: &RateLimitResponse) -> Vec<Code> {
    let statuses = answer.statuses.iter();
    statuses.map(|status| status.code()).collect()
}

fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let mut headers = answer.response_headers_to_add.iter();
    let found = headers.find(|header| header.key == name);
    found.map(|header| header.value.as_str())
}

#[test]
fn envoy_is_told_the_limit_what_is_left_and_when_it_frees() {
    let setup = Setup::new();
    setup.put_window("edge/*", 2);
    let agent = setup.agent(PLAIN);
    runtime().block_on(async {
        let mut envoy = Envoy::at(&agent).await;
        let one = || request(vec![descriptor(&[("user", "ada")], None)], 0);
        let first = envoy.ask(one()).await;
        assert_eq!(first.overall_code(), Code::Ok);
        assert_eq!(codes(&first), [Code::Ok]);
        let limit = first.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (2, Unit::Minute));
        assert_eq!(
            header(&first, "ratelimit-policy"),
            Some("\"default\";q=2;w=60")
        );
        assert!(header(&first, "ratelimit").is_some() && first.raw_body.is_empty());
        assert_eq!(envoy.ask(one()).await.overall_code(), Code::Ok);
        let denied = envoy.ask(one()).await;
        assert_eq!(denied.overall_code(), Code::OverLimit);
        assert_eq!(codes(&denied), [Code::OverLimit]);
        assert_eq!(denied.statuses[0].limit_remaining, 0);
        let reset = denied.statuses[0].duration_until_reset.unwrap();
        assert!((1..=61).contains(&reset.seconds), "{reset:?}");
        assert!(header(&denied, "retry-after").is_some());
        assert_eq!(
            header(&denied, "content-type"),
            Some("application/problem+json")
        );
        let body: serde_json::Value = serde_json::from_slice(&denied.raw_body).unwrap();
        assert_eq!(body["status"], 429);
    });
    stop(agent);
    assert_eq!(setup.spent("edge/user=ada"), 2);
}

#[test]
fn a_descriptor_costs_its_own_hits_else_the_requests_else_one_and_no_hits_cost_nothing() {
    let setup = Setup::new();
    setup.put_window("edge/*", 10);
    let agent = setup.agent(PLAIN);
    runtime().block_on(async {
        let mut envoy = Envoy::at(&agent).await;
        let mut ask = async |hits: Option<u64>, of_request: u32| {
            let all = vec![descriptor(&[("user", "ada")], hits)];
            envoy.ask(request(all, of_request)).await.overall_code()
        };
        assert_eq!(ask(Some(0), 5).await, Code::Ok, "0");
        assert_eq!(ask(Some(3), 7).await, Code::Ok, "3");
        assert_eq!(ask(None, 4).await, Code::Ok, "7");
        assert_eq!(ask(None, 0).await, Code::Ok, "8");
        assert_eq!(ask(Some(2), 3).await, Code::Ok, "10");
        assert_eq!(ask(None, 3).await, Code::OverLimit);
        assert_eq!(ask(Some(0), 0).await, Code::OverLimit, "truthfully");
    });
    stop(agent);
    assert_eq!(setup.spent("edge/user=ada"), 10);
}

#[test]
fn several_descriptors_are_charged_all_or_none_and_each_says_how_it_stands() {
    let setup = Setup::new();
    setup.put_window("edge/user=*", 2);
    setup.put_window("edge/tenant=*", 100);
    setup.put_window("edge/used_up=*", 1);
    let agent = setup.agent(PLAIN);
    runtime().block_on(async {
        let mut envoy = Envoy::at(&agent).await;
        let both = || {
            request(
                vec![
                    descriptor(&[("tenant", "acme")], Some(5)),
                    descriptor(&[("user", "ada")], None),
                ],
                0,
            )
        };
        assert_eq!(codes(&envoy.ask(both()).await), [Code::Ok, Code::Ok]);
        assert_eq!(envoy.ask(both()).await.overall_code(), Code::Ok);
        let denied = envoy.ask(both()).await;
        assert_eq!(denied.overall_code(), Code::OverLimit);
        assert_eq!(codes(&denied), [Code::Ok, Code::OverLimit]);
        // One that only asks refuses for all of them.
        let used_up = || descriptor(&[("used_up", "x")], None);
        assert_eq!(
            envoy.ask(request(vec![used_up()], 0)).await.overall_code(),
            Code::Ok
        );
        let asks = descriptor(&[("used_up", "x")], Some(0));
        let pays = descriptor(&[("tenant", "acme")], Some(1));
        let denied = envoy.ask(request(vec![pays, asks], 0)).await;
        assert_eq!(codes(&denied), [Code::Ok, Code::OverLimit]);
    });
    stop(agent);
    assert_eq!(setup.spent("edge/tenant=acme"), 10);
    assert_eq!(setup.spent("edge/user=ada"), 2);
}

#[test]
fn what_no_rule_is_for_does_not_pass_unless_the_configuration_says_so() {
    let setup = Setup::new();
    setup.put_window("edge/user=*", 1);
    let closed = setup.agent("[rls]\ndomains = [\"edge\"]\n");
    let open = setup.agent(
        "[rls]\ndomains = [\"edge\"]\nno_rule = \"allow\"\nno_descriptor = \"allow\"\n\
         limit_override = \"ignore\"\n",
    );
    runtime().block_on(async {
        let mut closed_envoy = Envoy::at(&closed).await;
        let mut open_envoy = Envoy::at(&open).await;
        let user = |name| descriptor(&[("user", name)], None);
        let other_domain = RateLimitRequest {
            domain: "other".to_owned(),
            ..request(vec![user("ada")], 0)
        };
        let limited = RateLimitDescriptor {
            limit: Some(RateLimitOverride {
                requests_per_unit: 1_000,
                unit: 1,
            }),
            ..user("eve")
        };
        let refund = RateLimitDescriptor {
            is_negative_hits: true,
            ..user("ada")
        };
        let long = "x".repeat(600);
        for (what, request, passes_open) in [
            ("no descriptors", request(vec![], 0), true),
            ("another domain", other_domain, true),
            (
                "no budget",
                request(vec![descriptor(&[("nobody", "")], None)], 0),
                true,
            ),
            ("no entries", request(vec![descriptor(&[], None)], 0), true),
            ("its own limit", request(vec![limited.clone()], 0), true),
            ("its own limit, used up", request(vec![limited], 0), false),
            ("a refund", request(vec![refund], 0), false),
            ("too long", request(vec![user(&long)], 0), false),
        ] {
            let told = closed_envoy.ask(request.clone()).await;
            assert_eq!(told.overall_code(), Code::OverLimit, "{what}");
            assert_eq!(told.statuses.len(), request.descriptors.len(), "{what}");
            let told = open_envoy.ask(request).await;
            let expected = if passes_open {
                Code::Ok
            } else {
                Code::OverLimit
            };
            assert_eq!(told.overall_code(), expected, "{what}");
        }
        // A rule for one of two: it counts, and the other does not stand in its way.
        let two = || request(vec![descriptor(&[("nobody", "")], None), user("bob")], 0);
        assert_eq!(open_envoy.ask(two()).await.overall_code(), Code::Ok);
        let denied = open_envoy.ask(two()).await;
        assert_eq!(codes(&denied), [Code::Ok, Code::OverLimit]);
        assert_eq!(
            closed_envoy.ask(two()).await.overall_code(),
            Code::OverLimit
        );
        // Said once for each, and without anybody's name.
        for _ in 0..5 {
            let nobody = request(vec![descriptor(&[("nobody", "secret")], None)], 0);
            let _ = closed_envoy.ask(nobody).await;
        }
    });
    let log = closed.log();
    assert_eq!(log.matches("no budget matches its key").count(), 1, "{log}");
    assert!(!log.contains("secret"), "{log}");
    stop(closed);
    stop(open);
}

#[test]
fn grpc_health_says_that_it_serves() {
    let setup = Setup::new();
    let agent = setup.agent(PLAIN);
    runtime().block_on(async {
        use tonic_health::pb::{
            HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
        };
        let url = format!("http://{}", agent.addr());
        let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
        let mut health = HealthClient::new(channel);
        for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
            let service = service.to_owned();
            let told = health.check(HealthCheckRequest { service }).await.unwrap();
            assert_eq!(told.into_inner().status(), ServingStatus::Serving);
        }
    });
    stop(agent);
}

#[test]
fn the_files_of_envoyproxy_ratelimit_rule_and_are_taken_anew_when_they_change() {
    let setup = Setup::new();
    setup.put_window("edge/plan=free/*", 1);
    let file = setup.cluster.dir().join("ratelimit.yaml");
    let rules = |limited: &str| {
        format!(
            "domain: edge\ndescriptors:\n  - key: plan\n    value: {limited}\n    \
             descriptors:\n      - key: user\n        rate_limit:\n          \
             unit: minute\n          requests_per_unit: 1\n  - key: health\n    \
             rate_limit:\n      unlimited: true\n"
        )
    };
    std::fs::write(&file, rules("free")).unwrap();
    let agent = setup.agent(&format!("[rls]\nratelimit_files = [{file:?}]\n"));
    runtime().block_on(async {
        let mut envoy = Envoy::at(&agent).await;
        let mut ask = async |entries: &[(&str, &str)]| {
            let told = envoy.ask(request(vec![descriptor(entries, None)], 0)).await;
            told.overall_code()
        };
        let ada = [("plan", "free"), ("user", "ada")];
        assert_eq!(ask(&ada).await, Code::Ok);
        assert_eq!(ask(&ada).await, Code::OverLimit);
        // Never refused: here nobody has set up a budget.
        assert_eq!(ask(&[("health", "")]).await, Code::Ok);
        setup.put_budget("edge/health=*", &json!({"kind": "unlimited"}));
        for _ in 0..3 {
            assert_eq!(ask(&[("health", "up")]).await, Code::Ok);
        }
        let bob = [("plan", "paid"), ("user", "bob")];
        assert_eq!(ask(&bob).await, Code::OverLimit, "no rule");

        setup.put_window("edge/plan=paid/*", 1);
        std::fs::write(&file, rules("paid")).unwrap();
        let give_up = std::time::Instant::now() + crate::setup::PATIENCE;
        while ask(&bob).await != Code::Ok {
            assert!(std::time::Instant::now() < give_up, "it is not taken");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(ask(&bob).await, Code::OverLimit);
        std::fs::write(&file, "domain: [\n").unwrap();
    });
    let give_up = std::time::Instant::now() + crate::setup::PATIENCE;
    loop {
        let told = agent.ask("/readyz", &[]).unwrap().json();
        let problem = told["configuration"]["problem"].to_string();
        if problem.contains("ratelimit.yaml") {
            break;
        }
        assert!(
            std::time::Instant::now() < give_up,
            "it is not said: {told}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    stop(agent);
    assert_eq!(setup.spent("edge/plan=free/user=ada"), 1);
    let path = "/v1/accounts/edge/health=up";
    let books = setup.cluster.request("GET", path, None, PATIENCE).unwrap();
    let books = books.json();
    assert_eq!(
        books["lifetime"]["spent"], 3,
        "counted all the same: {books}"
    );
}

#[test]
fn a_shadow_is_over_no_limit_and_shows_none() {
    let setup = Setup::new();
    let policy = json!({
        "kind": "sliding_window", "limit": 1, "window_ms": 60_000, "shadow": true,
    });
    setup.put_budget("edge/user=*", &policy);
    let agent = setup.agent(&format!(
        "{PLAIN}[check]\nkey = \"edge/user={{header:x-key}}\"\n"
    ));
    runtime().block_on(async {
        let mut envoy = Envoy::at(&agent).await;
        for _ in 0..3 {
            let told = envoy
                .ask(request(vec![descriptor(&[("user", "ada")], None)], 0))
                .await;
            assert_eq!(told.overall_code(), Code::Ok);
            assert_eq!(codes(&told), [Code::Ok]);
            assert_eq!(told.statuses[0].current_limit, None, "{told:?}");
        }
    });
    let told = crate::setup::check(&agent, "ada");
    assert_eq!((told.status, told.header("ratelimit")), (204, None));
    let metrics = agent.ask("/metrics", &[]).unwrap().body;
    assert!(metrics.contains("outcome=\"shadowed\""), "{metrics}");
    stop(agent);
}

#[test]
fn permits_are_not_to_be_had_and_the_log_says_so_once() {
    let setup = Setup::new();
    setup.put_budget("edge/*", &json!({"kind": "concurrency", "limit": 5}));
    let agent = setup.agent(&format!("{PLAIN}{}", crate::setup::CHECK));
    runtime().block_on(async {
        let mut envoy = Envoy::at(&agent).await;
        for _ in 0..2 {
            let told = envoy
                .ask(request(vec![descriptor(&[("user", "ada")], None)], 0))
                .await;
            assert_eq!(told.overall_code(), Code::OverLimit);
        }
    });
    for _ in 0..2 {
        assert_eq!(crate::setup::check(&agent, "bob").status, 500);
    }
    let log = agent.log();
    let said = "is of kind concurrency";
    assert_eq!(log.matches(said).count(), 2, "of each way once: {log}");
    let metrics = agent.ask("/metrics", &[]).unwrap().body;
    assert!(!metrics.contains("outcome=\"denied\""), "{metrics}");
    stop(agent);
}

#[test]
fn a_call_that_is_made_again_under_its_requests_id_is_charged_once() {
    let setup = Setup::new();
    setup.put_window("edge/*", 2);
    let agent = setup.agent("[rls]\nrequest_id_header = \"x-request-id\"\n");
    runtime().block_on(async {
        let mut envoy = Envoy::at(&agent).await;
        let mut ask = async |id: &'static str| {
            let all = vec![descriptor(&[("user", "ada")], None)];
            let mut call = tonic::Request::new(request(all, 0));
            let id = tonic::metadata::MetadataValue::from_static(id);
            call.metadata_mut().insert("x-request-id", id);
            let told = envoy.0.should_rate_limit(call).await.unwrap();
            told.into_inner().overall_code()
        };
        for (id, told) in [
            ("one", Code::Ok),
            ("one", Code::Ok),
            ("two", Code::Ok),
            ("three", Code::OverLimit),
            ("two", Code::Ok),
        ] {
            assert_eq!(ask(id).await, told, "{id}");
        }
    });
    stop(agent);
    assert_eq!(setup.spent("edge/user=ada"), 2);
}
