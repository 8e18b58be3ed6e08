//! The client against a coordinator that does what real ones do only when they
//! fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod authority;
mod fake;

use std::time::{Duration, Instant};

use fake::{Fake, builder};
use leasehold_client::{BudgetError, BuildError, Client, Code, FailureMode, Verdict};
use leasehold_proto::v1::{self, coordinator_message::Kind};

fn denied(code: Code) -> impl Fn(&Verdict) -> bool {
    move |verdict| matches!(verdict, Verdict::Denied { code: told, .. } if *told == code)
}

#[tokio::test]
async fn a_spend_asks_and_is_admitted() {
    let (fake, url) = Fake::start().await;
    fake.give("acme/orders", 3);
    let client = builder(&url).connect().await.unwrap();
    let orders = client.budget("acme/orders").unwrap();
    assert_eq!(orders.try_spend(1), Verdict::Empty);
    let mut admitted = 0;
    for _ in 0..3 {
        admitted += u32::from(orders.spend(1).await == Verdict::Admitted);
    }
    assert_eq!(admitted, 3);
    let fourth = orders.spend(1).await;
    assert!(denied(Code::Limit)(&fourth), "{fourth:?}");
    assert!(
        fourth
            .retry_after()
            .is_some_and(|wait| wait > Duration::from_secs(59))
    );
    assert_eq!(client.try_spend("acme/orders", 0), Verdict::Admitted);
}

#[tokio::test]
async fn a_refusal_is_answered_locally_until_it_ends() {
    let (fake, url) = Fake::start().await;
    let client = builder(&url).connect().await.unwrap();
    assert!(denied(Code::Limit)(&client.spend("a", 1).await));
    let asks = fake.get(|books| books.asks);
    for _ in 0..1_000 {
        assert!(denied(Code::Limit)(&client.try_spend("a", 1)));
        assert!(denied(Code::Limit)(&client.spend("a", 1).await));
    }
    // Regular syncs restate the want; the flood itself asked for nothing.
    assert!(fake.get(|books| books.asks) <= asks + 2);
}

#[tokio::test]
async fn spend_within_outlasts_a_refusal_and_is_served_when_units_come() {
    let (fake, url) = Fake::start().await;
    fake.set(|books| books.refusal.1 = 50_000);
    let client = builder(&url).connect().await.unwrap();
    let waits = {
        let client = client.clone();
        tokio::spawn(async move { client.spend_within("a", 2, Duration::from_secs(20)).await })
    };
    fake.until("it was refused once", |books| books.asks >= 1)
        .await;
    fake.give("a", 2);
    assert_eq!(waits.await.unwrap(), Verdict::Admitted);
}

