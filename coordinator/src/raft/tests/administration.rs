//! Changes by operators, and what nodes say by themselves.

use std::{fs, path::Path, time::Duration};

use super::three_nodes::Cluster;
use crate::{
    clock,
    raft::{ChangeError, Dismissal, Replica, Role, begin_from},
};

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let looked = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, looked).await.is_ok(),
        "never: {what}"
    );
}

/// The members' ids and roles, as whoever leads knows them.
async fn members(cluster: &Cluster) -> Vec<(u64, Role)> {
    let (leader, _) = cluster.leader().await;
    let status = cluster.running[&leader].local_status();
    let members = status.members.iter();
    members
        .map(|status| (status.member.node_id, status.role))
        .collect()
}

#[tokio::test]
async fn a_dead_member_is_replaced_in_one_step_and_a_repeated_call_changes_nothing() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(1).await;
    let (leader, _) = cluster.leader().await;
    let dead = leader % 3 + 1;
    cluster.stop(dead).await;
    let addr = cluster.furnish(4).to_string();
    cluster.start(4).await;
    let replace = async |cluster: &Cluster, old: u64| {
        cluster
            .change(async |replica| replica.replace_member(old, 4, &addr).await)
            .await
    };
    assert_eq!(
        replace(&cluster, 9).await,
        Err(ChangeError::NoSuchMember(9))
    );
    assert_eq!(replace(&cluster, 4).await, Err(ChangeError::NodeIdInUse(4)));
    assert_eq!(replace(&cluster, dead).await.unwrap().node_id, 4);
    let expected: Vec<(u64, Role)> = (1..=4)
        .filter(|node_id| *node_id != dead)
        .map(|node_id| (node_id, Role::Voter))
        .collect();
    assert_eq!(members(&cluster).await, expected);
    assert_eq!(replace(&cluster, dead).await.unwrap().node_id, 4);
    assert_eq!(members(&cluster).await, expected);
    cluster.write(2).await;
    cluster.reaches(4, 2).await;
    cluster.stop_all().await;
}

#[tokio::test]
async fn a_removal_that_would_lose_the_majority_is_refused() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(1).await;
    let (leader, _) = cluster.leader().await;
    let (dead, alive) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    cluster.stop(dead).await;
    // Heard of a moment ago, it still counts.
    let silent = cluster.config(dead).election_max;
    tokio::time::sleep(silent).await;
    let remove = async |cluster: &Cluster, node_id: u64| {
        let removed = cluster.change(async |replica| replica.remove_member(node_id).await);
        // A change that no majority can make would never be answered.
        let answered = tokio::time::timeout(PATIENCE, removed).await;
        answered.expect("an answer in time")
    };
    let refused = remove(&cluster, alive).await;
    let Err(ChangeError::QuorumAtRisk {
        node_id,
        answering,
        voters,
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((node_id, answering.len(), voters.len()), (alive, 1, 2));
    assert_eq!(members(&cluster).await.len(), 3, "nothing was changed");
    // The dead one first; then the other may go as well.
    remove(&cluster, dead).await.unwrap();
    remove(&cluster, alive).await.unwrap();
    cluster.write(2).await;
    let last = members(&cluster).await[0].0;
    assert_eq!(
        remove(&cluster, last).await,
        Err(ChangeError::LastVoter(last))
    );
    cluster.stop_all().await;
}

#[tokio::test]
async fn a_removed_node_says_so_and_stops() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(1).await;
    let (leader, _) = cluster.leader().await;
    let gone = leader % 3 + 1;
    let removed = async |replica: &Replica| replica.remove_member(gone).await;
    cluster.change(removed).await.unwrap();
    let replica = cluster.running[&gone].clone();
    let mut fatal = replica.fatal();
    let said = tokio::time::timeout(PATIENCE, fatal.wait_for(Option::is_some)).await;
    let said = said.expect("it says so in time").unwrap().clone().unwrap();
    assert!(
        said.starts_with(&format!("node {gone} was removed from its cluster")),
        "{said}"
    );
    assert_eq!(replica.dismissal(), Some(Dismissal::Removed));
    let others = cluster.running.iter().filter(|(id, _)| **id != gone);
    for (_, other) in others {
        assert!(other.fatal().borrow().is_none());
    }
    drop(replica);
    cluster.write(2).await;
    cluster.stop_all().await;
}

#[tokio::test]
async fn the_node_whose_wall_clock_is_wrong_says_so_and_no_other() {
    let mut cluster = Cluster::new(3);
    let mut configs: Vec<_> = (1..=3).map(|node_id| cluster.config(node_id)).collect();
    configs[1].wall_unix_us = || clock::wall_unix_us() + 3_600_000_000;
    let started = futures::future::join_all(configs.into_iter().map(Replica::start)).await;
    for (node_id, replica) in (1..).zip(started) {
        cluster.running.insert(node_id, replica.unwrap());
    }
    cluster.write(1).await;
    let wrong = cluster.running[&2].clone();
    eventually("node 2 knows that its clock is far", || {
        wrong.wall_clock().is_far
    })
    .await;
    let behind_us = -wrong.wall_clock().others_ahead_us;
    assert!(
        (3_590_000_000..3_610_000_000).contains(&behind_us),
        "{behind_us}"
    );
    for node_id in [1, 3] {
        assert!(!cluster.running[&node_id].wall_clock().is_far);
    }
    // It may lead all the same: no decision depends on wall clocks.
    drop(wrong);
    cluster.write(2).await;
    cluster.stop_all().await;
}

