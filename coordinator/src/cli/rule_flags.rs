//! The flags that say what a rule is, and the JSON that they stand for. Does not know
//! which values are good: the coordinator judges.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::{CliError, text::parse_duration};

#[derive(Debug, Args)]
pub(super) struct RuleFlags {
    /// Units in any interval of --window, or in each --period
    #[arg(long, value_name = "UNITS", conflicts_with_all = ["capacity", "total", "concurrency", "unlimited"])]
    limit: Option<u64>,
    /// Sliding window: its length, as in 60s
    #[arg(long, value_name = "TIME", requires = "limit", conflicts_with = "period", value_parser = parse_duration)]
    window: Option<u64>,
    /// Calendar period: --limit units in each
    #[arg(long, requires = "limit")]
    period: Option<PeriodFlag>,
    /// Calendar period: whose clocks, as in Europe/Berlin [default: UTC]
    #[arg(long, value_name = "IANA-NAME", requires = "period")]
    time_zone: Option<String>,
    /// Calendar period: the day on which a month or a year (1 to 31, at most the month's
    /// last) or a week (1, Monday, to 7) begins [default: 1]
    #[arg(long, value_name = "DAY", requires = "period")]
    anchor: Option<u64>,
    /// Calendar period: the month in which a year begins, 1 (January) to 12 [default: 1]
    #[arg(long, value_name = "MONTH", requires = "period")]
    anchor_month: Option<u64>,
    /// Calendar period: unused units of one that the next has in addition, at most [default: 0]
    #[arg(long, value_name = "UNITS", requires = "period")]
    carry_over: Option<u64>,
    /// Token bucket: units that a full bucket holds
    #[arg(long, value_name = "UNITS", requires_all = ["refill", "every"], conflicts_with_all = ["total", "concurrency", "unlimited"])]
    capacity: Option<u64>,
    /// Token bucket: units that come back --every so often
    #[arg(long, value_name = "UNITS", requires = "capacity")]
    refill: Option<u64>,
    /// Token bucket: the refill period, as in 1s
    #[arg(long, value_name = "TIME", requires = "capacity", value_parser = parse_duration)]
    every: Option<u64>,
    /// Prepaid: units in all, beside what is added by hand
    #[arg(long, value_name = "UNITS", conflicts_with_all = ["concurrency", "unlimited"])]
    total: Option<u64>,
    /// Permits in use at once
    #[arg(long, value_name = "PERMITS", conflicts_with = "unlimited")]
    concurrency: Option<u64>,
    /// Count, and never refuse
    #[arg(long)]
    unlimited: bool,
    /// With --window: about that many, without ever waiting; not exact
    #[arg(long, requires = "window")]
    estimate: bool,
    /// With --capacity: gateways release requests one after the other
    #[arg(long, requires = "capacity")]
    paced: bool,
    /// A lane, NAME[:RESERVE[:MAX-WAIT]] as in payment:20:1s, the highest first; may be
    /// repeated
    #[arg(long = "lane", value_name = "LANE", value_parser = parse_lane)]
    lanes: Vec<Lane>,
    /// How long a key stays refused once it was refused [default: 0ms]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    cooldown: Option<u64>,
    /// Count what would be refused, and refuse nothing
    #[arg(long)]
    shadow: bool,
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
    /// How long a reservation may stay unsettled before it counts as spent [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    hold_max: Option<u64>,
    /// What gateways do while no coordinator answers [default: closed]
    #[arg(long)]
    failure_mode: Option<FailureModeFlag>,
    /// With --failure-mode emergency: units per gateway and window [default: the limit
    /// divided by the number of gateways]
    #[arg(long, value_name = "UNITS", requires = "failure_mode")]
    emergency_units: Option<u64>,
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

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lane {
    name: String,
    reserve: Option<u64>,
    max_wait_ms: Option<u64>,
}

fn parse_lane(text: &str) -> Result<Lane, String> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default().to_owned();
    let reserve = match parts.next() {
        None | Some("") => None,
        Some(units) => Some(units.parse().map_err(|_| {
            format!("{units} must be a whole number of units: write NAME:RESERVE:MAX-WAIT")
        })?),
    };
    let max_wait_ms = parts.next().map(parse_duration).transpose()?;
    if name.is_empty() || parts.next().is_some() {
        return Err(format!(
            "{text} must be NAME, NAME:RESERVE or NAME:RESERVE:MAX-WAIT, as in payment:20:1s"
        ));
    }
    Ok(Lane {
        name,
        reserve,
        max_wait_ms,
    })
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PeriodFlag {
    /// From one full hour to the next
    Hour,
    /// From midnight to midnight
    Day,
    /// Seven days
    Week,
    /// A month
    Month,
    /// A year
    Year,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FailureModeFlag {
    /// Refuse
    Closed,
    /// Allow a small local allowance, marked as degraded
    Emergency,
    /// Allow, marked as degraded
    Open,
}

/// How a flag's value is called, as clap shows it.
fn name_of(value: &impl ValueEnum) -> Value {
    value
        .to_possible_value()
        .map_or(Value::Null, |value| value.get_name().into())
}

impl RuleFlags {
    /// What the rule counts, with the fields of its kind.
    fn kind(&self) -> Option<Value> {
        Some(if self.unlimited {
            json!({"kind": "unlimited"})
        } else if let Some(limit) = self.total {
            json!({"kind": "total", "limit": limit})
        } else if let Some(limit) = self.concurrency {
            json!({"kind": "concurrency", "limit": limit})
        } else if let (Some(capacity), Some(refill), Some(every)) =
            (self.capacity, self.refill, self.every)
        {
            let kind = if self.paced { "paced" } else { "token_bucket" };
            json!({"kind": kind, "capacity": capacity, "refill": refill, "refill_period_ms": every})
        } else if let (Some(limit), Some(window)) = (self.limit, self.window) {
            let kind = if self.estimate {
                "estimate"
            } else {
                "sliding_window"
            };
            json!({"kind": kind, "limit": limit, "window_ms": window})
        } else if let (Some(limit), Some(period)) = (self.limit, &self.period) {
            json!({"kind": "period", "limit": limit, "period": name_of(period)})
        } else {
            return None;
        })
    }

    /// A flag that belongs to another kind. (clap forgives a flag the one that it needs,
    /// if that one cannot be there.)
    fn astray(&self, kind: &str) -> Option<&'static str> {
        let flags = [
            (self.period.is_some(), "period", "--period"),
            (self.time_zone.is_some(), "period", "--time-zone"),
            (self.anchor.is_some(), "period", "--anchor"),
            (self.anchor_month.is_some(), "period", "--anchor-month"),
            (self.carry_over.is_some(), "period", "--carry-over"),
            (self.estimate, "estimate", "--estimate"),
            (self.paced, "paced", "--paced"),
        ];
        let astray = flags
            .into_iter()
            .find(|(is_set, of, _)| *is_set && *of != kind);
        astray.map(|(_, _, flag)| flag)
    }

    /// The rule as JSON; `also` is what else could have been said.
    pub(super) fn body(&self, also: &str) -> Result<Value, CliError> {
        let Some(Value::Object(mut body)) = self.kind() else {
            return Err(CliError::Usage(format!(
                "say what the rule is: {also}--limit 100 --window 60s, --limit 1000 --period day, --capacity 20 --refill \
                 100 --every 60s, --total 500, --concurrency 10 or --unlimited"
            )));
        };
        let kind = body.get("kind").and_then(Value::as_str).unwrap_or_default();
        if let Some(flag) = self.astray(kind) {
            return Err(CliError::Usage(format!(
                "{flag} does not belong to a rule of the kind {kind}"
            )));
        }
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        set("time_zone", self.time_zone.clone().map(Value::from));
        set("anchor", self.anchor.map(Value::from));
        set("anchor_month", self.anchor_month.map(Value::from));
        set("carry_over", self.carry_over.map(Value::from));
        set("slice_factor", self.slice_factor.map(Value::from));
        set("max_wait_ms", self.max_wait.map(Value::from));
        set("reserve", self.reserve.map(Value::from));
        set("demand_horizon_ms", self.demand_horizon.map(Value::from));
        set("failure_mode", self.failure_mode.as_ref().map(name_of));
        set("emergency_units", self.emergency_units.map(Value::from));
        set("public_name", self.public_name.clone().map(Value::from));
        let lanes: Vec<Value> = self.lanes.iter().map(Lane::body).collect();
        set("lanes", (!lanes.is_empty()).then(|| lanes.into()));
        set("cooldown_ms", self.cooldown.map(Value::from));
        set("shadow", self.shadow.then(|| true.into()));
        set("hold_max_ms", self.hold_max.map(Value::from));
        Ok(body.into())
    }
}

impl Lane {
    fn body(&self) -> Value {
        let mut body = Map::new();
        body.insert("name".to_owned(), self.name.clone().into());
        if let Some(reserve) = self.reserve {
            body.insert("reserve".to_owned(), reserve.into());
        }
        if let Some(ms) = self.max_wait_ms {
            body.insert("max_wait_ms".to_owned(), ms.into());
        }
        body.into()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        rule: RuleFlags,
    }

