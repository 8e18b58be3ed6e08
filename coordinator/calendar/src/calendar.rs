//! What a period is, and which one an instant is in. Does not know how a zone's clock
//! runs (`zone`), nor how days are numbered (`date`).
//!
//! **Days, weeks, months and years** begin at the first instant at which the local calendar
//! shows their first date or a later one. So a period runs from its beginning to the
//! next one's, and an instant is in the period of the *latest date that the calendar
//! has shown so far*: where clocks are set back over midnight (St. John's at 00:01,
//! until 2011), the old date is shown once more for an hour, and the new period goes on.
//! A date that was never shown (Apia, 2011-12-30) has no period of its own, and a
//! period that should begin with it begins with the next date. A year or a month that should
//! begin on a day that it does not have (29 February) begins on that month's last day.
//!
//! **Hours** begin at every instant at which the local clock shows a full hour. An hour
//! that is repeated is therefore two periods of one hour each, because an hourly limit
//! is about an hour of work, not about a name. A full hour that no clock shows makes its
//! neighbours one period of an hour and a half (Lord Howe, both ways), and a clock that is
//! set forward by half an hour to a full one a period of half an hour (Caracas, 2016).

use std::{fmt, str::FromStr};

use crate::{
    date::Date,
    error::CalendarError,
    zone::{self, Zone},
};

/// The first instant that has a period: 1970-01-01T00:00:00Z.
pub const EARLIEST_UNIX_US: i64 = 0;
/// The last instant that has a period: the last microsecond of 2199, in UTC.
pub const LATEST_UNIX_US: i64 = 7_258_118_399_999_999;

const SECOND_US: i64 = 1_000_000;
const HOUR_S: i64 = 3_600;

/// How long a period is, as people say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// From a full hour of the local clock to the next.
    Hour,
    /// From a local midnight to the next.
    Day,
    /// Seven local dates, the first of them a given weekday.
    Week,
    /// From a given day of one month to the same day of the next.
    Month,
    /// From a given day of a given month to the same day a year later.
    Year,
}

impl Unit {
    /// All of them, shortest first.
    pub const ALL: [Self; 5] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// As people write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.as_str())
    }
}

impl FromStr for Unit {
    type Err = CalendarError;

    fn from_str(text: &str) -> Result<Self, CalendarError> {
        Self::ALL
            .into_iter()
            .find(|unit| unit.as_str() == text)
            .ok_or_else(|| CalendarError::UnknownPeriod {
                found: text.to_owned(),
            })
    }
}

/// Which periods. Made by [`Calendar::parse`], or by hand and then
/// [validated](Calendar::validate).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    /// How long each is.
    pub unit: Unit,
    /// An IANA name.
    pub time_zone: String,
    /// The weekday with which a week begins, 1 = Monday to 7, or the day of the month
    /// with which a month or a year begins, 1 to 31, at most its month's last day. 0 stands
    /// for 1, and is the only value for hours and days.
    pub anchor: u8,
    /// The month with which a year begins, 1 = January to 12. 0 stands for 1, and is the
    /// only value for others than years.
    pub anchor_month: u8,
}

/// One period, as instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bounds {
    /// Its first instant, in microseconds since 1970.
    pub start_unix_us: i64,
    /// The first instant after it, which is the next one's first.
    pub end_unix_us: i64,
}

impl Calendar {
    /// A calendar from what people write. The zone's name gets the case that the database
    /// has, and an anchor that was left out (0) of a week, a month or a year becomes 1, so
    /// that calendars which mean the same are equal. A year begins in January, unless
    /// [`Calendar::beginning_in`] says otherwise.
    ///
    /// # Errors
    /// See [`Calendar::validate`], and [`CalendarError::UnknownPeriod`].
    pub fn parse(period: &str, time_zone: &str, anchor: u8) -> Result<Self, CalendarError> {
        let unit = period.parse()?;
        let calendar = Self {
            unit,
            time_zone: zone::find(time_zone)?.name().to_owned(),
            anchor: match (unit, anchor) {
                (Unit::Week | Unit::Month | Unit::Year, 0) => 1,
                (_, anchor) => anchor,
            },
            anchor_month: u8::from(unit == Unit::Year),
        };
        calendar.check_anchor()?;
        Ok(calendar)
    }

    /// The same with years that begin in a given month, 1 = January to 12; 0, the only
    /// value for others than years, leaves it as it is.
    ///
    /// # Errors
    /// A month that there is not, or that the unit does not have.
    pub fn beginning_in(mut self, month: u8) -> Result<Self, CalendarError> {
        if month != 0 {
            self.anchor_month = month;
        }
        self.check_anchor()?;
        Ok(self)
    }

    /// Whether there are such periods.
    ///
    /// # Errors
    /// A zone that the database does not have, or an anchor that the unit does not have.
    pub fn validate(&self) -> Result<(), CalendarError> {
        zone::find(&self.time_zone)?;
        self.check_anchor()
    }

