//! What gateways are told when nobody can be asked.

use std::time::{Duration, Instant};

use leasehold_tests::{AgentProcess, HttpAnswer};
use serde_json::json;

use crate::{
    rls::{Envoy, descriptor, request, runtime},
    setup::{CHECK, PATIENCE, Setup, check},
};

/// A request waits so long for an answer that may still come: whoever waits for this
/// though nobody can be asked is noticed.
const MAX_WAIT_MS: u64 = 10_000;
/// Within this, and generously, the failure mode answers.
const SOON: Duration = Duration::from_secs(3);

fn put(setup: &Setup, pattern: &str, failure_mode: &str) {
    let policy = json!({
        "kind": "sliding_window", "limit": 1_000, "window_ms": 60_000,
        "failure_mode": failure_mode, "max_wait_ms": MAX_WAIT_MS,
    });
    setup.put_budget(pattern, &policy);
}

fn soon<T>(ask: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let answer = ask();
    let took = begun.elapsed();
    assert!(took < SOON, "it took {took:?}");
    answer
}

/// More than is held here of a key that was asked for once.
fn ask_for_many(agent: &AgentProcess, path: &str, key: &str) -> HttpAnswer {
    let headers = [("x-key", key), ("x-cost", "900")];
    soon(|| agent.ask(path, &headers).unwrap())
}

#[test]
fn a_closed_policy_is_503_and_an_open_one_passes_marked_and_both_soon() {
    let mut setup = Setup::new();
    put(&setup, "edge/closed", "closed");
    put(&setup, "edge/open", "open");
    put(&setup, "edge/user=*", "closed");
    let agent = setup.agent(&format!("{CHECK}[rls]\n"));
    let strict = setup.agent("[rls]\nunavailable = \"error\"\n");
    let user = |hits| request(vec![descriptor(&[("user", "ada")], Some(hits))], 0);
    let runtime = runtime();
    let (mut envoy, mut strict_envoy) =
        runtime.block_on(async { (Envoy::at(&agent).await, Envoy::at(&strict).await) });
    // Their policies are heard of.
    for key in ["closed", "open"] {
        assert_eq!(check(&agent, key).status, 204);
    }
    runtime.block_on(async {
        let _ = envoy.ask(user(1)).await;
        let _ = strict_envoy.ask(user(1)).await;
    });

    setup.cluster.kill(0);
    let closed = ask_for_many(&agent, "/v1/check", "closed");
    assert_eq!(closed.status, 503, "{closed:?}");
    let problem = closed.json();
    let kind = problem["type"].as_str().unwrap();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{problem}");
    assert!(closed.header("retry-after").is_some(), "{closed:?}");
    let nginx = ask_for_many(&agent, "/v1/check/nginx", "closed");
    assert_eq!(
        (nginx.status, nginx.header("leasehold-status")),
        (403, Some("503"))
    );
    let open = ask_for_many(&agent, "/v1/check", "open");
    assert_eq!(open.status, 204, "{open:?}");
    assert_eq!(open.header("quota-degraded"), Some("unreachable"));
    // Of no key a policy was heard: as before_contact says.
    assert_eq!(ask_for_many(&agent, "/v1/check", "new").status, 503);

    let told = soon(|| runtime.block_on(envoy.ask(user(900))));
    assert_eq!(told.overall_code(), crate::rls::Code::OverLimit);
    let metadata = told.dynamic_metadata.clone().unwrap();
    let status = metadata.fields["status"].kind.clone();
    assert_eq!(
        format!("{status:?}"),
        "Some(NumberValue(503.0))",
        "{told:?}"
    );
    let told = soon(|| runtime.block_on(strict_envoy.try_ask(user(900))));
    assert_eq!(told.unwrap_err().code(), tonic::Code::Unavailable);

    // It lives, is not ready, and says why.
    assert_eq!(agent.ask("/healthz", &[]).unwrap().status, 200);
    let ready = agent.ask("/readyz", &[]).unwrap();
    assert_eq!(ready.status, 503);
    assert!(ready.json()["session"]["problem"].is_string(), "{ready:?}");
    let metrics = agent.ask("/metrics", &[]).unwrap().body;
    assert!(metrics.contains("leasehold_agent_session 0"), "{metrics}");

    setup.cluster.restart(0).unwrap();
    agent.wait_ready(PATIENCE).unwrap();
    let give_up = Instant::now() + PATIENCE;
    while check(&agent, "closed").status != 204 {
        assert!(Instant::now() < give_up, "it never recovers");
    }
}

#[test]
fn an_agent_answers_before_it_ever_heard_of_a_coordinator() {
    let setup = Setup::new();
    for (mode, status) in [("closed", 503), ("open", 204), ("emergency", 204)] {
        let nobody = format!(
            "[coordinator]\nendpoints = [\"http://127.0.0.1:9\"]\nbefore_contact = {mode:?}\n\
             [listen]\ntcp = \"127.0.0.1:0\"\n{CHECK}"
        );
        let agent = setup.agent_of(&nobody);
        let told = soon(|| check(&agent, "acme"));
        assert_eq!(told.status, status, "{mode}: {told:?}");
        let mark = (status == 204).then_some("unreachable");
        assert_eq!(told.header("quota-degraded"), mark, "{mode}");
        let ready = agent.ask("/readyz", &[]).unwrap();
        assert_eq!(ready.status, 503, "{ready:?}");
    }
}
