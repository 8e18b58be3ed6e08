//! What gateways do while nobody can be asked.

use leasehold_client::Verdict;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_leader_each_policy_fails_in_its_own_way_and_what_was_let_through_is_told() {
    let mut cluster = Cluster::start_brisk().await;
    for (mode, more) in [("closed", ""), ("open", ""), ("emergency", "50")] {
        let mut policy = json!({
            "kind": "sliding_window", "limit": 100, "window_ms": 600_000, "failure_mode": mode,
        });
        if let Ok(units) = more.parse::<u64>() {
            policy["emergency_units"] = units.into();
        }
        cluster.budget(mode, policy).await;
    }
    let gateway = cluster.gateway("gw-1").await;
    let budgets: Vec<_> = ["closed", "open", "emergency"]
        .map(|key| gateway.budget(key).unwrap())
        .into();
    for budget in &budgets {
        let verdict = timeout(WAIT, budget.spend_within(1, WAIT)).await.unwrap();
        assert_eq!(verdict, Verdict::Admitted);
    }
    // Two of three nodes stop: nobody leads, and what is held ends with the session.
    cluster.stop(0).await;
    cluster.stop(0).await;
    let degraded = async {
        loop {
            match budgets[1].spend(1).await {
                Verdict::Degraded => return,
                Verdict::Admitted => {}
                // The leader has gone a moment ago.
                Verdict::Denied { .. } => {}
                other => panic!("{other:?}"),
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(WAIT, degraded).await.unwrap();
    let lasting = async {
        loop {
            let verdict = budgets[0].spend(1).await;
            if let Verdict::Unavailable { .. } = verdict {
                return verdict;
            }
        }
    };
    let verdict = timeout(WAIT, lasting).await.unwrap();
    assert!(
        verdict
            .retry_after()
            .is_some_and(|after| after.as_secs() <= 1),
        "{verdict:?}"
    );
    // A tenth of the allowance at once, and no more than all of it.
    let mut let_through = 0;
    for _ in 0..200 {
        match timeout(WAIT, budgets[2].spend(1)).await.unwrap() {
            Verdict::Degraded => let_through += 1,
            Verdict::Admitted => {}
            Verdict::Unavailable { .. } | Verdict::Denied { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=10).contains(&let_through), "{let_through}");
    cluster.end().await;
}
