//! `/v1/check` and `/v1/check/nginx`.

use std::{net::TcpStream, thread};

use leasehold_tests::{HttpAnswer, ask_http};
use serde_json::json;

use crate::setup::{CHECK, Setup, check, stop};

fn statuses(answers: &[HttpAnswer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

#[test]
fn a_request_within_the_limit_is_204_and_one_beyond_it_429_with_the_headers_of_both() {
    let setup = Setup::new();
    setup.put_window("edge/*", 3);
    let agent = setup.agent(CHECK);
    let answers: Vec<HttpAnswer> = (0..4).map(|_| check(&agent, "acme")).collect();
    assert_eq!(statuses(&answers), [204, 204, 204, 429]);
    for answer in &answers {
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some("\"default\";q=3;w=60"),
            "{answer:?}"
        );
        let state = answer.header("ratelimit").unwrap();
        assert!(state.starts_with("\"default\";r="), "{answer:?}");
    }
    let denied = &answers[3];
    assert_eq!(
        denied.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(denied.json()["status"], 429);
    assert_eq!(denied.json()["violated-policies"], json!(["default"]));
    let after: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=63).contains(&after), "{denied:?}");
    // Nothing internal: neither the key nor what is behind it.
    let all = format!("{answers:?}");
    assert!(!all.contains("acme") && !all.contains("edge"), "{all}");
    // nginx's way of saying the same.
    let denied = agent.ask("/v1/check/nginx", &[("x-key", "acme")]).unwrap();
    assert_eq!(denied.status, 403);
    assert_eq!(denied.header("leasehold-status"), Some("429"));
    assert!(denied.header("retry-after").is_some() && denied.header("ratelimit").is_some());
    let allowed = agent.ask("/v1/check/nginx", &[("x-key", "other")]).unwrap();
    assert_eq!(
        (allowed.status, allowed.header("leasehold-status")),
        (204, None)
    );
    assert!(allowed.header("ratelimit").is_some());
    stop(agent);
    assert_eq!(setup.spent("edge/acme"), 3);
    assert_eq!(setup.spent("edge/other"), 1);
}

#[test]
fn query_body_and_method_change_nothing() {
    let setup = Setup::new();
    setup.put_window("edge/*", 3);
    let agent = setup.agent(CHECK);
    for (method, path, body) in [
        ("POST", "/v1/check?x-key=other&cost=9", "x-key=other"),
        ("DELETE", "/v1/check", ""),
        ("PURGE", "/v1/check?a", ""),
    ] {
        let mut stream = TcpStream::connect(agent.addr()).unwrap();
        let answer = ask_http(&mut stream, method, path, &[("x-key", "acme")], body).unwrap();
        assert_eq!(answer.status, 204, "{method} {path}");
    }
    assert_eq!(check(&agent, "acme").status, 429);
    stop(agent);
    assert_eq!(setup.spent("edge/acme"), 3);
}

#[test]
fn without_a_key_or_with_two_of_them_nothing_passes_unless_the_configuration_says_so() {
    let setup = Setup::new();
    setup.put_window("edge/*", 3);
    let agent = setup.agent(&format!(
        "{CHECK}[checks.open]\nkey = \"edge/{{header:x-key}}\"\nmissing_key = \"allow\"\n"
    ));
    let ask = |path: &str, headers: &[(&str, &str)]| agent.ask(path, headers).unwrap();
    let missing = ask("/v1/check", &[]);
    assert_eq!(missing.status, 403, "{missing:?}");
    assert_eq!(ask("/v1/check", &[("x-key", "")]).status, 403);
    let nginx = ask("/v1/check/nginx", &[]);
    assert_eq!(
        (nginx.status, nginx.header("leasehold-status")),
        (403, Some("403"))
    );
    let doubled = [("x-key", "acme"), ("x-key", "other")];
    assert_eq!(ask("/v1/check", &doubled).status, 400);
    for cost in ["-1", "1, 1", "many"] {
        let headers = [("x-key", "acme"), ("x-cost", cost)];
        assert!(ask("/v1/check", &headers).status >= 400, "{cost}");
    }
    // Where it is said so, it passes, and costs nobody anything.
    assert_eq!(ask("/v1/check/open", &[]).status, 204);
    assert_eq!(ask("/v1/check/open", &doubled).status, 400);
    assert_eq!(ask("/v1/check/closed", &[("x-key", "acme")]).status, 500);
    stop(agent);
    assert_eq!(setup.spent("edge/acme"), 0);
}

#[test]
fn a_request_costs_what_its_header_says_and_nothing_is_asked_for_the_way() {
    let setup = Setup::new();
    setup.put_window("edge/*", 10);
    let agent = setup.agent(CHECK);
    let ask = |cost: &str| {
        let headers = [("x-key", "acme"), ("x-cost", cost)];
        agent.ask("/v1/check", &headers).unwrap().status
    };
    assert_eq!(ask("0"), 204);
    assert_eq!(ask("7"), 204);
    assert_eq!(ask("3"), 204);
    assert_eq!(ask("1"), 429);
    assert_eq!(ask("11"), 403, "never");
    assert_eq!(ask("0"), 429, "0 is answered truthfully");
    stop(agent);
    assert_eq!(setup.spent("edge/acme"), 10);
}

