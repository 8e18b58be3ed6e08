//! Central spends that are charged once, and those of policies that only count.

use leasehold_coordinator::serve::Running;
use serde_json::{Value, json};

use crate::{
    client::{Fixture, Reply, ask},
    three_nodes::{cluster, leader_of},
};

const WINDOW: &str = r#"{"policy":{"kind":"sliding_window","limit":10,"window_ms":3600000}}"#;

async fn once(node: &Running, name: &str, key: &str, units: u64) -> Reply {
    let header = format!("Idempotency-Key: {name}");
    let body = json!({ "key": key, "units": units }).to_string();
    ask(node.admin_addr(), "POST", "/v1/spend", &[&header], &body).await
}

#[tokio::test]
async fn the_same_again_is_answered_alike_and_charged_once() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/budgets/*", WINDOW).await;
    let first = once(&node.running, "req-1", "a", 6).await;
    assert_eq!(first.status, 200, "{}", first.body);
    assert_eq!(
        first.json(),
        json!({"admitted": true, "key": "a", "units": 6, "free": 4})
    );
    let again = once(&node.running, "req-1", "a", 6).await;
    assert_eq!(again.status, 200, "{}", again.body);
    assert_eq!(
        again.json(),
        json!({"admitted": true, "key": "a", "units": 6, "free": 4, "repeated": true})
    );
    assert_eq!(
        again.header("ratelimit-policy"),
        first.header("ratelimit-policy")
    );
    assert!(again.header("ratelimit").is_some());

    for (key, units) in [("a", 5), ("b", 6)] {
        let other = once(&node.running, "req-1", key, units).await;
        assert_eq!(other.status, 422, "{}", other.body);
        assert_eq!(other.json()["code"], "idempotency_key_reused");
    }
    // What was denied charged nothing, and is decided anew.
    assert_eq!(once(&node.running, "req-2", "a", 6).await.status, 429);
    node.must("POST", "/v1/accounts/a/reset", r#"{"reason":"try again"}"#)
        .await;
    let anew = once(&node.running, "req-2", "a", 6).await;
    assert_eq!(anew.json()["repeated"], Value::Null, "{}", anew.body);
    let account = node.ask("GET", "/v1/accounts/a", "").await.json();
    assert_eq!(account["lifetime"]["central"], 12, "{account}");
    node.running.shutdown().await;
}

#[tokio::test]
async fn names_are_bounded_in_length_and_number() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/budgets/*", WINDOW).await;
    node.must("PUT", "/v1/settings", r#"{"idempotency_keys_max":2}"#)
        .await;
    for name in ["", "two words", &"x".repeat(256), "é"] {
        let refused = once(&node.running, name, "a", 1).await;
        assert_eq!(refused.status, 400, "{name}: {}", refused.body);
        assert_eq!(refused.json()["code"], "invalid_header", "{name}");
    }
    assert_eq!(
        once(&node.running, &"x".repeat(255), "a", 1).await.status,
        200
    );
    assert_eq!(once(&node.running, "req-2", "a", 1).await.status, 200);
    let full = once(&node.running, "req-3", "a", 1).await;
    assert_eq!(full.status, 429, "{}", full.body);
    assert_eq!(full.json()["code"], "too_many_idempotency_keys");
    let wait: u64 = full.header("retry-after").unwrap().parse().unwrap();
    assert!((590..=600).contains(&wait), "{wait}");
    let known = once(&node.running, "req-2", "a", 1).await;
    assert_eq!(known.json()["repeated"], true, "{}", known.body);
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_shadow_policy_refuses_nothing_and_says_what_it_would_have() {
    let node = Fixture::start().await;
    let shadow =
        r#"{"policy":{"kind":"sliding_window","limit":10,"window_ms":3600000,"shadow":true}}"#;
    node.must("PUT", "/v1/budgets/*", shadow).await;
    let metric = "leasehold_shadowed_total";
    let before = counted(&node, metric).await;
    let spend = r#"{"key":"a","units":6}"#;
    let first = node.ask("POST", "/v1/spend", spend).await.json();
    assert_eq!(first["shadowed"], Value::Null, "{first}");
    let second = node.ask("POST", "/v1/spend", spend).await;
    assert_eq!(second.status, 200, "{}", second.body);
    let said = second.json();
    assert_eq!(said["shadowed"]["code"], "limit", "{said}");
    assert_eq!(said["free"], 4, "nothing was charged: {said}");
    assert!(
        said["shadowed"]["retry_after_s"].as_u64().unwrap() > 3_590,
        "{said}"
    );
    assert!(counted(&node, metric).await >= before + 1.0);
    node.running.shutdown().await;
}

async fn counted(node: &Fixture, metric: &str) -> f64 {
    let text = node.ask("GET", "/metrics", "").await.body;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(metric))
        .unwrap_or("0");
    line.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_header_says_reaches_the_leader_through_any_node() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cluster(&folder).await;
    let leader = leader_of(&nodes).await;
    let follower = &nodes[(leader + 1) % 3];
    let addr = follower.admin_addr();
    let put = ask(addr, "PUT", "/v1/budgets/*", &[], WINDOW).await;
    assert_eq!(put.status, 200, "{}", put.body);
    assert_eq!(once(follower, "req-1", "a", 6).await.status, 200);
    let again = once(&nodes[(leader + 2) % 3], "req-1", "a", 6).await;
    assert_eq!(again.json()["repeated"], true, "{}", again.body);
    let by = &["Leasehold-By: Zoë"];
    let reset = ask(
        addr,
        "POST",
        "/v1/accounts/a/reset",
        by,
        r#"{"reason":"try"}"#,
    )
    .await;
    assert_eq!(reset.status, 200, "{}", reset.body);
    let history = ask(addr, "GET", "/v1/accounts/a/corrections", &[], "").await;
    assert_eq!(
        history.json()["corrections"][0]["by"],
        "Zoë",
        "{}",
        history.body
    );
    for node in nodes {
        node.shutdown().await;
    }
}
