//! Every period from 1970 to 2100 in many zones, against an oracle with another
//! library, other time zone data and another way: it walks through time a quarter of an
//! hour at a step, looks what the local calendar shows, and writes down when a period's
//! first date shows up for the first time. It computes no instant from a date.
//!
//! The steps are enough because every clock here shows its full hours and its midnights
//! at a full quarter of an hour of UTC, which the walk checks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::collections::BTreeMap;

use chrono::{Datelike, NaiveDate, NaiveDateTime, Offset, TimeDelta, TimeZone, Timelike};
use chrono_tz::Tz;
use leasehold_calendar::{Bounds, Calendar, zones_version};
use proptest::prelude::*;

const STEP_S: i64 = 900;
const SECOND_US: i64 = 1_000_000;
/// 1970-01-01 and 2100-01-01: what the oracle's data reaches to.
const FIRST_S: i64 = 0;
const LAST_S: i64 = 4_102_444_800;
/// A little before: the first period may have begun in 1969.
const WALK_FROM_S: i64 = FIRST_S - 400 * 86_400;

const ZONES: &[Tz] = &[
    Tz::UTC,
    Tz::Europe__Berlin,
    Tz::Europe__London,
    Tz::Europe__Moscow,
    Tz::America__New_York,
    Tz::America__Sao_Paulo,
    Tz::America__St_Johns,
    Tz::America__Havana,
    Tz::America__Caracas,
    Tz::America__Vancouver,
    Tz::Australia__Lord_Howe,
    Tz::Pacific__Apia,
    Tz::Pacific__Kwajalein,
    Tz::Pacific__Chatham,
    Tz::Asia__Kathmandu,
    Tz::Asia__Tehran,
    Tz::Asia__Pyongyang,
    Tz::Asia__Gaza,
    Tz::Africa__Casablanca,
    Tz::Africa__Cairo,
    Tz::Antarctica__Troll,
];

/// Where the two databases differ, from one UTC date to another, and about what. chrono-tz
/// has the rules of IANA 2025b, jiff those of 2026f; `the_databases_are_those_that_were_compared`
/// fails when either changes.
const DIFFERENCES: &[(Tz, &str, &str, &str)] = &[
    (
        Tz::Asia__Tehran,
        "1979-05-25",
        "1979-05-27",
        "summer time began a day later",
    ),
    (
        Tz::Africa__Casablanca,
        "2026-09-20",
        "2101-01-01",
        "Morocco is on UTC, with no exceptions for Ramadan",
    ),
    (
        Tz::America__Vancouver,
        "2026-11-01",
        "2101-01-01",
        "summer time all year",
    ),
    (
        Tz::America__Havana,
        "2026-11-01",
        "2027-03-15",
        "summer time in this winter",
    ),
];

