//! JSON values and durations as people read and write them.

use leasehold_key::{Key, Pattern};
use serde_json::Value;

use super::CliError;

/// A field as text; `-` for null and absent.
pub(super) fn field(value: &Value, name: &str) -> String {
    plain(value.get(name).unwrap_or(&Value::Null))
}

pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

/// A field in milliseconds as a duration; `-` for null and absent.
pub(super) fn duration_field(value: &Value, name: &str) -> String {
    value
        .get(name)
        .and_then(Value::as_u64)
        .map_or_else(|| "-".to_owned(), duration)
}

/// A field in milliseconds as a time to wait; `-` for null and absent.
pub(super) fn wait_field(value: &Value, name: &str) -> String {
    value
        .get(name)
        .and_then(Value::as_u64)
        .map_or_else(|| "-".to_owned(), wait)
}

/// A time to wait, as people count it: a long one in days and hours or in hours and
/// minutes, rounded up.
pub(super) fn wait(ms: u64) -> String {
    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let (large, small, names) = match ms {
        ..HOUR => return duration(ms),
        HOUR..DAY => (HOUR, MINUTE, ("h", "m")),
        DAY.. => (DAY, HOUR, ("d", "h")),
    };
    let smalls = ms.div_ceil(small);
    let (whole, rest) = (smalls / (large / small), smalls % (large / small));
    match rest {
        0 => format!("{whole}{}", names.0),
        rest => format!("{whole}{} {rest}{}", names.0, names.1),
    }
}

/// A field in milliseconds since 1970 as a moment in UTC; `-` for null and absent.
pub(super) fn moment_field(value: &Value, name: &str) -> String {
    value
        .get(name)
        .and_then(Value::as_i64)
        .and_then(|ms| leasehold_calendar::utc_text(ms.saturating_mul(1_000)))
        .unwrap_or_else(|| "-".to_owned())
}

/// The largest unit that loses nothing: `60000` is `1m`.
pub(super) fn duration(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1_000, "s"),
    ];
    for (size, name) in UNITS {
        if ms >= size && ms.is_multiple_of(size) {
            return format!("{}{name}", ms / size);
        }
    }
    if ms >= 1_000 {
        return format!("{}.{:03}s", ms / 1_000, ms % 1_000);
    }
    format!("{ms}ms")
}

/// `250ms`, `60s`, `5m`, `1h` or `31d` in milliseconds; for clap.
pub(super) fn parse_duration(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} must be a whole number and a unit: 250ms, 60s, 5m, 1h or 31d");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let size: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(size))
        .ok_or_else(wrong)
}

/// A policy as one phrase: `100 in any 60s`.
pub(super) fn rule(policy: &Value) -> String {
    let number = |name: &str| field(policy, name);
    let bucket = || {
        format!(
            "bucket of {}, refilled by {} every {}",
            number("capacity"),
            number("refill"),
            duration_field(policy, "refill_period_ms")
        )
    };
    match policy.get("kind").and_then(Value::as_str) {
        Some("sliding_window") => format!(
            "{} in any {}",
            number("limit"),
            duration_field(policy, "window_ms")
        ),
        Some("estimate") => format!(
            "about {} in any {}",
            number("limit"),
            duration_field(policy, "window_ms")
        ),
        Some("token_bucket") => bucket(),
        Some("paced") => format!("paced {}", bucket()),
        Some("period") => period(policy),
        Some("total") => format!("{} in all", number("limit")),
        Some("concurrency") => format!("{} at once", number("limit")),
        Some("unlimited") => "unlimited".to_owned(),
        _ => plain(policy),
    }
}

/// `100 per month from the 15th, Europe/Berlin, 20 carried over`.
fn period(policy: &Value) -> String {
    let unit = field(policy, "period");
    let anchor = policy.get("anchor").and_then(Value::as_u64);
    let from = match (unit.as_str(), anchor) {
        ("week", Some(day)) => {
            const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
            let place = usize::try_from(day).unwrap_or(0).checked_sub(1);
            let name = place.and_then(|place| DAYS.get(place));
            format!(" from {}", name.unwrap_or(&"?"))
        }
        ("month", Some(day)) if day > 1 => format!(" from day {day}"),
        ("year", Some(day)) => {
            let first = policy.get("anchor_month").and_then(Value::as_u64);
            format!(" from {day} {}", month(first.unwrap_or(1)))
        }
        _ => String::new(),
    };
    let carried = match policy.get("carry_over").and_then(Value::as_u64) {
        Some(units) => format!(", {units} carried over"),
        None => String::new(),
    };
    format!(
        "{} per {unit}{from}, {}{carried}",
        field(policy, "limit"),
        field(policy, "time_zone")
    )
}

/// A month by its number, 1 is January.
pub(super) fn month(number: u64) -> &'static str {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let place = usize::try_from(number).unwrap_or(0).checked_sub(1);
    place.and_then(|place| MONTHS.get(place)).unwrap_or(&"?")
}

