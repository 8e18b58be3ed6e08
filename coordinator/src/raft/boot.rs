//! Bringing a replica up and down, on a thread and a single-threaded runtime of
//! its own: the path of an entry then never waits for anything but the disk and
//! the peers. Knows nothing of what runs on top.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use leasehold_doors::{Door, Kept, Limits, Listener, Places};
use leasehold_ledger::Ledger;
use leasehold_proto::v1::peer_server::PeerServer;
use openraft::{Config, SnapshotPolicy, async_runtime::WatchReceiver};
use parking_lot::{Mutex, RwLock};
use tokio::{
    net::TcpListener,
    runtime::Builder,
    sync::{mpsc, oneshot, watch},
};

use super::{
    addresses::Addresses,
    answers::Answers,
    api::{Leadership, Member, PeerTls, ReplicaConfig, StartError},
    compaction,
    hello::{self, Part},
    leadership,
    log::Log,
    machine::{self, Belonging, Machine},
    membership::{self, Changes},
    network::{Links, MESSAGE_BYTES_MAX, Network, WINDOW_BYTES},
    own_cluster::OwnCluster,
    peers::{self, Peers, Shared},
    preference, roll_call, rollback,
    types::{Core, log_pos},
};
use crate::{
    file_limit, listeners,
    store::{self, Identity, StoreError, Wal},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a snapshot may take to be installed, beside the time for sending it.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(60);
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// A replica that runs.
pub(super) struct Running {
    pub(super) changes: Changes,
    pub(super) fatal: watch::Receiver<Option<String>>,
    pub(super) peer_addr: SocketAddr,
    /// Dropped or used: the replica stops.
    pub(super) stop: mpsc::Sender<()>,
    /// Closed once it has stopped and its store is closed.
    pub(super) stopped: watch::Receiver<()>,
}

/// Starts a replica on a thread of its own. Dropping the future gives up.
pub(super) async fn start(config: ReplicaConfig) -> Result<Running, StartError> {
    let core_config = check(&config)?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .thread_name("replica-io")
        .build()
        .map_err(|error| StartError::Core(error.to_string()))?;
    let (ready, started) = oneshot::channel();
    let (stopped_guard, stopped) = watch::channel(());
    let thread = thread::Builder::new().name(format!("replica-{}", config.node_id));
    let spawned = thread.spawn(move || {
        let failed = runtime.block_on(live(config, core_config, ready, stopped));
        runtime.shutdown_timeout(STOP_PATIENCE);
        // Only now are the address and the data folder free again.
        if let Some((ready, error)) = failed {
            // Nobody may wait for it any more.
            let _ = ready.send(Err(error));
        }
        drop(stopped_guard);
    });
    spawned.map_err(|error| StartError::Core(error.to_string()))?;
    started
        .await
        .unwrap_or_else(|_| Err(StartError::Core("its thread panicked".to_owned())))
}

type Ready = oneshot::Sender<Result<Running, StartError>>;

/// Boots, runs and stops; what is returned is to be said when all is closed.
async fn live(
    config: ReplicaConfig,
    core_config: Config,
    mut ready: Ready,
    stopped: watch::Receiver<()>,
) -> Option<(Ready, StartError)> {
    let (stop, mut stopping) = mpsc::channel(1);
    let booted = tokio::select! {
        booted = boot(config, core_config, stop, stopped) => booted,
        // Nobody waits for it any more.
        () = ready.closed() => return None,
    };
    let (running, parts) = match booted {
        Ok(booted) => booted,
        Err(error) => return Some((ready, error)),
    };
    if ready.send(Ok(running)).is_ok() {
        // Asked to stop, or every handle is gone.
        stopping.recv().await;
    }
    parts.stopping.store(true, Ordering::Relaxed);
    if let Err(error) = parts.core.shutdown().await {
        tracing::warn!(%error, "the consensus core did not stop cleanly");
    }
    parts.server.abort();
    let wal = parts.wal;
    if tokio::task::spawn_blocking(move || wal.close())
        .await
        .is_err()
    {
        tracing::warn!("the store did not close cleanly");
    }
    None
}

struct Parts {
    core: Core,
    wal: Arc<Wal>,
    server: tokio::task::JoinHandle<()>,
    stopping: Arc<AtomicBool>,
}

async fn boot(
    config: ReplicaConfig,
    core_config: Config,
    stop: mpsc::Sender<()>,
    stopped: watch::Receiver<()>,
) -> Result<(Running, Parts), StartError> {
    let listen = config.peer_listen;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|source| StartError::Listen { listen, source })?;
    let peer_addr = listener
        .local_addr()
        .map_err(|source| StartError::Listen { listen, source })?;
    let (fatal, fatal_seen) = watch::channel(None);
    let (mut identity, opened) = open_store(&config, fatal.clone()).await?;
    let me = Member {
        node_id: config.node_id,
        peer_addr: advertised(&config, peer_addr)?,
        client_url: config.client_url.clone(),
        admin_url: config.admin_url.clone(),
        region: config.region.clone(),
        disk_id: identity.disk_id,
    };
    let blank = opened.loaded.is_blank();
    let wal = Arc::new(opened.wal);
    let belonging = Belonging {
        cluster_id: opened.cluster_id,
        wal: Arc::clone(&wal),
    };
    let log = Log::new(opened.loaded, Arc::clone(&wal))
        .map_err(|detail| StoreError::damaged(&opened.log_dir, detail))?;
    let ledger = Arc::new(RwLock::new(Ledger::new()));
    let snapshots = Arc::new(Mutex::new(opened.snapshots));
    let (moved, moves) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        me: me.clone(),
        blank,
        addresses: Addresses::default(),
        heard: Mutex::new(None),
        core: OnceLock::new(),
        ledger: Arc::clone(&ledger),
        snapshots: Arc::clone(&snapshots),
        wall_unix_us: config.wall_unix_us,
        format_version: config.format_version,
        answers: Answers::default(),
        wall_clock: Mutex::default(),
        claims: rollback::Claims::default(),
        dismissed: OnceLock::new(),
        old_node: Mutex::default(),
        fatal,
        said_wrong_disk: Mutex::new(None),
        moved,
    });
    let own_cluster = OwnCluster::new(opened.cluster_id, Arc::clone(&ledger));
    let links = Links {
        tls: config.peer_tls.clone(),
        own_cluster: own_cluster.clone(),
        said: Arc::default(),
        connect_timeout: CONNECT_TIMEOUT.min(config.election_max),
        ping_every: config.election_max,
        ping_timeout: config.election_max,
    };
    let limits = Limits {
        ping_every: links.ping_every,
        ping_within: links.ping_timeout,
        window_bytes: Some(WINDOW_BYTES),
        ..config.peer_limits
    };
    let peers = Peers(Arc::clone(&shared), own_cluster);
    let server = tokio::spawn(serve(listener, peers, links.tls.clone(), limits));
    // Ends the server if anything below fails or is given up.
    let server = AbortOnDrop(Some(server));

    let part = if blank {
        hello::find_part(&links, &me, &config.initial_members).await?
    } else {
        Part::Wait
    };
    let remains = rollback::Remains::of(&log, &snapshots.lock(), &config.initial_members)?;
    remains.check(&links, &me, &opened.log_dir).await?;
    identity.take_part(&config.data_dir)?;
    let entries = log.clone();
    let core = Core::new(
        config.node_id,
        Arc::new(core_config),
        Network {
            links: links.clone(),
            addresses: shared.addresses.clone(),
        },
        log,
        Machine::new(ledger, snapshots, belonging),
    )
    .await
    .map_err(|error| StartError::Core(error.to_string()))?;
    // The only place that sets it.
    let _ = shared.core.set(core.clone());
    if let Part::Begin(members) = part {
        core.initialize(members)
            .await
            .map_err(|error| StartError::Core(error.to_string()))?;
    }

    let stopping = Arc::new(AtomicBool::new(false));
    let (leadership, led) = watch::channel(Leadership::Following { leader: None });
    tokio::spawn(leadership::publish(
        core.clone(),
        Arc::clone(&shared),
        leadership,
        Arc::clone(&stopping),
    ));
    let changes = Changes {
        core: core.clone(),
        shared: Arc::clone(&shared),
        links: links.clone(),
        leadership: led,
        election_max: config.election_max,
    };
    tokio::spawn(membership::keep_records(changes.clone(), moves));
    tokio::spawn(roll_call::keep(
        core.clone(),
        Arc::clone(&shared),
        links.clone(),
        config.wall_clock_tolerance,
        entries.clone(),
    ));
    tokio::spawn(preference::seek(changes.clone()));
    tokio::spawn(announce(core.clone(), shared, links));
    tokio::spawn(recovered(core.clone()));
    tokio::spawn(compaction::bound(core.clone(), entries));
    let server = server.into_inner();
    let running = Running {
        changes,
        fatal: fatal_seen,
        peer_addr,
        stop,
        stopped,
    };
    Ok((
        running,
        Parts {
            core,
            wal,
            server,
            stopping,
        },
    ))
}

