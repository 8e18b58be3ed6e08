//! A limit that is tried out: it counts what it would refuse, and refuses nothing.

use leasehold_client::Verdict;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_policy_refuses_nothing_and_says_what_it_would_have() {
    let cluster = Cluster::start().await;
    let policy = json!({
        "kind": "sliding_window", "limit": 5, "window_ms": 600_000, "shadow": true,
        "max_wait_ms": 50, "cooldown_ms": 600_000,
    });
    cluster.budget("new/*", policy).await;
    let gateway = cluster.gateway("gw-1").await;
    let orders = gateway.budget("new/orders").unwrap();
    let (mut admitted, mut shadowed) = (0, 0);
    for _ in 0..20 {
        match timeout(WAIT, orders.spend(1)).await.unwrap() {
            Verdict::Admitted => admitted += 1,
            Verdict::Shadowed { code } => {
                assert_eq!(code.as_str(), "limit");
                shadowed += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((admitted, shadowed), (5, 15));
    timeout(WAIT, gateway.close()).await.unwrap();
    let account = cluster.account("new/orders").await;
    assert_eq!(account["counted"], 5, "{account}");
    assert_eq!(account["shadowed"], 15, "as the gateway told: {account}");
    assert!(account["cooling_ms"].is_null(), "{account}");
    cluster.end().await;
}
