//! Prepaid units.

use leasehold_client::Verdict;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepaid_units_are_spent_once_and_a_top_up_is_usable_at_once_and_counts_once() {
    let mut cluster = Cluster::start().await;
    cluster
        .budget("acme/*", json!({ "kind": "total", "limit": 5 }))
        .await;
    let gateway = cluster.gateway("gw-1").await;
    let credits = gateway.budget("acme/credits").unwrap();
    let mut admitted = 0;
    while timeout(WAIT, credits.spend(1)).await.unwrap() == Verdict::Admitted {
        admitted += 1;
    }
    assert_eq!(admitted, 5);
    let top_up = json!({ "id": "invoice-1", "units": 7, "reason": "paid" });
    let path = "/v1/accounts/acme/credits/adjust";
    cluster.done("POST", path, top_up.clone()).await;
    // Whoever was refused is told, and a leader that goes takes nothing with it.
    let more = async {
        let mut admitted = 0;
        while admitted < 7 {
            if credits.spend_within(1, WAIT).await == Verdict::Admitted {
                admitted += 1;
            }
            if admitted == 3 {
                return;
            }
        }
    };
    timeout(WAIT, more).await.unwrap();
    let leader = cluster.leader().await;
    cluster.stop(leader).await;
    let repeated = cluster.done("POST", path, top_up).await;
    assert_eq!(repeated["repeated"], true, "{repeated}");
    let other = json!({ "id": "invoice-1", "units": 8, "reason": "paid" });
    assert_eq!(cluster.ask("POST", path, Some(other)).await.status, 409);
    let rest = async {
        let mut rest = 0;
        while rest < 4 {
            if credits.spend_within(1, WAIT).await == Verdict::Admitted {
                rest += 1;
            }
        }
    };
    timeout(WAIT, rest).await.unwrap();
    let verdict = timeout(WAIT, credits.spend(1)).await.unwrap();
    let is_final = matches!(
        verdict,
        Verdict::Denied {
            retry_after: None,
            ..
        }
    );
    assert!(is_final, "time frees nothing of it: {verdict:?}");
    timeout(WAIT, gateway.close()).await.unwrap();
    let account = cluster.account("acme/credits").await;
    assert_eq!(account["counted"], 12, "{account}");
    assert_eq!(account["limit"], 12, "{account}");
    cluster.end().await;
}
