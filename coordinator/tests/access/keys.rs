//! A gateway uses the keys of its patterns, and cannot tell another key from one that does
//! not exist.

use leasehold_proto::v1::{KeyGrant, KeyReport};

use crate::{
    ground::{Guarded, Reply, Token, identity},
    stream::{Gateway, asking},
};

const WINDOW: &str = r#"{"policy":{"kind":"sliding_window","limit":100,"window_ms":3600000}}"#;

async fn node(keys: &str) -> (Guarded, Token) {
    let edge = Token::new();
    let others = identity("edge", "gateway", &format!("keys = {keys}"), &edge);
    let node = Guarded::start(&others).await;
    for pattern in ["acme/*", "globex/*"] {
        node.must("PUT", &format!("/v1/budgets/{pattern}"), WINDOW)
            .await;
    }
    (node, edge)
}

async fn spend(node: &Guarded, token: &Token, key: &str, more: &[&str]) -> Reply {
    let body = format!(r#"{{"key":"{key}"}}"#);
    let authorization = token.header();
    let mut headers = vec![&*authorization];
    headers.extend(more);
    node.ask("POST", "/v1/spend", &headers, &body).await
}

/// What an answer shows, but for the key's own name and the time.
fn shown(reply: &Reply, key: &str) -> String {
    let headers = reply
        .headers
        .iter()
        .filter(|(name, _)| name != "date" && name != "content-length");
    let headers: Vec<String> = headers
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let body = reply.body.replace(key, "KEY");
    format!("{} {} {body}", reply.status, headers.join(" | "))
}

/// What a stream is told of a key, but for what it calls it.
fn told(grant: &KeyGrant) -> KeyGrant {
    KeyGrant {
        key_id: 0,
        basis_seq: 0,
        ..grant.clone()
    }
}

#[tokio::test]
async fn a_spend_of_a_foreign_key_is_answered_like_one_of_a_key_without_a_budget() {
    let (node, edge) = node("[\"acme/*\"]").await;
    assert_eq!(spend(&node, &edge, "acme/orders", &[]).await.status, 200);
    assert_eq!(
        spend(&node, &node.admin, "globex/orders", &[]).await.status,
        200
    );
    for more in [vec![], vec!["idempotency-key: one"]] {
        let foreign = spend(&node, &edge, "globex/orders", &more).await;
        let nothing = spend(&node, &edge, "nobody/orders", &more).await;
        assert_eq!(foreign.code(), "no_budget");
        assert_eq!(
            shown(&foreign, "globex/orders"),
            shown(&nothing, "nobody/orders")
        );
    }
    // One that the gateway used for something else.
    assert_eq!(
        spend(&node, &edge, "acme/orders", &["idempotency-key: two"])
            .await
            .status,
        200
    );
    let foreign = spend(&node, &edge, "globex/orders", &["idempotency-key: two"]).await;
    let nothing = spend(&node, &edge, "nobody/orders", &["idempotency-key: two"]).await;
    assert_eq!(foreign.code(), "idempotency_key_reused");
    assert_eq!(
        shown(&foreign, "globex/orders"),
        shown(&nothing, "nobody/orders")
    );

    let account = node
        .as_admin("GET", "/v1/accounts/globex/orders", "")
        .await
        .json();
    assert_eq!(account["counted"], 1, "the administrator's alone");
    let own = spend(
        &node,
        &node.admin,
        "globex/orders",
        &["idempotency-key: two"],
    )
    .await;
    assert_eq!(own.status, 200, "each identity has its own: {}", own.body);
}

#[tokio::test]
async fn where_every_key_has_a_budget_a_foreign_one_has_none() {
    let (node, edge) = node("[\"acme/*\"]").await;
    node.must(
        "PUT",
        "/v1/policies/default",
        r#"{"kind":"sliding_window","limit":5,"window_ms":60000}"#,
    )
    .await;
    let settings = node.as_admin("GET", "/v1/settings", "").await.json();
    let mut settings = settings.as_object().unwrap().clone();
    settings.insert("default_policy".to_owned(), "default".into());
    settings.remove("etag");
    node.must(
        "PUT",
        "/v1/settings",
        &serde_json::to_string(&settings).unwrap(),
    )
    .await;
    assert_eq!(
        spend(&node, &node.admin, "nobody/orders", &[]).await.status,
        200
    );
    let mine = spend(&node, &edge, "nobody/orders", &[]).await;
    assert_eq!((mine.status, &*mine.code()), (429, "no_budget"));
    let (mut gateway, _) = Gateway::open(node.addr(), &edge).await;
    let foreign = gateway.ask(1, "globex/orders", 3).await;
    let nothing = gateway.ask(2, "nobody/orders", 3).await;
    assert_eq!(told(&foreign), told(&nothing));
    assert_eq!(foreign.refusal.unwrap().code, "no_budget");
}

#[tokio::test]
async fn a_stream_is_granted_nothing_of_a_foreign_key_and_told_nothing_of_it() {
    let (node, edge) = node("[\"acme/*\"]").await;
    spend(&node, &node.admin, "globex/orders", &[]).await;
    let (mut gateway, _) = Gateway::open(node.addr(), &edge).await;
    let own = gateway.ask(1, "acme/orders", 3).await;
    assert_eq!((own.granted_total, own.refusal), (3, None));
    for wanted in [3, 0, 1_000] {
        let foreign = gateway.ask(2, "globex/orders", wanted).await;
        let nothing = gateway.ask(3, "nobody/orders", wanted).await;
        assert_eq!(told(&foreign), told(&nothing), "{wanted}");
        assert_eq!(
            (foreign.granted_total, foreign.free, foreign.policy),
            (0, 0, None)
        );
    }
    // A lease that it never had.
    let invented = |key_id, key: &str| KeyReport {
        generation: 3,
        granted_seen: 5,
        spent_total: 5,
        ..asking(key_id, key, 2)
    };
    let foreign = gateway.sync(vec![invented(2, "globex/orders")]).await;
    let nothing = gateway.sync(vec![invented(3, "nobody/orders")]).await;
    assert_eq!(told(&foreign[0]), told(&nothing[0]));
    let account = node
        .as_admin("GET", "/v1/accounts/globex/orders", "")
        .await
        .json();
    assert_eq!(
        (&account["counted"], &account["outstanding"]),
        (&1.into(), &0.into())
    );
    // What becomes of it concerns others.
    node.must(
        "POST",
        "/v1/accounts/globex/orders/reset",
        r#"{"reason":"x"}"#,
    )
    .await;
    node.must(
        "POST",
        "/v1/accounts/acme/orders/reset",
        r#"{"reason":"x"}"#,
    )
    .await;
    let pushed = gateway.pushed().await;
    assert_eq!(
        pushed.iter().map(|grant| grant.key_id).collect::<Vec<_>>(),
        [1]
    );
}

#[tokio::test]
async fn narrowed_patterns_are_in_force_on_open_streams_and_what_was_granted_is_accounted_for() {
    let (node, edge) = node("[\"acme/*\", \"globex/*\"]").await;
    let (mut gateway, _) = Gateway::open(node.addr(), &edge).await;
    let lent = gateway.ask(1, "globex/orders", 10).await;
    assert_eq!(lent.granted_total, 10);
    // More than there is: the rest is waited for.
    let body = r#"{"key":"globex/orders","units":90}"#;
    let header = node.admin.header();
    assert_eq!(
        node.ask("POST", "/v1/spend", &[&header], body).await.status,
        200
    );
    let waiting = KeyReport {
        generation: lent.generation,
        granted_seen: 10,
        left: 10,
        ..asking(1, "globex/orders", 5)
    };
    gateway.sync(vec![waiting.clone()]).await;
    node.rewrite(&identity("edge", "gateway", "keys = [\"acme/*\"]", &edge));
    let no_budget = async |gateway: &mut Gateway| loop {
        let pushed = gateway.pushed().await;
        if let Some(refusal) = pushed[0].refusal.clone()
            && refusal.code == "no_budget"
        {
            return pushed;
        }
    };
    let pushed = no_budget(&mut gateway).await;
    assert_eq!(
        (pushed[0].key_id, pushed[0].free, &pushed[0].policy),
        (1, 0, &None)
    );
    // Units come free, and are not for it.
    node.must(
        "POST",
        "/v1/accounts/globex/orders/reset",
        r#"{"reason":"x"}"#,
    )
    .await;
    let report = KeyReport {
        spent_total: 4,
        left: 6,
        ..waiting.clone()
    };
    let grants = gateway.sync(vec![report]).await;
    assert_eq!(grants[0].refusal.clone().unwrap().code, "no_budget");
    assert_eq!(grants[0].granted_total, 10, "what it has, it has");
    assert_eq!(
        spend(&node, &edge, "globex/orders", &[]).await.code(),
        "no_budget"
    );
    let account = node
        .as_admin("GET", "/v1/accounts/globex/orders", "")
        .await
        .json();
    assert_eq!(
        (&account["counted"], &account["outstanding"]),
        (&4.into(), &6.into())
    );
    // And back.
    node.rewrite(&identity("edge", "gateway", "keys = [\"*/orders\"]", &edge));
    let pushed = gateway.pushed().await;
    assert!(
        pushed[0].ask_anew && pushed[0].policy.is_some(),
        "{pushed:?}"
    );
    let report = KeyReport {
        spent_total: 4,
        left: 6,
        ..waiting
    };
    let grants = gateway.sync(vec![report]).await;
    assert_eq!(grants[0].refusal, None);
    let account = node
        .as_admin("GET", "/v1/accounts/globex/orders", "")
        .await
        .json();
    assert_eq!(account["outstanding"], 11, "five more");
}
