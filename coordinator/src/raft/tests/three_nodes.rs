use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use futures::future::{join_all, select_all};
use leasehold_ledger::{
    entry::{Command, Entry},
    settings::Settings,
};
use leasehold_proto::v1::{RaftMessage, peer_client::PeerClient};
use tempfile::TempDir;

use super::one_node::{at, config, leads};
use crate::raft::{
    ChangeError, InitialMember, Leadership, ProposeError, Replica, ReplicaConfig, Role,
};

/// Nodes with data folders and addresses that outlive their replicas.
pub(super) struct Cluster {
    pub(super) dirs: BTreeMap<u64, TempDir>,
    pub(super) addrs: BTreeMap<u64, SocketAddr>,
    initial: Vec<InitialMember>,
    pub(super) running: BTreeMap<u64, Replica>,
    snapshot_every: u64,
}

impl Cluster {
    pub(super) fn new(nodes: u64) -> Self {
        let mut cluster = Self {
            dirs: BTreeMap::new(),
            addrs: BTreeMap::new(),
            initial: Vec::new(),
            running: BTreeMap::new(),
            snapshot_every: 5_000,
        };
        for node_id in 1..=nodes {
            let peer_addr = cluster.furnish(node_id).to_string();
            cluster.initial.push(InitialMember { node_id, peer_addr });
        }
        cluster
    }

    /// A folder and an address for a node. Replicas come back under the same
    /// address, so it cannot be port 0; a free one is asked for and given back.
    pub(super) fn furnish(&mut self, node_id: u64) -> SocketAddr {
        let addr = free_addr();
        self.dirs.insert(node_id, tempfile::tempdir().unwrap());
        self.addrs.insert(node_id, addr);
        addr
    }

    pub(super) fn config(&self, node_id: u64) -> ReplicaConfig {
        ReplicaConfig {
            peer_listen: self.addrs[&node_id],
            initial_members: self.initial.clone(),
            client_url: format!("http://node-{node_id}"),
            region: format!("region-{node_id}"),
            // The product's own: shorter ones make leaders come and go on a busy machine.
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(1_000),
            snapshot_every_entries: self.snapshot_every,
            snapshot_keep_entries: 5,
            ..config(node_id, self.dirs[&node_id].path())
        }
    }

    pub(super) async fn start_all(&mut self) {
        let ids: Vec<u64> = self.dirs.keys().copied().collect();
        let started = join_all(
            ids.iter()
                .map(|node_id| Replica::start(self.config(*node_id))),
        )
        .await;
        for (node_id, replica) in ids.into_iter().zip(started) {
            self.running.insert(node_id, replica.unwrap());
        }
    }

    pub(super) async fn start(&mut self, node_id: u64) {
        let replica = Replica::start(self.config(node_id)).await.unwrap();
        self.running.insert(node_id, replica);
    }

    pub(super) async fn stop(&mut self, node_id: u64) {
        self.running.remove(&node_id).unwrap().shutdown().await;
    }

    pub(super) async fn stop_all(&mut self) {
        join_all(self.running.values().map(Replica::shutdown)).await;
        self.running.clear();
    }

    /// Waits for a leader; its id and term.
    pub(super) async fn leader(&self) -> (u64, u64) {
        let waiting = self
            .running
            .iter()
            .map(|(node_id, replica)| Box::pin(async move { (*node_id, leads(replica).await.0) }));
        select_all(waiting).await.0
    }

    /// Proposes on whoever leads until it is applied.
    pub(super) async fn write(&self, now_us: u64) {
        loop {
            let (leader, term) = self.leader().await;
            match self.running[&leader].propose(term, at(now_us)).await {
                Ok(_) => return,
                Err(ProposeError::NotLeader { .. } | ProposeError::Unknown) => {
                    tokio::task::yield_now().await
                }
                Err(other) => panic!("node {leader}: {other}"),
            }
        }
    }

    /// Changes the cluster on whoever leads, until there is an answer.
    pub(super) async fn change<T>(
        &self,
        change: impl AsyncFn(&Replica) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        loop {
            let (leader, _) = self.leader().await;
            match change(&self.running[&leader]).await {
                Err(ChangeError::NotLeader { .. } | ChangeError::Unknown) => {
                    tokio::task::yield_now().await
                }
                answer => return answer,
            }
        }
    }

    /// Waits until a node has applied everything up to a time.
    pub(super) async fn reaches(&self, node_id: u64, now_us: u64) {
        let replica = &self.running[&node_id];
        let core = replica.core();
        let wait = core.wait(Some(Duration::from_secs(20)));
        let reached = wait.metrics(
            |_| replica.with_ledger(|ledger| ledger.now_us() >= now_us),
            "applied",
        );
        reached.await.unwrap();
    }
}

