//! What transcripts call policies, periods and corrections. Knows nothing of what comes
//! of them.

use leasehold_ledger::{
    correction::{Change, Correction},
    entry::{Command, Roll},
    policy::{Calendar, Kind, PeriodUnit, Policy},
};

use crate::log::{key, policy};

/// A policy from its words; see `scenario.rs`.
pub(crate) fn a_policy(words: &[&str]) -> Policy {
    let (kind, mut rest) = a_kind(words);
    let mut policy = policy(kind);
    while let [word, more @ ..] = rest {
        rest = match (*word, more) {
            ("cooldown", [time, rest @ ..]) => {
                policy.cooldown_us = micros(time);
                rest
            }
            ("shadow", rest) => {
                policy.shadow = true;
                rest
            }
            other => panic!("unknown setting {other:?}"),
        };
    }
    policy
}

fn a_kind<'a>(words: &'a [&'a str]) -> (Kind, &'a [&'a str]) {
    let units = |text: &str| text.parse::<u64>().unwrap();
    match words {
        ["window", limit, "per", time, rest @ ..] => (
            Kind::SlidingWindow {
                limit: units(limit),
                window_us: micros(time),
            },
            rest,
        ),
        ["estimate", limit, "per", time, rest @ ..] => (
            Kind::Estimate {
                limit: units(limit),
                window_us: micros(time),
            },
            rest,
        ),
        [
            name @ ("bucket" | "paced"),
            capacity,
            "refill",
            refill,
            "per",
            time,
            rest @ ..,
        ] => {
            let (capacity, refill) = (units(capacity), units(refill));
            let refill_period_us = micros(time);
            let kind = if *name == "bucket" {
                Kind::TokenBucket {
                    capacity,
                    refill,
                    refill_period_us,
                }
            } else {
                Kind::Paced {
                    capacity,
                    refill,
                    refill_period_us,
                }
            };
            (kind, rest)
        }
        ["period", limit, unit, zone, "carry", carry_over, rest @ ..] => (
            Kind::Period {
                limit: units(limit),
                calendar: calendar(unit, zone),
                carry_over: units(carry_over),
            },
            rest,
        ),
        ["period", limit, unit, zone, rest @ ..] => (
            Kind::Period {
                limit: units(limit),
                calendar: calendar(unit, zone),
                carry_over: 0,
            },
            rest,
        ),
        ["total", limit, rest @ ..] => (
            Kind::Total {
                limit: units(limit),
            },
            rest,
        ),
        ["permits", limit, rest @ ..] => (
            Kind::Concurrency {
                limit: units(limit),
            },
            rest,
        ),
        ["unlimited", rest @ ..] => (Kind::Unlimited, rest),
        words => panic!("unknown kind {words:?}"),
    }
}

fn calendar(unit: &str, zone: &str) -> Calendar {
    let (unit, anchor) = match unit {
        "hour" => (PeriodUnit::Hour, 0),
        "day" => (PeriodUnit::Day, 0),
        "week" => (PeriodUnit::Week, 1),
        "month" => (PeriodUnit::Month, 1),
        "year" => (PeriodUnit::Year, 1),
        unit => panic!("unknown period {unit}"),
    };
    Calendar {
        unit,
        time_zone: zone.to_owned(),
        anchor,
        anchor_month: u8::from(unit == PeriodUnit::Year),
    }
}

/// `UNIT ZONE from START to END`, by the wall clock; it ends in that time.
pub(crate) fn a_roll(words: &[&str]) -> Roll {
    let (bounds, at) = match words {
        [bounds @ .., "at", at] => (bounds, Some(micros(at))),
        bounds => (bounds, None),
    };
    let [unit, zone, "from", start, "to", end] = bounds else {
        panic!("a roll reads UNIT ZONE from START to END [at TIME], not {words:?}");
    };
    let (start, end) = (micros(start), micros(end));
    Roll {
        calendar: calendar(unit, zone),
        start_unix_us: start.try_into().unwrap(),
        end_unix_us: end.try_into().unwrap(),
        ends_in_us: end.saturating_sub(at.unwrap_or(start)),
    }
}

/// `KEY reset ID` or `KEY UNITS ID`.
pub(crate) fn a_correction(words: &[&str]) -> Command {
    let [text, change, id] = words else {
        panic!("a correction reads KEY reset ID or KEY UNITS ID, not {words:?}");
    };
    Command::Correct {
        key: key(text),
        id: (*id).to_owned(),
        change: match *change {
            "reset" => Change::Reset,
            units => Change::Adjust(units.parse().unwrap()),
        },
        reason: "they asked".to_owned(),
        by: "zoe".to_owned(),
        wall_unix_us: 1_774_738_800_000_000,
    }
}

pub(crate) fn history_text(corrections: &[Correction]) -> String {
    let texts = corrections.iter().map(|correction| {
        let change = match correction.change {
            Change::Adjust(units) => format!("{units:+}"),
            Change::Reset => "reset".to_owned(),
        };
        format!(
            "{} {change} {:+} at {}",
            correction.id,
            correction.effect,
            seconds(correction.at_us)
        )
    });
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() {
        "nothing".to_owned()
    } else {
        texts.join(", ")
    }
}

/// `1.5s` or `1.5` in microseconds.
pub(crate) fn micros(text: &str) -> u64 {
    let text = text.strip_suffix('s').unwrap_or(text);
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part = format!("{part:0<6}");
    whole.parse::<u64>().unwrap() * 1_000_000 + part.parse::<u64>().unwrap()
}

pub(crate) fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}
