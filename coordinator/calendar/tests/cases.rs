//! Periods that people would argue about, one a line: what the period is that contains
//! an instant, as instants.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use leasehold_calendar::{Bounds, Calendar, CalendarError, EARLIEST_UNIX_US, LATEST_UNIX_US, Unit};

fn unix_us(text: &str) -> i64 {
    let at: chrono::DateTime<chrono::Utc> = format!("{}:00Z", text.trim_end_matches('Z'))
        .parse()
        .expect("an instant");
    at.timestamp_micros()
}

fn said(unix_us: i64) -> String {
    let at = chrono::DateTime::from_timestamp_micros(unix_us).expect("in range");
    at.format("%Y-%m-%dT%H:%MZ").to_string()
}

/// `PERIOD[:[MONTH-]ANCHOR] ZONE INSTANT -> START END`, instants in UTC; a line without an arrow
/// says what the lines below it are about.
const CASES: &str = "
Nothing special
    hour     UTC                 2026-06-15T12:34Z -> 2026-06-15T12:00Z 2026-06-15T13:00Z
    day      UTC                 2026-06-15T12:34Z -> 2026-06-15T00:00Z 2026-06-16T00:00Z
    week     UTC                 2026-06-15T12:34Z -> 2026-06-15T00:00Z 2026-06-22T00:00Z
    week     UTC                 2026-06-14T23:59Z -> 2026-06-08T00:00Z 2026-06-15T00:00Z
    week:7   UTC                 2026-06-15T12:34Z -> 2026-06-14T00:00Z 2026-06-21T00:00Z
    month    UTC                 2026-06-15T12:34Z -> 2026-06-01T00:00Z 2026-07-01T00:00Z
    month:15 UTC                 2026-06-15T00:00Z -> 2026-06-15T00:00Z 2026-07-15T00:00Z
    month:15 UTC                 2026-06-14T23:59Z -> 2026-05-15T00:00Z 2026-06-15T00:00Z
    month:15 UTC                 2026-01-01T00:00Z -> 2025-12-15T00:00Z 2026-01-15T00:00Z
The last day of each month
    month:31 UTC                 2026-01-31T00:00Z -> 2026-01-31T00:00Z 2026-02-28T00:00Z
    month:31 UTC                 2026-02-28T12:00Z -> 2026-02-28T00:00Z 2026-03-31T00:00Z
    month:31 UTC                 2026-04-29T12:00Z -> 2026-03-31T00:00Z 2026-04-30T00:00Z
    month:31 UTC                 2026-04-30T12:00Z -> 2026-04-30T00:00Z 2026-05-31T00:00Z
    month:30 UTC                 2026-02-28T12:00Z -> 2026-02-28T00:00Z 2026-03-30T00:00Z
Leap days
    day      UTC                 2028-02-29T12:00Z -> 2028-02-29T00:00Z 2028-03-01T00:00Z
    month:29 UTC                 2028-02-29T12:00Z -> 2028-02-29T00:00Z 2028-03-29T00:00Z
    month:29 UTC                 2027-02-28T12:00Z -> 2027-02-28T00:00Z 2027-03-29T00:00Z
    month:31 UTC                 2028-02-28T12:00Z -> 2028-01-31T00:00Z 2028-02-29T00:00Z
    month:31 UTC                 2000-02-29T12:00Z -> 2000-02-29T00:00Z 2000-03-31T00:00Z
    month:31 UTC                 2100-02-28T12:00Z -> 2100-02-28T00:00Z 2100-03-31T00:00Z
Years, of the calendar and of others
    year     UTC                 2026-06-15T12:34Z -> 2026-01-01T00:00Z 2027-01-01T00:00Z
    year     America/New_York    2027-01-01T04:59Z -> 2026-01-01T05:00Z 2027-01-01T05:00Z
    year:4-6 Europe/London       2026-04-05T22:59Z -> 2025-04-05T23:00Z 2026-04-05T23:00Z
    year:4-6 Europe/London       2026-04-05T23:00Z -> 2026-04-05T23:00Z 2027-04-05T23:00Z
    year:7-1 Australia/Sydney    2026-06-30T13:59Z -> 2025-06-30T14:00Z 2026-06-30T14:00Z
    year:10-1 America/New_York   2026-10-01T04:00Z -> 2026-10-01T04:00Z 2027-10-01T04:00Z
    year:12-31 UTC               2026-12-30T00:00Z -> 2025-12-31T00:00Z 2026-12-31T00:00Z
