//! Folders while no node runs on them.

use super::one_node::{at, config, leads};
use crate::{
    raft::{Member, Replica, ReplicaConfig, begin_from, read_stopped},
    store::{Mark, Watermark},
};

const CLUSTER: u128 = 0xabcd;

fn member(node_id: u64) -> Member {
    Member {
        node_id,
        peer_addr: "127.0.0.1:1".to_owned(),
        ..Member::default()
    }
}

/// The folder of a single node that stopped after some entries.
async fn folder_of_one(snapshot_every: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = ReplicaConfig {
        snapshot_every_entries: snapshot_every,
        snapshot_keep_entries: 2,
        ..config(4, dir.path())
    };
    let replica = Replica::start(config).await.unwrap();
    let (term, _) = leads(&replica).await;
    for now_us in 1..=40 {
        replica.propose(term, at(now_us * 1_000)).await.unwrap();
    }
    let locked = read_stopped(dir.path()).unwrap_err();
    assert_eq!(locked.code(), "store_locked");
    replica.shutdown().await;
    dir
}

/// What it left behind.
async fn left_behind(snapshot_every: u64) -> crate::raft::Remains {
    read_stopped(folder_of_one(snapshot_every).await.path()).unwrap()
}

#[tokio::test]
async fn a_stopped_nodes_folder_has_everything_up_to_the_end_of_its_log() {
    for snapshot_every in [5_000, 10] {
        let remains = left_behind(snapshot_every).await;
        assert_eq!(remains.ledger.now_us(), 40_000);
        assert_eq!(remains.last.index, remains.ledger.last_index());
        assert_eq!(remains.identity.node_id, 4);
        let members: Vec<u64> = remains
            .members
            .iter()
            .map(|member| member.node_id)
            .collect();
        assert_eq!(members, [4]);
    }
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(read_stopped(empty.path()).unwrap_err().code(), "no_data");
}

/// Whatever refuses to start must not be taken for an empty ledger either.
#[tokio::test]
async fn a_folder_that_lost_its_snapshot_is_not_read() {
    let dir = folder_of_one(10).await;
    for file in std::fs::read_dir(dir.path().join("snapshots")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let refused = read_stopped(dir.path()).unwrap_err();
    assert_eq!(refused.code(), "damaged_store", "{refused}");
}

#[tokio::test]
async fn a_new_cluster_goes_on_from_the_books_of_another_and_grows() {
    let remains = left_behind(5_000).await;
    let (ledger, _) = remains.ledger.restored(CLUSTER, 0);
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let first = begin_from(&data, member(1), &ledger, remains.last.term).unwrap();
    let occupied = begin_from(&data, member(1), &ledger, remains.last.term).unwrap_err();
    assert_eq!(occupied.code(), "folder_not_empty");

    let replica = Replica::start(config(1, &data)).await.unwrap();
    let (term, anchor_us) = leads(&replica).await;
    assert_eq!(anchor_us, 40_000, "cluster time goes on where it stood");
    assert!(term > remains.last.term);
    assert_eq!(replica.me().disk_id, first.disk_id);
    let applied = replica.propose(term, at(41_000)).await.unwrap();
    assert!(applied.index > ledger.last_index());
    let named = |replica: &Replica| replica.with_ledger(leasehold_ledger::Ledger::cluster_id);
    assert_eq!(named(&replica), Some(CLUSTER));

    // Ids are free again, and an empty node gets everything.
    let other_dir = tempfile::tempdir().unwrap();
    let waiting = ReplicaConfig {
        initial_members: vec![crate::raft::InitialMember {
            node_id: 1,
            peer_addr: replica.peer_addr().to_string(),
        }],
        ..config(4, other_dir.path())
    };
    let other = Replica::start(waiting).await.unwrap();
    let addr = other.peer_addr().to_string();
    replica.add_member(4, &addr).await.unwrap();
    let applied = replica.propose(term, at(42_000)).await.unwrap();
    other.applied(Some(applied.index)).await;
    assert_eq!(named(&other), Some(CLUSTER));
    assert_eq!(other.with_ledger(leasehold_ledger::Ledger::now_us), 42_000);
    other.shutdown().await;
    replica.shutdown().await;
    let again = read_stopped(&data).unwrap();
    assert_eq!(again.ledger.cluster_id(), Some(CLUSTER));
}

#[tokio::test]
async fn a_folder_that_was_prepared_half_way_is_not_started_on() {
    let remains = left_behind(5_000).await;
    let (ledger, _) = remains.ledger.restored(CLUSTER, 0);
    let dir = tempfile::tempdir().unwrap();
    begin_from(dir.path(), member(1), &ledger, 1).unwrap();
    // The identity is what is written last.
    std::fs::remove_file(dir.path().join("identity")).unwrap();
    let refused = Replica::start(config(1, dir.path())).await.err().unwrap();
    assert_eq!(refused.code(), "damaged_store", "{refused}");
}

#[tokio::test]
async fn a_folder_that_was_mixed_from_two_clusters_is_not_started_on() {
    let remains = left_behind(5_000).await;
    let (ledger, _) = remains.ledger.restored(CLUSTER, 0);
    let dir = tempfile::tempdir().unwrap();
    begin_from(dir.path(), member(1), &ledger, 1).unwrap();
    let mark = *Watermark::open(dir.path()).unwrap().unwrap().mark();
    assert_eq!(mark.cluster_id, Some(CLUSTER));
    let other = Mark {
        cluster_id: Some(CLUSTER + 1),
        ..mark
    };
    Watermark::create(dir.path(), other).unwrap();
    let refused = Replica::start(config(1, dir.path())).await.err().unwrap();
    assert!(
        refused.to_string().contains("belongs to cluster"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_node_remembers_its_cluster_beside_the_log() {
    use leasehold_ledger::entry::{Command, Entry};

    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::start(config(1, dir.path())).await.unwrap();
    let (term, _) = leads(&replica).await;
    let name = Entry {
        commands: vec![Command::NameCluster {
            cluster_id: CLUSTER,
        }],
        ..at(1_000)
    };
    replica.propose(term, name).await.unwrap();
    replica.shutdown().await;
    let mark = *Watermark::open(dir.path()).unwrap().unwrap().mark();
    assert_eq!(mark.cluster_id, Some(CLUSTER));
    let replica = Replica::start(config(1, dir.path())).await.unwrap();
    leads(&replica).await;
    replica.shutdown().await;
}
