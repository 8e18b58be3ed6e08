//! What members say of themselves: their wall clocks, and the format they read.

use super::{administration::eventually, three_nodes::Cluster};
use crate::{
    clock,
    raft::{Replica, ReplicaConfig},
};

const HOUR_US: u64 = 3_600_000_000;
/// How late the majority's time may be in a busy machine's tests.
const LATE_US: i64 = 30_000_000;

async fn start(cluster: &mut Cluster, change: impl Fn(&mut ReplicaConfig)) {
    let ids = cluster.dirs.keys().copied();
    let mut configs: Vec<_> = ids.map(|node_id| cluster.config(node_id)).collect();
    configs.iter_mut().for_each(change);
    let ids = configs.iter().map(|config| config.node_id);
    let ids: Vec<u64> = ids.collect();
    let started = futures::future::join_all(configs.into_iter().map(Replica::start)).await;
    for (node_id, replica) in ids.into_iter().zip(started) {
        cluster.running.insert(node_id, replica.unwrap());
    }
}

/// Says what the majority's clock is ahead of this machine's; none: there is none.
fn ahead_us(replica: &Replica) -> Option<i64> {
    let said = replica.majority_wall_unix_us()?;
    Some(i64::try_from(i128::from(said) - i128::from(clock::wall_unix_us())).unwrap())
}

fn is_right(replica: &Replica) -> bool {
    ahead_us(replica).is_some_and(|ahead_us| (-LATE_US..=0).contains(&ahead_us))
}

#[tokio::test]
async fn one_wrong_wall_clock_of_three_moves_the_majoritys_nowhere() {
    for wrong in [(|| clock::wall_unix_us() + HOUR_US) as fn() -> u64, || {
        clock::wall_unix_us() - HOUR_US
    }] {
        let mut cluster = Cluster::new(3);
        start(&mut cluster, |config| {
            if config.node_id == 2 {
                config.wall_unix_us = wrong;
            }
        })
        .await;
        cluster.write(1).await;
        for replica in cluster.running.values() {
            eventually("two of three agree", || is_right(replica)).await;
        }
        cluster.stop_all().await;
    }
}

#[tokio::test]
async fn of_two_that_answer_both_must_say_so_and_one_alone_agrees_with_nobody() {
    let mut cluster = Cluster::new(3);
    start(&mut cluster, |config| {
        if config.node_id == 2 {
            config.wall_unix_us = || clock::wall_unix_us() - HOUR_US;
        }
    })
    .await;
    cluster.write(1).await;
    let (right, behind) = (cluster.running[&1].clone(), cluster.running[&2].clone());
    eventually("all answer", || is_right(&right) && is_right(&behind)).await;
    cluster.stop(3).await;
    for replica in [&right, &behind] {
        eventually("node 3 does not count any more", || {
            ahead_us(replica).is_some_and(|ahead_us| ahead_us < -LATE_US)
        })
        .await;
    }
    drop(behind);
    cluster.stop(2).await;
    eventually("nobody answers", || ahead_us(&right).is_none()).await;
    drop(right);
    cluster.stop_all().await;
}

#[tokio::test]
async fn the_format_that_all_members_read_is_known_once_all_were_heard() {
    let mut cluster = Cluster::new(3);
    start(&mut cluster, |config| {
        config.format_version = 100 + u32::try_from(config.node_id).unwrap();
    })
    .await;
    cluster.write(1).await;
    for replica in cluster.running.values() {
        let knows = || replica.members_format_version() == Some(101);
        eventually("everybody knows the lowest", knows).await;
    }
    // Node 2 comes back as this version. Who has never heard of a member does not know what it reads.
    cluster.stop(1).await;
    cluster.stop(2).await;
    cluster.start(2).await;
    let restarted = cluster.running[&2].clone();
    cluster.write(2).await;
    eventually("node 2 has heard node 3", || {
        restarted.majority_wall_unix_us().is_some()
    })
    .await;
    assert_eq!(restarted.members_format_version(), None);
    // Node 3 has, and heard node 2 ask.
    assert_eq!(
        cluster.running[&3].members_format_version(),
        Some(leasehold_ledger::FORMAT_VERSION)
    );
    cluster.start(1).await;
    eventually("the newer node 1 is heard", || {
        restarted.members_format_version() == Some(leasehold_ledger::FORMAT_VERSION)
    })
    .await;
    drop(restarted);
    cluster.stop_all().await;
}

#[tokio::test]
async fn a_node_alone_is_its_own_majority() {
    let mut cluster = Cluster::new(1);
    start(&mut cluster, |config| {
        config.wall_unix_us = || 1_000_000_000;
    })
    .await;
    cluster.write(1).await;
    let alone = &cluster.running[&1];
    assert_eq!(alone.majority_wall_unix_us(), Some(1_000_000_000));
    assert_eq!(
        alone.members_format_version(),
        Some(leasehold_ledger::FORMAT_VERSION)
    );
    cluster.stop_all().await;
}