A year from 29 February begins on the month's last day, as a month does
    year:2-29 UTC                2028-02-28T23:59Z -> 2027-02-28T00:00Z 2028-02-29T00:00Z
    year:2-29 UTC                2028-02-29T00:00Z -> 2028-02-29T00:00Z 2029-02-28T00:00Z
    year:2-29 UTC                2029-02-28T00:00Z -> 2029-02-28T00:00Z 2030-02-28T00:00Z
    year:2-31 UTC                2000-03-01T00:00Z -> 2000-02-29T00:00Z 2001-02-28T00:00Z
    year:2-29 UTC                2100-02-28T00:00Z -> 2100-02-28T00:00Z 2101-02-28T00:00Z
    year:2-28 UTC                2028-02-29T00:00Z -> 2028-02-28T00:00Z 2029-02-28T00:00Z
Clocks go forward: the day has 23 hours, and nothing else changes
    day      Europe/Berlin       2026-03-29T12:00Z -> 2026-03-28T23:00Z 2026-03-29T22:00Z
    hour     Europe/Berlin       2026-03-29T00:30Z -> 2026-03-29T00:00Z 2026-03-29T01:00Z
    hour     Europe/Berlin       2026-03-29T01:00Z -> 2026-03-29T01:00Z 2026-03-29T02:00Z
    week     Europe/Berlin       2026-03-29T12:00Z -> 2026-03-22T23:00Z 2026-03-29T22:00Z
    month    Europe/Berlin       2026-03-29T12:00Z -> 2026-02-28T23:00Z 2026-03-31T22:00Z
Clocks go back: the day has 25 hours, and the hour that is repeated counts twice
    day      Europe/Berlin       2026-10-25T12:00Z -> 2026-10-24T22:00Z 2026-10-25T23:00Z
    hour     Europe/Berlin       2026-10-25T00:30Z -> 2026-10-25T00:00Z 2026-10-25T01:00Z
    hour     Europe/Berlin       2026-10-25T01:30Z -> 2026-10-25T01:00Z 2026-10-25T02:00Z
Midnight is skipped: the day begins at 01:00
    day      America/Sao_Paulo   2018-11-04T12:00Z -> 2018-11-04T03:00Z 2018-11-05T02:00Z
    day      America/Sao_Paulo   2018-11-04T02:59Z -> 2018-11-03T03:00Z 2018-11-04T03:00Z
    day      Asia/Tehran         2022-03-21T20:31Z -> 2022-03-21T20:30Z 2022-03-22T19:30Z
Midnight is set back to 23:00 as it comes: the old day has 25 hours
    day      America/Sao_Paulo   2019-02-17T02:30Z -> 2019-02-16T02:00Z 2019-02-17T03:00Z
    day      Asia/Tehran         2022-09-21T20:00Z -> 2022-09-20T19:30Z 2022-09-21T20:30Z
Midnight comes, and comes again a minute later: the day begins once
    day      America/St_Johns    2010-11-07T02:29Z -> 2010-11-06T02:30Z 2010-11-07T02:30Z
    day      America/St_Johns    2010-11-07T02:30Z -> 2010-11-07T02:30Z 2010-11-08T03:30Z
    day      America/St_Johns    2010-11-07T03:29Z -> 2010-11-07T02:30Z 2010-11-08T03:30Z
    day      America/St_Johns    2010-11-07T03:30Z -> 2010-11-07T02:30Z 2010-11-08T03:30Z
    week:7   America/St_Johns    2010-11-07T03:00Z -> 2010-11-07T02:30Z 2010-11-14T03:30Z
    month:7  America/St_Johns    2010-11-07T03:00Z -> 2010-11-07T02:30Z 2010-12-07T03:30Z
    hour     America/St_Johns    2010-11-07T02:29Z -> 2010-11-07T01:30Z 2010-11-07T02:30Z
    hour     America/St_Johns    2010-11-07T02:30Z -> 2010-11-07T02:30Z 2010-11-07T03:30Z
    hour     America/St_Johns    2010-11-07T03:30Z -> 2010-11-07T03:30Z 2010-11-07T04:30Z
Midnight is repeated: the day begins at the first one
    day      America/Havana      2024-11-03T04:30Z -> 2024-11-03T04:00Z 2024-11-04T05:00Z
    day      America/Havana      2024-11-03T05:30Z -> 2024-11-03T04:00Z 2024-11-04T05:00Z
Half an hour forward, over a full hour that nobody sees
    hour     Australia/Lord_Howe 2026-10-03T15:29Z -> 2026-10-03T14:30Z 2026-10-03T16:00Z
    hour     Australia/Lord_Howe 2026-10-03T15:30Z -> 2026-10-03T14:30Z 2026-10-03T16:00Z
    hour     Australia/Lord_Howe 2026-10-03T16:00Z -> 2026-10-03T16:00Z 2026-10-03T17:00Z
    day      Australia/Lord_Howe 2026-10-03T16:00Z -> 2026-10-03T13:30Z 2026-10-04T13:00Z
