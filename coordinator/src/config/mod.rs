//! The node's own configuration: read once, from defaults, a TOML file, the
//! environment and flags, into a type that cannot be wrong. Knows nothing of how
//! a node is started; the ranges of cluster settings are the ledger's.
//!
//! Later sources win: defaults ← `--config` file ← `LEASEHOLD_*` variables ←
//! flags. Sections use two underscores in the environment, as in
//! `LEASEHOLD_RAFT__HEARTBEAT_MS`.

mod limits;
mod raw;
mod tls;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use leasehold_ledger::settings::{Settings, check_region};
use thiserror::Error;

pub use limits::{Limits, PerIdentity};
pub use raw::ServeFlags;
use raw::{Raw, RawMember};
pub use tls::Tls;

/// Everything that one node needs to know before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This node's id; never 0, never reused.
    pub node_id: u64,
    /// Where the log, the snapshots and the identity live.
    pub data_dir: PathBuf,
    /// Where gateways (and operators, without `admin_listen`) connect.
    pub listen: SocketAddr,
    /// A separate address for the HTTP API.
    pub admin_listen: Option<SocketAddr>,
    /// Where the other coordinators connect.
    pub peer_listen: SocketAddr,
    /// The URL under which gateways reach this node; none: its bound address.
    pub advertise: Option<String>,
    /// The URL under which other nodes forward operators' requests to this one;
    /// none: the bound address of `admin_listen`, or `advertise`.
    pub admin_advertise: Option<String>,
    /// `host:port` under which other coordinators reach this node; none: its
    /// bound address.
    pub peer_advertise: Option<String>,
    /// Where this machine stands, if said.
    pub region: Option<String>,
    /// The members of a new cluster; empty: this node alone.
    pub initial_members: Vec<InitialMember>,
    /// How to log.
    pub log_format: LogFormat,
    /// What to log, in the syntax of `RUST_LOG`.
    pub log: String,
    /// How far the wall clock may be from the other members' before it is said.
    pub wall_clock_tolerance: Duration,
    /// Heartbeats and elections.
    pub raft: RaftTiming,
    /// How much of the log is kept.
    pub snapshots: SnapshotRhythm,
    /// Settings of a cluster that this node creates; an existing cluster keeps its own.
    pub cluster: Settings,
    /// The file that says who may come in; none: everybody may everything.
    pub identities: Option<PathBuf>,
    /// What those who connect may take.
    pub limits: Limits,
    /// Certificates and keys of its connections.
    pub tls: Tls,
    /// What is legal and probably not meant; to be logged once logging works.
    pub warnings: Vec<String>,
}

/// One of the nodes that start a cluster together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialMember {
    /// Its id.
    pub node_id: u64,
    /// Its `host:port` for other coordinators.
    pub peer: String,
}

/// How log lines look.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Heartbeats and elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTiming {
    /// Between two heartbeats of a leader.
    pub heartbeat: Duration,
    /// A follower waits at least so long for a heartbeat.
    pub election_timeout_min: Duration,
    /// And at most so long.
    pub election_timeout_max: Duration,
}

/// When a snapshot is taken, and what of the log stays behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRhythm {
    /// A snapshot is taken once this many entries were applied since the last.
    pub every_entries: u64,
    /// Applied entries kept behind a snapshot, for followers that lag.
    pub keep_entries: u64,
}

/// Why a configuration was refused; nothing was started or written.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A name or a type is wrong.
    #[error("{0}")]
    Malformed(String),
    /// A value is outside its range, or two values contradict each other.
    #[error("{0}")]
    Invalid(String),
}

impl ConfigError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "invalid_config"
    }
}

impl Config {
    /// Reads every source and checks the result.
    ///
    /// # Errors
    /// Names the offending field, its value and what is allowed.
    pub fn load(flags: &ServeFlags) -> Result<Self, ConfigError> {
        raw::load(flags).and_then(|(raw, unknown)| Self::check(raw, &unknown))
    }

