//! A coordinator of another cluster, whatever certificate it has.

use std::time::Duration;

use futures::stream;
use leasehold_proto::v1::{
    DigestRequest, HelloRequest, RaftMessage, RollCallRequest, peer_client::PeerClient,
};
use tonic::{Request, Status};

use crate::alone;

fn as_of<T>(message: T, cluster: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(cluster) = cluster {
        let cluster = cluster.parse().unwrap();
        request.metadata_mut().insert("leasehold-cluster", cluster);
    }
    request
}

/// What each call of a peer is told, by its name.
async fn calls(url: String, cluster: Option<&str>) -> Vec<(&'static str, Result<(), Status>)> {
    let mut peer = PeerClient::connect(url).await.unwrap();
    let raft = || as_of(RaftMessage::default(), cluster);
    let stream = || as_of(stream::iter([RaftMessage::default()]), cluster);
    let append_stream = async {
        let mut answers = peer.clone().append_stream(stream()).await?.into_inner();
        answers.message().await.map(drop)
    };
    let append_stream = append_stream.await;
    vec![
        ("vote", peer.vote(raft()).await.map(drop)),
        ("pre_vote", peer.pre_vote(raft()).await.map(drop)),
        ("append", peer.append(raft()).await.map(drop)),
        ("append_stream", append_stream),
        (
            "transfer_leader",
            peer.transfer_leader(raft()).await.map(drop),
        ),
        ("snapshot", peer.snapshot(stream()).await.map(drop)),
        (
            "digest",
            peer.digest(as_of(DigestRequest::default(), cluster))
                .await
                .map(drop),
        ),
        (
            "hello",
            peer.hello(as_of(HelloRequest::default(), cluster))
                .await
                .map(drop),
        ),
        (
            "roll_call",
            peer.roll_call(as_of(RollCallRequest::default(), cluster))
                .await
                .map(drop),
        ),
    ]
}

#[tokio::test]
async fn another_clusters_coordinator_is_refused_in_all_that_changes_or_tells_anything() {
    let folder = tempfile::tempdir().unwrap();
    let node = alone(folder.path(), "").await;
    let url = format!("http://{}", node.node().replica().peer_addr());
    let own = async {
        loop {
            if let Some(own) = node.node().local(|ledger| ledger.cluster_id()) {
                return own;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let own = tokio::time::timeout(Duration::from_secs(60), own)
        .await
        .unwrap();

    let other = format!("{:032x}", own ^ 1);
    for (name, told) in calls(url.clone(), Some(&other)).await {
        match name {
            // These compare by themselves, and are how strangers get to know each other.
            "hello" | "roll_call" => assert!(told.is_ok(), "{name}: {told:?}"),
            _ => assert_eq!(told.unwrap_err().message(), "other_cluster", "{name}"),
        }
    }
    // A cluster that is being born has no id yet.
    for cluster in [None, Some(format!("{own:032x}"))] {
        for (name, told) in calls(url.clone(), cluster.as_deref()).await {
            let is_other = told.is_err_and(|status| status.message() == "other_cluster");
            assert!(!is_other, "{name} as of {cluster:?}");
        }
    }
    node.shutdown().await;
}