async fn open_store(
    config: &ReplicaConfig,
    fatal: watch::Sender<Option<String>>,
) -> Result<(Identity, store::Opened), StartError> {
    let (dir, node_id) = (config.data_dir.clone(), config.node_id);
    let open = move || {
        let identity = Identity::load_or_create(&dir, node_id)?;
        let opened = store::open(&dir, &identity, move |reason| peers::fail(&fatal, reason))?;
        check_snapshot(&dir, &opened)?;
        Ok((identity, opened))
    };
    match tokio::task::spawn_blocking(open).await {
        Ok(result) => result.map_err(|error: StoreError| error.into()),
        Err(error) => Err(StartError::Core(error.to_string())),
    }
}

/// What was purged from the log must be in a snapshot, and a snapshot must be of
/// the entry that its name says.
pub(super) fn check_snapshot(dir: &Path, opened: &store::Opened) -> Result<(), StoreError> {
    let newest = opened.snapshots.newest();
    let included = newest.map(|(at, _)| at.index);
    if let Some(purged) = opened.loaded.purged
        && included.is_none_or(|included| included < purged.index)
    {
        let detail = format!(
            "the log was cut up to entry {}, but no snapshot includes it",
            purged.index
        );
        return Err(StoreError::damaged(dir.join("snapshots"), detail));
    }
    if let Some((at, file)) = newest {
        // Its bytes were checked when the folder was opened.
        let meta = machine::describe(file)?;
        if meta.last_log_id.as_ref().map(log_pos) != Some(*at) {
            return Err(StoreError::damaged(
                file.path(),
                "its name does not fit its content",
            ));
        }
    }
    Ok(())
}

