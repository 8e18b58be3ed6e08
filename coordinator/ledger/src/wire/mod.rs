//! The persisted form of entries and of the ledger: prost messages, each format
//! with a version. Knows the domain types and nothing of files or streams.
//!
//! A message's fields are never renumbered or reused. Golden files of every
//! version are under `tests/golden/`.

mod account;
mod entry;
mod state;

use account::AccountMessage;
pub(crate) use account::{account_record, read_account};
pub use entry::FormatError;
pub(crate) use state::{
    Header, Record, RecordKind, budget_bytes, budget_record, footer_record, header_record,
    named_policy_bytes, named_policy_record, node_record, policy_bytes, read_budget, read_header,
    read_named_policy, read_session, read_tombstone, session_record, settings_bytes,
    tombstone_record,
};

use leasehold_key::{Key, Pattern};

use crate::{
    digest,
    entry::{Rule, SessionId},
    policy::{FailureMode, Kind, Policy},
    settings::Settings,
};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PolicyMessage {
    #[prost(oneof = "KindMessage", tags = "1, 2")]
    kind: Option<KindMessage>,
    #[prost(uint32, tag = "3")]
    slice_factor_milli: u32,
    #[prost(uint64, tag = "4")]
    max_wait_us: u64,
    #[prost(uint32, tag = "5")]
    failure_mode: u32,
    #[prost(string, tag = "6")]
    public_name: String,
    /// From version 2 on.
    #[prost(uint64, tag = "7")]
    reserve: u64,
    /// From version 2 on.
    #[prost(uint64, optional, tag = "8")]
    horizon_us: Option<u64>,
}

/// The newest version of entries and of snapshots that is read and written.
pub const VERSION: u32 = 5;

/// The version that settings need to be written in full; see [`version_of`].
pub(crate) const fn settings_version(settings: &Settings) -> u32 {
    if settings.preferred_leader_region.is_none() {
        1
    } else {
        4
    }
}

/// The version that a policy needs to be written in full. What version 1 can
/// express is written as version 1: its bytes do not change, and nodes that know
/// nothing newer go on reading it, until somebody uses a newer setting.
pub(crate) const fn version_of(policy: &Policy) -> u32 {
    if policy.reserve == 0 && policy.horizon_us.is_none() {
        1
    } else {
        2
    }
}

/// The version from which on a cluster has an id and may have been restored.
pub(crate) const VERSION_OF_IDS: u32 = 3;
/// The version from which on a restored cluster knows what it was restored from.
pub(crate) const VERSION_OF_ANCESTORS: u32 = 5;

