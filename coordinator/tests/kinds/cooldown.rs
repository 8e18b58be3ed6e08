//! Once refused, a key stays refused for a while.

use std::time::{Duration, Instant};

use leasehold_client::{Budget, Code, Verdict};
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_key_cools_down_everywhere_and_across_leaders_and_support_can_end_it() {
    let mut cluster = Cluster::start().await;
    // Units are free again after 200 ms, but the key is not.
    let policy = json!({
        "kind": "sliding_window", "limit": 5, "window_ms": 200, "cooldown_ms": 3_000,
    });
    cluster.budget("login/*", policy).await;
    let (one, two) = (cluster.gateway("gw-1").await, cluster.gateway("gw-2").await);
    let (mine, theirs) = (
        one.budget("login/jo").unwrap(),
        two.budget("login/jo").unwrap(),
    );
    while timeout(WAIT, mine.spend(1)).await.unwrap() == Verdict::Admitted {}
    let refused = Instant::now();
    let cools = async {
        while cluster.account("login/jo").await["cooling_ms"].is_null() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(WAIT, cools).await.unwrap();
    let leader = cluster.leader().await;
    cluster.stop(leader).await;
    // Whoever asks within that time is refused, at either gateway.
    while refused.elapsed() < Duration::from_millis(2_000) {
        for budget in [&mine, &theirs] {
            let verdict = timeout(WAIT, budget.spend(1)).await.unwrap();
            let is_early = refused.elapsed() < Duration::from_millis(2_900);
            assert!(
                !is_early || verdict != Verdict::Admitted,
                "{:?}",
                refused.elapsed()
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Support ends it at once.
    let reset = json!({ "reason": "it was us" });
    cluster
        .done("POST", "/v1/accounts/login/jo/reset", reset)
        .await;
    let again = async { while theirs.spend_within(1, WAIT).await != Verdict::Admitted {} };
    timeout(WAIT, again).await.unwrap();
    for gateway in [one, two] {
        timeout(WAIT, gateway.close()).await.unwrap();
    }
    cluster.end().await;
}

/// Spends a key until it is refused, and waits until it cools down for hours.
async fn cools(cluster: &Cluster, budget: &Budget, key: &str) {
    while timeout(WAIT, budget.spend(1)).await.unwrap() == Verdict::Admitted {}
    let cools = async {
        loop {
            let is_cool = cluster.account(key).await["cooling_ms"].is_number();
            let verdict = budget.try_spend(1);
            if let Verdict::Denied { code, retry_after } = verdict
                && code == Code::Cooldown
                && is_cool
            {
                assert!(retry_after.unwrap() > Duration::from_secs(3_600));
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(WAIT, cools).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_ends_a_cool_down_at_gateways_also_of_keys_that_are_quiet() {
    let cluster = Cluster::start().await;
    let policy = json!({
        "kind": "sliding_window", "limit": 5, "window_ms": 200, "cooldown_ms": 7_200_000,
    });
    cluster.budget("login/*", policy).await;
    let gateway = cluster.gateway("gw").await;
    let by_hand = gateway.budget("login/hand").unwrap();
    let quiet = gateway.budget("login/quiet").unwrap();
    cools(&cluster, &quiet, "login/quiet").await;
    cools(&cluster, &by_hand, "login/hand").await;
    let reset = json!({ "reason": "it was us" });
    cluster
        .done("POST", "/v1/accounts/login/hand/reset", reset.clone())
        .await;
    let again = async { while by_hand.spend_within(1, WAIT).await != Verdict::Admitted {} };
    timeout(WAIT, again).await.unwrap();
    // Nobody has asked for this one for many of its windows.
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster
        .done("POST", "/v1/accounts/login/quiet/reset", reset)
        .await;
    let again = async { while quiet.spend_within(1, WAIT).await != Verdict::Admitted {} };
    timeout(WAIT, again).await.unwrap();
    timeout(WAIT, gateway.close()).await.unwrap();
    cluster.end().await;
}
