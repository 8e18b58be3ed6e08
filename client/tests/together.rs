//! Several budgets at once, through the real client: one message asks for all of
//! them, all or none is spent, and whoever refused is named.

#![allow(clippy::unwrap_used, reason = "tests")]

mod authority;
mod fake;

use std::time::Duration;

use fake::{Fake, builder};
use leasehold_client::{Budget, Client, Code, JointVerdict, RefusedBy, Verdict};

async fn budgets(fake: &Fake, url: &str, free: [u64; 3]) -> (Client, [Budget; 3]) {
    let keys = ["tenant/acme", "global", "user/ada"];
    for (key, units) in keys.into_iter().zip(free) {
        fake.give(key, units);
    }
    let client = builder(url).connect().await.unwrap();
    let budgets = keys.map(|key| client.budget(key).unwrap());
    (client, budgets)
}

fn admitted(told: &JointVerdict) -> bool {
    told.verdict == Verdict::Admitted && told.refused_by.is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_asks_for_all_that_is_lacking() {
    for round in 0..20 {
        let (fake, url) = Fake::start().await;
        fake.set(|books| books.sync_interval_us = 10_000);
        let (client, [tenant, global, user]) = budgets(&fake, &url, [9, 9, 9]).await;
        // The driver has met all keys: one that it meets later may be late.
        let syncs = fake.get(|books| books.syncs);
        fake.until("two syncs came", |books| books.syncs > syncs + 1)
            .await;
        let told = client
            .spend_all([(&tenant, 1), (&user, 2), (&global, 3)])
            .await;
        assert!(admitted(&told), "{told:?}");
        let asked = fake.get(|books| books.waiting.clone());
        let all = ["global", "tenant/acme", "user/ada"];
        assert_eq!(asked, [all], "round {round}");
        fake.until("all of it is told", |books| {
            let of = |key: &str| books.leases.iter().find(|((_, name), _)| name == key);
            let spent = all.map(|key| of(key).map_or(0, |(_, lease)| lease.spent));
            spent == [3, 1, 2]
        })
        .await;
    }
}

#[tokio::test]
async fn a_refusal_names_the_budget_and_leaves_the_others_alone() {
    let (fake, url) = Fake::start().await;
    let (client, [tenant, global, user]) = budgets(&fake, &url, [9, 9, 0]).await;
    let told = client
        .spend_all([(&tenant, 1), (&user, 2), (&global, 3)])
        .await;
    let key = user.key().clone();
    assert_eq!(told.refused_by, Some(RefusedBy { index: 1, key }));
    assert!(
        matches!(
            told.verdict,
            Verdict::Denied {
                code: Code::Limit,
                retry_after: Some(_)
            }
        ),
        "{told:?}"
    );
    assert!(!told.is_allowed() && told.retry_after().is_some());
    client.close().await;
    fake.get(|books| {
        assert_eq!(books.free["tenant/acme"], 9);
        assert_eq!(books.free["global"], 9);
    });
}

#[tokio::test]
async fn a_request_that_waits_is_served_when_units_come_free() {
    let (fake, url) = Fake::start().await;
    let (client, [tenant, global, user]) = budgets(&fake, &url, [9, 9, 0]).await;
    fake.set(|books| books.refusal.1 = 20_000);
    let parts = [(&tenant, 1), (&user, 2), (&global, 3)];
    let waiting = client.spend_all_within(parts, Duration::from_secs(10));
    let give = async {
        fake.until("it is asked for", |books| !books.waiting.is_empty())
            .await;
        fake.give("user/ada", 2);
    };
    let (told, ()) = tokio::join!(waiting, give);
    assert!(admitted(&told), "{told:?}");
    let told = client.try_spend_all([(&tenant, 0), (&user, 1)]);
    assert_eq!(told.refused_by.unwrap().index, 1);
}

#[tokio::test]
async fn a_budget_that_is_listed_twice_pays_both() {
    let (fake, url) = Fake::start().await;
    let (client, [tenant, global, _]) = budgets(&fake, &url, [3, 9, 0]).await;
    let again = client.budget("tenant/acme").unwrap();
    let told = client
        .spend_all([(&tenant, 2), (&global, 1), (&again, 2)])
        .await;
    assert_eq!(told.refused_by.map(|by| by.index), Some(0));
    let told = client
        .spend_all([(&tenant, 2), (&global, 1), (&again, 1)])
        .await;
    assert!(admitted(&told), "{told:?}");
    client.close().await;
    assert_eq!(fake.get(|books| books.free["tenant/acme"]), 0);
}

#[tokio::test]
async fn a_budget_of_another_client_is_refused() {
    let (fake, url) = Fake::start().await;
    let (client, [tenant, ..]) = budgets(&fake, &url, [9, 9, 9]).await;
    let other = builder(&url).connect().await.unwrap();
    let foreign = other.budget("global").unwrap();
    let told = client.spend_all([(&tenant, 1), (&foreign, 1)]).await;
    let code = Code::OtherClient;
    let retry_after = None;
    assert_eq!(told.verdict, Verdict::Denied { code, retry_after });
    assert_eq!(told.refused_by.unwrap().index, 1);
    assert!(admitted(&client.spend_all([]).await), "nothing is lacking");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_with_crossed_sets_all_get_on() {
    let (fake, url) = Fake::start().await;
    // Never more than a few units, of one key after the other.
    fake.set(|books| books.refusal.1 = 5_000);
    let feeder = {
        let fake = fake.clone();
        tokio::spawn(async move {
            for key in ["a", "b"].into_iter().cycle() {
                if fake.get(|books| books.free.get(key).is_none_or(|free| *free < 2)) {
                    fake.give(key, 2);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    };
    let mut tasks = Vec::new();
    for gateway in 0..3 {
        let client = builder(&url).connect().await.unwrap();
        let (a, b) = (client.budget("a").unwrap(), client.budget("b").unwrap());
        for task in 0..4 {
            let (client, a, b) = (client.clone(), a.clone(), b.clone());
            tasks.push(tokio::spawn(async move {
                let mut told = 0;
                for _ in 0..10 {
                    let parts = if (gateway + task) % 2 == 0 {
                        [(&a, 1), (&b, 1)]
                    } else {
                        [(&b, 1), (&a, 1)]
                    };
                    let wait = Duration::from_secs(60);
                    told += u32::from(client.spend_all_within(parts, wait).await.is_allowed());
                }
                told
            }));
        }
    }
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    feeder.abort();
    assert_eq!(admitted, 120);
}
