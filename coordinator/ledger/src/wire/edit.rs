//! The persisted form of edits by operators. Knows nothing of the rules that are there.

use super::{
    FormatError, PolicyMessage, RuleMessage, SettingsMessage, read_pattern, read_policy, read_rule,
    read_settings, write_policy, write_rule, write_settings,
};
use crate::edit::{Edit, Expect, Guarded, RuleChange, Terms};

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EditMessage {
    #[prost(message, repeated, tag = "1")]
    changes: Vec<ChangeMessage>,
    #[prost(string, tag = "2")]
    by: String,
    #[prost(int64, tag = "3")]
    wall_unix_us: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ChangeMessage {
    #[prost(oneof = "ChangeKind", tags = "1, 2, 3, 4, 5")]
    kind: Option<ChangeKind>,
    /// None: whatever there is.
    #[prost(message, optional, tag = "6")]
    expect: Option<ExpectMessage>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum ChangeKind {
    #[prost(message, tag = "1")]
    PutPolicy(PutPolicyMessage),
    #[prost(string, tag = "2")]
    DeletePolicy(String),
    #[prost(message, tag = "3")]
    PutBudget(PutBudgetMessage),
    #[prost(string, tag = "4")]
    DeleteBudget(String),
    #[prost(message, tag = "5")]
    PutSettings(SettingsMessage),
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutPolicyMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    policy: Option<PolicyMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutBudgetMessage {
    #[prost(string, tag = "1")]
    pattern: String,
    #[prost(oneof = "RuleMessage", tags = "2, 3")]
    rule: Option<RuleMessage>,
    #[prost(uint64, optional, tag = "4")]
    accounts_max: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExpectMessage {
    /// 0: nothing is there; 1: something is; 2: one of the tags.
    #[prost(uint32, tag = "1")]
    what: u32,
    #[prost(fixed64, repeated, tag = "2")]
    tags: Vec<u64>,
}

pub(super) fn write_edit(edit: &Edit) -> EditMessage {
    EditMessage {
        changes: edit.changes.iter().map(write_change).collect(),
        by: edit.by.clone(),
        wall_unix_us: edit.wall_unix_us,
    }
}

pub(super) fn read_edit(message: EditMessage) -> Result<Edit, FormatError> {
    let changes = message.changes.into_iter().map(read_change);
    Ok(Edit {
        changes: changes.collect::<Result<_, _>>()?,
        by: message.by,
        wall_unix_us: message.wall_unix_us,
    })
}

fn write_change(guarded: &Guarded) -> ChangeMessage {
    let kind = match &guarded.change {
        RuleChange::PutPolicy { name, policy } => ChangeKind::PutPolicy(PutPolicyMessage {
            name: name.clone(),
            policy: Some(write_policy(policy)),
        }),
        RuleChange::DeletePolicy { name } => ChangeKind::DeletePolicy(name.clone()),
        RuleChange::PutBudget { pattern, terms } => ChangeKind::PutBudget(PutBudgetMessage {
            pattern: pattern.as_str().to_owned(),
            rule: Some(write_rule(&terms.rule)),
            accounts_max: terms.accounts_max,
        }),
        RuleChange::DeleteBudget { pattern } => {
            ChangeKind::DeleteBudget(pattern.as_str().to_owned())
        }
        RuleChange::PutSettings(settings) => ChangeKind::PutSettings(write_settings(settings)),
    };
    let expect = match &guarded.expect {
        Expect::Anything => None,
        Expect::Absent => Some((0, Vec::new())),
        Expect::Present => Some((1, Vec::new())),
        Expect::OneOf(tags) => Some((2, tags.clone())),
    };
    ChangeMessage {
        kind: Some(kind),
        expect: expect.map(|(what, tags)| ExpectMessage { what, tags }),
    }
}

fn read_change(message: ChangeMessage) -> Result<Guarded, FormatError> {
    let kind = message
        .kind
        .ok_or(FormatError::Missing { field: "change" })?;
    let change = match kind {
        ChangeKind::PutPolicy(put) => RuleChange::PutPolicy {
            name: put.name,
            policy: read_policy(put.policy)?,
        },
        ChangeKind::DeletePolicy(name) => RuleChange::DeletePolicy { name },
        ChangeKind::PutBudget(put) => RuleChange::PutBudget {
            pattern: read_pattern(&put.pattern)?,
            terms: Terms {
                rule: read_rule(put.rule)?,
                accounts_max: put.accounts_max,
            },
        },
        ChangeKind::DeleteBudget(pattern) => RuleChange::DeleteBudget {
            pattern: read_pattern(&pattern)?,
        },
        ChangeKind::PutSettings(settings) => {
            RuleChange::PutSettings(read_settings(Some(settings))?)
        }
    };
    let expect = match message.expect {
        None => Expect::Anything,
        Some(expect) => match expect.what {
            0 => Expect::Absent,
            1 => Expect::Present,
            2 => Expect::OneOf(expect.tags),
            what => {
                return Err(FormatError::Value {
                    field: "expect",
                    why: format!("{what} is none of 0 to 2"),
                });
            }
        },
    };
    Ok(Guarded { change, expect })
}
