//! Policies: the rule that an account follows. Knows nothing of accounts, time
//! or names of budgets.

mod kind;

pub use kind::{Calendar, Kind, PeriodUnit};

/// The greatest limit, capacity, refill or cost: 2^53 − 1, so that every figure
/// survives JSON.
pub const UNITS_MAX: u64 = (1 << 53) - 1;
/// The shortest window or refill period.
pub const WINDOW_US_MIN: u64 = 100_000;
/// The longest window or refill period: 31 days.
pub const WINDOW_US_MAX: u64 = 31 * 24 * 3_600 * 1_000_000;
/// What a client does when it holds nothing and nobody can be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureMode {
    /// Refuse.
    #[default]
    Closed,
    /// Allow, marked as degraded and outside the promise.
    Open,
    /// Allow so many units per window and gateway, marked as degraded and outside
    /// the promise.
    Emergency {
        /// None: the limit divided by the number of gateways last known.
        units: Option<u64>,
    },
}

/// Requests of one importance. A policy lists its lanes, the highest first; what
/// names none is in the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'.
    pub name: String,
    /// Units that are kept back from the lanes below.
    pub reserve: u64,
    /// How long a request of this lane waits; none: the policy's `max_wait_us`.
    pub max_wait_us: Option<u64>,
}

/// A named rule. `Policy::validate` is the only judge of its ranges, and
/// [`Policy::new`] knows what a user gets who says nothing but the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What is counted.
    pub kind: Kind,
    /// A slice is this × recent demand, in thousandths; 1,000 to 10,000, by
    /// default 1,500 (1.5 ×).
    pub slice_factor_milli: u32,
    /// How long a waiting ask may wait, in microseconds; 1 ms to 60 s, by default
    /// 250 ms.
    pub max_wait_us: u64,
    /// Free units that are kept back for requests that wait, rather than given to
    /// holders that ask ahead of need; below the limit, by default 0.
    pub reserve: u64,
    /// The demand horizon H in microseconds, 10 ms to 10 s; none, the default,
    /// follows the budget: see [`Policy::timescale_us`].
    pub horizon_us: Option<u64>,
    /// What clients do without a coordinator; by default they refuse.
    pub failure_mode: FailureMode,
    /// The name that end users see; 1 to 64 visible ASCII characters, by default
    /// `default`.
    pub public_name: String,
    /// Requests by importance, the highest first; by default all are alike.
    pub lanes: Vec<Lane>,
    /// How long a key stays refused once it was refused, in microseconds; up to
    /// 24 h, by default 0.
    pub cooldown_us: u64,
    /// Count what would be refused, and refuse nothing.
    pub shadow: bool,
    /// How long a reservation may stay unsettled before it counts as spent, in
    /// microseconds; 1 s to 24 h, by default 60 s.
    pub hold_max_us: u64,
}

/// Bounds of the fields that clients act on.
const SLICE_FACTOR_MILLI: std::ops::RangeInclusive<u32> = 1_000..=10_000;
const MAX_WAIT_US: std::ops::RangeInclusive<u64> = 1_000..=60_000_000;
const HORIZON_US: std::ops::RangeInclusive<u64> = 10_000..=10_000_000;
const PUBLIC_NAME_BYTES_MAX: usize = 64;
const DAY_US: u64 = 24 * 3_600 * 1_000_000;
const COOLDOWN_US: std::ops::RangeInclusive<u64> = 0..=DAY_US;
const HOLD_MAX_US: std::ops::RangeInclusive<u64> = 1_000_000..=DAY_US;
/// What a reservation's longest life is unless a policy says otherwise.
pub const HOLD_MAX_US_DEFAULT: u64 = 60_000_000;
/// The most lanes of a policy.
pub const LANES_MAX: usize = 8;
/// The longest name of a policy or of a lane.
pub const NAME_BYTES_MAX: usize = 64;

