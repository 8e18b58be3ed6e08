//! From a configuration to a running node, and its end. Knows nothing of what
//! the node decides; only where it listens, what it prints and how it exits.

use std::{
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use leasehold_doors::{Door, KeptError, Listener, Places, Watch};
use rustix::{fs::Mode, process::umask};
use serde::Serialize;
use thiserror::Error;
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    access::{Access, RegisterError},
    admin::{self, metrics::Metrics},
    config::{Config, LogFormat},
    file_limit,
    listeners::{self, Certificates},
    node::{Node, NodeConfig},
    raft::{Dismissal, InitialMember, ReplicaConfig, StartError},
};

/// All of a stop takes no longer.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// Of which connections may use so much once the node itself has stopped.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// Why a node did not start, or why it stopped by itself.
#[derive(Debug, Error)]
pub enum ServeError {
    /// An address is taken.
    #[error(
        "{name} {addr} is in use by another process: stop it, or choose another address with --{flag}"
    )]
    PortInUse {
        /// Which of the node's addresses.
        name: &'static str,
        /// The address.
        addr: SocketAddr,
        /// The flag that changes it.
        flag: &'static str,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {name} {addr}: {source}")]
    Listen {
        /// Which of the node's addresses.
        name: &'static str,
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Who may come in cannot be read.
    #[error(transparent)]
    Identities(#[from] RegisterError),
    /// A certificate or a key cannot be used.
    #[error(transparent)]
    Files(#[from] KeptError),
    /// The replica did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The data folder cannot be written.
    #[error("cannot write {path}: {source}", path = path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nobody needs this node any more.
    #[error("{0}")]
    Dismissed(String, Dismissal),
    /// The replica stopped by itself.
    #[error("{0}; mend that, then start this node again: it goes on from what is on disk")]
    Fatal(String),
}

impl ServeError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::PortInUse { .. } => "port_in_use",
            Self::Listen { .. } => "cannot_listen",
            Self::Identities(error) => error.code(),
            Self::Files(_) => "invalid_config",
            Self::Start(error) => error.code(),
            Self::Unwritable { .. } => "cannot_write",
            Self::Dismissed(_, dismissal) => dismissal.code(),
            Self::Fatal(_) => "fatal",
        }
    }

    /// The process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        exit_code_of(self.code())
    }
}

/// The exit code of a process that ends with an error: 1 for everything that a
/// restart may cure.
#[must_use]
pub fn exit_code_of(code: &str) -> u8 {
    match code {
        "invalid_config"
        | "invalid_identities"
        | "folder_not_empty"
        | "no_data"
        | "not_a_backup"
        | "unusable_credentials" => 2,
        "port_in_use" | "cannot_listen" | "tls_failed" => 3,
        "damaged_store" | "damaged_backup" | "store_rolled_back" => 4,
        "disk_lost" => 5,
        "store_locked" => 6,
        "unknown_format" => 7,
        "removed" | "cluster_replaced" => 8,
        _ => 1,
    }
}

/// A node that serves.
pub struct Running {
    node: Node,
    client_addr: SocketAddr,
    admin_addr: Option<SocketAddr>,
    /// Where operators go on this machine.
    url: String,
    /// Not everybody who reaches it may do everything, or it speaks TLS.
    is_guarded: bool,
    stop: watch::Sender<bool>,
    doors: Vec<Arc<Door>>,
}

/// What `addresses.json` in the data folder says.
#[derive(Serialize)]
struct Addresses {
    client: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<SocketAddr>,
    peer: SocketAddr,
    node_id: u64,
    pid: u32,
}

impl Running {
    /// Where gateways connect.
    #[must_use]
    pub fn client_addr(&self) -> SocketAddr {
        self.client_addr
    }

    /// Where the HTTP API is.
    #[must_use]
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin_addr.unwrap_or(self.client_addr)
    }

    /// The node itself.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Hands leadership over if possible, stops the node, closes connections;
    /// takes at most 10 s.
    pub async fn shutdown(self) {
        let orderly = async {
            self.node.shutdown().await;
            self.stop.send_replace(true);
            for door in self.doors {
                door.close(DRAIN_WITHIN).await;
            }
        };
        if timeout(STOP_WITHIN, orderly).await.is_err() {
            tracing::warn!("the node did not stop within 10 s: leaving it");
        }
    }
}