#[tokio::test]
async fn spend_within_ends_with_the_refusal_when_its_time_is_up() {
    let (_fake, url) = Fake::start().await;
    let client = builder(&url).connect().await.unwrap();
    let began = Instant::now();
    let verdict = client
        .spend_within("a", 1, Duration::from_millis(300))
        .await;
    assert!(denied(Code::Limit)(&verdict), "{verdict:?}");
    assert!(began.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_hung_coordinator_hangs_nobody() {
    let (fake, url) = Fake::start().await;
    fake.set(|books| books.max_wait_us = 100_000);
    fake.give("a", 1);
    let client = builder(&url).connect().await.unwrap();
    assert_eq!(client.spend("a", 1).await, Verdict::Admitted);
    fake.set(|books| books.is_silent = true);
    let began = Instant::now();
    let verdict = client.spend("a", 1).await;
    assert_eq!(
        verdict,
        Verdict::Unavailable {
            code: Code::NoAnswer
        }
    );
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_policy_that_fails_open_is_degraded_when_nobody_answers() {
    let (fake, url) = Fake::start().await;
    fake.set(|books| {
        books.fails_open = true;
        books.max_wait_us = 50_000;
        books.ttl_us = 1_200_000;
        books.sync_interval_us = 200_000;
    });
    fake.give("a", 1);
    let client = builder(&url).connect().await.unwrap();
    assert_eq!(client.spend("a", 1).await, Verdict::Admitted);
    fake.set(|books| books.is_silent = true);
    let verdict = client.spend("a", 1).await;
    assert_eq!(verdict, Verdict::Degraded);
    assert!(verdict.is_allowed());
    // Silent for a quarter of the ttl: left, and nobody is there to ask.
    while client.is_connected() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(client.try_spend("a", 1), Verdict::Degraded);
}

#[tokio::test]
async fn a_client_that_never_reached_a_coordinator_does_as_its_builder_says() {
    let nobody = "http://127.0.0.1:1";
    let connect = |failure| {
        let builder = builder(nobody).before_contact(failure);
        builder.connect_timeout(Duration::from_millis(50)).connect()
    };
    assert!(connect(FailureMode::Closed).await.is_err());
    let open = connect(FailureMode::Open).await.unwrap();
    assert_eq!(open.try_spend("a", 1), Verdict::Degraded);
    let emergency = connect(FailureMode::Emergency { units: 1 }).await.unwrap();
    assert_eq!(emergency.try_spend("a", 1), Verdict::Degraded);
    let told = emergency.try_spend("a", 1);
    let code = Code::Disconnected;
    assert_eq!(told, Verdict::Unavailable { code });
    assert_eq!(told.retry_after(), Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn what_is_held_is_spent_while_the_coordinator_is_gone() {
    let (fake, url) = Fake::start().await;
    fake.give("a", 50);
    let client = builder(&url).connect().await.unwrap();
    assert_eq!(client.spend("a", 10).await, Verdict::Admitted);
    // A want of a slice: one and a half times what was asked for.
    while client.try_spend("a", 1) != Verdict::Admitted {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fake.set(|books| books.moved_to = Some(String::new()));
    fake.cut();
    while client.is_connected() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.try_spend("a", 1), Verdict::Admitted);
}

#[tokio::test]
async fn a_cut_stream_is_resumed_and_everything_restated() {
    let (fake, url) = Fake::start().await;
    fake.give("a", 20);
    let client = builder(&url).connect().await.unwrap();
    assert_eq!(client.spend("a", 5).await, Verdict::Admitted);
    fake.cut();
    fake.until("resumed", |books| books.resumes == 1).await;
    fake.until("the spends were reported", |books| {
        books.leases.values().any(|lease| lease.spent == 5)
    })
    .await;
    assert_eq!(fake.get(|books| books.sessions), 1);
    while !client.is_connected() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.spend("a", 5).await, Verdict::Admitted);
}

#[tokio::test]
async fn an_expired_session_is_settled_and_a_new_one_opened() {
    let (fake, url) = Fake::start().await;
    fake.give("a", 20);
    let client = builder(&url).connect().await.unwrap();
    assert_eq!(client.spend("a", 3).await, Verdict::Admitted);
    fake.set(|books| books.refuse_resume = Some("session_expired".to_owned()));
    fake.cut();
    fake.until("settled", |books| !books.settled.is_empty())
        .await;
    let settle = fake.get(|books| books.settled[0].clone());
    assert_eq!(settle.session, [1; 16]);
    assert_eq!(
        (settle.leases[0].key.as_str(), settle.leases[0].spent_total),
        ("a", 3)
    );
    assert_eq!(fake.get(|books| books.sessions), 2);
    // Nothing of the old session is left to spend: this asks the new one.
    assert_eq!(client.spend("a", 1).await, Verdict::Admitted);
    assert_eq!(
        fake.get(|books| books.settled.len()),
        1,
        "acknowledged, so not repeated"
    );
}

#[tokio::test]
async fn a_recall_is_honoured() {
    let (fake, url) = Fake::start().await;
    fake.give("a", 100);
    let client = builder(&url).connect().await.unwrap();
    assert_eq!(client.spend("a", 20).await, Verdict::Admitted);
    fake.until("a slice is parked", |books| {
        books
            .leases
            .values()
            .any(|lease| lease.spent == 20 && lease.granted >= 20 + 8)
    })
    .await;
    let lease = fake.lease("a");
    let recall = v1::Recall {
        key_id: 0,
        generation: lease.generation,
        returned_total_target: lease.returned + 4,
        granted_total: lease.granted,
        whole: false,
    };
    fake.push(Kind::Recall(recall)).await;
    fake.until("four came back", |books| {
        books
            .leases
            .values()
            .any(|now| now.returned >= lease.returned + 4)
    })
    .await;
}

#[tokio::test]
async fn moved_is_followed_to_the_leader() {
    let (follower, url) = Fake::start().await;
    let (leader, leader_url) = Fake::start().await;
    leader.give("a", 5);
    follower.set(|books| books.moved_to = Some(leader_url));
    let client = builder(&url).connect().await.unwrap();
    assert_eq!(client.spend("a", 1).await, Verdict::Admitted);
    assert_eq!(
        (
            follower.get(|books| books.opens),
            leader.get(|books| books.opens)
        ),
        (1, 1)
    );
}

#[tokio::test]
async fn endpoints_are_tried_in_turn() {
    let (fake, url) = Fake::start().await;
    fake.give("a", 5);
    let (unaware, unaware_url) = Fake::start().await;
    unaware.set(|books| books.moved_to = Some(String::new()));
    let client = Client::builder()
        .endpoints(["http://127.0.0.1:1".to_owned(), unaware_url, url])
        .holder("gw")
        .connect()
        .await
        .unwrap();
    assert_eq!(client.spend("a", 1).await, Verdict::Admitted);
}

#[tokio::test]
async fn close_hands_everything_back() {
    let (fake, url) = Fake::start().await;
    fake.give("a", 100);
    let client = builder(&url).connect().await.unwrap();
    let budget = client.budget("a").unwrap();
    assert_eq!(budget.spend(7).await, Verdict::Admitted);
    client.close().await;
    assert_eq!(fake.get(|books| (books.closed, books.free["a"])), (1, 93));
    let closed = Verdict::Unavailable { code: Code::Closed };
    assert_eq!(budget.try_spend(1), closed);
    assert_eq!(budget.spend(1).await, closed);
    assert_eq!(client.try_spend("another", 1), closed);
    client.close().await;
}

#[tokio::test]
async fn dropping_every_handle_ends_the_task() {
    let (fake, url) = Fake::start().await;
    fake.give("a", 1);
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let client = builder(&url).connect().await.unwrap();
    let budget = client.budget("a").unwrap();
    drop(client);
    assert_eq!(
        budget.spend(1).await,
        Verdict::Admitted,
        "a handle keeps the task"
    );
    drop(budget);
    for _ in 0..2_000 {
        if tasks() <= before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{} tasks are left, there were {before}", tasks());
}

#[tokio::test]
async fn costs_above_the_limit_are_denied_for_ever() {
    let (fake, url) = Fake::start().await;
    fake.set(|books| books.limit = 10);
    fake.give("a", 10);
    let client = builder(&url).connect().await.unwrap();
    assert_eq!(client.spend("a", 1).await, Verdict::Admitted);
    let denied = Verdict::Denied {
        code: Code::CostAboveLimit,
        retry_after: None,
    };
    assert_eq!(client.spend("a", 11).await, denied);
    assert_eq!(client.try_spend("a", u64::MAX), denied);
    assert_eq!(client.spend("a", 1).await, Verdict::Admitted);
}

#[tokio::test]
async fn a_key_without_a_budget_is_denied_for_now() {
    let (fake, url) = Fake::start().await;
    fake.set(|books| books.refusal = ("no_budget".to_owned(), 0));
    let client = builder(&url).connect().await.unwrap();
    let denied = Verdict::Denied {
        code: Code::NoBudget,
        retry_after: None,
    };
    assert_eq!(client.spend("a", 1).await, denied);
    assert_eq!(client.try_spend("a", 1), denied);
    // A budget appears: it is found out about within a second or so.
    fake.give("a", 5);
    for _ in 0..2_000 {
        if client.spend("a", 1).await == Verdict::Admitted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the budget was never noticed");
}

#[tokio::test]
async fn waiters_and_keys_are_bounded() {
    let (fake, url) = Fake::start().await;
    fake.set(|books| books.is_silent = false);
    let client = builder(&url)
        .waiters_max(2)
        .keys_max(2)
        .connect()
        .await
        .unwrap();
    fake.set(|books| books.is_silent = true);
    let waits = |client: &Client| {
        let client = client.clone();
        tokio::spawn(async move { client.spend_within("a", 1, Duration::from_secs(5)).await })
    };
    let waiting = [waits(&client), waits(&client)];
    // Both are in the queue once they have run; whoever comes next is turned away.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let told = client.spend_within("a", 1, Duration::from_millis(1)).await;
    assert!(denied(Code::TooManyWaiters)(&told), "{told:?}");
    let _second = client.budget("b").unwrap();
    assert!(matches!(
        client.budget("c"),
        Err(BudgetError::TooManyKeys { max: 2 })
    ));
    assert!(denied(Code::TooManyKeys)(&client.try_spend("c", 1)));
    waiting.into_iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn texts_that_are_no_keys_are_refused() {
    let (fake, url) = Fake::start().await;
    let client = builder(&url).connect().await.unwrap();
    for text in ["", "a//b", "a/../b", "a/*", "%zz"] {
        assert!(
            matches!(client.budget(text), Err(BudgetError::Key(_))),
            "{text}"
        );
        let verdict = client.try_spend(text, 1);
        assert_eq!(
            verdict,
            Verdict::Denied {
                code: Code::BadKey,
                retry_after: None
            },
            "{text}"
        );
    }
    fake.give("a%7Cb", 1);
    assert_eq!(client.spend("a|b", 1).await, Verdict::Admitted);
}

#[tokio::test]
async fn settings_are_checked_before_anything_is_done() {
    let holder = |holder: &str| {
        Client::builder()
            .endpoint("http://127.0.0.1:1")
            .holder(holder)
    };
    let told = |error: BuildError| error.to_string();
    let no_endpoint = Client::builder().holder("gw").connect().await.unwrap_err();
    assert!(matches!(no_endpoint, BuildError::NoEndpoint));
    let bad = Client::builder()
        .endpoint("127.0.0.1:7070")
        .holder("gw")
        .connect()
        .await;
    assert!(told(bad.unwrap_err()).contains("127.0.0.1:7070"));
    assert!(told(holder("").connect().await.unwrap_err()).contains("1 to 128"));
    assert!(matches!(
        holder(&"x".repeat(129)).connect().await,
        Err(BuildError::BadHolder { .. })
    ));
    let keys = holder("gw").keys_max(0).connect().await.unwrap_err();
    assert_eq!(told(keys), "keys_max is 0: 1 to 1048576 are allowed");
}

#[tokio::test]
async fn connect_says_why_there_is_no_session() {
    let began = Instant::now();
    let error = Client::builder()
        .endpoint("http://127.0.0.1:1")
        .holder("gw")
        .connect_timeout(Duration::from_millis(300))
        .connect()
        .await
        .unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(3));
    assert!(matches!(error, BuildError::NoSession { .. }));
    assert!(error.to_string().contains("http://127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn a_handle_that_is_made_after_the_close_is_told_so_at_once() {
    let (_fake, url) = Fake::start().await;
    let client = builder(&url).connect().await.unwrap();
    client.close().await;
    let budget = client.budget("late").unwrap();
    let closed = Verdict::Unavailable { code: Code::Closed };
    assert_eq!(budget.try_spend(1), closed);
    let waited = budget.spend_within(1, Duration::from_secs(3_600)).await;
    assert_eq!(waited, closed);
}

#[tokio::test]
async fn endpoints_that_accept_and_say_nothing_or_nonsense_are_left() {
    use tokio::{io::AsyncWriteExt, net::TcpListener};
    let (fake, url) = Fake::start().await;
    fake.give("a", 5);
    let mute = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mute_url = format!("http://{}", mute.local_addr().unwrap());
    let babbler = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let babbler_url = format!("http://{}", babbler.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = babbler.accept().await {
            drop(stream.write_all(b"HTTP/1.1 400 no\r\n\r\n").await);
        }
    });
    let client = Client::builder()
        .endpoints([mute_url, babbler_url, url])
        .holder("gw")
        .connect()
        .await
        .unwrap();
    assert_eq!(client.spend("a", 1).await, Verdict::Admitted);
}

#[tokio::test]
async fn coordinators_that_name_each_other_are_asked_with_pauses() {
    let (one, one_url) = Fake::start().await;
    let (other, other_url) = Fake::start().await;
    one.set(|books| books.moved_to = Some(other_url));
    other.set(|books| books.moved_to = Some(one_url.clone()));
    let error = builder(&one_url)
        .connect_timeout(Duration::from_secs(1))
        .connect()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("circles"), "{error}");
    let opens = one.get(|books| books.opens) + other.get(|books| books.opens);
    assert!((4..200).contains(&opens), "{opens} streams in a second");
}

#[tokio::test]
async fn a_flood_of_keys_without_a_budget_keeps_the_stream() {
    let (fake, url) = Fake::start().await;
    fake.set(|books| books.refusal = ("no_budget".to_owned(), 0));
    let client = builder(&url).connect().await.unwrap();
    let mut refused = 0;
    for key in 0..150 {
        let verdict = client.spend(&format!("k{key}"), 1).await;
        refused += u32::from(matches!(verdict, Verdict::Denied { .. }));
    }
    // The session may have 100 keys: the rest is refused here.
    assert_eq!(refused, 150);
    for _ in 0..3 {
        let _ = client.try_spend("k149", 1);
        // A regular sync would carry what this led to.
        let syncs = fake.get(|books| books.syncs);
        fake.until("a sync came after it", |books| books.syncs > syncs + 1)
            .await;
    }
    assert_eq!(fake.get(|books| (books.opens, books.key_ids_max)), (1, 99));
}
