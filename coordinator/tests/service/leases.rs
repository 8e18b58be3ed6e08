//! Asking, spending, handing back, being asked back, being refused.

use leasehold_ledger::{
    entry::{Command, Rule},
    policy::{Kind, Policy},
};
use leasehold_proto::v1::{KeyReport, coordinator_message::Kind as Told};
use tempfile::tempdir;

use crate::gateway::{Coordinator, Gateway, Lease, policy, window};
use leasehold_ledger::settings::Settings;

#[tokio::test]
async fn what_is_asked_is_granted_and_what_is_reported_spent_is_counted() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut gateway, opened) = Gateway::open(coordinator.addr, 1).await;
    assert_eq!(opened.session.len(), 16);
    assert_eq!(opened.session_ttl_us, 10_000_000);
    assert_eq!(opened.validity_us, 9_980_000);

    let mut lease = Lease::none(1, "acme/orders");
    let synced = gateway.sync(vec![lease.ask(10)]).await;
    assert!(synced.renewed);
    let [grant] = &synced.grants[..] else {
        panic!("{synced:?}");
    };
    assert_eq!(grant.granted_total, 10);
    assert_eq!(grant.basis_seq, synced.seq);
    assert_eq!(grant.free, 90);
    assert_eq!(grant.refusal, None);
    let info = grant.policy.as_ref().unwrap();
    assert_eq!((info.kind.as_str(), info.limit), ("sliding_window", 100));
    lease.take(grant);

    lease.spent = 7;
    let synced = gateway.sync(vec![lease.report()]).await;
    assert_eq!(synced.grants[0].granted_total, 10);
    assert_eq!(
        synced.grants[0].policy, None,
        "it is known and has not changed"
    );
    let account = coordinator.account("acme/orders").await;
    assert_eq!((account.counted, account.outstanding), (7, 3));
    coordinator.stop().await;
}

#[tokio::test]
async fn the_timescale_is_stated_beside_the_window_and_an_edit_of_it_is_pushed() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let lease = Lease::none(1, "acme/orders");
    let told = gateway.sync(vec![lease.ask(10)]).await.grants[0]
        .policy
        .clone()
        .unwrap();
    assert_eq!(told.timescale_us, told.window_us.min(60_000_000));
    let put = Command::PutBudget {
        pattern: "acme/*".parse().unwrap(),
        rule: Rule::Inline(Policy {
            horizon_us: Some(20_000),
            ..policy(window(100))
        }),
    };
    coordinator.submit(put).await;
    let Told::Granted(granted) = gateway.next().await else {
        panic!("a push");
    };
    let edited = granted.grants[0].policy.clone().unwrap();
    assert_eq!(edited.timescale_us, 120_000);
    assert_eq!(edited.window_us, told.window_us, "for headers");
    assert_eq!(granted.grants[0].granted_total, 10);
    coordinator.stop().await;
}

#[tokio::test]
async fn the_same_sync_twice_changes_nothing() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    let ask = lease.ask(10);
    lease.take(&gateway.sync(vec![ask.clone()]).await.grants[0]);
    // Said again before the answer was seen, under the same number.
    gateway.seq -= 1;
    let again = gateway.sync(vec![ask]).await;
    assert!(!again.renewed);
    assert_eq!(again.grants[0].granted_total, 10);
    assert_eq!(coordinator.account("acme/orders").await.outstanding, 10);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_changed_policy_is_pushed_and_told_once() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(10)]).await.grants[0]);
    coordinator.budget("acme/*", window(50)).await;
    let Told::Granted(granted) = gateway.next().await else {
        panic!("a push");
    };
    assert_eq!(granted.grants[0].policy.as_ref().unwrap().limit, 50);
    let synced = gateway.sync(vec![lease.report()]).await;
    assert_eq!(synced.grants[0].policy, None);
    coordinator.stop().await;
}

#[tokio::test]
async fn when_all_is_spent_the_refusal_says_when_to_ask_again_and_never_more_is_given() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(5)).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(8)]).await.grants[0]);
    assert_eq!(lease.granted, 5);
    lease.spent = 5;
    let synced = gateway.sync(vec![lease.ask(1)]).await;
    assert_eq!(synced.grants[0].granted_total, 5);
    let refusal = synced.grants[0].refusal.as_ref().unwrap();
    assert_eq!(refusal.code, "limit");
    // A window of 60 s, 0.1 % drift, and a little less than what has passed since.
    assert!(refusal.retry_after_us <= 60_060_001);
    assert!(refusal.retry_after_us > 30_000_000);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_key_without_a_budget_and_a_cost_above_the_limit_are_refused_for_ever() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(5)).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let unknown = Lease::none(1, "other/orders");
    let costly = KeyReport {
        waiting_head: 6,
        ..Lease::none(2, "acme/orders").ask(6)
    };
    let synced = gateway.sync(vec![unknown.ask(1), costly]).await;
    let refusals: Vec<_> = synced
        .grants
        .iter()
        .map(|grant| {
            let refusal = grant.refusal.as_ref().unwrap();
            (grant.key_id, refusal.code.as_str(), refusal.retry_after_us)
        })
        .collect();
    assert_eq!(refusals, [(1, "no_budget", 0), (2, "cost_above_limit", 0)]);
    coordinator.stop().await;
}