#[derive(Clone, PartialEq, prost::Oneof)]
enum KindMessage {
    #[prost(message, tag = "1")]
    SlidingWindow(SlidingWindowMessage),
    #[prost(message, tag = "2")]
    TokenBucket(TokenBucketMessage),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct SlidingWindowMessage {
    #[prost(uint64, tag = "1")]
    limit: u64,
    #[prost(uint64, tag = "2")]
    window_us: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct TokenBucketMessage {
    #[prost(uint64, tag = "1")]
    capacity: u64,
    #[prost(uint64, tag = "2")]
    refill: u64,
    #[prost(uint64, tag = "3")]
    refill_period_us: u64,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum RuleMessage {
    #[prost(string, tag = "2")]
    Named(String),
    #[prost(message, tag = "3")]
    Inline(PolicyMessage),
}

#[derive(Clone, PartialEq, prost::Message)]
struct SettingsMessage {
    #[prost(uint64, tag = "1")]
    session_ttl_us: u64,
    #[prost(uint64, tag = "2")]
    sync_interval_us: u64,
    #[prost(uint32, tag = "3")]
    max_drift_ppm: u32,
    #[prost(string, optional, tag = "4")]
    default_policy: Option<String>,
    #[prost(uint32, tag = "5")]
    sessions_per_identity_max: u32,
    #[prost(uint32, tag = "6")]
    keys_per_session_max: u32,
    #[prost(uint64, tag = "7")]
    accounts_per_pattern_max: u64,
    #[prost(uint64, tag = "8")]
    tombstone_ttl_us: u64,
    /// From version 4 on.
    #[prost(string, optional, tag = "9")]
    preferred_leader_region: Option<String>,
}

/// A session's or a cluster's id in two halves, so that reading one allocates nothing.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct IdMessage {
    #[prost(fixed64, tag = "1")]
    upper: u64,
    #[prost(fixed64, tag = "2")]
    lower: u64,
}

fn write_id(id: SessionId) -> IdMessage {
    let (upper, lower) = digest::halves(id.0);
    IdMessage { upper, lower }
}

fn read_id(id: Option<IdMessage>) -> Result<SessionId, FormatError> {
    let id = id.ok_or(FormatError::Missing { field: "session" })?;
    Ok(SessionId(digest::whole(id.upper, id.lower)))
}

fn write_cluster_id(cluster_id: u128) -> IdMessage {
    let (upper, lower) = digest::halves(cluster_id);
    IdMessage { upper, lower }
}

fn read_cluster_id(id: IdMessage) -> u128 {
    digest::whole(id.upper, id.lower)
}

fn read_key(text: &str) -> Result<Key, FormatError> {
    Key::parse(text).map_err(|error| FormatError::Value {
        field: "key",
        why: error.to_string(),
    })
}

fn read_pattern(text: &str) -> Result<Pattern, FormatError> {
    Pattern::parse(text).map_err(|error| FormatError::Value {
        field: "pattern",
        why: error.to_string(),
    })
}

fn write_policy(policy: &Policy) -> PolicyMessage {
    let kind = match policy.kind {
        Kind::SlidingWindow { limit, window_us } => {
            KindMessage::SlidingWindow(SlidingWindowMessage { limit, window_us })
        }
        Kind::TokenBucket {
            capacity,
            refill,
            refill_period_us,
        } => KindMessage::TokenBucket(TokenBucketMessage {
            capacity,
            refill,
            refill_period_us,
        }),
    };
    PolicyMessage {
        kind: Some(kind),
        slice_factor_milli: policy.slice_factor_milli,
        max_wait_us: policy.max_wait_us,
        failure_mode: match policy.failure_mode {
            FailureMode::Closed => 0,
            FailureMode::Open => 1,
        },
        public_name: policy.public_name.clone(),
        reserve: policy.reserve,
        horizon_us: policy.horizon_us,
    }
}

fn read_policy(message: Option<PolicyMessage>) -> Result<Policy, FormatError> {
    let message = message.ok_or(FormatError::Missing { field: "policy" })?;
    let kind = match message.kind.ok_or(FormatError::Missing { field: "kind" })? {
        KindMessage::SlidingWindow(SlidingWindowMessage { limit, window_us }) => {
            Kind::SlidingWindow { limit, window_us }
        }
        KindMessage::TokenBucket(TokenBucketMessage {
            capacity,
            refill,
            refill_period_us,
        }) => Kind::TokenBucket {
            capacity,
            refill,
            refill_period_us,
        },
    };
    let failure_mode = match message.failure_mode {
        0 => FailureMode::Closed,
        1 => FailureMode::Open,
        mode => {
            return Err(FormatError::Value {
                field: "failure_mode",
                why: format!("{mode} is neither 0 nor 1"),
            });
        }
    };
    Ok(Policy {
        kind,
        slice_factor_milli: message.slice_factor_milli,
        max_wait_us: message.max_wait_us,
        reserve: message.reserve,
        horizon_us: message.horizon_us,
        failure_mode,
        public_name: message.public_name,
    })
}

fn write_rule(rule: &Rule) -> RuleMessage {
    match rule {
        Rule::Named(name) => RuleMessage::Named(name.clone()),
        Rule::Inline(policy) => RuleMessage::Inline(write_policy(policy)),
    }
}

fn read_rule(rule: Option<RuleMessage>) -> Result<Rule, FormatError> {
    match rule.ok_or(FormatError::Missing { field: "rule" })? {
        RuleMessage::Named(name) => Ok(Rule::Named(name)),
        RuleMessage::Inline(policy) => Ok(Rule::Inline(read_policy(Some(policy))?)),
    }
}

fn write_settings(settings: &Settings) -> SettingsMessage {
    SettingsMessage {
        session_ttl_us: settings.session_ttl_us,
        sync_interval_us: settings.sync_interval_us,
        max_drift_ppm: settings.max_drift_ppm,
        default_policy: settings.default_policy.clone(),
        sessions_per_identity_max: settings.sessions_per_identity_max,
        keys_per_session_max: settings.keys_per_session_max,
        accounts_per_pattern_max: settings.accounts_per_pattern_max,
        tombstone_ttl_us: settings.tombstone_ttl_us,
        preferred_leader_region: settings.preferred_leader_region.clone(),
    }
}

fn read_settings(message: Option<SettingsMessage>) -> Result<Settings, FormatError> {
    let message = message.ok_or(FormatError::Missing { field: "settings" })?;
    Ok(Settings {
        session_ttl_us: message.session_ttl_us,
        sync_interval_us: message.sync_interval_us,
        max_drift_ppm: message.max_drift_ppm,
        default_policy: message.default_policy,
        sessions_per_identity_max: message.sessions_per_identity_max,
        keys_per_session_max: message.keys_per_session_max,
        accounts_per_pattern_max: message.accounts_per_pattern_max,
        tombstone_ttl_us: message.tombstone_ttl_us,
        preferred_leader_region: message.preferred_leader_region,
    })
}