/// What else a policy says that most do not; `-` for nothing.
pub(super) fn rule_extras(policy: &Value) -> String {
    let mut extras = Vec::new();
    let lanes: Vec<String> = items(policy, "lanes").iter().map(lane).collect();
    if !lanes.is_empty() {
        extras.push(format!("lanes {}", lanes.join(" > ")));
    }
    let number = |name: &str| policy.get(name).and_then(Value::as_u64);
    if let Some(units) = number("emergency_units") {
        extras.push(format!("emergency {units}"));
    }
    if let Some(ms) = number("cooldown_ms") {
        extras.push(format!("cool-down {}", duration(ms)));
    }
    if let Some(ms) = number("hold_max_ms") {
        extras.push(format!("holds {}", duration(ms)));
    }
    if policy.get("shadow").and_then(Value::as_bool) == Some(true) {
        extras.push("shadow".to_owned());
    }
    if extras.is_empty() {
        return "-".to_owned();
    }
    extras.join(", ")
}

/// As its flag is written: `payment:20:1s`.
fn lane(lane: &Value) -> String {
    let number = |name: &str| lane.get(name).and_then(Value::as_u64);
    let name = field(lane, "name");
    match (number("reserve"), number("max_wait_ms")) {
        (None, None) => name,
        (Some(reserve), None) => format!("{name}:{reserve}"),
        (reserve, Some(ms)) => format!("{name}:{}:{}", reserve.unwrap_or(0), duration(ms)),
    }
}

/// The items of a list, or nothing.
pub(super) fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// The path of a key.
pub(super) fn key_path(prefix: &str, text: &str) -> Result<String, CliError> {
    let key = Key::parse(text).map_err(|error| CliError::Usage(format!("{text:?}: {error}")))?;
    Ok(format!("{prefix}{}", key.as_str()))
}

/// The path of a pattern.
pub(super) fn pattern_path(prefix: &str, text: &str) -> Result<String, CliError> {
    let pattern =
        Pattern::parse(text).map_err(|error| CliError::Usage(format!("{text:?}: {error}")))?;
    Ok(format!("{prefix}{}", pattern.as_str()))
}

/// Any other text in a path or a query.
pub(super) fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_is_one_phrase() {
        for (policy, phrase) in [
            (
                json!({"kind": "sliding_window", "limit": 5, "window_ms": 60_000}),
                "5 in any 1m",
            ),
            (
                json!({"kind": "estimate", "limit": 5, "window_ms": 1_000}),
                "about 5 in any 1s",
            ),
            (
                json!({"kind": "paced", "capacity": 2, "refill": 1, "refill_period_ms": 500}),
                "paced bucket of 2, refilled by 1 every 500ms",
            ),
            (
                json!({"kind": "period", "limit": 9, "period": "month", "time_zone": "Europe/Berlin",
                       "anchor": 15, "carry_over": 3}),
                "9 per month from day 15, Europe/Berlin, 3 carried over",
            ),
            (
                json!({"kind": "period", "limit": 9, "period": "week", "time_zone": "UTC", "anchor": 7}),
                "9 per week from Sun, UTC",
            ),
            (
                json!({"kind": "period", "limit": 9, "period": "day", "time_zone": "UTC"}),
                "9 per day, UTC",
            ),
            (
                json!({"kind": "period", "limit": 9, "period": "year", "time_zone": "Europe/London",
                       "anchor": 6, "anchor_month": 4}),
                "9 per year from 6 Apr, Europe/London",
            ),
            (json!({"kind": "total", "limit": 0}), "0 in all"),
            (json!({"kind": "concurrency", "limit": 4}), "4 at once"),
            (json!({"kind": "unlimited"}), "unlimited"),
            (json!("free"), "free"),
        ] {
            assert_eq!(rule(&policy), phrase);
        }
        let extras = json!({
            "lanes": [{"name": "a", "max_wait_ms": 5}, {"name": "b"}], "emergency_units": 3,
            "cooldown_ms": 5_000, "hold_max_ms": 120_000, "shadow": true
        });
        assert_eq!(
            rule_extras(&extras),
            "lanes a:0:5ms > b, emergency 3, cool-down 5s, holds 2m, shadow"
        );
        assert_eq!(rule_extras(&json!({"kind": "unlimited"})), "-");
    }

    #[test]
    fn durations_read_as_they_are_written() {
        for (text, ms) in [
            ("250ms", 250),
            ("60s", 60_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("31d", 2_678_400_000),
        ] {
            assert_eq!(parse_duration(text), Ok(ms));
        }
        assert_eq!(duration(60_000), "1m");
        assert_eq!(duration(90_000), "90s");
        assert_eq!(duration(1_250), "1.250s");
        assert_eq!(duration(0), "0ms");
        for (ms, text) in [
            (7_000, "7s"),
            (3_599_999, "3599.999s"),
            (3_600_000, "1h"),
            (3_600_001, "1h 1m"),
            (86_399_999, "24h"),
            (86_400_000, "1d"),
            (10_908_699_967, "126d 7h"),
        ] {
            assert_eq!(wait(ms), text);
        }
        for text in [
            "",
            "60",
            "s",
            "1.5s",
            "-1s",
            "99999999999999999999d",
            "18446744073709551615d",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
