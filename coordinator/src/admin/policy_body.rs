//! The JSON form of a policy: what users write and read, in milliseconds and names.
//! Does not know where a policy is kept.

use leasehold_ledger::policy::{
    Calendar, FailureMode, HOLD_MAX_US_DEFAULT, Kind as PolicyKind, Lane, PeriodUnit, Policy,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    json::{Milli, Whole, micros, millis_up},
    problem::Problem,
};
use crate::sequencer::computed;

/// A rule. Which of `limit`, `window_ms`, `capacity`, `refill`, `refill_period_ms`,
/// `period`, `time_zone`, `anchor`, `anchor_month` and `carry_over` it has depends on its
/// `kind`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"kind": "sliding_window", "limit": 100, "window_ms": 60000}))]
pub(super) struct PolicyBody {
    kind: KindName,
    /// Units in any interval of `window_ms`, per period, in all, or in use at once; 0
    /// refuses everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<Whole>,
    /// 100 ms to 31 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window_ms: Option<Whole>,
    /// Units that a full bucket holds; 0 refuses everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<Whole>,
    /// Units that come back in one `refill_period_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refill: Option<Whole>,
    /// 100 ms to 31 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refill_period_ms: Option<Whole>,
    /// How long a period is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    period: Option<PeriodName>,
    /// An IANA name, as in `Europe/Berlin`; `UTC` unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    /// The day of the month, 1 to 31 and at most its last, or of the week, 1 (Monday)
    /// to 7, on which a period begins; 1 unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anchor: Option<Whole>,
    /// The month in which a `year` begins, 1 (January) to 12; 1 unless said otherwise. With
    /// `anchor` 6 and `anchor_month` 4 each year begins on 6 April.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anchor_month: Option<Whole>,
    /// Unused units of one period that the next has in addition, at most; 0 unless
    /// said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    carry_over: Option<Whole>,
    /// A lease holds so many times the recent demand of its gateway; 1.5 unless
    /// said otherwise. More: fewer messages, and more units that lie idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slice_factor: Option<Milli>,
    /// How long `spend` waits for units; 250 unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_wait_ms: Option<Whole>,
    /// Free units kept back for requests that wait, rather than given to gateways
    /// that ask ahead of need; less than the limit or capacity, 0 unless said
    /// otherwise. A reserve of 1 costs some points of waiting at 32 gateways and
    /// saves messages and mean latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reserve: Option<Whole>,
    /// The time over which a gateway measures its demand, 10 to 10,000; unless said
    /// otherwise a sixth of the window or of the time in which an empty bucket
    /// fills, 10 seconds at most. All times of the lease policy follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    demand_horizon_ms: Option<Whole>,
    /// What gateways do while no coordinator answers; `closed` unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure_mode: Option<FailureModeName>,
    /// With `failure_mode` `emergency`: units that one gateway lets through per window;
    /// unless said otherwise the limit divided by the number of gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    emergency_units: Option<Whole>,
    /// The name that end users see in `RateLimit`; `default` unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    public_name: Option<String>,
    /// Requests by importance, the highest first; what names none is in the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lanes: Vec<LaneBody>,
    /// How long a key stays refused once it was refused, up to 24 hours; 0 unless said
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cooldown_ms: Option<Whole>,
    /// Count what would be refused, and refuse nothing; `false` unless said otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
    /// How long a reservation may stay unsettled before it counts as spent, 1 s to 24
    /// hours; 60,000 unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold_max_ms: Option<Whole>,
}

/// Requests of one importance.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "payment", "reserve": 20, "max_wait_ms": 1000}))]
struct LaneBody {
    /// 1 to 64 of `a-z A-Z 0-9 . _ -`.
    name: String,
    /// Units kept back from the lanes below; 0 unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reserve: Option<Whole>,
    /// How long requests of this lane wait; the policy's `max_wait_ms` unless said
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_wait_ms: Option<Whole>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum KindName {
    /// At most `limit` units in any interval of `window_ms`.
    SlidingWindow,
    /// A bucket of `capacity` units that refills.
    TokenBucket,
    /// A bucket whose units gateways release one after the other.
    Paced,
    /// `limit` units per calendar period.
    Period,
    /// `limit` units, and what is added by hand, ever.
    Total,
    /// `limit` permits in use at once.
    Concurrency,
    /// About `limit` units per window, without ever waiting. Not exact.
    Estimate,
    /// Counts and never refuses.
    Unlimited,
}

impl KindName {
    const fn as_str(self) -> &'static str {
        match self {
            Self::SlidingWindow => "sliding_window",
            Self::TokenBucket => "token_bucket",
            Self::Paced => "paced",
            Self::Period => "period",
            Self::Total => "total",
            Self::Concurrency => "concurrency",
            Self::Estimate => "estimate",
            Self::Unlimited => "unlimited",
        }
    }

