//! `leasehold policy` and `leasehold budget`.

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::{
    Answer, CliError, Remote,
    explain::explain,
    http::{delete, get, put},
    table::table,
    text::{duration_field, encoded, field, items, parse_duration, pattern_path, rule},
};

const POLICIES: &str = "/v1/policies/";
const BUDGETS: &str = "/v1/budgets/";

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// All policies
    List,
    /// One policy
    Get {
        /// Its name
        name: String,
    },
    /// Create or replace a policy: --limit and --window, or --capacity, --refill and --every.
    /// States all of it: what is not said is the default again
    Set {
        /// 1 to 64 of a-z A-Z 0-9 . _ -
        name: String,
        #[command(flatten)]
        rule: RuleFlags,
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
    /// Delete a policy that no budget uses
    Delete {
        /// Its name
        name: String,
    },
}

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
        rule: RuleFlags,
    },
    /// Unbind a pattern; what is counted or outstanding expires as usual
    Delete {
        /// Its pattern
        pattern: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct RuleFlags {
    /// Sliding window: units in any interval of --window
    #[arg(long, value_name = "UNITS", requires = "window", conflicts_with_all = ["capacity", "refill", "every"])]
    limit: Option<u64>,
    /// Sliding window: its length, as in 60s
    #[arg(long, value_name = "TIME", requires = "limit", value_parser = parse_duration)]
    window: Option<u64>,
    /// Token bucket: units that a full bucket holds
    #[arg(long, value_name = "UNITS", requires_all = ["refill", "every"])]
    capacity: Option<u64>,
    /// Token bucket: units that come back --every so often
    #[arg(long, value_name = "UNITS", requires = "capacity")]
    refill: Option<u64>,
    /// Token bucket: the refill period, as in 1s
    #[arg(long, value_name = "TIME", requires = "capacity", value_parser = parse_duration)]
    every: Option<u64>,
    /// A lease holds so many times the recent demand [default: 1.5]
    #[arg(long, value_name = "FACTOR", value_parser = parse_factor)]
    slice_factor: Option<f64>,
    /// How long a gateway's spend waits for units [default: 250ms]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_wait: Option<u64>,
    /// Free units kept back for requests that wait; less than the limit [default: 0]
    #[arg(long, value_name = "UNITS")]
    reserve: Option<u64>,
    /// The time over which gateways measure demand, 10ms to 10s [default: a sixth of
    /// the window or of the time in which an empty bucket fills, 10s at most]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    demand_horizon: Option<u64>,
    /// What gateways do while no coordinator answers [default: closed]
    #[arg(long)]
    failure_mode: Option<FailureModeFlag>,
    /// The name that end users see [default: default]
    #[arg(long, value_name = "NAME")]
    public_name: Option<String>,
}

/// JSON has no word for what is not finite: it would arrive as "not said".
fn parse_factor(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|factor: &f64| factor.is_finite())
        .ok_or_else(|| format!("{text} must be a number from 1 to 10"))
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FailureModeFlag {
    /// Refuse
    Closed,
    /// Allow, marked as degraded
    Open,
}

impl RuleFlags {
    /// The rule as JSON; `also` is what else could have been said.
    fn body(&self, also: &str) -> Result<Value, CliError> {
        let mut body = Map::new();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        match (self.limit, self.capacity) {
            (Some(limit), _) => {
                set("kind", Some("sliding_window".into()));
                set("limit", Some(limit.into()));
                set("window_ms", self.window.map(Value::from));
            }
            (None, Some(capacity)) => {
                set("kind", Some("token_bucket".into()));
                set("capacity", Some(capacity.into()));
                set("refill", self.refill.map(Value::from));
                set("refill_period_ms", self.every.map(Value::from));
            }
            (None, None) => {
                return Err(CliError::Usage(format!(
                    "say what the rule is: {also}--limit 100 --window 60s, or --capacity 20 --refill 100 --every 60s"
                )));
            }
        }
        set("slice_factor", self.slice_factor.map(Value::from));
        set("max_wait_ms", self.max_wait.map(Value::from));
        set("reserve", self.reserve.map(Value::from));
        set("demand_horizon_ms", self.demand_horizon.map(Value::from));
        set(
            "failure_mode",
            self.failure_mode.map(|mode| match mode {
                FailureModeFlag::Closed => "closed".into(),
                FailureModeFlag::Open => "open".into(),
            }),
        );
        set("public_name", self.public_name.clone().map(Value::from));
        Ok(body.into())
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
                let value = get(remote, &format!("{POLICIES}{}", encoded(&name))).await?;
                Ok(Answer {
                    text: policy_table(std::slice::from_ref(&value)),
                    value,
                })
            }
            Self::Set { name, rule } => {
                let value = put(
                    remote,
                    &format!("{POLICIES}{}", encoded(&name)),
                    &rule.body("")?,
                )
                .await?;
                Ok(Answer {
                    text: policy_table(std::slice::from_ref(&value)),
                    value,
                })
            }
            Self::Explain { key, units } => explain(remote, &key, units).await,
            Self::Delete { name } => {
                let value = delete(remote, &format!("{POLICIES}{}", encoded(&name))).await?;
                Ok(Answer {
                    text: format!("policy {name} is deleted"),
                    value,
                })
            }
        }
    }
}

