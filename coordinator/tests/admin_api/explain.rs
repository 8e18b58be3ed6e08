//! Why a key is admitted or refused now, and what is left of it.

use leasehold_key::Key;
use serde_json::{Value, json};

use crate::client::Fixture;

const WINDOW: &str = r#"{"policy":{"kind":"sliding_window","limit":10,"window_ms":3600000}}"#;

async fn explain(node: &Fixture, query: &str) -> Value {
    let reply = node
        .ask("GET", &format!("/v1/explain?key={query}"), "")
        .await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

async fn spend(node: &Fixture, key: &str, units: u64) -> u16 {
    let body = json!({ "key": key, "units": units }).to_string();
    node.ask("POST", "/v1/spend", &body).await.status
}

#[tokio::test]
async fn the_patterns_that_match_are_listed_and_the_first_applies() {
    let node = Fixture::start().await;
    let gold = r#"{"kind":"token_bucket","capacity":5,"refill":1,"refill_period_ms":60000}"#;
    node.must("PUT", "/v1/policies/gold", gold).await;
    for pattern in ["**", "acme/**", "acme/orders*", "other/*"] {
        node.must(
            "PUT",
            &format!("/v1/budgets/{pattern}"),
            r#"{"policy":"gold"}"#,
        )
        .await;
    }
    node.must("PUT", "/v1/budgets/acme/orders", WINDOW).await;
    let told = explain(&node, "acme%2Forders").await;
    let patterns: Vec<&str> = told["matching"]
        .as_array()
        .unwrap()
        .iter()
        .map(|matching| matching["pattern"].as_str().unwrap())
        .collect();
    assert_eq!(patterns, ["acme/orders", "acme/orders*", "acme/**", "**"]);
    assert_eq!(told["applies"], "budget");
    assert_eq!(told["matching"][0]["rule"]["limit"], 10, "{told}");
    assert_eq!(told["matching"][1]["policy"], "gold", "{told}");
    assert_eq!(told["account"]["budget"], "acme/orders");
    assert_eq!(
        (&told["admitted"], &told["exists"]),
        (&json!(true), &json!(false))
    );
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_refused_key_is_told_why_and_when_it_frees() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/budgets/w/*", WINDOW).await;
    assert_eq!(spend(&node, "w/a", 6).await, 200);
    assert_eq!(spend(&node, "w/a", 3).await, 200);
    let told = explain(&node, "w/a&units=5").await;
    assert_eq!(told["admitted"], false, "{told}");
    assert_eq!(told["refusal"]["code"], "limit");
    let retry_ms = told["refusal"]["retry_after_ms"].as_u64().unwrap();
    assert!((3_590_000..=3_610_000).contains(&retry_ms), "{retry_ms}");
    let frees = told["frees"].as_array().unwrap();
    assert_eq!(frees[0]["units"], 6, "{told}");
    assert_eq!(frees.last().unwrap()["free"], 10, "{told}");
    assert_eq!(explain(&node, "w/a").await["admitted"], true);
    let dear = explain(&node, "w/a&units=11").await;
    assert_eq!(dear["refusal"]["code"], "cost_above_limit");
    assert_eq!(dear["refusal"]["retry_after_ms"], Value::Null);

    // A lowered limit leaves a debt.
    let lower = WINDOW.replace("10,", "4,");
    node.must("PUT", "/v1/budgets/w/*", &lower).await;
    let told = explain(&node, "w/a").await;
    assert_eq!(told["account"]["debt"], 5, "{told}");
    assert!(
        told["remarks"][0]
            .as_str()
            .unwrap()
            .starts_with("5 units are used beyond"),
        "{told}"
    );
    // What was judged changed nothing.
    assert_eq!(
        node.ask("GET", "/v1/accounts/w/a", "").await.json()["counted"],
        9
    );

    node.must(
        "POST",
        "/v1/accounts/w/a/reset",
        r#"{"id":"t-1","reason":"ticket"}"#,
    )
    .await;
    let told = explain(&node, "w/a").await;
    assert_eq!(told["corrections"][0]["id"], "t-1", "{told}");
    assert_eq!(told["admitted"], true);
    node.running.shutdown().await;
}

#[tokio::test]
async fn every_reason_has_its_code_and_its_words() {
    let node = Fixture::start().await;
    for (pattern, policy) in [
        (
            "zero",
            r#"{"kind":"sliding_window","limit":0,"window_ms":1000}"#,
        ),
        (
            "cool",
            r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"cooldown_ms":3600000}"#,
        ),
        ("permits", r#"{"kind":"concurrency","limit":2}"#),
        ("total", r#"{"kind":"total","limit":0}"#),
        ("shadow", r#"{"kind":"total","limit":0,"shadow":true}"#),
        ("free", r#"{"kind":"unlimited"}"#),
        ("acme/orders/*", r#"{"kind":"total","limit":5}"#),
    ] {
        let body = format!("{{\"policy\":{policy}}}");
        node.must("PUT", &format!("/v1/budgets/{pattern}"), &body)
            .await;
    }
    assert_eq!(spend(&node, "cool", 1).await, 200);
    assert_eq!(spend(&node, "cool", 1).await, 429);
    let code = |told: &Value| told["refusal"]["code"].as_str().map(str::to_owned);
    let remark = |told: &Value| told["remarks"][0].as_str().unwrap_or_default().to_owned();
    for (query, expected, words) in [
        ("zero", Some("cost_above_limit"), "its limit is 0"),
        ("cool", Some("cooldown"), "it was refused, and cools down"),
        ("permits", None, "it has permits"),
        (
            "permits&units=3",
            Some("cost_above_limit"),
            "it has permits",
        ),
        ("total", Some("limit"), "its limit is 0"),
        ("shadow", Some("limit"), "its policy is a shadow"),
        ("free", None, "it was not used lately"),
        (
            "acme%2Fordres%2F7",
            Some("no_budget"),
            "no budget matches it",
        ),
    ] {
        let told = explain(&node, query).await;
        assert_eq!(code(&told).as_deref(), expected, "{query}: {told}");
        assert!(remark(&told).starts_with(words), "{query}: {told}");
    }
    let shadow = explain(&node, "shadow").await;
    assert_eq!(
        (&shadow["admitted"], &shadow["refusal"]["shadowed"]),
        (&json!(true), &json!(true))
    );
    let nothing = explain(&node, "acme%2Fordres%2F7").await;
    assert_eq!(nothing["nearest"], json!(["acme/orders/*"]));
    assert_eq!(nothing["account"], Value::Null);

    // Its budget is gone; what it used is still there.
    node.must("DELETE", "/v1/budgets/cool", "").await;
    let gone = explain(&node, "cool").await;
    assert_eq!(gone["applies"], "gone", "{gone}");
    assert_eq!(code(&gone).as_deref(), Some("no_budget"));
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_peek_says_what_is_left_and_spends_nothing() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/budgets/w/*", WINDOW).await;
    let cool =
        r#"{"policy":{"kind":"sliding_window","limit":1,"window_ms":1000,"cooldown_ms":3600000}}"#;
    node.must("PUT", "/v1/budgets/cool", cool).await;
    node.must(
        "PUT",
        "/v1/budgets/free",
        r#"{"policy":{"kind":"unlimited"}}"#,
    )
    .await;
    assert_eq!(spend(&node, "w/a", 4).await, 200);
    for _ in 0..2 {
        let peek = node.ask("GET", "/v1/peek?key=w/a", "").await;
        assert_eq!(peek.status, 200, "{}", peek.body);
        let told = peek.json();
        assert_eq!(
            (&told["limit"], &told["remaining"]),
            (&json!(10), &json!(6))
        );
        assert!(told["reset_ms"].as_u64().unwrap() > 3_590_000, "{told}");
        assert_eq!(
            peek.header("ratelimit-policy"),
            Some(r#""default";q=10;w=3600"#)
        );
        assert!(
            peek.header("ratelimit")
                .unwrap()
                .starts_with(r#""default";r=6;t=36"#)
        );
    }
    let fresh = node.ask("GET", "/v1/peek?key=w/b", "").await.json();
    assert_eq!(
        fresh,
        json!({"key": "w/b", "limit": 10, "remaining": 10, "reset_ms": 0})
    );
    let free = node.ask("GET", "/v1/peek?key=free", "").await.json();
    assert_eq!(free, json!({"key": "free", "reset_ms": 0}));
    assert_eq!(spend(&node, "cool", 1).await, 200);
    assert_eq!(spend(&node, "cool", 1).await, 429);
    let cooling = node.ask("GET", "/v1/peek?key=cool", "").await.json();
    assert_eq!(cooling["remaining"], 0, "{cooling}");
    assert!(
        cooling["reset_ms"].as_u64().unwrap() > 3_590_000,
        "{cooling}"
    );
    for (path, status, code) in [
        ("/v1/peek?key=nothing", 404, "no_budget"),
        ("/v1/peek", 400, "invalid_query"),
        ("/v1/peek?key=a//b", 400, "invalid_key"),
        ("/v1/explain?key=a&units=-1", 400, "invalid_query"),
        ("/v1/explain?key=a&unit=1", 400, "invalid_query"),
    ] {
        let reply = node.ask("GET", path, "").await;
        assert_eq!(reply.status, status, "{path}: {}", reply.body);
        assert_eq!(reply.json()["code"], code, "{path}");
    }
    // A slash within a segment survives the query.
    let odd = Key::new(["w", "x/y"]).unwrap();
    assert_eq!(odd.as_str(), "w/x%2Fy");
    let told = node.ask("GET", "/v1/peek?key=w%2Fx%252Fy", "").await.json();
    assert_eq!(told["key"], "w/x%2Fy");
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_total_below_zero_says_how_far_wherever_it_is_shown() {
    let node = Fixture::start().await;
    let total = r#"{"policy":{"kind":"total","limit":5}}"#;
    node.must("PUT", "/v1/budgets/credits", total).await;
    assert_eq!(spend(&node, "credits", 3).await, 200);
    let adjust = |id: &'static str, units: &'static str| {
        let args = [
            "account", "adjust", "credits", units, "--id", id, "--reason", "refund",
        ];
        let node = &node;
        async move { node.shell(&args, "").await.out }
    };
    let out = adjust("one", "-20").await;
    let first = "correction one: -20 units, and it still stands 18 below zero: nothing is free";
    assert!(out.starts_with(first), "{out}");
    let told = explain(&node, "credits").await;
    assert_eq!(told["account"]["below_zero"], 18, "{told}");
    let remark = told["remarks"][0].as_str().unwrap();
    assert!(
        remark.starts_with("it stands 18 units below zero"),
        "{told}"
    );
    let get = node.shell(&["account", "get", "credits"], "").await.out;
    assert!(get.contains("18 units have to be added"), "{get}");
    // So many are nothing, and one more is one.
    assert!(adjust("two", "18").await.contains("18 more units are free"));
    assert_eq!(spend(&node, "credits", 1).await, 429);
    adjust("three", "1").await;
    assert_eq!(spend(&node, "credits", 1).await, 200);
    let account = node.ask("GET", "/v1/accounts/credits", "").await.json();
    assert_eq!(account["below_zero"], Value::Null, "{account}");
    node.running.shutdown().await;
}

#[tokio::test]
async fn what_a_shadow_would_have_refused_is_counted_key_by_key_and_cools_nothing_down() {
    let node = Fixture::start().await;
    let shadow = r#"{"policy":{"kind":"sliding_window","limit":1,"window_ms":3600000,"cooldown_ms":3600000,
                     "shadow":true}}"#;
    node.must("PUT", "/v1/budgets/new/*", shadow).await;
    for _ in 0..4 {
        assert_eq!(spend(&node, "new/a", 1).await, 200);
    }
    assert_eq!(spend(&node, "new/b", 1).await, 200);
    let told = explain(&node, "new/a").await;
    assert_eq!(told["account"]["shadowed"], 3, "{told}");
    assert_eq!(told["account"]["cooling_ms"], Value::Null, "{told}");
    assert_eq!(told["refusal"]["code"], "limit", "{told}");
    let remark = told["remarks"][0].as_str().unwrap();
    assert!(remark.contains("3 requests were"), "{told}");
    let other = node.ask("GET", "/v1/accounts/new/b", "").await.json();
    assert_eq!(other["shadowed"], 0, "{other}");
    let get = node.shell(&["account", "get", "new/a"], "").await.out;
    assert!(get.contains("3 requests would have been refused"), "{get}");
    node.running.shutdown().await;
}

#[tokio::test]
async fn what_can_never_be_admitted_is_judged_with_what_can_be_carried_over() {
    let node = Fixture::start().await;
    let daily = r#"{"policy":{"kind":"period","limit":10,"period":"year","anchor":6,"anchor_month":4,"carry_over":4}}"#;
    node.must("PUT", "/v1/budgets/daily", daily).await;
    let told = explain(&node, "daily&units=15").await;
    assert_eq!(
        told["refusal"]["detail"],
        "15 units can never be admitted: the limit of daily is 10, and 14 with all that can be carried over"
    );
    assert_eq!(
        explain(&node, "daily&units=14").await["refusal"]["code"],
        "limit"
    );
    // Nothing is used: the next year has all that can be carried over.
    let told = explain(&node, "daily").await;
    assert_eq!(told["frees"][0]["free"], 14, "{told}");
    let periods = node.ask("GET", "/v1/periods", "").await.json();
    let calendar = &periods["calendars"][0];
    assert_eq!(
        (&calendar["anchor"], &calendar["anchor_month"]),
        (&json!(6), &json!(4))
    );
    node.running.shutdown().await;
}