    fn parsed(flags: &str) -> Result<RuleFlags, clap::Error> {
        let words = std::iter::once("set").chain(flags.split(' '));
        <Line as clap::Parser>::try_parse_from(words).map(|line| line.rule)
    }

    fn body(flags: &str) -> Value {
        parsed(flags).unwrap().body("").unwrap()
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
                 --reserve 1 --demand-horizon 250ms --failure-mode emergency --emergency-units 5 \
                 --public-name free --cooldown 5s --shadow --hold-max 2m --lane payment:20:1s \
                 --lane reads:5 --lane bots::10ms --lane rest"
            ),
            json!({
                "kind": "token_bucket", "capacity": 20, "refill": 100,
                "refill_period_ms": 60_000, "slice_factor": 2.0, "max_wait_ms": 10,
                "reserve": 1, "demand_horizon_ms": 250, "failure_mode": "emergency",
                "emergency_units": 5, "public_name": "free", "cooldown_ms": 5_000,
                "shadow": true, "hold_max_ms": 120_000,
                "lanes": [
                    {"name": "payment", "reserve": 20, "max_wait_ms": 1_000},
                    {"name": "reads", "reserve": 5},
                    {"name": "bots", "max_wait_ms": 10},
                    {"name": "rest"}
                ]
            })
        );
    }

    #[test]
    fn every_kind_can_be_said() {
        for (flags, kind) in [
            (
                "--limit 5 --period month --time-zone Europe/Berlin --anchor 15 --carry-over 2",
                json!({"kind": "period", "limit": 5, "period": "month", "time_zone": "Europe/Berlin",
                       "anchor": 15, "carry_over": 2}),
            ),
            (
                "--limit 5 --period year --anchor 6 --anchor-month 4",
                json!({"kind": "period", "limit": 5, "period": "year", "anchor": 6, "anchor_month": 4}),
            ),
            (
                "--limit 5 --period day",
                json!({"kind": "period", "limit": 5, "period": "day"}),
            ),
            ("--total 0", json!({"kind": "total", "limit": 0})),
            (
                "--concurrency 3",
                json!({"kind": "concurrency", "limit": 3}),
            ),
            (
                "--limit 5 --window 1s --estimate",
                json!({"kind": "estimate", "limit": 5, "window_ms": 1_000}),
            ),
            (
                "--capacity 2 --refill 1 --every 1s --paced",
                json!({"kind": "paced", "capacity": 2, "refill": 1, "refill_period_ms": 1_000}),
            ),
            ("--unlimited", json!({"kind": "unlimited"})),
        ] {
            assert_eq!(body(flags), kind, "{flags}");
        }
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused() {
        for flags in [
            "--limit 5 --window 1s --period day",
            "--limit 5 --capacity 2 --refill 1 --every 1s",
            "--total 5 --unlimited",
            "--concurrency 5 --total 1",
            "--window 1s",
            "--capacity 5 --refill 1",
            "--limit 5 --period day --estimate",
            "--limit 5 --window 1s --paced",
            "--limit 5 --window 1s --time-zone UTC",
            "--total 5 --anchor 1",
            "--total 5 --anchor-month 1",
            "--limit 5 --period decade",
            "--unlimited --lane :5",
            "--unlimited --lane a:b",
            "--unlimited --lane a:1:2s:3",
            "--unlimited --period year",
        ] {
            let body = parsed(flags).map(|rule| rule.body(""));
            assert!(
                body.is_err() || body.is_ok_and(|body| body.is_err()),
                "{flags}"
            );
        }
        for flags in ["--limit 5", "--shadow", "--cooldown 1s"] {
            assert!(parsed(flags).unwrap().body("").is_err(), "{flags}");
        }
    }

    #[test]
    fn a_factor_that_is_no_finite_number_is_refused() {
        assert_eq!(parse_factor("2.5"), Ok(2.5));
        for text in ["nan", "inf", "-inf", "1e999", "much"] {
            assert!(parse_factor(text).is_err(), "{text}");
        }
    }
}