fn policy_table(policies: &[Value]) -> String {
    let rows: Vec<Vec<String>> = policies
        .iter()
        .map(|policy| {
            let mut cells = vec![field(policy, "name"), rule(policy)];
            cells.extend(setting_cells(policy));
            cells
        })
        .collect();
    if rows.is_empty() {
        return "no policies yet: leasehold policy set NAME --limit 100 --window 60s".to_owned();
    }
    let mut columns = vec!["NAME", "RULE"];
    columns.extend(SETTINGS);
    table(&columns, &rows)
}

const SETTINGS: [&str; 6] = [
    "SLICE",
    "MAX WAIT",
    "RESERVE",
    "HORIZON",
    "FAILURE MODE",
    "PUBLIC NAME",
];

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
    ]
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
            } => {
                let rule = match policy {
                    Some(name) => name.into(),
                    None => rule.body("--policy NAME, ")?,
                };
                let value = put(
                    remote,
                    &pattern_path(BUDGETS, &pattern)?,
                    &json!({ "policy": rule }),
                )
                .await?;
                Ok(Answer {
                    text: budget_table(std::slice::from_ref(&value)),
                    value,
                })
            }
            Self::Delete { pattern } => {
                let value = delete(remote, &pattern_path(BUDGETS, &pattern)?).await?;
                Ok(Answer {
                    text: format!("budget {pattern} is deleted"),
                    value,
                })
            }
        }
    }
}

fn budget_table(budgets: &[Value]) -> String {
    let rows: Vec<Vec<String>> = budgets
        .iter()
        .map(|budget| {
            let policy = budget.get("policy").unwrap_or(&Value::Null);
            let mut cells = vec![field(budget, "pattern"), rule(policy)];
            cells.extend(setting_cells(policy));
            cells
        })
        .collect();
    if rows.is_empty() {
        return "no budgets yet: leasehold budget set 'acme/*' --limit 100 --window 60s".to_owned();
    }
    let mut columns = vec!["PATTERN", "POLICY"];
    columns.extend(SETTINGS);
    table(&columns, &rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        rule: RuleFlags,
    }

    fn body(flags: &str) -> Value {
        let words = std::iter::once("set").chain(flags.split(' '));
        let Line { rule } = clap::Parser::try_parse_from(words).unwrap();
        rule.body("").unwrap()
    }

    #[test]
    fn every_flag_becomes_the_field_of_its_name_and_what_is_not_said_is_not_sent() {
        assert_eq!(
            body("--limit 100 --window 60s"),
            json!({"kind": "sliding_window", "limit": 100, "window_ms": 60_000})
        );
        assert_eq!(
            body(
                "--capacity 20 --refill 100 --every 60s --slice-factor 2 --max-wait 10ms \
                 --reserve 1 --demand-horizon 250ms --failure-mode open --public-name free"
            ),
            json!({
                "kind": "token_bucket", "capacity": 20, "refill": 100,
                "refill_period_ms": 60_000, "slice_factor": 2.0, "max_wait_ms": 10,
                "reserve": 1, "demand_horizon_ms": 250, "failure_mode": "open",
                "public_name": "free"
            })
        );
    }

    #[test]
    fn the_table_shows_the_settings_and_says_auto_for_a_horizon_that_follows_the_budget() {
        let mut policy = json!({
            "name": "P", "kind": "sliding_window", "limit": 100, "window_ms": 60_000,
            "slice_factor": 1.5, "max_wait_ms": 250, "reserve": 3,
            "failure_mode": "closed", "public_name": "default"
        });
        assert!(policy_table(std::slice::from_ref(&policy)).contains("auto"));
        policy["demand_horizon_ms"] = 2_500.into();
        let text = policy_table(&[policy]);
        assert!(text.contains("2.500s") && !text.contains("auto"), "{text}");
    }

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
        assert!(parsed("budget set a/* --policy p").is_ok());
        assert!(parsed("budget set a/* --limit 5 --window 10s --reserve 1").is_ok());
        for flag in [
            "--limit 5 --window 10s",
            "--reserve 1",
            "--slice-factor 2",
            "--failure-mode open",
        ] {
            let refused = parsed(&format!("budget set a/* --policy p {flag}")).unwrap_err();
            assert_eq!(refused, clap::error::ErrorKind::ArgumentConflict, "{flag}");
        }
    }

    #[test]
    fn a_budgets_own_settings_are_shown() {
        let own = json!({"pattern": "a/*", "policy": {
            "kind": "sliding_window", "limit": 5, "window_ms": 10_000, "slice_factor": 1.5,
            "max_wait_ms": 250, "reserve": 7, "failure_mode": "open", "public_name": "default"
        }});
        let named = json!({"pattern": "b/*", "policy": "p"});
        let text = budget_table(&[own, named]);
        assert!(text.contains("open") && text.contains("auto"), "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("b/*") && !last.contains("auto"), "{text}");
    }

    #[test]
    fn a_factor_that_is_no_finite_number_is_refused() {
        assert_eq!(parse_factor("2.5"), Ok(2.5));
        for text in ["nan", "inf", "-inf", "1e999", "much"] {
            assert!(parse_factor(text).is_err(), "{text}");
        }
    }
}