    fn check(raw: Raw, unknown_variables: &[String]) -> Result<Self, ConfigError> {
        if raw.node_id == 0 {
            return invalid("node_id (0) must be at least 1");
        }
        let several = raw.initial_members.len() > 1;
        let tls = raw.tls.as_ref().map(|tls| tls.check(several)).transpose()?;
        let tls = tls.unwrap_or_default();
        may_listen(&raw, &tls)?;
        distinct_ports(&raw)?;
        reachable("listen", raw.listen, "advertise", raw.advertise.as_deref())?;
        reachable(
            "peer_listen",
            raw.peer_listen,
            "peer_advertise",
            raw.peer_advertise.as_deref(),
        )?;
        if let Some(addr) = raw.admin_listen {
            reachable(
                "admin_listen",
                addr,
                "admin_advertise",
                raw.admin_advertise.as_deref(),
            )?;
        } else if let Some(url) = &raw.admin_advertise {
            return invalid(format!("admin_advertise ({url}) needs admin_listen"));
        }
        for (name, url) in [
            ("advertise", &raw.advertise),
            ("admin_advertise", &raw.admin_advertise),
        ] {
            if let Some(url) = url {
                check_url(name, url, tls.clients.is_some())?;
            }
        }
        if let Some(addr) = &raw.peer_advertise {
            check_host_port("peer_advertise", addr)?;
        }
        if let Some(region) = &raw.region {
            check_region("region", region).or_else(invalid)?;
        }
        let mut warnings: Vec<String> = unknown_variables
            .iter()
            .map(|name| {
                format!("the environment variable {name} means nothing here and is ignored")
            })
            .collect();
        if is_open_to_everybody(&raw, &tls) {
            warnings.push(
                "insecure: whoever reaches this node from other machines may do everything"
                    .to_owned(),
            );
        }
        let members = raw.initial_members.len();
        // Whoever isn't among them joins a cluster, and does not begin one.
        let founds = raw
            .initial_members
            .iter()
            .any(|member| member.node_id == raw.node_id);
        if founds && members > 1 && members.is_multiple_of(2) {
            warnings.push(format!(
                "{members} members survive no more failures than {} would",
                members - 1
            ));
        }
        Ok(Self {
            initial_members: check_members(
                raw.node_id,
                raw.peer_listen,
                raw.peer_advertise.as_deref(),
                raw.initial_members,
            )?,
            limits: raw.limits.check()?,
            tls,
            wall_clock_tolerance: check_tolerance(raw.wall_clock_tolerance_ms)?,
            raft: check_raft(&raw.raft)?,
            snapshots: check_snapshots(&raw.raft)?,
            cluster: raw.cluster.check()?,
            node_id: raw.node_id,
            data_dir: raw.data_dir,
            listen: raw.listen,
            admin_listen: raw.admin_listen,
            peer_listen: raw.peer_listen,
            advertise: raw.advertise,
            admin_advertise: raw.admin_advertise,
            peer_advertise: raw.peer_advertise,
            region: raw.region,
            log_format: raw.log_format,
            log: raw.log,
            identities: raw.auth.map(|auth| auth.identities),
            warnings,
        })
    }
}

/// What only `insecure` allows.
fn is_open_to_everybody(raw: &Raw, tls: &Tls) -> bool {
    let closed = Raw {
        insecure: false,
        ..raw.clone()
    };
    raw.insecure && may_listen(&closed, tls).is_err()
}

fn invalid<T>(message: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Invalid(message.into()))
}

/// Beyond loopback nobody may listen, see or change what passes by.
fn may_listen(raw: &Raw, tls: &Tls) -> Result<(), ConfigError> {
    let is_open = |addr: SocketAddr| !addr.ip().is_loopback() && !raw.insecure;
    let is_guarded = tls.clients.is_some() && raw.auth.is_some();
    for (name, addr) in [
        ("listen", Some(raw.listen)),
        ("admin_listen", raw.admin_listen),
    ] {
        if let Some(addr) = addr
            && is_open(addr)
            && !is_guarded
        {
            return invalid(format!(
                "{name} ({addr}) is reachable from other machines: encrypt ([tls] with a \
                 certificate) and say who may come in ([auth]), use a loopback address, or say \
                 --insecure (insecure = true) if only trusted hosts can reach it"
            ));
        }
    }
    if is_open(raw.peer_listen) && tls.peers.is_none() {
        return invalid(format!(
            "peer_listen ({}) is reachable from other machines, and whoever reaches it can pass \
             for a coordinator: let coordinators show certificates ([tls.peers]), use a loopback \
             address, or say --insecure (insecure = true) if only trusted hosts can reach it",
            raw.peer_listen
        ));
    }
    Ok(())
}

fn distinct_ports(raw: &Raw) -> Result<(), ConfigError> {
    let named = [
        ("listen", Some(raw.listen)),
        ("peer_listen", Some(raw.peer_listen)),
        ("admin_listen", raw.admin_listen),
    ];
    for (i, (a_name, a)) in named.iter().enumerate() {
        for (b_name, b) in &named[i + 1..] {
            if let (Some(a), Some(b)) = (a, b)
                && a.port() != 0
                && a == b
            {
                return invalid(format!("{a_name} ({a}) and {b_name} ({b}) must differ"));
            }
        }
    }
    Ok(())
}

/// `0.0.0.0` tells nobody where to connect.
fn reachable(
    listen_name: &str,
    listen: SocketAddr,
    advertise_name: &str,
    advertise: Option<&str>,
) -> Result<(), ConfigError> {
    if listen.ip().is_unspecified() && advertise.is_none() {
        return invalid(format!(
            "{listen_name} ({listen}) names no address that others could connect to: set \
             {advertise_name}"
        ));
    }
    Ok(())
}

