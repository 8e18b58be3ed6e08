//! Cluster settings: replicated, the same on every node.

use crate::policy::decimal;

/// Settings of the whole cluster. `Settings::validate` is the only judge of
/// their ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a session lives without a renewal.
    pub session_ttl_us: u64,
    /// How often clients sync.
    pub sync_interval_us: u64,
    /// How much faster or slower than real time any monotonic clock may run, in
    /// parts per million.
    pub max_drift_ppm: u32,
    /// The policy of keys that no budget matches; none: they are refused.
    pub default_policy: Option<String>,
    /// Sessions alive at once per identity.
    pub sessions_per_identity_max: u32,
    /// Keys that one session may hold leases of.
    pub keys_per_session_max: u32,
    /// Accounts alive at once per budget pattern.
    pub accounts_per_pattern_max: u64,
    /// How long an expired session can still be settled.
    pub tombstone_ttl_us: u64,
    /// For how long a central spend that was admitted under an idempotency key is known.
    pub idempotency_ttl_us: u64,
    /// How many of those are known at once.
    pub idempotency_keys_max: u64,
    /// Where the leader should be, for who leads to look at; none: anywhere.
    pub preferred_leader_region: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session_ttl_us: 10_000_000,
            sync_interval_us: 1_000_000,
            max_drift_ppm: 1_000,
            default_policy: None,
            sessions_per_identity_max: 20_000,
            keys_per_session_max: 100_000,
            accounts_per_pattern_max: 1_000_000,
            tombstone_ttl_us: 3_600_000_000,
            idempotency_ttl_us: IDEMPOTENCY_TTL_US_DEFAULT,
            idempotency_keys_max: IDEMPOTENCY_KEYS_MAX_DEFAULT,
            preferred_leader_region: None,
        }
    }
}

pub(crate) const IDEMPOTENCY_TTL_US_DEFAULT: u64 = 600_000_000;
pub(crate) const IDEMPOTENCY_KEYS_MAX_DEFAULT: u64 = 100_000;

/// A session's ttl is at least this many sync intervals, so that two lost syncs
/// in a row do not end it.
const SYNCS_PER_TTL_MIN: u64 = 3;

impl Settings {
    /// Judges every range. Times are stated in milliseconds, as users set them.
    ///
    /// # Errors
    /// A text that names the field, its value and the allowed range.
    pub fn validate(&self) -> Result<(), String> {
        check_time("session_ttl_ms", self.session_ttl_us, 100_000, 600_000_000)?;
        check_time(
            "sync_interval_ms",
            self.sync_interval_us,
            10_000,
            60_000_000,
        )?;
        if self.session_ttl_us < self.sync_interval_us.saturating_mul(SYNCS_PER_TTL_MIN) {
            return Err(format!(
                "session_ttl_ms ({}) must be at least {SYNCS_PER_TTL_MIN} × sync_interval_ms ({})",
                decimal(self.session_ttl_us),
                decimal(self.sync_interval_us)
            ));
        }
        check_count("max_drift_ppm", self.max_drift_ppm.into(), 0, 100_000)?;
        check_count(
            "sessions_per_identity_max",
            self.sessions_per_identity_max.into(),
            1,
            1_000_000,
        )?;
        check_count(
            "keys_per_session_max",
            self.keys_per_session_max.into(),
            1,
            1_000_000,
        )?;
        check_count(
            "accounts_per_pattern_max",
            self.accounts_per_pattern_max,
            1,
            10_000_000,
        )?;
        check_time("tombstone_ttl_ms", self.tombstone_ttl_us, 0, 86_400_000_000)?;
        check_time(
            "idempotency_ttl_ms",
            self.idempotency_ttl_us,
            1_000_000,
            86_400_000_000,
        )?;
        check_count(
            "idempotency_keys_max",
            self.idempotency_keys_max,
            1,
            1_000_000,
        )?;
        match &self.preferred_leader_region {
            Some(region) => check_region("preferred_leader_region", region),
            None => Ok(()),
        }
    }
}

/// Judges the name of a region.
///
/// # Errors
/// A text that names the field, its value and what is allowed.
pub fn check_region(field: &str, region: &str) -> Result<(), String> {
    let visible = region.bytes().all(|byte| byte.is_ascii_graphic());
    if visible && (1..=64).contains(&region.len()) {
        return Ok(());
    }
    Err(format!(
        "{field} ({region}) must be 1 to 64 visible ASCII characters, as in eu-west"
    ))
}

fn check_time(field: &str, us: u64, min_us: u64, max_us: u64) -> Result<(), String> {
    if (min_us..=max_us).contains(&us) {
        return Ok(());
    }
    Err(format!(
        "{field} ({}) must be {} to {}",
        decimal(us),
        decimal(min_us),
        decimal(max_us)
    ))
}

fn check_count(field: &str, count: u64, min: u64, max: u64) -> Result<(), String> {
    if (min..=max).contains(&count) {
        return Ok(());
    }
    Err(format!("{field} ({count}) must be {min} to {max}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        Settings::default().validate().unwrap();
    }

    #[test]
    fn what_is_out_of_range_is_named_with_the_range() {
        let good = Settings::default();
        for (settings, text) in [
            (
                Settings {
                    session_ttl_us: 500_000,
                    ..good.clone()
                },
                "session_ttl_ms (500) must be at least 3 × sync_interval_ms (1000)",
            ),
            (
                Settings {
                    session_ttl_us: 0,
                    ..good.clone()
                },
                "session_ttl_ms (0) must be 100 to 600000",
            ),
            (
                Settings {
                    max_drift_ppm: 100_001,
                    ..good.clone()
                },
                "max_drift_ppm (100001) must be 0 to 100000",
            ),
            (
                Settings {
                    keys_per_session_max: 0,
                    ..good.clone()
                },
                "keys_per_session_max (0) must be 1 to 1000000",
            ),
            (
                Settings {
                    idempotency_ttl_us: 999_000,
                    ..good.clone()
                },
                "idempotency_ttl_ms (999) must be 1000 to 86400000",
            ),
            (
                Settings {
                    idempotency_keys_max: 1_000_001,
                    ..good
                },
                "idempotency_keys_max (1000001) must be 1 to 1000000",
            ),
        ] {
            assert_eq!(settings.validate().unwrap_err(), text);
        }
    }
}
