//! The coordinators as one: who leads, who is ready, who joins and who leaves.
//! Knows no fault.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    callers::Callers,
    ground::{Ground, PEER_PORT},
    host::Host,
    links::Links,
    node::{Node, Settings},
};
use crate::Answer;

const POLL: Duration = Duration::from_millis(50);
const RESTARTS_AFTER: Duration = Duration::from_secs(1);

/// Where running nodes are reached, for whoever asks while faults are injected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory(Arc<Mutex<Vec<Place>>>);

/// One running node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) id: u64,
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
}

impl Directory {
    pub(crate) fn places(&self) -> Vec<Place> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, places: Vec<Place>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = places;
    }
}

/// Why a node ended by itself.
#[derive(Clone, Debug)]
pub(crate) struct OwnEnd {
    pub(crate) node: u64,
    pub(crate) how: String,
    pub(crate) last_words: String,
}

/// The coordinators.
#[derive(Debug)]
pub(crate) struct Cluster {
    folder: PathBuf,
    settings: Settings,
    pub(crate) binary: PathBuf,
    nodes: BTreeMap<u64, Node>,
    next_id: u64,
    directory: Directory,
    callers: Option<Callers>,
    /// Nodes that ended by themselves, in order.
    pub(crate) own_ends: Vec<OwnEnd>,
}

impl Cluster {
    /// Prepares and starts `size` nodes.
    pub(crate) fn start(
        folder: &Path,
        size: u64,
        settings: Settings,
        binary: &Path,
        ground: &mut Ground,
        links: &mut Links,
        callers: Option<Callers>,
    ) -> io::Result<Self> {
        let mut cluster = Self {
            folder: folder.to_owned(),
            settings,
            binary: binary.to_owned(),
            nodes: BTreeMap::new(),
            next_id: size + 1,
            directory: Directory::default(),
            callers,
            own_ends: Vec::new(),
        };
        let ids: Vec<u64> = (1..=size).collect();
        for id in &ids {
            cluster.place(*id, &ids, ground, links)?;
        }
        for id in ids {
            cluster.run(id, ground)?;
        }
        Ok(cluster)
    }

    fn place(
        &mut self,
        id: u64,
        members: &[u64],
        ground: &mut Ground,
        links: &mut Links,
    ) -> io::Result<()> {
        ground.add(Host::Node(id))?;
        links.add(ground, Host::Node(id))?;
        let node = Node::prepare(
            &self.folder,
            ground,
            id,
            members,
            &self.settings,
            &self.binary,
        )?;
        self.nodes.insert(id, node);
        Ok(())
    }

    pub(crate) fn directory(&self) -> Directory {
        self.directory.clone()
    }

    /// Their ids, running or not.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    pub(crate) fn node(&mut self, id: u64) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    /// Those that run and are not paused.
    pub(crate) fn running(&self) -> Vec<u64> {
        let running = self.nodes.values().filter(|node| node.runs());
        running.map(|node| node.id).collect()
    }

