//! All links: for every pair of hosts that talk, a listener where the one dials
//! the other, and a path each way. Knows which hosts there are, not what they say.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{net::TcpListener, runtime::Handle, sync::watch, task::JoinHandle};

use super::{
    callers::Callers,
    ground::{CLIENT_PORT, Ground, PEER_PORT},
    host::Host,
    link::{self, Mode, PathState},
};

type ByDirection = BTreeMap<(Host, Host), watch::Sender<PathState>>;

/// Paths; made when they are first needed.
#[derive(Clone, Debug, Default)]
struct Paths(Arc<Mutex<ByDirection>>);

impl Paths {
    fn lock(&self) -> MutexGuard<'_, ByDirection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, from: Host, to: Host) -> link::Path {
        self.lock()
            .entry((from, to))
            .or_insert_with(|| watch::Sender::new(PathState::default()))
            .subscribe()
    }
}

/// The links.
#[derive(Debug)]
pub(crate) struct Links {
    runtime: Handle,
    paths: Paths,
    /// Connections get a number, in the order in which they come.
    connections: Arc<AtomicU64>,
    hosts: BTreeSet<Host>,
    listening: BTreeMap<(Option<Host>, Host), Vec<JoinHandle<()>>>,
    /// Who dials, where that cannot be told by the place of the listener.
    callers: Option<Callers>,
}

impl Links {
    pub(crate) fn new(runtime: Handle, callers: Option<Callers>) -> Self {
        Self {
            runtime,
            paths: Paths::default(),
            connections: Arc::default(),
            hosts: BTreeSet::new(),
            listening: BTreeMap::new(),
            callers,
        }
    }

    /// Links a new host with all others.
    pub(crate) fn add(&mut self, ground: &Ground, host: Host) -> io::Result<()> {
        if !self.hosts.insert(host) {
            return Ok(());
        }
        if self.callers.is_some() {
            if matches!(host, Host::Node(_)) {
                self.listen(ground, None, host)?;
            }
            return Ok(());
        }
        for other in self.hosts.clone() {
            if other != host && matches!(host, Host::Node(_)) {
                self.listen(ground, Some(other), host)?;
            }
            if other != host && matches!(other, Host::Node(_)) {
                self.listen(ground, Some(host), other)?;
            }
        }
        Ok(())
    }

    /// Takes a host's links away.
    pub(crate) fn remove(&mut self, host: Host) {
        self.hosts.remove(&host);
        self.listening.retain(|(from, to), tasks| {
            let stays = *to != host && *from != Some(host);
            if !stays {
                tasks.iter().for_each(JoinHandle::abort);
            }
            stays
        });
        self.paths
            .lock()
            .retain(|(from, to), _| *from != host && *to != host);
    }

    fn listen(&mut self, ground: &Ground, from: Option<Host>, to: Host) -> io::Result<()> {
        let mut tasks = Vec::new();
        let ports: &[u16] = match from {
            Some(Host::Gateway(_)) => &[CLIENT_PORT],
            _ => &[CLIENT_PORT, PEER_PORT],
        };
        for port in ports {
            let at = SocketAddr::from((ground.advertised(to)?, *port));
            let listener = ground.bind(from.unwrap_or(to), at)?;
            listener.set_nonblocking(true)?;
            let dial = SocketAddr::from((ground.real(to)?, *port));
            let (paths, numbers) = (self.paths.clone(), Arc::clone(&self.connections));
            let callers = self.callers.clone();
            let _inside = self.runtime.enter();
            let listener = TcpListener::from_std(listener)?;
            tasks.push(self.runtime.spawn(async move {
                loop {
                    let Ok((accepted, peer)) = listener.accept().await else {
                        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                        continue;
                    };
                    let (paths, callers) = (paths.clone(), callers.clone());
                    // Only distinct and growing.
                    let number = numbers.fetch_add(1, Ordering::Relaxed) + 1;
                    tokio::spawn(async move {
                        let from = match (from, callers) {
                            (Some(from), _) => Some(from),
                            (None, Some(callers)) => callers.find(peer, at).await,
                            (None, None) => None,
                        };
                        // Whoever is none of ours may have it as it is.
                        let from = from.unwrap_or(to);
                        let (forth, back) = (paths.path(from, to), paths.path(to, from));
                        link::carry(number, accepted, dial, forth, back).await;
                    });
                }
            }));
        }
        self.listening.insert((from, to), tasks);
        Ok(())
    }

    /// Every host but this one.
    pub(crate) fn others(&self, host: Host) -> Vec<Host> {
        let others = self.hosts.iter().copied();
        others.filter(|other| *other != host).collect()
    }

    /// Every host.
    pub(crate) fn hosts(&self) -> Vec<Host> {
        self.hosts.iter().copied().collect()
    }

    /// Changes what flows from one host to another.
    pub(crate) fn change(&self, from: Host, to: Host, change: impl FnOnce(&mut PathState)) {
        drop(self.paths.path(from, to));
        if let Some(path) = self.paths.lock().get(&(from, to)) {
            path.send_modify(change);
        }
    }

    /// Changes both directions.
    pub(crate) fn change_both(&self, one: Host, other: Host, change: impl Fn(&mut PathState)) {
        self.change(one, other, &change);
        self.change(other, one, &change);
    }

    /// Keeps two hosts from hearing each other.
    pub(crate) fn part(&self, one: Host, other: Host, mode: Mode) {
        self.change_both(one, other, |path| path.mode = mode);
    }

    /// Keeps every host of the one side from every host of the other.
    pub(crate) fn partition(&self, side: &[Host], rest: &[Host], mode: Mode) {
        for one in side {
            for other in rest.iter().filter(|other| *other != one) {
                self.part(*one, *other, mode);
            }
        }
    }

    /// Makes all connections between two hosts half-open: both ends go on believing
    /// in them, and nothing ever arrives. New connections work.
    pub(crate) fn half_open(&self, one: Host, other: Host) {
        let below = self.connections.load(Ordering::Relaxed) + 1;
        self.change_both(one, other, |path| path.dead_below = below);
    }

    /// Every path is as new; half-open connections stay so.
    pub(crate) fn heal(&self) {
        for path in self.paths.lock().values() {
            path.send_modify(|state| {
                *state = PathState {
                    dead_below: state.dead_below,
                    ..PathState::default()
                };
            });
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for tasks in self.listening.values() {
            tasks.iter().for_each(JoinHandle::abort);
        }
    }
}
