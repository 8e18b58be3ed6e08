//! Judges single values: each message names the field, its value and the range.

use std::{fmt::Display, ops::RangeInclusive};

use super::Invalid;

/// A whole number, or the default.
pub(super) fn whole(
    field: &str,
    value: Option<i64>,
    default: u64,
    range: RangeInclusive<u64>,
) -> Result<u64, Invalid> {
    let Some(value) = value else {
        return Ok(default);
    };
    u64::try_from(value)
        .ok()
        .filter(|value| range.contains(value))
        .ok_or_else(|| out_of(field, value, *range.start(), *range.end()))
}

/// A number, or the default.
pub(super) fn number(
    field: &str,
    value: Option<f64>,
    default: f64,
    range: RangeInclusive<f64>,
) -> Result<f64, Invalid> {
    match value {
        None => Ok(default),
        Some(value) if range.contains(&value) => Ok(value),
        Some(value) => Err(out_of(field, value, *range.start(), *range.end())),
    }
}

/// Seconds, as microseconds.
pub(super) fn seconds(
    field: &str,
    value: Option<f64>,
    default_us: u64,
    range_us: RangeInclusive<u64>,
) -> Result<u64, Invalid> {
    time(field, value, 1_000_000.0, default_us, range_us)
}

/// Milliseconds, as microseconds.
pub(super) fn millis(
    field: &str,
    value: Option<f64>,
    default_us: u64,
    range_us: RangeInclusive<u64>,
) -> Result<u64, Invalid> {
    time(field, value, 1_000.0, default_us, range_us)
}

/// Minutes, as microseconds.
pub(super) fn minutes(
    field: &str,
    value: Option<f64>,
    default_us: u64,
    range_us: RangeInclusive<u64>,
) -> Result<u64, Invalid> {
    time(field, value, 60_000_000.0, default_us, range_us)
}

fn time(
    field: &str,
    value: Option<f64>,
    unit_us: f64,
    default_us: u64,
    range_us: RangeInclusive<u64>,
) -> Result<u64, Invalid> {
    let Some(value) = value else {
        return Ok(default_us);
    };
    // Not-a-number becomes 0 and is told apart by the comparison.
    let us = micros(value * unit_us);
    if value >= 0.0 && range_us.contains(&us) {
        return Ok(us);
    }
    Err(out_of(
        field,
        value,
        float(*range_us.start()) / unit_us,
        float(*range_us.end()) / unit_us,
    ))
}

fn out_of(field: &str, value: impl Display, least: impl Display, most: impl Display) -> Invalid {
    Invalid(format!("{field} ({value}) must be {least} to {most}"))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and the range is judged afterwards"
)]
fn micros(us: f64) -> u64 {
    us.round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "ranges are far below 2^53")]
pub(super) fn float(value: u64) -> f64 {
    value as f64
}
