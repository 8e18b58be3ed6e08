//! Who is served first when there is too little for all.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use leasehold_client::Verdict;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_a_flood_of_the_low_lane_the_high_one_is_served() {
    let cluster = Cluster::start().await;
    let policy = json!({
        "kind": "token_bucket", "capacity": 40, "refill": 100, "refill_period_ms": 1_000,
        "lanes": [
            { "name": "payment", "reserve": 15, "max_wait_ms": 5_000 },
            { "name": "anonymous", "max_wait_ms": 50 },
        ],
    });
    cluster.budget("api/*", policy).await;
    let floods = Arc::new(AtomicBool::new(true));
    let mut gateways = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..3 {
        let gateway = cluster.gateway(&format!("gw-{number}")).await;
        let lane = gateway.budget("api/shop").unwrap().lane("anonymous");
        let floods = Arc::clone(&floods);
        gateways.push(gateway);
        tasks.push(tokio::spawn(async move {
            let (mut admitted, mut refused) = (0_u64, 0_u64);
            while floods.load(Ordering::Relaxed) {
                match lane.spend(1).await {
                    Verdict::Admitted => admitted += 1,
                    _ => {
                        refused += 1;
                        tokio::task::yield_now().await;
                    }
                }
            }
            (admitted, refused)
        }));
    }
    let gateway = cluster.gateway("shop").await;
    let payment = gateway.budget("api/shop").unwrap().lane("payment");
    // Half of what refills, while the others take whatever they can.
    let mut paid = 0;
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(20));
    for _ in 0..100 {
        ticks.tick().await;
        if timeout(WAIT, payment.spend(1)).await.unwrap() == Verdict::Admitted {
            paid += 1;
        }
    }
    floods.store(false, Ordering::Relaxed);
    let mut flood = (0, 0);
    for task in tasks {
        let (admitted, refused) = timeout(WAIT, task).await.unwrap().unwrap();
        flood = (flood.0 + admitted, flood.1 + refused);
    }
    assert!(paid >= 98, "{paid} of 100 payments beside {flood:?}");
    assert!(flood.0 > 0 && flood.1 > flood.0, "{flood:?}");
    gateways.push(gateway);
    for gateway in gateways {
        timeout(WAIT, gateway.close()).await.unwrap();
    }
    cluster.end().await;
}
