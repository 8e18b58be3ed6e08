//! The persisted form of a log entry. Knows nothing of the ledger's state.
//! Past 600 lines because every item is there three times: message, writer, reader.

use prost::Message;
use thiserror::Error;

use super::{
    CalendarMessage, IdMessage, PolicyMessage, RuleMessage, SettingsMessage, VERSION,
    VERSION_OF_IDS, VERSION_OF_KINDS, calendar_version,
    edit::{EditMessage, read_edit, write_edit},
    read_calendar, read_cluster_id, read_id, read_key, read_pattern, read_policy, read_rule,
    read_settings, settings_version, version_of, write_calendar, write_cluster_id, write_id,
    write_policy, write_rule, write_settings,
};
use crate::{
    correction::Change,
    digest,
    entry::{Command, Entry, Grant, Report, Roll, Rule, SettledLease, SpentAge, Sync},
};

/// Bytes that are not an entry or a part of the ledger that this version reads.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Not a message at all.
    #[error("not a readable message: {0}")]
    Unreadable(String),
    /// Written by a version that this one does not know.
    #[error("entry format version {found} is unknown: this version reads up to {known}")]
    UnknownVersion {
        /// What the bytes say.
        found: u32,
        /// The newest that this version reads.
        known: u32,
    },
    /// A field that every writer sets is not there.
    #[error("{field} is missing")]
    Missing {
        /// Which one.
        field: &'static str,
    },
    /// A field has a value that no writer sets.
    #[error("{field} has an impossible value: {why}")]
    Value {
        /// Which one.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl From<prost::DecodeError> for FormatError {
    fn from(error: prost::DecodeError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

#[derive(Clone, PartialEq, Message)]
struct EntryMessage {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(uint64, tag = "2")]
    now_us: u64,
    #[prost(message, repeated, tag = "3")]
    syncs: Vec<SyncMessage>,
    #[prost(message, repeated, tag = "4")]
    commands: Vec<CommandMessage>,
    #[prost(message, repeated, tag = "5")]
    grants: Vec<GrantMessage>,
    /// From version 6 on.
    #[prost(message, repeated, tag = "6")]
    rolls: Vec<RollMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct RollMessage {
    #[prost(message, optional, tag = "1")]
    calendar: Option<CalendarMessage>,
    #[prost(int64, tag = "2")]
    start_unix_us: i64,
    #[prost(int64, tag = "3")]
    end_unix_us: i64,
    #[prost(uint64, tag = "4")]
    ends_in_us: u64,
}

#[derive(Clone, PartialEq, Message)]
struct CorrectMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    id: String,
    /// None: a reset.
    #[prost(int64, optional, tag = "3")]
    adjust: Option<i64>,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(string, tag = "5")]
    by: String,
    #[prost(int64, tag = "6")]
    wall_unix_us: i64,
}

#[derive(Clone, PartialEq, Message)]
struct SyncMessage {
    #[prost(message, optional, tag = "1")]
    session: Option<IdMessage>,
    #[prost(uint64, tag = "2")]
    seq: u64,
    #[prost(bool, tag = "3")]
    renew: bool,
    #[prost(bool, tag = "4")]
    close: bool,
    #[prost(message, repeated, tag = "5")]
    reports: Vec<ReportMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ReportMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(bool, tag = "3")]
    last: bool,
    #[prost(uint64, tag = "4")]
    spent_total: u64,
    #[prost(uint64, tag = "5")]
    returned_total: u64,
    #[prost(uint64, tag = "6")]
    held: u64,
    #[prost(message, repeated, tag = "7")]
    ages: Vec<AgeMessage>,
    /// From version 6 on.
    #[prost(uint64, tag = "8")]
    overrun_total: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct AgeMessage {
    #[prost(uint64, tag = "1")]
    units: u64,
    #[prost(uint64, tag = "2")]
    age_us: u64,
}

#[derive(Clone, PartialEq, Message)]
struct GrantMessage {
    #[prost(message, optional, tag = "1")]
    session: Option<IdMessage>,
    #[prost(string, tag = "2")]
    key: String,
    #[prost(uint64, tag = "3")]
    units: u64,
}

