//! Which key a descriptor is charged to. Asks nobody.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use leasehold_key::{Key, KeyError};

use crate::{config::Mapping, ratelimit::Decision};

/// What a descriptor is charged to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mapped {
    Key(Key),
    /// A rule says that it is never refused: it is only counted.
    Unlimited(Key),
    /// A rule says that it is not.
    Uncounted,
    NoRule,
    /// It can be no key: too long, with too many entries, or an empty one.
    NoKey(KeyError),
}

/// What each descriptor of a request is charged to, in their order.
pub(super) fn mapped(
    mapping: &Mapping,
    domain: &str,
    descriptors: &[RateLimitDescriptor],
) -> Vec<Mapped> {
    match mapping {
        Mapping::Plain(domains) => {
            let is_known = domains
                .as_ref()
                .is_none_or(|domains| domains.iter().any(|known| known == domain));
            let each = descriptors.iter();
            if is_known {
                each.map(|descriptor| plain(domain, descriptor)).collect()
            } else {
                each.map(|_| Mapped::NoRule).collect()
            }
        }
        Mapping::Ratelimit(rules) => {
            let decided = rules.decide(domain, descriptors.iter().map(entries));
            let mapped = |decision| match decision {
                Decision::Budget(key) => Mapped::Key(key),
                Decision::Unlimited(Some(key)) => Mapped::Unlimited(key),
                Decision::Unlimited(None) | Decision::Replaced => Mapped::Uncounted,
                Decision::NoRule => Mapped::NoRule,
                Decision::NoKey(error) => Mapped::NoKey(error),
            };
            decided.into_iter().map(mapped).collect()
        }
    }
}

fn entries(descriptor: &RateLimitDescriptor) -> impl Iterator<Item = (&str, &str)> {
    let entries = descriptor.entries.iter();
    entries.map(|entry| (entry.key.as_str(), entry.value.as_str()))
}

/// The domain is the first segment, and each entry a segment `key=value`.
fn plain(domain: &str, descriptor: &RateLimitDescriptor) -> Mapped {
    // A descriptor of nothing would be everybody's, and one with an empty value that of all
    // who leave a header empty.
    if descriptor.entries.is_empty() || entries(descriptor).any(|(_, value)| value.is_empty()) {
        return Mapped::NoRule;
    }
    let segments = entries(descriptor).map(|(key, value)| segment(key, value));
    match Key::new(std::iter::once(domain.to_owned()).chain(segments)) {
        Ok(key) => Mapped::Key(key),
        Err(error) => Mapped::NoKey(error),
    }
}

/// As the files of envoyproxy/ratelimit have it: what means something left of a value is
/// escaped, so that the key `a=b` with the value `c` and `a` with `b=c` have segments of
/// their own.
fn segment(key: &str, value: &str) -> String {
    let key = key.replace('%', "%25").replace('=', "%3D");
    [&key.replace('~', "%7E"), "=", value].concat()
}

/// A descriptor without its values, for logs.
pub(super) fn shape(descriptor: &RateLimitDescriptor) -> String {
    let keys: Vec<&str> = descriptor
        .entries
        .iter()
        .map(|entry| entry.key.as_str())
        .collect();
    if keys.is_empty() {
        return "(no entries)".to_owned();
    }
    keys.join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use proptest::prelude::*;

    use super::*;

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        };
        RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        }
    }

    fn told(mapping: &Mapping, domain: &str, entries: &[(&str, &str)]) -> Mapped {
        let mut all = mapped(mapping, domain, &[descriptor(entries)]);
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    fn text(mapping: &Mapping, domain: &str, entries: &[(&str, &str)]) -> String {
        match told(mapping, domain, entries) {
            Mapped::Key(key) => key.as_str().to_owned(),
            Mapped::Unlimited(key) => format!("unlimited {key}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_domain_and_each_entry_are_a_segment() {
        let any = Mapping::default();
        let entries = [("remote_address", "10.0.0.1"), ("path", "/v1/*")];
        assert_eq!(
            text(&any, "edge", &entries),
            "edge/remote_address=10.0.0.1/path=%2Fv1%2F%2A"
        );
        assert_eq!(text(&any, "edge", &[("a=b", "c")]), "edge/a%253Db=c");
        let empty = [("route", "orders"), ("api_key", "")];
        assert_eq!(text(&any, "edge", &empty), "NoRule");
        assert_eq!(text(&any, "edge", &[]), "NoRule");
    }

    #[test]
    fn a_domain_that_is_not_listed_has_no_rule() {
        let listed = Mapping::Plain(Some(vec!["edge".to_owned()]));
        assert_eq!(text(&listed, "edge", &[("a", "b")]), "edge/a=b");
        assert_eq!(text(&listed, "other", &[("a", "b")]), "NoRule");
    }

    #[test]
    fn what_is_too_long_or_has_too_many_entries_is_no_key() {
        let long = "x".repeat(600);
        let any = Mapping::default();
        let too_long = told(&any, "edge", &[("a", &long)]);
        assert!(matches!(too_long, Mapped::NoKey(KeyError::TooLong { .. })));
        let too_many = told(&any, "edge", &vec![("a", "b"); 16]);
        assert_eq!(too_many, Mapped::NoKey(KeyError::TooManySegments));
    }

    #[test]
    fn the_files_of_envoyproxy_ratelimit_say_which_key_it_is() {
        let yaml = "domain: edge\ndescriptors:\n  - key: user\n    rate_limit:\n      \
                    unit: minute\n      requests_per_unit: 5\n  - key: health\n    \
                    rate_limit:\n      unlimited: true\n";
        let config = crate::ratelimit::Config::parse([("edge.yaml", yaml)]).unwrap();
        let files = Mapping::Ratelimit(std::sync::Arc::new(config.rules()));
        assert_eq!(text(&files, "edge", &[("user", "ada")]), "edge/user=ada");
        assert_eq!(
            text(&files, "edge", &[("health", "")]),
            "unlimited edge/health="
        );
        let long = "x".repeat(600);
        let long = text(&files, "edge", &[("health", &long)]);
        assert_eq!(long, "Uncounted", "it is never refused");
        assert_eq!(text(&files, "edge", &[("other", "ada")]), "NoRule");
        assert_eq!(text(&files, "other", &[("user", "ada")]), "NoRule");
        // The same key as without the files.
        assert_eq!(
            told(&files, "edge", &[("user", "a=b%/~")]),
            told(&Mapping::default(), "edge", &[("user", "a=b%/~")])
        );
    }

    proptest! {
        #[test]
        fn different_descriptors_never_share_a_key(
            one in prop::collection::vec(("[ab=%/]{1,3}", "[ab=%/]{1,3}"), 1..3),
            other in prop::collection::vec(("[ab=%/]{1,3}", "[ab=%/]{1,3}"), 1..3),
        ) {
            let made = |entries: &[(String, String)]| {
                let entries: Vec<(&str, &str)> =
                    entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                match told(&Mapping::default(), "edge", &entries) {
                    Mapped::Key(key) => key,
                    other => panic!("{other:?}"),
                }
            };
            prop_assert_eq!(made(&one) == made(&other), one == other);
        }
    }
}
