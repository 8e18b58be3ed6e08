//! Whom the client believes, what it shows to whom, and what it says when it will not.
#![cfg(feature = "tls")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod authority;
mod fake;

use std::time::Duration;

use authority::{Authority, set_mode, write_private};
use fake::{Fake, builder};
use leasehold_client::{BuildError, Builder, Client, Verdict};

const TOKEN: &str = "lh_0123456789ab_c2VjcmV0LXNlY3JldC1zZWNyZXQ";

/// Why no session comes about.
async fn why(builder: Builder) -> String {
    let soon = Duration::from_millis(1_500);
    let error = builder.connect_timeout(soon).connect().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, BuildError::NoSession { .. }), "{text}");
    assert!(!text.contains(TOKEN), "{text}");
    text
}

/// Waits until the client says something of what is wrong.
async fn until_said(client: &Client, part: &str) {
    for _ in 0..2_000 {
        if client.last_error().contains(part) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{part:?} was not said, but: {}", client.last_error());
}

#[tokio::test]
async fn units_are_spent_over_tls_and_the_token_goes_along() {
    let ca = Authority::new("nodes");
    let (fake, url) = Fake::start_tls(&ca.server(&["localhost"]), None).await;
    fake.give("a", 1);
    fake.set(|books| books.wants_token = Some(TOKEN.to_owned()));
    let token = ca.private("token", &format!("{TOKEN}\n"));
    let client = builder(&url)
        .ca_file(ca.ca())
        .token_file(token)
        .connect()
        .await
        .unwrap();
    assert_eq!(client.spend("a", 1).await, Verdict::Admitted);
    let seen = fake.get(|books| books.authorizations.clone());
    assert_eq!(seen, [Some(format!("Bearer {TOKEN}"))]);
    client.close().await;
}

#[tokio::test]
async fn a_coordinator_of_another_authority_hears_nothing() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let (fake, url) = Fake::start_tls(&theirs.server(&["localhost"]), None).await;
    let told = why(builder(&url).ca_file(ours.ca()).token(TOKEN)).await;
    let ca = ours.ca();
    assert!(
        told.contains(&format!("ca_file {} does not vouch", ca.display())),
        "{told}"
    );
    assert_eq!(fake.get(|books| books.opens), 0);
    assert_eq!(fake.get(|books| books.authorizations.len()), 0);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_said_to_be_for_that_one() {
    let ca = Authority::new("nodes");
    let names = ["node1.internal", "10.0.0.1"];
    let (_fake, url) = Fake::start_tls(&ca.server(&names), None).await;
    let told = why(builder(&url).ca_file(ca.ca())).await;
    assert!(told.contains("node1.internal, 10.0.0.1"), "{told}");
}

#[tokio::test]
async fn a_certificate_that_has_ended_is_not_taken() {
    let ca = Authority::new("nodes");
    let (_fake, url) = Fake::start_tls(&ca.expired(&["localhost"]), None).await;
    let told = why(builder(&url).ca_file(ca.ca())).await;
    assert!(told.contains("has expired"), "{told}");
}

#[tokio::test]
async fn who_speaks_no_tls_is_said_to_speak_none() {
    let ca = Authority::new("nodes");
    let (_fake, url) = Fake::start().await;
    let url = url.replace("http://", "https://");
    let told = why(builder(&url).ca_file(ca.ca())).await;
    assert!(told.contains("does not speak TLS"), "{told}");
}

#[tokio::test]
async fn https_without_an_authority_is_refused_before_anything_is_done() {
    let error = builder("https://node1:7070").start().unwrap_err();
    assert!(matches!(error, BuildError::Credentials { .. }));
    assert!(error.to_string().contains("ca_file"), "{error}");
}

#[tokio::test]
async fn a_token_goes_to_no_other_machine_without_tls() {
    for elsewhere in ["http://node1:7070", "http://10.0.0.1:7070"] {
        let with_token = builder(elsewhere).token(TOKEN);
        let error = with_token.start().unwrap_err();
        assert!(matches!(error, BuildError::Credentials { .. }), "{error}");
        assert!(error.to_string().contains(elsewhere), "{error}");
        drop(builder(elsewhere).start().unwrap());
    }
    // This machine itself may have it, and may name whom it likes as the leader.
    let (fake, url) = Fake::start().await;
    fake.set(|books| books.moved_to = Some("http://192.0.2.1:7070".to_owned()));
    let told = why(builder(&url).token(TOKEN)).await;
    assert!(told.contains("over TLS only"), "{told}");
    assert!(fake.get(|books| books.authorizations.len()) > 0);
}

#[tokio::test]
async fn from_tls_nobody_is_followed_to_where_there_is_none() {
    let ca = Authority::new("nodes");
    let (follower, url) = Fake::start_tls(&ca.server(&["localhost"]), None).await;
    let (plain, leader) = Fake::start().await;
    follower.set(|books| books.moved_to = Some(leader.clone()));
    let told = why(builder(&url).ca_file(ca.ca()).token(TOKEN)).await;
    assert!(told.contains("without TLS"), "{told}");
    assert_eq!(plain.get(|books| books.opens), 0);

    let (fake, leader) = Fake::start_tls(&ca.server(&["localhost"]), None).await;
    follower.set(|books| books.moved_to = Some(leader));
    let followed = builder(&url).ca_file(ca.ca()).token(TOKEN);
    followed.connect().await.unwrap().close().await;
    assert_eq!(fake.get(|books| books.authorizations.len()), 1);
}

#[tokio::test]
async fn a_leader_of_another_authority_is_not_believed() {
    let (ca, theirs) = (Authority::new("nodes"), Authority::new("theirs"));
    let (follower, url) = Fake::start_tls(&ca.server(&["localhost"]), None).await;
    let (leader, its_url) = Fake::start_tls(&theirs.server(&["localhost"]), None).await;
    follower.set(|books| books.moved_to = Some(its_url));
    let client = builder(&url).ca_file(ca.ca()).token(TOKEN).start().unwrap();
    until_said(&client, "does not vouch").await;
    assert_eq!(leader.get(|books| books.authorizations.len()), 0);
}

#[tokio::test]
async fn secrets_that_others_can_read_are_not_used_until_they_are_private() {
    let ca = Authority::new("nodes");
    let (fake, url) = Fake::start_tls(&ca.server(&["localhost"]), None).await;
    let token = ca.private("token", TOKEN);
    let (certificate, key) = ca.caller("edge");
    for secret in [&token, &key] {
        set_mode(secret, 0o644);
        let seen = fake.get(|books| books.authorizations.len());
        let client = builder(&url)
            .ca_file(ca.ca())
            .token_file(&token)
            .identity_files(&certificate, &key)
            .start()
            .unwrap();
        until_said(&client, "mode 0644").await;
        assert!(
            client.last_error().contains(&*secret.to_string_lossy()),
            "{}",
            client.last_error()
        );
        assert_eq!(fake.get(|books| books.authorizations.len()), seen);
        set_mode(secret, 0o600);
        fake.until("it is used", |books| books.authorizations.len() > seen)
            .await;
        client.close().await;
    }
}

#[tokio::test]
async fn a_token_that_is_replaced_is_taken_at_the_next_attempt() {
    let ca = Authority::new("nodes");
    let (fake, url) = Fake::start_tls(&ca.server(&["localhost"]), None).await;
    fake.set(|books| books.wants_token = Some(TOKEN.to_owned()));
    let token = ca.private("token", "lh_0123456789ab_old");
    let client = builder(&url)
        .ca_file(ca.ca())
        .token_file(&token)
        .start()
        .unwrap();
    until_said(&client, "leasehold token create").await;
    let told = client.last_error();
    assert!(told.contains(&*token.to_string_lossy()), "{told}");
    assert!(!told.contains("lh_0123456789ab_old"), "{told}");
    write_private(&token, TOKEN);
    fake.until("it came in", |books| books.opens == 1).await;

    // A stream that ends for the same reason is tried again as well.
    fake.set(|books| books.refuse_open = Some("unauthenticated".to_owned()));
    fake.cut();
    until_said(&client, "refused, unauthenticated").await;
    fake.until("it came in again", |books| books.resumes + books.opens >= 3)
        .await;
    client.close().await;
}

#[tokio::test]
async fn whoever_shows_nothing_is_told_what_to_show() {
    let (fake, url) = Fake::start().await;
    fake.set(|books| books.wants_token = Some(TOKEN.to_owned()));
    let told = why(builder(&url)).await;
    assert!(told.contains("token_file"), "{told}");
    fake.set(|books| books.forbids = true);
    let told = why(builder(&url).token(TOKEN)).await;
    assert!(told.contains("the role must be another"), "{told}");
}

#[tokio::test]
async fn a_coordinator_that_wants_certificates_takes_its_authoritys_alone() {
    let (nodes, clients) = (Authority::new("nodes"), Authority::new("clients"));
    let (fake, url) = Fake::start_tls(&nodes.server(&["localhost"]), Some(&clients)).await;
    let told = why(builder(&url).ca_file(nodes.ca())).await;
    assert!(told.contains("wants a certificate"), "{told}");

    let (certificate, key) = nodes.caller("stranger");
    let strange = builder(&url).identity_files(&certificate, &key);
    let told = why(strange.ca_file(nodes.ca())).await;
    assert!(
        told.contains(&format!(
            "does not accept the certificate {}",
            certificate.display()
        )),
        "{told}"
    );
    assert_eq!(fake.get(|books| books.opens), 0);

    let (certificate, other_key) = (clients.caller("edge").0, clients.caller("other").1);
    let mixed = builder(&url).identity_files(&certificate, &other_key);
    let told = why(mixed.ca_file(nodes.ca())).await;
    assert!(told.contains("is not the key of"), "{told}");

    let (certificate, key) = clients.caller("edge");
    let known = builder(&url).identity_files(certificate, key);
    let client = known.ca_file(nodes.ca()).connect().await.unwrap();
    client.close().await;
    assert_eq!(fake.get(|books| books.opens), 1);
}

#[tokio::test]
async fn files_that_hold_something_else_are_named() {
    let ca = Authority::new("nodes");
    let (_fake, url) = Fake::start_tls(&ca.server(&["localhost"]), None).await;
    let nonsense = ca.private("nonsense", "not pem, and two\nlines");
    let (certificate, key) = ca.caller("edge");
    let with_ca = || builder(&url).ca_file(ca.ca());
    for (builder, part) in [
        (builder(&url).ca_file(&nonsense), "holds no certificate"),
        (builder(&url).ca_file("/no/such/file"), "cannot be read"),
        (
            with_ca().identity_files(&nonsense, &key),
            "holds no certificate",
        ),
        (
            with_ca().identity_files(&certificate, &nonsense),
            "holds no private key",
        ),
        (with_ca().token_file(&nonsense), "holds no token"),
    ] {
        let told = why(builder).await;
        assert!(told.contains(part), "{told}");
        assert!(!told.contains("not pem"), "{told}");
    }
}

#[test]
fn a_builder_that_is_printed_shows_no_token() {
    let shown = format!("{:?}", builder("http://127.0.0.1:7070").token(TOKEN));
    assert!(
        !shown.contains("c2VjcmV0") && !shown.contains("lh_"),
        "{shown}"
    );
}