/// A timescale has so many demand horizons: H = W/6.
const HORIZONS_PER_TIMESCALE: u64 = 6;
/// The shortest timescale that a budget has by itself.
const OWN_TIMESCALE_US_MIN: u64 = WINDOW_US_MIN;
/// The longest timescale: a month does not park units for four months.
const TIMESCALE_US_MAX: u64 = 60_000_000;

impl Policy {
    /// A policy with every lease setting at its default.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            slice_factor_milli: 1_500,
            max_wait_us: 250_000,
            reserve: 0,
            horizon_us: None,
            failure_mode: FailureMode::Closed,
            public_name: "default".to_owned(),
            lanes: Vec::new(),
            cooldown_us: 0,
            shadow: false,
            hold_max_us: HOLD_MAX_US_DEFAULT,
        }
    }

    /// W, which every time constant of the lease policy is a part or a multiple
    /// of, in microseconds: 6 × `horizon_us` if that is set, else the budget's own
    /// (the window, or the time in which an empty bucket fills:
    /// capacity × `refill_period_us` / refill, rounded up), 100 ms to 60 s.
    #[must_use]
    pub fn timescale_us(&self) -> u64 {
        match self.horizon_us {
            Some(horizon_us) => horizon_us
                .clamp(*HORIZON_US.start(), *HORIZON_US.end())
                .saturating_mul(HORIZONS_PER_TIMESCALE),
            None => self
                .kind
                .own_timescale_us()
                .clamp(OWN_TIMESCALE_US_MIN, TIMESCALE_US_MAX),
        }
    }

    /// H = W/6, the time over which demand is measured, in microseconds.
    #[must_use]
    pub fn demand_horizon_us(&self) -> u64 {
        self.timescale_us().div_euclid(HORIZONS_PER_TIMESCALE)
    }

    /// Judges every range. Times are stated in milliseconds, as users set them.
    ///
    /// # Errors
    /// A text that names the field, its value and the allowed range.
    pub fn validate(&self) -> Result<(), String> {
        self.kind.validate()?;
        check_range(
            "slice_factor",
            self.slice_factor_milli.into(),
            u64::from(*SLICE_FACTOR_MILLI.start())..=u64::from(*SLICE_FACTOR_MILLI.end()),
        )?;
        check_range("max_wait_ms", self.max_wait_us, MAX_WAIT_US)?;
        let (limit_field, limit) = (self.kind.limit_field(), self.kind.limit());
        if self.reserve != 0 && self.reserve >= limit {
            return Err(format!(
                "reserve ({}) must be 0 or less than {limit_field} ({limit})",
                self.reserve
            ));
        }
        if let Some(horizon_us) = self.horizon_us {
            check_range("demand_horizon_ms", horizon_us, HORIZON_US)?;
        }
        let name = self.public_name.as_bytes();
        if name.is_empty()
            || name.len() > PUBLIC_NAME_BYTES_MAX
            || !name.iter().all(u8::is_ascii_graphic)
        {
            return Err(format!(
                "public_name must have 1 to {PUBLIC_NAME_BYTES_MAX} visible ASCII characters"
            ));
        }
        match self.failure_mode {
            FailureMode::Emergency { units: Some(units) } => {
                check_units("emergency_units", units, 1)?;
            }
            FailureMode::Emergency { units: None } if matches!(self.kind, Kind::Total { .. }) => {
                return Err(
                    "emergency_units must be stated: a total has no limit per time".to_owned(),
                );
            }
            _ => {}
        }
        check_range("cooldown_ms", self.cooldown_us, COOLDOWN_US)?;
        check_range("hold_max_ms", self.hold_max_us, HOLD_MAX_US)?;
        self.validate_lanes()
    }

    fn validate_lanes(&self) -> Result<(), String> {
        if self.lanes.len() > LANES_MAX {
            return Err(format!(
                "lanes ({}) must be at most {LANES_MAX}",
                self.lanes.len()
            ));
        }
        let mut reserved = 0_u64;
        for (place, lane) in self.lanes.iter().enumerate() {
            check_name("name", &lane.name).map_err(|why| format!("lanes[{place}].{why}"))?;
            let same = |other: &&Lane| other.name == lane.name;
            if self.lanes.iter().take(place).any(|other| same(&other)) {
                return Err(format!(
                    "lanes[{place}].name ({}) is the name of another lane too",
                    lane.name
                ));
            }
            if let Some(max_wait_us) = lane.max_wait_us {
                check_range("max_wait_ms", max_wait_us, MAX_WAIT_US)
                    .map_err(|why| format!("lanes[{place}].{why}"))?;
            }
            reserved = reserved.saturating_add(lane.reserve);
        }
        if let Some(last) = self.lanes.last()
            && last.reserve != 0
        {
            return Err(format!(
                "lanes[{}].reserve ({}) must be 0: there is no lane below the last one",
                self.lanes.len().saturating_sub(1),
                last.reserve
            ));
        }
        let limit = self.kind.limit();
        if reserved != 0 && reserved >= limit {
            return Err(format!(
                "the lanes' reserves ({reserved}) must be less than {} ({limit})",
                self.kind.limit_field()
            ));
        }
        if reserved != 0 && self.kind.tells() {
            return Err(format!(
                "lanes[0].reserve ({reserved}) must be 0: nothing is reserved of a budget that is not leased"
            ));
        }
        Ok(())
    }
}