#[test]
fn a_key_without_a_budget_does_not_pass_unless_the_configuration_says_so() {
    let setup = Setup::new();
    setup.put_window("edge/*", 3);
    let agent = setup.agent(
        "[check]\nkey = \"nowhere/{header:x-key}\"\n\
         [checks.open]\nkey = \"nowhere/{header:x-key}\"\nno_budget = \"allow\"\n\
         [checks.both]\nkey = [\"nowhere/{header:x-key}\", \"edge/{header:x-key}\"]\n\
         no_budget = \"allow\"\n",
    );
    let ask = |path: &str| agent.ask(path, &[("x-key", "acme")]).unwrap().status;
    assert_eq!(ask("/v1/check"), 403);
    assert_eq!(ask("/v1/check/open"), 204);
    let both: Vec<u16> = (0..4).map(|_| ask("/v1/check/both")).collect();
    assert_eq!(both, [204, 204, 204, 429], "the other budget still counts");
    stop(agent);
}

#[test]
fn several_keys_of_a_check_are_charged_together_or_not_at_all() {
    let setup = Setup::new();
    setup.put_window("edge/all", 5);
    setup.put_window("edge/customer/*", 2);
    let agent = setup.agent("[check]\nkey = [\"edge/all\", \"edge/customer/{header:x-key}\"]\n");
    let told: Vec<u16> = ["a", "a", "a", "b", "b", "b", "c", "d"]
        .iter()
        .map(|key| check(&agent, key).status)
        .collect();
    assert_eq!(told, [204, 204, 429, 204, 204, 429, 204, 429]);
    stop(agent);
    assert_eq!(setup.spent("edge/all"), 5);
    assert_eq!(setup.spent("edge/customer/a"), 2);
    assert_eq!(setup.spent("edge/customer/d"), 0);
}

#[test]
fn one_request_id_is_charged_once_for_one_key_and_cost() {
    let setup = Setup::new();
    setup.put_window("edge/*", 3);
    let agent = setup.agent(CHECK);
    let ask = |path: &str, key: &str, cost: &str, id: &str| {
        let headers = [("x-key", key), ("x-cost", cost), ("x-request-id", id)];
        agent.ask(path, &headers).unwrap()
    };
    // At once, and one after another.
    thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| ask("/v1/check", "acme", "1", "one").status))
            .collect();
        for one in all {
            assert_eq!(one.join().unwrap(), 204);
        }
    });
    assert_eq!(ask("/v1/check", "acme", "1", "one").status, 204);
    // Another key, cost or id is another request.
    assert_eq!(ask("/v1/check", "acme", "2", "one").status, 204);
    assert_eq!(ask("/v1/check", "acme", "1", "two").status, 429);
    assert_eq!(
        ask("/v1/check", "acme", "1", "one").status,
        204,
        "still known"
    );
    assert_eq!(ask("/v1/check", "other", "1", "one").status, 204);
    // Two ids are none.
    let doubled = [
        ("x-key", "other"),
        ("x-request-id", "one"),
        ("x-request-id", "one"),
    ];
    for status in [204, 204, 429] {
        assert_eq!(agent.ask("/v1/check", &doubled).unwrap().status, status);
    }
    let metrics = agent.ask("/metrics", &[]).unwrap().body;
    assert!(
        metrics.contains("leasehold_agent_repeats_total 9"),
        "{metrics}"
    );
    stop(agent);
    assert_eq!(setup.spent("edge/acme"), 3);
    assert_eq!(setup.spent("edge/other"), 3);
}

#[test]
fn lanes_are_those_of_the_header_also_of_several_keys() {
    let setup = Setup::new();
    let policy = json!({
        "kind": "sliding_window", "limit": 10, "window_ms": 60_000,
        "lanes": [{ "name": "payment", "reserve": 4 }, { "name": "rest" }],
    });
    setup.put_budget("edge/*", &policy);
    let agent = setup.agent(&format!(
        "{CHECK}[checks.both]\nkey = [\"edge/one\", \"edge/{{header:x-key}}\"]\n\
         lane_header = \"x-lane\"\n"
    ));
    let ask = |path: &str, key: &str, lane: &str| {
        let headers = [("x-key", key), ("x-lane", lane)];
        agent.ask(path, &headers).unwrap().status
    };
    for (path, key) in [("/v1/check", "acme"), ("/v1/check/both", "other")] {
        let rest: Vec<u16> = (0..8).map(|_| ask(path, key, "rest")).collect();
        assert_eq!(rest, [204, 204, 204, 204, 204, 204, 429, 429], "{path}");
        let unknown = ask(path, key, "no such lane");
        assert_eq!(unknown, 429, "{path}: the lowest");
        let payment: Vec<u16> = (0..5).map(|_| ask(path, key, "payment")).collect();
        assert_eq!(payment, [204, 204, 204, 204, 429], "{path}");
    }
    stop(agent);
}
