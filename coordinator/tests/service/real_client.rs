//! The client crate against a real node: what both sides make of the protocol.

use std::time::Duration;

use leasehold_client::{Client, Verdict};
use leasehold_ledger::settings::Settings;
use tempfile::tempdir;
use tokio::time::timeout;

use crate::gateway::{Coordinator, WAIT, window};

async fn client(coordinator: &Coordinator, holder: &str) -> Client {
    let connected = Client::builder()
        .endpoint(format!("http://{}", coordinator.addr))
        .holder(holder)
        .connect();
    timeout(WAIT, connected).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_together_admit_the_limit_and_no_more() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(50)).await;
    let mut tasks = Vec::new();
    let mut clients = Vec::new();
    for number in 0..4 {
        let client = client(&coordinator, &format!("gw-{number}")).await;
        let orders = client.budget("acme/orders").unwrap();
        clients.push(client);
        tasks.push(tokio::spawn(async move {
            let mut admitted = 0_u64;
            for _ in 0..40 {
                match orders.spend(1).await {
                    Verdict::Admitted => admitted += 1,
                    Verdict::Denied { retry_after, .. } => assert!(retry_after.is_some()),
                    other => panic!("{other:?}"),
                }
            }
            admitted
        }));
    }
    let mut admitted = 0;
    for task in tasks {
        admitted += timeout(WAIT, task).await.unwrap().unwrap();
    }
    // A few units may be parked where nobody asked any more.
    assert!((40..=50).contains(&admitted), "{admitted}");
    for client in clients {
        timeout(WAIT, client.close()).await.unwrap();
    }
    let account = coordinator.account("acme/orders").await;
    assert_eq!((account.counted, account.outstanding), (admitted, 0));
    coordinator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_gateway_hands_back_another_that_waits_for_capacity_gets() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(10)).await;
    let rich = client(&coordinator, "rich").await;
    let orders = rich.budget("acme/orders").unwrap();
    // Ten at once leave the account with nothing free; nine are spent.
    for _ in 0..9 {
        assert_eq!(orders.spend(1).await, Verdict::Admitted);
    }
    let poor = client(&coordinator, "poor").await;
    let theirs = poor.budget("acme/orders").unwrap();
    let waits = tokio::spawn(async move { theirs.spend_within(1, WAIT).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    timeout(WAIT, rich.close()).await.unwrap();
    assert_eq!(
        timeout(WAIT, waits).await.unwrap().unwrap(),
        Verdict::Admitted
    );
    timeout(WAIT, poor.close()).await.unwrap();
    coordinator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_a_budget_is_denied_for_ever() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    let client = client(&coordinator, "gw").await;
    let verdict = client.budget("nobody/knows").unwrap().spend(1).await;
    let Verdict::Denied { code, retry_after } = verdict else {
        panic!("{verdict:?}");
    };
    assert_eq!((code.as_str(), retry_after), ("no_budget", None));
    timeout(WAIT, client.close()).await.unwrap();
    coordinator.stop().await;
}
