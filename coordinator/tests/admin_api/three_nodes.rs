//! Three nodes: whichever is asked, the leader answers, and what is said when
//! there is none.

use std::{collections::BTreeMap, net::TcpListener, time::Duration};

use leasehold_coordinator::{
    config::{Config, ServeFlags},
    raft::Leadership,
    serve::{self, Running},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Reply, ask};

const WAIT: Duration = Duration::from_secs(60);

/// Nodes with the HTTP API on a separate address, so that a forwarded request
/// proves that it finds that one.
pub(crate) async fn cluster(folder: &TempDir) -> Vec<Running> {
    let peers: Vec<String> = (0..3)
        .map(|_| format!("127.0.0.1:{}", free_port()))
        .collect();
    let members: String = peers
        .iter()
        .zip(1..)
        .map(|(peer, id)| format!("[[initial_members]]\nnode_id = {id}\npeer = '{peer}'\n"))
        .collect();
    let starting = peers.iter().zip(1..).map(|(peer, id)| {
        let file = folder.path().join(format!("node{id}.toml"));
        let data = folder.path().join(format!("data{id}"));
        let head = format!(
            "node_id = {id}\ndata_dir = '{}'\nlisten = '127.0.0.1:0'\nadmin_listen = '127.0.0.1:0'\npeer_listen = '{peer}'\n",
            data.display()
        );
        std::fs::write(&file, format!("{head}{members}")).unwrap();
        let flags = ServeFlags { config: Some(file), ..ServeFlags::default() };
        serve::start(Config::load(&flags).unwrap())
    });
    // Fails with the first that fails: the others would wait for it for ever.
    futures::future::try_join_all(starting).await.unwrap()
}

