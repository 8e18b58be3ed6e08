//! A bucket whose units are released one after the other.

use std::time::{Duration, Instant};

use leasehold_client::Verdict;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_released_in_order_at_the_rate_and_those_without_patience_are_refused() {
    let cluster = Cluster::start().await;
    let policy = json!({
        "kind": "paced", "capacity": 4, "refill": 40, "refill_period_ms": 1_000,
    });
    cluster.budget("mail/*", policy).await;
    let gateway = cluster.gateway("gw-1").await;
    let mail = gateway.budget("mail/out").unwrap();
    let first = timeout(WAIT, mail.spend_within(1, WAIT)).await.unwrap();
    assert_eq!(first, Verdict::Admitted);
    let begun = Instant::now();
    let sends: Vec<_> = (0..20)
        .map(|number| {
            let mail = mail.clone();
            tokio::spawn(async move {
                let verdict = mail.spend_within(1, WAIT).await;
                (verdict, begun.elapsed(), number)
            })
        })
        .collect();
    let mut sent = Vec::new();
    for send in sends {
        let (verdict, after, _number) = timeout(WAIT, send).await.unwrap().unwrap();
        assert_eq!(verdict, Verdict::Admitted);
        sent.push(after);
    }
    sent.sort_unstable();
    // 25 ms apart, as far as a timer is exact; a bucket alone would let 4 go at once.
    assert!(sent[3] >= Duration::from_millis(60), "{sent:?}");
    assert!(sent[19] >= Duration::from_millis(430), "{sent:?}");
    // One that cannot wait for its turn is told so rather than let through.
    let queue: Vec<_> = (0..20)
        .map(|_| {
            let mail = mail.clone();
            tokio::spawn(async move { mail.spend_within(1, Duration::from_millis(100)).await })
        })
        .collect();
    let mut refused = 0;
    for send in queue {
        refused += usize::from(timeout(WAIT, send).await.unwrap().unwrap() != Verdict::Admitted);
    }
    assert!(refused >= 10, "{refused} of 20 within 100 ms");
    timeout(WAIT, gateway.close()).await.unwrap();
    cluster.end().await;
}
