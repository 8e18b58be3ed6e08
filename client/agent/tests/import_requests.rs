//! What an import asks of a coordinator, and what it makes of the answers: a server that
//! remembers requests stands in for the coordinator.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    fs,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, Method, StatusCode, Uri},
};
use clap::Parser;
use leasehold_agent::import::{ImportError, ImportFlags, Imported};
use serde_json::{Value, json};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    import: ImportFlags,
}

const FILE: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: path
    rate_limit: {unit: minute, requests_per_unit: 5}
";

/// What a server was asked to change: `PUT /v1/policies/shop.user if-none-match: *`.
type Asked = Arc<Mutex<Vec<String>>>;

/// Serves what `answers` gives for a method and path; everything else succeeds.
async fn serve(answers: fn(&Method, &str) -> Option<(StatusCode, Value)>) -> (String, Asked) {
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    let answer = move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
        let mut line = format!("{method} {uri}");
        for name in ["if-match", "if-none-match", "leasehold-by"] {
            if let Some(value) = headers.get(name) {
                line.push_str(&format!(" {name}: {}", value.to_str().unwrap()));
            }
        }
        if uri.path().starts_with("/v1/policies/") && method == Method::PUT {
            let body: Value = serde_json::from_slice(&body).unwrap();
            line.push_str(&format!(
                " limit: {} failure_mode: {}",
                body["limit"], body["failure_mode"]
            ));
        }
        if uri.path() == "/v1/budgets" && method == Method::PUT {
            let body: Value = serde_json::from_slice(&body).unwrap();
            for budget in body["budgets"].as_array().unwrap() {
                line.push_str(&format!(" {}={}", budget["pattern"], budget["etag"]));
            }
        }
        if method != Method::GET {
            seen.lock().unwrap().push(line);
        }
        let answer = answers(&method, uri.path()).unwrap_or((StatusCode::OK, json!({})));
        async move { (answer.0, answer.1.to_string()) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    (url, asked)
}

async fn import(url: &str, more: &[&str]) -> Result<Imported, ImportError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("shop.yaml");
    fs::write(&file, FILE).unwrap();
    let arguments = [
        "import",
        file.to_str().unwrap(),
        "--by",
        "ops",
        "--coordinator",
        url,
    ];
    let arguments = arguments.into_iter().chain(more.iter().copied());
    Cli::parse_from(arguments).import.import().await
}

/// One policy and one budget of the two are there, otherwise than the file says, and a
/// budget that the file does not have.
fn half_there(method: &Method, path: &str) -> Option<(StatusCode, Value)> {
    if method != Method::GET {
        return None;
    }
    let policy = |name: &str| {
        json!({
            "name": name, "kind": "sliding_window", "limit": 9, "window_ms": 60_000, "public_name": "default",
            "failure_mode": "open", "version": 3, "etag": "000000000000aaaa"
        })
    };
    let budget = |pattern: &str, policy: &str| json!({"pattern": pattern, "policy": policy, "version": 1, "etag": "000000000000bbbb"});
    let answer = match path {
        "/v1/policies" => json!({"policies": [policy("shop.user"), policy("shop.gone")]}),
        "/v1/budgets" => {
            json!({"budgets": [budget("shop/user=*", "else"), budget("shop/gone=*", "shop.gone")]})
        }
        _ => return None,
    };
    Some((StatusCode::OK, answer))
}

#[tokio::test]
async fn every_change_is_made_only_if_what_was_seen_is_still_so() {
    let (url, asked) = serve(half_there).await;
    let imported = import(&url, &["--prune"]).await.unwrap();
    assert_eq!(
        *asked.lock().unwrap(),
        [
            "PUT /v1/policies/shop.user if-match: \"000000000000aaaa\" leasehold-by: ops limit: 10 failure_mode: \"open\"",
            "PUT /v1/policies/shop.path if-none-match: * leasehold-by: ops limit: 5 failure_mode: null",
            "PUT /v1/budgets leasehold-by: ops \"shop/user=*\"=\"000000000000bbbb\" \"shop/path=*\"=null",
            "DELETE /v1/budgets/shop/gone=* if-match: \"000000000000bbbb\" leasehold-by: ops",
            "DELETE /v1/policies/shop.gone if-match: \"000000000000aaaa\" leasehold-by: ops",
        ]
    );
    assert_eq!(
        imported.lines,
        [
            "~ policy shop.user  limit 9 -> 10",
            "+ policy shop.path  5 in any 60 s",
            "~ budget shop/user=*  policy else -> shop.user",
            "+ budget shop/path=*  shop.path",
            "- budget shop/gone=*",
            "- policy shop.gone",
            "6 things changed",
        ]
    );
}

