//! How a key is made of headers: `edge/{header:x-api-key}`. Knows neither where the
//! headers come from nor what becomes of the key.

use http::{HeaderMap, HeaderName};
use leasehold_key::{Key, KeyError};

/// What the headers do not give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// A header is absent, or empty.
    Missing(HeaderName),
    /// A header is there more than once: whoever put it there second chose the key.
    Twice(HeaderName),
    /// What the headers say is no key.
    Bad(KeyError),
    /// A header is not UTF-8.
    NotUtf8(HeaderName),
}

/// A key with places for headers. A segment has one place at most, so that two
/// different lists of values never become one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyTemplate {
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    before: String,
    header: Option<HeaderName>,
    after: String,
}

const PLACE: &str = "{header:";

impl KeyTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let segments: Vec<Segment> = text
            .split('/')
            .map(Segment::parse)
            .collect::<Result<_, _>>()?;
        let template = Self { segments };
        // What is wrong without any value is wrong with every one.
        let shortest = template.segments.iter().map(|segment| {
            let value = segment.header.as_ref().map_or("", |_| "x");
            format!("{}{value}{}", segment.before, segment.after)
        });
        Key::new(shortest).map_err(|error| error.to_string())?;
        Ok(template)
    }

    /// The key that the headers give.
    pub(crate) fn key(&self, headers: &HeaderMap) -> Result<Key, NoKey> {
        let mut raw = Vec::with_capacity(self.segments.len());
        for segment in &self.segments {
            let value = match &segment.header {
                Some(name) => one_value(headers, name)?,
                None => "",
            };
            raw.push([segment.before.as_str(), value, segment.after.as_str()].concat());
        }
        Key::new(raw).map_err(NoKey::Bad)
    }
}

/// The one value of a header that must be there.
fn one_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a str, NoKey> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Err(NoKey::Missing(name.clone()));
    };
    if values.next().is_some() {
        return Err(NoKey::Twice(name.clone()));
    }
    match std::str::from_utf8(value.as_bytes()) {
        Ok("") => Err(NoKey::Missing(name.clone())),
        Ok(text) => Ok(text),
        Err(_) => Err(NoKey::NotUtf8(name.clone())),
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Self, String> {
        let Some((before, rest)) = text.split_once('{') else {
            if text.contains('}') {
                return Err(unclear(text));
            }
            return Ok(Self {
                before: text.to_owned(),
                header: None,
                after: String::new(),
            });
        };
        let place = format!("{{{rest}");
        let named = place
            .strip_prefix(PLACE)
            .and_then(|rest| rest.split_once('}'));
        let Some((name, after)) = named else {
            return Err(unclear(text));
        };
        if after.contains(['{', '}']) {
            return Err(format!(
                "segment {text:?} has more than one place: give each header a segment of its \
                 own, or two customers could share a key"
            ));
        }
        let header = HeaderName::try_from(name)
            .map_err(|_| format!("{name:?} in segment {text:?} is no name of a header"))?;
        Ok(Self {
            before: before.to_owned(),
            header: Some(header),
            after: after.to_owned(),
        })
    }
}

fn unclear(text: &str) -> String {
    format!("segment {text:?} is unclear: a place for a header is written {PLACE}NAME}}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn headers(list: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn key(template: &str, list: &[(&'static str, &[u8])]) -> Result<String, NoKey> {
        let template = KeyTemplate::parse(template).unwrap();
        let key = template.key(&headers(list))?;
        Ok(key.as_str().to_owned())
    }

    #[test]
    fn values_of_headers_are_encoded_into_their_places() {
        let told = key(
            "edge/{header:X-Api-Key}/route={header:x-route}",
            &[("x-api-key", b"a/b*%41"), ("x-route", b"/v1")],
        );
        assert_eq!(told.unwrap(), "edge/a%2Fb%2A%2541/route=%2Fv1");
        assert_eq!(key("edge/all", &[]).unwrap(), "edge/all");
    }

    #[test]
    fn a_header_that_is_absent_empty_doubled_or_no_text_gives_no_key() {
        const TEMPLATE: &str = "edge/{header:x-api-key}";
        let name = HeaderName::from_static("x-api-key");
        assert_eq!(key(TEMPLATE, &[]), Err(NoKey::Missing(name.clone())));
        assert_eq!(
            key(TEMPLATE, &[("x-api-key", b"")]),
            Err(NoKey::Missing(name.clone()))
        );
        assert_eq!(
            key(TEMPLATE, &[("x-api-key", b"a"), ("x-api-key", b"a")]),
            Err(NoKey::Twice(name.clone()))
        );
        assert_eq!(
            key(TEMPLATE, &[("x-api-key", b"\xff")]),
            Err(NoKey::NotUtf8(name))
        );
        assert!(matches!(
            key(TEMPLATE, &[("x-api-key", &[b'|'; 400])]),
            Err(NoKey::Bad(KeyError::TooLong { .. }))
        ));
        assert!(matches!(
            key(TEMPLATE, &[("x-api-key", b"..")]),
            Err(NoKey::Bad(KeyError::DotSegment { .. }))
        ));
    }

    #[test]
    fn a_template_that_can_give_no_key_is_refused() {
        for bad in [
            "",
            "a//b",
            "a/",
            "a/..",
            "{header:x",
            "{x-api-key}",
            "a}b",
            "{header:}",
            "{header:no name}",
            "{header:a}{header:b}",
        ] {
            assert!(KeyTemplate::parse(bad).is_err(), "{bad}");
        }
        let many = vec!["a"; 17].join("/");
        assert!(KeyTemplate::parse(&many).is_err());
    }

    proptest! {
        #[test]
        fn different_values_never_share_a_key(one in "[ab/{}%*.]{1,6}", other in "[ab/{}%*.]{1,6}",
            left in "[ab/{}%*.]{1,6}", right in "[ab/{}%*.]{1,6}") {
            let template = KeyTemplate::parse("{header:a}/x-{header:b}").unwrap();
            let made = |a: &str, b: &str| {
                let mut headers = HeaderMap::new();
                headers.append("a", HeaderValue::try_from(a).unwrap());
                headers.append("b", HeaderValue::try_from(b).unwrap());
                template.key(&headers)
            };
            if let (Ok(first), Ok(second)) = (made(&one, &other), made(&left, &right)) {
                prop_assert_eq!(first == second, (one, other) == (left, right));
            }
        }
    }
}
