//! The key itself. Does not know patterns.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

use crate::{KeyError, encoding};

/// Names one account. Always in canonical encoding; cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Reads a key from segments joined by `/`. Each may be raw or
    /// percent-encoded; the result is canonical either way. A literal `*` must
    /// be written `%2A`, a literal `/` inside a segment `%2F`, a literal `%` `%25`.
    ///
    /// # Errors
    /// When the text names no key; the error says which segment and what is allowed.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        if text
            .bytes()
            .all(|byte| byte == b'/' || encoding::is_literal(byte))
        {
            for (number, segment) in (1..).zip(text.split('/')) {
                encoding::check_count(number)?;
                encoding::check_raw(segment, number)?;
            }
            encoding::check_length(text)?;
            return Ok(Self(text.into()));
        }
        let mut encoded = String::with_capacity(text.len());
        for (number, segment) in (1..).zip(text.split('/')) {
            if segment.contains('*') {
                return Err(KeyError::BareStar { segment: number });
            }
            push(&mut encoded, number, &encoding::decode(segment, number)?)?;
        }
        Self::from_encoded(&encoded)
    }

    /// Makes a key of raw segments; nothing in them has a special meaning.
    ///
    /// # Errors
    /// When there are too few or too many, one is empty, `.` or `..`, or the
    /// encoded key is too long.
    pub fn new<S: AsRef<str>>(segments: impl IntoIterator<Item = S>) -> Result<Self, KeyError> {
        let mut encoded = String::new();
        for (number, segment) in (1..).zip(segments) {
            push(&mut encoded, number, segment.as_ref())?;
        }
        Self::from_encoded(&encoded)
    }

    /// Makes a key of raw segments, each of them given in parts that are joined: for
    /// callers that would have to allocate to join them.
    ///
    /// # Errors
    /// As [`Key::new`].
    pub fn from_parts<'a, P: IntoIterator<Item = &'a str>>(
        segments: impl IntoIterator<Item = P>,
    ) -> Result<Self, KeyError> {
        let mut encoded = String::with_capacity(64);
        for (number, parts) in (1..).zip(segments) {
            encoding::check_count(number)?;
            if number > 1 {
                encoded.push('/');
            }
            let begins = encoded.len();
            for part in parts {
                encoding::encode(part, &mut encoded);
            }
            // What no segment may be is the same text encoded.
            encoding::check_raw(encoded.get(begins..).unwrap_or_default(), number)?;
        }
        Self::from_encoded(&encoded)
    }

    /// The key with raw segments appended; nothing in them has a special meaning.
    ///
    /// # Errors
    /// When there are too many, one is empty, `.` or `..`, or the encoded key is too
    /// long.
    pub fn with_segments<S: AsRef<str>>(
        &self,
        segments: impl IntoIterator<Item = S>,
    ) -> Result<Self, KeyError> {
        let mut encoded = self.as_str().to_owned();
        for (number, segment) in (self.segments().count() + 1..).zip(segments) {
            push(&mut encoded, number, segment.as_ref())?;
        }
        Self::from_encoded(&encoded)
    }

    fn from_encoded(encoded: &str) -> Result<Self, KeyError> {
        if encoded.is_empty() {
            return Err(KeyError::Empty);
        }
        encoding::check_length(encoded)?;
        Ok(Self(encoded.into()))
    }

    /// The canonical encoding.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its segments, still encoded.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }
}

