//! Where a token is never seen: a log with everything in it, metrics, errors, what the API
//! says of anything.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use crate::{
    ground::{Guarded, Token, identity},
    stream::Gateway,
};

/// A log that a test can read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// The only test of this program that sets the log up: it sees what all of them cause.
#[tokio::test]
async fn a_token_is_seen_in_no_log_no_metric_and_no_answer() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_env_filter("trace")
        .with_writer(move || writer.clone())
        .init();
    let [edge, otto, wrong] = [(); 3].map(|()| Token::new());
    let others = [
        identity("edge", "gateway", "keys = [\"acme/*\"]", &edge),
        identity("otto", "operator", "", &otto),
    ];
    let node = Guarded::start(&others.concat()).await;
    let policy = r#"{"policy":{"kind":"sliding_window","limit":9,"window_ms":60000}}"#;
    let mut seen = String::new();
    for (token, method, path, body) in [
        (&otto, "PUT", "/v1/budgets/acme/*", policy),
        (&otto, "PUT", "/v1/settings", "{}"),
        (&otto, "PUT", "/v1/policies/x", "{"),
        (&edge, "POST", "/v1/spend", r#"{"key":"acme/orders"}"#),
        (&edge, "POST", "/v1/spend", r#"{"key":"other/orders"}"#),
        (&edge, "GET", "/v1/policies", ""),
        (&wrong, "GET", "/v1/policies", ""),
        (&wrong, "GET", "/readyz", ""),
        (
            &otto,
            "POST",
            "/v1/accounts/acme/orders/reset",
            r#"{"reason":"x"}"#,
        ),
    ] {
        let reply = node.ask(method, path, &[&token.header()], body).await;
        seen.push_str(&format!("{:?} {}", reply.headers, reply.body));
    }
    let (mut gateway, _) = Gateway::open(node.addr(), &edge).await;
    gateway.ask(1, "acme/orders", 2).await;
    let unknown = Gateway::hello(node.addr(), Some(&wrong), &[])
        .await
        .err()
        .unwrap();
    seen.push_str(&format!("{unknown:?} {unknown}"));
    // Written into the wrong place of the file, by mistake.
    node.rewrite(&format!(
        "[[identity]]\nname = \"{} x\"\nrole = \"admin\"\n",
        wrong.text
    ));
    node.until(async || {
        node.as_admin("GET", "/readyz", "")
            .await
            .body
            .contains("identities_kept")
    })
    .await;
    for path in [
        "/metrics",
        "/readyz",
        "/openapi.json",
        "/v1/policies",
        "/v1/budgets",
        "/v1/budget-versions/acme/*",
        "/v1/accounts",
        "/v1/accounts/acme/orders/corrections",
        "/v1/sessions",
        "/v1/settings",
        "/v1/cluster",
        "/v1/replica/accounts",
        "/v1/explain?key=acme/orders",
        "/v1/backup",
    ] {
        seen.push_str(&node.as_admin("GET", path, "").await.body);
    }
    let written = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(
        written.contains("TRACE") && written.contains("identities"),
        "nothing was logged"
    );
    for token in [&edge, &otto, &wrong, &node.admin] {
        let secret = &token.text[16..];
        for (name, text) in [("the log", &written), ("an answer", &seen)] {
            if let Some(at) = text.find(secret) {
                let from = text[..at].rfind('\n').unwrap_or(0);
                panic!("{name} shows a token: {}", &text[from..at]);
            }
        }
    }
}
