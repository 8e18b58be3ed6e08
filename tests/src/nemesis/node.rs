//! One coordinator: its files, its process, and what it says of itself. Knows
//! nothing of the cluster's plans.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use super::{
    callers::Callers,
    ground::{CLIENT_PORT, Ground, PEER_PORT},
    host::Host,
    process::Process,
};
use crate::{Answer, LocalCluster};

/// One `leasehold serve`.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) data: PathBuf,
    /// Where operators and samplers reach it, past all links.
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
    config: PathBuf,
    log: PathBuf,
    /// What is started next time.
    pub(crate) binary: PathBuf,
    /// Variables of the environment, next time.
    pub(crate) environment: Vec<(String, String)>,
    process: Option<Process>,
    /// When it last ended by itself.
    pub(crate) ended_at: Option<std::time::Instant>,
    /// It is meant to run: when it ends by itself, somebody starts it again.
    pub(crate) is_wanted: bool,
}

/// What every node of a run has in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) session_ttl_ms: u64,
    pub(crate) sync_interval_ms: u64,
    pub(crate) snapshot_every_entries: u64,
    pub(crate) snapshot_keep_entries: u64,
    /// Heartbeat interval, shortest and longest election timeout.
    pub(crate) raft_ms: [u64; 3],
    /// Where a node stands.
    pub(crate) region: fn(u64) -> Option<&'static str>,
}

/// What a node's own metrics say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) is_leader: bool,
    pub(crate) term: u64,
    pub(crate) last: u64,
    pub(crate) applied: u64,
}

impl Node {
    /// Writes its configuration; nothing is started. `founders` begin a cluster
    /// with it, `members` are those of a cluster that it is to join.
    pub(crate) fn prepare(
        folder: &Path,
        ground: &Ground,
        id: u64,
        members: &[u64],
        settings: &Settings,
        binary: &Path,
    ) -> io::Result<Self> {
        let host = Host::Node(id);
        let (real, advertised) = (ground.real(host)?, ground.advertised(host)?);
        let data = folder.join(format!("node-{id}"));
        let config = folder.join(format!("node-{id}.toml"));
        let mut text = format!(
            "node_id = {id}\ndata_dir = '{}'\nlisten = \"{real}:{CLIENT_PORT}\"\n\
             peer_listen = \"{real}:{PEER_PORT}\"\nadvertise = \"http://{advertised}:{CLIENT_PORT}\"\n\
             peer_advertise = \"{advertised}:{PEER_PORT}\"\ninsecure = true\n\
             log = \"info,openraft=warn\"\n",
            data.display()
        );
        if let Some(region) = (settings.region)(id) {
            text.push_str(&format!("region = \"{region}\"\n"));
        }
        for member in members {
            let peer = ground.advertised(Host::Node(*member))?;
            text.push_str(&format!(
                "[[initial_members]]\nnode_id = {member}\npeer = \"{peer}:{PEER_PORT}\"\n"
            ));
        }
        let [heartbeat_ms, election_min_ms, election_max_ms] = settings.raft_ms;
        text.push_str(&format!(
            "[raft]\nheartbeat_ms = {heartbeat_ms}\nelection_timeout_min_ms = {election_min_ms}\n\
             election_timeout_max_ms = {election_max_ms}\nsnapshot_every_entries = {}\nsnapshot_keep_entries = {}\n\
             [cluster]\nsession_ttl_ms = {}\nsync_interval_ms = {}\n",
            settings.snapshot_every_entries,
            settings.snapshot_keep_entries,
            settings.session_ttl_ms,
            settings.sync_interval_ms,
        ));
        fs::write(&config, text)?;
        Ok(Self {
            id,
            data,
            client: SocketAddr::from((real, CLIENT_PORT)),
            peer: SocketAddr::from((real, PEER_PORT)),
            config,
            log: folder.join(format!("node-{id}.log")),
            binary: binary.to_owned(),
            environment: Vec::new(),
            process: None,
            ended_at: None,
            is_wanted: false,
        })
    }

    /// Starts it, unless it runs.
    pub(crate) fn start(&mut self, ground: &Ground, callers: Option<&Callers>) -> io::Result<()> {
        self.is_wanted = true;
        if self.process.is_some() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = ground.command(Host::Node(self.id), &self.binary);
        command
            .arg("serve")
            .arg("--config")
            .arg(&self.config)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let process = Process::start(&mut command)?;
        if let Some(callers) = callers {
            callers.started(process.id(), Host::Node(self.id));
        }
        self.process = Some(process);
        Ok(())
    }

    /// SIGKILL; it is gone when this returns, and is not wanted.
    pub(crate) fn kill(&mut self) {
        self.is_wanted = false;
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// SIGKILL without waiting, so that several die at one moment.
    pub(crate) fn strike(&mut self) {
        self.is_wanted = false;
        if let Some(process) = &mut self.process {
            process.strike();
        }
    }

    pub(crate) fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    /// Takes a process that has ended by itself.
    pub(crate) fn take_ended(&mut self) -> Option<ExitStatus> {
        let status = self.process.as_mut()?.ended()?;
        self.process = None;
        self.ended_at = Some(std::time::Instant::now());
        Some(status)
    }

    /// It has a process, paused or not.
    pub(crate) fn has_process(&self) -> bool {
        self.process.is_some()
    }

    /// It has a process that is not paused.
    pub(crate) fn runs(&self) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| !process.is_paused())
    }

    /// Where it is, by its metrics; none: it does not answer.
    pub(crate) fn position(&self) -> Option<Position> {
        if !self.runs() {
            return None;
        }
        let metrics = LocalCluster::ask(self.client, "GET", "/metrics", None).ok()?;
        let value = |name: &str| -> Option<u64> {
            let rest = metrics
                .body
                .lines()
                .find_map(|line| line.strip_prefix(name))?;
            let number: f64 = rest.trim().parse().ok()?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count that was an integer"
            )]
            Some(number.max(0.0) as u64)
        };
        Some(Position {
            is_leader: value("leasehold_leader ")? == 1,
            term: value("leasehold_term ")?,
            last: value("leasehold_log_last_index ")?,
            applied: value("leasehold_log_applied_index ")?,
        })
    }

    /// Whether it says that requests may be sent to it.
    pub(crate) fn is_ready(&self) -> bool {
        self.runs()
            && LocalCluster::ask(self.client, "GET", "/readyz", None)
                .is_ok_and(|answer| answer.status == 200)
    }

    /// Asks it once.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> io::Result<Answer> {
        LocalCluster::ask(self.client, method, path, body)
    }

    /// The last lines of its log.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// How long its log is now, and what was written since.
    pub(crate) fn log_length(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |meta| meta.len())
    }

    /// What it logged after the first so many bytes.
    pub(crate) fn log_since(&self, length: u64) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let from = usize::try_from(length).unwrap_or(usize::MAX).min(log.len());
        String::from_utf8_lossy(&log[from..]).into_owned()
    }
}
