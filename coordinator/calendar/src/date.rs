//! Dates of the calendar that everybody uses. Knows no time zones.

use jiff::{civil, tz::Offset};

const DAY_S: i64 = 86_400;

/// One date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Date(civil::Date);

impl Date {
    /// The date of a local time, given as seconds from 1970-01-01T00:00 on the same clock.
    pub(crate) fn of(local_s: i64) -> Option<Self> {
        let at = jiff::Timestamp::from_second(local_s).ok()?;
        Some(Self(Offset::UTC.to_datetime(at).date()))
    }

    /// Its first moment on the local clock, in seconds from 1970-01-01T00:00 on the same
    /// clock.
    pub(crate) fn midnight(self) -> i64 {
        let since_1970 = self.0.duration_since(civil::date(1970, 1, 1));
        since_1970.as_secs()
    }

    pub(crate) fn plus_days(self, days: i64) -> Option<Self> {
        Self::of(self.midnight().saturating_add(days.saturating_mul(DAY_S)))
    }

    /// The last date up to this one that is the given weekday, 1 = Monday.
    pub(crate) fn back_to_weekday(self, weekday: u8) -> Option<Self> {
        let this = i64::from(self.0.weekday().to_monday_one_offset());
        let past = this.saturating_sub(i64::from(weekday)).rem_euclid(7);
        self.plus_days(past.saturating_neg())
    }

    /// The given day of the same month; its last day, if it has no such day.
    pub(crate) fn with_day_at_most(self, day: u8) -> Option<Self> {
        let day = i8::try_from(day).ok()?.min(self.0.days_in_month());
        civil::Date::new(self.0.year(), self.0.month(), day)
            .ok()
            .map(Self)
    }

    /// Some date of the month before.
    pub(crate) fn previous_month(self) -> Option<Self> {
        self.0.first_of_month().yesterday().ok().map(Self)
    }

    /// Some date of the month after.
    pub(crate) fn next_month(self) -> Option<Self> {
        self.0.last_of_month().tomorrow().ok().map(Self)
    }

    /// Some date in the given month of the same year.
    pub(crate) fn in_month(self, month: u8) -> Option<Self> {
        let month = i8::try_from(month).ok()?;
        civil::Date::new(self.0.year(), month, 1).ok().map(Self)
    }

    /// Some date of the year before.
    pub(crate) fn previous_year(self) -> Option<Self> {
        self.0.first_of_year().yesterday().ok().map(Self)
    }

    /// Some date of the year after.
    pub(crate) fn next_year(self) -> Option<Self> {
        self.0.last_of_year().tomorrow().ok().map(Self)
    }
}
