//! Several budgets at once.

use leasehold_client::Verdict;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_a_request_is_charged_or_none_and_a_refusal_says_by_which() {
    let cluster = Cluster::start().await;
    let window = |limit| json!({ "kind": "sliding_window", "limit": limit, "window_ms": 600_000 });
    cluster.budget("tenant/*", window(100)).await;
    cluster.budget("user/*", window(7)).await;
    cluster.budget("global", window(1_000)).await;
    let gateway = cluster.gateway("gw-1").await;
    let tenant = gateway.budget("tenant/acme").unwrap();
    let user = gateway.budget("user/jo").unwrap();
    let global = gateway.budget("global").unwrap();
    let mut admitted = 0;
    let refused = loop {
        let all = gateway.spend_all([(&tenant, 1), (&user, 1), (&global, 5)]);
        let told = timeout(WAIT, all).await.unwrap();
        if told.verdict == Verdict::Admitted {
            admitted += 1;
        } else {
            break told;
        }
    };
    assert_eq!(admitted, 7);
    let by = refused.refused_by.unwrap();
    assert_eq!((by.index, by.key.as_str()), (1, "user/jo"));
    assert!(refused.verdict.retry_after().is_some());
    timeout(WAIT, gateway.close()).await.unwrap();
    for (key, counted) in [("tenant/acme", 7), ("user/jo", 7), ("global", 35)] {
        let account = cluster.account(key).await;
        assert_eq!(account["counted"], counted, "{account}");
        assert_eq!(account["outstanding"], 0, "{account}");
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crossed_requests_of_many_gateways_all_end_and_charge_what_they_were_told() {
    let cluster = Cluster::start().await;
    let window = json!({ "kind": "sliding_window", "limit": 60, "window_ms": 600_000 });
    cluster.budget("crossed/*", window).await;
    let mut gateways = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..4 {
        let gateway = cluster.gateway(&format!("gw-{number}")).await;
        gateways.push(gateway.clone());
        tasks.push(tokio::spawn(async move {
            let a = gateway.budget("crossed/a").unwrap();
            let b = gateway.budget("crossed/b").unwrap();
            let mut admitted = 0_u64;
            for _ in 0..30 {
                let order = if number % 2 == 0 {
                    [(&a, 1), (&b, 1)]
                } else {
                    [(&b, 1), (&a, 1)]
                };
                if gateway.spend_all(order).await.verdict == Verdict::Admitted {
                    admitted += 1;
                }
            }
            admitted
        }));
    }
    let mut admitted = 0;
    for task in tasks {
        admitted += timeout(WAIT, task).await.unwrap().unwrap();
    }
    for gateway in gateways {
        timeout(WAIT, gateway.close()).await.unwrap();
    }
    assert!((40..=60).contains(&admitted), "{admitted}");
    for key in ["crossed/a", "crossed/b"] {
        assert_eq!(cluster.account(key).await["counted"], admitted);
    }
    cluster.end().await;
}
