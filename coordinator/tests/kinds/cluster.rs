//! Three nodes in this process, each with a wall clock of its own, gateways that connect
//! to all of them, and an operator.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        LazyLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use http_body_util::BodyExt;
use leasehold_client::Client;
use leasehold_coordinator::{
    admin::{self, metrics::Metrics},
    clock,
    node::{Node, NodeConfig},
    raft::{InitialMember, ReplicaConfig},
};
use leasehold_ledger::settings::Settings;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard, oneshot};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tower::ServiceExt;

/// Far longer than anything here takes.
pub(crate) const WAIT: Duration = Duration::from_secs(60);
const HOUR_US: i64 = 3_600_000_000;
/// 2026-03-28 at noon in Berlin: the night after it has 23 hours.
const NOON_UNIX_US: i64 = 1_774_695_600_000_000;

/// How far each node's wall clock was put forward, in microseconds.
static AHEAD_US: [AtomicI64; 3] = [const { AtomicI64::new(0) }; 3];
static STARTED_US: LazyLock<u64> = LazyLock::new(clock::wall_unix_us);
/// The clocks are one set for all tests.
static ALONE: Mutex<()> = Mutex::const_new(());

fn wall_unix_us<const NODE: usize>() -> u64 {
    let passed_us = clock::wall_unix_us().saturating_sub(*STARTED_US) as i64;
    let wall = NOON_UNIX_US + passed_us + AHEAD_US[NODE].load(Ordering::Relaxed);
    wall as u64
}

struct Running {
    node: Node,
    addr: SocketAddr,
    _stop: oneshot::Sender<()>,
}

/// See the module.
pub(crate) struct Cluster {
    nodes: Vec<Running>,
    folders: Vec<TempDir>,
    _alone: MutexGuard<'static, ()>,
}

/// An answer of the HTTP API.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Cluster {
    /// Starts three nodes and waits until one leads.
    pub(crate) async fn start() -> Self {
        Self::start_with(Settings::default()).await
    }

    /// Starts three nodes whose sessions end soon.
    pub(crate) async fn start_brisk() -> Self {
        Self::start_with(Settings {
            session_ttl_us: 2_000_000,
            sync_interval_us: 200_000,
            ..Settings::default()
        })
        .await
    }

    async fn start_with(settings: Settings) -> Self {
        let alone = ALONE.lock().await;
        for ahead in &AHEAD_US {
            ahead.store(0, Ordering::Relaxed);
        }
        let addrs = peer_addrs();
        let members: Vec<InitialMember> = addrs
            .iter()
            .zip(1..)
            .map(|(addr, node_id)| InitialMember {
                node_id,
                peer_addr: addr.to_string(),
            })
            .collect();
        let folders: Vec<TempDir> = addrs.iter().map(|_| tempfile::tempdir().unwrap()).collect();
        let walls: [fn() -> u64; 3] = [wall_unix_us::<0>, wall_unix_us::<1>, wall_unix_us::<2>];
        let starting = (0..3).map(|at| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            let mut replica = ReplicaConfig::new(at as u64 + 1, folders[at].path().to_owned());
            replica.client_url = format!("http://{addr}");
            replica.peer_listen = addrs[at];
            replica.initial_members.clone_from(&members);
            replica.wall_unix_us = walls[at];
            run(replica, listener, settings.clone())
        });
        let nodes = futures::future::join_all(starting).await;
        let cluster = Self {
            nodes,
            folders,
            _alone: alone,
        };
        cluster.leader().await;
        cluster
    }

    /// Which node leads.
    pub(crate) async fn leader(&self) -> usize {
        self.until("nobody leads", |cluster| {
            cluster
                .nodes
                .iter()
                .position(|running| running.node.leader().is_self)
        })
        .await
    }

    /// Waits until there is something.
    pub(crate) async fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(found) = look(self) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(WAIT, wait).await.expect(what)
    }

    /// Stops a node. Its data stays.
    pub(crate) async fn stop(&mut self, node: usize) {
        self.nodes[node].node.shutdown().await;
        self.nodes.remove(node);
    }

    /// Puts a node's wall clock forward by so many hours from where it began.
    pub(crate) fn set_clock_ahead(&self, node: usize, hours: i64) {
        AHEAD_US[node].store(hours * HOUR_US, Ordering::Relaxed);
    }

    /// What the majority's clocks say, in hours since the cluster's noon, as a node has
    /// heard.
    pub(crate) fn majority_hours(&self, node: usize) -> Option<i64> {
        let wall = self.nodes[node].node.replica().majority_wall_unix_us()?;
        Some((wall as i64 - NOON_UNIX_US) / HOUR_US)
    }

    /// A gateway that knows all nodes.
    pub(crate) async fn gateway(&self, holder: &str) -> Client {
        let mut builder = Client::builder().holder(holder);
        for running in &self.nodes {
            builder = builder.endpoint(format!("http://{}", running.addr));
        }
        let connected = tokio::time::timeout(WAIT, builder.connect()).await;
        connected.unwrap().unwrap()
    }

    /// Asks the leader's HTTP API.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let leader = self.leader().await;
        let router: Router = admin::router(self.nodes[leader].node.clone(), Metrics::install());
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(body)
            .unwrap();
        let answer = router.oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        Answer {
            status,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        }
    }

    /// Asks for something that must succeed.
    pub(crate) async fn done(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.ask(method, path, Some(body)).await;
        assert!(
            answer.status.is_success(),
            "{method} {path}: {}",
            answer.body
        );
        answer.body
    }

    /// Binds a pattern to a policy of its own.
    pub(crate) async fn budget(&self, pattern: &str, policy: Value) {
        let path = format!("/v1/budgets/{pattern}");
        self.done("PUT", &path, serde_json::json!({ "policy": policy }))
            .await;
    }

    /// The books of a key.
    pub(crate) async fn account(&self, key: &str) -> Value {
        let answer = self.ask("GET", &format!("/v1/accounts/{key}"), None).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.body
    }

    /// Waits until a figure of a key's books is what it must be.
    pub(crate) async fn books_say(&self, key: &str, figure: &str, value: u64) -> Value {
        let wait = async {
            loop {
                let account = self.account(key).await;
                if account[figure] == value {
                    return account;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let said = tokio::time::timeout(WAIT, wait).await;
        said.unwrap_or_else(|_| panic!("{figure} of {key} is not {value}"))
    }

    /// Stops everything.
    pub(crate) async fn end(self) {
        for running in &self.nodes {
            running.node.shutdown().await;
        }
        drop(self.folders);
    }
}

async fn run(replica: ReplicaConfig, listener: TcpListener, settings: Settings) -> Running {
    let addr = listener.local_addr().unwrap();
    let node = Node::start(NodeConfig {
        leader_tls: None,
        replica,
        initial_settings: settings,
    })
    .await
    .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let service = node.grpc_service();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        Server::builder()
            .add_service(service)
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
                drop(stopped.await);
            })
            .await
            .unwrap();
    });
    Running {
        node,
        addr,
        _stop: stop,
    }
}

/// Peer addresses must be known before the nodes start. A port that the system hands out
/// by itself could be given to another test's connection in the meantime; those below
/// 32,768 are not.
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
