//! The configuration as it is written: names and types only, no ranges and no
//! relations between values.

use std::{net::SocketAddr, path::PathBuf};

use figment::{
    Figment,
    providers::{Env, Format, Serialized, Toml},
};
use leasehold_ledger::settings::Settings;
use serde::{Deserialize, Serialize};

use super::{ConfigError, LogFormat, limits::RawLimits, tls::RawTls};
use crate::plain_words::in_plain_words;

/// Flags of `leasehold serve`; what is absent falls back to the environment, the
/// file and the defaults.
#[derive(Clone, Debug, Default, Serialize, clap::Args)]
pub struct ServeFlags {
    /// Read a TOML file (see deploy/node1.toml for every field)
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_CONFIG")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// This node's id, unique for ever in its cluster [default: 1]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_id: Option<u64>,
    /// Where the log and the snapshots live [default: ./leasehold-data]
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Where gateways and operators connect [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// A separate address for the HTTP API [default: the one of --listen]
    #[arg(long, value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_listen: Option<SocketAddr>,
    /// Where the other coordinators connect [default: 127.0.0.1:7071]
    #[arg(long, value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_listen: Option<SocketAddr>,
    /// The URL under which gateways reach this node [default: --listen]
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// The URL under which other nodes reach --admin-listen
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_advertise: Option<String>,
    /// Where other coordinators reach this node [default: --peer-listen]
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_advertise: Option<String>,
    /// Where this machine stands, as in eu-west; see preferred_leader_region
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Allow addresses that other machines can reach without TLS and identities, or
    /// for the other coordinators without [tls.peers]
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// How log lines look [default: text]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// What to log, as in RUST_LOG [default: info,openraft=error]
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) node_id: u64,
    pub(super) data_dir: PathBuf,
    pub(super) listen: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) admin_listen: Option<SocketAddr>,
    pub(super) peer_listen: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) advertise: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) admin_advertise: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peer_advertise: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) region: Option<String>,
    pub(super) insecure: bool,
    pub(super) log_format: LogFormat,
    pub(super) log: String,
    pub(super) wall_clock_tolerance_ms: u64,
    pub(super) initial_members: Vec<RawMember>,
    pub(super) raft: RawRaft,
    pub(super) cluster: RawCluster,
    pub(super) limits: RawLimits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tls: Option<RawTls>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) auth: Option<RawAuth>,
}

/// Who may come in.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAuth {
    pub(super) identities: PathBuf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMember {
    pub(super) node_id: u64,
    pub(super) peer: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRaft {
    pub(super) heartbeat_ms: u64,
    pub(super) election_timeout_min_ms: u64,
    pub(super) election_timeout_max_ms: u64,
    pub(super) snapshot_every_entries: u64,
    pub(super) snapshot_keep_entries: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCluster {
    pub(super) session_ttl_ms: u64,
    pub(super) sync_interval_ms: u64,
    pub(super) max_drift_ppm: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) default_policy: Option<String>,
    pub(super) sessions_per_identity_max: u32,
    pub(super) keys_per_session_max: u32,
    pub(super) accounts_per_pattern_max: u64,
    pub(super) tombstone_ttl_ms: u64,
    pub(super) idempotency_ttl_ms: u64,
    pub(super) idempotency_keys_max: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) preferred_leader_region: Option<String>,
}

impl Default for Raw {
    fn default() -> Self {
        let cluster = Settings::default();
        Self {
            node_id: 1,
            data_dir: PathBuf::from("./leasehold-data"),
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            admin_listen: None,
            peer_listen: SocketAddr::from(([127, 0, 0, 1], 7071)),
            advertise: None,
            admin_advertise: None,
            peer_advertise: None,
            region: None,
            insecure: false,
            log_format: LogFormat::Text,
            log: "info,openraft=error".to_owned(),
            wall_clock_tolerance_ms: 1_000,
            initial_members: Vec::new(),
            raft: RawRaft {
                heartbeat_ms: 100,
                election_timeout_min_ms: 500,
                election_timeout_max_ms: 1_000,
                snapshot_every_entries: 5_000,
                snapshot_keep_entries: 5_000,
            },
            cluster: RawCluster {
                session_ttl_ms: cluster.session_ttl_us / 1_000,
                sync_interval_ms: cluster.sync_interval_us / 1_000,
                max_drift_ppm: cluster.max_drift_ppm,
                default_policy: cluster.default_policy,
                sessions_per_identity_max: cluster.sessions_per_identity_max,
                keys_per_session_max: cluster.keys_per_session_max,
                accounts_per_pattern_max: cluster.accounts_per_pattern_max,
                tombstone_ttl_ms: cluster.tombstone_ttl_us / 1_000,
                idempotency_ttl_ms: cluster.idempotency_ttl_us / 1_000,
                idempotency_keys_max: cluster.idempotency_keys_max,
                preferred_leader_region: cluster.preferred_leader_region,
            },
            limits: RawLimits::default(),
            tls: None,
            auth: None,
        }
    }
}