/// Peers' addresses must be known beforehand. A port that the system hands out by
/// itself could be given to another test's connection in the meantime; those below
/// 32,768 are not.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = rand::random_range(15_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The index of the leader, once every node knows it.
pub(crate) async fn leader_of(nodes: &[Running]) -> usize {
    let known = async {
        loop {
            for node in nodes {
                let mut leadership = node.node().leadership();
                let knows =
                    |now: &Leadership| !matches!(now, Leadership::Following { leader: None });
                leadership.wait_for(knows).await.unwrap();
            }
            let leads = |node: &Running| node.node().leader().is_self;
            if let [leader] = (0..nodes.len())
                .filter(|i| leads(&nodes[*i]))
                .collect::<Vec<_>>()[..]
            {
                let id = nodes[leader].node().config().replica.node_id;
                let agree =
                    |node: &Running| node.node().leader().member.is_none_or(|m| m.node_id == id);
                if nodes.iter().all(agree) {
                    return leader;
                }
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT, known).await.unwrap()
}

async fn to(node: &Running, method: &str, path: &str, body: &str) -> Reply {
    ask(node.admin_addr(), method, path, &[], body).await
}

/// An election may come at any time on a busy machine; nothing was changed then.
async fn must(node: &Running, method: &str, path: &str, body: &str) -> Reply {
    let answered = async {
        loop {
            let reply = to(node, method, path, body).await;
            if reply.status != 503 {
                assert!(reply.status < 300, "{method} {path}: {}", reply.body);
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(WAIT, answered).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_passes_on_conditions_and_authors_and_long_bodies() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cluster(&folder).await;
    let leader = leader_of(&nodes).await;
    let follower = &nodes[(leader + 1) % 3];
    let policy =
        |limit: u64| format!(r#"{{"kind":"sliding_window","limit":{limit},"window_ms":3600000}}"#);
    let path = "/v1/policies/p";
    must(follower, "PUT", path, &policy(1)).await;
    let seen = must(follower, "GET", path, "").await;
    let if_match = format!("if-match: {}", seen.header("etag").unwrap());
    let headers = [if_match.as_str(), "leasehold-by: ada"];
    let change = |limit: u64| {
        let body = policy(limit);
        async move {
            loop {
                let reply = ask(follower.admin_addr(), "PUT", path, &headers, &body).await;
                if reply.status != 503 {
                    return reply;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    let (one, other) = tokio::join!(change(2), change(3));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412], "{} {}", one.body, other.body);
    let versions = must(follower, "GET", "/v1/policies/p/versions", "")
        .await
        .json();
    assert_eq!(versions["versions"][0]["by"], "ada", "{versions}");
    let budgets: Vec<Value> = (0..5_000)
        .map(|number| serde_json::json!({"pattern": format!("k/{number}/**"), "policy": "p"}))
        .collect();
    let body = serde_json::json!({ "budgets": budgets }).to_string();
    let put = must(follower, "PUT", "/v1/budgets", &body).await.json();
    assert_eq!(put["changed"], 5_000);
    for node in nodes {
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_node_is_asked_the_leader_answers() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cluster(&folder).await;
    let leader = leader_of(&nodes).await;
    let (one, other) = (&nodes[(leader + 1) % 3], &nodes[(leader + 2) % 3]);

    let rule = r#"{"policy":{"kind":"sliding_window","limit":100,"window_ms":3600000}}"#;
    must(one, "PUT", "/v1/budgets/a%2Fb/*", rule).await;
    let spent = must(other, "POST", "/v1/spend", r#"{"key":"a%2Fb/c","units":7}"#).await;
    assert!(
        spent.header("ratelimit").is_some(),
        "headers come back, too"
    );
    let account = must(one, "GET", "/v1/accounts/a%2Fb/c", "").await;
    assert_eq!(
        account.json()["counted"],
        7,
        "a raw path stays raw on its way"
    );
    let missing = to(one, "GET", "/v1/policies/none", "").await;
    assert_eq!(
        missing.header("content-type"),
        Some("application/problem+json")
    );

    let cluster = must(one, "GET", "/v1/cluster", "").await.json();
    assert_eq!(cluster["answered_by"], cluster["leader"]);
    assert_eq!(cluster["members"].as_array().map(Vec::len), Some(3));

    // A request that was forwarded once goes no further.
    if !one.node().leader().is_self {
        let hopped = ask(
            one.admin_addr(),
            "GET",
            "/v1/budgets",
            &["leasehold-forwarded-by: 9"],
            "",
        )
        .await;
        assert_eq!(
            (hopped.status, hopped.json()["code"].as_str()),
            (503, Some("no_leader"))
        );
        assert_eq!(hopped.header("retry-after"), Some("1"));
    }
    futures::future::join_all(nodes.into_iter().map(Running::shutdown)).await;
}

/// Digests by log index.
fn digests(replica: &Value) -> BTreeMap<u64, String> {
    let past = replica["digests"].as_array().unwrap();
    past.iter()
        .map(|digest| {
            let value = digest["value"].as_str().unwrap();
            (digest["index"].as_u64().unwrap(), value.to_owned())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_answers_for_its_own_replica() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cluster(&folder).await;
    let leader = leader_of(&nodes).await;
    let rule = r#"{"policy":{"kind":"sliding_window","limit":100,"window_ms":3600000}}"#;
    must(&nodes[leader], "PUT", "/v1/budgets/a/*", rule).await;
    for key in ["a/b", "a/c", "a/d"] {
        let spend = format!(r#"{{"key":"{key}","units":7}}"#);
        must(&nodes[leader], "POST", "/v1/spend", &spend).await;
    }

    let mut replicas = Vec::new();
    for node in &nodes {
        let id = node.node().config().replica.node_id;
        let caught_up = async {
            loop {
                let page = "/v1/replica/accounts?prefix=a/&limit=2";
                let first = to(node, "GET", page, "").await.json();
                assert_eq!(first["node_id"], id, "{first}");
                if first["accounts"].as_array().map(Vec::len) == Some(2)
                    && first["next_cursor"] == "a/c"
                {
                    assert_eq!(first["accounts"][0]["counted"], 7, "{first}");
                    let rest = to(node, "GET", &format!("{page}&cursor=a/c"), "")
                        .await
                        .json();
                    assert_eq!(rest["accounts"][0]["key"], "a/d", "{rest}");
                    assert!(rest["next_cursor"].is_null(), "{rest}");
                    assert!(rest["index"].as_u64() >= first["index"].as_u64());
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WAIT, caught_up).await.unwrap();
        let replica = to(node, "GET", "/v1/replica", "").await.json();
        assert_eq!(replica["node_id"], id, "{replica}");
        assert_eq!(
            digests(&replica).last_key_value().map(|(index, _)| *index),
            replica["index"].as_u64()
        );
        replicas.push(replica);
    }
    for other in &replicas[1..] {
        let (first, other) = (digests(&replicas[0]), digests(other));
        let common: Vec<_> = first.keys().filter(|at| other.contains_key(at)).collect();
        assert!(!common.is_empty(), "{first:?} {other:?}");
        for at in common {
            assert_eq!(first[at], other[at], "at {at}");
        }
    }
    futures::future::join_all(nodes.into_iter().map(Running::shutdown)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_only_the_diagnosis_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = cluster(&folder).await;
    let leader = leader_of(&nodes).await;
    nodes.remove((leader + 1) % 3).shutdown().await;
    let last = nodes.pop().unwrap();
    nodes.pop().unwrap().shutdown().await;

    // It may have been handed the leadership, and learns by asking that nobody
    // follows; until then what becomes of a spend is unknown.
    let refused = async {
        loop {
            let refused = to(&last, "POST", "/v1/spend", r#"{"key":"a"}"#).await;
            assert_eq!(refused.status, 503, "{}", refused.body);
            assert_eq!(refused.header("retry-after"), Some("1"));
            match refused.json()["code"].as_str() {
                Some("no_leader" | "leader_unreachable") => return,
                Some("outcome_unknown") => {}
                _ => panic!("{}", refused.body),
            }
        }
    };
    tokio::time::timeout(WAIT, refused).await.unwrap();
    let read = to(&last, "GET", "/v1/budgets", "").await;
    assert_eq!(read.status, 503, "{}", read.body);
    let diagnosis = to(&last, "GET", "/v1/cluster", "").await;
    assert_eq!(diagnosis.status, 200, "{}", diagnosis.body);
    assert_eq!(
        diagnosis.json()["answered_by"],
        last.node().config().replica.node_id
    );
    assert_eq!(to(&last, "GET", "/healthz", "").await.status, 200);
    assert_eq!(to(&last, "GET", "/v1/replica", "").await.status, 200);
    last.shutdown().await;
}

/// Returns once a node says that it isn't ready, since nobody leads.
async fn until_not_ready(node: &Running) {
    let waiting = async {
        loop {
            let ready = to(node, "GET", "/readyz", "").await;
            if ready.status == 503 {
                assert_eq!(ready.json()["code"], "no_leader", "{}", ready.body);
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(WAIT, waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_quorum_and_a_follower_without_a_leader_are_not_ready() {
    for leader_stays in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let mut nodes = cluster(&folder).await;
        let leader = leader_of(&nodes).await;
        let survivor = nodes.swap_remove(if leader_stays {
            leader
        } else {
            (leader + 1) % 3
        });
        // Their replicas just stop: leadership is not handed over.
        futures::future::join_all(nodes.iter().map(|node| node.node().replica().shutdown())).await;
        until_not_ready(&survivor).await;
        let seen = to(&survivor, "GET", "/v1/cluster", "").await.json();
        assert!(seen["leader"].is_null(), "{seen}");
        for node in nodes {
            node.shutdown().await;
        }
        survivor.shutdown().await;
    }
}
