//! The persisted form of the ledger's objects. Knows nothing of their order or
//! of the stream around them.

use std::sync::Arc;

use leasehold_key::Pattern;
use prost::Message;

use super::{
    AccountMessage, CalendarMessage, FormatError, IdMessage, PolicyMessage, RuleMessage,
    SettingsMessage, read_calendar, read_cluster_id, read_id, read_key, read_pattern, read_policy,
    read_rule, read_settings, write_calendar, write_cluster_id, write_id, write_policy, write_rule,
    write_settings,
};
use crate::{
    digest,
    edit::Terms,
    entry::SessionId,
    history::{History, Version},
    kind::Period,
    policy::{Calendar, Policy},
    rules::{self, Budget, NamedPolicy},
    sessions::{Session, Tombstone, TombstoneLease},
    settings::Settings,
    spent_once::{Name, Remembered},
};

/// One object.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    #[prost(oneof = "RecordKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub(crate) kind: Option<RecordKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum RecordKind {
    #[prost(message, tag = "1")]
    Header(HeaderMessage),
    #[prost(message, tag = "2")]
    Policy(NamedPolicyMessage),
    #[prost(message, tag = "3")]
    Budget(BudgetMessage),
    #[prost(message, tag = "4")]
    Node(NodeMessage),
    #[prost(message, tag = "5")]
    Session(SessionMessage),
    #[prost(message, tag = "6")]
    Tombstone(TombstoneMessage),
    #[prost(message, tag = "7")]
    Account(AccountMessage),
    #[prost(message, tag = "8")]
    Footer(FooterMessage),
    /// From version 6 on.
    #[prost(message, tag = "9")]
    Period(PeriodMessage),
    /// From version 6 on.
    #[prost(message, tag = "10")]
    SpentOnce(SpentOnceMessage),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMessage {
    #[prost(uint64, tag = "1")]
    now_us: u64,
    #[prost(uint64, tag = "2")]
    last_index: u64,
    #[prost(message, optional, tag = "3")]
    settings: Option<SettingsMessage>,
    #[prost(uint64, optional, tag = "4")]
    default_strict_from_us: Option<u64>,
    /// From version 3 on.
    #[prost(message, optional, tag = "5")]
    cluster_id: Option<IdMessage>,
    /// From version 3 on.
    #[prost(uint64, tag = "6")]
    inherited_until_us: u64,
    /// From version 5 on.
    #[prost(message, repeated, tag = "7")]
    ancestors: Vec<IdMessage>,
    /// From version 6 on.
    #[prost(uint32, tag = "8")]
    format_version: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamedPolicyMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    policy: Option<PolicyMessage>,
    #[prost(uint64, optional, tag = "3")]
    strict_from_us: Option<u64>,
    /// From version 6 on. The oldest first; the last one is what is in force, and has
    /// no policy.
    #[prost(message, repeated, tag = "4")]
    versions: Vec<PolicyVersionMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct PolicyVersionMessage {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(string, tag = "2")]
    by: String,
    #[prost(int64, tag = "3")]
    wall_unix_us: i64,
    #[prost(message, optional, tag = "4")]
    policy: Option<PolicyMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BudgetMessage {
    #[prost(string, tag = "1")]
    pattern: String,
    #[prost(oneof = "RuleMessage", tags = "2, 3")]
    rule: Option<RuleMessage>,
    #[prost(uint64, optional, tag = "4")]
    strict_from_us: Option<u64>,
    /// From version 6 on, as everything below.
    #[prost(uint64, optional, tag = "5")]
    accounts_max: Option<u64>,
    /// The oldest first; the last one is what is in force, and has no terms.
    #[prost(message, repeated, tag = "6")]
    versions: Vec<BudgetVersionMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct BudgetVersionMessage {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(oneof = "RuleMessage", tags = "2, 3")]
    rule: Option<RuleMessage>,
    #[prost(uint64, optional, tag = "4")]
    accounts_max: Option<u64>,
    #[prost(string, tag = "5")]
    by: String,
    #[prost(int64, tag = "6")]
    wall_unix_us: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct NodeMessage {
    #[prost(uint64, tag = "1")]
    node_id: u64,
    #[prost(fixed64, tag = "2")]
    disk_upper: u64,
    #[prost(fixed64, tag = "3")]
    disk_lower: u64,
}

impl NodeMessage {
    pub(crate) fn read(&self) -> (u64, u128) {
        (
            self.node_id,
            digest::whole(self.disk_upper, self.disk_lower),
        )
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionMessage {
    #[prost(message, optional, tag = "1")]
    id: Option<IdMessage>,
    #[prost(string, tag = "2")]
    holder: String,
    #[prost(string, tag = "3")]
    identity: String,
    #[prost(uint64, tag = "4")]
    opened_us: u64,
    #[prost(uint64, tag = "5")]
    deadline_us: u64,
    #[prost(uint64, tag = "6")]
    ttl_us: u64,
    #[prost(uint64, tag = "7")]
    validity_us: u64,
    #[prost(uint64, tag = "8")]
    seq: u64,
    #[prost(bool, tag = "9")]
    ended: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TombstoneMessage {
    #[prost(message, optional, tag = "1")]
    id: Option<IdMessage>,
    #[prost(string, tag = "2")]
    identity: String,
    #[prost(uint64, tag = "3")]
    ended_us: u64,
    #[prost(uint64, tag = "4")]
    drop_us: u64,
    #[prost(message, repeated, tag = "5")]
    leases: Vec<TombstoneLeaseMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct TombstoneLeaseMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(uint64, tag = "3")]
    spent: u64,
    #[prost(uint64, tag = "4")]
    presumed: u64,
    #[prost(uint64, tag = "5")]
    epoch: u64,
}

/// The present period of a calendar.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PeriodMessage {
    #[prost(message, optional, tag = "1")]
    calendar: Option<CalendarMessage>,
    #[prost(uint64, tag = "2")]
    number: u64,
    #[prost(uint64, tag = "3")]
    index: u64,
    #[prost(uint64, tag = "4")]
    began_us: u64,
    #[prost(int64, tag = "5")]
    start_unix_us: i64,
    #[prost(int64, tag = "6")]
    end_unix_us: i64,
    #[prost(uint64, tag = "7")]
    end_us_about: u64,
    #[prost(uint64, tag = "8")]
    exhausted: u64,
}

/// A central spend that was admitted under an idempotency key.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SpentOnceMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    key: String,
    #[prost(uint64, tag = "3")]
    units: u64,
    #[prost(uint64, tag = "4")]
    until_us: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct FooterMessage {
    #[prost(fixed64, tag = "1")]
    pub(crate) digest: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) records: u64,
}

/// What comes first in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) now_us: u64,
    pub(crate) last_index: u64,
    pub(crate) settings: Settings,
    pub(crate) default_strict_from_us: Option<u64>,
    pub(crate) cluster_id: Option<u128>,
    pub(crate) ancestors: Arc<Vec<u128>>,
    pub(crate) inherited_until_us: u64,
    pub(crate) format_version: u32,
}

/// A policy in bytes, for hashes.
pub(crate) fn policy_bytes(policy: &Policy) -> Vec<u8> {
    write_policy(policy).encode_to_vec()
}

/// Settings in bytes, for hashes.
pub(crate) fn settings_bytes(settings: &Settings) -> Vec<u8> {
    write_settings(settings).encode_to_vec()
}

/// A named policy in bytes without its history, for hashes.
pub(crate) fn named_policy_bytes(name: &str, policy: &NamedPolicy) -> Vec<u8> {
    write_named_policy(name, policy).encode_to_vec()
}

/// A budget in bytes without its history, for hashes.
pub(crate) fn budget_bytes(pattern: &Pattern, budget: &Budget) -> Vec<u8> {
    write_budget(pattern, budget).encode_to_vec()
}

/// The hash of what a budget says.
pub(crate) fn terms_hash(terms: &Terms) -> u64 {
    let message = BudgetMessage {
        pattern: String::new(),
        rule: Some(write_rule(&terms.rule)),
        strict_from_us: None,
        accounts_max: terms.accounts_max,
        versions: Vec::new(),
    };
    digest::bytes(&message.encode_to_vec())
}

pub(crate) fn header_record(header: &Header) -> RecordKind {
    RecordKind::Header(HeaderMessage {
        now_us: header.now_us,
        last_index: header.last_index,
        settings: Some(write_settings(&header.settings)),
        default_strict_from_us: header.default_strict_from_us,
        cluster_id: header.cluster_id.map(write_cluster_id),
        inherited_until_us: header.inherited_until_us,
        ancestors: header
            .ancestors
            .iter()
            .map(|id| write_cluster_id(*id))
            .collect(),
        format_version: header.format_version,
    })
}

pub(crate) fn read_header(message: HeaderMessage) -> Result<Header, FormatError> {
    Ok(Header {
        now_us: message.now_us,
        last_index: message.last_index,
        settings: read_settings(message.settings)?,
        default_strict_from_us: message.default_strict_from_us,
        cluster_id: message.cluster_id.map(read_cluster_id),
        ancestors: Arc::new(message.ancestors.into_iter().map(read_cluster_id).collect()),
        inherited_until_us: message.inherited_until_us,
        format_version: message.format_version,
    })
}

fn write_named_policy(name: &str, policy: &NamedPolicy) -> NamedPolicyMessage {
    NamedPolicyMessage {
        name: name.to_owned(),
        policy: Some(write_policy(&policy.policy)),
        strict_from_us: policy.strict_from_us,
        versions: Vec::new(),
    }
}

pub(crate) fn named_policy_record(name: &str, policy: &NamedPolicy) -> RecordKind {
    let mut message = write_named_policy(name, policy);
    message.versions = written(&policy.history, |version, is_present| {
        PolicyVersionMessage {
            number: version.number,
            by: version.by.clone(),
            wall_unix_us: version.wall_unix_us,
            policy: (!is_present).then(|| write_policy(&version.value)),
        }
    });
    RecordKind::Policy(message)
}

/// The versions of a history; the last one is what is in force.
fn written<T: Clone, M>(history: &History<T>, write: impl Fn(&Version<T>, bool) -> M) -> Vec<M> {
    let present = history.number();
    let versions = history.versions();
    versions
        .map(|version| write(version, version.number == present))
        .collect()
}

pub(crate) fn read_named_policy(
    message: NamedPolicyMessage,
) -> Result<(String, NamedPolicy), FormatError> {
    let policy = Arc::new(read_policy(message.policy)?);
    let mut history = History::default();
    for version in message.versions {
        let value = match version.policy {
            Some(older) => Arc::new(read_policy(Some(older))?),
            None => Arc::clone(&policy),
        };
        let version = Version {
            number: version.number,
            by: version.by,
            wall_unix_us: version.wall_unix_us,
            value,
        };
        history.restore(version, rules::policy_hash);
    }
    Ok((
        message.name,
        NamedPolicy {
            policy,
            strict_from_us: message.strict_from_us,
            history,
        },
    ))
}

fn write_budget(pattern: &Pattern, budget: &Budget) -> BudgetMessage {
    BudgetMessage {
        pattern: pattern.as_str().to_owned(),
        rule: Some(write_rule(&budget.terms.rule)),
        strict_from_us: budget.strict_from_us,
        accounts_max: budget.terms.accounts_max,
        versions: Vec::new(),
    }
}

pub(crate) fn budget_record(pattern: &Pattern, budget: &Budget) -> RecordKind {
    let mut message = write_budget(pattern, budget);
    message.versions = written(&budget.history, |version, is_present| {
        let older = (!is_present).then_some(&version.value);
        BudgetVersionMessage {
            number: version.number,
            rule: older.map(|terms| write_rule(&terms.rule)),
            accounts_max: older.and_then(|terms| terms.accounts_max),
            by: version.by.clone(),
            wall_unix_us: version.wall_unix_us,
        }
    });
    RecordKind::Budget(message)
}

/// A budget as it is stored.
pub(crate) struct StoredBudget {
    pub(crate) pattern: Pattern,
    pub(crate) terms: Terms,
    pub(crate) strict_from_us: Option<u64>,
    pub(crate) history: History<Terms>,
}

pub(crate) fn read_budget(message: BudgetMessage) -> Result<StoredBudget, FormatError> {
    let terms = Terms {
        rule: read_rule(message.rule)?,
        accounts_max: message.accounts_max,
    };
    let mut history = History::default();
    for version in message.versions {
        let value = match version.rule {
            Some(older) => Terms {
                rule: read_rule(Some(older))?,
                accounts_max: version.accounts_max,
            },
            None => terms.clone(),
        };
        let version = Version {
            number: version.number,
            by: version.by,
            wall_unix_us: version.wall_unix_us,
            value,
        };
        history.restore(version, terms_hash);
    }
    Ok(StoredBudget {
        pattern: read_pattern(&message.pattern)?,
        terms,
        strict_from_us: message.strict_from_us,
        history,
    })
}

pub(crate) fn node_record(node_id: u64, disk_id: u128) -> RecordKind {
    let (disk_upper, disk_lower) = digest::halves(disk_id);
    RecordKind::Node(NodeMessage {
        node_id,
        disk_upper,
        disk_lower,
    })
}

fn write_period(calendar: &Calendar, period: &Period) -> PeriodMessage {
    PeriodMessage {
        calendar: Some(write_calendar(calendar)),
        number: period.number,
        index: period.index,
        began_us: period.began_us,
        start_unix_us: period.start_unix_us,
        end_unix_us: period.end_unix_us,
        end_us_about: period.end_us_about,
        exhausted: period.exhausted,
    }
}

/// A calendar's present period in bytes, for hashes.
pub(crate) fn period_bytes(calendar: &Calendar, period: &Period) -> Vec<u8> {
    write_period(calendar, period).encode_to_vec()
}

pub(crate) fn period_record(calendar: &Calendar, period: &Period) -> RecordKind {
    RecordKind::Period(write_period(calendar, period))
}

pub(crate) fn read_period(message: PeriodMessage) -> Result<(Calendar, Period), FormatError> {
    let period = Period {
        number: message.number,
        index: message.index,
        began_us: message.began_us,
        start_unix_us: message.start_unix_us,
        end_unix_us: message.end_unix_us,
        end_us_about: message.end_us_about,
        exhausted: message.exhausted,
    };
    Ok((read_calendar(message.calendar)?, period))
}

fn write_spent_once(name: &Name, remembered: &Remembered) -> SpentOnceMessage {
    SpentOnceMessage {
        name: name.as_str().to_owned(),
        key: remembered.key.as_str().to_owned(),
        units: remembered.units,
        until_us: remembered.until_us,
    }
}

/// A remembered spend in bytes, for hashes.
pub(crate) fn spent_once_bytes(name: &Name, remembered: &Remembered) -> Vec<u8> {
    write_spent_once(name, remembered).encode_to_vec()
}

pub(crate) fn spent_once_record(name: &Name, remembered: &Remembered) -> RecordKind {
    RecordKind::SpentOnce(write_spent_once(name, remembered))
}

pub(crate) fn read_spent_once(
    message: SpentOnceMessage,
) -> Result<(Name, Remembered), FormatError> {
    let remembered = Remembered {
        key: read_key(&message.key)?,
        units: message.units,
        until_us: message.until_us,
    };
    Ok((message.name.as_str().into(), remembered))
}

pub(crate) fn footer_record(digest: u64, records: u64) -> RecordKind {
    RecordKind::Footer(FooterMessage { digest, records })
}

pub(crate) fn session_record(id: SessionId, session: &Session) -> RecordKind {
    RecordKind::Session(SessionMessage {
        id: Some(write_id(id)),
        holder: (*session.holder).to_owned(),
        identity: (*session.identity).to_owned(),
        opened_us: session.opened_us,
        deadline_us: session.deadline_us,
        ttl_us: session.ttl_us,
        validity_us: session.validity_us,
        seq: session.seq,
        ended: session.ended,
    })
}

pub(crate) fn read_session(message: SessionMessage) -> Result<(SessionId, Session), FormatError> {
    let session = Session {
        holder: message.holder.into(),
        identity: message.identity.into(),
        opened_us: message.opened_us,
        deadline_us: message.deadline_us,
        ttl_us: message.ttl_us,
        validity_us: message.validity_us,
        seq: message.seq,
        ended: message.ended,
        origin_hash: 0,
    };
    Ok((read_id(message.id)?, session.with_origin()))
}

pub(crate) fn tombstone_record(id: SessionId, tombstone: &Tombstone) -> RecordKind {
    RecordKind::Tombstone(TombstoneMessage {
        id: Some(write_id(id)),
        identity: (*tombstone.identity).to_owned(),
        ended_us: tombstone.ended_us,
        drop_us: tombstone.drop_us,
        leases: tombstone
            .leases
            .iter()
            .map(|lease| TombstoneLeaseMessage {
                key: lease.key.as_str().to_owned(),
                generation: lease.generation,
                spent: lease.spent,
                presumed: lease.presumed,
                epoch: lease.epoch,
            })
            .collect(),
    })
}

pub(crate) fn read_tombstone(
    message: TombstoneMessage,
) -> Result<(SessionId, Tombstone), FormatError> {
    let leases = message.leases.into_iter().map(|lease| {
        Ok(TombstoneLease {
            key: read_key(&lease.key)?,
            generation: lease.generation,
            spent: lease.spent,
            presumed: lease.presumed,
            epoch: lease.epoch,
        })
    });
    let tombstone = Tombstone {
        identity: message.identity.into(),
        ended_us: message.ended_us,
        drop_us: message.drop_us,
        leases: leases.collect::<Result<_, FormatError>>()?,
    };
    Ok((read_id(message.id)?, tombstone))
}
