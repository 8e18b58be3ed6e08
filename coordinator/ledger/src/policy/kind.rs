//! What a policy counts, and how units become free again. Knows nothing of how they are
//! leased, or what is kept in the books.

use super::{TIMESCALE_US_MAX, UNITS_MAX, check_duration, check_units};

/// The longest name of a time zone.
const TIME_ZONE_BYTES_MAX: usize = 64;

/// What a policy counts, and how units become free again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// At most `limit` units in any interval of `window_us`.
    SlidingWindow {
        /// Units, 0 to [`UNITS_MAX`]; 0 refuses everything.
        limit: u64,
        /// The window's length in microseconds.
        window_us: u64,
    },
    /// At most `capacity + refill × (t + one tick) / refill_period_us` units in
    /// any interval of length `t`.
    TokenBucket {
        /// Units that a full bucket holds; 0 refuses everything.
        capacity: u64,
        /// Units that come back in one refill period.
        refill: u64,
        /// The refill period in microseconds.
        refill_period_us: u64,
    },
    /// A token bucket whose units gateways release one after the other at the
    /// refill's rate (a leaky bucket): the same bound.
    Paced {
        /// Units that a full bucket holds: what all gateways together may have under
        /// way. 0 refuses everything.
        capacity: u64,
        /// Units that come back in one refill period.
        refill: u64,
        /// The refill period in microseconds.
        refill_period_us: u64,
    },
    /// At most `limit` units, and what was carried over, charged to any one period.
    Period {
        /// Units per period; 0 refuses everything.
        limit: u64,
        /// Which periods.
        calendar: Calendar,
        /// Unused units of one period that the next one has in addition, at most.
        carry_over: u64,
    },
    /// At most `limit` units, and what corrections added, ever.
    Total {
        /// Units that an account begins with; often 0.
        limit: u64,
    },
    /// At most `limit` permits at one moment.
    Concurrency {
        /// Permits; 0 refuses everything.
        limit: u64,
    },
    /// About `limit` units in an interval of `window_us`: gateways count by
    /// themselves and tell each other. Not exact.
    Estimate {
        /// Units; 0 refuses everything.
        limit: u64,
        /// The window's length in microseconds.
        window_us: u64,
    },
    /// Counts and never refuses.
    Unlimited,
}

/// A way to divide time into periods. The ledger compares calendars and never
/// computes one: which period it is, the leader writes into the log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Calendar {
    /// How long a period is.
    pub unit: PeriodUnit,
    /// An IANA name, such as `Europe/Berlin`.
    pub time_zone: String,
    /// The day of the month (1 to 31, clamped to the month's end) or of the week
    /// (1 is Monday) on which a period begins; 0 for hours and days.
    pub anchor: u8,
    /// The month (1 is January) in which a year begins; 0 for all others.
    pub anchor_month: u8,
}

/// How long a period is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeriodUnit {
    /// From one full hour of the local clock to the next.
    Hour,
    /// From one local midnight to the next.
    Day,
    /// Seven days.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}

impl PeriodUnit {
    /// The name in policies.
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

    /// The longest that such a period can be, roughly, in microseconds.
    const fn nominal_us(self) -> u64 {
        const HOUR_US: u64 = 3_600_000_000;
        match self {
            Self::Hour => HOUR_US,
            Self::Day => 24 * HOUR_US,
            Self::Week => 7 * 24 * HOUR_US,
            Self::Month => 31 * 24 * HOUR_US,
            Self::Year => 366 * 24 * HOUR_US,
        }
    }
}