#[derive(Clone, PartialEq, Message)]
struct CommandMessage {
    #[prost(
        oneof = "CommandKind",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 20"
    )]
    kind: Option<CommandKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum CommandKind {
    #[prost(message, tag = "1")]
    Open(OpenMessage),
    #[prost(message, tag = "2")]
    Settle(SettleMessage),
    #[prost(message, tag = "3")]
    EndSession(IdMessage),
    #[prost(message, tag = "4")]
    PutPolicy(PutPolicyMessage),
    #[prost(string, tag = "5")]
    DeletePolicy(String),
    #[prost(message, tag = "6")]
    PutBudget(PutBudgetMessage),
    #[prost(string, tag = "7")]
    DeleteBudget(String),
    #[prost(message, tag = "8")]
    Spend(SpendMessage),
    #[prost(message, tag = "9")]
    PutSettings(SettingsMessage),
    #[prost(message, tag = "10")]
    RegisterNode(RegisterNodeMessage),
    /// From version 3 on.
    #[prost(message, tag = "11")]
    NameCluster(IdMessage),
    /// From version 6 on.
    #[prost(message, tag = "12")]
    Correct(CorrectMessage),
    /// From version 6 on.
    #[prost(string, tag = "13")]
    CoolDown(String),
    /// From version 6 on.
    #[prost(message, tag = "14")]
    CorrectPeriod(RollMessage),
    /// From version 6 on.
    #[prost(uint32, tag = "15")]
    RaiseFormat(u32),
    /// From version 6 on.
    #[prost(message, tag = "20")]
    Edit(EditMessage),
}

#[derive(Clone, PartialEq, Message)]
struct OpenMessage {
    #[prost(message, optional, tag = "1")]
    session: Option<IdMessage>,
    #[prost(string, tag = "2")]
    holder: String,
    #[prost(string, tag = "3")]
    identity: String,
}

#[derive(Clone, PartialEq, Message)]
struct SettleMessage {
    #[prost(message, optional, tag = "1")]
    session: Option<IdMessage>,
    #[prost(string, tag = "2")]
    identity: String,
    #[prost(message, repeated, tag = "3")]
    leases: Vec<SettledLeaseMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct SettledLeaseMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(uint64, tag = "3")]
    spent_total: u64,
}

#[derive(Clone, PartialEq, Message)]
struct PutPolicyMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    policy: Option<PolicyMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct PutBudgetMessage {
    #[prost(string, tag = "1")]
    pattern: String,
    #[prost(oneof = "RuleMessage", tags = "2, 3")]
    rule: Option<RuleMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct SpendMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(uint64, tag = "2")]
    units: u64,
    /// From version 6 on.
    #[prost(string, optional, tag = "3")]
    idempotency_key: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct RegisterNodeMessage {
    #[prost(uint64, tag = "1")]
    node_id: u64,
    #[prost(fixed64, tag = "2")]
    disk_upper: u64,
    #[prost(fixed64, tag = "3")]
    disk_lower: u64,
}

impl Command {
    /// The lowest version of the stored formats that says all of it.
    #[must_use]
    pub fn format_version(&self) -> u32 {
        match self {
            Command::PutPolicy { policy, .. }
            | Command::PutBudget {
                rule: Rule::Inline(policy),
                ..
            } => version_of(policy),
            Command::NameCluster { .. } => VERSION_OF_IDS,
            Command::SpendOnce { .. } | Command::Correct { .. } | Command::CoolDown { .. } => {
                VERSION_OF_KINDS
            }
            Command::CorrectPeriod(roll) => calendar_version(&roll.calendar),
            // Whoever does not read that version must not pass over it.
            Command::RaiseFormat { version } => (*version).clamp(VERSION_OF_KINDS, VERSION),
            Command::Edit(edit) => {
                let policies = edit.policies().map(version_of);
                policies.fold(VERSION_OF_KINDS, u32::max)
            }
            Command::PutSettings(settings) => settings_version(settings),
            _ => 1,
        }
    }
}

impl Entry {
    /// The entry's persisted form. Equal entries give equal bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let message = EntryMessage {
            version: self.version(),
            now_us: self.now_us,
            syncs: self.syncs.iter().map(write_sync).collect(),
            commands: self.commands.iter().map(write_command).collect(),
            grants: self.grants.iter().map(write_grant).collect(),
            rolls: self.rolls.iter().map(write_roll).collect(),
        };
        message.encode_to_vec()
    }

    /// The lowest version that says all of it.
    fn version(&self) -> u32 {
        let versions = self.commands.iter().map(Command::format_version);
        let overruns = self.syncs.iter().flat_map(|sync| &sync.reports);
        let newer = overruns.into_iter().any(|r| r.overrun_total > 0);
        let least = if newer { VERSION_OF_KINDS } else { 1 };
        let rolls = self.rolls.iter();
        let rolls = rolls.map(|roll| calendar_version(&roll.calendar));
        versions.chain(rolls).fold(least, u32::max)
    }

    /// Reads what [`Entry::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are damaged or were written by an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let message = EntryMessage::decode(bytes)?;
        if !(1..=VERSION).contains(&message.version) {
            return Err(FormatError::UnknownVersion {
                found: message.version,
                known: VERSION,
            });
        }
        Ok(Self {
            now_us: message.now_us,
            syncs: message
                .syncs
                .into_iter()
                .map(read_sync)
                .collect::<Result<_, _>>()?,
            commands: message
                .commands
                .into_iter()
                .map(read_command)
                .collect::<Result<_, _>>()?,
            grants: message
                .grants
                .into_iter()
                .map(read_grant)
                .collect::<Result<_, _>>()?,
            rolls: message
                .rolls
                .into_iter()
                .map(read_roll)
                .collect::<Result<_, _>>()?,
        })
    }
}

