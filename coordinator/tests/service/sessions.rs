//! Opening, renewing, resuming, ending.

use leasehold_ledger::{
    entry::{Command, SessionId},
    settings::Settings,
};
use leasehold_proto::v1::{SettledLease, coordinator_message::Kind as Told};
use tempfile::tempdir;

use crate::gateway::{Coordinator, Gateway, Lease, brisk, window};

fn id(bytes: &[u8]) -> SessionId {
    SessionId(u128::from_be_bytes(bytes.try_into().unwrap()))
}

#[tokio::test]
async fn a_silent_session_expires_and_what_it_had_is_presumed_spent_until_it_is_settled() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, brisk()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut gateway, opened) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(10)]).await.grants[0]);
    assert_eq!(gateway.refused().await.code, "session_expired");
    let account = coordinator.account("acme/orders").await;
    assert_eq!((account.counted, account.outstanding), (10, 0));
    assert_eq!(account.lifetime.presumed_spent, 10);

    let mut resumed = Gateway::hello(coordinator.addr, 1, &opened.session).await;
    assert_eq!(resumed.refused().await.code, "session_expired");

    let (mut gateway, _) = Gateway::open(coordinator.addr, 1).await;
    let spent = SettledLease {
        key: "acme/orders".to_owned(),
        generation: lease.generation,
        spent_total: 4,
    };
    for _ in 0..2 {
        let told = gateway.settle(&opened.session, vec![spent.clone()]).await;
        let Told::Settled(settled) = told else {
            panic!("{told:?}");
        };
        assert_eq!(settled.session, opened.session);
        assert_eq!(coordinator.account("acme/orders").await.counted, 4);
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn syncs_keep_a_session_alive() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, brisk()).await;
    let (mut gateway, opened) = Gateway::open(coordinator.addr, 1).await;
    let first_deadline = deadline(&coordinator, &opened.session);
    // Until cluster time has passed what the session had at first.
    while coordinator.node.local(|ledger| ledger.now_us()) <= first_deadline {
        assert!(gateway.sync(Vec::new()).await.renewed);
    }
    assert!(deadline(&coordinator, &opened.session) > first_deadline);
    coordinator.stop().await;
}

fn deadline(coordinator: &Coordinator, session: &[u8]) -> u64 {
    coordinator
        .node
        .local(|ledger| ledger.session(id(session)).unwrap().deadline_us)
}

#[tokio::test]
async fn a_resume_takes_over_restates_every_lease_and_the_old_stream_is_superseded() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut old, opened) = Gateway::open(coordinator.addr, 1).await;
    let mut one = Lease::none(1, "acme/orders");
    let mut two = Lease::none(2, "acme/carts");
    let synced = old.sync(vec![one.ask(10), two.ask(3)]).await;
    one.take(&synced.grants[0]);
    two.take(&synced.grants[1]);
    one.spent = 4;
    old.sync(vec![one.report()]).await;

    let mut new = Gateway::hello(coordinator.addr, 1, &opened.session).await;
    let Told::Opened(resumed) = new.next().await else {
        panic!("resumed");
    };
    assert_eq!(resumed.session, opened.session);
    assert_eq!(resumed.validity_us, opened.validity_us);
    let leases: Vec<_> = resumed
        .leases
        .iter()
        .map(|lease| (lease.key.as_str(), lease.granted_total, lease.spent_total))
        .collect();
    assert_eq!(leases, [("acme/carts", 3, 0), ("acme/orders", 10, 4)]);
    assert_eq!(old.refused().await.code, "superseded");

    // The numbers go on where they were, and key numbers start anew.
    new.seq = old.seq;
    let mut again = Lease {
        key_id: 77,
        ..one.clone()
    };
    let synced = new.sync(vec![again.ask(1)]).await;
    assert!(synced.renewed);
    assert!(synced.grants[0].policy.is_some(), "new to this stream");
    again.take(&synced.grants[0]);
    assert_eq!(again.granted, 11);
    coordinator.stop().await;
}