impl Kind {
    /// The limit, or the bucket's capacity: the largest cost that can be admitted.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        match self {
            Self::SlidingWindow { limit, .. }
            | Self::Period { limit, .. }
            | Self::Total { limit }
            | Self::Concurrency { limit }
            | Self::Estimate { limit, .. } => *limit,
            Self::TokenBucket { capacity, .. } | Self::Paced { capacity, .. } => *capacity,
            Self::Unlimited => UNITS_MAX,
        }
    }

    /// The largest cost that may be admitted, now or another time. An account can have
    /// more than its policy's limit: what was carried over, or added by hand.
    #[must_use]
    pub const fn largest_cost(&self) -> u64 {
        match self {
            Self::Period {
                limit, carry_over, ..
            } => limit.saturating_add(*carry_over),
            Self::Total { .. } => UNITS_MAX,
            _ => self.limit(),
        }
    }

    /// What users call the limit.
    pub(super) const fn limit_field(&self) -> &'static str {
        match self {
            Self::TokenBucket { .. } | Self::Paced { .. } => "capacity",
            _ => "limit",
        }
    }

    /// The kind's name, in policies and on the wire.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::SlidingWindow { .. } => "sliding_window",
            Self::TokenBucket { .. } => "token_bucket",
            Self::Paced { .. } => "paced",
            Self::Period { .. } => "period",
            Self::Total { .. } => "total",
            Self::Concurrency { .. } => "concurrency",
            Self::Estimate { .. } => "estimate",
            Self::Unlimited => "unlimited",
        }
    }

    /// Whether holders count by themselves and tell, rather than being granted units.
    #[must_use]
    pub const fn tells(&self) -> bool {
        matches!(self, Self::Estimate { .. } | Self::Unlimited)
    }

    /// Whether what was spent under another rule matters to it: its promise is about
    /// any interval, rather than about what is charged to it.
    pub(crate) const fn looks_back(&self) -> bool {
        match self {
            Self::SlidingWindow { .. }
            | Self::TokenBucket { .. }
            | Self::Paced { .. }
            | Self::Estimate { .. } => true,
            Self::Period { .. }
            | Self::Total { .. }
            | Self::Concurrency { .. }
            | Self::Unlimited => false,
        }
    }

    /// Whether what is charged to it stays so for good, or until a period is over.
    #[must_use]
    pub const fn never_forgets(&self) -> bool {
        matches!(self, Self::Period { .. } | Self::Total { .. })
    }

    /// The periods that it counts by.
    #[must_use]
    pub const fn calendar(&self) -> Option<&Calendar> {
        match self {
            Self::Period { calendar, .. } => Some(calendar),
            _ => None,
        }
    }

    /// The window, the time in which an empty bucket fills, rounded up, or about the
    /// length of a period; 60 s for what time does not free.
    #[must_use]
    pub fn own_timescale_us(&self) -> u64 {
        match self {
            Self::SlidingWindow { window_us, .. } | Self::Estimate { window_us, .. } => *window_us,
            Self::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            }
            | Self::Paced {
                capacity,
                refill,
                refill_period_us,
            } => {
                let fill_us = u128::from(*capacity)
                    .saturating_mul(u128::from(*refill_period_us))
                    .div_ceil(u128::from(*refill).max(1));
                u64::try_from(fill_us).unwrap_or(u64::MAX)
            }
            Self::Period { calendar, .. } => calendar.unit.nominal_us(),
            Self::Total { .. } | Self::Concurrency { .. } | Self::Unlimited => TIMESCALE_US_MAX,
        }
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        match self {
            Self::SlidingWindow { limit, window_us } | Self::Estimate { limit, window_us } => {
                check_units("limit", *limit, 0)?;
                check_duration("window_ms", *window_us)
            }
            Self::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            }
            | Self::Paced {
                capacity,
                refill,
                refill_period_us,
            } => {
                check_units("capacity", *capacity, 0)?;
                check_units("refill", *refill, 1)?;
                check_duration("refill_period_ms", *refill_period_us)
            }
            Self::Period {
                limit,
                calendar,
                carry_over,
            } => {
                check_units("limit", *limit, 0)?;
                check_units("carry_over", *carry_over, 0)?;
                // Their sum is a limit too.
                check_units("limit + carry_over", limit.saturating_add(*carry_over), 0)?;
                calendar.validate()
            }
            Self::Total { limit } | Self::Concurrency { limit } => check_units("limit", *limit, 0),
            Self::Unlimited => Ok(()),
        }
    }
}

impl Calendar {
    /// Judges what can be judged without a calendar: whether a zone of that name
    /// exists is for whoever can look.
    ///
    /// # Errors
    /// A text that names the field, its value and the allowed range.
    pub fn validate(&self) -> Result<(), String> {
        let zone = self.time_zone.as_bytes();
        let allowed =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-' | b'+');
        if zone.is_empty() || zone.len() > TIME_ZONE_BYTES_MAX || !zone.iter().all(allowed) {
            return Err("time_zone must be an IANA name, as in Europe/Berlin".to_owned());
        }
        let (range, what) = match self.unit {
            PeriodUnit::Hour | PeriodUnit::Day => (0..=0, "absent for hours and days"),
            PeriodUnit::Week => (1..=7, "1 (Monday) to 7 for weeks"),
            PeriodUnit::Month => (1..=31, "1 to 31 for months"),
            PeriodUnit::Year => (1..=31, "1 to 31 for years"),
        };
        if !range.contains(&self.anchor) {
            return Err(format!("anchor ({}) must be {what}", self.anchor));
        }
        let (months, what) = match self.unit {
            PeriodUnit::Year => (1..=12, "1 (January) to 12 for years"),
            _ => (0..=0, "absent for all but years"),
        };
        if !months.contains(&self.anchor_month) {
            return Err(format!(
                "anchor_month ({}) must be {what}",
                self.anchor_month
            ));
        }
        Ok(())
    }
}
