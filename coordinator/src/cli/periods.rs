//! `leasehold period`.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Answer, CliError, Remote,
    http::{get, post},
    table::table,
    text::{field, items, moment_field, month},
};

#[derive(Debug, Subcommand)]
pub(super) enum PeriodCommand {
    /// The present period of every calendar that budgets count by
    List,
    /// Compute a present period's bounds anew by the clocks of a majority, after wrong ones began it
    Correct {
        /// hour, day, week, month or year
        period: String,
        /// An IANA name
        #[arg(long, default_value = "UTC")]
        time_zone: String,
        /// The day of the month, or of the week (1 is Monday), on which it begins
        #[arg(long)]
        anchor: Option<u8>,
        /// The month (1 is January) in which a year begins
        #[arg(long)]
        anchor_month: Option<u8>,
    },
}

impl PeriodCommand {
    pub(super) async fn run(self, remote: &Remote) -> Result<Answer, CliError> {
        match self {
            Self::List => {
                let value = get(remote, "/v1/periods").await?;
                let text = period_table(items(&value, "calendars"));
                Ok(Answer { text, value })
            }
            Self::Correct {
                period,
                time_zone,
                anchor,
                anchor_month,
            } => {
                let mut body = json!({ "period": period, "time_zone": time_zone });
                if let Some(anchor) = anchor {
                    body["anchor"] = anchor.into();
                }
                if let Some(month) = anchor_month {
                    body["anchor_month"] = month.into();
                }
                let value = post(remote, "/v1/periods/correct", &body).await?.body;
                let what = match value.get("changed").and_then(Value::as_bool) {
                    Some(false) => "it was right already: nothing was changed",
                    _ => "corrected",
                };
                let table = period_table(std::slice::from_ref(&value));
                let text = format!("{what}\n\n{table}");
                Ok(Answer { text, value })
            }
        }
    }
}

/// When its periods begin: `15`, or `6 Apr` of a year.
fn anchor(calendar: &Value) -> String {
    match calendar.get("anchor_month").and_then(Value::as_u64) {
        Some(number) => format!("{} {}", field(calendar, "anchor"), month(number)),
        None => field(calendar, "anchor"),
    }
}

fn period_table(calendars: &[Value]) -> String {
    let rows: Vec<Vec<String>> = calendars
        .iter()
        .map(|calendar| {
            vec![
                field(calendar, "period"),
                field(calendar, "time_zone"),
                anchor(calendar),
                field(calendar, "number"),
                moment_field(calendar, "start_unix_ms"),
                moment_field(calendar, "end_unix_ms"),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no periods: no policy counts by a calendar".to_owned();
    }
    table(
        &["PERIOD", "TIME ZONE", "ANCHOR", "NUMBER", "BEGAN", "ENDS"],
        &rows,
    )
}