fn check_url(name: &str, url: &str, is_tls: bool) -> Result<(), ConfigError> {
    let (scheme, because) = match is_tls {
        true => ("https", ", since there is a [tls] certificate"),
        false => ("http", ""),
    };
    let parsed = url.parse::<http::Uri>().ok();
    let plain = parsed.as_ref().is_some_and(|u| {
        u.scheme_str() == Some(scheme)
            && u.authority().is_some()
            && u.query().is_none()
            && matches!(u.path(), "" | "/")
    });
    if plain {
        return Ok(());
    }
    invalid(format!(
        "{name} ({url}) must be a URL like {scheme}://host:7070, without a path{because}"
    ))
}

fn check_host_port(name: &str, addr: &str) -> Result<(), ConfigError> {
    let good = addr.parse::<http::uri::Authority>().is_ok_and(|a| {
        a.port_u16().is_some_and(|p| p != 0) && !a.host().is_empty() && !addr.contains('@')
    });
    if good {
        return Ok(());
    }
    invalid(format!(
        "{name} ({addr}) must be host:port, as in 127.0.0.1:7071"
    ))
}

fn check_members(
    node_id: u64,
    peer_listen: SocketAddr,
    advertise: Option<&str>,
    members: Vec<RawMember>,
) -> Result<Vec<InitialMember>, ConfigError> {
    let mut seen: Vec<InitialMember> = Vec::with_capacity(members.len());
    for member in members {
        if member.node_id == 0 {
            return invalid(format!(
                "initial_members: node_id (0) of {} must be at least 1",
                member.peer
            ));
        }
        check_host_port("initial_members: peer", &member.peer)?;
        if let Some(twin) = seen
            .iter()
            .find(|m| m.node_id == member.node_id || m.peer == member.peer)
        {
            return invalid(format!(
                "initial_members: node {} at {} and node {} at {} must differ in both node_id and peer",
                twin.node_id, twin.peer, member.node_id, member.peer
            ));
        }
        seen.push(InitialMember {
            node_id: member.node_id,
            peer: member.peer,
        });
    }
    let own = seen.iter().find(|member| member.node_id == node_id);
    if let Some(own) = own {
        let expected = advertise.map_or_else(|| format!(":{}", peer_listen.port()), str::to_owned);
        if peer_listen.port() != 0 && !own.peer.ends_with(&expected) {
            return invalid(format!(
                "initial_members says that node {node_id} is at {}, but peer_listen is {peer_listen}{}",
                own.peer,
                advertise
                    .map(|a| format!(" and peer_advertise is {a}"))
                    .unwrap_or_default()
            ));
        }
    }
    Ok(seen)
}

fn check_tolerance(ms: u64) -> Result<Duration, ConfigError> {
    if (10..=3_600_000).contains(&ms) {
        return Ok(Duration::from_millis(ms));
    }
    invalid(format!(
        "wall_clock_tolerance_ms ({ms}) must be 10 to 3600000"
    ))
}

fn check_raft(raw: &raw::RawRaft) -> Result<RaftTiming, ConfigError> {
    if !(10..=10_000).contains(&raw.heartbeat_ms) {
        return invalid(format!(
            "raft.heartbeat_ms ({}) must be 10 to 10000",
            raw.heartbeat_ms
        ));
    }
    if raw.election_timeout_min_ms < raw.heartbeat_ms.saturating_mul(3) {
        return invalid(format!(
            "raft.election_timeout_min_ms ({}) must be at least 3 × raft.heartbeat_ms ({})",
            raw.election_timeout_min_ms, raw.heartbeat_ms
        ));
    }
    if raw.election_timeout_max_ms <= raw.election_timeout_min_ms
        || raw.election_timeout_max_ms > 120_000
    {
        return invalid(format!(
            "raft.election_timeout_max_ms ({}) must be above raft.election_timeout_min_ms ({}) and at most 120000",
            raw.election_timeout_max_ms, raw.election_timeout_min_ms
        ));
    }
    Ok(RaftTiming {
        heartbeat: Duration::from_millis(raw.heartbeat_ms),
        election_timeout_min: Duration::from_millis(raw.election_timeout_min_ms),
        election_timeout_max: Duration::from_millis(raw.election_timeout_max_ms),
    })
}

fn check_snapshots(raw: &raw::RawRaft) -> Result<SnapshotRhythm, ConfigError> {
    for (name, entries) in [
        ("snapshot_every_entries", raw.snapshot_every_entries),
        ("snapshot_keep_entries", raw.snapshot_keep_entries),
    ] {
        if !(10..=1_000_000).contains(&entries) {
            return invalid(format!("raft.{name} ({entries}) must be 10 to 1000000"));
        }
    }
    Ok(SnapshotRhythm {
        every_entries: raw.snapshot_every_entries,
        keep_entries: raw.snapshot_keep_entries,
    })
}

#[cfg(test)]
mod tests;
