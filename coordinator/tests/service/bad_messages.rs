//! What makes no sense is refused by name, and never harms anybody else.

use leasehold_ledger::settings::Settings;
use leasehold_proto::v1::{KeyReport, Open, SettledLease, SpentAge, Sync, client_message::Kind};
use tempfile::tempdir;

use crate::gateway::{Coordinator, Gateway, Lease, window};

fn open() -> Open {
    Open {
        holder: "gw-1".to_owned(),
        instance: vec![1; 16],
        resume: Vec::new(),
    }
}

fn report(key_id: u32, key: &str) -> KeyReport {
    KeyReport {
        key_id,
        key: key.to_owned(),
        ..KeyReport::default()
    }
}

#[tokio::test]
async fn a_first_message_that_is_no_good_open_is_refused_by_field() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    let cases = [
        (
            Kind::Sync(Sync::default()),
            "the first message must be open",
        ),
        (
            Kind::Open(Open {
                holder: String::new(),
                ..open()
            }),
            "open.holder (0 bytes) must have 1 to 128 bytes",
        ),
        (
            Kind::Open(Open {
                holder: "x".repeat(129),
                ..open()
            }),
            "open.holder (129 bytes) must have 1 to 128 bytes",
        ),
        (
            Kind::Open(Open {
                holder: "a\nb".to_owned(),
                ..open()
            }),
            "open.holder must have no control characters",
        ),
        (
            Kind::Open(Open {
                instance: vec![1; 15],
                ..open()
            }),
            "open.instance (15 bytes) must have 16 bytes",
        ),
        (
            Kind::Open(Open {
                resume: vec![1; 17],
                ..open()
            }),
            "open.resume (17 bytes) must have 16 bytes",
        ),
    ];
    for (message, detail) in cases {
        let mut gateway = Gateway::dial(coordinator.addr).await;
        gateway.say(message).await;
        let refused = gateway.refused().await;
        assert_eq!(
            (refused.code.as_str(), refused.detail.as_str()),
            ("bad_message", detail)
        );
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn a_later_message_that_makes_no_sense_is_refused_by_field() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(10)).await;
    let sync = |reports: Vec<KeyReport>| Kind::Sync(Sync { seq: 1, reports });
    let cases: Vec<(Kind, &str)> = vec![
        (Kind::Open(open()), "open must be the first message only"),
        (
            Kind::Sync(Sync::default()),
            "sync.seq (0) must be at least 1",
        ),
        (
            sync(vec![report(1, "acme/orders"); 1_025]),
            "sync.reports (1025) must be at most 1024",
        ),
        (
            sync(vec![report(1, "acme/orders"), report(2, "")]),
            "sync.reports[1].key must be stated the first time that a stream uses key_id 2",
        ),
        (
            sync(vec![report(1, "acme/orders"), report(1, "acme/carts")]),
            "sync.reports[1].key_id (1) stands for acme/orders already",
        ),
        (
            sync(vec![KeyReport {
                r#final: true,
                held: 3,
                ..report(1, "acme/orders")
            }]),
            "sync.reports[0].held (3) must be 0 in a final report",
        ),
        (
            sync(vec![KeyReport {
                spent_ages: vec![SpentAge::default(); 513],
                ..report(1, "acme/orders")
            }]),
            "sync.reports[0].spent_ages (513) must be at most 512",
        ),
        (
            sync(vec![KeyReport {
                spent_ages: vec![
                    SpentAge {
                        units: u64::MAX,
                        age_us: 0
                    };
                    2
                ],
                ..report(1, "acme/orders")
            }]),
            "sync.reports[0].spent_ages: the units must not add up to more than 2^64 - 1",
        ),
        (
            Kind::Settle(leasehold_proto::v1::Settle {
                session: vec![1; 3],
                leases: Vec::new(),
            }),
            "settle.session (3 bytes) must have 16 bytes",
        ),
    ];
    for (message, detail) in cases {
        let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
        gateway.say(message).await;
        let refused = gateway.refused().await;
        assert_eq!(
            (refused.code.as_str(), refused.detail.as_str()),
            ("bad_message", detail)
        );
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn bad_keys_are_refused_and_name_the_report() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    let long = "x".repeat(513);
    let many = vec!["a"; 17].join("/");
    for key in [
        "a//b",
        "/",
        "a/../b",
        "%zz",
        "%ff",
        long.as_str(),
        many.as_str(),
    ] {
        let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
        gateway.say_sync(vec![report(1, key)]).await;
        let refused = gateway.refused().await;
        assert_eq!(refused.code, "bad_message", "{key}");
        assert!(
            refused.detail.starts_with("sync.reports[0].key: "),
            "{}",
            refused.detail
        );

        let (mut gateway, opened) = Gateway::open(coordinator.addr, 1).await;
        let lease = SettledLease {
            key: key.to_owned(),
            ..SettledLease::default()
        };
        gateway
            .say(Kind::Settle(leasehold_proto::v1::Settle {
                session: opened.session,
                leases: vec![lease],
            }))
            .await;
        let refused = gateway.refused().await;
        assert!(
            refused.detail.starts_with("settle.leases[0].key: "),
            "{}",
            refused.detail
        );
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_its_stream_and_no_other() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    let (mut other, _) = Gateway::open(coordinator.addr, 2).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    gateway
        .say_sync(vec![report(1, &"x".repeat(5 * 1024 * 1024))])
        .await;
    let refused = gateway.refused().await;
    assert_eq!(refused.code, "bad_message");
    assert!(
        refused.detail.contains("more than 4194304 bytes"),
        "{refused:?}"
    );
    assert!(other.sync(Vec::new()).await.renewed);
    coordinator.stop().await;
}

#[tokio::test]
async fn nothing_of_a_bad_message_is_applied() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(10)).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(5)]).await.grants[0]);
    lease.spent = 5;
    gateway.say_sync(vec![lease.report(), report(2, "")]).await;
    gateway.refused().await;
    let account = coordinator.account("acme/orders").await;
    assert_eq!((account.counted, account.outstanding), (0, 5));
    coordinator.stop().await;
}

