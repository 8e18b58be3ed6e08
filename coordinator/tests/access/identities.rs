//! The identities file while the node runs, and what is done in whose name.

use std::time::{Duration, Instant};

use crate::ground::{Guarded, Token, identity};

#[tokio::test]
async fn a_revoked_token_ends_within_seconds_and_a_new_one_begins() {
    let [old, new] = [(); 2].map(|()| Token::new());
    let node = Guarded::start(&identity("vera", "viewer", "", &old)).await;
    let status = async |token: &Token| {
        node.ask("GET", "/v1/policies", &[&token.header()], "")
            .await
            .status
    };
    assert_eq!((status(&old).await, status(&new).await), (200, 401));
    node.rewrite(&identity("vera", "viewer", "", &new));
    node.until(async || status(&new).await == 200).await;
    assert_eq!(status(&old).await, 401);
}

#[tokio::test]
async fn a_token_ends_when_it_expires_though_nobody_touches_the_file() {
    let token = Token::new();
    let node = Guarded::start("").await;
    let at = std::time::SystemTime::now() + Duration::from_secs(15);
    let unix_us = at
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros();
    let expires = leasehold_calendar::utc_text(i64::try_from(unix_us).unwrap()).unwrap();
    node.rewrite(&format!(
        "[[identity]]\nname = \"vera\"\nrole = \"viewer\"\n{}",
        token.entry(Some(&expires))
    ));
    let status = async || {
        node.ask("GET", "/v1/policies", &[&token.header()], "")
            .await
            .status
    };
    node.until(async || status().await == 200).await;
    node.until(async || status().await == 401).await;
}

#[tokio::test]
async fn a_broken_file_keeps_the_old_one_and_says_so_until_it_is_mended() {
    let token = Token::new();
    let node = Guarded::start(&identity("vera", "viewer", "", &token)).await;
    let warning = async || {
        let ready = node.as_admin("GET", "/readyz", "").await.json();
        let code = ready["warnings"][0]["code"].as_str().map(str::to_owned);
        let detail = ready["warnings"][0]["detail"].to_string();
        code.map(|code| (code, detail))
    };
    assert_eq!(warning().await, None);
    node.rewrite("[[identity]]\nname = \"eve\"\nrole = \"emperor\"\n");
    node.until(async || warning().await.is_some()).await;
    let (code, detail) = warning().await.unwrap();
    assert_eq!(code, "identities_kept");
    assert!(
        detail.contains("line 10") && detail.contains("emperor"),
        "{detail}"
    );
    let reply = node
        .ask("GET", "/v1/policies", &[&token.header()], "")
        .await;
    assert_eq!(reply.status, 200);
    std::fs::remove_file(node.identities()).unwrap();
    node.until(async || {
        warning()
            .await
            .is_some_and(|(_, detail)| detail.contains("cannot be read"))
    })
    .await;
    assert_eq!(node.as_admin("GET", "/v1/policies", "").await.status, 200);
    node.rewrite("");
    node.until(async || warning().await.is_none()).await;
    let reply = node
        .ask("GET", "/v1/policies", &[&token.header()], "")
        .await;
    assert_eq!(reply.status, 401);
}

#[tokio::test]
async fn strangers_learn_from_the_probes_only_whether_the_node_is_ready() {
    let [gateway, viewer] = [(); 2].map(|()| Token::new());
    let others = [
        identity("edge", "gateway", "keys = [\"**\"]", &gateway),
        identity("vera", "viewer", "", &viewer),
    ];
    let node = Guarded::start(&others.concat()).await;
    let wrong = Token::new().header();
    for headers in [vec![], vec![gateway.header()], vec![wrong]] {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let reply = node.ask("GET", "/readyz", &headers, "").await;
        assert_eq!((reply.status, &*reply.body), (200, r#"{"status":"ready"}"#));
    }
    let reply = node.ask("GET", "/readyz", &[&viewer.header()], "").await;
    assert_eq!(reply.json()["leader"], 1);
    assert_eq!(node.ask("GET", "/metrics", &[], "").await.status, 401);
}

#[tokio::test]
async fn histories_name_who_it_was_whatever_they_say() {
    let otto = Token::new();
    let node = Guarded::start(&identity("otto", "operator", "", &otto)).await;
    let headers = [&*otto.header(), "leasehold-by: mallory"];
    let policy = r#"{"kind":"sliding_window","limit":9,"window_ms":60000}"#;
    let reply = node.ask("PUT", "/v1/policies/p", &headers, policy).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    node.must("PUT", "/v1/budgets/acme/*", r#"{"policy":"p"}"#)
        .await;
    let adjust = r#"{"id":"one","units":1,"reason":"x"}"#;
    let reply = node
        .ask("POST", "/v1/accounts/acme/a/adjust", &headers, adjust)
        .await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let versions = node
        .as_admin("GET", "/v1/policies/p/versions", "")
        .await
        .body;
    assert!(versions.contains(r#""by":"otto""#), "{versions}");
    let corrections = node
        .as_admin("GET", "/v1/accounts/acme/a/corrections", "")
        .await
        .body;
    assert!(corrections.contains(r#""by":"otto""#), "{corrections}");
    assert!(!format!("{versions}{corrections}").contains("mallory"));
    let versions = node
        .as_admin("GET", "/v1/budget-versions/acme/*", "")
        .await
        .body;
    assert!(versions.contains(r#""by":"ada""#), "{versions}");
}

#[tokio::test]
async fn who_keeps_guessing_is_slowed_and_whoever_shares_its_address_is_not() {
    let node = Guarded::start("").await;
    let guess = async || {
        let header = Token::new().header();
        let began = Instant::now();
        let reply = node.ask("GET", "/v1/policies", &[&header], "").await;
        (reply.status, began.elapsed())
    };
    for _ in 0..13 {
        assert_eq!(guess().await.0, 401);
    }
    // The fourteenth waits for 800 ms.
    let (status, took) = guess().await;
    assert_eq!(status, 401);
    assert!(took >= Duration::from_millis(800), "{took:?}");
    let guessing = guess();
    let knowing = async {
        for _ in 0..3 {
            assert_eq!(node.as_admin("GET", "/v1/policies", "").await.status, 200);
        }
        Instant::now()
    };
    let guessed = async {
        let (_, took) = guessing.await;
        assert!(took >= Duration::from_secs(1), "{took:?}");
        Instant::now()
    };
    let (known_at, guessed_at) = tokio::join!(knowing, guessed);
    assert!(
        known_at < guessed_at,
        "who knows did not wait for who guesses"
    );
}

#[tokio::test]
async fn a_node_does_not_start_with_an_identities_file_that_makes_no_sense() {
    use leasehold_coordinator::{
        config::{Config, ServeFlags},
        serve,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("identities.toml");
    let file = folder.path().join("node.toml");
    std::fs::write(
        &file,
        format!("[auth]\nidentities = '{}'\n", path.display()),
    )
    .unwrap();
    let any = Some("127.0.0.1:0".parse().unwrap());
    let flags = ServeFlags {
        config: Some(file),
        data_dir: Some(folder.path().join("data")),
        listen: any,
        peer_listen: any,
        ..ServeFlags::default()
    };
    for text in [None, Some("[[identity]]\nname = 1\n")] {
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let error = serve::start(Config::load(&flags).unwrap())
            .await
            .err()
            .unwrap();
        assert_eq!(
            (error.code(), error.exit_code()),
            ("invalid_identities", 2),
            "{error}"
        );
    }
}
