//! From a file's budgets and cluster to the ledger's policies and settings, whose
//! ranges are the ledger's. Knows nothing of traffic and faults.

use leasehold_ledger::policy::{Kind, Policy, UNITS_MAX};
use leasehold_ledger::settings::Settings;

use super::{
    Invalid,
    file::{Budget, Cluster, FailureModeName, KindName},
    ranges::{number, whole},
};
use crate::{MILLISECOND, system::shipped_policy};

/// A policy from the fields of the admin API; its ranges are the ledger's.
pub(super) fn policy(path: &str, budget: &Budget) -> Result<Policy, Invalid> {
    let window = [("limit", budget.limit), ("window_ms", budget.window_ms)];
    let bucket = [
        ("capacity", budget.capacity),
        ("refill", budget.refill),
        ("refill_period_ms", budget.refill_period_ms),
    ];
    let (own, other, name): (&[_], &[_], _) = match budget.kind {
        KindName::SlidingWindow => (&window, &bucket, "sliding_window"),
        KindName::TokenBucket => (&bucket, &window, "token_bucket"),
    };
    if let Some((field, _)) = other.iter().find(|(_, value)| value.is_some()) {
        let names: Vec<&str> = own.iter().map(|(name, _)| *name).collect();
        return Err(Invalid(format!(
            "{path}.{field} does not belong to a {name}, which has {}",
            names.join(", ")
        )));
    }
    if let Some((field, _)) = own.iter().find(|(_, value)| value.is_none()) {
        return Err(Invalid(format!(
            "{path}.{field} is missing: a {name} needs it"
        )));
    }
    let units = |field: &str, value| whole(&format!("{path}.{field}"), value, 0, 0..=UNITS_MAX);
    let time_us = |field: &str, value| {
        whole(&format!("{path}.{field}"), value, 0, 0..=UNITS_MAX)
            .map(|ms| ms.saturating_mul(MILLISECOND))
    };
    let mut policy = shipped_policy(match budget.kind {
        KindName::SlidingWindow => Kind::SlidingWindow {
            limit: units("limit", budget.limit)?,
            window_us: time_us("window_ms", budget.window_ms)?,
        },
        KindName::TokenBucket => Kind::TokenBucket {
            capacity: units("capacity", budget.capacity)?,
            refill: units("refill", budget.refill)?,
            refill_period_us: time_us("refill_period_ms", budget.refill_period_ms)?,
        },
    });
    if let Some(factor) = budget.slice_factor {
        let factor = number(
            &format!("{path}.slice_factor"),
            Some(factor),
            1.5,
            1.0..=10.0,
        )?;
        policy.slice_factor_milli = milli(factor);
    }
    if budget.max_wait_ms.is_some() {
        policy.max_wait_us = time_us("max_wait_ms", budget.max_wait_ms)?;
    }
    if budget.reserve.is_some() {
        policy.reserve = units("reserve", budget.reserve)?;
    }
    if budget.demand_horizon_ms.is_some() {
        policy.horizon_us = Some(time_us("demand_horizon_ms", budget.demand_horizon_ms)?);
    }
    if budget.failure_mode == Some(FailureModeName::Open) {
        return Err(Invalid(format!(
            "{path}.failure_mode (open) must be closed here: what is admitted without a coordinator \
             is outside the promise that is judged"
        )));
    }
    if let Some(name) = &budget.public_name {
        policy.public_name.clone_from(name);
    }
    policy
        .validate()
        .map_err(|message| Invalid(format!("{path}.{message}")))?;
    Ok(policy)
}

pub(super) fn settings(cluster: &Cluster) -> Result<Settings, Invalid> {
    let mut settings = Settings::default();
    let time_us = |field: &str, value: Option<i64>, default_us: u64| {
        whole(
            &format!("cluster.{field}"),
            value,
            default_us / MILLISECOND,
            0..=UNITS_MAX,
        )
        .map(|ms| ms.saturating_mul(MILLISECOND))
    };
    settings.session_ttl_us = time_us(
        "session_ttl_ms",
        cluster.session_ttl_ms,
        settings.session_ttl_us,
    )?;
    settings.sync_interval_us = time_us(
        "sync_interval_ms",
        cluster.sync_interval_ms,
        settings.sync_interval_us,
    )?;
    let drift = whole(
        "cluster.max_drift_ppm",
        cluster.max_drift_ppm,
        settings.max_drift_ppm.into(),
        0..=u32::MAX.into(),
    )?;
    settings.max_drift_ppm = u32::try_from(drift).unwrap_or(u32::MAX);
    settings
        .validate()
        .map_err(|message| Invalid(format!("cluster.{message}")))?;
    Ok(settings)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "judged to be 1 to 10 before"
)]
fn milli(factor: f64) -> u32 {
    (factor * 1_000.0).round() as u32
}