#[tokio::test]
async fn a_dry_run_only_ever_asks_what_would_happen() {
    let (url, asked) = serve(half_there).await;
    let imported = import(&url, &["--dry-run", "--prune"]).await.unwrap();
    assert_eq!(imported.changes, 6);
    assert_eq!(
        *asked.lock().unwrap(),
        [
            "PUT /v1/policies/shop.user?dry_run=true if-match: \"000000000000aaaa\" leasehold-by: ops limit: 10 failure_mode: \"open\"",
            "PUT /v1/policies/shop.path?dry_run=true if-none-match: * leasehold-by: ops limit: 5 failure_mode: null",
        ]
    );
}

#[tokio::test]
async fn a_refusal_names_what_was_to_be_changed_and_its_field() {
    let (url, _) = serve(|method, path| {
        if method == Method::PUT && path == "/v1/budgets" {
            let problem = json!({
                "code": "precondition_failed", "title": "It is not as you saw it", "detail": "it was edited",
                "field": "budgets[1].etag"
            });
            return Some((StatusCode::PRECONDITION_FAILED, problem));
        }
        half_there(method, path)
    })
    .await;
    let error = import(&url, &[]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "budget shop/path=*, etag: It is not as you saw it: it was edited; 2 things changed before, somebody changed it \
         meanwhile: import again"
    );
    assert_eq!(
        (error.code(), error.exit_code()),
        ("precondition_failed", 1)
    );
}

#[tokio::test]
async fn a_server_that_is_no_coordinator_is_told_from_one_that_is_silent() {
    let (url, asked) = serve(|_, _| Some((StatusCode::OK, json!({"hello": "world"})))).await;
    let error = import(&url, &[]).await.unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("unintelligible", 1));
    let (url, _) = serve(|_, _| Some((StatusCode::NOT_FOUND, json!({})))).await;
    let error = import(&url, &[]).await.unwrap_err();
    assert!(
        error.to_string().contains("is that a coordinator?"),
        "{error}"
    );
    assert_eq!(error.exit_code(), 3);
    for url in ["https://127.0.0.1:7070", "127.0.0.1:7070", "http://a/b"] {
        let error = import(url, &[]).await.unwrap_err();
        assert_eq!(
            (error.code(), error.exit_code()),
            ("wrong_usage", 2),
            "{error}"
        );
    }
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_plan_is_written_without_a_coordinator_and_nothing_is_imported() {
    let (url, asked) = serve(|_, _| panic!("a plan asks nobody")).await;
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan.yaml");
    for url in [url.as_str(), "http://127.0.0.1:9"] {
        let written = import(url, &["--plan", plan.to_str().unwrap()]).await;
        assert_eq!(written.unwrap().changes, 0);
        let printed = import(url, &["--plan", "-"]).await.unwrap();
        let printed = printed.lines.join("\n") + "\n";
        assert!(printed.starts_with("policies:\n"), "{printed}");
        assert_eq!(
            printed.matches("shop.user").count(),
            2,
            "a policy and its budget: {printed}"
        );
        // But for the folder, which is another each time.
        let without_places = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.starts_with("  # "));
            lines.map(str::to_owned).collect()
        };
        let file = fs::read_to_string(&plan).unwrap();
        assert_eq!(without_places(&printed), without_places(&file));
    }
    assert_eq!(*asked.lock().unwrap(), Vec::<String>::new());
    let both = ["import", "file", "--plan", "-", "--dry-run"];
    assert!(Cli::try_parse_from(both).is_err());
}