fn write_roll(roll: &Roll) -> RollMessage {
    RollMessage {
        calendar: Some(write_calendar(&roll.calendar)),
        start_unix_us: roll.start_unix_us,
        end_unix_us: roll.end_unix_us,
        ends_in_us: roll.ends_in_us,
    }
}

fn read_roll(message: RollMessage) -> Result<Roll, FormatError> {
    Ok(Roll {
        calendar: read_calendar(message.calendar)?,
        start_unix_us: message.start_unix_us,
        end_unix_us: message.end_unix_us,
        ends_in_us: message.ends_in_us,
    })
}

fn write_sync(sync: &Sync) -> SyncMessage {
    SyncMessage {
        session: Some(write_id(sync.session)),
        seq: sync.seq,
        renew: sync.renew,
        close: sync.close,
        reports: sync.reports.iter().map(write_report).collect(),
    }
}

fn read_sync(message: SyncMessage) -> Result<Sync, FormatError> {
    Ok(Sync {
        session: read_id(message.session)?,
        seq: message.seq,
        renew: message.renew,
        close: message.close,
        reports: message
            .reports
            .into_iter()
            .map(read_report)
            .collect::<Result<_, _>>()?,
    })
}

fn write_report(report: &Report) -> ReportMessage {
    ReportMessage {
        key: report.key.as_str().to_owned(),
        generation: report.generation,
        last: report.last,
        spent_total: report.spent_total,
        returned_total: report.returned_total,
        held: report.held,
        ages: report
            .ages
            .iter()
            .map(|age| AgeMessage {
                units: age.units,
                age_us: age.age_us,
            })
            .collect(),
        overrun_total: report.overrun_total,
    }
}

fn read_report(message: ReportMessage) -> Result<Report, FormatError> {
    Ok(Report {
        key: read_key(&message.key)?,
        generation: message.generation,
        last: message.last,
        spent_total: message.spent_total,
        returned_total: message.returned_total,
        held: message.held,
        ages: message
            .ages
            .into_iter()
            .map(|age| SpentAge {
                units: age.units,
                age_us: age.age_us,
            })
            .collect(),
        overrun_total: message.overrun_total,
    })
}

fn write_grant(grant: &Grant) -> GrantMessage {
    GrantMessage {
        session: Some(write_id(grant.session)),
        key: grant.key.as_str().to_owned(),
        units: grant.units,
    }
}

fn read_grant(message: GrantMessage) -> Result<Grant, FormatError> {
    Ok(Grant {
        session: read_id(message.session)?,
        key: read_key(&message.key)?,
        units: message.units,
    })
}

