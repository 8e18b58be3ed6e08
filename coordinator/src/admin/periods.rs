//! `/v1/periods`: which period it is, by each calendar that budgets count by, and the way
//! back when wrong clocks began one.

use axum::{
    Json,
    extract::{OriginalUri, State},
};
use leasehold_ledger::{Period, entry::Command, outcome::CommandOutcome, policy::Calendar};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Admin,
    json::{self, Body, Whole},
    path,
    policy_body::{PeriodName, calendar, name_zone},
    problem::{Kind, Problem},
};
use crate::sequencer::roll;

/// Which periods there are.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"period": "month", "time_zone": "Europe/Berlin", "anchor": 1}))]
pub(super) struct CalendarBody {
    period: PeriodName,
    /// An IANA name; `UTC` unless said otherwise.
    #[serde(default)]
    time_zone: Option<String>,
    /// As in the policy; 1 unless said otherwise.
    #[serde(default)]
    anchor: Option<Whole>,
    /// As in the policy; 1 unless said otherwise.
    #[serde(default)]
    anchor_month: Option<Whole>,
}

/// A calendar and its present period.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CalendarPeriod {
    period: PeriodName,
    time_zone: String,
    /// Absent for hours and days.
    #[serde(skip_serializing_if = "Option::is_none")]
    anchor: Option<u8>,
    /// Only of years.
    #[serde(skip_serializing_if = "Option::is_none")]
    anchor_month: Option<u8>,
    /// Grows by one with each period; absent: none has begun yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    /// When it began by the clocks, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    start_unix_ms: Option<i64>,
    /// When the next one begins, as soon as a majority of the members' clocks says so, in
    /// milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    end_unix_ms: Option<i64>,
}

/// A calendar after a correction.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CorrectedPeriod {
    #[serde(flatten)]
    calendar: CalendarPeriod,
    /// Its present period begins or ends otherwise than before.
    changed: bool,
}

/// All calendars that policies and budgets count by.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Periods {
    /// The time that a majority of the members' wall clocks agrees to have come, in
    /// milliseconds since 1970; null: no majority was heard lately.
    majority_unix_ms: Option<u64>,
    calendars: Vec<CalendarPeriod>,
}

impl CalendarPeriod {
    fn new(calendar: &Calendar, period: Option<&Period>) -> Self {
        Self {
            period: calendar.unit.into(),
            time_zone: calendar.time_zone.clone(),
            anchor: (calendar.anchor > 0).then_some(calendar.anchor),
            anchor_month: (calendar.anchor_month > 0).then_some(calendar.anchor_month),
            number: period.map(|period| period.number),
            start_unix_ms: period.map(|period| period.start_unix_us.div_euclid(1_000)),
            end_unix_ms: period.map(|period| period.end_unix_us.div_euclid(1_000)),
        }
    }
}

/// Reads a body as far as nobody has to be asked.
pub(super) fn reads(bytes: &[u8]) -> bool {
    json::parse::<CalendarBody>(bytes).is_ok_and(|body| body.read().is_ok())
}

impl CalendarBody {
    fn read(self) -> Result<Calendar, Problem> {
        let mut calendar = calendar(
            self.period.into(),
            self.time_zone,
            self.anchor,
            self.anchor_month,
        )?;
        name_zone(&mut calendar)?;
        calendar.validate().map_err(Problem::from_validation)?;
        Ok(calendar)
    }
}

/// The present period of every calendar that policies and budgets count by.
#[utoipa::path(get, path = "/v1/periods", tag = "periods", operation_id = "list_periods",
    responses((status = 200, description = "All calendars in use", body = Periods)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Periods>, Problem> {
    path::no_query(&uri)?;
    let calendars = admin.node.read(|ledger, _| ledger.calendars()).await?;
    Ok(Json(Periods {
        majority_unix_ms: majority_unix_us(&admin).map(|us| us / 1_000),
        calendars: calendars
            .iter()
            .map(|(calendar, period)| CalendarPeriod::new(calendar, period.as_ref()))
            .collect(),
    }))
}

/// Computes the bounds of a calendar's present period anew, by what a majority of the
/// members' clocks says now: for when wrong clocks began it. Set the clocks right first.
/// Nothing that was charged changes; see `/v1/accounts/{key}/reset` for that.
#[utoipa::path(post, path = "/v1/periods/correct", tag = "periods", operation_id = "correct_period",
    request_body = CalendarBody,
    responses((status = 200, description = "The calendar as it is now", body = CorrectedPeriod)))]
pub(super) async fn correct(
    State(admin): State<Admin>,
    Body(body): Body<CalendarBody>,
) -> Result<Json<CorrectedPeriod>, Problem> {
    let calendar = body.read()?;
    let Some(wall_unix_us) = majority_unix_us(&admin) else {
        return Err(Problem::new(
            Kind::NoLeader,
            "no majority of the members has said what its clock says; nothing was changed",
        ));
    };
    let bounds = roll(&calendar, None, wall_unix_us)
        .map_err(|error| Problem::field("time_zone", error.to_string()))?;
    let submitted = admin.submit(Command::CorrectPeriod(bounds)).await;
    // No period of this calendar has begun: the body names another than was meant.
    let outcome = submitted.map_err(|problem| problem.at_if(Kind::InvalidField, "period"))?;
    let changed = match outcome {
        CommandOutcome::Done { changed } => changed,
        other => {
            return Err(Problem::new(
                Kind::Internal,
                format!("unexpected outcome of a correction: {other:?}"),
            ));
        }
    };
    let periods = admin.node.read(|ledger, _| ledger.calendars()).await?;
    let found = periods.iter().find(|(known, _)| *known == calendar);
    let period = found.and_then(|(_, period)| period.as_ref());
    Ok(Json(CorrectedPeriod {
        calendar: CalendarPeriod::new(&calendar, period),
        changed,
    }))
}

fn majority_unix_us(admin: &Admin) -> Option<u64> {
    admin.node.replica().majority_wall_unix_us()
}
