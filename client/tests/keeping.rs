//! Units that are kept for a while, through the real client: reservations, permits,
//! and a look at what there is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod authority;
mod fake;

use std::time::Duration;

use fake::{Fake, builder};
use leasehold_client::{BudgetKind, Client, Code, NotAdmitted, Settled, Verdict};

const WRONG_KIND: Verdict = Verdict::Denied {
    code: Code::WrongKind,
    retry_after: None,
};

async fn fake_of(kind: &str, free: u64) -> (Fake, Client) {
    let (fake, url) = Fake::start().await;
    fake.set(|books| {
        books.kind = kind.to_owned();
        books.sync_interval_us = 20_000;
        // So that nothing is bought ahead.
        books.limit = free;
    });
    fake.give("a", free);
    let client = builder(&url).connect().await.unwrap();
    (fake, client)
}

#[tokio::test]
async fn a_reservation_is_held_and_settled_for_what_was_used() {
    let (fake, client) = fake_of("sliding_window", 10).await;
    let budget = client.budget("a").unwrap();
    let hold = budget.reserve(8).await.unwrap();
    assert_eq!((hold.units(), hold.verdict()), (8, Verdict::Admitted));
    assert!(hold.time_left().unwrap() > Duration::from_secs(50));
    fake.until("it is told as held", |books| {
        books.leases.values().any(|lease| lease.held == 8)
    })
    .await;
    assert_eq!(hold.settle(3), Settled::Within { returned: 5 });
    fake.until("three were spent", |books| {
        let of_it = |lease: &fake::Lease| (lease.spent, lease.held) == (3, 0);
        books.leases.values().any(of_it)
    })
    .await;
    client.close().await;
    assert_eq!(fake.get(|books| books.free["a"]), 7);
}

#[tokio::test]
async fn what_was_used_beyond_is_told_as_overrun() {
    let (fake, client) = fake_of("sliding_window", 10).await;
    let budget = client.budget("a").unwrap();
    let hold = budget.reserve(10).await.unwrap();
    let (taken, overrun) = (0, 4);
    assert_eq!(hold.settle(14), Settled::Over { taken, overrun });
    fake.until("it is told", |books| {
        let of_it = |lease: &fake::Lease| (lease.spent, lease.overrun) == (10, 4);
        books.leases.values().any(of_it)
    })
    .await;
}

#[tokio::test]
async fn a_reservation_that_nobody_settles_is_spent_without_its_holder() {
    let (fake, client) = fake_of("sliding_window", 10).await;
    fake.set(|books| books.hold_max_us = 50_000);
    let budget = client.budget("a").unwrap();
    let hold = budget.reserve(4).await.unwrap();
    fake.until("it was counted as spent", |books| {
        books.leases.values().any(|lease| lease.spent == 4)
    })
    .await;
    assert_eq!(hold.settle(1), Settled::TooLate { overrun: 0 });
    let late = budget.reserve(2).await.unwrap();
    client.close().await;
    assert_eq!(late.settle(2), Settled::TooLate { overrun: 0 });
    assert_eq!(fake.get(|books| books.free["a"]), 4);
}

#[tokio::test]
async fn a_reservation_that_is_refused_says_why_and_one_that_is_dropped_is_free() {
    let (fake, client) = fake_of("sliding_window", 5).await;
    let budget = client.budget("a").unwrap();
    let NotAdmitted(told) = budget.try_reserve(5).unwrap_err();
    assert_eq!(told, Verdict::Empty);
    drop(budget.reserve(5).await.unwrap());
    let hold = budget.try_reserve(4).unwrap();
    let refused = budget.reserve(2).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Limit), "{refused}");
    assert!(refused.retry_after().is_some());
    assert!(refused.to_string().starts_with("not admitted: limit, try"));
    let waiting = budget.reserve_within(2, Duration::from_secs(10));
    let settle = async { hold.settle(3) };
    let (reserved, settled) = tokio::join!(waiting, settle);
    assert_eq!(settled, Settled::Within { returned: 1 });
    drop(reserved.unwrap());
    client.close().await;
    assert_eq!(fake.get(|books| books.free["a"]), 2);
}

#[tokio::test]
async fn a_failure_mode_that_lets_through_reserves_nothing() {
    let (fake, client) = fake_of("sliding_window", 5).await;
    fake.set(|books| books.fails_open = true);
    let budget = client.budget("a").unwrap();
    let hold = budget.reserve(5).await.unwrap();
    assert_eq!(hold.settle(5), Settled::Within { returned: 0 });
    fake.set(|books| {
        books.is_silent = true;
        books.moved_to = Some(String::new());
    });
    fake.cut();
    while client.is_connected() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let hold = budget.reserve(5).await.unwrap();
    assert_eq!(hold.verdict(), Verdict::Degraded);
    assert_eq!(hold.settle(9), Settled::LetThrough);
}

