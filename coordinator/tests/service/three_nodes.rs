//! Three nodes: a follower sends gateways on, and a session outlives its leader.

use std::net::{SocketAddr, TcpListener};

use leasehold_coordinator::raft::InitialMember;
use leasehold_ledger::settings::Settings;
use leasehold_proto::v1::coordinator_message::Kind as Told;
use tempfile::{TempDir, tempdir};

use crate::gateway::{Coordinator, Gateway, Lease, window};

/// Peer addresses must be known before the nodes start. A port that the system
/// hands out by itself could be given to another test's connection in the
/// meantime; those below 32,768 are not.
fn peer_addrs() -> Vec<SocketAddr> {
    let mut addrs: Vec<SocketAddr> = Vec::new();
    while addrs.len() < 3 {
        let addr = SocketAddr::from(([127, 0, 0, 1], rand::random_range(15_000..32_000)));
        if !addrs.contains(&addr) && TcpListener::bind(addr).is_ok() {
            addrs.push(addr);
        }
    }
    addrs
}

async fn cluster(dirs: &[TempDir]) -> Vec<Coordinator> {
    let addrs = peer_addrs();
    let members: Vec<InitialMember> = addrs
        .iter()
        .zip(1..)
        .map(|(addr, node_id)| InitialMember {
            node_id,
            peer_addr: addr.to_string(),
        })
        .collect();
    let starting = dirs
        .iter()
        .zip(&addrs)
        .zip(1..)
        .map(|((dir, addr), node_id)| {
            let peers = (*addr, members.clone());
            Coordinator::start_member(node_id, dir.path(), Settings::default(), peers)
        });
    futures::future::join_all(starting).await
}

async fn leader_of(nodes: &[Coordinator]) -> usize {
    let find = async {
        loop {
            if let Some(leader) = nodes.iter().position(|node| node.node.leader().is_self) {
                return leader;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::gateway::WAIT, find)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_on_under_the_next_leader_with_everything_it_had() {
    let dirs = [tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap()];
    let mut nodes = cluster(&dirs).await;
    let leader = leader_of(&nodes).await;
    nodes[leader].budget("acme/*", window(100)).await;
    let (mut gateway, opened) = Gateway::open(nodes[leader].addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(10)]).await.grants[0]);

    // A follower names the leader.
    let follower = (leader + 1) % 3;
    nodes[follower]
        .until(|node| node.leader().member.is_some())
        .await;
    let mut lost = Gateway::hello(nodes[follower].addr, 2, &[]).await;
    let Told::Moved(moved) = lost.next().await else {
        panic!("moved");
    };
    assert_eq!(moved.leader, format!("http://{}", nodes[leader].addr));
    assert_eq!(lost.try_next().await, None);

    // The leader stops: it hands over, and its streams are told to whom.
    let gone = nodes.remove(leader);
    gone.stop().await;
    let Told::Moved(moved) = gateway.next().await else {
        panic!("moved");
    };
    let next = leader_of(&nodes).await;
    if !moved.leader.is_empty() {
        assert_eq!(moved.leader, format!("http://{}", nodes[next].addr));
    }
    let mut resumed = Gateway::hello(nodes[next].addr, 1, &opened.session).await;
    let Told::Opened(again) = resumed.next().await else {
        panic!("resumed");
    };
    assert_eq!(again.leases[0].granted_total, 10);
    resumed.seq = gateway.seq;
    lease.spent = 10;
    let synced = resumed.sync(vec![lease.ask(5)]).await;
    assert!(synced.renewed);
    lease.take(&synced.grants[0]);
    assert_eq!(lease.granted, 15);
    let account = nodes[next].account("acme/orders").await;
    assert_eq!((account.counted, account.outstanding), (10, 5));

    let disks = nodes[next].node.local(|ledger| {
        (1..=3)
            .filter(|node_id| ledger.node_disk(*node_id).is_some())
            .count()
    });
    assert_eq!(disks, 3, "every member's disk is on record");
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_without_a_word_costs_a_reconnect_and_nothing_else() {
    let dirs = [tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap()];
    let mut nodes = cluster(&dirs).await;
    let leader = leader_of(&nodes).await;
    nodes[leader].budget("acme/*", window(10)).await;
    let (mut gateway, opened) = Gateway::open(nodes[leader].addr, 1).await;
    let mut lease = Lease::none(1, "acme/orders");
    lease.take(&gateway.sync(vec![lease.ask(10)]).await.grants[0]);

    let gone = nodes.remove(leader);
    gone.node.replica().shutdown().await;
    let Told::Moved(_) = gateway.next().await else {
        panic!("moved");
    };
    let next = leader_of(&nodes).await;
    let mut resumed = Gateway::hello(nodes[next].addr, 1, &opened.session).await;
    let Told::Opened(again) = resumed.next().await else {
        panic!("resumed");
    };
    assert_eq!(again.leases[0].granted_total, 10);

    // Nothing was forgotten: everything is outstanding, so nobody gets a unit.
    let (mut other, _) = Gateway::open(nodes[next].addr, 2).await;
    let synced = other.sync(vec![Lease::none(1, "acme/orders").ask(1)]).await;
    assert_eq!(synced.grants[0].granted_total, 0);
    gone.stop().await;
    for node in nodes {
        node.stop().await;
    }
}
