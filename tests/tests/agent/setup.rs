//! A coordinator with budgets, and agents beside it.

use std::{
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use leasehold_tests::{AgentProcess, HttpAnswer, LocalCluster};
use serde_json::{Value, json};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_leasehold-agent-under-test");
/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// What most tests ask with: the key, the cost and the id come from headers.
pub(crate) const CHECK: &str = "
[check]
key = \"edge/{header:x-key}\"
cost_header = \"x-cost\"
lane_header = \"x-lane\"
request_id_header = \"x-request-id\"
";

/// One coordinator.
pub(crate) struct Setup {
    pub(crate) cluster: LocalCluster,
    agents: AtomicU32,
}

impl Setup {
    pub(crate) fn new() -> Self {
        let settings = "[cluster]\nsession_ttl_ms = 3000\nsync_interval_ms = 300\n";
        let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), 1, settings).unwrap();
        cluster.wait_ready(PATIENCE).unwrap();
        Self {
            cluster,
            agents: AtomicU32::new(0),
        }
    }

    pub(crate) fn put_budget(&self, pattern: &str, policy: &Value) {
        let path = format!("/v1/budgets/{pattern}");
        let body = json!({ "policy": policy });
        let answer = self
            .cluster
            .request("PUT", &path, Some(&body), PATIENCE)
            .unwrap();
        assert!(answer.status < 300, "PUT {path}: {answer:?}");
    }

    /// Units in any minute or more: what is used up stays so during a test.
    pub(crate) fn put_window(&self, pattern: &str, limit: u64) {
        let policy = json!({
            "kind": "sliding_window", "limit": limit, "window_ms": 60_000,
        });
        self.put_budget(pattern, &policy);
    }

    /// What the books say was ever spent of a key, once nobody holds any of it.
    pub(crate) fn spent(&self, key: &str) -> u64 {
        let path = format!("/v1/accounts/{key}");
        let answer = self.cluster.request("GET", &path, None, PATIENCE).unwrap();
        if answer.status == 404 {
            return 0;
        }
        let books = answer.json();
        let counted = books["counted"].as_u64().unwrap();
        assert_eq!(books["outstanding"], 0, "{books}");
        counted
    }

    /// The head of a configuration: this coordinator, a free port.
    pub(crate) fn head(&self, listen: &str) -> String {
        let endpoints = self.cluster.endpoints();
        format!(
            "[coordinator]\nendpoints = {endpoints:?}\n[listen]\ntcp = \"127.0.0.1:0\"\n{listen}\n"
        )
    }

    /// An agent that has a session.
    pub(crate) fn agent(&self, rules: &str) -> AgentProcess {
        let agent = self.agent_of(&format!("{}{rules}", self.head("")));
        agent.wait_ready(PATIENCE).unwrap();
        agent
    }

    /// An agent with the whole of a configuration.
    pub(crate) fn agent_of(&self, config: &str) -> AgentProcess {
        let number = self.agents.fetch_add(1, Ordering::Relaxed);
        let dir = self.cluster.dir().join(format!("agent{number}"));
        AgentProcess::start(Path::new(AGENT), &dir, config).unwrap()
    }
}

/// Asks for one request of a key.
pub(crate) fn check(agent: &AgentProcess, key: &str) -> HttpAnswer {
    agent.ask("/v1/check", &[("x-key", key)]).unwrap()
}

/// Ends an agent in an orderly way: it hands everything back.
pub(crate) fn stop(mut agent: AgentProcess) {
    agent.signal(rustix::process::Signal::TERM).unwrap();
    let status = agent.wait(PATIENCE).unwrap();
    assert!(status.success(), "{status}\n{}", agent.log());
}