#[tokio::test]
async fn permits_come_back_when_they_are_dropped() {
    let (fake, client) = fake_of("concurrency", 2).await;
    let budget = client.budget("a").unwrap();
    let first = budget.acquire(1).await.unwrap();
    let second = budget.acquire(1).await.unwrap();
    assert!(first.is_valid() && second.is_valid());
    let refused = budget.acquire(1).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::Limit));
    fake.until("both are told as held", |books| {
        let of_it = |lease: &fake::Lease| (lease.spent, lease.held) == (0, 2);
        books.leases.values().any(of_it)
    })
    .await;
    let waiting = budget.acquire_within(1, Duration::from_secs(10));
    let (third, ()) = tokio::join!(waiting, async { drop(first) });
    assert!(third.unwrap().is_valid());
    drop(second);
    client.close().await;
    fake.get(|books| assert_eq!(books.free["a"], 2));
}

#[tokio::test]
async fn each_kind_refuses_what_the_other_is_for() {
    let (_fake, client) = fake_of("concurrency", 2).await;
    let budget = client.budget("a").unwrap();
    // Nothing is known yet: it asks, and finds out.
    assert_eq!(budget.spend(1).await, WRONG_KIND);
    assert_eq!(budget.try_spend(1), WRONG_KIND);
    assert_eq!(client.spend("a", 1).await, WRONG_KIND);
    assert_eq!(budget.reserve(1).await.unwrap_err().0, WRONG_KIND);
    let told = client.spend_all([(&budget, 1)]).await;
    assert_eq!(told.verdict, WRONG_KIND);
    assert!(budget.try_acquire(1).is_ok());
    let (_fake, client) = fake_of("token_bucket", 2).await;
    let budget = client.budget("a").unwrap();
    assert_eq!(budget.acquire(1).await.unwrap_err().0, WRONG_KIND);
    assert_eq!(budget.try_acquire(1).unwrap_err().0, WRONG_KIND);
    assert_eq!(budget.try_spend(1), Verdict::Admitted);
}

#[tokio::test]
async fn a_permit_ends_when_its_session_is_not_renewed_and_when_the_client_closes() {
    let (fake, client) = fake_of("concurrency", 2).await;
    fake.set(|books| books.ttl_us = 1_500_000);
    // The life of a session is fixed when it opens.
    let url = {
        let budget = client.budget("a").unwrap();
        drop(budget.acquire(1).await.unwrap());
        client.close().await;
        fake.get(|books| assert_eq!(books.free["a"], 2));
        fake.url()
    };
    let client = builder(&url).connect().await.unwrap();
    let budget = client.budget("a").unwrap();
    let permit = budget.acquire(1).await.unwrap();
    let ended = permit.ended();
    let longer = tokio::time::timeout(Duration::from_secs(3), ended).await;
    assert!(longer.is_err(), "renewals prolong it");
    assert!(permit.is_valid());
    fake.set(|books| books.renews_nothing = true);
    tokio::time::timeout(Duration::from_secs(10), permit.ended())
        .await
        .unwrap();
    assert!(!permit.is_valid());
    fake.set(|books| books.renews_nothing = false);
    let again = budget.acquire_within(1, Duration::from_secs(10)).await;
    let again = again.unwrap();
    assert!(again.is_valid() && !permit.is_valid());
    let (closed, ()) = tokio::join!(
        tokio::time::timeout(Duration::from_secs(10), again.ended()),
        client.close()
    );
    closed.unwrap();
    assert!(!again.is_valid());
}

#[tokio::test]
async fn a_peek_shows_what_is_here_and_what_was_free() {
    let (fake, client) = fake_of("sliding_window", 10).await;
    let budget = client.budget("a").unwrap();
    let unknown = budget.peek();
    assert_eq!((unknown.remaining, unknown.limit), (0, None));
    assert_eq!(budget.spend(4).await, Verdict::Admitted);
    let peek = budget.peek();
    assert_eq!(peek.limit, Some(10));
    assert_eq!(peek.kind, Some(BudgetKind::Window));
    assert!(
        peek.here <= peek.remaining && peek.remaining <= 6,
        "{peek:?}"
    );
    assert_eq!(peek.refused, None);
    fake.set(|books| books.free.clear());
    let refused = budget.spend(10).await;
    assert_eq!(refused.code(), Some(Code::Limit));
    let peek = budget.peek();
    assert_eq!(peek.refused, Some(Code::Limit));
    assert!(peek.retry_after.unwrap() > Duration::from_secs(50));
}
