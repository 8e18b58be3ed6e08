//! Keys, patterns and names out of request paths. They are taken from the raw
//! URI: a router that decodes `a%2Fb` first would make two segments of one.

use std::borrow::Cow;

use axum::http::Uri;
use leasehold_key::{Key, Pattern};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use super::problem::{Kind, Problem};

/// The rest of the raw path behind `prefix`.
fn rest<'a>(uri: &'a Uri, prefix: &str) -> Result<&'a str, Problem> {
    if uri.query().is_some() {
        return Err(Problem::new(
            Kind::InvalidQuery,
            "this resource takes no query parameters; a ? that belongs to a key is written %3F",
        ));
    }
    beside_query(uri, prefix)
}

/// The rest of the raw path behind `prefix`, whatever the query.
fn beside_query<'a>(uri: &'a Uri, prefix: &str) -> Result<&'a str, Problem> {
    uri.path()
        .strip_prefix(prefix)
        .ok_or_else(|| Problem::new(Kind::NotFound, format!("the path must begin with {prefix}")))
}

/// The key behind `prefix`.
pub(crate) fn key(uri: &Uri, prefix: &str) -> Result<Key, Problem> {
    Key::parse(rest(uri, prefix)?).map_err(|error| Problem::key(&error))
}

/// What is behind `prefix`, in raw encoding: the key, and the segment after it.
pub(crate) fn action<'a>(uri: &'a Uri, prefix: &str) -> Option<(&'a str, &'a str)> {
    uri.path().strip_prefix(prefix)?.rsplit_once('/')
}

/// The pattern behind `prefix`.
pub(crate) fn pattern(uri: &Uri, prefix: &str) -> Result<Pattern, Problem> {
    Pattern::parse(rest(uri, prefix)?).map_err(|error| Problem::pattern(&error))
}

/// The pattern behind `prefix`, of a resource that takes a query.
pub(crate) fn pattern_with_query(uri: &Uri, prefix: &str) -> Result<Pattern, Problem> {
    Pattern::parse(beside_query(uri, prefix)?).map_err(|error| Problem::pattern(&error))
}

/// The one decoded segment behind `prefix`.
pub(crate) fn segment<'a>(uri: &'a Uri, prefix: &str) -> Result<Cow<'a, str>, Problem> {
    decoded(rest(uri, prefix)?)
}

/// The one decoded segment behind `prefix`, of a resource that takes a query.
pub(crate) fn segment_with_query<'a>(uri: &'a Uri, prefix: &str) -> Result<Cow<'a, str>, Problem> {
    decoded(beside_query(uri, prefix)?)
}

/// The one decoded segment between `prefix` and `suffix`.
pub(crate) fn segment_before<'a>(
    uri: &'a Uri,
    prefix: &str,
    suffix: &str,
) -> Result<Cow<'a, str>, Problem> {
    let rest = rest(uri, prefix)?;
    decoded(rest.strip_suffix(suffix).unwrap_or(rest))
}

fn decoded(segment: &str) -> Result<Cow<'_, str>, Problem> {
    percent_decode_str(segment).decode_utf8().map_err(|_| {
        Problem::new(
            Kind::InvalidName,
            "the name is not UTF-8 once its escapes are decoded",
        )
    })
}

/// The query as a struct that denies unknown fields.
pub(crate) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    axum::extract::Query::try_from_uri(uri)
        .map(|axum::extract::Query(value)| value)
        .map_err(|error| {
            let text = error.body_text();
            let text = text
                .rsplit_once(": ")
                .filter(|_| text.starts_with("Failed"))
                .map_or(text.as_str(), |(_, t)| t);
            Problem::new(Kind::InvalidQuery, text)
        })
}

/// Of a list that is whole: it has no pages and takes no query.
pub(crate) fn no_query(uri: &Uri) -> Result<(), Problem> {
    match uri.query() {
        None | Some("") => Ok(()),
        Some(_) => Err(Problem::new(
            Kind::InvalidQuery,
            "this list is answered whole, and takes no query parameters",
        )),
    }
}

/// A page's size: 1 to 1,000, 100 unless said otherwise.
pub(crate) fn page_size(limit: Option<&str>) -> Result<usize, Problem> {
    let Some(text) = limit else { return Ok(100) };
    match text.parse::<usize>() {
        Ok(n) if (1..=1_000).contains(&n) => Ok(n),
        _ => Err(Problem::new(
            Kind::InvalidQuery,
            format!("limit ({text}) must be a whole number from 1 to 1000"),
        )
        .at("limit")),
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

    use super::*;

    fn at(path: &str) -> Result<Key, Problem> {
        key(&path.parse().unwrap(), "/v1/accounts/")
    }

    #[test]
    fn an_encoded_slash_stays_in_its_segment() {
        assert_eq!(
            at("/v1/accounts/a%2Fb").unwrap(),
            Key::new(["a/b"]).unwrap()
        );
        assert_eq!(
            at("/v1/accounts/a/b").unwrap(),
            Key::new(["a", "b"]).unwrap()
        );
        assert_eq!(at("/v1/accounts/a%2fb").unwrap().as_str(), "a%2Fb");
    }

    #[test]
    fn dots_pipes_unicode_and_escapes_have_one_form() {
        assert_eq!(
            at("/v1/accounts/orders.read").unwrap().as_str(),
            "orders.read"
        );
        assert_eq!(
            at("/v1/accounts/a%7Cb").unwrap(),
            Key::new(["a|b"]).unwrap()
        );
        assert_eq!(at("/v1/accounts/%C3%A9").unwrap(), Key::new(["é"]).unwrap());
        assert_eq!(at("/v1/accounts/%61").unwrap(), Key::new(["a"]).unwrap());
        assert_eq!(
            at("/v1/accounts/a%3Fb").unwrap(),
            Key::new(["a?b"]).unwrap()
        );
    }

    #[test]
    fn malformed_keys_are_refused() {
        for path in [
            "", "/", "a//b", "a/", "/a", ".", "a/..", "%2E%2E", "a%", "a%zz", "%FF", "a*",
        ] {
            let problem = at(&format!("/v1/accounts/{path}")).unwrap_err();
            assert_eq!(problem.code(), "invalid_key", "{path:?}");
        }
        assert_eq!(at("/v1/accounts/a?b").unwrap_err().code(), "invalid_query");
        assert_eq!(
            at(&format!("/v1/accounts/{}", "a/".repeat(16) + "a"))
                .unwrap_err()
                .code(),
            "invalid_key"
        );
        assert_eq!(
            at(&format!("/v1/accounts/{}", "a".repeat(513)))
                .unwrap_err()
                .code(),
            "invalid_key"
        );
    }
}
