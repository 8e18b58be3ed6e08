//! Support's button: accounts that are corrected by hand.

use serde_json::json;

use crate::client::{Fixture, ask};

const WINDOW: &str = r#"{"policy":{"kind":"sliding_window","limit":10,"window_ms":3600000}}"#;
const TOTAL: &str = r#"{"policy":{"kind":"total","limit":0}}"#;

async fn node() -> Fixture {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/budgets/w/**", WINDOW).await;
    node.must("PUT", "/v1/budgets/prepaid/*", TOTAL).await;
    node
}

async fn spend(node: &Fixture, key: &str, units: u64) -> u16 {
    let body = json!({ "key": key, "units": units }).to_string();
    node.ask("POST", "/v1/spend", &body).await.status
}

#[tokio::test]
async fn a_reset_unblocks_a_customer_now_and_the_books_say_so() {
    let node = node().await;
    assert_eq!(spend(&node, "w/a", 10).await, 200);
    assert_eq!(spend(&node, "w/a", 1).await, 429);
    let reply = ask(
        node.running.admin_addr(),
        "POST",
        "/v1/accounts/w/a/reset",
        &["Leasehold-By: Zoë, support"],
        r#"{"reason":"their retry loop is fixed"}"#,
    )
    .await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let done = reply.json();
    assert_eq!(
        (&done["effect"], &done["repeated"]),
        (&json!(10), &json!(false))
    );
    assert_eq!(done["account"]["counted"], 0, "{done}");
    assert_eq!(done["account"]["corrected"], 10, "{done}");
    assert_eq!(spend(&node, "w/a", 10).await, 200);

    let id = done["id"].as_str().unwrap();
    assert_eq!(id.len(), 32, "drawn at random: {id}");
    let history = node
        .ask("GET", "/v1/accounts/w/a/corrections", "")
        .await
        .json();
    let wall = history["corrections"][0]["at_unix_ms"].as_i64().unwrap();
    assert!(wall > 1_700_000_000_000, "{history}");
    assert_eq!(
        history,
        json!({"key": "w/a", "next_cursor": null, "corrections": [{
            "id": id, "change": "reset", "effect": 10, "reason": "their retry loop is fixed",
            "by": "Zoë, support", "at_unix_ms": wall,
        }]})
    );
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_top_up_counts_once_and_its_id_is_taken() {
    let node = node().await;
    let path = "/v1/accounts/prepaid/acme/adjust";
    let bought = r#"{"id":"order-1","units":500,"reason":"bought 500"}"#;
    assert_eq!(spend(&node, "prepaid/acme", 1).await, 429);
    for repeated in [false, true] {
        let done = node.ask("POST", path, bought).await.json();
        assert_eq!(done["repeated"], repeated, "{done}");
        assert_eq!(done["effect"], 500);
        assert_eq!(done["account"]["free"], 500, "{done}");
    }
    let text = node
        .transcript(&[
            (
                "POST",
                path,
                r#"{"id":"order-1","units":600,"reason":"bought 500"}"#,
            ),
            (
                "POST",
                path,
                r#"{"id":"order-2","units":0,"reason":"nothing"}"#,
            ),
            ("POST", path, r#"{"id":"","units":1,"reason":"no id"}"#),
            ("POST", path, r#"{"id":"order-2","units":1,"reason":" "}"#),
            (
                "POST",
                path,
                r#"{"id":"order-2","units":1.5,"reason":"half"}"#,
            ),
            (
                "POST",
                path,
                r#"{"id":"order-2","units":9007199254740992,"reason":"much"}"#,
            ),
            ("POST", path, r#"{"units":1,"reason":"no id"}"#),
            (
                "POST",
                "/v1/accounts/prepaid/acme/reset",
                r#"{"reason":"a total is not"}"#,
            ),
            (
                "POST",
                "/v1/accounts/unknown/reset",
                r#"{"reason":"no budget"}"#,
            ),
            ("POST", "/v1/accounts/prepaid/acme", r#"{"reason":"what?"}"#),
            ("POST", "/v1/accounts/reset", r#"{"reason":"of what?"}"#),
            ("GET", "/v1/accounts/nobody/corrections", ""),
            ("GET", "/v1/accounts/prepaid/acme/corrections?limit=0", ""),
            ("GET", "/v1/accounts/prepaid/acme/corrections?cursor=x", ""),
        ])
        .await;
    insta::assert_snapshot!(text);
    let account = node
        .ask("GET", "/v1/accounts/prepaid/acme", "")
        .await
        .json();
    assert_eq!(
        account["free"], 500,
        "what was refused changed nothing: {account}"
    );
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_history_is_read_page_by_page_from_the_newest() {
    let node = node().await;
    for number in 1..=5 {
        let body = json!({"id": format!("o-{number}"), "units": number, "reason": "bought"});
        node.must(
            "POST",
            "/v1/accounts/prepaid/acme/adjust",
            &body.to_string(),
        )
        .await;
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/accounts/prepaid/acme/corrections?limit=2{cursor}");
        let page = node.ask("GET", &path, "").await.json();
        for correction in page["corrections"].as_array().unwrap() {
            seen.push(correction["units"].as_i64().unwrap());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, [5, 4, 3, 2, 1]);
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_key_that_ends_in_an_action_is_still_that_key() {
    let node = node().await;
    for key in ["w/reset", "w/adjust", "w/corrections"] {
        assert_eq!(spend(&node, key, 3).await, 200);
    }
    let reason = r#"{"id":"r","reason":"try"}"#;
    for action in ["reset", "adjust", "corrections"] {
        let path = format!("/v1/accounts/w/{action}/reset");
        let done = node.ask("POST", &path, reason).await.json();
        assert_eq!(done["effect"], 3, "{done}");
        assert_eq!(done["account"]["key"], format!("w/{action}"));
        let path = format!("/v1/accounts/w/{action}/corrections");
        let history = node.ask("GET", &path, "").await.json();
        assert_eq!(history["key"], format!("w/{action}"));
    }
    // The history of `w`, and the account of `w/corrections`.
    let history = node.ask("GET", "/v1/accounts/w/corrections", "").await;
    assert_eq!(
        history.json()["code"],
        "no_such_account",
        "{}",
        history.body
    );
    let account = node.ask("GET", "/v1/accounts/w/%63orrections", "").await;
    assert_eq!(account.json()["key"], "w/corrections", "{}", account.body);
    let account = node.ask("GET", "/v1/accounts/w/reset", "").await;
    assert_eq!(account.json()["key"], "w/reset", "{}", account.body);
    node.running.shutdown().await;
}

#[tokio::test]
async fn who_corrects_is_a_text_of_bounded_length() {
    let node = node().await;
    let long = format!("Leasehold-By: {}", "x".repeat(129));
    for headers in [
        &[long.as_str()][..],
        &["Leasehold-By: a", "Leasehold-By: b"],
    ] {
        let reply = ask(
            node.running.admin_addr(),
            "POST",
            "/v1/accounts/w/a/reset",
            headers,
            r#"{"reason":"try"}"#,
        )
        .await;
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert_eq!(reply.json()["code"], "invalid_header");
    }
    let account = node.ask("GET", "/v1/accounts/w/a", "").await;
    assert_eq!(account.status, 404, "nothing was opened: {}", account.body);
    node.running.shutdown().await;
}