    fn with_article(self) -> String {
        let article = match self {
            Self::Estimate | Self::Unlimited => "an",
            _ => "a",
        };
        format!("{article} {}", self.as_str())
    }

    /// The fields that it needs, and those that it may have.
    const fn fields(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::SlidingWindow | Self::Estimate => (&["limit", "window_ms"], &[]),
            Self::TokenBucket | Self::Paced => (&["capacity", "refill", "refill_period_ms"], &[]),
            Self::Period => (
                &["limit", "period"],
                &["time_zone", "anchor", "anchor_month", "carry_over"],
            ),
            Self::Total | Self::Concurrency => (&["limit"], &[]),
            Self::Unlimited => (&[], &[]),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum PeriodName {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl From<PeriodName> for PeriodUnit {
    fn from(name: PeriodName) -> Self {
        match name {
            PeriodName::Hour => Self::Hour,
            PeriodName::Day => Self::Day,
            PeriodName::Week => Self::Week,
            PeriodName::Month => Self::Month,
            PeriodName::Year => Self::Year,
        }
    }
}

impl From<PeriodUnit> for PeriodName {
    fn from(unit: PeriodUnit) -> Self {
        match unit {
            PeriodUnit::Hour => Self::Hour,
            PeriodUnit::Day => Self::Day,
            PeriodUnit::Week => Self::Week,
            PeriodUnit::Month => Self::Month,
            PeriodUnit::Year => Self::Year,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum FailureModeName {
    /// Refuse.
    Closed,
    /// Allow a small local allowance, marked as degraded.
    Emergency,
    /// Allow, marked as degraded.
    Open,
}

impl From<&Policy> for PolicyBody {
    fn from(policy: &Policy) -> Self {
        let mut body = Self {
            kind: KindName::SlidingWindow,
            limit: None,
            window_ms: None,
            capacity: None,
            refill: None,
            refill_period_ms: None,
            period: None,
            time_zone: None,
            anchor: None,
            anchor_month: None,
            carry_over: None,
            slice_factor: Some(Milli(policy.slice_factor_milli)),
            max_wait_ms: Some(Whole(millis_up(policy.max_wait_us))),
            reserve: Some(Whole(policy.reserve)),
            demand_horizon_ms: policy.horizon_us.map(millis_up).map(Whole),
            failure_mode: Some(match policy.failure_mode {
                FailureMode::Closed => FailureModeName::Closed,
                FailureMode::Open => FailureModeName::Open,
                FailureMode::Emergency { .. } => FailureModeName::Emergency,
            }),
            emergency_units: match policy.failure_mode {
                FailureMode::Emergency { units } => units.map(Whole),
                FailureMode::Closed | FailureMode::Open => None,
            },
            public_name: Some(policy.public_name.clone()),
            lanes: policy.lanes.iter().map(LaneBody::from).collect(),
            cooldown_ms: (policy.cooldown_us > 0).then(|| Whole(millis_up(policy.cooldown_us))),
            shadow: policy.shadow,
            hold_max_ms: (policy.hold_max_us != HOLD_MAX_US_DEFAULT)
                .then(|| Whole(millis_up(policy.hold_max_us))),
        };
        body.show(&policy.kind);
        body
    }
}

impl From<&Lane> for LaneBody {
    fn from(lane: &Lane) -> Self {
        Self {
            name: lane.name.clone(),
            reserve: (lane.reserve > 0).then_some(Whole(lane.reserve)),
            max_wait_ms: lane.max_wait_us.map(millis_up).map(Whole),
        }
    }
}

impl TryFrom<PolicyBody> for Policy {
    type Error = Problem;

    fn try_from(body: PolicyBody) -> Result<Self, Problem> {
        let mut policy = Self::new(body.kind()?);
        if let Some(Milli(factor)) = body.slice_factor {
            policy.slice_factor_milli = factor;
        }
        if let Some(max_wait) = body.max_wait_ms {
            policy.max_wait_us = micros("max_wait_ms", max_wait)?;
        }
        if let Some(Whole(reserve)) = body.reserve {
            policy.reserve = reserve;
        }
        if let Some(horizon) = body.demand_horizon_ms {
            policy.horizon_us = Some(micros("demand_horizon_ms", horizon)?);
        }
        policy.failure_mode = match body.failure_mode {
            Some(FailureModeName::Emergency) => FailureMode::Emergency {
                units: body.emergency_units.map(|Whole(units)| units),
            },
            _ if body.emergency_units.is_some() => {
                return Err(Problem::field(
                    "emergency_units",
                    "emergency_units belongs to failure_mode emergency",
                ));
            }
            Some(FailureModeName::Open) => FailureMode::Open,
            Some(FailureModeName::Closed) | None => FailureMode::Closed,
        };
        if let Some(name) = body.public_name {
            policy.public_name = name;
        }
        for lane in body.lanes {
            policy.lanes.push(Lane {
                name: lane.name,
                reserve: lane.reserve.map_or(0, |Whole(reserve)| reserve),
                max_wait_us: lane
                    .max_wait_ms
                    .map(|wait| micros("max_wait_ms", wait))
                    .transpose()?,
            });
        }
        if let Some(cooldown) = body.cooldown_ms {
            policy.cooldown_us = micros("cooldown_ms", cooldown)?;
        }
        policy.shadow = body.shadow;
        if let Some(hold_max) = body.hold_max_ms {
            policy.hold_max_us = micros("hold_max_ms", hold_max)?;
        }
        policy.validate().map_err(Problem::from_validation)?;
        if let PolicyKind::Period { calendar, .. } = &mut policy.kind {
            name_zone(calendar)?;
            begins_some_day(calendar)?;
        }
        Ok(policy)
    }
}

/// Spells a calendar's time zone as the database does. One that this node does not know
/// would never begin a period.
pub(super) fn name_zone(calendar: &mut Calendar) -> Result<(), Problem> {
    let known = computed(calendar).map_err(|error| Problem::from_validation(error.to_string()))?;
    calendar.time_zone = known.time_zone;
    Ok(())
}

/// Refuses a year that begins on a day that its month never has. A calendar takes such a
/// day for the month's last, which people mean of months, of which some are longer, and
/// surely not of the one month that they name.
fn begins_some_day(calendar: &Calendar) -> Result<(), Problem> {
    let longest = match calendar.anchor_month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if calendar.unit != PeriodUnit::Year || calendar.anchor <= longest {
        return Ok(());
    }
    Err(Problem::field(
        "anchor",
        format!(
            "anchor ({}) is a day that anchor_month ({}) never has: it has {longest} at most",
            calendar.anchor, calendar.anchor_month
        ),
    ))
}

impl PolicyBody {
    /// Shows what belongs to a kind.
    fn show(&mut self, kind: &PolicyKind) {
        match kind {
            PolicyKind::SlidingWindow { limit, window_us } => {
                self.kind = KindName::SlidingWindow;
                self.show_window(*limit, *window_us);
            }
            PolicyKind::Estimate { limit, window_us } => {
                self.kind = KindName::Estimate;
                self.show_window(*limit, *window_us);
            }
            PolicyKind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            } => {
                self.kind = KindName::TokenBucket;
                self.show_bucket(*capacity, *refill, *refill_period_us);
            }
            PolicyKind::Paced {
                capacity,
                refill,
                refill_period_us,
            } => {
                self.kind = KindName::Paced;
                self.show_bucket(*capacity, *refill, *refill_period_us);
            }
            PolicyKind::Period {
                limit,
                calendar,
                carry_over,
            } => {
                self.kind = KindName::Period;
                self.limit = Some(Whole(*limit));
                self.period = Some(calendar.unit.into());
                self.time_zone = Some(calendar.time_zone.clone());
                self.anchor = (calendar.anchor > 0).then_some(Whole(calendar.anchor.into()));
                self.anchor_month =
                    (calendar.anchor_month > 0).then_some(Whole(calendar.anchor_month.into()));
                self.carry_over = (*carry_over > 0).then_some(Whole(*carry_over));
            }
            PolicyKind::Total { limit } => {
                self.kind = KindName::Total;
                self.limit = Some(Whole(*limit));
            }
            PolicyKind::Concurrency { limit } => {
                self.kind = KindName::Concurrency;
                self.limit = Some(Whole(*limit));
            }
            PolicyKind::Unlimited => self.kind = KindName::Unlimited,
        }
    }

    const fn show_window(&mut self, limit: u64, window_us: u64) {
        self.limit = Some(Whole(limit));
        self.window_ms = Some(Whole(millis_up(window_us)));
    }

    const fn show_bucket(&mut self, capacity: u64, refill: u64, refill_period_us: u64) {
        self.capacity = Some(Whole(capacity));
        self.refill = Some(Whole(refill));
        self.refill_period_ms = Some(Whole(millis_up(refill_period_us)));
    }

    /// The fields that belong to some kind, and whether they are set.
    const fn own_fields(&self) -> [(&'static str, bool); 10] {
        [
            ("limit", self.limit.is_some()),
            ("window_ms", self.window_ms.is_some()),
            ("capacity", self.capacity.is_some()),
            ("refill", self.refill.is_some()),
            ("refill_period_ms", self.refill_period_ms.is_some()),
            ("period", self.period.is_some()),
            ("time_zone", self.time_zone.is_some()),
            ("anchor", self.anchor.is_some()),
            ("anchor_month", self.anchor_month.is_some()),
            ("carry_over", self.carry_over.is_some()),
        ]
    }

    fn kind(&self) -> Result<PolicyKind, Problem> {
        let name = self.kind.with_article();
        let (needed, allowed) = self.kind.fields();
        for (field, is_set) in self.own_fields() {
            if is_set && !needed.contains(&field) && !allowed.contains(&field) {
                let names: Vec<&str> = needed.iter().chain(allowed).copied().collect();
                let has = if names.is_empty() {
                    "nothing of its own".to_owned()
                } else {
                    names.join(", ")
                };
                return Err(Problem::field(
                    field,
                    format!("{field} does not belong to {name}, which has {has}"),
                ));
            }
            if !is_set && needed.contains(&field) {
                return Err(Problem::field(
                    field,
                    format!("missing field `{field}`: {name} needs it"),
                ));
            }
        }
        // Those that are needed are there.
        let units = |value: Option<Whole>| value.map_or(0, |Whole(units)| units);
        let time = |field, value: Option<Whole>| micros(field, value.unwrap_or(Whole(0)));
        Ok(match self.kind {
            KindName::SlidingWindow => PolicyKind::SlidingWindow {
                limit: units(self.limit),
                window_us: time("window_ms", self.window_ms)?,
            },
            KindName::Estimate => PolicyKind::Estimate {
                limit: units(self.limit),
                window_us: time("window_ms", self.window_ms)?,
            },
            KindName::TokenBucket => PolicyKind::TokenBucket {
                capacity: units(self.capacity),
                refill: units(self.refill),
                refill_period_us: time("refill_period_ms", self.refill_period_ms)?,
            },
            KindName::Paced => PolicyKind::Paced {
                capacity: units(self.capacity),
                refill: units(self.refill),
                refill_period_us: time("refill_period_ms", self.refill_period_ms)?,
            },
            KindName::Period => PolicyKind::Period {
                limit: units(self.limit),
                calendar: calendar(
                    self.period.map_or(PeriodUnit::Month, PeriodUnit::from),
                    self.time_zone.clone(),
                    self.anchor,
                    self.anchor_month,
                )?,
                carry_over: units(self.carry_over),
            },
            KindName::Total => PolicyKind::Total {
                limit: units(self.limit),
            },
            KindName::Concurrency => PolicyKind::Concurrency {
                limit: units(self.limit),
            },
            KindName::Unlimited => PolicyKind::Unlimited,
        })
    }
}

/// A calendar from what users say of it.
pub(super) fn calendar(
    unit: PeriodUnit,
    time_zone: Option<String>,
    anchor: Option<Whole>,
    anchor_month: Option<Whole>,
) -> Result<Calendar, Problem> {
    let anchor = match (unit, anchor) {
        (_, Some(Whole(anchor))) => u8::try_from(anchor)
            .map_err(|_| Problem::field("anchor", format!("anchor ({anchor}) must be 1 to 31")))?,
        (PeriodUnit::Week | PeriodUnit::Month | PeriodUnit::Year, None) => 1,
        (PeriodUnit::Hour | PeriodUnit::Day, None) => 0,
    };
    let anchor_month = match anchor_month {
        Some(Whole(month)) => u8::try_from(month).map_err(|_| {
            Problem::field(
                "anchor_month",
                format!("anchor_month ({month}) must be 1 (January) to 12"),
            )
        })?,
        None => u8::from(unit == PeriodUnit::Year),
    };
    Ok(Calendar {
        unit,
        time_zone: time_zone.unwrap_or_else(|| "UTC".to_owned()),
        anchor,
        anchor_month,
    })
}
