//! How one entry of a descriptor becomes one segment of a key, such that different
//! entries never share one. Does not know which rule an entry follows.

use std::borrow::Cow;

use leasehold_key::{Key, KeyError};

/// What a rule's entry matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Value {
    /// Any value; each has a counter of its own.
    Any,
    /// This value.
    Exact(String),
    /// Any value like it.
    Wildcard(Wildcard),
}

/// A text with `*` for any characters, also none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wildcard {
    text: String,
    parts: Vec<String>,
}

impl Wildcard {
    /// Reads a text that has a `*`.
    pub(super) fn parse(text: &str) -> Self {
        let mut single = text.to_owned();
        // `**` says no more than `*`.
        while single.contains("**") {
            single = single.replace("**", "*");
        }
        let parts = single.split('*').map(str::to_owned).collect();
        Self {
            text: text.to_owned(),
            parts,
        }
    }

    /// As it is written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// What all its values begin with, if nothing else is asked of them.
    pub(super) fn prefix(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [prefix, rest] if rest.is_empty() => Some(prefix),
            _ => None,
        }
    }

    pub(super) fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return false;
        };
        let Some(mut left) = value.strip_prefix(first.as_str()) else {
            return false;
        };
        // The end first: what is between may then be anywhere before it.
        match left.strip_suffix(last.as_str()) {
            Some(between) => left = between,
            None => return false,
        }
        for part in middle {
            match left.split_once(part.as_str()) {
                Some((_, rest)) => left = rest,
                None => return false,
            }
        }
        true
    }

    /// The texts before, between and after its stars.
    pub(super) fn parts(&self) -> &[String] {
        &self.parts
    }

    /// Whether it surely matches everything that another one does.
    #[cfg(test)]
    pub(super) fn covers(&self, other: &Self) -> bool {
        let other_first = other.parts.first().map_or("", String::as_str);
        self.parts == other.parts || self.prefix().is_some_and(|p| other_first.starts_with(p))
    }
}

/// The segments that a rule's entry has.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Up to and with the `=`.
    left: Box<str>,
    right: Right,
}

#[derive(Clone, Debug)]
enum Right {
    /// The same for all values.
    Fixed(Box<str>),
    /// The entry's value, which begins so.
    Begins(Box<str>),
}

impl Segment {
    /// Of an entry with `key` that matches `value`; `shared`: all values have one counter.
    pub(super) fn new(key: &str, value: &Value, shared: bool) -> Self {
        let key = escaped(key);
        let plain = format!("{key}=").into_boxed_str();
        let (left, right) = match value {
            Value::Any => (plain, Right::Begins(Box::default())),
            Value::Exact(value) => (plain, Right::Fixed(value.as_str().into())),
            Value::Wildcard(wildcard) if shared => (plain, Right::Fixed(wildcard.text().into())),
            Value::Wildcard(wildcard) => match wildcard.prefix() {
                Some(prefix) => (plain, Right::Begins(prefix.into())),
                // A pattern of keys has its star at a segment's end. The wildcard becomes
                // a part of the segment, so that its keys can be told from all others.
                None => (
                    format!("{key}~{}=", escaped(wildcard.text())).into_boxed_str(),
                    Right::Begins(Box::default()),
                ),
            },
        };
        Self { left, right }
    }

    /// The raw segment of an entry's value, in parts.
    pub(super) fn of<'a>(&'a self, value: &'a str) -> [&'a str; 2] {
        match &self.right {
            Right::Fixed(fixed) => [&self.left, fixed],
            Right::Begins(_) => [&self.left, value],
        }
    }

    /// The pattern of all of them, in canonical encoding.
    pub(super) fn pattern(&self) -> Result<String, KeyError> {
        let (right, star) = match &self.right {
            Right::Fixed(fixed) => (fixed, ""),
            Right::Begins(prefix) => (prefix, "*"),
        };
        let begins = Key::from_parts([[&*self.left, &**right]])?;
        Ok(format!("{begins}{star}"))
    }
}

/// A text without the characters that mean something left of a segment's value.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '=', '~']) {
        return Cow::Borrowed(text);
    }
    let text = text.replace('%', "%25");
    Cow::Owned(text.replace('=', "%3D").replace('~', "%7E"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn wild(text: &str) -> Wildcard {
        Wildcard::parse(text)
    }

    #[test]
    fn a_star_stands_for_any_characters_also_none() {
        for (text, yes, no) in [
            ("foo*", &["foo", "foobar", "foo*"][..], &["fo", "xfoo"][..]),
            ("*", &["", "x"], &[]),
            ("*foo", &["foo", "xfoo"], &["foox"]),
            ("a*b", &["ab", "axb", "abab"], &["a", "b", "aba"]),
            ("a*a", &["aa", "aaa"], &["a"]),
            ("a*b*c", &["abc", "axbxc", "abbc"], &["ac", "acb", "ab"]),
            ("/x/*/y/*/z", &["/x/1/y/2/z"], &["/x/1/y/2", "/x/y/z"]),
            ("a**", &["a", "ab"], &["b"]),
            ("**a", &["a", "ba"], &["ab"]),
            ("a**b", &["ab", "axb"], &["a"]),
            ("**", &["", "a"], &[]),
        ] {
            for value in yes {
                assert!(wild(text).matches(value), "{text} {value}");
            }
            for value in no {
                assert!(!wild(text).matches(value), "{text} {value}");
            }
        }
    }

    #[test]
    fn a_wildcard_covers_what_surely_matches_it_too() {
        assert!(wild("foo*").covers(&wild("foobar*")));
        assert!(wild("foo*").covers(&wild("foo*bar")));
        assert!(wild("a*b").covers(&wild("a**b")));
        assert!(wild("*").covers(&wild("x*y")));
        assert!(!wild("foobar*").covers(&wild("foo*")));
        assert!(!wild("a*b").covers(&wild("a*")));
    }

    #[test]
    fn different_entries_never_share_a_segment() {
        let text = |key: &str, value: Value, entry: &str| {
            let segment = Segment::new(key, &value, false);
            Key::from_parts([segment.of(entry)]).unwrap().to_string()
        };
        let of = |key: &str, entry: &str| text(key, Value::Any, entry);
        assert_eq!(of("user", "bob"), "user=bob");
        assert_eq!(of("user", ""), "user=");
        assert_eq!(of("a", "b=c"), "a=b=c");
        assert_eq!(of("a=b", "c"), "a%253Db=c");
        let middle = text("path", Value::Wildcard(wild("/a/*/b")), "/a/1/b");
        assert_eq!(middle, "path~%2Fa%2F%2A%2Fb=%2Fa%2F1%2Fb");
        assert_ne!(of("path~/a/*/b", "/a/1/b"), middle);
    }

    #[test]
    fn shared_values_have_the_wildcards_own_segment() {
        let segment = Segment::new("f", &Value::Wildcard(wild("x/*")), true);
        assert_eq!(segment.of("x/1").concat(), "f=x/*");
        assert_eq!(segment.pattern().unwrap(), "f=x%2F%2A");
        let apart = Segment::new("f", &Value::Wildcard(wild("x/*")), false);
        assert_eq!(apart.of("x/1").concat(), "f=x/1");
        assert_eq!(apart.pattern().unwrap(), "f=x%2F*");
    }
}
