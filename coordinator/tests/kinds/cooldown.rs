//! Once refused, a key stays refused for a while.

use std::time::{Duration, Instant};

use leasehold_client::Verdict;
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
    let body = json!({ "key": "login/jo" });
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
    assert_eq!(
        cluster.ask("POST", "/v1/spend", Some(body)).await.status,
        200
    );
    let again = async { while theirs.spend_within(1, WAIT).await != Verdict::Admitted {} };
    timeout(WAIT, again).await.unwrap();
    for gateway in [one, two] {
        timeout(WAIT, gateway.close()).await.unwrap();
    }
    cluster.end().await;
}