Half an hour back, before the full hour is seen
    hour     Australia/Lord_Howe 2026-04-04T14:30Z -> 2026-04-04T14:00Z 2026-04-04T15:30Z
    hour     Australia/Lord_Howe 2026-04-04T15:29Z -> 2026-04-04T14:00Z 2026-04-04T15:30Z
    day      Australia/Lord_Howe 2026-04-04T15:00Z -> 2026-04-04T13:00Z 2026-04-05T13:30Z
Half an hour forward, to a full hour
    hour     America/Caracas     2016-05-01T06:59Z -> 2016-05-01T06:30Z 2016-05-01T07:00Z
A date that never was
    day      Pacific/Apia        2011-12-30T09:59Z -> 2011-12-29T10:00Z 2011-12-30T10:00Z
    day      Pacific/Apia        2011-12-30T10:00Z -> 2011-12-30T10:00Z 2011-12-31T10:00Z
    hour     Pacific/Apia        2011-12-30T09:59Z -> 2011-12-30T09:00Z 2011-12-30T10:00Z
    week     Pacific/Apia        2011-12-31T00:00Z -> 2011-12-26T10:00Z 2012-01-01T10:00Z
    week:5   Pacific/Apia        2011-12-30T09:59Z -> 2011-12-23T10:00Z 2011-12-30T10:00Z
    week:5   Pacific/Apia        2011-12-30T10:00Z -> 2011-12-30T10:00Z 2012-01-05T10:00Z
    month:30 Pacific/Apia        2011-12-30T09:59Z -> 2011-11-30T10:00Z 2011-12-30T10:00Z
    month:30 Pacific/Apia        2011-12-30T10:00Z -> 2011-12-30T10:00Z 2012-01-29T10:00Z
    year:12-30 Pacific/Apia      2011-12-30T09:59Z -> 2010-12-30T10:00Z 2011-12-30T10:00Z
    year:12-30 Pacific/Apia      2011-12-30T10:00Z -> 2011-12-30T10:00Z 2012-12-29T10:00Z
    month:31 Pacific/Apia        2011-12-30T10:00Z -> 2011-12-30T10:00Z 2012-01-30T10:00Z
    day      Pacific/Kwajalein   1993-08-21T12:30Z -> 1993-08-21T12:00Z 1993-08-22T12:00Z
Quarters of an hour
    hour     Asia/Kathmandu      2026-06-15T12:34Z -> 2026-06-15T12:15Z 2026-06-15T13:15Z
    day      Asia/Kathmandu      2026-06-15T12:34Z -> 2026-06-14T18:15Z 2026-06-15T18:15Z
    hour     Asia/Kathmandu      1985-12-31T18:29Z -> 1985-12-31T17:30Z 1985-12-31T19:15Z
    day      Asia/Kathmandu      1985-12-31T18:29Z -> 1985-12-30T18:30Z 1985-12-31T18:30Z
Winter time in summer: Ramadan in Morocco
    day      Africa/Casablanca   2026-02-15T12:00Z -> 2026-02-14T23:00Z 2026-02-16T00:00Z
The first period of all began before 1970
    month    America/New_York    1970-01-01T00:00Z -> 1969-12-01T05:00Z 1970-01-01T05:00Z
";

