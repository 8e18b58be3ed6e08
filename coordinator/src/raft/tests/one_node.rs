use std::{path::Path, time::Duration};

use leasehold_ledger::entry::{Command, Entry};

use crate::raft::{Leadership, ProposeError, Replica, ReplicaConfig};

pub(super) fn config(node_id: u64, dir: &Path) -> ReplicaConfig {
    ReplicaConfig {
        heartbeat: Duration::from_millis(50),
        election_min: Duration::from_millis(200),
        election_max: Duration::from_millis(400),
        ..ReplicaConfig::new(node_id, dir.to_path_buf())
    }
}

pub(super) async fn leads(replica: &Replica) -> (u64, u64) {
    let mut leadership = replica.leadership();
    let seen = leadership.wait_for(|seen| matches!(seen, Leadership::Leading { .. }));
    let seen = tokio::time::timeout(Duration::from_secs(20), seen)
        .await
        .expect("a leader in time")
        .unwrap();
    match &*seen {
        Leadership::Leading {
            term, anchor_us, ..
        } => (*term, *anchor_us),
        Leadership::Following { .. } => unreachable!(),
    }
}

pub(super) fn at(now_us: u64) -> Entry {
    Entry {
        now_us,
        ..Entry::default()
    }
}

#[tokio::test]
async fn a_single_node_leads_by_itself_and_remembers_everything_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::start(config(1, dir.path())).await.unwrap();
    let (term, anchor_us) = leads(&replica).await;
    assert_eq!(anchor_us, 0);
    let applied = replica.propose(term, at(1_000)).await.unwrap();
    assert_eq!(applied.now_us, 1_000);
    replica.read_barrier().await.unwrap();
    assert_eq!(replica.with_ledger(leasehold_ledger::Ledger::now_us), 1_000);
    replica.shutdown().await;

    let replica = Replica::start(config(1, dir.path())).await.unwrap();
    let (next_term, anchor_us) = leads(&replica).await;
    assert!(
        next_term > term,
        "a restarted leader stands for election again"
    );
    assert_eq!(anchor_us, 1_000, "cluster time stood still");
    let status = replica.status().await;
    assert_eq!(status.leader, Some(1));
    assert_eq!(status.members.len(), 1);
    assert_eq!(status.members[0].digest_agrees, Some(true));
    replica.shutdown().await;
}

#[tokio::test]
async fn an_entry_stamped_in_another_term_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::start(config(1, dir.path())).await.unwrap();
    let (term, _) = leads(&replica).await;
    let early = crate::raft::propose::propose(&replica.core(), term + 1, &at(5)).await;
    assert!(
        matches!(early, Err(ProposeError::NotLeader { .. })),
        "{early:?}"
    );
    let late = replica.propose(term - 1, at(5)).await;
    assert!(
        matches!(late, Err(ProposeError::NotLeader { .. })),
        "{late:?}"
    );
    assert_eq!(replica.with_ledger(leasehold_ledger::Ledger::now_us), 0);
}

#[tokio::test]
async fn snapshots_cut_the_log_and_a_restart_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let small = || ReplicaConfig {
        snapshot_every_entries: 20,
        snapshot_keep_entries: 5,
        ..config(1, dir.path())
    };
    let replica = Replica::start(small()).await.unwrap();
    let (term, _) = leads(&replica).await;
    for now_us in 1..=100 {
        replica.propose(term, at(now_us)).await.unwrap();
    }
    let register = Command::RegisterNode {
        node_id: 77,
        disk_id: 7,
    };
    replica
        .propose(
            term,
            Entry {
                commands: vec![register],
                ..at(101)
            },
        )
        .await
        .unwrap();
    let cut = |metrics: &openraft::RaftMetrics<_>| {
        metrics.purged.as_ref().is_some_and(|at| at.index() > 50)
    };
    replica
        .core()
        .wait(Some(Duration::from_secs(10)))
        .metrics(cut, "the log is cut")
        .await
        .unwrap();
    replica.shutdown().await;

    let replica = Replica::start(small()).await.unwrap();
    leads(&replica).await;
    assert_eq!(replica.with_ledger(leasehold_ledger::Ledger::now_us), 101);
    assert_eq!(replica.with_ledger(|ledger| ledger.node_disk(77)), Some(7));
    replica.shutdown().await;
}

#[tokio::test]
async fn a_data_folder_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _running = Replica::start(config(1, dir.path())).await.unwrap();
    let refused = Replica::start(config(1, dir.path()))
        .await
        .err()
        .expect("refused");
    assert_eq!(refused.code(), "store_locked", "{refused}");
}

#[tokio::test]
async fn an_address_that_no_peer_can_dial_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let everywhere = ReplicaConfig {
        peer_listen: "0.0.0.0:0".parse().unwrap(),
        ..config(1, dir.path())
    };
    let refused = Replica::start(everywhere).await.err().expect("refused");
    assert_eq!(refused.code(), "invalid_config", "{refused}");
}

#[tokio::test]
async fn a_port_in_use_and_a_folder_of_another_node_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::start(config(1, dir.path())).await.unwrap();
    let other = tempfile::tempdir().unwrap();
    let same_port = ReplicaConfig {
        peer_listen: replica.peer_addr(),
        ..config(1, other.path())
    };
    let refused = Replica::start(same_port).await.err().expect("refused");
    assert_eq!(refused.code(), "port_in_use", "{refused}");
    replica.shutdown().await;
    let refused = Replica::start(config(2, dir.path()))
        .await
        .err()
        .expect("refused");
    assert_eq!(refused.code(), "invalid_config", "{refused}");
}

#[tokio::test]
async fn a_write_that_fails_stops_the_replica_and_an_entry_too_long_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let replica = Replica::start(config(1, dir.path())).await.unwrap();
    let (term, _) = leads(&replica).await;
    let open = Command::Open {
        session: leasehold_ledger::entry::SessionId(1),
        holder: "x".repeat(33 << 20),
        identity: String::new(),
    };
    let refused = replica
        .propose(
            term,
            Entry {
                commands: vec![open],
                ..at(1)
            },
        )
        .await;
    assert!(
        matches!(refused, Err(ProposeError::TooLong { .. })),
        "{refused:?}"
    );
    replica.propose(term, at(2)).await.unwrap();

    // Past the guard, the store cannot take it: as good as a disk that fails.
    let too_long = crate::raft::types::Proposal(vec![0; 65 << 20].into());
    let core = replica.core();
    core.client_write(too_long).await.map(|_| ()).unwrap_err();
    let mut fatal = replica.fatal();
    let reason =
        tokio::time::timeout(Duration::from_secs(10), fatal.wait_for(Option::is_some)).await;
    let reason = reason.expect("a reason in time").unwrap().clone().unwrap();
    assert!(reason.contains("cannot be stored"), "{reason}");
    let refused = replica.propose(term, at(3)).await;
    assert!(
        matches!(
            refused,
            Err(ProposeError::Stopped | ProposeError::NotLeader { .. })
        ),
        "{refused:?}"
    );
    replica.shutdown().await;
    // What was acknowledged is there.
    let replica = Replica::start(config(1, dir.path())).await.unwrap();
    leads(&replica).await;
    assert_eq!(replica.with_ledger(leasehold_ledger::Ledger::now_us), 2);
}