/// A port that the system hands out by itself could be given to another test's
/// connection before it is used here; those below 32,768 are not.
fn free_addr() -> SocketAddr {
    loop {
        let addr = SocketAddr::from(([127, 0, 0, 1], rand::random_range(15_000..32_000)));
        if TcpListener::bind(addr).is_ok() {
            return addr;
        }
    }
}

#[tokio::test]
async fn three_nodes_form_a_cluster_in_any_order_and_survive_the_loss_of_a_leader() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    let (first, term) = cluster.leader().await;
    for now_us in 1..=20 {
        cluster.write(now_us).await;
    }
    for node_id in 1..=3 {
        cluster.reaches(node_id, 20).await;
    }
    let killed = Instant::now();
    cluster.stop(first).await;
    println!("stopped in {} ms", killed.elapsed().as_millis());
    cluster.leader().await;
    println!("a leader after {} ms", killed.elapsed().as_millis());
    cluster.write(21).await;
    println!(
        "a write is applied again {} ms after the leader stopped",
        killed.elapsed().as_millis()
    );
    let (second, next_term) = cluster.leader().await;
    assert!(second != first && next_term > term);
    // What followed a leader knows who it is, and where clients find it.
    let follower = cluster
        .running
        .keys()
        .copied()
        .find(|node_id| *node_id != second)
        .unwrap();
    let mut leadership = cluster.running[&follower].leadership();
    let seen = leadership
        .wait_for(|seen| matches!(seen, Leadership::Following { leader: Some(_) }))
        .await
        .unwrap()
        .clone();
    let Leadership::Following {
        leader: Some(leader),
    } = seen
    else {
        unreachable!()
    };
    assert_eq!(
        (leader.node_id, leader.client_url),
        (second, format!("http://node-{second}"))
    );
    let refused = cluster.running[&follower].propose(next_term, at(30)).await;
    assert!(
        matches!(refused, Err(ProposeError::NotLeader { leader: Some(_) })),
        "{refused:?}"
    );

    cluster.start(first).await;
    cluster.reaches(first, 21).await;
    let status = cluster.running[&second].status().await;
    assert_eq!(status.members.len(), 3);
    assert!(
        status
            .members
            .iter()
            .all(|member| member.role == Role::Voter)
    );
    assert!(
        status
            .members
            .iter()
            .all(|member| member.digest_agrees != Some(false)),
        "{status:?}"
    );
    cluster.stop_all().await;
}

#[tokio::test]
async fn everything_restarts_with_what_was_acknowledged_and_time_stands_still() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(5_000).await;
    let (_, term) = cluster.leader().await;
    cluster.stop_all().await;

    cluster.start_all().await;
    let (leader, next_term) = cluster.leader().await;
    assert!(next_term > term);
    let (_, anchor_us) = leads(&cluster.running[&leader]).await;
    assert_eq!(anchor_us, 5_000);
    cluster.running[&leader].read_barrier().await.unwrap();
    for node_id in 1..=3 {
        cluster.reaches(node_id, 5_000).await;
    }
    // Every id's disk is on record by now or soon.
    cluster.write(5_001).await;
    let replica = &cluster.running[&leader];
    let recorded = replica.core();
    let wait = recorded.wait(Some(Duration::from_secs(10)));
    let recorded = wait.metrics(
        |_| {
            replica.with_ledger(|ledger| (1..=3).all(|node_id| ledger.node_disk(node_id).is_some()))
        },
        "registered",
    );
    recorded.await.unwrap();
    cluster.stop_all().await;
}

#[tokio::test]
async fn a_follower_too_far_behind_gets_a_snapshot() {
    let mut cluster = Cluster::new(3);
    cluster.snapshot_every = 20;
    cluster.start_all().await;
    cluster.write(1).await;
    let (leader, _) = cluster.leader().await;
    let behind = if leader == 3 { 2 } else { 3 };
    cluster.stop(behind).await;
    for now_us in 2..=150 {
        cluster.write(now_us).await;
    }
    let core = cluster.running[&leader].core();
    let wait = core.wait(Some(Duration::from_secs(10)));
    let purged = wait.metrics(
        |metrics| metrics.purged.as_ref().is_some_and(|at| at.index() > 80),
        "the log is cut",
    );
    purged.await.unwrap();
    cluster.start(behind).await;
    cluster.reaches(behind, 150).await;
    let status = cluster.running[&behind].status().await;
    assert!(
        status.snapshot.is_some_and(|index| index > 80),
        "{status:?}"
    );
    // And it survives a restart on that snapshot.
    cluster.stop(behind).await;
    cluster.start(behind).await;
    cluster.write(151).await;
    cluster.reaches(behind, 151).await;
    cluster.stop_all().await;
}

