//! A session is whose it is: by real tokens over real sockets.

use leasehold_proto::v1::{SettledLease, coordinator_message::Kind as Told};
use tonic::Code;

use crate::{
    ground::{Guarded, Token, identity},
    stream::Gateway,
};

const WINDOW: &str = r#"{"policy":{"kind":"sliding_window","limit":100,"window_ms":3600000}}"#;

async fn two_gateways() -> (Guarded, Token, Token) {
    let [one, two] = [(); 2].map(|()| Token::new());
    let others = [
        identity("one", "gateway", "keys = [\"acme/*\"]", &one),
        identity("two", "gateway", "keys = [\"acme/*\"]", &two),
    ];
    let node = Guarded::start(&others.concat()).await;
    node.must("PUT", "/v1/budgets/acme/*", WINDOW).await;
    (node, one, two)
}

async fn identity_of(node: &Guarded, session: &[u8]) -> String {
    let id: String = session.iter().map(|byte| format!("{byte:02x}")).collect();
    let reply = node
        .as_admin("GET", &format!("/v1/sessions/{id}"), "")
        .await;
    reply.json()["identity"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_session_is_opened_as_who_the_token_says_and_by_gateways_alone() {
    let (node, one, two) = two_gateways().await;
    for token in [&one, &two] {
        let (_gateway, opened) = Gateway::open(node.addr(), token).await;
        let expected = if token.id == one.id { "one" } else { "two" };
        assert_eq!(identity_of(&node, &opened.session).await, expected);
    }
    let refused = async |token| Gateway::hello(node.addr(), token, &[]).await.err().unwrap();
    let admin = refused(Some(&node.admin)).await;
    assert_eq!(admin.code(), Code::PermissionDenied);
    assert_eq!(refused(None).await.code(), Code::Unauthenticated);
    let unknown = refused(Some(&Token::new())).await;
    assert_eq!(unknown.code(), Code::Unauthenticated);
    assert_eq!(
        unknown.metadata().get("leasehold-code").unwrap(),
        "unauthenticated"
    );
}

#[tokio::test]
async fn a_stolen_session_is_neither_resumed_nor_settled_by_another_identity() {
    let (node, one, two) = two_gateways().await;
    let (mut owner, opened) = Gateway::open(node.addr(), &one).await;
    let grant = owner.ask(1, "acme/orders", 10).await;
    assert_eq!(grant.granted_total, 10);

    let mut thief = Gateway::hello(node.addr(), Some(&two), &opened.session)
        .await
        .unwrap();
    assert_eq!(thief.refused().await.code, "identity_mismatch");

    let (mut thief, _) = Gateway::open(node.addr(), &two).await;
    let nothing_spent = SettledLease {
        key: "acme/orders".to_owned(),
        generation: grant.generation,
        spent_total: 0,
    };
    let told = thief.settle(&opened.session, vec![nothing_spent]).await;
    let Told::Refused(refused) = told else {
        panic!("{told:?}");
    };
    assert_eq!(refused.code, "identity_mismatch");

    let account = node
        .as_admin("GET", "/v1/accounts/acme/orders", "")
        .await
        .json();
    assert_eq!(account["outstanding"], 10);
    assert!(
        !owner.sync(Vec::new()).await.is_empty()
            || owner.ask(1, "acme/orders", 0).await.key_id == 1
    );
    drop(owner);
    let mut again = Gateway::hello(node.addr(), Some(&one), &opened.session)
        .await
        .unwrap();
    let told = again.next().await;
    assert!(matches!(told, Told::Opened(_)), "its owner may: {told:?}");
}

#[tokio::test]
async fn a_stream_ends_when_its_token_is_revoked_and_goes_on_with_another_one() {
    let (node, old, two) = two_gateways().await;
    let (mut gateway, opened) = Gateway::open(node.addr(), &old).await;
    gateway.ask(1, "acme/orders", 5).await;
    let (mut other, _) = Gateway::open(node.addr(), &two).await;
    let new = Token::new();
    let kept = identity("two", "gateway", "keys = [\"acme/*\"]", &two);
    node.rewrite(&format!(
        "{}{kept}",
        identity("one", "gateway", "keys = [\"acme/*\"]", &new)
    ));
    assert_eq!(gateway.refused().await.code, "unauthenticated");
    other.sync(Vec::new()).await;
    let mut again = Gateway::hello(node.addr(), Some(&new), &opened.session)
        .await
        .unwrap();
    let Told::Opened(resumed) = again.next().await else {
        panic!("the identity is the same");
    };
    assert_eq!(resumed.leases[0].granted_total, 5);
}

#[tokio::test]
async fn a_stream_ends_when_its_identity_is_removed_expires_or_becomes_something_else() {
    let (node, one, two) = two_gateways().await;
    let (mut first, _) = Gateway::open(node.addr(), &one).await;
    let (mut second, _) = Gateway::open(node.addr(), &two).await;
    node.rewrite(&identity("two", "viewer", "", &two));
    assert_eq!(first.refused().await.code, "unauthenticated");
    assert_eq!(second.refused().await.code, "unauthenticated");

    let at = std::time::SystemTime::now() + std::time::Duration::from_secs(15);
    let unix_us = at
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros();
    let expires = leasehold_calendar::utc_text(i64::try_from(unix_us).unwrap()).unwrap();
    let short = format!(
        "[[identity]]\nname = \"one\"\nrole = \"gateway\"\nkeys = [\"acme/*\"]\n{}",
        one.entry(Some(&expires))
    );
    node.rewrite(&short);
    node.until(async || Gateway::hello(node.addr(), Some(&one), &[]).await.is_ok())
        .await;
    let (mut gateway, _) = Gateway::open(node.addr(), &one).await;
    let refused = gateway.renewed_until_refused().await;
    assert_eq!(refused.code, "unauthenticated");
    let late = Gateway::hello(node.addr(), Some(&one), &[])
        .await
        .err()
        .unwrap();
    assert_eq!(late.code(), Code::Unauthenticated);
}