/// Starts a node and serves; returns once it accepts requests.
///
/// # Errors
/// See [`ServeError`]; nothing is left running.
pub async fn start(config: Config) -> Result<Running, ServeError> {
    let mut files = Watch::default();
    let certificates = Certificates::keep(config.tls.clone(), &mut files)?;
    let client = listen("client address", "listen", config.listen).await?;
    let admin = match config.admin_listen {
        Some(addr) => Some(listen("admin address", "admin-listen", addr).await?),
        None => None,
    };
    let bound = |listener: &TcpListener, addr| listener.local_addr().unwrap_or(addr);
    let client_addr = bound(&client, config.listen);
    let admin_addr = admin
        .as_ref()
        .zip(config.admin_listen)
        .map(|(listener, addr)| bound(listener, addr));

    let scheme = match certificates.clients {
        Some(_) => "https",
        None => "http",
    };
    let client_url = config
        .advertise
        .clone()
        .unwrap_or_else(|| format!("{scheme}://{client_addr}"));
    let admin_url = match (&config.admin_advertise, admin_addr) {
        (Some(url), _) => url.clone(),
        (None, Some(addr)) => format!("{scheme}://{addr}"),
        (None, None) => String::new(),
    };
    let metrics = Metrics::install();
    let access = match &config.identities {
        Some(path) => Access::by_file(path.clone(), config.limits.per_identity, &mut files)?,
        None => Access::for_everybody(),
    };
    let (stop, stopped) = watch::channel(false);
    // Listening before the node takes part, so that probes and impatient clients
    // hear "starting" instead of silence.
    let (ready, client_routes) = watch::channel(None);
    let (admin_ready, admin_routes) = watch::channel(None);
    let requests = Arc::new(Places::new(config.limits.requests_max));
    let mut limits = config.limits.clone();
    let listeners = 1 + usize::from(admin.is_some());
    limits.connections_max = file_limit::for_clients(listeners, limits.connections_max);
    let mut doors = Vec::with_capacity(2);
    let mut open = |listener, routes| {
        let requests = Arc::clone(&requests);
        let tls = certificates.clients.clone();
        let door = listeners::door(routes, &limits, requests, tls);
        tokio::spawn(Arc::clone(&door).serve(Listener::Tcp(listener)));
        doors.push(door);
    };
    open(client, client_routes);
    if let Some(listener) = admin {
        open(listener, admin_routes);
    }
    if !files.is_empty() {
        tokio::spawn(keep_files(files, stopped.clone()));
    }
    let shown_url = if admin_url.is_empty() {
        client_url.clone()
    } else {
        admin_url.clone()
    };
    let started = Node::start(node_config(&config, &certificates, client_url, admin_url)).await;
    let node = match started {
        Ok(node) => node,
        Err(error) => {
            stop.send_replace(true);
            for door in doors {
                door.close(Duration::ZERO).await;
            }
            return Err(error.into());
        }
    };
    let api = admin::router_behind(&access, node.clone(), metrics.clone());
    let gateways = tonic::service::Routes::new(node.grpc_service_behind(&access))
        .prepare()
        .into_axum_router()
        .reset_fallback();
    if admin_addr.is_some() {
        let probes = admin::probes(&access, node.clone(), metrics.clone());
        admin_ready.send_replace(Some(access.guard(api)));
        ready.send_replace(Some(access.guard(gateways.merge(probes))));
    } else {
        ready.send_replace(Some(access.guard(gateways.merge(api))));
    }
    let is_guarded = certificates.clients.is_some() || !access.is_for_everybody();
    tokio::spawn(keep_metrics(metrics, certificates, access, stopped));
    let running = Running {
        client_addr,
        admin_addr,
        url: shown_url,
        is_guarded,
        stop,
        doors,
        node,
    };
    let addresses = Addresses {
        client: client_addr,
        admin: admin_addr,
        peer: running.node.replica().peer_addr(),
        node_id: config.node_id,
        pid: std::process::id(),
    };
    write_addresses(&config.data_dir, &addresses)?;
    Ok(running)
}

fn node_config(
    config: &Config,
    certificates: &Certificates,
    client_url: String,
    admin_url: String,
) -> NodeConfig {
    let members = config.initial_members.iter();
    NodeConfig {
        replica: ReplicaConfig {
            peer_listen: config.peer_listen,
            peer_tls: certificates.peers.clone(),
            peer_advertise: config.peer_advertise.clone(),
            client_url,
            admin_url,
            region: config.region.clone().unwrap_or_default(),
            initial_members: members
                .map(|member| InitialMember {
                    node_id: member.node_id,
                    peer_addr: member.peer.clone(),
                })
                .collect(),
            heartbeat: config.raft.heartbeat,
            election_min: config.raft.election_timeout_min,
            election_max: config.raft.election_timeout_max,
            wall_clock_tolerance: config.wall_clock_tolerance,
            snapshot_every_entries: config.snapshots.every_entries,
            snapshot_keep_entries: config.snapshots.keep_entries,
            ..ReplicaConfig::new(config.node_id, config.data_dir.clone())
        },
        leader_tls: certificates.leader.clone(),
        initial_settings: config.cluster.clone(),
    }
}

async fn listen(
    name: &'static str,
    flag: &'static str,
    addr: SocketAddr,
) -> Result<TcpListener, ServeError> {
    TcpListener::bind(addr).await.map_err(|source| {
        if source.kind() == io::ErrorKind::AddrInUse {
            ServeError::PortInUse { name, addr, flag }
        } else {
            ServeError::Listen { name, addr, source }
        }
    })
}

async fn keep_files(files: Watch, mut stopped: watch::Receiver<bool>) {
    tokio::select! {
        _ = stopped.wait_for(|stop| *stop) => {}
        ended = files.run() => if let Err(error) = ended {
            tracing::error!(%error, "changes of certificates and identities are not seen");
        },
    }
}

