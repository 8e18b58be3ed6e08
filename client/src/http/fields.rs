//! `RateLimit`, `RateLimit-Policy` and their forerunners, as texts. Knows no verdicts.

use std::{fmt::Write, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::shown::Shown;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// The greatest integer of a structured field (RFC 9651, section 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// Whole seconds, rounded up, so that nobody comes too early.
pub(super) fn seconds_up(time: Duration) -> u64 {
    let whole = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(whole)
}

/// Whether several fields of this name are one list.
pub(super) fn is_list(name: &HeaderName) -> bool {
    *name == RATE_LIMIT || *name == RATE_LIMIT_POLICY
}

/// `RateLimit-Policy: "default";q=100;w=60` and `RateLimit: "default";r=0;t=7`, with an
/// item for each.
pub(super) fn rate_limit(shown: &[Shown], headers: &mut HeaderMap) {
    let (mut policies, mut states) = (String::new(), String::new());
    for shown in shown {
        let name = quoted(&shown.public_name);
        for list in [&mut policies, &mut states] {
            if !list.is_empty() {
                list.push_str(", ");
            }
            list.push_str(&name);
        }
        parameter(&mut policies, "q", shown.limit);
        if let Some(window) = shown.window {
            parameter(&mut policies, "w", seconds_up(window));
        }
        parameter(&mut states, "r", shown.remaining);
        if let Some(reset) = shown.reset {
            parameter(&mut states, "t", seconds_up(reset));
        }
    }
    for (name, list) in [(RATE_LIMIT_POLICY, policies), (RATE_LIMIT, states)] {
        // An empty list is no field at all.
        if !list.is_empty()
            && let Ok(value) = HeaderValue::try_from(list)
        {
            headers.insert(name, value);
        }
    }
}

/// `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the one with this name, or else of
/// the one with the least left.
pub(super) fn legacy(shown: &[Shown], name: Option<&str>, headers: &mut HeaderMap) {
    let named = shown
        .iter()
        .find(|shown| Some(shown.public_name.as_str()) == name);
    let least = || shown.iter().min_by_key(|shown| shown.remaining);
    let Some(shown) = named.or_else(least) else {
        return;
    };
    headers.insert(LIMIT, HeaderValue::from(shown.limit));
    headers.insert(REMAINING, HeaderValue::from(shown.remaining));
    if let Some(reset) = shown.reset {
        headers.insert(RESET, HeaderValue::from(seconds_up(reset)));
    }
}

/// A string of a structured field. Public names are visible ASCII; what is not is left
/// out, so that one odd name does not make the whole list unreadable.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars().filter(|c| matches!(c, ' '..='~')) {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}

fn parameter(list: &mut String, name: &str, value: u64) {
    // Writing to a string cannot fail.
    let _ = write!(list, ";{name}={}", value.min(INTEGER_MAX));
}
