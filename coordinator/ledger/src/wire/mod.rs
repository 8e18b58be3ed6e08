//! The persisted form of entries and of the ledger: prost messages, each format
//! with a version. Knows the domain types and nothing of files or streams.
//!
//! A message's fields are never renumbered or reused. Golden files of every
//! version are under `tests/golden/`.

mod account;
mod edit;
mod entry;
mod state;

use account::AccountMessage;
pub(crate) use account::{account_record, correction_bytes, read_account};
pub use entry::FormatError;
pub(crate) use state::{
    Header, Record, RecordKind, budget_bytes, budget_record, footer_record, header_record,
    named_policy_bytes, named_policy_record, node_record, period_bytes, period_record,
    policy_bytes, read_budget, read_header, read_named_policy, read_period, read_session,
    read_spent_once, read_tombstone, session_record, settings_bytes, spent_once_bytes,
    spent_once_record, terms_hash, tombstone_record,
};

use leasehold_key::{Key, Pattern};

use crate::{
    digest,
    entry::{Rule, SessionId},
    policy::{Calendar, FailureMode, HOLD_MAX_US_DEFAULT, Kind, Lane, PeriodUnit, Policy},
    settings::{IDEMPOTENCY_KEYS_MAX_DEFAULT, IDEMPOTENCY_TTL_US_DEFAULT, Settings},
};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PolicyMessage {
    #[prost(oneof = "KindMessage", tags = "1, 2, 9, 10, 11, 12, 13, 14")]
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
    /// From version 6 on, as everything below.
    #[prost(message, repeated, tag = "15")]
    lanes: Vec<LaneMessage>,
    #[prost(uint64, tag = "16")]
    cooldown_us: u64,
    #[prost(bool, tag = "17")]
    shadow: bool,
    /// 0: the default.
    #[prost(uint64, tag = "18")]
    hold_max_us: u64,
    /// Of the emergency mode.
    #[prost(uint64, optional, tag = "19")]
    emergency_units: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LaneMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "2")]
    reserve: u64,
    #[prost(uint64, optional, tag = "3")]
    max_wait_us: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CalendarMessage {
    #[prost(uint32, tag = "1")]
    unit: u32,
    #[prost(string, tag = "2")]
    time_zone: String,
    #[prost(uint32, tag = "3")]
    anchor: u32,
    /// From version 7 on.
    #[prost(uint32, tag = "4")]
    anchor_month: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PeriodKindMessage {
    #[prost(uint64, tag = "1")]
    limit: u64,
    #[prost(message, optional, tag = "2")]
    calendar: Option<CalendarMessage>,
    #[prost(uint64, tag = "3")]
    carry_over: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct LimitMessage {
    #[prost(uint64, tag = "1")]
    limit: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct NothingMessage {}

/// The newest version of entries and of snapshots that is read and written.
pub const VERSION: u32 = 7;

/// The version that settings need to be written in full; see [`version_of`].
pub(crate) const fn settings_version(settings: &Settings) -> u32 {
    if settings.idempotency_ttl_us != IDEMPOTENCY_TTL_US_DEFAULT
        || settings.idempotency_keys_max != IDEMPOTENCY_KEYS_MAX_DEFAULT
    {
        VERSION_OF_KINDS
    } else if settings.preferred_leader_region.is_none() {
        1
    } else {
        4
    }
}

/// The version that a policy needs to be written in full. What version 1 can
/// express is written as version 1: its bytes do not change, and nodes that know
/// nothing newer go on reading it, until somebody uses a newer setting.
pub(crate) fn version_of(policy: &Policy) -> u32 {
    let newer = !policy.lanes.is_empty()
        || policy.cooldown_us != 0
        || policy.shadow
        || policy.hold_max_us != HOLD_MAX_US_DEFAULT
        || matches!(policy.failure_mode, FailureMode::Emergency { .. })
        || !matches!(
            policy.kind,
            Kind::SlidingWindow { .. } | Kind::TokenBucket { .. }
        );
    if let Some(calendar) = policy.kind.calendar() {
        calendar_version(calendar)
    } else if newer {
        VERSION_OF_KINDS
    } else if policy.reserve == 0 && policy.horizon_us.is_none() {
        1
    } else {
        2
    }
}

/// The version that a calendar needs.
pub(crate) const fn calendar_version(calendar: &Calendar) -> u32 {
    match calendar.unit {
        PeriodUnit::Hour | PeriodUnit::Day | PeriodUnit::Week | PeriodUnit::Month => {
            VERSION_OF_KINDS
        }
        PeriodUnit::Year => VERSION_OF_YEARS,
    }
}

/// The version from which on a cluster has an id and may have been restored.
pub(crate) const VERSION_OF_IDS: u32 = 3;
/// The version from which on a restored cluster knows what it was restored from.
pub(crate) const VERSION_OF_ANCESTORS: u32 = 5;
/// The version from which on there are more kinds than windows and buckets, lanes,
/// corrections, periods, reservations and cool-downs.
pub const VERSION_OF_KINDS: u32 = 6;
/// The version from which on a period can be a year.
pub(crate) const VERSION_OF_YEARS: u32 = 7;

#[derive(Clone, PartialEq, prost::Oneof)]
enum KindMessage {
    #[prost(message, tag = "1")]
    SlidingWindow(SlidingWindowMessage),
    #[prost(message, tag = "2")]
    TokenBucket(TokenBucketMessage),
    #[prost(message, tag = "9")]
    Paced(TokenBucketMessage),
    #[prost(message, tag = "10")]
    Period(PeriodKindMessage),
    #[prost(message, tag = "11")]
    Total(LimitMessage),
    #[prost(message, tag = "12")]
    Concurrency(LimitMessage),
    #[prost(message, tag = "13")]
    Estimate(SlidingWindowMessage),
    #[prost(message, tag = "14")]
    Unlimited(NothingMessage),
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
    /// From version 6 on; none: the default.
    #[prost(uint64, optional, tag = "10")]
    idempotency_ttl_us: Option<u64>,
    /// From version 6 on; none: the default.
    #[prost(uint64, optional, tag = "11")]
    idempotency_keys_max: Option<u64>,
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

fn write_kind(kind: &Kind) -> KindMessage {
    match kind {
        Kind::SlidingWindow { limit, window_us } => {
            KindMessage::SlidingWindow(SlidingWindowMessage {
                limit: *limit,
                window_us: *window_us,
            })
        }
        Kind::TokenBucket {
            capacity,
            refill,
            refill_period_us,
        } => KindMessage::TokenBucket(TokenBucketMessage {
            capacity: *capacity,
            refill: *refill,
            refill_period_us: *refill_period_us,
        }),
        Kind::Paced {
            capacity,
            refill,
            refill_period_us,
        } => KindMessage::Paced(TokenBucketMessage {
            capacity: *capacity,
            refill: *refill,
            refill_period_us: *refill_period_us,
        }),
        Kind::Period {
            limit,
            calendar,
            carry_over,
        } => KindMessage::Period(PeriodKindMessage {
            limit: *limit,
            calendar: Some(write_calendar(calendar)),
            carry_over: *carry_over,
        }),
        Kind::Total { limit } => KindMessage::Total(LimitMessage { limit: *limit }),
        Kind::Concurrency { limit } => KindMessage::Concurrency(LimitMessage { limit: *limit }),
        Kind::Estimate { limit, window_us } => KindMessage::Estimate(SlidingWindowMessage {
            limit: *limit,
            window_us: *window_us,
        }),
        Kind::Unlimited => KindMessage::Unlimited(NothingMessage {}),
    }
}

fn read_kind(kind: KindMessage) -> Result<Kind, FormatError> {
    Ok(match kind {
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
        KindMessage::Paced(TokenBucketMessage {
            capacity,
            refill,
            refill_period_us,
        }) => Kind::Paced {
            capacity,
            refill,
            refill_period_us,
        },
        KindMessage::Period(PeriodKindMessage {
            limit,
            calendar,
            carry_over,
        }) => Kind::Period {
            limit,
            calendar: read_calendar(calendar)?,
            carry_over,
        },
        KindMessage::Total(LimitMessage { limit }) => Kind::Total { limit },
        KindMessage::Concurrency(LimitMessage { limit }) => Kind::Concurrency { limit },
        KindMessage::Estimate(SlidingWindowMessage { limit, window_us }) => {
            Kind::Estimate { limit, window_us }
        }
        KindMessage::Unlimited(NothingMessage {}) => Kind::Unlimited,
    })
}

pub(crate) fn write_calendar(calendar: &Calendar) -> CalendarMessage {
    CalendarMessage {
        unit: match calendar.unit {
            PeriodUnit::Hour => 0,
            PeriodUnit::Day => 1,
            PeriodUnit::Week => 2,
            PeriodUnit::Month => 3,
            PeriodUnit::Year => 4,
        },
        time_zone: calendar.time_zone.clone(),
        anchor: calendar.anchor.into(),
        anchor_month: calendar.anchor_month.into(),
    }
}

pub(crate) fn read_calendar(message: Option<CalendarMessage>) -> Result<Calendar, FormatError> {
    let message = message.ok_or(FormatError::Missing { field: "calendar" })?;
    let unit = match message.unit {
        0 => PeriodUnit::Hour,
        1 => PeriodUnit::Day,
        2 => PeriodUnit::Week,
        3 => PeriodUnit::Month,
        4 => PeriodUnit::Year,
        unit => {
            return Err(FormatError::Value {
                field: "unit",
                why: format!("{unit} is none of 0 to 4"),
            });
        }
    };
    let anchor = u8::try_from(message.anchor).map_err(|_| FormatError::Value {
        field: "anchor",
        why: format!("{} is more than 31", message.anchor),
    })?;
    let anchor_month = u8::try_from(message.anchor_month).map_err(|_| FormatError::Value {
        field: "anchor_month",
        why: format!("{} is more than 12", message.anchor_month),
    })?;
    Ok(Calendar {
        unit,
        time_zone: message.time_zone,
        anchor,
        anchor_month,
    })
}

fn write_policy(policy: &Policy) -> PolicyMessage {
    PolicyMessage {
        kind: Some(write_kind(&policy.kind)),
        slice_factor_milli: policy.slice_factor_milli,
        max_wait_us: policy.max_wait_us,
        failure_mode: match policy.failure_mode {
            FailureMode::Closed => 0,
            FailureMode::Open => 1,
            FailureMode::Emergency { .. } => 2,
        },
        public_name: policy.public_name.clone(),
        reserve: policy.reserve,
        horizon_us: policy.horizon_us,
        lanes: policy.lanes.iter().map(write_lane).collect(),
        cooldown_us: policy.cooldown_us,
        shadow: policy.shadow,
        hold_max_us: if policy.hold_max_us == HOLD_MAX_US_DEFAULT {
            0
        } else {
            policy.hold_max_us
        },
        emergency_units: match policy.failure_mode {
            FailureMode::Emergency { units } => units,
            FailureMode::Closed | FailureMode::Open => None,
        },
    }
}

fn read_policy(message: Option<PolicyMessage>) -> Result<Policy, FormatError> {
    let message = message.ok_or(FormatError::Missing { field: "policy" })?;
    let kind = read_kind(message.kind.ok_or(FormatError::Missing { field: "kind" })?)?;
    let failure_mode = match message.failure_mode {
        0 => FailureMode::Closed,
        1 => FailureMode::Open,
        2 => FailureMode::Emergency {
            units: message.emergency_units,
        },
        mode => {
            return Err(FormatError::Value {
                field: "failure_mode",
                why: format!("{mode} is none of 0 to 2"),
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
        lanes: message.lanes.into_iter().map(read_lane).collect(),
        cooldown_us: message.cooldown_us,
        shadow: message.shadow,
        hold_max_us: match message.hold_max_us {
            0 => HOLD_MAX_US_DEFAULT,
            hold_max_us => hold_max_us,
        },
    })
}

fn write_lane(lane: &Lane) -> LaneMessage {
    LaneMessage {
        name: lane.name.clone(),
        reserve: lane.reserve,
        max_wait_us: lane.max_wait_us,
    }
}

fn read_lane(message: LaneMessage) -> Lane {
    Lane {
        name: message.name,
        reserve: message.reserve,
        max_wait_us: message.max_wait_us,
    }
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
        idempotency_ttl_us: Some(settings.idempotency_ttl_us)
            .filter(|us| *us != IDEMPOTENCY_TTL_US_DEFAULT),
        idempotency_keys_max: Some(settings.idempotency_keys_max)
            .filter(|max| *max != IDEMPOTENCY_KEYS_MAX_DEFAULT),
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
        idempotency_ttl_us: message
            .idempotency_ttl_us
            .unwrap_or(IDEMPOTENCY_TTL_US_DEFAULT),
        idempotency_keys_max: message
            .idempotency_keys_max
            .unwrap_or(IDEMPOTENCY_KEYS_MAX_DEFAULT),
    })
}
