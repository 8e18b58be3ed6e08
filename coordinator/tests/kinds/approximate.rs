//! Budgets that gateways count by themselves.

use leasehold_client::Verdict;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_estimate_says_so_never_waits_and_stays_within_what_is_documented() {
    let cluster = Cluster::start_brisk().await;
    let policy = json!({ "kind": "estimate", "limit": 120, "window_ms": 600_000 });
    cluster.budget("search/*", policy).await;
    let mut gateways = Vec::new();
    for number in 0..3 {
        let gateway = cluster.gateway(&format!("gw-{number}")).await;
        let search = gateway.budget("search/all").unwrap();
        // The first one asks what kind of budget it is.
        let first = timeout(WAIT, search.spend_within(1, WAIT)).await.unwrap();
        assert_eq!(first, Verdict::Estimated);
        gateways.push((gateway, search));
    }
    // Everybody is told of everybody else, and has a third of what is free by then.
    cluster.books_say("search/all", "lease_count", 3).await;
    cluster
        .until("everybody has its third", |_| {
            let all = gateways.iter();
            let mut here = all.map(|(_, search)| search.peek().here);
            here.all(|here| (35..=40).contains(&here)).then_some(())
        })
        .await;
    // A flood that is spread evenly over the gateways.
    let mut admitted = 3_u64;
    for _ in 0..2_000 {
        for (_, search) in &gateways {
            match search.try_spend(1) {
                Verdict::Estimated => admitted += 1,
                Verdict::Denied { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        tokio::task::yield_now().await;
    }
    assert!((60..=204).contains(&admitted), "{admitted} of 120");
    for (gateway, _) in gateways {
        timeout(WAIT, gateway.close()).await.unwrap();
    }
    let account = cluster.account("search/all").await;
    assert_eq!(
        account["counted"], admitted,
        "everybody told what was admitted: {account}"
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlimited_budget_counts_what_it_never_refuses() {
    let mut cluster = Cluster::start_brisk().await;
    cluster
        .budget("meter/*", json!({ "kind": "unlimited" }))
        .await;
    let gateway = cluster.gateway("gw-1").await;
    let meter = gateway.budget("meter/a").unwrap();
    let mut admitted = 0_u64;
    for round in 0..3 {
        for _ in 0..500 {
            let verdict = timeout(WAIT, meter.spend(1)).await.unwrap();
            assert!(verdict.is_allowed(), "{verdict:?}");
            admitted += u64::from(verdict == Verdict::Admitted);
        }
        if round == 0 {
            let leader = cluster.leader().await;
            cluster.stop(leader).await;
        }
    }
    // Until the next leader is there, what is spent may be marked as degraded.
    assert!(admitted >= 500, "{admitted}");
    timeout(WAIT, gateway.close()).await.unwrap();
    let account = cluster.account("meter/a").await;
    assert_eq!(account["lifetime"]["spent"], admitted, "{account}");
    cluster.end().await;
}
