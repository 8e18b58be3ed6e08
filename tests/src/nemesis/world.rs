//! Everything that a run consists of, for faults to reach into. Knows no fault.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold_checkers::{Outage, Record};

use super::{
    cluster::Cluster,
    fleet::Fleet,
    ground::Ground,
    journal::{Journal, Recorder},
    links::Links,
    machine::Machine,
    node::Settings,
};
use crate::clock_ns;

/// A node has so long to be ready once everything is healed.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// Gateways have so long to hand back what they hold.
pub(super) const PEACE_WITHIN: Duration = Duration::from_secs(30);
const GLANCE: Duration = Duration::from_millis(50);

/// A run's processes, links and notes. Processes end before the places that they
/// are in.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) fleet: Fleet,
    pub(crate) cluster: Cluster,
    pub(crate) links: Links,
    pub(crate) ground: Ground,
    pub(crate) machine: Machine,
    pub(crate) journal: Journal,
    pub(crate) recorder: Recorder,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) settings: Settings,
    pub(crate) folder: PathBuf,
    /// What was found wrong on the way.
    pub(crate) findings: Vec<String>,
    /// Nodes that may end by themselves, for their disk is broken.
    pub(crate) excused: Vec<u64>,
    /// How many of the cluster's own ends were looked at.
    pub(super) ends_seen: usize,
    pub(super) gateway_ends_seen: usize,
    pub(super) stop: Arc<AtomicBool>,
}

impl World {
    /// Whether the run was told to stop.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Lets time pass, and starts again what ends by itself meanwhile.
    pub(crate) fn hold(&mut self, duration: Duration) {
        let until = Instant::now() + duration;
        while Instant::now() < until && !self.is_over() {
            self.supervise();
            thread::sleep(GLANCE.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// Waits until something holds; false: it does not in time.
    pub(crate) fn until(
        &mut self,
        within: Duration,
        mut holds: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let give_up = Instant::now() + within;
        loop {
            if holds(self) {
                return true;
            }
            if Instant::now() > give_up || self.is_over() {
                return false;
            }
            self.supervise();
            thread::sleep(GLANCE);
        }
    }

    /// What a supervisor of services does, and a look at why it had to.
    pub(crate) fn supervise(&mut self) {
        if let Err(error) = self.cluster.supervise(&self.ground) {
            self.found(format!("a node cannot be started again: {error}"));
        }
        for end in &self.cluster.own_ends[self.ends_seen..] {
            let text = format!(
                "node {} ended by itself with {}: {}",
                end.node, end.how, end.last_words
            );
            self.journal.say(&text);
            if !self.excused.contains(&end.node) {
                self.findings.push(text);
            }
        }
        self.ends_seen = self.cluster.own_ends.len();
        self.fleet.supervise();
        for end in &self.fleet.own_ends[self.gateway_ends_seen..] {
            self.journal.say(end);
            self.findings.push(end.clone());
        }
        self.gateway_ends_seen = self.fleet.own_ends.len();
    }

    /// Notes that something is wrong.
    pub(crate) fn found(&mut self, what: String) {
        self.journal.say(&format!("WRONG: {what}"));
        self.findings.push(what);
    }

    /// Notes that no node ran between two moments.
    pub(crate) fn nobody_ran(&self, from_ns: u64, to_ns: u64) {
        self.recorder
            .note(&Record::Outage(Outage { from_ns, to_ns }));
    }

    /// Undoes whatever is still broken: links, stopped and missing processes.
    pub(crate) fn mend(&mut self) {
        self.links.heal();
        for id in self.cluster.ids() {
            self.cluster.resume(id);
            if let Err(error) = self.cluster.run(id, &self.ground) {
                self.found(format!("node {id} cannot be started: {error}"));
            }
        }
        for place in 0..self.fleet.size() {
            self.fleet.resume(place);
        }
        self.refill();
        self.supervise();
    }

    /// Gateways in all places, each of which knows a majority of the nodes.
    pub(crate) fn refill(&mut self) {
        let ids = self.cluster.ids();
        for who in self.fleet.renew(&ids, ids.len() / 2 + 1, PEACE_WITHIN) {
            self.found(who);
        }
        if let Err(error) = self.fleet.fill(&self.ground, &ids) {
            self.found(format!("a gateway cannot be started: {error}"));
        }
    }

    /// Waits until every node is ready; false: one is not.
    pub(crate) fn recovers(&mut self) -> bool {
        let began = Instant::now();
        for id in self.cluster.ids() {
            let left = READY_WITHIN.saturating_sub(began.elapsed());
            let ready = self.until(left, |world| {
                world.cluster.node(id).is_some_and(|node| node.is_ready())
            });
            if !ready && !self.is_over() {
                let tail = self.cluster.node(id).map(|node| node.log_tail(20));
                self.found(format!(
                    "node {id} is not ready {} s after everything was healed:\n{}",
                    began.elapsed().as_secs(),
                    tail.unwrap_or_default()
                ));
                return false;
            }
        }
        true
    }

    /// Waits until the probe is admitted again, as called at `since_ns` or later;
    /// how long after that, in nanoseconds.
    pub(crate) fn grants_resume(&mut self, since_ns: u64, within: Duration) -> Option<u64> {
        let mut returned = None;
        self.until(within, |world| {
            returned = world.fleet.probed_since(since_ns);
            returned.is_some()
        });
        returned.map(|at| at.saturating_sub(since_ns))
    }

    /// Nodes that follow, those that run.
    pub(crate) fn followers(&self) -> Vec<u64> {
        let leader = self.cluster.leader();
        let running = self.cluster.running();
        running
            .into_iter()
            .filter(|id| Some(*id) != leader)
            .collect()
    }

    /// Ends all nodes and lets nobody run for a while.
    pub(crate) fn dark(&mut self, how: impl FnOnce(&mut Self), lasts: Duration) {
        how(self);
        let from_ns = clock_ns();
        thread::sleep(lasts);
        self.nobody_ran(from_ns, clock_ns());
    }
}
