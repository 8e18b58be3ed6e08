//! Why there is no such calendar, or no answer.

use thiserror::Error;

use crate::calendar::Unit;

/// Why there is no such calendar, or no answer from it. Nothing has a state here.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CalendarError {
    /// No such unit.
    #[error("period ({found}) must be hour, day, week, month or year")]
    UnknownPeriod {
        /// What was said.
        found: String,
    },
    /// No such zone in the database.
    #[error(
        "time_zone ({found}) is no IANA time zone: names look like Europe/Berlin, America/New_York or UTC{}",
        meant.as_ref().map(|name| format!("; did you mean {name}?")).unwrap_or_default()
    )]
    UnknownTimeZone {
        /// What was said.
        found: String,
        /// A zone with a name like it.
        meant: Option<String>,
    },
    /// No week, month or year begins on such a day.
    #[error("anchor ({found}) of a {unit} must be {}", range_of(*unit))]
    AnchorOutOfRange {
        /// Whose.
        unit: Unit,
        /// What was said.
        found: u8,
    },
    /// An hour or a day begins where it begins.
    #[error(
        "anchor ({found}) goes with week (1 = Monday to 7 = Sunday), month and year (1 to 31): leave it out for {unit}"
    )]
    AnchorOfNone {
        /// Whose.
        unit: Unit,
        /// What was said.
        found: u8,
    },
    /// No year begins in such a month.
    #[error("anchor_month ({found}) of a year must be 1 (January) to 12 (December)")]
    AnchorMonthOutOfRange {
        /// What was said.
        found: u8,
    },
    /// Only a year has a first month.
    #[error("anchor_month ({found}) goes with year: leave it out for {unit}")]
    AnchorMonthOfNone {
        /// Whose.
        unit: Unit,
        /// What was said.
        found: u8,
    },
    /// Nobody asks about such an instant.
    #[error("the instant {unix_us} (microseconds since 1970) is not in the years 1970 to 2199")]
    InstantOutOfRange {
        /// Which.
        unix_us: i64,
    },
    /// The time zone database says something that cannot be.
    #[error(
        "time_zone ({time_zone}) has no period of one {unit} at {unix_us} microseconds since 1970: its rules are broken"
    )]
    BrokenZone {
        /// Which.
        time_zone: String,
        /// Of what length.
        unit: Unit,
        /// When.
        unix_us: i64,
    },
}

impl CalendarError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownPeriod { .. } => "unknown_period",
            Self::UnknownTimeZone { .. } => "unknown_time_zone",
            Self::AnchorOutOfRange { .. } | Self::AnchorOfNone { .. } => "invalid_anchor",
            Self::AnchorMonthOutOfRange { .. } | Self::AnchorMonthOfNone { .. } => {
                "invalid_anchor_month"
            }
            Self::InstantOutOfRange { .. } => "instant_out_of_range",
            Self::BrokenZone { .. } => "broken_time_zone",
        }
    }
}

const fn range_of(unit: Unit) -> &'static str {
    match unit {
        Unit::Week => "1 (Monday) to 7 (Sunday)",
        _ => "1 to 31, the day of the month (31: its last day)",
    }
}
