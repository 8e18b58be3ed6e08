//! Two instances of one gateway, each behind an agent of its own. Knows no request.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use leasehold_tests::LocalCluster;

use super::{
    Outcome,
    ground::Ground,
    proxies::{Edit, Instance, Proxy, Wiring},
};

/// The programs and files that instances are started from.
pub(super) struct Programs {
    /// `deploy/gateways`.
    pub(super) deploy: PathBuf,
    pub(super) wrk: Option<PathBuf>,
}

/// Two running instances.
pub(super) struct Fleet {
    proxy: Proxy,
    instances: Vec<Instance>,
    at: Vec<SocketAddr>,
    wrk: Option<PathBuf>,
}

impl Fleet {
    /// Starts the instances on the configuration that is shipped, with these edits.
    pub(super) fn start(
        proxy: Proxy,
        program: &Path,
        programs: &Programs,
        ground: &Ground,
        edits: &[Edit],
    ) -> Outcome<Self> {
        let agents: Vec<SocketAddr> = ground.agents.iter().map(|agent| agent.at).collect();
        Self::behind(proxy, program, programs, ground, (&agents, edits))
    }

    /// One instance for each of these agents.
    pub(super) fn behind(
        proxy: Proxy,
        program: &Path,
        programs: &Programs,
        ground: &Ground,
        (agents, edits): (&[SocketAddr], &[Edit]),
    ) -> Outcome<Self> {
        let mut fleet = Self {
            proxy,
            instances: Vec::new(),
            at: Vec::new(),
            wrk: programs.wrk.clone(),
        };
        for agent in agents {
            let port = LocalCluster::free_ports(1)?[0];
            let listens = SocketAddr::from(([127, 0, 0, 1], port));
            let folder = ground
                .cluster
                .dir()
                .join(format!("{}-{port}", proxy.name()));
            let wiring = Wiring {
                listens,
                agent: *agent,
                upstream: ground.upstream_at,
            };
            let instance =
                Instance::start(proxy, program, &programs.deploy, &folder, wiring, edits)?;
            fleet.instances.push(instance);
            fleet.at.push(listens);
        }
        Ok(fleet)
    }

    pub(super) fn name(&self) -> &'static str {
        self.proxy.name()
    }

    /// Whether what is served carries the agent's header fields: Traefik gives them to the
    /// service behind it.
    pub(super) fn tells_the_served(&self) -> bool {
        self.proxy != Proxy::Traefik
    }

    /// Where they listen.
    pub(super) fn at(&self) -> Vec<SocketAddr> {
        self.at.clone()
    }

    pub(super) fn wrk(&self) -> Option<&Path> {
        self.wrk.as_deref()
    }

    /// What they wrote last.
    pub(super) fn log_tail(&self) -> String {
        let logs = self.instances.iter().map(Instance::log_tail);
        logs.collect::<Vec<_>>().join("\n--\n")
    }
}