/// Judges the name of a policy or of a lane.
pub(crate) fn check_name(field: &str, name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(allowed) {
        return Err(format!(
            "{field} must have 1 to {NAME_BYTES_MAX} characters of A-Z, a-z, 0-9, '.', '_' and '-'"
        ));
    }
    Ok(())
}

/// Judges a figure that users set in thousands of what it is kept in.
fn check_range(
    field: &str,
    value: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!(
        "{field} ({}) must be {} to {}",
        decimal(value),
        decimal(*range.start()),
        decimal(*range.end())
    ))
}

fn check_units(field: &str, units: u64, min: u64) -> Result<(), String> {
    if (min..=UNITS_MAX).contains(&units) {
        return Ok(());
    }
    Err(format!("{field} ({units}) must be {min} to {UNITS_MAX}"))
}

fn check_duration(field: &str, duration_us: u64) -> Result<(), String> {
    if (WINDOW_US_MIN..=WINDOW_US_MAX).contains(&duration_us) {
        return Ok(());
    }
    Err(format!(
        "{field} ({}) must be {} to {} (31 days)",
        decimal(duration_us),
        decimal(WINDOW_US_MIN),
        decimal(WINDOW_US_MAX)
    ))
}

/// Thousandths in the unit that users set, with a fraction if need be.
pub(crate) fn decimal(thousandths: u64) -> String {
    let (whole, part) = (thousandths.div_euclid(1_000), thousandths.rem_euclid(1_000));
    if part == 0 {
        whole.to_string()
    } else {
        format!("{whole}.{part:03}")
            .trim_end_matches('0')
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    fn policy(kind: Kind) -> Policy {
        Policy::new(kind)
    }

    #[test]
    fn the_bounds_themselves_are_allowed_and_a_limit_of_0_too() {
        for limit in [0, 1, UNITS_MAX] {
            for window_us in [WINDOW_US_MIN, WINDOW_US_MAX] {
                policy(Kind::SlidingWindow { limit, window_us })
                    .validate()
                    .unwrap();
                let bucket = Kind::TokenBucket {
                    capacity: limit,
                    refill: 1,
                    refill_period_us: window_us,
                };
                policy(bucket).validate().unwrap();
            }
        }
    }

    #[test]
    fn what_is_out_of_range_is_named_with_the_range() {
        let window = |limit, window_us| policy(Kind::SlidingWindow { limit, window_us });
        let bucket = |capacity, refill, refill_period_us| {
            policy(Kind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            })
        };
        let good = window(1, 1_000_000);
        for (policy, text) in [
            (
                window(1 << 53, 1_000_000),
                "limit (9007199254740992) must be 0 to 9007199254740991",
            ),
            (
                window(1, 0),
                "window_ms (0) must be 100 to 2678400000 (31 days)",
            ),
            (
                window(1, 99_999),
                "window_ms (99.999) must be 100 to 2678400000 (31 days)",
            ),
            (
                bucket(1 << 53, 1, 1_000_000),
                "capacity (9007199254740992) must be 0 to 9007199254740991",
            ),
            (
                bucket(1, 0, 1_000_000),
                "refill (0) must be 1 to 9007199254740991",
            ),
            (
                bucket(1, 1, u64::MAX),
                "refill_period_ms (18446744073709551.615) must be 100 to 2678400000 (31 days)",
            ),
            (
                Policy {
                    slice_factor_milli: 999,
                    ..good.clone()
                },
                "slice_factor (0.999) must be 1 to 10",
            ),
            (
                Policy {
                    max_wait_us: 0,
                    ..good.clone()
                },
                "max_wait_ms (0) must be 1 to 60000",
            ),
            (
                Policy {
                    reserve: 1,
                    ..good.clone()
                },
                "reserve (1) must be 0 or less than limit (1)",
            ),
            (
                Policy {
                    reserve: UNITS_MAX,
                    ..bucket(20, 1, 1_000_000)
                },
                "reserve (9007199254740991) must be 0 or less than capacity (20)",
            ),
            (
                Policy {
                    horizon_us: Some(9_999),
                    ..good.clone()
                },
                "demand_horizon_ms (9.999) must be 10 to 10000",
            ),
            (
                Policy {
                    horizon_us: Some(10_000_001),
                    ..good.clone()
                },
                "demand_horizon_ms (10000.001) must be 10 to 10000",
            ),
            (
                Policy {
                    public_name: "a b".to_owned(),
                    ..good
                },
                "public_name must have 1 to 64 visible ASCII characters",
            ),
        ] {
            assert_eq!(policy.validate().unwrap_err(), text);
        }
    }

    #[test]
    fn a_reserve_leaves_at_least_one_unit_and_nothing_of_nothing() {
        let with = |limit, reserve| Policy {
            reserve,
            ..policy(Kind::SlidingWindow {
                limit,
                window_us: 1_000_000,
            })
        };
        for (limit, reserve) in [(0, 0), (1, 0), (2, 1), (UNITS_MAX, UNITS_MAX - 1)] {
            with(limit, reserve).validate().unwrap();
        }
        with(0, 1).validate().unwrap_err();
    }

    #[test]
    fn the_timescale_follows_the_budget_within_100_ms_and_60_s() {
        for (window_us, timescale_us) in [
            (WINDOW_US_MIN, 100_000),
            (3_000_000, 3_000_000),
            (60_000_000, 60_000_000),
            (WINDOW_US_MAX, 60_000_000),
        ] {
            let window = policy(Kind::SlidingWindow {
                limit: 1,
                window_us,
            });
            assert_eq!(window.timescale_us(), timescale_us);
            assert_eq!(window.demand_horizon_us(), timescale_us / 6);
        }
        for (capacity, refill, timescale_us) in [
            (0, 1, 100_000),
            (20, 100, 12_000_000),
            (20, 99, 12_121_213),
            (UNITS_MAX, 1, 60_000_000),
        ] {
            let bucket = policy(Kind::TokenBucket {
                capacity,
                refill,
                refill_period_us: 60_000_000,
            });
            assert_eq!(bucket.timescale_us(), timescale_us);
        }
    }

    #[test]
    fn a_horizon_of_its_own_takes_the_place_of_the_budgets() {
        for horizon_us in [10_000, 250_000, 10_000_000] {
            let policy = Policy {
                horizon_us: Some(horizon_us),
                ..policy(Kind::SlidingWindow {
                    limit: 1,
                    window_us: WINDOW_US_MAX,
                })
            };
            policy.validate().unwrap();
            assert_eq!(policy.demand_horizon_us(), horizon_us);
            assert_eq!(policy.timescale_us(), 6 * horizon_us);
        }
    }
}
