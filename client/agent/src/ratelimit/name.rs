//! Names of policies, from the pattern that follows them: readable, the same in every run,
//! and different for different patterns. Does not know what a policy says.

use leasehold_key::Pattern;
use xxhash_rust::xxh3::xxh3_64;

/// The longest that a policy's name may be.
const NAME_BYTES_MAX: usize = 64;
/// What separates a name from the digest that makes it unique.
const MARK: &str = "--";
/// Hexadecimal digits of a digest.
const DIGITS: usize = 12;

/// The name of the policy that an import makes for the budget with a pattern: `messaging.message_type-marketing.to_number`
/// for `messaging/message_type=marketing/to_number=*`.
///
/// A pattern that says more than a name can is shortened, and a digest of it is added.
#[must_use]
pub fn policy_name(pattern: &Pattern) -> String {
    if let Some(name) = plain(pattern.as_str()) {
        return name;
    }
    let digest = xxh3_64(pattern.as_str().as_bytes()) & ((1 << (4 * DIGITS)) - 1);
    let mut name = String::new();
    let readable = pattern.as_str().replace("=*", "");
    let mut chars = readable.chars();
    while let Some(char) = chars.next() {
        let char = match char {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => char,
            '/' => '.',
            '%' => {
                // An escape is three characters, of which none says anything to people.
                chars.nth(1);
                '-'
            }
            _ => '-',
        };
        if !(char == '-' && name.ends_with(['-', '.'])) {
            name.push(char);
        }
    }
    name.truncate(NAME_BYTES_MAX - MARK.len() - DIGITS);
    let name = name.trim_end_matches(['-', '.']);
    format!("{name}{MARK}{digest:0DIGITS$x}")
}

/// A name from which the pattern can be told, if there is one.
fn plain(pattern: &str) -> Option<String> {
    let mut segments = pattern.split('/');
    let mut name = segments.next()?.to_owned();
    let word = |text: &str, more: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
        !text.is_empty() && text.chars().all(allowed)
    };
    if !word(&name, "_-") {
        return None;
    }
    for segment in segments {
        let (key, value) = segment.split_once('=')?;
        name.push('.');
        name.push_str(key);
        if !word(key, "_") {
            return None;
        }
        if value != "*" {
            name.push('-');
            name.push_str(value);
            if !word(value, "_-") {
                return None;
            }
        }
    }
    (name.len() <= NAME_BYTES_MAX && !name.contains(MARK)).then_some(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn name(pattern: &str) -> String {
        policy_name(&Pattern::parse(pattern).unwrap())
    }

    #[test]
    fn a_name_says_what_the_pattern_says() {
        assert_eq!(
            name("messaging/message_type=marketing/to_number=*"),
            "messaging.message_type-marketing.to_number"
        );
        assert_eq!(
            name("my-api/service=auth-service"),
            "my-api.service-auth-service"
        );
        assert_eq!(
            name("edge/remote_address=50.0.0.5"),
            "edge.remote_address-50-0-0-5--9510e31aff1a"
        );
        assert_eq!(name("d/path=%2Fapi%2F*"), "d.path-api--0724ab2265e5");
    }

    #[test]
    fn a_long_name_is_cut_and_a_name_that_is_just_short_enough_is_not() {
        let fits = format!("d/{}=*", "k".repeat(62));
        assert_eq!(name(&fits), format!("d.{}", "k".repeat(62)));
        let long = name(&format!("d/{}=*", "k".repeat(63)));
        assert_eq!(long.len(), 64);
        assert!(
            long.starts_with(&format!("d.{}--", "k".repeat(48))),
            "{long}"
        );
    }

    proptest! {
        #[test]
        fn different_patterns_have_different_names_that_policies_may_have(
            patterns in prop::collection::hash_set(
                "[ab]{1,2}(-[ab])?(/[ab_.-]{1,3}=(\\*|[ab*._-]{0,4}\\*?)){0,3}", 1..40)
        ) {
            let mut names = HashMap::new();
            for text in patterns {
                let Ok(pattern) = Pattern::parse(&text) else { continue };
                let name = policy_name(&pattern);
                prop_assert!((1..=64).contains(&name.len()));
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)));
                if let Some(other) = names.insert(name, pattern.clone()) {
                    prop_assert_eq!(other, pattern);
                }
            }
        }
    }
}
