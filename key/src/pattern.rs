//! Patterns of keys. Does not know what a pattern is bound to.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use crate::{Key, KeyError, encoding};

/// Names a set of keys. Each segment is a literal, `prefix*` or `*`; the last
/// may be `**`, which stands for one or more segments. Always in canonical
/// encoding; cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(Arc<str>);

/// One segment of a pattern, in the order of how specific it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternSegment<'a> {
    /// Matches this segment.
    Literal(&'a str),
    /// Matches every segment that begins so, also the prefix itself.
    Prefix(&'a str),
    /// Matches any one segment.
    Any,
    /// Matches one or more segments up to the key's end.
    Rest,
}

impl Pattern {
    /// Reads a pattern from segments joined by `/`, each raw or percent-encoded.
    /// A bare `*` is never literal; a literal one is written `%2A`.
    ///
    /// # Errors
    /// When the text is no pattern; the error says which segment and what is allowed.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        let last = text.split('/').count();
        let mut encoded = String::with_capacity(text.len());
        for (number, segment) in (1..).zip(text.split('/')) {
            encoding::check_count(number)?;
            if number > 1 {
                encoded.push('/');
            }
            if segment == "**" {
                if number != last {
                    return Err(KeyError::MisplacedDoubleStar { segment: number });
                }
                encoded.push_str(segment);
                continue;
            }
            let (text, star) = match segment.strip_suffix('*') {
                Some(prefix) => (prefix, true),
                None => (segment, false),
            };
            if text.contains('*') {
                return Err(KeyError::MisplacedStar { segment: number });
            }
            let raw = encoding::decode(text, number)?;
            if star {
                encoding::encode(&raw, &mut encoded);
                encoded.push('*');
            } else {
                encoding::check_raw(&raw, number)?;
                encoding::encode(&raw, &mut encoded);
            }
        }
        encoding::check_length(&encoded)?;
        Ok(Self(encoded.into()))
    }

    /// The canonical encoding.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its segments.
    pub fn segments(&self) -> impl Iterator<Item = PatternSegment<'_>> {
        self.0
            .split('/')
            .map(|segment| match segment.strip_suffix('*') {
                None => PatternSegment::Literal(segment),
                Some("") => PatternSegment::Any,
                Some("*") => PatternSegment::Rest,
                Some(prefix) => PatternSegment::Prefix(prefix),
            })
    }

    /// Whether it matches a key.
    #[must_use]
    pub fn matches(&self, key: &Key) -> bool {
        let mut rest = key.segments();
        for segment in self.segments() {
            let Some(text) = rest.next() else {
                return false;
            };
            let fits = match segment {
                PatternSegment::Rest => return true,
                PatternSegment::Any => true,
                PatternSegment::Prefix(prefix) => text.starts_with(prefix),
                PatternSegment::Literal(literal) => text == literal,
            };
            if !fits {
                return false;
            }
        }
        rest.next().is_none()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Pattern {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

impl AsRef<str> for Pattern {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Ordered and hashed as its canonical text.
impl Borrow<str> for Pattern {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "tests"
    )]

    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, key: &str) -> bool {
        Pattern::parse(pattern)
            .unwrap()
            .matches(&Key::parse(key).unwrap())
    }

    #[test]
    fn each_kind_of_segment_matches_what_it_says() {
        assert!(matches("a/b", "a/b"));
        assert!(!matches("a/b", "a/b/c"));
        assert!(matches("a/b*", "a/b") && matches("a/b*", "a/bcd") && !matches("a/b*", "a/c"));
        assert!(matches("*/b", "x/b") && !matches("*/b", "b"));
        assert!(matches("a/**", "a/b") && matches("a/**", "a/b/c/d") && !matches("a/**", "a"));
        assert!(matches("**", "a/b"));
        assert!(matches("a/%2A", "a/%2a") && !matches("a/%2A", "a/b"));
        assert!(matches("ü*", "%C3%BCber"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        assert_eq!(Pattern::parse(""), Err(KeyError::Empty));
        assert_eq!(
            Pattern::parse("a/**/b"),
            Err(KeyError::MisplacedDoubleStar { segment: 2 })
        );
        assert_eq!(
            Pattern::parse("a*b"),
            Err(KeyError::MisplacedStar { segment: 1 })
        );
        assert_eq!(
            Pattern::parse("a/b**"),
            Err(KeyError::MisplacedStar { segment: 2 })
        );
        assert_eq!(
            Pattern::parse("a/***"),
            Err(KeyError::MisplacedStar { segment: 2 })
        );
        assert_eq!(
            Pattern::parse("a/"),
            Err(KeyError::EmptySegment { segment: 2 })
        );
        assert_eq!(
            Pattern::parse("a/.."),
            Err(KeyError::DotSegment { segment: 2 })
        );
        assert_eq!(
            Pattern::parse(&["*"; 17].join("/")),
            Err(KeyError::TooManySegments)
        );
        assert_eq!(
            Pattern::parse("%f"),
            Err(KeyError::BadEscape { segment: 1 })
        );
    }

    #[test]
    fn a_pattern_has_one_canonical_encoding() {
        assert_eq!(Pattern::parse("%61|/%7c*").unwrap().as_str(), "a%7C/%7C*");
    }

    proptest! {
        #[test]
        fn parsing_a_pattern_again_changes_nothing(text in "[a-c*/%2A.|]{1,12}") {
            if let Ok(pattern) = Pattern::parse(&text) {
                prop_assert_eq!(Pattern::parse(pattern.as_str()).unwrap(), pattern);
            }
        }

        #[test]
        fn every_key_is_a_pattern_that_matches_it_alone(
            one in prop::collection::vec("[ab*|]{1,2}", 1..3),
            other in prop::collection::vec("[ab*|]{1,2}", 1..3),
        ) {
            let (one, other) = (Key::new(&one).unwrap(), Key::new(&other).unwrap());
            let pattern = Pattern::parse(one.as_str()).unwrap();
            prop_assert_eq!(pattern.matches(&other), one == other);
        }
    }
}
