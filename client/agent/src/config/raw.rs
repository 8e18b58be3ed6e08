//! The configuration as it is written, with the defaults. Knows no ranges and no rules:
//! `mod.rs` checks.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;

use super::Unless;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raw {
    pub(super) holder: Option<String>,
    pub(super) coordinator: RawCoordinator,
    pub(super) listen: RawListen,
    pub(super) limits: RawLimits,
    pub(super) log: RawLog,
    pub(super) request_ids: RawRequestIds,
    pub(super) check: Option<RawCheck>,
    pub(super) checks: BTreeMap<String, RawCheck>,
    pub(super) rls: Option<RawRls>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawCoordinator {
    pub(super) endpoints: RawEndpoints,
    pub(super) before_contact: RawBeforeContact,
    pub(super) emergency_units: Option<u64>,
    pub(super) keys_max: u32,
    pub(super) strict_clock: bool,
    pub(super) ca: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) token_file: Option<PathBuf>,
}

impl Default for RawCoordinator {
    fn default() -> Self {
        Self {
            endpoints: RawEndpoints::List(vec!["http://127.0.0.1:7070".to_owned()]),
            before_contact: RawBeforeContact::Closed,
            emergency_units: None,
            keys_max: 65_536,
            strict_clock: false,
            ca: None,
            certificate: None,
            key: None,
            token_file: None,
        }
    }
}

/// A type of its own so that anything else is told what is expected.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a list of URLs is expected, like [\"http://127.0.0.1:7070\"]"
)]
pub(super) enum RawEndpoints {
    List(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawBeforeContact {
    Closed,
    Open,
    Emergency,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawListen {
    pub(super) tcp: Option<String>,
    pub(super) unix: Option<PathBuf>,
    pub(super) unix_group: Option<String>,
    pub(super) insecure: bool,
    pub(super) tls: Option<RawListenTls>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawListenTls {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) client_ca: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLimits {
    pub(super) connections_max: u64,
    pub(super) requests_max: u64,
    pub(super) header_bytes_max: u64,
    pub(super) descriptors_max: u64,
}

impl Default for RawLimits {
    fn default() -> Self {
        Self {
            connections_max: 1_024,
            requests_max: 4_096,
            header_bytes_max: 16_384,
            descriptors_max: 32,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawLog {
    pub(super) filter: String,
    pub(super) format: super::LogFormat,
}

impl Default for RawLog {
    fn default() -> Self {
        Self {
            filter: "info".to_owned(),
            format: super::LogFormat::Text,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRequestIds {
    pub(super) remember_ms: u64,
    pub(super) remembered_max: u64,
}

impl Default for RawRequestIds {
    fn default() -> Self {
        Self {
            remember_ms: 2_000,
            remembered_max: 65_536,
        }
    }
}

/// One template, or several that are charged together.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a template like \"edge/{header:x-api-key}\", or a list of them"
)]
pub(super) enum RawKey {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCheck {
    pub(super) key: RawKey,
    pub(super) cost_header: Option<String>,
    pub(super) lane_header: Option<String>,
    pub(super) request_id_header: Option<String>,
    #[serde(default)]
    pub(super) missing_key: Unless,
    #[serde(default)]
    pub(super) bad_key: Unless,
    #[serde(default)]
    pub(super) bad_cost: Unless,
    #[serde(default)]
    pub(super) no_budget: Unless,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRls {
    pub(super) domains: Option<Vec<String>>,
    pub(super) ratelimit_files: Vec<String>,
    pub(super) request_id_header: Option<String>,
    pub(super) no_rule: Unless,
    pub(super) no_descriptor: Unless,
    pub(super) limit_override: super::LimitOverride,
    pub(super) unavailable: super::UnavailableAs,
}
