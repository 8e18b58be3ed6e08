//! What the gateways stand on: a cluster of three nodes, two agents, one upstream, and
//! one budget for each question. Knows no gateway.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_tests::{AgentProcess, LocalCluster};
use serde_json::{Value, json};

use super::{Outcome, upstream::Upstream};

/// Longer than anything takes on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The address and the coordinators that the agent's configuration names.
const AGENT: &str = "127.0.0.1:7080";
const COORDINATORS: &str =
    r#"["http://127.0.0.1:7070", "http://127.0.0.1:7170", "http://127.0.0.1:7270"]"#;

/// Under a flood: so many units in any window of this length.
pub(super) const FLOOD_LIMIT: u64 = 200;
pub(super) const FLOOD_WINDOW: Duration = Duration::from_secs(2);
/// While the leader dies: a minute's worth, of which half is used.
pub(super) const BUSY_LIMIT: u64 = 6_000;
pub(super) const BUSY_WINDOW: Duration = Duration::from_secs(60);

/// The cluster, the agents and the upstream.
pub(super) struct Ground {
    pub(super) cluster: LocalCluster,
    pub(super) upstream: Upstream,
    pub(super) upstream_at: SocketAddr,
    pub(super) agents: Vec<Agent>,
    /// An agent that never reaches a coordinator.
    pub(super) stranded: Agent,
}

impl Ground {
    /// Starts everything, and waits until it serves.
    pub(super) async fn start(leasehold: &Path, agent: &Path, deploy: &Path) -> Outcome<Self> {
        let mut cluster = LocalCluster::start(leasehold, 3, "")?;
        cluster.wait_ready(PATIENCE)?;
        let flood = json!({
            "kind": "sliding_window", "limit": FLOOD_LIMIT,
            "window_ms": FLOOD_WINDOW.as_millis(),
        });
        let busy = json!({
            "kind": "sliding_window", "limit": BUSY_LIMIT,
            "window_ms": BUSY_WINDOW.as_millis(),
        });
        let few = json!({ "kind": "sliding_window", "limit": 3, "window_ms": 30_000 });
        // Its account stays, and with it the number of units that were ever charged.
        let counted = json!({ "kind": "total", "limit": 100_000_000 });
        for (prefix, policy) in [
            ("flood", flood),
            ("busy", busy),
            ("few", few),
            ("counted", counted.clone()),
            // Everybody else's: an empty key would have it, too.
            ("", counted),
        ] {
            let pattern = if prefix.is_empty() {
                "*".to_owned()
            } else {
                format!("{prefix}-*")
            };
            let path = format!("/v1/budgets/{}", book_key(&pattern));
            let body = json!({ "policy": policy });
            let answer = cluster.request("PUT", &path, Some(&body), PATIENCE)?;
            if answer.status >= 300 {
                return Err(format!("PUT {path}: {}", answer.body).into());
            }
        }
        let upstream = Upstream::default();
        let upstream_at = upstream.start().await?;
        let mut agents = Vec::new();
        for number in 0..2 {
            let endpoints = cluster.endpoints();
            agents.push(Agent::new(agent, deploy, &cluster, (number, &endpoints))?);
        }
        let nobody = LocalCluster::free_ports(1)?[0];
        let nobody = [format!("http://127.0.0.1:{nobody}")];
        let mut stranded = Agent::new(agent, deploy, &cluster, (2, &nobody))?;
        stranded.start()?;
        let mut ground = Self {
            cluster,
            upstream,
            upstream_at,
            agents,
            stranded,
        };
        for agent in &mut ground.agents {
            agent.start_ready()?;
        }
        Ok(ground)
    }

    /// The books of a key.
    pub(super) fn account(&self, key: &str) -> Outcome<Value> {
        let path = format!("/v1/accounts/{}", book_key(key));
        let answer = self.cluster.request("GET", &path, None, PATIENCE)?;
        Ok(answer.json())
    }

    /// Units ever charged to a key, by report or because its holder was lost.
    pub(super) fn charged(&self, key: &str) -> Outcome<u64> {
        let account = self.account(key)?;
        let lifetime = &account["lifetime"];
        let figure = |name: &str| lifetime[name].as_u64().unwrap_or(0);
        Ok(figure("spent") + figure("presumed_spent") + figure("central"))
    }
}

/// The key that the configurations in `deploy/gateways` make of a caller's.
pub(super) fn book_key(caller: &str) -> String {
    format!("gateway/route=orders/api_key={caller}")
}

/// An agent that can be killed and started again where it was.
pub(super) struct Agent {
    program: PathBuf,
    folder: PathBuf,
    config: String,
    pub(super) at: SocketAddr,
    process: Option<AgentProcess>,
}

impl Agent {
    /// On the configuration in `deploy`, with the addresses of this cluster.
    fn new(
        program: &Path,
        deploy: &Path,
        cluster: &LocalCluster,
        (number, endpoints): (u16, &[String]),
    ) -> Outcome<Self> {
        let port = LocalCluster::free_ports(1)?[0];
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        let text = fs::read_to_string(deploy.join("agent.toml"))?;
        for named in [AGENT, COORDINATORS] {
            if !text.contains(named) {
                return Err(format!("agent.toml does not name {named}").into());
            }
        }
        let endpoints = serde_json::to_string(endpoints)?;
        let config = text
            .replace(AGENT, &at.to_string())
            .replace(COORDINATORS, &endpoints);
        Ok(Self {
            program: program.to_owned(),
            folder: cluster.dir().join(format!("agent{number}")),
            config,
            at,
            process: None,
        })
    }

    /// Starts it, and waits until it listens.
    pub(super) fn start(&mut self) -> Outcome<&AgentProcess> {
        let process = AgentProcess::start(&self.program, &self.folder, &self.config)?;
        Ok(self.process.insert(process))
    }

    /// Starts it, and waits until it has a session.
    pub(super) fn start_ready(&mut self) -> Outcome<()> {
        Ok(self.start()?.wait_ready(PATIENCE)?)
    }

    /// SIGKILL; it is gone when this returns.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }
}
