//! Edits of policies, budgets and settings: conditions, authors and versions, many at
//! once, and what a dry run says beforehand.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::client::{Fixture, Reply, ask};

fn window(limit: u64) -> String {
    format!(r#"{{"kind":"sliding_window","limit":{limit},"window_ms":3600000}}"#)
}

impl Fixture {
    async fn with(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        ask(self.running.admin_addr(), method, path, headers, body).await
    }

    async fn etag(&self, path: &str) -> String {
        let reply = self.ask("GET", path, "").await;
        reply.header("etag").unwrap().to_owned()
    }
}

#[tokio::test]
async fn whoever_changes_what_somebody_else_has_changed_is_told_so() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/policies/p", &window(10)).await;
    node.must("PUT", "/v1/budgets/a/*", r#"{"policy":"p"}"#)
        .await;
    for (path, edits) in [
        ("/v1/policies/p", [window(20), window(30)]),
        (
            "/v1/budgets/a/*",
            [
                r#"{"policy":"p","accounts_max":7}"#.to_owned(),
                r#"{"policy":"p","accounts_max":8}"#.to_owned(),
            ],
        ),
        (
            "/v1/settings",
            [
                r#"{"max_drift_ppm":2000}"#.to_owned(),
                r#"{"max_drift_ppm":3000}"#.to_owned(),
            ],
        ),
    ] {
        let seen = node.etag(path).await;
        let if_match = format!("if-match: {seen}");
        let first = node.with("PUT", path, &[&if_match], &edits[0]).await;
        assert_eq!(first.status, 200, "{path}: {}", first.body);
        let now = node.etag(path).await;
        assert_eq!(first.header("etag"), Some(now.as_str()), "{path}");
        assert_ne!(now, seen, "{path}");
        let second = node.with("PUT", path, &[&if_match], &edits[1]).await;
        assert_eq!(second.status, 412, "{path}: {}", second.body);
        assert_eq!(second.json()["code"], "precondition_failed");
        assert!(
            second.body.contains(now.trim_matches('"')),
            "{}",
            second.body
        );
        assert_eq!(node.etag(path).await, now, "{path}: nothing was changed");
    }
    for path in ["/v1/budgets/a/*", "/v1/policies/p"] {
        let stale = node
            .with("DELETE", path, &["if-match: \"0000000000000000\""], "")
            .await;
        assert_eq!(stale.status, 412, "{path}: {}", stale.body);
        let absent = node
            .with("PUT", path, &["if-none-match: *"], &window(1))
            .await;
        let absent = if path.contains("budgets") {
            node.with("PUT", path, &["if-none-match: *"], r#"{"policy":"p"}"#)
                .await
        } else {
            absent
        };
        assert_eq!(absent.status, 412, "{path}: {}", absent.body);
        let good = format!("if-match: {}", node.etag(path).await);
        let deleted = node.with("DELETE", path, &[&good], "").await;
        assert_eq!(deleted.status, 204, "{path}: {}", deleted.body);
        let again = node.with("DELETE", path, &[&good], "").await;
        assert_eq!(again.status, 404, "{path}: {}", again.body);
    }
    let create = node
        .with("PUT", "/v1/policies/p", &["if-match: *"], &window(1))
        .await;
    assert_eq!(create.status, 412, "{}", create.body);
    let create = node
        .with("PUT", "/v1/policies/p", &["if-none-match: *"], &window(1))
        .await;
    assert_eq!(create.status, 200, "{}", create.body);
    let odd = node
        .with("PUT", "/v1/policies/p", &["if-match: 1"], &window(1))
        .await;
    assert_eq!(
        (odd.status, &odd.json()["code"]),
        (400, &json!("invalid_header"))
    );
    node.running.shutdown().await;
}

#[tokio::test]
async fn of_many_operators_who_saw_the_same_exactly_one_wins() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/policies/p", &window(1)).await;
    for round in 0..5 {
        let if_match = format!("if-match: {}", node.etag("/v1/policies/p").await);
        let edits = (0..8).map(|operator| {
            let (node, if_match) = (&node, &if_match);
            async move {
                let limit = 100 * (round + 1) + operator;
                let headers = [if_match.as_str()];
                let reply = node
                    .with("PUT", "/v1/policies/p", &headers, &window(limit))
                    .await;
                (reply.status, limit)
            }
        });
        let outcomes = futures::future::join_all(edits).await;
        let won: Vec<u64> = outcomes
            .iter()
            .filter(|(status, _)| *status == 200)
            .map(|(_, limit)| *limit)
            .collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        assert!(
            outcomes
                .iter()
                .all(|(status, _)| matches!(status, 200 | 412))
        );
        let policy = node.ask("GET", "/v1/policies/p", "").await.json();
        assert_eq!(policy["limit"], won[0]);
        assert_eq!(policy["version"], round + 2);
    }
    node.running.shutdown().await;
}

#[tokio::test]
async fn versions_say_who_changed_what_and_when() {
    let node = Fixture::start().await;
    let path = "/v1/policies/p";
    for (by, limit) in [("leasehold-by: ada", 10), ("leasehold-by: Grüße", 20)] {
        let reply = node.with("PUT", path, &[by], &window(limit)).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    node.must("PUT", path, &window(20)).await;
    node.must("PUT", path, &window(30)).await;
    let listed = node.ask("GET", "/v1/policies/p/versions", "").await.json();
    let versions = listed["versions"].as_array().unwrap();
    let said: Vec<(&Value, &Value, &Value)> = versions
        .iter()
        .map(|version| {
            (
                &version["version"],
                &version["by"],
                &version["policy"]["limit"],
            )
        })
        .collect();
    assert_eq!(
        said,
        [
            (&json!(3), &Value::Null, &json!(30)),
            (&json!(2), &json!("Grüße"), &json!(20)),
            (&json!(1), &json!("ada"), &json!(10)),
        ],
        "an edit that changes nothing is none"
    );
    for version in versions {
        let at = version["at_unix_ms"].as_i64().unwrap();
        assert!(at > 1_500_000_000_000, "{version}");
    }
    node.with(
        "PUT",
        "/v1/budgets/a/*",
        &["leasehold-by: ada"],
        r#"{"policy":"p"}"#,
    )
    .await;
    node.must(
        "PUT",
        "/v1/budgets/a/*",
        r#"{"policy":"p","accounts_max":3}"#,
    )
    .await;
    let listed = node.ask("GET", "/v1/budget-versions/a/*", "").await.json();
    assert_eq!(listed["versions"][0]["accounts_max"], 3);
    assert_eq!(listed["versions"][1]["by"], "ada");
    for path in ["/v1/policies/q/versions", "/v1/budget-versions/b"] {
        assert_eq!(node.ask("GET", path, "").await.status, 404, "{path}");
    }
    let long = format!("leasehold-by: {}", "x".repeat(129));
    let reply = node.with("PUT", path, &[&long], &window(1)).await;
    assert_eq!(
        (reply.status, &reply.json()["code"]),
        (400, &json!("invalid_header"))
    );
    node.running.shutdown().await;
}

fn budgets(patterns: impl Iterator<Item = String>, policy: &str) -> String {
    let mut text = r#"{"budgets":["#.to_owned();
    for (place, pattern) in patterns.enumerate() {
        let comma = if place > 0 { "," } else { "" };
        write!(
            text,
            r#"{comma}{{"pattern":"{pattern}","policy":"{policy}"}}"#
        )
        .unwrap();
    }
    text + "]}"
}

#[tokio::test]
async fn ten_thousand_budgets_change_at_once_or_not_at_all() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/policies/free", &window(1)).await;
    node.must("PUT", "/v1/policies/pro", &window(1_000)).await;
    node.must("PUT", "/v1/budgets/api-key/*/**", r#"{"policy":"free"}"#)
        .await;
    let spend = r#"{"key":"api-key/k7/reads"}"#;
    assert_eq!(node.ask("POST", "/v1/spend", spend).await.status, 200);
    assert_eq!(node.ask("POST", "/v1/spend", spend).await.status, 429);

    let pattern = |number: usize| format!("api-key/k{number}/**");
    let all = budgets((0..10_000).map(pattern), "pro");
    let put = node.ask("PUT", "/v1/budgets", &all).await;
    assert_eq!(put.status, 200, "{}", put.body);
    assert_eq!(put.json(), json!({"budgets": 10_000, "changed": 10_000}));
    assert_eq!(node.ask("POST", "/v1/spend", spend).await.status, 200);
    let again = node.ask("PUT", "/v1/budgets", &all).await.json();
    assert_eq!(again["changed"], 0);

    // The last one is refused: nothing of all the others is done.
    let one_is_bad = budgets((0..9_999).map(pattern), "free")
        .replace("]}", r#",{"pattern":"b/*","policy":"nobody"}]}"#);
    let refused = node.ask("PUT", "/v1/budgets", &one_is_bad).await;
    assert_eq!(refused.status, 404, "{}", refused.body);
    assert_eq!(refused.json()["field"], "budgets[9999].policy");
    assert_eq!(node.ask("POST", "/v1/spend", spend).await.status, 200);

    let too_many = budgets((0..10_001).map(pattern), "pro");
    let refused = node.ask("PUT", "/v1/budgets", &too_many).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body.contains("10001") && refused.body.contains("10000"));
    node.running.shutdown().await;
}

#[tokio::test]
async fn each_of_many_budgets_has_its_own_condition_and_its_own_error() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/policies/p", &window(10)).await;
    node.must("PUT", "/v1/budgets/a/*", r#"{"policy":"p"}"#)
        .await;
    let etag = node.etag("/v1/budgets/a/*").await;
    let etag = etag.trim_matches('"');
    let cases = [
        (format!(r#""policy":"p","etag":"{etag}""#), 200, None),
        (
            r#""policy":"p","etag":"0000000000000000""#.to_owned(),
            412,
            Some("etag"),
        ),
        (r#""policy":"p","etag":null"#.to_owned(), 412, Some("etag")),
        (r#""policy":"p","etag":"x""#.to_owned(), 422, Some("etag")),
        (
            r#""policy":"p","accounts_max":0"#.to_owned(),
            422,
            Some("accounts_max"),
        ),
        (r#""policy":"no such""#.to_owned(), 400, Some("policy")),
        (r#""policy":7"#.to_owned(), 422, Some("policy")),
        (r#""polici":"p""#.to_owned(), 422, Some("polici")),
        (
            r#""policy":{"kind":"sliding_window","limit":1,"window_ms":1}"#.to_owned(),
            422,
            Some("policy.window_ms"),
        ),
    ];
    for (budget, status, field) in cases {
        let body = format!(
            r#"{{"budgets":[{{"pattern":"b/*","policy":"p"}},{{"pattern":"a/*",{budget}}}]}}"#
        );
        let reply = node.ask("PUT", "/v1/budgets", &body).await;
        assert_eq!(reply.status, status, "{budget}: {}", reply.body);
        let field = field.map(|field| format!("budgets[1].{field}"));
        assert_eq!(
            reply.json()["field"].as_str(),
            field.as_deref(),
            "{}",
            reply.body
        );
    }
    let twice = r#"{"budgets":[{"pattern":"c","policy":"p"},{"pattern":"%63","policy":"p"}]}"#;
    let reply = node.ask("PUT", "/v1/budgets", twice).await;
    assert_eq!(reply.status, 422, "{}", reply.body);
    assert_eq!(reply.json()["field"], "budgets[1].pattern");
    let reply = node
        .with("PUT", "/v1/budgets", &["if-match: *"], twice)
        .await;
    assert_eq!(reply.json()["code"], "invalid_header");
    node.running.shutdown().await;
}

#[tokio::test]
async fn no_other_body_may_be_as_long_as_that_of_many_budgets() {
    let node = Fixture::start().await;
    let long = format!(r#"{{"x":"{}"}}"#, "x".repeat(100_000));
    let reply = node.ask("PUT", "/v1/budgets", &long).await;
    assert_eq!(reply.status, 422, "it is read: {}", reply.body);
    for path in ["/v1/budgets/a", "/v1/policies/p", "/v1/settings"] {
        let reply = node.ask("PUT", path, &long).await;
        assert_eq!(reply.status, 413, "{path}: {}", reply.body);
        assert!(reply.body.contains("65536"), "{}", reply.body);
    }
    let longer = format!(r#"{{"x":"{}"}}"#, "x".repeat(8 << 20));
    let reply = node.ask("PUT", "/v1/budgets", &longer).await;
    assert_eq!(reply.status, 413, "{}", reply.body);
    assert!(reply.body.contains("8388608"), "{}", reply.body);
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_cap_on_accounts_refuses_the_next_key_of_the_pattern() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/policies/p", &window(10)).await;
    node.must(
        "PUT",
        "/v1/budgets/a/*",
        r#"{"policy":"p","accounts_max":2}"#,
    )
    .await;
    let spend = |key: &str| format!(r#"{{"key":"{key}"}}"#);
    for key in ["a/1", "a/2", "a/1"] {
        assert_eq!(
            node.ask("POST", "/v1/spend", &spend(key)).await.status,
            200,
            "{key}"
        );
    }
    let refused = node.ask("POST", "/v1/spend", &spend("a/3")).await;
    assert_eq!(
        refused.json()["code"],
        "too_many_accounts",
        "{}",
        refused.body
    );
    let shown = node.ask("GET", "/v1/budgets/a/*", "").await.json();
    assert_eq!(shown["accounts_max"], 2);
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_limit_that_is_lowered_and_raised_again_gives_no_free_lunch() {
    let node = Fixture::start().await;
    let path = "/v1/policies/p";
    node.must("PUT", path, &window(100)).await;
    node.must("PUT", "/v1/budgets/a/*", r#"{"policy":"p"}"#)
        .await;
    node.must("POST", "/v1/spend", r#"{"key":"a/x","units":90}"#)
        .await;
    let foreseen = node
        .ask("PUT", "/v1/policies/p?dry_run=true", &window(20))
        .await;
    assert_eq!(
        foreseen.json(),
        json!({
            "dry_run": true, "changes": 1, "accounts": 1, "new_generations": 0,
            "without_budget": 0, "debt": 70, "worst": [{"key": "a/x", "debt": 70}], "freed": 0
        })
    );
    assert!(foreseen.header("etag").is_none());
    let account = node.ask("GET", "/v1/accounts/a/x", "").await.json();
    assert_eq!(
        (&account["limit"], &account["debt"]),
        (&json!(100), &json!(0))
    );

    node.must("PUT", path, &window(20)).await;
    let account = node.ask("GET", "/v1/accounts/a/x", "").await.json();
    assert_eq!(
        (&account["free"], &account["debt"]),
        (&json!(0), &json!(70))
    );
    let foreseen = node
        .ask("PUT", "/v1/policies/p?dry_run=true", &window(100))
        .await;
    assert_eq!(foreseen.json()["freed"], 10);
    node.must("PUT", path, &window(100)).await;
    let spend = |units: u64| format!(r#"{{"key":"a/x","units":{units}}}"#);
    assert_eq!(node.ask("POST", "/v1/spend", &spend(11)).await.status, 429);
    assert_eq!(node.ask("POST", "/v1/spend", &spend(10)).await.status, 200);
    assert_eq!(node.ask("POST", "/v1/spend", &spend(1)).await.status, 429);
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_dry_run_of_anything_changes_nothing_and_refuses_what_would_be_refused() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/policies/p", &window(10)).await;
    node.must("PUT", "/v1/policies/q", &window(1)).await;
    node.must("PUT", "/v1/budgets/a/*", r#"{"policy":"p"}"#)
        .await;
    node.must("POST", "/v1/spend", r#"{"key":"a/x","units":5}"#)
        .await;
    let bucket = r#"{"kind":"token_bucket","capacity":5,"refill":1,"refill_period_ms":1000}"#;
    let many = r#"{"budgets":[{"pattern":"a/*","policy":"q"},{"pattern":"b","policy":"q"}]}"#;
    let before = all(&node).await;
    for (method, path, body, changes, accounts) in [
        ("PUT", "/v1/policies/p", bucket, 1, 1),
        ("PUT", "/v1/policies/new", bucket, 1, 0),
        ("PUT", "/v1/policies/q", window(1).as_str(), 0, 0),
        ("DELETE", "/v1/policies/q", "", 1, 0),
        ("PUT", "/v1/budgets/a/x", r#"{"policy":"q"}"#, 1, 1),
        ("PUT", "/v1/budgets", many, 2, 1),
        ("DELETE", "/v1/budgets/a/*", "", 1, 1),
        ("PUT", "/v1/settings", r#"{"max_drift_ppm":5000}"#, 1, 1),
        ("PUT", "/v1/settings", r#"{"default_policy":"q"}"#, 1, 0),
    ] {
        let path = format!("{path}?dry_run=true");
        let reply = node.ask(method, &path, body).await;
        assert_eq!(reply.status, 200, "{method} {path}: {}", reply.body);
        let foreseen = reply.json();
        assert_eq!(foreseen["dry_run"], true, "{foreseen}");
        assert_eq!(
            (&foreseen["changes"], &foreseen["accounts"]),
            (&json!(changes), &json!(accounts)),
            "{method} {path} {body}: {foreseen}"
        );
        assert_eq!(all(&node).await, before, "{method} {path}");
    }
    for (method, path, body, status) in [
        ("DELETE", "/v1/policies/p?dry_run=true", "", 409),
        (
            "PUT",
            "/v1/budgets/b?dry_run=true",
            r#"{"policy":"nobody"}"#,
            404,
        ),
        ("DELETE", "/v1/budgets/b?dry_run=true", "", 404),
        ("PUT", "/v1/policies/p?dry_run=yes", bucket, 400),
        ("PUT", "/v1/policies/p?dry=true", bucket, 400),
        ("GET", "/v1/policies/p?dry_run=true", "", 400),
    ] {
        let reply = node.ask(method, path, body).await;
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.body);
    }
    let stale = "if-match: \"0000000000000000\"";
    let reply = node
        .with("PUT", "/v1/policies/p?dry_run=true", &[stale], bucket)
        .await;
    assert_eq!(reply.status, 412, "{}", reply.body);
    node.running.shutdown().await;
}

async fn all(node: &Fixture) -> Vec<String> {
    let mut bodies = Vec::new();
    for path in [
        "/v1/policies",
        "/v1/budgets",
        "/v1/settings",
        "/v1/accounts/a/x",
    ] {
        let mut body = node.ask("GET", path, "").await.json();
        // The only thing that time changes.
        body["next_free_ms"] = Value::Null;
        bodies.push(body.to_string());
    }
    bodies
}