#[tokio::test]
async fn nodes_of_a_cluster_that_was_restored_elsewhere_stop_by_themselves() {
    use leasehold_ledger::entry::{Command, Entry};

    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    let (leader, term) = cluster.leader().await;
    let name = Entry {
        now_us: 1,
        commands: vec![Command::NameCluster { cluster_id: 7 }],
        ..Entry::default()
    };
    cluster.running[&leader].propose(term, name).await.unwrap();
    cluster.write(2).await;
    let backup = cluster.running[&leader].with_ledger(Clone::clone);
    // The operator restores on one node and forgets that the others run.
    cluster.stop(1).await;
    let (restored, _) = backup.restored(8, 0);
    let folder = tempfile::tempdir().unwrap();
    cluster.dirs.insert(1, folder);
    let first = crate::raft::Member {
        node_id: 1,
        peer_addr: cluster.addrs[&1].to_string(),
        ..crate::raft::Member::default()
    };
    begin_from(cluster.dirs[&1].path(), first, &restored, term).unwrap();
    cluster.start(1).await;
    for old in [2, 3] {
        let replica = cluster.running[&old].clone();
        let mut fatal = replica.fatal();
        let said = tokio::time::timeout(PATIENCE, fatal.wait_for(Option::is_some)).await;
        let said = said.expect("it says so in time").unwrap().clone().unwrap();
        assert!(said.contains("restored from a backup"), "{said}");
        assert_eq!(replica.dismissal(), Some(Dismissal::ClusterReplaced));
    }
    let new = cluster.running[&1].clone();
    assert!(
        matches!(new.old_node(), Some(2 | 3)),
        "{:?}",
        new.old_node()
    );
    assert_eq!(new.dismissal(), None);
    drop(new);
    cluster.stop_all().await;
}

/// Waits until the others have heard what a node has durable up to an entry.
async fn claimed(cluster: &Cluster, node_id: u64, upto: u64) {
    eventually("the others have heard it", || {
        let others = cluster.running.iter().filter(|(id, _)| **id != node_id);
        let mut claims = others.map(|(_, other)| other.claims().hear(node_id, 0));
        claims.all(|claim| claim >= upto)
    })
    .await;
}

/// A copy of a data folder, as a snapshot of its disk would be.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let path = item.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[tokio::test]
async fn a_node_does_not_start_on_an_old_copy_of_its_folder() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(1).await;
    let (leader, _) = cluster.leader().await;
    let node = leader % 3 + 1;
    cluster.reaches(node, 1).await;
    cluster.stop(node).await;
    // As it was when the node was started for the first time.
    let empty = tempfile::tempdir().unwrap();
    let identity = fs::read_to_string(cluster.dirs[&node].path().join("identity")).unwrap();
    let (body, _) = identity.split_once("crc32").unwrap();
    let body = body.replace("took_part true", "took_part false");
    let sum = crc32fast::hash(body.as_bytes());
    let identity = format!("{body}crc32 {sum:08x}\n");
    fs::write(empty.path().join("identity"), identity).unwrap();
    let old = tempfile::tempdir().unwrap();
    copy(cluster.dirs[&node].path(), old.path());
    // An unchanged folder is its newest state.
    cluster.start(node).await;
    for now_us in 2..=10 {
        cluster.write(now_us).await;
    }
    cluster.reaches(node, 10).await;
    let upto = cluster.running[&node].local_status().last_log.unwrap();
    claimed(&cluster, node, upto).await;
    cluster.stop(node).await;
    let newest = cluster.dirs.remove(&node).unwrap();
    for copy in [old, empty] {
        cluster.dirs.insert(node, copy);
        let refused = Replica::start(cluster.config(node)).await;
        let refused = refused.err().expect("it has forgotten what it confirmed");
        assert_eq!(refused.code(), "store_rolled_back");
        let said = refused.to_string();
        assert!(said.contains(&format!("entry {upto} durable")), "{said}");
    }
    // Nothing was changed, and nothing is wrong with the newest one.
    cluster.dirs.insert(node, newest);
    cluster.start(node).await;
    cluster.write(11).await;
    cluster.reaches(node, 11).await;
    cluster.stop_all().await;
}

#[tokio::test]
async fn a_node_that_runs_beside_a_newer_one_on_a_copy_of_its_folder_stops() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(1).await;
    let (leader, _) = cluster.leader().await;
    let node = leader % 3 + 1;
    cluster.reaches(node, 1).await;
    let original = cluster.running[&node].clone();
    let upto = original.local_status().last_log.unwrap();
    claimed(&cluster, node, upto).await;
    // The others hear of entries from it that it does not have: a copy got them.
    for other in cluster.running.iter().filter(|(id, _)| **id != node) {
        other.1.claims().hear(node, upto + 1_000);
    }
    let mut fatal = original.fatal();
    let said = tokio::time::timeout(PATIENCE, fatal.wait_for(Option::is_some)).await;
    let said = said.expect("it says so in time").unwrap().clone().unwrap();
    assert!(said.contains("copy of its data folder"), "{said}");
    cluster.stop_all().await;
}