#[tokio::test]
async fn absurd_levels_and_ages_are_taken_for_what_they_can_mean() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(10)).await;
    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    let absurd = KeyReport {
        want: u64::MAX,
        waiting: u64::MAX,
        waiting_head: 1,
        wait_us: u64::MAX,
        peak: u64::MAX,
        demand_milli: u64::MAX,
        left: u64::MAX,
        held: u64::MAX,
        refused: u64::MAX,
        degraded: u64::MAX,
        ..report(1, "acme/orders")
    };
    lease.take(&gateway.sync(vec![absurd.clone(), absurd]).await.grants[0]);
    assert_eq!(lease.granted, 10);
    lease.spent = 10;
    let aged = KeyReport {
        spent_ages: vec![SpentAge {
            units: 10,
            age_us: u64::MAX,
        }],
        ..lease.report()
    };
    gateway.sync(vec![aged]).await;
    // An age never places a spend before its lease's first grant.
    assert_eq!(coordinator.account("acme/orders").await.counted, 10);
    coordinator.stop().await;
}

#[tokio::test]
async fn key_numbers_of_one_stream_are_bounded() {
    let dir = tempdir().unwrap();
    let settings = Settings {
        keys_per_session_max: 3,
        ..Settings::default()
    };
    let coordinator = Coordinator::start(&dir, settings).await;
    coordinator.budget("acme/*", window(10)).await;
    let (mut gateway, opened) = Gateway::open(coordinator.addr, 1).await;
    assert_eq!(opened.keys_per_session_max, 3);
    let keys: Vec<KeyReport> = (0..4)
        .map(|number| report(number, &format!("acme/{number}")))
        .collect();
    gateway.say_sync(keys).await;
    assert_eq!(
        gateway.refused().await.detail,
        "sync.reports[3].key_id (3): a stream has at most 3 keys"
    );
    coordinator.stop().await;
}