#[tokio::test]
async fn idle_units_are_recalled_for_a_request_that_waits_and_pushed_to_it() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    // The timescale is a second, so that a holder counts as idle after 17 ms.
    let kind = Kind::TokenBucket {
        capacity: 10,
        refill: 1,
        refill_period_us: 100_000,
    };
    coordinator.budget("acme/*", kind).await;
    let (mut rich, _) = Gateway::open(coordinator.addr, 1).await;
    let mut parked = Lease::none(4, "acme/orders");
    parked.take(&rich.sync(vec![parked.ask(10)]).await.grants[0]);
    assert_eq!(parked.granted, 10);
    coordinator
        .until(|node| node.local(|ledger| ledger.now_us()) > 0)
        .await;

    let (mut poor, _) = Gateway::open(coordinator.addr, 2).await;
    let mut lease = Lease::none(9, "acme/orders");
    let recall = loop {
        let synced = poor.sync(vec![lease.ask(1)]).await;
        let [grant] = &synced.grants[..] else {
            panic!("{synced:?}");
        };
        assert_eq!(grant.granted_total, 0);
        if grant.refusal.is_some() {
            // Not idle for long enough yet.
            continue;
        }
        let Told::Recall(recall) = rich.next().await else {
            panic!("a recall");
        };
        break recall;
    };
    assert_eq!(recall.key_id, 4);
    assert_eq!(recall.generation, parked.generation);
    assert_eq!(recall.granted_total, 10);
    assert_eq!(recall.returned_total_target, 5);
    parked.returned = 5;
    rich.sync(vec![parked.report()]).await;
    let Told::Granted(granted) = poor.next().await else {
        panic!("a push");
    };
    lease.take(&granted.grants[0]);
    assert_eq!(lease.left(), 1);
    assert_eq!(granted.grants[0].basis_seq, poor.seq);
    coordinator.stop().await;
}

#[tokio::test]
async fn units_that_come_back_by_time_are_pushed_to_who_wants_them() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    let kind = Kind::SlidingWindow {
        limit: 3,
        window_us: 200_000,
    };
    coordinator.budget("acme/*", kind).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(3)]).await.grants[0]);
    lease.spent = 3;
    let synced = gateway.sync(vec![lease.ask(1)]).await;
    assert_eq!(synced.grants[0].refusal.as_ref().unwrap().code, "limit");
    let Told::Granted(granted) = gateway.next().await else {
        panic!("a push");
    };
    lease.take(&granted.grants[0]);
    assert_eq!(lease.left(), 1);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_raised_limit_reaches_who_was_refused() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(3)).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(3)]).await.grants[0]);
    lease.spent = 3;
    gateway.sync(vec![lease.ask(2)]).await;
    coordinator.budget("acme/*", window(10)).await;
    // The rule with the edit's own entry, the units with the next.
    let Told::Granted(granted) = gateway.next().await else {
        panic!("a push");
    };
    assert_eq!(granted.grants[0].policy.as_ref().unwrap().limit, 10);
    lease.take(&granted.grants[0]);
    assert_eq!(lease.left(), 0);
    let Told::Granted(granted) = gateway.next().await else {
        panic!("a push");
    };
    lease.take(&granted.grants[0]);
    assert_eq!(lease.left(), 2);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_holder_that_claims_to_have_spent_more_than_it_was_given_gets_no_more() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(3)]).await.grants[0]);
    let lie = KeyReport {
        spent_total: u64::MAX,
        returned_total: u64::MAX,
        ..lease.report()
    };
    let synced = gateway.sync(vec![lie]).await;
    let refusal = synced.grants[0].refusal.as_ref().unwrap();
    assert_eq!(
        (refusal.code.as_str(), refusal.retry_after_us),
        ("misbehaved", 0)
    );
    let synced = gateway.sync(vec![lease.ask(1)]).await;
    assert_eq!(synced.grants[0].granted_total, 3);
    assert_eq!(
        synced.grants[0].refusal.as_ref().unwrap().code,
        "misbehaved"
    );
    assert_eq!(coordinator.account("acme/orders").await.outstanding, 3);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_policy_by_name_reaches_the_gateway_with_its_public_name() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    let mut named = policy(window(10));
    named.public_name = "reads".to_owned();
    coordinator
        .submit(Command::PutPolicy {
            name: "orders-read".to_owned(),
            policy: named,
        })
        .await;
    coordinator
        .submit(Command::PutBudget {
            pattern: leasehold_key::Pattern::parse("acme/**").unwrap(),
            rule: leasehold_ledger::entry::Rule::Named("orders-read".to_owned()),
        })
        .await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let synced = gateway
        .sync(vec![Lease::none(1, "acme/orders/read").ask(1)])
        .await;
    let info = synced.grants[0].policy.as_ref().unwrap();
    assert_eq!(info.public_name, "reads");
    coordinator.stop().await;
}
