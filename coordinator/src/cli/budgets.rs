//! `leasehold budget`.

use clap::Subcommand;
use serde_json::{Map, Value};

use super::{
    Answer, CliError, Remote,
    effects::effects,
    http::{delete_if, get, put_if},
    policies::{ChangeFlags, MADE, SETTINGS, made_cells, rule_cells},
    rule_flags::RuleFlags,
    table::table,
    text::{field, items, pattern_path},
};

const BUDGETS: &str = "/v1/budgets/";

#[derive(Debug, Subcommand)]
pub(super) enum BudgetCommand {
    /// All budgets
    List,
    /// One budget
    Get {
        /// Its pattern
        pattern: String,
    },
    /// Bind a pattern to a policy, by --policy or with a rule of its own
    Set {
        /// A key whose segments may be * or end in *, and whose last may be **
        pattern: String,
        /// The policy's name
        #[arg(long, conflicts_with = "RuleFlags")]
        policy: Option<String>,
        #[command(flatten)]
        rule: Box<RuleFlags>,
        /// Accounts alive at once [default: accounts_per_pattern_max of the settings]
        #[arg(long, value_name = "ACCOUNTS")]
        accounts_max: Option<u64>,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Unbind a pattern; what is counted or outstanding expires as usual
    Delete {
        /// Its pattern
        pattern: String,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// The last versions of a budget: what it said, by whom and when
    Versions {
        /// Its pattern
        pattern: String,
    },
}

impl BudgetCommand {
    pub(super) async fn run(self, remote: &Remote) -> Result<Answer, CliError> {
        match self {
            Self::List => {
                let value = get(remote, "/v1/budgets").await?;
                Ok(Answer {
                    text: budget_table(items(&value, "budgets")),
                    value,
                })
            }
            Self::Get { pattern } => {
                let value = get(remote, &pattern_path(BUDGETS, &pattern)?).await?;
                Ok(Answer {
                    text: budget_table(std::slice::from_ref(&value)),
                    value,
                })
            }
            Self::Set {
                pattern,
                policy,
                rule,
                accounts_max,
                change,
            } => {
                let rule = match policy {
                    Some(name) => name.into(),
                    None => rule.body("--policy NAME, ")?,
                };
                let mut body = Map::new();
                body.insert("policy".to_owned(), rule);
                if let Some(most) = accounts_max {
                    body.insert("accounts_max".to_owned(), most.into());
                }
                let path = change.path(&pattern_path(BUDGETS, &pattern)?);
                let value = put_if(remote, &path, &body.into(), &change.condition()).await?;
                let text = if change.dry_run {
                    effects(&value)
                } else {
                    budget_table(std::slice::from_ref(&value))
                };
                Ok(Answer { text, value })
            }
            Self::Delete { pattern, change } => {
                let path = change.path(&pattern_path(BUDGETS, &pattern)?);
                let value = delete_if(remote, &path, &change.condition()).await?;
                let text = if change.dry_run {
                    effects(&value)
                } else {
                    format!("budget {pattern} is deleted")
                };
                Ok(Answer { text, value })
            }
            Self::Versions { pattern } => {
                let value = get(remote, &pattern_path("/v1/budget-versions/", &pattern)?).await?;
                let versions = items(&value, "versions");
                let rows: Vec<Vec<String>> = versions
                    .iter()
                    .map(|version| {
                        let mut cells = made_cells(version).to_vec();
                        cells.extend(terms_cells(version));
                        cells
                    })
                    .collect();
                let columns: Vec<&str> = MADE.into_iter().chain(TERMS).chain(SETTINGS).collect();
                Ok(Answer {
                    text: table(&columns, &rows),
                    value,
                })
            }
        }
    }
}

const TERMS: [&str; 2] = ["ACCOUNTS MAX", "POLICY"];

fn terms_cells(budget: &Value) -> Vec<String> {
    let mut cells = vec![field(budget, "accounts_max")];
    cells.extend(rule_cells(budget.get("policy").unwrap_or(&Value::Null)));
    cells
}

fn budget_table(budgets: &[Value]) -> String {
    let rows: Vec<Vec<String>> = budgets
        .iter()
        .map(|budget| {
            let mut cells = vec![field(budget, "pattern"), field(budget, "version")];
            cells.extend(terms_cells(budget));
            cells
        })
        .collect();
    if rows.is_empty() {
        return "no budgets yet: leasehold budget set 'acme/*' --limit 100 --window 60s".to_owned();
    }
    let columns: Vec<&str> = ["PATTERN", "VERSION"]
        .into_iter()
        .chain(TERMS)
        .chain(SETTINGS)
        .collect();
    table(&columns, &rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_names_a_policy_or_has_a_rule_of_its_own_never_both() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(subcommand)]
            command: BudgetCommand,
        }
        let parsed = |line: &str| {
            <Line as clap::Parser>::try_parse_from(line.split(' ')).map_err(|error| error.kind())
        };
        assert!(parsed("budget set a/* --policy p --accounts-max 5 --dry-run").is_ok());
        assert!(parsed("budget set a/* --limit 5 --window 10s --reserve 1").is_ok());
        for flag in [
            "--limit 5 --window 10s",
            "--reserve 1",
            "--slice-factor 2",
            "--failure-mode open",
            "--unlimited",
            "--lane a",
        ] {
            let refused = parsed(&format!("budget set a/* --policy p {flag}")).unwrap_err();
            assert_eq!(refused, clap::error::ErrorKind::ArgumentConflict, "{flag}");
        }
    }

    #[test]
    fn a_budgets_own_settings_are_shown() {
        let own = json!({"pattern": "a/*", "accounts_max": 70, "policy": {
            "kind": "sliding_window", "limit": 5, "window_ms": 10_000, "slice_factor": 1.5,
            "max_wait_ms": 250, "reserve": 7, "failure_mode": "open", "public_name": "default"
        }});
        let named = json!({"pattern": "b/*", "policy": "p"});
        let text = budget_table(&[own, named]);
        assert!(text.contains("open") && text.contains("auto"), "{text}");
        assert!(text.contains("70"), "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("b/*") && !last.contains("auto"), "{text}");
    }
}