async fn keep_metrics(
    metrics: Metrics,
    certificates: Certificates,
    access: Access,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        certificates.show();
        access.show();
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => return,
            () = sleep(Duration::from_secs(5)) => metrics.upkeep(),
        }
    }
}

fn write_addresses(data_dir: &Path, addresses: &Addresses) -> Result<(), ServeError> {
    let path = data_dir.join("addresses.json");
    let temp = data_dir.join("addresses.json.tmp");
    let write = || {
        std::fs::write(&temp, serde_json::to_vec(addresses)?)?;
        std::fs::rename(&temp, &path)
    };
    write().map_err(|source| ServeError::Unwritable {
        path: path.clone(),
        source,
    })
}

/// Logs to stderr: for people, or one JSON object a line.
///
/// # Errors
/// When `log` is not a filter.
pub fn start_logging(config: &Config) -> Result<(), String> {
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log).map_err(|error| {
        format!(
            "log ({}) is not a filter like \"info,leasehold_coordinator=debug\": {error}",
            config.log
        )
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    // A second subscriber in one process is a test's; the first one stays.
    let _ = match config.log_format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            .try_init(),
    };
    Ok(())
}

/// Runs a node until a signal or a fatal error ends it.
///
/// # Errors
/// See [`ServeError`].
pub async fn run(config: Config) -> Result<(), ServeError> {
    file_limit::raise();
    // What it writes is its owner's alone, whatever folder it is given.
    umask(Mode::RWXG | Mode::RWXO);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let text = config.log_format == LogFormat::Text;
    let (node_id, data_dir) = (config.node_id, config.data_dir.clone());
    let mut signals = Signals::new()
        .map_err(|error| ServeError::Fatal(format!("cannot listen for signals: {error}")))?;
    let running = tokio::select! {
        running = start(config) => running?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before the node took part");
            return Ok(());
        }
    };
    tracing::info!(
        node_id,
        client = %running.client_addr(),
        admin = %running.admin_addr(),
        peer = %running.node().replica().peer_addr(),
        data_dir = %data_dir.display(),
        "serving"
    );
    if text {
        greet(node_id, &data_dir, &running);
    }
    let mut fatal = running.node().replica().fatal();
    let message = tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "stopping");
            None
        }
        message = fatal.wait_for(Option::is_some) => {
            // An error means that the replica is gone without a word.
            Some(message.ok().and_then(|m| m.clone()).unwrap_or_else(|| "the replica stopped".to_owned()))
        }
    };
    let dismissal = running.node().replica().dismissal();
    tokio::select! {
        () = running.shutdown() => {}
        name = signals.next() => tracing::warn!(signal = name, "second signal: leaving at once"),
    }
    match (message, dismissal) {
        (Some(message), Some(dismissal)) => Err(ServeError::Dismissed(message, dismissal)),
        (Some(message), None) => Err(ServeError::Fatal(message)),
        (None, _) => {
            tracing::info!("stopped");
            Ok(())
        }
    }
}

/// What to do next, for somebody who has just started their first node.
fn greet(node_id: u64, data_dir: &Path, running: &Running) {
    let url = &running.url;
    // Where somebody must say who they are, curl would have to be told more than fits here.
    let hints = if running.is_guarded {
        format!(
            "look around:   leasehold cluster --endpoint {url} --ca FILE --token-file FILE (or --cert, --key)"
        )
    } else {
        format!(
            "set a budget:  curl -X PUT '{url}/v1/budgets/acme/*' -d '{{\"policy\":{{\"kind\":\"sliding_window\",\"limit\":100,\"window_ms\":60000}}}}'\n  \
             spend a unit:  curl -i {url}/v1/spend -d '{{\"key\":\"acme/orders.read\"}}'\n  \
             look around:   curl {url}/v1/accounts/acme/orders.read, {url}/openapi.json, leasehold --help"
        )
    };
    let lines = format!(
        "Leasehold {version}, node {node_id}, at {url} (data in {data}, Ctrl-C stops it)\n  {hints}\n",
        version = env!("CARGO_PKG_VERSION"),
        data = data_dir.display(),
    );
    let members = running.node().replica().local_status().members;
    // A node of the first list, or alone, becomes a member by itself in a moment.
    let founders = &running.node().config().replica.initial_members;
    let is_founder =
        founders.is_empty() || founders.iter().any(|founder| founder.node_id == node_id);
    let waiting = !is_founder
        && members
            .iter()
            .all(|status| status.member.node_id != node_id);
    let lines = if waiting {
        let peer = running.node().replica().me().peer_addr;
        format!(
            "Leasehold {version}, node {node_id}, at {url}: not a member of a cluster yet (data in {data})\n  \
             add it to one:  leasehold cluster add {node_id} {peer} --endpoint URL-OF-ANY-MEMBER\n",
            version = env!("CARGO_PKG_VERSION"),
            data = data_dir.display(),
        )
    } else {
        lines
    };
    // Nobody may be reading; the node serves all the same.
    let _ = io::stdout().write_all(lines.as_bytes());
}

/// SIGTERM and SIGINT.
struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}