fn write_command(command: &Command) -> CommandMessage {
    let kind = match command {
        Command::Open {
            session,
            holder,
            identity,
        } => CommandKind::Open(OpenMessage {
            session: Some(write_id(*session)),
            holder: holder.clone(),
            identity: identity.clone(),
        }),
        Command::Settle {
            session,
            identity,
            leases,
        } => CommandKind::Settle(SettleMessage {
            session: Some(write_id(*session)),
            identity: identity.clone(),
            leases: leases
                .iter()
                .map(|lease| SettledLeaseMessage {
                    key: lease.key.as_str().to_owned(),
                    generation: lease.generation,
                    spent_total: lease.spent_total,
                })
                .collect(),
        }),
        Command::EndSession { session } => CommandKind::EndSession(write_id(*session)),
        Command::PutPolicy { name, policy } => CommandKind::PutPolicy(PutPolicyMessage {
            name: name.clone(),
            policy: Some(write_policy(policy)),
        }),
        Command::DeletePolicy { name } => CommandKind::DeletePolicy(name.clone()),
        Command::PutBudget { pattern, rule } => CommandKind::PutBudget(PutBudgetMessage {
            pattern: pattern.as_str().to_owned(),
            rule: Some(write_rule(rule)),
        }),
        Command::DeleteBudget { pattern } => CommandKind::DeleteBudget(pattern.as_str().to_owned()),
        Command::Spend { key, units } => CommandKind::Spend(SpendMessage {
            key: key.as_str().to_owned(),
            units: *units,
            idempotency_key: None,
        }),
        Command::SpendOnce {
            key,
            units,
            idempotency_key,
        } => CommandKind::Spend(SpendMessage {
            key: key.as_str().to_owned(),
            units: *units,
            idempotency_key: Some(idempotency_key.clone()),
        }),
        Command::Correct {
            key,
            id,
            change,
            reason,
            by,
            wall_unix_us,
        } => CommandKind::Correct(CorrectMessage {
            key: key.as_str().to_owned(),
            id: id.clone(),
            adjust: match change {
                Change::Adjust(units) => Some(*units),
                Change::Reset => None,
            },
            reason: reason.clone(),
            by: by.clone(),
            wall_unix_us: *wall_unix_us,
        }),
        Command::CoolDown { key } => CommandKind::CoolDown(key.as_str().to_owned()),
        Command::CorrectPeriod(bounds) => CommandKind::CorrectPeriod(write_roll(bounds)),
        Command::PutSettings(settings) => CommandKind::PutSettings(write_settings(settings)),
        Command::Edit(edit) => CommandKind::Edit(write_edit(edit)),
        Command::RegisterNode { node_id, disk_id } => {
            let (disk_upper, disk_lower) = digest::halves(*disk_id);
            CommandKind::RegisterNode(RegisterNodeMessage {
                node_id: *node_id,
                disk_upper,
                disk_lower,
            })
        }
        Command::RaiseFormat { version } => CommandKind::RaiseFormat(*version),
        Command::NameCluster { cluster_id } => {
            CommandKind::NameCluster(write_cluster_id(*cluster_id))
        }
    };
    CommandMessage { kind: Some(kind) }
}

fn read_command(message: CommandMessage) -> Result<Command, FormatError> {
    Ok(
        match message
            .kind
            .ok_or(FormatError::Missing { field: "command" })?
        {
            CommandKind::Open(open) => Command::Open {
                session: read_id(open.session)?,
                holder: open.holder,
                identity: open.identity,
            },
            CommandKind::Settle(settle) => Command::Settle {
                session: read_id(settle.session)?,
                identity: settle.identity,
                leases: settle
                    .leases
                    .into_iter()
                    .map(|lease| {
                        Ok(SettledLease {
                            key: read_key(&lease.key)?,
                            generation: lease.generation,
                            spent_total: lease.spent_total,
                        })
                    })
                    .collect::<Result<_, FormatError>>()?,
            },
            CommandKind::EndSession(id) => Command::EndSession {
                session: read_id(Some(id))?,
            },
            CommandKind::PutPolicy(put) => Command::PutPolicy {
                name: put.name,
                policy: read_policy(put.policy)?,
            },
            CommandKind::DeletePolicy(name) => Command::DeletePolicy { name },
            CommandKind::PutBudget(put) => Command::PutBudget {
                pattern: read_pattern(&put.pattern)?,
                rule: read_rule(put.rule)?,
            },
            CommandKind::DeleteBudget(pattern) => Command::DeleteBudget {
                pattern: read_pattern(&pattern)?,
            },
            CommandKind::Spend(SpendMessage {
                key,
                units,
                idempotency_key,
            }) => {
                let key = read_key(&key)?;
                match idempotency_key {
                    Some(idempotency_key) => Command::SpendOnce {
                        key,
                        units,
                        idempotency_key,
                    },
                    None => Command::Spend { key, units },
                }
            }
            CommandKind::Correct(correct) => Command::Correct {
                key: read_key(&correct.key)?,
                id: correct.id,
                change: correct.adjust.map_or(Change::Reset, Change::Adjust),
                reason: correct.reason,
                by: correct.by,
                wall_unix_us: correct.wall_unix_us,
            },
            CommandKind::CoolDown(key) => Command::CoolDown {
                key: read_key(&key)?,
            },
            CommandKind::CorrectPeriod(bounds) => Command::CorrectPeriod(read_roll(bounds)?),
            CommandKind::PutSettings(settings) => {
                Command::PutSettings(read_settings(Some(settings))?)
            }
            CommandKind::Edit(edit) => Command::Edit(read_edit(edit)?),
            CommandKind::RegisterNode(register) => Command::RegisterNode {
                node_id: register.node_id,
                disk_id: digest::whole(register.disk_upper, register.disk_lower),
            },
            CommandKind::RaiseFormat(version) => Command::RaiseFormat { version },
            CommandKind::NameCluster(id) => Command::NameCluster {
                cluster_id: read_cluster_id(id),
            },
        },
    )
}
