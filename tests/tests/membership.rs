//! Nodes come and go by command: real processes and the `leasehold` binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use leasehold_tests::LocalCluster;
use serde_json::Value;

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn leasehold(cluster: &LocalCluster, node: usize, arguments: &[&str]) -> Output {
    let endpoint = &cluster.endpoints()[node];
    Command::new(LEASEHOLD)
        .args(arguments)
        .args(["--endpoint", endpoint])
        .output()
        .unwrap()
}

/// Runs a command until it is done; leadership may move on a busy machine.
fn done(cluster: &LocalCluster, node: usize, arguments: &[&str]) -> String {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let output = leasehold(cluster, node, arguments);
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(Instant::now() < give_up, "{arguments:?}: {said}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Three nodes that form a cluster, and a fourth that waits to be added.
fn three_and_one() -> (LocalCluster, String) {
    let dir = tempfile::tempdir().unwrap();
    let ports = LocalCluster::free_ports(8).unwrap();
    let (clients, peers) = ports.split_at(4);
    let mut members = String::new();
    for (peer, id) in peers[..3].iter().zip(1..) {
        writeln!(
            members,
            "[[initial_members]]\nnode_id = {id}\npeer = '127.0.0.1:{peer}'"
        )
        .unwrap();
    }
    let mut files = Vec::new();
    for ((client, peer), id) in clients.iter().zip(peers).zip(1..) {
        let data = dir.path().join(format!("node{id}"));
        let file = dir.path().join(format!("node{id}.toml"));
        let text = format!(
            "node_id = {id}\ndata_dir = '{}'\nlisten = '127.0.0.1:{client}'\npeer_listen = '127.0.0.1:{peer}'\n{members}",
            data.display()
        );
        fs::write(&file, text).unwrap();
        files.push((file, SocketAddr::from(([127, 0, 0, 1], *client))));
    }
    let cluster = LocalCluster::from_files(Path::new(LEASEHOLD), dir, files).unwrap();
    (cluster, format!("127.0.0.1:{}", peers[3]))
}

fn member_ids(cluster: &LocalCluster, node: usize) -> Vec<u64> {
    let printed = done(cluster, node, &["cluster", "--json"]);
    let status: Value = serde_json::from_str(&printed).unwrap();
    let members = status["members"].as_array().unwrap().iter();
    members
        .map(|member| member["node_id"].as_u64().unwrap())
        .collect()
}

#[test]
fn a_dead_node_is_replaced_the_majority_is_kept_and_who_was_removed_stops() {
    let (mut cluster, fourth) = three_and_one();
    // The fourth one is ready once it is a member.
    let leader = cluster.wait_leader(PATIENCE).unwrap();
    let dead = (leader.node + 1) % 3;
    let other = (leader.node + 2) % 3;
    let id = |node: usize| (node + 1).to_string();
    // Once it knows whom it belongs to: before, it would have nobody to ask.
    let give_up = Instant::now() + PATIENCE;
    while !cluster
        .get_from(dead, "/readyz")
        .is_ok_and(|answer| answer.status == 200)
    {
        assert!(Instant::now() < give_up, "{}", cluster.log_tail(dead));
        thread::sleep(Duration::from_millis(20));
    }
    cluster.kill(dead);
    done(
        &cluster,
        leader.node,
        &["cluster", "replace", &id(dead), "4", &fourth],
    );
    let mut expected = vec![leader.node as u64 + 1, other as u64 + 1, 4];
    expected.sort_unstable();
    assert_eq!(member_ids(&cluster, leader.node), expected);
    cluster.wait_ready(PATIENCE).unwrap();

    // Who comes back after it was removed says so, once, and stops.
    cluster.restart(dead).unwrap();
    let give_up = Instant::now() + PATIENCE;
    while cluster.is_running(dead) {
        assert!(Instant::now() < give_up, "{}", cluster.log_tail(dead));
        thread::sleep(Duration::from_millis(50));
    }
    let log = cluster.log_tail(dead);
    assert!(log.contains("was removed from its cluster"), "{log}");
    assert_eq!(log.matches("(removed)").count(), 1, "{log}");
    assert_eq!(
        log.matches("was removed from its cluster").count(),
        1,
        "{log}"
    );

    done(&cluster, leader.node, &["cluster", "transfer", &id(other)]);
    // With one of three dead, another must not go. Heard of a moment ago, it still
    // counts as alive: for the longest election timeout, which is one second.
    cluster.kill(3);
    thread::sleep(Duration::from_millis(1_500));
    let leads = cluster.wait_leader(PATIENCE).unwrap().node;
    let follows = if leads == other { leader.node } else { other };
    let give_up = Instant::now() + PATIENCE;
    let said = loop {
        let refused = leasehold(&cluster, leads, &["cluster", "remove", &id(follows)]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        // Anything else: leadership moved.
        if said.contains("(quorum_at_risk)") || Instant::now() > give_up {
            break said;
        }
        thread::sleep(Duration::from_millis(100));
    };
    assert!(
        said.contains("remove them first (quorum_at_risk)"),
        "{said}"
    );
    done(&cluster, leads, &["cluster", "remove", "4"]);
    done(&cluster, leads, &["cluster", "remove", &id(follows)]);
    assert_eq!(member_ids(&cluster, leads), [leads as u64 + 1]);
}
