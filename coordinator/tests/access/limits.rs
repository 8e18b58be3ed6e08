//! What one identity may take, while others go on.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::Code;

use crate::{
    ground::{Guarded, Token, identity},
    stream::Gateway,
};

const WINDOW: &str = r#"{"policy":{"kind":"sliding_window","limit":100,"window_ms":3600000}}"#;

/// A node with two gateways for everything and these limits.
async fn node(limits: &str) -> (Guarded, Token, Token) {
    let [one, two] = [(); 2].map(|()| Token::new());
    let others = [
        identity("one", "gateway", "keys = [\"**\"]", &one),
        identity("two", "gateway", "keys = [\"**\"]", &two),
    ];
    let node = Guarded::start_with(&others.concat(), &format!("[limits]\n{limits}\n")).await;
    node.must("PUT", "/v1/budgets/**", WINDOW).await;
    (node, one, two)
}

async fn refused(node: &Guarded, limit: &str) -> bool {
    let metrics = node.as_admin("GET", "/metrics", "").await.body;
    metrics.contains(&format!("leasehold_refused_total{{limit=\"{limit}\"}}"))
}

#[tokio::test]
async fn an_identity_has_so_many_streams_and_others_have_theirs() {
    let (node, one, two) = node("streams_per_identity_max = 2").await;
    let (first, _) = Gateway::open(node.addr(), &one).await;
    let (_second, _) = Gateway::open(node.addr(), &one).await;
    let third = Gateway::hello(node.addr(), Some(&one), &[])
        .await
        .err()
        .unwrap();
    assert_eq!(third.code(), Code::ResourceExhausted);
    assert_eq!(
        third.metadata().get("leasehold-code").unwrap(),
        "too_many_requests"
    );
    assert!(refused(&node, "streams_per_identity_max").await);
    let (_other, _) = Gateway::open(node.addr(), &two).await;
    drop(first);
    node.until(async || Gateway::hello(node.addr(), Some(&one), &[]).await.is_ok())
        .await;
}

#[tokio::test]
async fn an_identity_has_so_many_requests_in_flight_and_others_have_theirs() {
    let (node, one, two) = node("requests_per_identity_max = 1").await;
    // Its body does not come.
    let mut slow = TcpStream::connect(node.addr()).await.unwrap();
    let head = format!(
        "POST /v1/spend HTTP/1.1\r\nhost: x\r\n{}\r\ncontent-length: 15\r\n\r\n",
        one.header()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let spend = async |token: &Token| {
        node.ask("POST", "/v1/spend", &[&token.header()], r#"{"key":"a/b"}"#)
            .await
    };
    node.until(async || spend(&one).await.status == 429).await;
    let reply = spend(&one).await;
    assert_eq!(reply.code(), "too_many_requests");
    assert!(
        reply.body.contains("requests_per_identity_max"),
        "{}",
        reply.body
    );
    assert!(refused(&node, "requests_per_identity_max").await);
    assert_eq!(spend(&two).await.status, 200);
    slow.write_all(b"{\"key\":\"a/bcd\"}"[..15].as_ref())
        .await
        .unwrap();
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).await.unwrap();
    node.until(async || spend(&one).await.status == 200).await;
}

#[tokio::test]
async fn an_identity_has_so_many_connections_that_it_asks_on() {
    let (node, one, two) = node("connections_per_identity_max = 2").await;
    let keep = async |token: &Token| {
        let mut stream = TcpStream::connect(node.addr()).await.unwrap();
        let head = format!(
            "POST /v1/spend HTTP/1.1\r\nhost: x\r\n{}\r\ncontent-length: 13\r\n\r\n{{\"key\":\"a/b\"}}",
            token.header()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        (stream, String::from_utf8_lossy(&answer[9..]).into_owned())
    };
    let (first, status) = keep(&one).await;
    assert_eq!(status, "200");
    let (_second, status) = keep(&one).await;
    assert_eq!(status, "200");
    assert_eq!(keep(&one).await.1, "429");
    assert!(refused(&node, "connections_per_identity_max").await);
    assert_eq!(keep(&two).await.1, "200");
    drop(first);
    node.until(async || keep(&one).await.1 == "200").await;
}

#[tokio::test]
async fn keys_that_one_identitys_callers_make_up_leave_room_for_others() {
    let (node, one, two) = node("accounts_per_identity_max = 3").await;
    let (mut gateway, _) = Gateway::open(node.addr(), &one).await;
    for key_id in 1..=3 {
        let grant = gateway.ask(key_id, &format!("made/{key_id}"), 1).await;
        assert_eq!((grant.granted_total, grant.refusal), (1, None));
    }
    let grant = gateway.ask(4, "made/4", 1).await;
    let refusal = grant.refusal.unwrap();
    assert_eq!(
        (grant.granted_total, &*refusal.code),
        (0, "too_many_accounts")
    );
    assert!(refusal.retry_after_us > 0);
    assert!(refused(&node, "accounts_per_identity_max").await);
    let spend = async |token: &Token, key: &str| {
        let body = format!(r#"{{"key":"{key}"}}"#);
        node.ask("POST", "/v1/spend", &[&token.header()], &body)
            .await
    };
    assert_eq!(spend(&one, "made/5").await.code(), "too_many_accounts");
    assert_eq!(spend(&one, "made/1").await.status, 200, "it is there");
    let (mut other, _) = Gateway::open(node.addr(), &two).await;
    let grant = other.ask(1, "made/4", 1).await;
    assert_eq!((grant.granted_total, grant.refusal), (1, None));
    // It is there now, whoever opened it.
    let again = gateway.ask(4, "made/4", 1).await;
    assert_eq!((again.granted_total, again.refusal), (1, None));
}