#[test]
fn the_periods_that_people_would_argue_about() {
    let mut wrong = Vec::new();
    for line in CASES.lines().filter(|line| line.contains("->")) {
        let [period, zone, at, _, start, end] = line.split_whitespace().collect::<Vec<_>>()[..]
        else {
            panic!("{line}");
        };
        let (unit, anchor) = period.split_once(':').unwrap_or((period, "0"));
        let (month, anchor) = anchor.split_once('-').unwrap_or(("0", anchor));
        let calendar = Calendar::parse(unit, zone, anchor.parse().expect(line)).expect(line);
        let calendar = calendar
            .beginning_in(month.parse().expect(line))
            .expect(line);
        let found = calendar.period_at(unix_us(at)).expect(line);
        let expected = Bounds {
            start_unix_us: unix_us(start),
            end_unix_us: unix_us(end),
        };
        if found != expected {
            wrong.push(format!(
                "{}\n        found {} {}",
                line.trim(),
                said(found.start_unix_us),
                said(found.end_unix_us)
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_microsecond_before_the_end_is_in_the_period_and_the_end_is_not() {
    let days = Calendar::parse("day", "Europe/Berlin", 0).expect("valid");
    let end = unix_us("2026-03-28T23:00");
    assert_eq!(days.period_at(end - 1).expect("in range").end_unix_us, end);
    assert_eq!(days.period_at(end).expect("in range").start_unix_us, end);
}

#[test]
fn what_means_the_same_is_equal() {
    let week = |zone, anchor| Calendar::parse("week", zone, anchor).expect("valid");
    assert_eq!(week("europe/berlin", 0), week("Europe/Berlin", 1));
    assert_eq!(week("Europe/Berlin", 0).anchor, 1);
    let year = |month| {
        let calendar = Calendar::parse("year", "UTC", 0).expect("valid");
        calendar.beginning_in(month).expect("valid")
    };
    assert_eq!((year(0), year(0).anchor_month), (year(1), 1));
    assert_eq!(
        Calendar::parse("day", "utc", 0).expect("valid").time_zone,
        "UTC"
    );
    let by_hand = Calendar {
        unit: Unit::Week,
        time_zone: "Europe/Berlin".to_owned(),
        anchor: 0,
        anchor_month: 0,
    };
    assert_eq!(by_hand.validate(), Ok(()));
    let at = unix_us("2026-06-15T12:34");
    assert_eq!(
        by_hand.period_at(at),
        week("Europe/Berlin", 1).period_at(at)
    );
}

#[test]
fn what_is_no_calendar_is_refused_with_the_field_the_value_and_the_range() {
    let refused = |period: &str, zone: &str, anchor| {
        let error = Calendar::parse(period, zone, anchor).expect_err("refused");
        format!("{}: {error}", error.code())
    };
    assert_eq!(
        refused("decade", "UTC", 0),
        "unknown_period: period (decade) must be hour, day, week, month or year"
    );
    let names = "is no IANA time zone: names look like Europe/Berlin, America/New_York or UTC";
    for (zone, meant) in [
        ("Berlin", "; did you mean Europe/Berlin?"),
        ("new york", "; did you mean America/New_York?"),
        ("Europa/Zurich", "; did you mean Europe/Zurich?"),
        ("UTC+2", ""),
        ("", ""),
        ("<+02>-2", ""),
        ("../../etc/passwd", ""),
    ] {
        assert_eq!(
            refused("day", zone, 0),
            format!("unknown_time_zone: time_zone ({zone}) {names}{meant}")
        );
    }
    assert_eq!(
        refused("week", "UTC", 8),
        "invalid_anchor: anchor (8) of a week must be 1 (Monday) to 7 (Sunday)"
    );
    assert_eq!(
        refused("month", "UTC", 32),
        "invalid_anchor: anchor (32) of a month must be 1 to 31, the day of the month (31: its last day)"
    );
    for unit in ["hour", "day"] {
        assert_eq!(
            refused(unit, "UTC", 1),
            format!(
                "invalid_anchor: anchor (1) goes with week (1 = Monday to 7 = Sunday), month and year (1 to 31): leave it out for {unit}"
            )
        );
    }
    let in_month = |period: &str, month| {
        let calendar = Calendar::parse(period, "UTC", 0).expect("valid");
        calendar
            .beginning_in(month)
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(
        in_month("year", 13),
        "anchor_month (13) of a year must be 1 (January) to 12 (December)"
    );
    assert_eq!(
        in_month("month", 4),
        "anchor_month (4) goes with year: leave it out for month"
    );
}

#[test]
fn what_is_not_valid_has_no_periods() {
    for (unit, time_zone, anchor, anchor_month) in [
        (Unit::Day, "Nowhere/Land", 0, 0),
        (Unit::Day, "UTC", 1, 0),
        (Unit::Week, "UTC", 8, 0),
        (Unit::Month, "UTC", 255, 0),
        (Unit::Month, "UTC", 1, 1),
        (Unit::Year, "UTC", 1, 13),
        (Unit::Year, "UTC", 32, 1),
    ] {
        let calendar = Calendar {
            unit,
            time_zone: time_zone.to_owned(),
            anchor,
            anchor_month,
        };
        let refused = calendar.validate().expect_err("refused");
        assert_eq!(calendar.period_at(0), Err(refused));
    }
}

#[test]
fn an_instant_outside_the_years_1970_to_2199_is_refused() {
    for unit in Unit::ALL {
        for zone in [
            "UTC",
            "Pacific/Kiritimati",
            "Pacific/Pago_Pago",
            "Africa/Casablanca",
        ] {
            let calendar = Calendar::parse(unit.as_str(), zone, 0).expect("valid");
            for unix_us in [i64::MIN, EARLIEST_UNIX_US - 1, LATEST_UNIX_US + 1, i64::MAX] {
                assert_eq!(
                    calendar.period_at(unix_us),
                    Err(CalendarError::InstantOutOfRange { unix_us })
                );
            }
            for unix_us in [EARLIEST_UNIX_US, LATEST_UNIX_US] {
                let found = calendar.period_at(unix_us).expect("in range");
                assert!((found.start_unix_us..found.end_unix_us).contains(&unix_us));
            }
        }
    }
    assert_eq!(unix_us("2200-01-01T00:00"), LATEST_UNIX_US + 1);
}