    /// Starts a node, unless it runs.
    pub(crate) fn run(&mut self, id: u64, ground: &Ground) -> io::Result<()> {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.start(ground, self.callers.as_ref())?;
        }
        self.list();
        Ok(())
    }

    /// Ends a node with SIGKILL.
    pub(crate) fn kill(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.kill();
        }
        self.list();
    }

    /// Ends several at one moment.
    pub(crate) fn kill_all(&mut self, ids: &[u64]) {
        for id in ids {
            if let Some(node) = self.nodes.get_mut(id) {
                node.strike();
            }
        }
        for id in ids {
            self.kill(*id);
        }
    }

    /// Ends a node with SIGTERM; false: it had to be killed.
    pub(crate) fn terminate(&mut self, id: u64, within: Duration) -> bool {
        self.ask_to_end(&[id]);
        self.await_end(id, within)
    }

    /// SIGTERM to several at once.
    pub(crate) fn ask_to_end(&mut self, ids: &[u64]) {
        for id in ids {
            if let Some(node) = self.nodes.get_mut(id) {
                node.is_wanted = false;
                if let Some(process) = node.process() {
                    process.signal(rustix::process::Signal::TERM);
                }
            }
        }
    }

    /// Waits until one that was asked to has ended; false: it had to be killed.
    pub(crate) fn await_end(&mut self, id: u64, within: Duration) -> bool {
        let ended = self.nodes.get_mut(&id).and_then(|node| {
            let process = node.process()?;
            Some(process.wait(within).is_some())
        });
        self.kill(id);
        ended.unwrap_or(true)
    }

    pub(crate) fn pause(&mut self, id: u64) {
        if let Some(process) = self.nodes.get_mut(&id).and_then(Node::process) {
            process.pause();
        }
        self.list();
    }

    pub(crate) fn resume(&mut self, id: u64) {
        if let Some(process) = self.nodes.get_mut(&id).and_then(Node::process) {
            process.resume();
        }
        self.list();
    }

    /// Starts those again that ended by themselves, and notes how they did; each after
    /// a moment, as a supervisor of services does.
    pub(crate) fn supervise(&mut self, ground: &Ground) -> io::Result<()> {
        let mut ended = Vec::new();
        let due = |node: &Node| {
            node.is_wanted
                && !node.has_process()
                && node
                    .ended_at
                    .is_some_and(|at| at.elapsed() >= RESTARTS_AFTER)
        };
        let waiting: Vec<u64> = self
            .nodes
            .values()
            .filter(|node| due(node))
            .map(|node| node.id)
            .collect();
        for id in waiting {
            self.run(id, ground)?;
        }
        for node in self.nodes.values_mut() {
            if let Some(status) = node.take_ended()
                && node.is_wanted
            {
                ended.push((node.id, status.to_string(), node.log_tail(3)));
            }
        }
        for (id, how, last_words) in ended {
            self.own_ends.push(OwnEnd {
                node: id,
                how,
                last_words,
            });
        }
        self.list();
        Ok(())
    }

    fn list(&self) {
        let running = self.nodes.values().filter(|node| node.runs());
        self.directory.set(
            running
                .map(|node| Place {
                    id: node.id,
                    client: node.client,
                    peer: node.peer,
                })
                .collect(),
        );
    }

    /// Who leads, of those that run: of two claims the later term's.
    pub(crate) fn leader(&self) -> Option<u64> {
        self.nodes
            .values()
            .filter_map(|node| Some((node.position()?, node.id)))
            .filter(|(position, _)| position.is_leader)
            .max_by_key(|(position, _)| position.term)
            .map(|(_, id)| id)
    }

    /// Waits until a node is ready; false: it is not in time, or has ended.
    pub(crate) fn await_ready(&mut self, id: u64, within: Duration) -> bool {
        let give_up = Instant::now() + within;
        loop {
            let Some(node) = self.nodes.get_mut(&id) else {
                return false;
            };
            if node.is_ready() {
                return true;
            }
            let has_ended = node
                .process()
                .is_none_or(|process| process.ended().is_some());
            if has_ended || Instant::now() > give_up {
                return false;
            }
            thread::sleep(POLL);
        }
    }

    /// Asks running nodes in turn until one answers other than 503; none: nobody
    /// did in time. The outcome of what was asked is then unknown.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> Option<Answer> {
        let give_up = Instant::now() + within;
        loop {
            for node in self.nodes.values().filter(|node| node.runs()) {
                if let Ok(answer) = node.ask(method, path, body)
                    && answer.status != 503
                {
                    return Some(answer);
                }
                if Instant::now() > give_up {
                    return None;
                }
            }
            thread::sleep(POLL);
        }
    }

    /// Starts an empty node under an id that was never used.
    pub(crate) fn start_new(&mut self, ground: &mut Ground, links: &mut Links) -> io::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        let members = self.ids();
        self.place(id, &members, ground, links)?;
        self.run(id, ground)?;
        Ok(id)
    }

    /// Makes a started node a voter, in the place of another if one is named; an
    /// error says why it is not one.
    pub(crate) fn join(
        &mut self,
        id: u64,
        replaces: Option<u64>,
        ground: &Ground,
        within: Duration,
    ) -> Result<(), String> {
        let peer = ground
            .advertised(Host::Node(id))
            .map_err(|error| error.to_string())?;
        let mut body = json!({"node_id": id, "peer": format!("{peer}:{PEER_PORT}")});
        if let Some(old) = replaces {
            body["replaces"] = json!(old);
        }
        let give_up = Instant::now() + within;
        let mut last = String::from("nobody answered");
        while Instant::now() < give_up {
            if let Some(answer) = self.ask("POST", "/v1/cluster/members", Some(&body), POLL) {
                if answer.status < 300 {
                    return Ok(());
                }
                last = answer.body;
            }
            if replaces.is_none() && self.is_voter(id) {
                return Ok(());
            }
            thread::sleep(POLL * 4);
        }
        Err(format!("node {id} did not become a voter: {last}"))
    }

    /// Takes a node out of the membership; an error says why it is still there.
    pub(crate) fn expel(&mut self, id: u64, within: Duration) -> Result<(), String> {
        let path = format!("/v1/cluster/members/{id}");
        let give_up = Instant::now() + within;
        let mut last = String::from("nobody answered");
        while Instant::now() < give_up {
            if let Some(answer) = self.ask("DELETE", &path, None, POLL) {
                if answer.status < 300 || answer.json()["code"] == "no_such_member" {
                    self.let_go(id);
                    return Ok(());
                }
                last = answer.body;
            }
            thread::sleep(POLL * 4);
        }
        Err(format!("node {id} is still a member: {last}"))
    }

    /// Nobody starts it again: a node that hears that it was removed ends by itself.
    fn let_go(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.is_wanted = false;
        }
    }

    /// Ends a node for good. Its files stay.
    pub(crate) fn forget(&mut self, id: u64, ground: &mut Ground, links: &mut Links) {
        self.kill(id);
        self.nodes.remove(&id);
        links.remove(Host::Node(id));
        ground.remove(Host::Node(id));
        self.list();
    }

    fn is_voter(&self, id: u64) -> bool {
        self.status().is_some_and(|status| {
            let members = status["members"].as_array();
            members.is_some_and(|members| {
                members
                    .iter()
                    .any(|member| member["node_id"] == id && member["role"] == "voter")
            })
        })
    }

    /// What a leader says of the cluster.
    pub(crate) fn status(&self) -> Option<Value> {
        let leader = self.nodes.get(&self.leader()?)?;
        let answer = leader.ask("GET", "/v1/cluster", None).ok()?;
        (answer.status == 200).then(|| answer.json())
    }
}
