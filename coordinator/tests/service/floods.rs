//! Messages that cost their sender little must not cost everybody else a lot.

use leasehold_ledger::settings::Settings;
use leasehold_proto::v1::{
    Close, KeyReport, client_message::Kind, coordinator_message::Kind as Told,
};
use tempfile::tempdir;

use crate::gateway::{Coordinator, Gateway, window};

/// Reports in one sync that are taken.
const REPORTS_MAX: u32 = 1_024;

fn named(key_id: u32) -> KeyReport {
    KeyReport {
        key_id,
        key: format!("acme/{key_id}"),
        ..KeyReport::default()
    }
}

#[tokio::test]
async fn a_close_that_would_fill_an_entry_ends_its_stream_and_no_other() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("**", window(10)).await;
    let (mut other, _) = Gateway::open(coordinator.addr, 2).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let name = KeyReport {
        key_id: 1,
        key: "x".repeat(512),
        ..KeyReport::default()
    };
    gateway.sync(vec![name]).await;
    // A few bytes each, but the entry would state the whole key with every one.
    let brief = KeyReport {
        key_id: 1,
        generation: 1,
        ..KeyReport::default()
    };
    gateway
        .say(Kind::Close(Close {
            seq: 2,
            reports: vec![brief; 200_000],
        }))
        .await;
    let refused = gateway.refused().await;
    assert_eq!(
        (refused.code.as_str(), refused.detail.as_str()),
        ("bad_message", "close.reports (200000) must be at most 1024")
    );
    assert!(other.sync(Vec::new()).await.renewed);
    coordinator.stop().await;
}

#[tokio::test]
async fn recalls_of_very_many_keys_at_once_do_not_cost_a_holder_its_stream() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(10)).await;
    let ask = |key_id: u32, units: u64| KeyReport {
        want: units,
        waiting: units,
        waiting_head: 1,
        ..named(key_id)
    };
    let (mut holder, _) = Gateway::open(coordinator.addr, 1).await;
    let all: Vec<KeyReport> = (0..REPORTS_MAX).map(|key_id| ask(key_id, 10)).collect();
    let synced = holder.sync(all).await;
    assert_eq!(synced.grants.len(), 1_024);
    let idle: Vec<KeyReport> = synced
        .grants
        .iter()
        .map(|grant| KeyReport {
            generation: grant.generation,
            granted_seen: grant.granted_total,
            left: grant.granted_total,
            ..named(grant.key_id)
        })
        .collect();
    holder.sync(idle).await;

    let (mut other, _) = Gateway::open(coordinator.addr, 2).await;
    let all: Vec<KeyReport> = (0..REPORTS_MAX).map(|key_id| ask(key_id, 1)).collect();
    other.say_sync(all).await;
    let mut recalls = 0;
    while recalls < 64 {
        match holder.next().await {
            Told::Recall(_) => recalls += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(holder.sync(Vec::new()).await.renewed);
    coordinator.stop().await;
}