    fn check_anchor(&self) -> Result<(), CalendarError> {
        let unit = self.unit;
        let found = self.anchor;
        match unit {
            Unit::Hour | Unit::Day if found != 0 => {
                Err(CalendarError::AnchorOfNone { unit, found })
            }
            Unit::Week if found > 7 => Err(CalendarError::AnchorOutOfRange { unit, found }),
            Unit::Month | Unit::Year if found > 31 => {
                Err(CalendarError::AnchorOutOfRange { unit, found })
            }
            _ => Ok(()),
        }?;
        match (unit, self.anchor_month) {
            (Unit::Year, 0..=12) | (_, 0) => Ok(()),
            (Unit::Year, found) => Err(CalendarError::AnchorMonthOutOfRange { found }),
            (_, found) => Err(CalendarError::AnchorMonthOfNone { unit, found }),
        }
    }

    /// The period that contains an instant. Periods are never empty and never overlap,
    /// and each begins where the one before it ends.
    ///
    /// # Errors
    /// An instant outside [`EARLIEST_UNIX_US`] to [`LATEST_UNIX_US`], or a calendar that
    /// is not [valid](Calendar::validate).
    pub fn period_at(&self, unix_us: i64) -> Result<Bounds, CalendarError> {
        self.check_anchor()?;
        let zone = zone::find(&self.time_zone)?;
        if !(EARLIEST_UNIX_US..=LATEST_UNIX_US).contains(&unix_us) {
            return Err(CalendarError::InstantOutOfRange { unix_us });
        }
        // Clocks are set in whole seconds, so no period begins within one.
        let at = unix_us.div_euclid(SECOND_US);
        let found = match self.unit {
            Unit::Hour => hour_at(&zone, at),
            _ => self.dates_at(&zone, at),
        };
        let (start, end) = found.ok_or_else(|| CalendarError::BrokenZone {
            time_zone: self.time_zone.clone(),
            unit: self.unit,
            unix_us,
        })?;
        Ok(Bounds {
            start_unix_us: start.saturating_mul(SECOND_US),
            end_unix_us: end.saturating_mul(SECOND_US),
        })
    }

    /// The period of days, weeks, months or years that contains an instant, in seconds.
    fn dates_at(&self, zone: &Zone, at: i64) -> Option<(i64, i64)> {
        let begins = |first: Date| zone.first_at_or_after(first.midnight());
        let shown = Date::of(zone.local(at)?)?;
        let mut first = self.first_date(shown)?;
        let mut start = begins(first)?;
        // A later one may have begun before the clock was set back to this date.
        loop {
            let next = self.next_date(first)?;
            let end = begins(next)?;
            if end > at {
                return (start <= at).then_some((start, end));
            }
            (first, start) = (next, end);
        }
    }

    /// The first date of the period of a date.
    fn first_date(&self, date: Date) -> Option<Date> {
        match self.unit {
            Unit::Hour | Unit::Day => Some(date),
            Unit::Week => date.back_to_weekday(self.anchor.max(1)),
            Unit::Month => {
                let this = date.with_day_at_most(self.anchor.max(1))?;
                if this <= date {
                    return Some(this);
                }
                date.previous_month()?.with_day_at_most(self.anchor.max(1))
            }
            Unit::Year => {
                let this = self.beginning_of_year(date)?;
                if this <= date {
                    return Some(this);
                }
                self.beginning_of_year(date.previous_year()?)
            }
        }
    }

    /// The first date of the period after one that begins with a date.
    fn next_date(&self, first: Date) -> Option<Date> {
        match self.unit {
            Unit::Hour | Unit::Day => first.plus_days(1),
            Unit::Week => first.plus_days(7),
            Unit::Month => first.next_month()?.with_day_at_most(self.anchor.max(1)),
            Unit::Year => self.beginning_of_year(first.next_year()?),
        }
    }

    /// The date in the year of a date with which a period of a year begins.
    fn beginning_of_year(&self, date: Date) -> Option<Date> {
        date.in_month(self.anchor_month.max(1))?
            .with_day_at_most(self.anchor.max(1))
    }
}

/// From the last instant up to `at` whose local time is a full hour to the first one
/// after it.
fn hour_at(zone: &Zone, at: i64) -> Option<(i64, i64)> {
    let mut start = None;
    for stretch in zone.around(at) {
        // The full hours of a stretch are an hour apart.
        let after_full_hour = |at: i64| at.saturating_add(stretch.offset).rem_euclid(HOUR_S);
        let until_full_hour = |at: i64| {
            at.saturating_add(stretch.offset)
                .saturating_neg()
                .rem_euclid(HOUR_S)
        };
        let last = at.min(stretch.end.saturating_sub(1));
        let full = last.saturating_sub(after_full_hour(last));
        if full >= stretch.start && last >= stretch.start {
            start = Some(full);
        }
        let next = at.saturating_add(1).max(stretch.start);
        let full = next.saturating_add(until_full_hour(next));
        if full < stretch.end {
            return start.map(|start| (start, full));
        }
    }
    None
}
