//! What the gateways stand on: a cluster of three nodes, two agents, one upstream, and
//! one budget for each question. Knows no gateway.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use leasehold_tests::LocalCluster;
use serde_json::{Value, json};

use super::{
    Outcome,
    proxies::{about, end},
    upstream::Upstream,
};

const POLL: Duration = Duration::from_millis(50);
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
        stranded.start("/healthz")?;
        let mut ground = Self {
            cluster,
            upstream,
            upstream_at,
            agents,
            stranded,
        };
        for agent in &mut ground.agents {
            agent.start("/readyz")?;
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

/// An agent as a process of its own.
pub(super) struct Agent {
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    pub(super) at: SocketAddr,
    child: Option<Child>,
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
        let text = text
            .replace(AGENT, &at.to_string())
            .replace(COORDINATORS, &endpoints);
        let config = cluster.dir().join(format!("agent{number}.toml"));
        fs::write(&config, text)?;
        Ok(Self {
            program: program.to_owned(),
            config,
            log: cluster.dir().join(format!("agent{number}.log")),
            at,
            child: None,
        })
    }

    /// Starts it, and waits until this path is answered by 200.
    pub(super) fn start(&mut self, path: &str) -> Outcome<()> {
        let out = File::options().create(true).append(true).open(&self.log)?;
        let child = Command::new(&self.program)
            .arg("serve")
            .arg("--config")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .map_err(about("the agent"))?;
        let child = self.child.insert(child);
        let give_up = Instant::now() + PATIENCE;
        loop {
            let ready = LocalCluster::ask(self.at, "GET", path, None);
            if ready.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            let log = || fs::read_to_string(&self.log).unwrap_or_default();
            if let Some(status) = child.try_wait()? {
                return Err(format!("the agent ended ({status}):\n{}", log()).into());
            }
            if Instant::now() > give_up {
                return Err(format!("the agent is not ready:\n{}", log()).into());
            }
            thread::sleep(POLL);
        }
    }

    /// SIGKILL; it is gone when this returns.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An error here says that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM: it hands everything back first.
    pub(super) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            end(&mut child);
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}