#[tokio::test]
async fn an_empty_node_under_a_used_id_is_refused_as_disk_lost() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(1).await;
    cluster.stop(2).await;
    cluster.dirs.insert(2, tempfile::tempdir().unwrap());
    let refused = Replica::start(cluster.config(2))
        .await
        .err()
        .expect("refused");
    assert_eq!(refused.code(), "disk_lost", "{refused}");
    // Nothing but a missing disk: the others go on.
    cluster.write(2).await;
    cluster.stop_all().await;
}

#[tokio::test]
async fn a_node_waits_until_every_initial_member_has_answered() {
    let mut cluster = Cluster::new(2);
    let waiting = tokio::spawn(Replica::start(cluster.config(1)));
    let asked = tokio::time::timeout(Duration::from_millis(700), async {
        while !waiting.is_finished() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(asked.await.is_err(), "it started alone");
    cluster.start(2).await;
    cluster.running.insert(1, waiting.await.unwrap().unwrap());
    cluster.write(1).await;
    cluster.stop_all().await;
}

/// Its founders may all have left: then nobody else tells it what happened.
#[tokio::test]
async fn a_node_that_waits_tells_a_leader_that_means_another_disk() {
    let cluster = Cluster::new(2);
    let waiting = tokio::spawn(Replica::start(cluster.config(1)));
    let url = format!("http://{}", cluster.addrs[&1]);
    let mut leader = loop {
        match PeerClient::connect(url.clone()).await {
            Ok(client) => break client,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        assert!(!waiting.is_finished(), "it started alone");
    };
    let message = RaftMessage {
        to_node: 1,
        to_disk: vec![7; 16].into(),
        ..RaftMessage::default()
    };
    let refused = leader.append(message).await.unwrap_err();
    assert_eq!(refused.message(), "disk_lost", "{refused}");
    waiting.abort();
}

/// It asks all of them again and again, and hears from one that it was added.
#[tokio::test]
async fn a_node_that_waits_for_an_initial_member_can_be_added_meanwhile() {
    let mut cluster = Cluster::new(1);
    cluster.start(1).await;
    cluster.write(1).await;
    let nobody = free_addr().to_string();
    let addr = cluster.furnish(2).to_string();
    for (node_id, peer_addr) in [(2, addr.clone()), (3, nobody)] {
        cluster.initial.push(InitialMember { node_id, peer_addr });
    }
    let waiting = tokio::spawn(Replica::start(cluster.config(2)));
    let added = async {
        while PeerClient::connect(format!("http://{addr}")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // It has an answer of the time when nobody knew it.
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.running[&1].add_member(2, &addr).await
    };
    added.await.unwrap();
    cluster.running.insert(2, waiting.await.unwrap().unwrap());
    cluster.write(2).await;
    cluster.reaches(2, 2).await;
    cluster.stop_all().await;
}

#[tokio::test]
async fn members_are_added_promoted_removed_and_their_ids_never_return() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    for now_us in 1..=10 {
        cluster.write(now_us).await;
    }
    let addr = cluster.furnish(4).to_string();
    cluster.start(4).await;
    let (leader, _) = cluster.leader().await;
    let follower = (1..=3).find(|node_id| *node_id != leader).unwrap();
    let refused = cluster.running[&follower].add_member(4, &addr).await;
    assert!(
        matches!(refused, Err(ChangeError::NotLeader { .. })),
        "{refused:?}"
    );
    let refused = cluster
        .change(async |replica| replica.add_member(5, &addr).await)
        .await;
    assert!(
        matches!(refused, Err(ChangeError::Unreachable { .. })),
        "{refused:?}"
    );
    let added = cluster
        .change(async |replica| replica.add_member(4, &addr).await)
        .await
        .unwrap();
    assert_eq!(
        (added.node_id, added.client_url.as_str()),
        (4, "http://node-4")
    );
    cluster.write(11).await;
    cluster.reaches(4, 11).await;
    let (leader, _) = cluster.leader().await;
    let status = cluster.running[&leader].status().await;
    assert_eq!(status.members.len(), 4);
    assert!(
        status
            .members
            .iter()
            .all(|member| member.role == Role::Voter),
        "{status:?}"
    );

    let gone = (1..=3).rev().find(|node_id| *node_id != leader).unwrap();
    cluster
        .change(async |replica| replica.remove_member(gone).await)
        .await
        .unwrap();
    let missing = cluster
        .change(async |replica| replica.remove_member(gone).await)
        .await;
    assert_eq!(missing, Err(ChangeError::NoSuchMember(gone)));
    cluster.stop(gone).await;
    cluster.write(12).await;

    // The same id on a new, empty disk: refused by the node itself, and by the leader.
    cluster.dirs.insert(gone, tempfile::tempdir().unwrap());
    let refused = Replica::start(cluster.config(gone))
        .await
        .err()
        .expect("refused");
    assert_eq!(refused.code(), "disk_lost", "{refused}");
    let alone = ReplicaConfig {
        initial_members: Vec::new(),
        ..cluster.config(gone)
    };
    let alone = Replica::start(alone).await.unwrap();
    let addr = cluster.addrs[&gone].to_string();
    let refused = cluster
        .change(async |replica| replica.add_member(gone, &addr).await)
        .await;
    assert_eq!(refused.err(), Some(ChangeError::NodeIdInUse(gone)));
    alone.shutdown().await;
    cluster.stop_all().await;
}

#[tokio::test]
async fn leadership_is_handed_to_a_voter_that_has_caught_up() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(1).await;
    for now_us in 2..6 {
        let (leader, term) = cluster.leader().await;
        let target = leader % 3 + 1;
        cluster.reaches(target, now_us - 1).await;
        let started = Instant::now();
        match cluster.running[&leader].transfer_leader(target).await {
            // A busy machine elected somebody in between.
            Err(ChangeError::NotLeader { .. }) => continue,
            handed => handed.unwrap(),
        }
        let next_term = leads(&cluster.running[&target]).await.0;
        println!("handed over in {} ms", started.elapsed().as_millis());
        assert!(next_term > term);
        cluster.write(now_us).await;
    }
    let stranger = cluster
        .change(async |replica| replica.transfer_leader(9).await)
        .await;
    assert_eq!(stranger, Err(ChangeError::NoSuchMember(9)));
    cluster.stop_all().await;
}

#[tokio::test]
async fn a_member_that_comes_back_elsewhere_is_found() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(1).await;
    let (leader, _) = cluster.leader().await;
    let moving = leader % 3 + 1;
    cluster.stop(moving).await;
    let addr = free_addr();
    let elsewhere = ReplicaConfig {
        peer_listen: addr,
        peer_advertise: Some(addr.to_string()),
        ..cluster.config(moving)
    };
    let replica = Replica::start(elsewhere).await.unwrap();
    cluster.running.insert(moving, replica);
    cluster.write(2).await;
    cluster.reaches(moving, 2).await;
    let status = cluster.running[&moving].status().await;
    let recorded = status
        .members
        .iter()
        .find(|member| member.member.node_id == moving)
        .unwrap();
    assert_eq!(recorded.member.peer_addr, addr.to_string());
    cluster.stop_all().await;
}

#[tokio::test]
async fn a_dead_peer_is_dialed_now_and_then_not_in_a_loop() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    cluster.write(1).await;
    let (leader, _) = cluster.leader().await;
    let dead = leader % 3 + 1;
    cluster.stop(dead).await;
    // Something at its address that hangs up on everybody.
    let listener = tokio::net::TcpListener::bind(cluster.addrs[&dead])
        .await
        .unwrap();
    let mut dialed = 0;
    let counting = async {
        loop {
            drop(listener.accept().await.unwrap());
            dialed += 1;
        }
    };
    let writing = async {
        for now_us in 2.. {
            cluster.write(now_us).await;
        }
    };
    let _ = tokio::time::timeout(
        Duration::from_secs(2),
        futures::future::join(counting, writing),
    )
    .await;
    // Two seconds of heartbeats every 50 ms, and replication that backs off.
    assert!((1..=80).contains(&dialed), "{dialed}");
    cluster.stop_all().await;
}

#[tokio::test]
async fn leadership_goes_to_the_preferred_region_and_comes_back_to_it() {
    let mut cluster = Cluster::new(3);
    cluster.start_all().await;
    let (first, term) = cluster.leader().await;
    let home = if first == 3 { 1 } else { 3 };
    let settings = Settings {
        preferred_leader_region: Some(format!("region-{home}")),
        ..Settings::default()
    };
    let preferring = Entry {
        commands: vec![Command::PutSettings(settings)],
        ..at(1)
    };
    cluster.running[&first]
        .propose(term, preferring)
        .await
        .unwrap();
    let at_home = async |cluster: &Cluster| {
        let came = tokio::time::timeout(Duration::from_secs(60), leads(&cluster.running[&home]));
        came.await.expect("the preferred region leads")
    };
    at_home(&cluster).await;

    cluster.stop(home).await;
    let (elsewhere, _) = cluster.leader().await;
    assert_ne!(elsewhere, home);
    cluster.write(2).await;
    cluster.start(home).await;
    at_home(&cluster).await;
    cluster.write(3).await;
    cluster.stop_all().await;
}