#[tokio::test]
async fn another_process_cannot_resume_a_session_that_is_spoken_for() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    let (mut gateway, opened) = Gateway::open(coordinator.addr, 1).await;
    let mut thief = Gateway::hello(coordinator.addr, 2, &opened.session).await;
    assert_eq!(thief.refused().await.code, "superseded");
    assert!(gateway.sync(Vec::new()).await.renewed);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_close_hands_everything_back() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut gateway, opened) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(10)]).await.grants[0]);
    lease.spent = 4;
    assert_eq!(
        gateway.close(vec![lease.report()]).await,
        Told::Closed(leasehold_proto::v1::Closed {})
    );
    assert_eq!(gateway.try_next().await, None);
    let account = coordinator.account("acme/orders").await;
    assert_eq!(
        (account.counted, account.outstanding, account.free),
        (4, 0, 96)
    );
    assert!(
        coordinator
            .node
            .local(|ledger| ledger.session(id(&opened.session)).is_none())
    );
    coordinator.stop().await;
}

#[tokio::test]
async fn units_of_a_session_that_closes_go_to_who_waits() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(10)).await;
    let (mut first, _) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&first.sync(vec![lease.ask(10)]).await.grants[0]);
    let (mut second, _) = Gateway::open(coordinator.addr, 2).await;
    let synced = second
        .sync(vec![Lease::none(1, "acme/orders").ask(2)])
        .await;
    assert_eq!(synced.grants[0].granted_total, 0);
    first.close(vec![lease.report()]).await;
    let Told::Granted(granted) = second.next().await else {
        panic!("a push");
    };
    assert_eq!(granted.grants[0].granted_total, 2);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_session_that_an_operator_ends_gets_no_more_and_is_not_renewed() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut gateway, opened) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(10)]).await.grants[0]);
    coordinator
        .submit(Command::EndSession {
            session: id(&opened.session),
        })
        .await;
    let synced = gateway.sync(vec![lease.ask(5)]).await;
    assert!(!synced.renewed);
    assert_eq!(synced.grants[0].granted_total, 10);
    assert_eq!(
        synced.grants[0].refusal.as_ref().unwrap().code,
        "session_ended"
    );
    assert_eq!(coordinator.account("acme/orders").await.outstanding, 10);
    coordinator.stop().await;
}

#[tokio::test]
async fn sessions_per_identity_are_bounded() {
    let dir = tempdir().unwrap();
    let settings = Settings {
        sessions_per_identity_max: 2,
        ..Settings::default()
    };
    let coordinator = Coordinator::start(&dir, settings).await;
    let _one = Gateway::open(coordinator.addr, 1).await;
    let _two = Gateway::open(coordinator.addr, 2).await;
    let mut three = Gateway::hello(coordinator.addr, 3, &[]).await;
    let refused = three.refused().await;
    assert_eq!(refused.code, "too_many_sessions");
    assert!(refused.detail.contains('2'));
    coordinator.stop().await;
}

#[tokio::test]
async fn a_restarted_node_knows_sessions_and_leases_and_leases_resume_there() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    coordinator.budget("acme/*", window(100)).await;
    let (mut gateway, opened) = Gateway::open(coordinator.addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(10)]).await.grants[0]);
    coordinator.stop().await;
    assert_eq!(gateway.refused().await.code, "shutting_down");

    let coordinator = Coordinator::start(&dir, Settings::default()).await;
    let mut resumed = Gateway::hello(coordinator.addr, 1, &opened.session).await;
    let Told::Opened(opened) = resumed.next().await else {
        panic!("resumed");
    };
    assert_eq!(opened.leases[0].granted_total, 10);
    let account = coordinator.account("acme/orders").await;
    assert_eq!(account.outstanding, 10);
    coordinator.stop().await;
}

#[tokio::test]
async fn the_first_leaders_settings_are_kept_whatever_a_later_start_says() {
    let dir = tempdir().unwrap();
    let coordinator = Coordinator::start(&dir, brisk()).await;
    coordinator.stop().await;
    let coordinator = Coordinator::start(&dir, brisk()).await;
    assert_eq!(
        coordinator.node.local(|ledger| ledger.settings().clone()),
        brisk()
    );
    coordinator.stop().await;
}