/// Unit, anchor and first month.
type Name = (&'static str, u8, u8);

const CALENDARS: &[Name] = &[
    ("hour", 0, 0),
    ("day", 0, 0),
    ("week", 1, 0),
    ("week", 4, 0),
    ("week", 7, 0),
    ("month", 1, 0),
    ("month", 15, 0),
    ("month", 28, 0),
    ("month", 29, 0),
    ("month", 30, 0),
    ("month", 31, 0),
    ("year", 1, 1),
    ("year", 28, 2),
    ("year", 29, 2),
    ("year", 1, 3),
    ("year", 6, 4),
    ("year", 31, 9),
    ("year", 31, 12),
];

fn calendar((unit, anchor, month): Name, zone: &str) -> Calendar {
    let calendar = Calendar::parse(unit, zone, anchor).expect("valid");
    calendar.beginning_in(month).expect("valid")
}

/// When periods began, in the order in which the walk saw it, in seconds since 1970.
type Seen = BTreeMap<Name, Vec<i64>>;

fn local(zone: Tz, at: i64) -> NaiveDateTime {
    let utc = chrono::DateTime::from_timestamp(at, 0)
        .expect("in range")
        .naive_utc();
    utc + TimeDelta::seconds(
        zone.offset_from_utc_datetime(&utc)
            .fix()
            .local_minus_utc()
            .into(),
    )
}

fn begins_with((unit, anchor, month): Name, date: NaiveDate) -> bool {
    let anchor = u32::from(anchor);
    let is_last_of_month = date.succ_opt().expect("in range").day() == 1;
    match unit {
        "day" => true,
        "week" => date.weekday().number_from_monday() == anchor,
        "year" if date.month() != u32::from(month) => false,
        "month" | "year" => date.day() == anchor || (is_last_of_month && date.day() < anchor),
        other => panic!("no dates begin the {other}"),
    }
}

fn walk(zone: Tz) -> Seen {
    let mut seen = Seen::new();
    let mut latest = local(zone, WALK_FROM_S).date();
    for at in (WALK_FROM_S..LAST_S + 40 * 86_400).step_by(usize::try_from(STEP_S).expect("small")) {
        let shown = local(zone, at);
        assert_eq!(
            (shown.minute() * 60 + shown.second()) % 900,
            0,
            "{zone}: {shown} is between the steps"
        );
        if shown.minute() == 0 {
            seen.entry(("hour", 0, 0)).or_default().push(at);
        }
        if shown.date() <= latest {
            continue;
        }
        let dates = latest
            .iter_days()
            .skip(1)
            .take_while(|date| *date <= shown.date());
        let dates: Vec<NaiveDate> = dates.collect();
        latest = shown.date();
        for name in CALENDARS.iter().filter(|(unit, ..)| *unit != "hour") {
            if dates.iter().any(|date| begins_with(*name, *date)) {
                seen.entry(*name).or_default().push(at);
            }
        }
    }
    seen
}

/// Asks at a period's first microsecond, at its last one, and somewhere within.
fn check(zone: Tz, seen: &Seen) {
    let differs = differences(zone);
    for (name, begins) in seen {
        let unit = name.0;
        let calendar = calendar(*name, zone.name());
        let mut last = None;
        for (start, end) in begins.iter().zip(&begins[1..]) {
            // Around every change of the clock, and now and then: hours are many.
            let regular = unit == "hour" && end - start == 3_600 && last == Some(3_600);
            last = Some(end - start);
            let near_a_change =
                local(zone, start - 7_200) + TimeDelta::hours(4) != local(zone, start + 7_200);
            let is_disputed = differs.iter().any(|(from, to)| start < to && from < end);
            if (regular && !near_a_change && start / 3_600 % 101 != 0) || is_disputed {
                continue;
            }
            let expected = Bounds {
                start_unix_us: start * SECOND_US,
                end_unix_us: end * SECOND_US,
            };
            let within = start + (end - start) * (start / 900 % 97) / 97;
            for at in [start * SECOND_US, within * SECOND_US, end * SECOND_US - 1] {
                if (FIRST_S * SECOND_US..LAST_S * SECOND_US).contains(&at) {
                    assert_eq!(
                        calendar.period_at(at),
                        Ok(expected),
                        "{zone}: the {name:?} at {} ({} on its clocks)",
                        at / SECOND_US,
                        local(zone, at.div_euclid(SECOND_US))
                    );
                }
            }
        }
    }
}

fn differences(zone: Tz) -> Vec<(i64, i64)> {
    let midnight = |date: &str| {
        let date: NaiveDate = date.parse().expect("a date");
        date.and_hms_opt(0, 0, 0)
            .expect("midnight")
            .and_utc()
            .timestamp()
    };
    let of_zone = DIFFERENCES.iter().filter(|(of, ..)| *of == zone);
    of_zone
        .map(|(_, from, to, _)| (midnight(from), midnight(to)))
        .collect()
}

#[test]
fn the_databases_are_those_that_were_compared() {
    assert_eq!(
        (zones_version(), chrono_tz::IANA_TZDB_VERSION),
        ("2026f", "2025b")
    );
}

#[test]
fn every_period_from_1970_to_2100_is_what_a_walk_through_time_sees() {
    let (left, right) = ZONES.split_at(ZONES.len() / 2);
    std::thread::scope(|threads| {
        for half in [left, right] {
            threads.spawn(move || half.iter().for_each(|zone| check(*zone, &walk(*zone))));
        }
    });
}

/// The instants at which any clock of a zone is set, in microseconds since 1970.
fn changes(zone: &str) -> Vec<i64> {
    let zone = jiff::tz::TimeZoneDatabase::bundled()
        .get(zone)
        .expect("a zone");
    let changes = zone.following(jiff::Timestamp::UNIX_EPOCH);
    let changes = changes.map(|change| change.timestamp().as_microsecond());
    changes.take_while(|at| *at < LAST_S * SECOND_US).collect()
}

#[test]
fn around_every_change_of_every_zone_periods_touch_and_no_hour_is_shorter_than_a_half() {
    const HOUR_US: i64 = 3_600 * SECOND_US;
    let zones = jiff::tz::TimeZoneDatabase::bundled();
    let mut checked = 0;
    for zone in zones.available() {
        let changes = changes(zone.as_str());
        for (unit, longest_us) in [("hour", 2 * HOUR_US), ("day", 49 * HOUR_US)] {
            let calendar = Calendar::parse(unit, zone.as_str(), 0).expect("valid");
            for change in changes.iter().filter(|at| **at > 3 * 24 * HOUR_US) {
                let mut at = change - 3 * longest_us / 2;
                let mut last: Option<Bounds> = None;
                while at < change + 3 * longest_us / 2 {
                    let found = calendar.period_at(at).expect("in range");
                    let long_us = found.end_unix_us - found.start_unix_us;
                    let shortest_us = if unit == "hour" { HOUR_US / 2 } else { 1 };
                    assert!(
                        (shortest_us..longest_us).contains(&long_us),
                        "{} {calendar:?}: {found:?}",
                        zone.as_str()
                    );
                    assert_eq!(calendar.period_at(found.end_unix_us - 1), Ok(found));
                    assert!(last.is_none_or(|last| last.end_unix_us == found.start_unix_us));
                    (at, last) = (found.end_unix_us, Some(found));
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 100_000, "{checked}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_instant_is_in_its_period_and_the_neighbours_touch_it(
        zone in prop::sample::select(chrono_tz::TZ_VARIANTS.to_vec()),
        unit in prop::sample::select(vec!["hour", "day", "week", "month", "year"]),
        anchor in 1_u8..=31,
        month in 1_u8..=12,
        at in 400 * 86_400 * SECOND_US..LAST_S * SECOND_US,
    ) {
        let (anchor, month) = match unit {
            "week" => (anchor % 7 + 1, 0),
            "month" => (anchor, 0),
            "year" => (anchor, month),
            _ => (0, 0),
        };
        let calendar = calendar((unit, anchor, month), zone.name());
        let found = calendar.period_at(at).expect("in range");
        prop_assert!((found.start_unix_us..found.end_unix_us).contains(&at));
        prop_assert_eq!(calendar.period_at(found.start_unix_us), Ok(found));
        prop_assert_eq!(calendar.period_at(found.end_unix_us - 1), Ok(found));
        let before = calendar.period_at(found.start_unix_us - 1).expect("in range");
        prop_assert_eq!(before.end_unix_us, found.start_unix_us);
        let after = calendar.period_at(found.end_unix_us).expect("in range");
        prop_assert_eq!(after.start_unix_us, found.end_unix_us);
    }
}