/// Appends one raw segment in canonical encoding.
fn push(encoded: &mut String, number: usize, raw: &str) -> Result<(), KeyError> {
    encoding::check_count(number)?;
    encoding::check_raw(raw, number)?;
    if number > 1 {
        encoded.push('/');
    }
    encoding::encode(raw, encoded);
    Ok(())
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Ordered and hashed as its canonical text.
impl Borrow<str> for Key {
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

    #[test]
    fn raw_and_encoded_texts_of_one_key_become_the_same_bytes() {
        for text in ["a|b/ü", "a%7cb/%C3%BC", "%61%7Cb/%c3%bc"] {
            assert_eq!(Key::parse(text).unwrap().as_str(), "a%7Cb/%C3%BC");
        }
        assert_eq!(Key::new(["a|b", "ü"]).unwrap().as_str(), "a%7Cb/%C3%BC");
    }

    #[test]
    fn pchar_stays_literal_except_the_star() {
        let literal = "aZ09-._~!$&'()+,;=:@";
        assert_eq!(Key::parse(literal).unwrap().as_str(), literal);
        assert_eq!(Key::new(["a*"]).unwrap().as_str(), "a%2A");
        assert_eq!(Key::parse("a%2a").unwrap().as_str(), "a%2A");
        assert_eq!(Key::parse("x/a*"), Err(KeyError::BareStar { segment: 2 }));
    }

    #[test]
    fn an_encoded_slash_does_not_split() {
        let key = Key::parse("a%2Fb").unwrap();
        assert_eq!(key.segments().count(), 1);
        assert_ne!(key, Key::parse("a/b").unwrap());
        assert_ne!(
            Key::new(["a_b", "c"]).unwrap(),
            Key::new(["a", "b_c"]).unwrap()
        );
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert_eq!(Key::parse(""), Err(KeyError::Empty));
        assert_eq!(Key::new(Vec::<&str>::new()), Err(KeyError::Empty));
        assert_eq!(Key::parse("/"), Err(KeyError::EmptySegment { segment: 1 }));
        assert_eq!(
            Key::parse("a//b"),
            Err(KeyError::EmptySegment { segment: 2 })
        );
        assert_eq!(Key::parse("a/"), Err(KeyError::EmptySegment { segment: 2 }));
        for dots in ["a/.", "a/..", "a/%2e", "a/%2E."] {
            assert_eq!(Key::parse(dots), Err(KeyError::DotSegment { segment: 2 }));
        }
        assert!(Key::parse("a/...").is_ok());
        for bad in ["%", "a%2", "a%zz", "%+1", "%é1"] {
            assert_eq!(
                Key::parse(bad),
                Err(KeyError::BadEscape { segment: 1 }),
                "{bad}"
            );
        }
        assert_eq!(Key::parse("b/%ff"), Err(KeyError::NotUtf8 { segment: 2 }));
    }

    #[test]
    fn the_bounds_count_segments_and_encoded_bytes() {
        assert!(Key::parse(&["a"; 16].join("/")).is_ok());
        assert_eq!(
            Key::parse(&["a"; 17].join("/")),
            Err(KeyError::TooManySegments)
        );
        assert!(Key::parse(&"a".repeat(512)).is_ok());
        assert_eq!(
            Key::parse(&"a".repeat(513)),
            Err(KeyError::TooLong { bytes: 513 })
        );
        assert!(Key::parse(&"|".repeat(170)).is_ok());
        assert_eq!(
            Key::parse(&"|".repeat(171)),
            Err(KeyError::TooLong { bytes: 513 })
        );
        assert_eq!(
            Key::new([&"é".repeat(100)]),
            Err(KeyError::TooLong { bytes: 600 })
        );
    }

    proptest! {
        #[test]
        fn parsing_a_key_again_changes_nothing(segments in prop::collection::vec("\\PC{1,12}", 1..5)) {
            if let Ok(key) = Key::new(&segments) {
                prop_assert_eq!(Key::parse(key.as_str()).unwrap(), key.clone());
                let decoded: Vec<String> = key
                    .segments()
                    .map(|segment| encoding::decode(segment, 1).unwrap().into_owned())
                    .collect();
                prop_assert_eq!(decoded, segments);
            }
        }

        #[test]
        fn parts_of_a_segment_are_joined(
            segments in prop::collection::vec(prop::collection::vec("[ab.=%/*é]{0,3}", 0..4), 0..5),
        ) {
            let parts = segments.iter().map(|parts| parts.iter().map(String::as_str));
            let joined = segments.iter().map(|parts| parts.concat());
            prop_assert_eq!(Key::from_parts(parts), Key::new(joined));
        }

        #[test]
        fn any_text_is_a_canonical_key_or_a_clear_error(text in "\\PC{0,60}|[a-z%/.*2F]{0,40}") {
            match Key::parse(&text) {
                Ok(key) => {
                    prop_assert!(key.as_str().len() <= 512);
                    prop_assert!(key.segments().count() <= 16);
                    prop_assert!(key.segments().all(|segment| !segment.is_empty()));
                    prop_assert_eq!(Key::parse(key.as_str()).unwrap(), key);
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }

        #[test]
        fn different_segments_never_share_a_key(
            one in prop::collection::vec("[a-c_%/*|.]{1,4}", 1..4),
            other in prop::collection::vec("[a-c_%/*|.]{1,4}", 1..4),
        ) {
            if let (Ok(left), Ok(right)) = (Key::new(&one), Key::new(&other)) {
                prop_assert_eq!(left == right, one == other);
            }
        }
    }
}
