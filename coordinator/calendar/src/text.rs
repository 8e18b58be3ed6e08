//! Moments as people read them. Knows no time zones but UTC.

/// A moment in the form of ISO 8601, in UTC and whole seconds, rounded down:
/// `2026-03-29T01:00:00Z`. None for what no calendar reaches.
#[must_use]
pub fn utc_text(unix_us: i64) -> Option<String> {
    let seconds = unix_us.div_euclid(1_000_000);
    let moment = jiff::Timestamp::from_second(seconds).ok()?;
    Some(moment.to_string())
}

/// A moment that is written in the form of RFC 3339, with an offset, in microseconds since
/// 1970. None for what is written otherwise, or says of no moment which one it is.
#[must_use]
pub fn unix_us_of(text: &str) -> Option<i64> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    Some(moment.as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_in_utc_and_whole_seconds() {
        let texts = [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (1_774_738_800_999_999, "2026-03-28T23:00:00Z"),
        ];
        for (unix_us, text) in texts {
            assert_eq!(utc_text(unix_us).as_deref(), Some(text));
        }
        assert_eq!(utc_text(i64::MAX), None);
    }

    #[test]
    fn a_moment_needs_an_offset() {
        let moments = [
            ("1970-01-01T00:00:01Z", Some(1_000_000)),
            ("1970-01-01T01:00:01+01:00", Some(1_000_000)),
            ("2026-03-28T23:00:00.999999Z", Some(1_774_738_800_999_999)),
            ("2026-03-28T23:00:00", None),
            ("2026-03-28", None),
            ("", None),
        ];
        for (text, unix_us) in moments {
            assert_eq!(unix_us_of(text), unix_us, "{text}");
        }
    }
}
