//! Work whose cost is known afterwards.

use leasehold_client::Settled;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn less_is_handed_back_more_is_charged_as_far_as_it_goes_and_the_rest_is_written_down() {
    let mut cluster = Cluster::start().await;
    let tokens = json!({ "kind": "sliding_window", "limit": 100, "window_ms": 600_000 });
    cluster.budget("tokens/*", tokens).await;
    let gateway = cluster.gateway("gw-1").await;
    let acme = gateway.budget("tokens/acme").unwrap();
    let hold = timeout(WAIT, acme.reserve_within(50, WAIT))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(hold.settle(20), Settled::Within { returned: 30 });
    // Dropped: nothing was used.
    let hold = timeout(WAIT, acme.reserve_within(40, WAIT))
        .await
        .unwrap()
        .unwrap();
    drop(hold);
    let hold = timeout(WAIT, acme.reserve_within(60, WAIT))
        .await
        .unwrap()
        .unwrap();
    // A leader that goes in between changes nothing.
    let leader = cluster.leader().await;
    cluster.stop(leader).await;
    // 20 are left beside these 60, and 110 are used: 30 of them nobody had.
    let Settled::Over { taken, overrun } = hold.settle(110) else {
        panic!("more than was reserved");
    };
    assert_eq!(taken + overrun, 50);
    timeout(WAIT, gateway.close()).await.unwrap();
    let account = cluster.books_say("tokens/acme", "counted", 100).await;
    let lifetime = &account["lifetime"];
    assert_eq!(lifetime["overrun"], 30, "{account}");
    let charged = lifetime["spent"].as_u64().unwrap() + lifetime["extra"].as_u64().unwrap();
    assert_eq!(charged, 100, "{account}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_nobody_settles_counts_as_spent_when_its_time_is_up() {
    let cluster = Cluster::start().await;
    let tokens = json!({
        "kind": "sliding_window", "limit": 100, "window_ms": 600_000, "hold_max_ms": 1_000,
    });
    cluster.budget("tokens/*", tokens).await;
    let gateway = cluster.gateway("gw-1").await;
    let acme = gateway.budget("tokens/acme").unwrap();
    // The policy is known from the first answer on.
    drop(
        timeout(WAIT, acme.reserve_within(1, WAIT))
            .await
            .unwrap()
            .unwrap(),
    );
    let hold = timeout(WAIT, acme.reserve_within(30, WAIT))
        .await
        .unwrap()
        .unwrap();
    cluster.books_say("tokens/acme", "counted", 30).await;
    assert_eq!(hold.settle(10), Settled::TooLate { overrun: 0 });
    timeout(WAIT, gateway.close()).await.unwrap();
    let account = cluster.account("tokens/acme").await;
    assert_eq!(
        (&account["counted"], &account["outstanding"]),
        (&json!(30), &json!(0))
    );
    cluster.end().await;
}