impl RawCluster {
    pub(super) fn check(self) -> Result<Settings, ConfigError> {
        let micros = |name: &str, ms: u64| {
            ms.checked_mul(1_000).ok_or_else(|| {
                ConfigError::Invalid(format!("cluster.{name} ({ms}) is out of range"))
            })
        };
        let settings = Settings {
            session_ttl_us: micros("session_ttl_ms", self.session_ttl_ms)?,
            sync_interval_us: micros("sync_interval_ms", self.sync_interval_ms)?,
            max_drift_ppm: self.max_drift_ppm,
            default_policy: self.default_policy,
            sessions_per_identity_max: self.sessions_per_identity_max,
            keys_per_session_max: self.keys_per_session_max,
            accounts_per_pattern_max: self.accounts_per_pattern_max,
            tombstone_ttl_us: micros("tombstone_ttl_ms", self.tombstone_ttl_ms)?,
            idempotency_ttl_us: micros("idempotency_ttl_ms", self.idempotency_ttl_ms)?,
            idempotency_keys_max: self.idempotency_keys_max,
            preferred_leader_region: self.preferred_leader_region,
        };
        settings
            .validate()
            .map_err(|text| ConfigError::Invalid(format!("cluster: {text}")))?;
        if let Some(policy) = &settings.default_policy {
            return Err(ConfigError::Invalid(format!(
                "cluster.default_policy ({policy}) names a policy that a new cluster does not have \
                 yet: create it, then set it with `leasehold settings set default_policy={policy}`"
            )));
        }
        Ok(settings)
    }
}

const PREFIX: &str = "LEASEHOLD_";
/// Read elsewhere: by clap, and by the sub-commands that talk to a node.
const ELSEWHERE: [&str; 8] = [
    "config",
    "endpoint",
    "by",
    "ca",
    "cert",
    "key",
    "token",
    "token_file",
];
const SECTIONS: [&str; 5] = ["raft", "cluster", "limits", "tls", "auth"];

/// Merges the sources; also names the variables that mean nothing. Those are not
/// an error, because orchestrators invent such variables (a Kubernetes service
/// called "leasehold" sets `LEASEHOLD_PORT` in every pod).
pub(super) fn load(flags: &ServeFlags) -> Result<(Raw, Vec<String>), ConfigError> {
    let defaults = Serialized::defaults(Raw::default());
    let known = |name: &str| {
        let mut parts = name.split("__");
        let (first, nested) = (parts.next().unwrap_or_default(), parts.next());
        is_field(first) && (nested.is_some() == SECTIONS.contains(&first))
    };
    let mut unknown: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter_map(|name| name.strip_prefix(PREFIX).map(str::to_ascii_lowercase))
        .filter(|name| !ELSEWHERE.contains(&name.as_str()) && !known(name))
        .map(|name| format!("{PREFIX}{}", name.to_ascii_uppercase()))
        .collect();
    unknown.sort();

    let mut figment = Figment::from(defaults);
    if let Some(path) = &flags.config {
        // figment takes a missing file for an empty one.
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.clone(),
            source,
        })?;
        figment = figment.merge(Toml::file_exact(path));
    }
    let raw = figment
        .merge(
            Env::prefixed(PREFIX)
                .filter(move |name| known(&name.as_str().to_ascii_lowercase()))
                .split("__"),
        )
        .merge(Serialized::globals(flags))
        .extract::<Raw>()
        .map_err(|error| ConfigError::Malformed(describe(&error)))?;
    Ok((raw, unknown))
}

fn is_field(name: &str) -> bool {
    const FIELDS: [&str; 18] = [
        "node_id",
        "data_dir",
        "listen",
        "admin_listen",
        "peer_listen",
        "advertise",
        "admin_advertise",
        "peer_advertise",
        "region",
        "insecure",
        "log_format",
        "log",
        "wall_clock_tolerance_ms",
        "raft",
        "cluster",
        "limits",
        "tls",
        "auth",
    ];
    FIELDS.contains(&name)
}

/// figment's text names its internal profile; people want field and source.
fn describe(error: &figment::Error) -> String {
    let all: Vec<String> = error
        .clone()
        .into_iter()
        .map(|error| {
            let path = error.path.join(".");
            let source = error
                .metadata
                .as_ref()
                .map(|m| match &m.source {
                    Some(source) => format!(" (in {source})"),
                    None if m.name.starts_with("TOML") => String::new(),
                    None => format!(" (from {})", m.name),
                })
                .unwrap_or_default();
            let at = if path.is_empty() {
                String::new()
            } else {
                format!("{path}: ")
            };
            let what = in_plain_words(&error.kind.to_string());
            format!("{at}{what}{source}").replace('`', "")
        })
        .collect();
    all.join("; ")
}
