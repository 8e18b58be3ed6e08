//! The HTTP API against a real node in a temporary folder. Long because it is a
//! list: one test a resource, read from top to bottom.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod as_code;
mod client;
mod corrections;
mod edits;
mod explain;
mod idempotency;
mod races;
mod three_nodes;
mod wall_clock;

use client::{Fixture, ask, serve_in};
use leasehold_coordinator::config::ServeFlags;

const WINDOW: &str = r#"{"kind":"sliding_window","limit":100,"window_ms":3600000}"#;
const BUCKET: &str =
    r#"{"kind":"token_bucket","capacity":20,"refill":100,"refill_period_ms":60000}"#;

#[tokio::test]
async fn policies_and_budgets_live_from_put_to_delete() {
    let node = Fixture::start().await;
    let text = node
        .transcript(&[
            ("GET", "/v1/policies", ""),
            ("PUT", "/v1/policies/orders-read", WINDOW),
            ("PUT", "/v1/policies/burst", BUCKET),
            ("GET", "/v1/policies/orders-read", ""),
            ("GET", "/v1/policies", ""),
            ("GET", "/v1/budgets", ""),
            ("PUT", "/v1/budgets/acme/*", r#"{"policy":"orders-read"}"#),
            ("PUT", "/v1/budgets/acme/**", r#"{"policy":{"kind":"sliding_window","limit":0,"window_ms":100,"slice_factor":2,"max_wait_ms":10,"failure_mode":"open","public_name":"free-tier"}}"#),
            ("GET", "/v1/budgets/acme/*", ""),
            ("PUT", "/v1/budgets/acme/tuned", r#"{"policy":{"kind":"token_bucket","capacity":20,"refill":100,"refill_period_ms":60000,"reserve":19,"demand_horizon_ms":250}}"#),
            ("GET", "/v1/budgets/acme/tuned", ""),
            ("GET", "/v1/budgets", ""),
            ("DELETE", "/v1/policies/orders-read", ""),
            ("DELETE", "/v1/budgets/acme/*", ""),
            ("DELETE", "/v1/budgets/acme/*", ""),
            ("DELETE", "/v1/policies/orders-read", ""),
            ("DELETE", "/v1/policies/orders-read", ""),
            ("GET", "/v1/policies/orders-read", ""),
            ("GET", "/v1/budgets/acme/*", ""),
            ("PUT", "/v1/budgets/acme/*", r#"{"policy":"orders-read"}"#),
        ])
        .await;
    insta::assert_snapshot!(text);
    node.running.shutdown().await;
}

#[tokio::test]
async fn every_malformed_body_is_refused_with_the_field_and_the_range() {
    let node = Fixture::start().await;
    let policy = "/v1/policies/p";
    let budget = "/v1/budgets/a/*";
    let long = format!("{{\"public_name\":\"{}\"}}", "x".repeat(70_000));
    let text = node
        .transcript(&[
            ("PUT", policy, ""),
            ("PUT", policy, "{"),
            ("PUT", policy, "[]"),
            ("PUT", policy, "{}"),
            (
                "PUT",
                policy,
                r#"{"kind":"fixed_window","limit":1,"window_ms":1000}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"period","limit":1,"period":"year","anchor":30,"anchor_month":2}"#,
            ),
            (
                "POST",
                "/v1/periods/correct",
                r#"{"period":"year","anchor":1,"anchor_month":7}"#,
            ),
            ("PUT", policy, r#"{"kind":"sliding_window","limit":1}"#),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"capacity":3}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"burst":3}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":-1,"window_ms":1000}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1.5,"window_ms":1000}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":"1","window_ms":1000}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":9007199254740992,"window_ms":1000}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":18446744073709551616,"window_ms":1000}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":0}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":99}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":2678400001}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":9007199254740991}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"token_bucket","capacity":1,"refill":1,"refill_period_ms":1}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"slice_factor":0.5}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"slice_factor":"2"}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"max_wait_ms":60001}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":5,"window_ms":1000,"reserve":5}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"token_bucket","capacity":0,"refill":1,"refill_period_ms":1000,"reserve":1}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":5,"window_ms":1000,"reserve":-1}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"demand_horizon_ms":9}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"demand_horizon_ms":10001}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"demand_horizon_ms":16.7}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"failure_mode":"maybe"}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"public_name":"é"}"#,
            ),
            (
                "PUT",
                policy,
                r#"{"kind":"sliding_window","limit":1,"window_ms":1000,"public_name":""}"#,
            ),
            ("PUT", policy, &long),
            ("PUT", "/v1/policies/a%2Fb", WINDOW),
            ("PUT", "/v1/policies/%FF", WINDOW),
            ("PUT", budget, r#"{"policy":7}"#),
            ("PUT", budget, r#"{"policy":"no such"}"#),
            (
                "PUT",
                budget,
                r#"{"policy":{"kind":"sliding_window","limit":-1,"window_ms":1000}}"#,
            ),
            (
                "PUT",
                budget,
                r#"{"policy":{"kind":"sliding_window","limit":1,"window_ms":1}}"#,
            ),
            (
                "PUT",
                budget,
                r#"{"policy":{"kind":"sliding_window","limit":1,"window_ms":1000,"x":1}}"#,
            ),
            ("PUT", budget, r#"{"polici":"p"}"#),
            ("POST", "/v1/spend", r#"{"units":1}"#),
            ("POST", "/v1/spend", r#"{"key":7}"#),
            ("POST", "/v1/spend", r#"{"key":"a","units":-1}"#),
            (
                "POST",
                "/v1/spend",
                r#"{"key":"a","units":9007199254740992}"#,
            ),
            ("POST", "/v1/spend", r#"{"key":"a","unit":1}"#),
            ("PUT", "/v1/settings", r#"{"session_ttl_ms":1}"#),
            ("PUT", "/v1/settings", r#"{"session_ttl":1}"#),
            (
                "PUT",
                "/v1/settings",
                r#"{"sync_interval_ms":9007199254740991}"#,
            ),
            ("PUT", "/v1/settings", r#"{"max_drift_ppm":4294967296}"#),
            ("PUT", "/v1/settings", r#"{"default_policy":"nobody"}"#),
            (
                "POST",
                "/v1/cluster/members",
                r#"{"node_id":0,"peer":"127.0.0.1:1"}"#,
            ),
            (
                "POST",
                "/v1/cluster/members",
                r#"{"node_id":2,"peer":"127.0.0.1"}"#,
            ),
            ("POST", "/v1/cluster/leader", r#"{"node_id":"two"}"#),
        ])
        .await;
    insta::assert_snapshot!(text);
    assert_eq!(
        node.ask("GET", "/v1/policies", "").await.body,
        r#"{"policies":[]}"#,
        "nothing changed"
    );
    assert_eq!(
        node.ask("GET", "/v1/budgets", "").await.body,
        r#"{"budgets":[]}"#,
        "nothing changed"
    );
    node.running.shutdown().await;
}

#[tokio::test]
async fn every_malformed_path_is_refused() {
    let node = Fixture::start().await;
    let long = format!("/v1/accounts/{}", "a".repeat(513));
    let deep = format!("/v1/accounts/{}a", "a/".repeat(16));
    let text = node
        .transcript(&[
            ("GET", "/", ""),
            ("GET", "/v1/nothing", ""),
            ("PATCH", "/v1/policies/p", ""),
            ("DELETE", "/v1/spend", ""),
            ("GET", "/v1/accounts/", ""),
            ("GET", "/v1/accounts//a", ""),
            ("GET", "/v1/accounts/a//b", ""),
            ("GET", "/v1/accounts/a/", ""),
            ("GET", "/v1/accounts/a/../b", ""),
            ("GET", "/v1/accounts/%2E", ""),
            ("GET", "/v1/accounts/a*", ""),
            ("GET", "/v1/accounts/a%", ""),
            ("GET", "/v1/accounts/%FF", ""),
            ("GET", "/v1/accounts/a?b", ""),
            ("GET", &long, ""),
            ("GET", &deep, ""),
            ("GET", "/v1/accounts?limit=0", ""),
            ("GET", "/v1/accounts?limit=1001", ""),
            ("GET", "/v1/accounts?limit=many", ""),
            ("GET", "/v1/accounts?offset=1", ""),
            ("GET", "/v1/accounts?cursor=a//b", ""),
            ("PUT", "/v1/budgets/**/a", r#"{"policy":"p"}"#),
            ("PUT", "/v1/budgets/a*b", r#"{"policy":"p"}"#),
            ("GET", "/v1/accounts/never/used", ""),
            ("GET", "/v1/sessions/7", ""),
            ("GET", "/v1/sessions/00000000000000000000000000000007", ""),
            (
                "DELETE",
                "/v1/sessions/00000000000000000000000000000007",
                "",
            ),
            ("DELETE", "/v1/cluster/members/x", ""),
            ("DELETE", "/v1/cluster/members/9", ""),
            ("POST", "/v1/cluster/leader", r#"{"node_id":9}"#),
        ])
        .await;
    insta::assert_snapshot!(text);
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_spend_is_admitted_up_to_the_limit_and_then_denied_with_the_draft_headers() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/policies/p", WINDOW).await;
    node.must("PUT", "/v1/budgets/acme/*", r#"{"policy":"p"}"#)
        .await;
    let admitted = node
        .ask(
            "POST",
            "/v1/spend",
            r#"{"key":"acme/orders.read","units":99}"#,
        )
        .await;
    assert_eq!(admitted.status, 200);
    assert_eq!(
        admitted.body,
        r#"{"admitted":true,"key":"acme/orders.read","units":99,"free":1}"#
    );
    assert_eq!(
        admitted.header("ratelimit-policy"),
        Some(r#""default";q=100;w=3600"#)
    );
    assert!(
        admitted
            .header("ratelimit")
            .unwrap()
            .starts_with(r#""default";r=1;t=36"#),
        "{:?}",
        admitted.headers
    );
    assert_eq!(admitted.header("retry-after"), None);

    let denied = node
        .ask(
            "POST",
            "/v1/spend",
            r#"{"key":"acme/orders.read","units":2}"#,
        )
        .await;
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.header("content-type"),
        Some("application/problem+json")
    );
    let retry: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_590..=3_610).contains(&retry), "{retry}");
    assert!(
        denied
            .header("ratelimit")
            .unwrap()
            .starts_with(r#""default";r=1;t=36"#),
        "{:?}",
        denied.headers
    );
    assert_eq!(denied.json()["code"], "limit");
    assert_eq!(
        denied.json()["violated-policies"],
        serde_json::json!(["default"])
    );

    // The last unit is still there, and units default to 1.
    assert_eq!(
        node.ask("POST", "/v1/spend", r#"{"key":"acme/orders.read"}"#)
            .await
            .status,
        200
    );
    assert_eq!(
        node.ask("POST", "/v1/spend", r#"{"key":"acme/orders.read"}"#)
            .await
            .status,
        429
    );
    // Nothing is free, and nothing was asked for.
    let nothing = node
        .ask(
            "POST",
            "/v1/spend",
            r#"{"key":"acme/orders.read","units":0}"#,
        )
        .await;
    assert_eq!(
        (nothing.status, nothing.json()["free"].as_u64()),
        (200, Some(0))
    );

    let account = node
        .ask("GET", "/v1/accounts/acme/orders.read", "")
        .await
        .json();
    assert_eq!(
        (account["counted"].as_u64(), account["free"].as_u64()),
        (Some(100), Some(0))
    );
    assert_eq!(account["lifetime"]["central"], 100);
    node.running.shutdown().await;
}

#[tokio::test]
async fn what_can_never_be_admitted_is_denied_without_retry_after() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/budgets/a", &format!(r#"{{"policy":{WINDOW}}}"#))
        .await;
    node.must(
        "PUT",
        "/v1/budgets/zero",
        r#"{"policy":{"kind":"sliding_window","limit":0,"window_ms":1000}}"#,
    )
    .await;
    let text = node
        .transcript(&[
            ("POST", "/v1/spend", r#"{"key":"a","units":101}"#),
            (
                "POST",
                "/v1/spend",
                r#"{"key":"a","units":9007199254740991}"#,
            ),
            ("POST", "/v1/spend", r#"{"key":"zero","units":1}"#),
            ("POST", "/v1/spend", r#"{"key":"zero","units":0}"#),
            ("POST", "/v1/spend", r#"{"key":"nobody/knows","units":1}"#),
        ])
        .await;
    insta::assert_snapshot!(text);
    node.running.shutdown().await;
}

#[tokio::test]
async fn keys_are_taken_from_the_raw_path() {
    let node = Fixture::start().await;
    node.must(
        "PUT",
        "/v1/budgets/**",
        &format!(r#"{{"policy":{WINDOW}}}"#),
    )
    .await;
    // (spent as, then read as)
    let same = [
        ("a%2Fb", "a%2fb"),
        ("a/b", "%61/b"),
        ("orders.read", "orders.read"),
        ("a|b", "a%7Cb"),
        ("é/日本", "%C3%A9/%E6%97%A5%E6%9C%AC"),
        ("a?b", "a%3Fb"),
        ("a#b", "a%23b"),
        ("50%25", "50%25"),
        ("a b", "a%20b"),
        ("a_b/c", "a_b/c"),
        ("a/b_c", "a/b_c"),
        ("...", "..."),
    ];
    for (units, (spent_as, read_as)) in (1..).zip(same) {
        let body = serde_json::json!({ "key": spent_as, "units": units });
        let spent = node.ask("POST", "/v1/spend", &body.to_string()).await;
        assert_eq!(spent.status, 200, "{spent_as}: {}", spent.body);
        let account = node
            .ask("GET", &format!("/v1/accounts/{read_as}"), "")
            .await;
        assert_eq!(
            account.json()["counted"].as_u64(),
            Some(units),
            "{read_as}: {}",
            account.body
        );
    }
    node.running.shutdown().await;
}

#[tokio::test]
async fn accounts_come_page_by_page_in_the_order_of_their_keys() {
    let node = Fixture::start().await;
    node.must(
        "PUT",
        "/v1/budgets/**",
        &format!(r#"{{"policy":{WINDOW}}}"#),
    )
    .await;
    for i in 0..25 {
        node.must("POST", "/v1/spend", &format!(r#"{{"key":"acme/{i:02}"}}"#))
            .await;
        node.must("POST", "/v1/spend", &format!(r#"{{"key":"other/{i:02}"}}"#))
            .await;
    }
    let mut keys: Vec<String> = Vec::new();
    let mut cursor = String::new();
    let mut pages = 0;
    loop {
        let page = node
            .ask(
                "GET",
                &format!("/v1/accounts?prefix=acme%2F&limit=10{cursor}"),
                "",
            )
            .await
            .json();
        pages += 1;
        keys.extend(
            page["accounts"]
                .as_array()
                .unwrap()
                .iter()
                .map(|a| a["key"].as_str().unwrap().to_owned()),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let expected: Vec<String> = (0..25).map(|i| format!("acme/{i:02}")).collect();
    assert_eq!((pages, keys), (3, expected));
    let all = node.ask("GET", "/v1/accounts", "").await.json();
    assert_eq!(all["accounts"].as_array().unwrap().len(), 50);
    assert_eq!(all["next_cursor"], serde_json::Value::Null);
    node.running.shutdown().await;
}

#[tokio::test]
async fn settings_keep_what_an_edit_does_not_name() {
    let node = Fixture::start().await;
    node.must("PUT", "/v1/policies/basic", WINDOW).await;
    let text = node
        .transcript(&[
            ("GET", "/v1/settings", ""),
            (
                "PUT",
                "/v1/settings",
                r#"{"session_ttl_ms":20000,"default_policy":"basic"}"#,
            ),
            ("PUT", "/v1/settings", r#"{"sync_interval_ms":2000}"#),
            ("POST", "/v1/spend", r#"{"key":"nobody/knows","units":0}"#),
            ("DELETE", "/v1/policies/basic", ""),
            ("PUT", "/v1/settings", r#"{"default_policy":null}"#),
            ("DELETE", "/v1/policies/basic", ""),
        ])
        .await;
    insta::assert_snapshot!(text);
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_time_zone_that_nobody_knows_is_refused_and_one_in_other_letters_is_named() {
    let node = Fixture::start().await;
    let put = async |zone: &str| {
        let body = format!(r#"{{"kind":"period","limit":5,"period":"day","time_zone":"{zone}"}}"#);
        node.ask("PUT", "/v1/policies/daily", &body).await
    };
    let refused = put("Berlin").await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    let refused = refused.json();
    assert_eq!(refused["field"], "time_zone");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("did you mean Europe/Berlin?"), "{detail}");
    let made = put("europe/berlin").await;
    assert!(made.status < 300, "{}", made.body);
    let shown = node.ask("GET", "/v1/policies/daily", "").await;
    assert!(shown.body.contains("\"Europe/Berlin\""), "{}", shown.body);
    node.running.shutdown().await;
}

#[tokio::test]
async fn the_cluster_shows_its_one_member_leading() {
    let node = Fixture::start().await;
    let cluster = node.ask("GET", "/v1/cluster", "").await.json();
    assert_eq!(cluster["leader"], 1);
    assert_eq!(cluster["answered_by"], 1);
    let time = cluster["majority_wall_time"].as_str().unwrap();
    assert!(
        time.starts_with('2') && time.ends_with('Z') && time.len() == 20,
        "{time}"
    );
    let member = &cluster["members"][0];
    assert_eq!(member["role"], "voter");
    assert_eq!(
        member["format_version"],
        leasehold_ledger::FORMAT_VERSION,
        "{cluster}"
    );
    assert_eq!(member["leader"], true);
    assert_eq!(
        member["client_url"],
        format!("http://{}", node.running.client_addr())
    );
    assert_eq!(
        member["digest"]["value"].as_str().map(str::len),
        Some(16),
        "{cluster}"
    );
    let last = node.ask("DELETE", "/v1/cluster/members/1", "").await;
    assert_eq!(
        (last.status, last.json()["code"].as_str()),
        (409, Some("last_voter"))
    );
    node.running.shutdown().await;
}

#[tokio::test]
async fn probes_metrics_and_the_description_are_served() {
    let node = Fixture::start().await;
    assert_eq!(
        node.ask("GET", "/healthz", "").await.body,
        r#"{"status":"alive","node_id":1}"#
    );
    assert_eq!(
        node.ask("GET", "/readyz", "").await.body,
        r#"{"status":"ready","node_id":1,"leader":1}"#
    );
    let description = node.ask("GET", "/openapi.json", "").await.json();
    assert!(description["openapi"].as_str().unwrap().starts_with("3."));

    node.must("PUT", "/v1/budgets/a", &format!(r#"{{"policy":{WINDOW}}}"#))
        .await;
    node.must("POST", "/v1/spend", r#"{"key":"a"}"#).await;
    let metrics = node.ask("GET", "/metrics", "").await;
    assert!(
        metrics
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    // Other tests may share the process and its counters, so only presence counts.
    for name in [
        "leasehold_leader 1",
        "leasehold_leader_known 1",
        "leasehold_term 1",
        "leasehold_members 1",
        "leasehold_accounts 1",
        "leasehold_sessions 0",
        "leasehold_leases 0",
        "leasehold_outstanding_units 0",
        "leasehold_entries_total ",
        "leasehold_commit_seconds_bucket{",
        "leasehold_entry_reports_bucket{",
        "leasehold_wal_sync_seconds_bucket{",
        "leasehold_http_requests_total{class=\"2xx\"} ",
    ] {
        let found = metrics.body.lines().any(|line| line.starts_with(name));
        assert!(found, "{name}:\n{}", metrics.body);
    }
    node.running.shutdown().await;
}

#[tokio::test]
async fn requests_from_other_web_sites_change_nothing() {
    let node = Fixture::start().await;
    let addr = node.running.admin_addr();
    for said in [
        "sec-fetch-site: cross-site",
        "origin: http://evil.example",
        "origin: null",
    ] {
        let hostile = ask(addr, "POST", "/v1/spend", &[said], r#"{"key":"a"}"#).await;
        assert_eq!(
            (hostile.status, hostile.json()["code"].as_str()),
            (403, Some("cross_origin")),
            "{said}"
        );
    }
    let same = [&*format!("origin: http://{addr}")];
    let own = ask(addr, "POST", "/v1/spend", &same, r#"{"key":"a"}"#).await;
    assert_ne!(own.status, 403, "{}", own.body);
    let own = ask(
        addr,
        "GET",
        "/v1/budgets",
        &["sec-fetch-site: cross-site"],
        "",
    )
    .await;
    assert_eq!(
        own.status, 200,
        "reading is left to the browser's own rules"
    );
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_separate_admin_address_keeps_the_api_off_the_gateways_port() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ServeFlags {
        admin_listen: Some("127.0.0.1:0".parse().unwrap()),
        ..ServeFlags::default()
    };
    let running = serve_in(&folder, flags).await;
    let (client, admin) = (running.client_addr(), running.admin_addr());
    assert_ne!(client, admin);
    assert_eq!(ask(admin, "GET", "/v1/budgets", &[], "").await.status, 200);
    assert_eq!(ask(client, "GET", "/v1/budgets", &[], "").await.status, 404);
    assert_eq!(ask(client, "GET", "/readyz", &[], "").await.status, 200);
    running.shutdown().await;
}

#[tokio::test]
async fn the_bound_addresses_are_written_down() {
    let node = Fixture::start().await;
    let text = std::fs::read_to_string(node.folder.path().join("data/addresses.json")).unwrap();
    let addresses: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(addresses["client"], node.running.client_addr().to_string());
    assert_eq!(addresses["node_id"], 1);
    assert_eq!(addresses["pid"], std::process::id());
    assert!(
        addresses["peer"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:")
    );
    node.running.shutdown().await;
}

#[tokio::test]
async fn nothing_counted_is_lost_by_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let running = serve_in(&folder, ServeFlags::default()).await;
    let addr = running.admin_addr();
    let rule = format!(r#"{{"policy":{WINDOW}}}"#);
    let put = ask(addr, "PUT", "/v1/budgets/a", &[], &rule).await;
    assert_eq!(put.status, 200, "{}", put.body);
    let spent = ask(addr, "POST", "/v1/spend", &[], r#"{"key":"a","units":40}"#).await;
    assert_eq!(spent.status, 200, "{}", spent.body);
    running.shutdown().await;

    let running = serve_in(&folder, ServeFlags::default()).await;
    let reply = ask(running.admin_addr(), "GET", "/v1/accounts/a", &[], "").await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let account = reply.json();
    assert_eq!(
        (account["counted"].as_u64(), account["free"].as_u64()),
        (Some(40), Some(60))
    );
    running.shutdown().await;
}
