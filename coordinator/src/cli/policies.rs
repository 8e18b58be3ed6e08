//! `leasehold policy`.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{
    Answer, CliError, Remote,
    effects::effects,
    explain::explain,
    http::{Condition, delete_if, get, put_if},
    rule_flags::RuleFlags,
    table::table,
    text::{duration_field, encoded, field, items, moment_field, rule, rule_extras},
};

const POLICIES: &str = "/v1/policies/";

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// All policies
    List,
    /// One policy
    Get {
        /// Its name
        name: String,
    },
    /// Create or replace a policy. States all of it: what is not said is the default again
    Set {
        /// 1 to 64 of a-z A-Z 0-9 . _ -
        name: String,
        #[command(flatten)]
        rule: Box<RuleFlags>,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Delete a policy that no budget uses
    Delete {
        /// Its name
        name: String,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Why a key is admitted or refused now: by which pattern and policy, who holds what, and
    /// when units come free
    Explain {
        /// The key; a slash within a segment is %2F
        key: String,
        /// The units of the request
        #[arg(long, default_value_t = 1)]
        units: u64,
    },
    /// The last versions of a policy: what it said, by whom and when
    Versions {
        /// Its name
        name: String,
    },
}

/// On which condition a change is made, and whether at all.
#[derive(Debug, Args)]
pub(super) struct ChangeFlags {
    /// Change nothing: say what it would do to the accounts that there are
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Only if it still has this etag, which `get --json` shows
    #[arg(long, value_name = "ETAG")]
    if_match: Option<String>,
    /// Only if it is not there yet
    #[arg(long, conflicts_with = "if_match")]
    if_absent: bool,
}

impl ChangeFlags {
    pub(super) fn condition(&self) -> Condition {
        match &self.if_match {
            Some(etag) => Condition::Still(etag.trim_matches('"').to_owned()),
            None if self.if_absent => Condition::Absent,
            None => Condition::Anything,
        }
    }

    /// The path of a change that is made, or only tried.
    pub(super) fn path(&self, path: &str) -> String {
        if self.dry_run {
            format!("{path}?dry_run=true")
        } else {
            path.to_owned()
        }
    }
}

impl PolicyCommand {
    pub(super) async fn run(self, remote: &Remote) -> Result<Answer, CliError> {
        match self {
            Self::List => {
                let value = get(remote, "/v1/policies").await?;
                let text = policy_table(items(&value, "policies"));
                Ok(Answer { text, value })
            }
            Self::Get { name } => {
                let value = get(remote, &path(&name)).await?;
                Ok(Answer {
                    text: policy_table(std::slice::from_ref(&value)),
                    value,
                })
            }
            Self::Set { name, rule, change } => {
                let path = change.path(&path(&name));
                let value = put_if(remote, &path, &rule.body("")?, &change.condition()).await?;
                let text = if change.dry_run {
                    effects(&value)
                } else {
                    policy_table(std::slice::from_ref(&value))
                };
                Ok(Answer { text, value })
            }
            Self::Delete { name, change } => {
                let path = change.path(&path(&name));
                let value = delete_if(remote, &path, &change.condition()).await?;
                let text = if change.dry_run {
                    effects(&value)
                } else {
                    format!("policy {name} is deleted")
                };
                Ok(Answer { text, value })
            }
            Self::Explain { key, units } => explain(remote, &key, units).await,
            Self::Versions { name } => {
                let value = get(remote, &format!("{}/versions", path(&name))).await?;
                let versions = items(&value, "versions");
                let rows: Vec<Vec<String>> = versions
                    .iter()
                    .map(|version| {
                        let mut cells = made_cells(version).to_vec();
                        cells.extend(rule_cells(version.get("policy").unwrap_or(&Value::Null)));
                        cells
                    })
                    .collect();
                let mut columns = MADE.to_vec();
                columns.push("RULE");
                columns.extend(SETTINGS);
                Ok(Answer {
                    text: table(&columns, &rows),
                    value,
                })
            }
        }
    }
}

fn path(name: &str) -> String {
    format!("{POLICIES}{}", encoded(name))
}

/// Which version it is, by whom and when.
pub(super) const MADE: [&str; 3] = ["VERSION", "BY", "AT"];

pub(super) fn made_cells(version: &Value) -> [String; MADE.len()] {
    [
        field(version, "version"),
        field(version, "by"),
        moment_field(version, "at_unix_ms"),
    ]
}

fn policy_table(policies: &[Value]) -> String {
    let rows: Vec<Vec<String>> = policies
        .iter()
        .map(|policy| {
            let mut cells = vec![field(policy, "name"), field(policy, "version")];
            cells.extend(rule_cells(policy));
            cells
        })
        .collect();
    if rows.is_empty() {
        return "no policies yet: leasehold policy set NAME --limit 100 --window 60s".to_owned();
    }
    let mut columns = vec!["NAME", "VERSION", "RULE"];
    columns.extend(SETTINGS);
    table(&columns, &rows)
}

pub(super) const SETTINGS: [&str; 7] = [
    "SLICE",
    "MAX WAIT",
    "RESERVE",
    "HORIZON",
    "FAILURE MODE",
    "PUBLIC NAME",
    "ALSO",
];

/// A rule and its settings; of one that is only named: its name.
pub(super) fn rule_cells(policy: &Value) -> Vec<String> {
    let mut cells = vec![rule(policy)];
    cells.extend(setting_cells(policy));
    cells
}

/// A policy's settings beside its rule; of one that is only named: nothing.
fn setting_cells(policy: &Value) -> [String; SETTINGS.len()] {
    let horizon = match duration_field(policy, "demand_horizon_ms") {
        unset if unset == "-" && policy.is_object() => "auto".to_owned(),
        horizon => horizon,
    };
    [
        field(policy, "slice_factor"),
        duration_field(policy, "max_wait_ms"),
        field(policy, "reserve"),
        horizon,
        field(policy, "failure_mode"),
        field(policy, "public_name"),
        rule_extras(policy),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_shows_the_settings_and_says_auto_for_a_horizon_that_follows_the_budget() {
        let mut policy = json!({
            "name": "P", "kind": "sliding_window", "limit": 100, "window_ms": 60_000,
            "slice_factor": 1.5, "max_wait_ms": 250, "reserve": 3, "version": 4,
            "failure_mode": "closed", "public_name": "default"
        });
        assert!(policy_table(std::slice::from_ref(&policy)).contains("auto"));
        policy["demand_horizon_ms"] = 2_500.into();
        policy["lanes"] = json!([{"name": "payment", "reserve": 20}, {"name": "reads"}]);
        policy["shadow"] = true.into();
        let text = policy_table(&[policy]);
        assert!(text.contains("2.500s") && !text.contains("auto"), "{text}");
        assert!(text.contains("lanes payment:20 > reads, shadow"), "{text}");
    }
}