/// What peers are told to dial.
fn advertised(config: &ReplicaConfig, bound: SocketAddr) -> Result<String, StartError> {
    let named = config
        .initial_members
        .iter()
        .find(|member| member.node_id == config.node_id);
    let named = config
        .peer_advertise
        .clone()
        .or_else(|| named.map(|member| member.peer_addr.clone()));
    match named {
        Some(named) => Ok(named),
        None if bound.ip().is_unspecified() => Err(StartError::Config(format!(
            "listening for peers on {bound} needs peer_advertise: no peer can dial that address"
        ))),
        None => Ok(bound.to_string()),
    }
}

/// Serves peers: with TLS, nothing of theirs is parsed before they have shown a
/// certificate.
async fn serve(listener: TcpListener, peers: Peers, tls: Option<Kept<PeerTls>>, limits: Limits) {
    let service = PeerServer::new(peers)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let router = tonic::service::Routes::new(service)
        .prepare()
        .into_axum_router();
    let places = Arc::new(Places::new(file_limit::for_peers()));
    let door = Door::new(router, places, limits, listeners::refused_peer);
    let door = match tls {
        Some(tls) => door.with_tls(move || Arc::clone(&tls.now().listener)),
        None => door,
    };
    Arc::new(door).serve(Listener::Tcp(listener)).await;
}

/// Tells the others where this node is reached, until the membership says so.
async fn announce(core: Core, shared: Arc<Shared>, links: Links) {
    loop {
        let membership = Arc::clone(&core.metrics().borrow_watched().membership_config);
        let recorded = membership.get_node(&shared.me.node_id);
        if recorded.is_some_and(|recorded| *recorded == shared.me) {
            return;
        }
        for (_, other) in membership
            .nodes()
            .filter(|(node_id, _)| **node_id != shared.me.node_id)
        {
            // Whoever does not answer is asked again.
            let _ = hello::ask(&links, &shared.me, &other.peer_addr).await;
        }
        tokio::time::sleep(ANNOUNCE_EVERY).await;
    }
}

/// Says when everything that was applied before a restart is applied again.
async fn recovered(core: Core) {
    match core.wait_for_recovery(None).await {
        Ok(metrics) => {
            let applied = metrics.last_applied.as_ref().map(|at| at.index());
            tracing::info!(applied, "recovered");
        }
        Err(error) => tracing::debug!(%error, "stopped before it had recovered"),
    }
}

fn check(config: &ReplicaConfig) -> Result<Config, StartError> {
    if config.node_id == 0 {
        return Err(StartError::Config(
            "node_id (0) must be at least 1".to_owned(),
        ));
    }
    let mut ids: Vec<u64> = config
        .initial_members
        .iter()
        .map(|member| member.node_id)
        .collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair.first() == pair.last()) {
        return Err(StartError::Config(format!(
            "initial_members names node {} twice",
            pair[0]
        )));
    }
    if ids.first() == Some(&0) {
        return Err(StartError::Config(
            "initial_members: node_id (0) must be at least 1".to_owned(),
        ));
    }
    if config.snapshot_every_entries == 0 {
        return Err(StartError::Config(
            "snapshot_every_entries (0) must be at least 1".to_owned(),
        ));
    }
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Config {
        cluster_name: "leasehold".to_owned(),
        heartbeat_interval: millis(config.heartbeat),
        election_timeout_min: millis(config.election_min),
        election_timeout_max: millis(config.election_max),
        install_snapshot_timeout: millis(INSTALL_TIMEOUT),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_every_entries),
        max_in_snapshot_log_to_keep: config.snapshot_keep_entries,
        // Far above the interval: a follower that lags less is sent entries, and a
        // snapshot never races with the purge that follows the next one.
        replication_lag_threshold: config
            .snapshot_every_entries
            .saturating_add(config.snapshot_keep_entries)
            .saturating_mul(4),
        purge_batch_size: (config.snapshot_keep_entries / 4).clamp(1, 1_024),
        enable_pre_vote: Some(true),
        // A restarted leader stands for election like everybody else.
        enable_leader_restore: Some(false),
        ..Config::default()
    }
    .validate()
    .map_err(|error| StartError::Config(format!("heartbeat and election timeouts: {error}")))
}

struct AbortOnDrop(Option<tokio::task::JoinHandle<()>>);

impl AbortOnDrop {
    fn into_inner(mut self) -> tokio::task::JoinHandle<()> {
        self.0
            .take()
            .unwrap_or_else(|| tokio::spawn(std::future::ready(())))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}
