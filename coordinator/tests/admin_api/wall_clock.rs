//! A wall clock that is wrong is said by the probes, and changes nothing else.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use http_body_util::BodyExt;
use leasehold_coordinator::{
    admin::{self, metrics::Metrics},
    clock,
    node::{Node, NodeConfig},
    raft::{InitialMember, ReplicaConfig},
};
use leasehold_ledger::settings::Settings;
use tower::ServiceExt;

use crate::three_nodes::free_port;

const WAIT: Duration = Duration::from_secs(60);

async fn get(router: &Router, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Asks until the answer is as expected.
async fn answers(router: &Router, path: &str, expected: impl Fn(&str) -> bool) -> String {
    let asked = async {
        loop {
            let (status, body) = get(router, path).await;
            if status == StatusCode::OK && expected(&body) {
                return body;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(WAIT, asked).await.expect(path)
}

#[tokio::test]
async fn a_node_whose_wall_clock_is_an_hour_behind_is_ready_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let members = ports.iter().zip(1..).map(|(port, node_id)| InitialMember {
        node_id,
        peer_addr: format!("127.0.0.1:{port}"),
    });
    let members: Vec<_> = members.collect();
    let starting = ports.iter().zip(1..).map(|(port, node_id)| {
        let mut replica = ReplicaConfig::new(node_id, folder.path().join(node_id.to_string()));
        replica.peer_listen = ([127, 0, 0, 1], *port).into();
        replica.initial_members.clone_from(&members);
        if node_id == 3 {
            replica.wall_unix_us = || clock::wall_unix_us() - 3_600_000_000;
        }
        Node::start(NodeConfig {
            leader_tls: None,
            replica,
            initial_settings: Settings::default(),
        })
    });
    let nodes = futures::future::try_join_all(starting).await.unwrap();
    let router = |node: &Node| admin::router(node.clone(), Metrics::install());
    let (right, wrong) = (router(&nodes[0]), router(&nodes[2]));

    let said = answers(&wrong, "/readyz", |body| body.contains("wall_clock_far")).await;
    assert!(said.contains(r#""status":"ready""#), "{said}");
    assert!(said.contains("wall_clock_tolerance_ms is 1000"), "{said}");
    let said = answers(&right, "/readyz", |body| body.contains("ready")).await;
    assert!(!said.contains("warnings"), "{said}");
    // All nodes of a process share the recorder: the last one that was asked fills it.
    let (_, metrics) = get(&wrong, "/metrics").await;
    assert!(metrics.contains("leasehold_wall_clock_far 1"), "{metrics}");
    let behind = metrics
        .lines()
        .find_map(|line| line.strip_prefix("leasehold_wall_clock_behind_seconds "))
        .and_then(|value| value.parse::<f64>().ok())
        .unwrap();
    assert!((3_590.0..3_610.0).contains(&behind), "{behind}");
    let (_, metrics) = get(&right, "/metrics").await;
    assert!(metrics.contains("leasehold_wall_clock_far 0"), "{metrics}");

    let leader = nodes.iter().find(|node| node.leader().is_self).unwrap();
    let own = format!(r#""format_version":{}"#, leasehold_ledger::FORMAT_VERSION);
    let all_were_heard = |body: &str| body.matches(&own).count() == 3;
    let cluster = answers(&router(leader), "/v1/cluster", all_were_heard).await;
    let cluster: serde_json::Value = serde_json::from_str(&cluster).unwrap();
    let said = cluster["majority_wall_time"].as_str().unwrap();
    let now = i64::try_from(clock::wall_unix_us()).unwrap();
    let text = |unix_us| leasehold_calendar::utc_text(unix_us).unwrap();
    let right = text(now - 1_800_000_000)..=text(now);
    assert!(right.contains(&said.to_owned()), "{said}, not {right:?}");
    for node in nodes {
        node.shutdown().await;
    }
}
