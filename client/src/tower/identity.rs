//! Who a request is from, and the key segment that stands for them. Knows no budgets.

use std::borrow::Cow;

use http::{HeaderName, Method, request::Parts};
use sha2::{Digest, Sha256};

/// Longer identities become a hash.
const IDENTITY_BYTES_MAX: usize = 128;
/// What segments begin with that are hashes. No other identity may.
const HASHED: &str = "sha256:";
/// What methods are called that no standard knows: callers may make up any number.
const OTHER_METHOD: &str = "OTHER";

/// What an extractor found in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Who it is. An empty text is nobody.
    Identity(String),
    /// The request does not say.
    Missing,
    /// It says several things, or nothing that makes sense: it is refused, whatever the
    /// setting for missing identities.
    Unclear,
}

impl<T: Into<String>> From<Option<T>> for Found {
    fn from(identity: Option<T>) -> Self {
        match identity.map(Into::into) {
            Some(identity) if !identity.is_empty() => Self::Identity(identity),
            _ => Self::Missing,
        }
    }
}

/// Finds out who a request is from. Implemented by functions from a request's head to
/// [`Found`].
pub trait Identify: Send + Sync + 'static {
    /// Who the request is from.
    fn identify(&self, request: &Parts) -> Found;
}

impl<F: Fn(&Parts) -> Found + Send + Sync + 'static> Identify for F {
    fn identify(&self, request: &Parts) -> Found {
        self(request)
    }
}

/// Who a header says it is: one that a proxy in front sets, and callers cannot. Several
/// fields of that name, and text that is not UTF-8, are unclear.
pub fn header(name: HeaderName) -> impl Identify {
    move |request: &Parts| {
        let mut values = request.headers.get_all(&name).iter();
        let value = values.next().map(|value| str::from_utf8(value.as_bytes()));
        match (value, values.next()) {
            (None, _) => Found::Missing,
            (Some(Ok(identity)), None) => Found::from(Some(identity.trim())),
            _ => Found::Unclear,
        }
    }
}

/// Who an extension of the request says it is, which another layer has put there.
pub fn extension<T, I>(identity: impl Fn(&T) -> I + Send + Sync + 'static) -> impl Identify
where
    T: Send + Sync + 'static,
    I: Into<String>,
{
    move |request: &Parts| Found::from(request.extensions.get::<T>().map(&identity))
}

/// The method and the pattern that the router matched, like `GET /orders/{id}`, for
/// quotas of a route. In axum: `route(MatchedPath::as_str)`. Requests that no route
/// matched have none.
///
/// Never use the path itself: callers may make up as many as they like, and would have a
/// quota for each. Methods that are not standard are one, `OTHER`, for the same reason.
pub fn route<P: Send + Sync + 'static>(pattern: fn(&P) -> &str) -> impl Identify {
    move |request: &Parts| {
        let route = request.extensions.get::<P>().map(|matched| {
            let method = standard(&request.method).unwrap_or(OTHER_METHOD);
            format!("{method} {}", pattern(matched))
        });
        Found::from(route)
    }
}

fn standard(method: &Method) -> Option<&str> {
    let all = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        Method::OPTIONS,
        Method::CONNECT,
        Method::TRACE,
    ];
    all.contains(method).then(|| method.as_str())
}

/// The raw segment that stands for an identity, and for no other.
pub(super) fn segment(identity: &str) -> Cow<'_, str> {
    let is_segment = identity.len() <= IDENTITY_BYTES_MAX
        && !matches!(identity, "" | "." | "..")
        && !identity.starts_with(HASHED);
    if is_segment {
        Cow::Borrowed(identity)
    } else {
        Cow::Owned(hashed(identity))
    }
}

/// The hash of an identity, as a segment.
pub(super) fn hashed(identity: &str) -> String {
    let mut segment = HASHED.to_owned();
    for byte in Sha256::digest(identity) {
        for digit in [byte >> 4, byte & 15] {
            segment.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    segment
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use http::Request;
    use leasehold_key::Key;
    use proptest::prelude::*;

    use super::*;

    fn request(headers: &[(&str, &[u8])]) -> Parts {
        let mut request = Request::builder().method("FOO").uri("/orders/7");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_header_that_is_there_once_says_who_it_is() {
        let found = |headers: &[(&str, &[u8])]| {
            header(HeaderName::from_static("x-tenant")).identify(&request(headers))
        };
        let acme = Found::Identity("acme".to_owned());
        assert_eq!(found(&[("x-tenant", b"acme")]), acme);
        assert_eq!(found(&[("x-tenant", b" acme ")]), acme);
        assert_eq!(found(&[]), Found::Missing);
        assert_eq!(found(&[("x-tenant", b"")]), Found::Missing);
        assert_eq!(found(&[("x-tenant", b"  ")]), Found::Missing);
        assert_eq!(found(&[("x-tenant", b"\xff")]), Found::Unclear);
        let twice: [(&str, &[u8]); 2] = [("x-tenant", b"acme"), ("X-Tenant", b"acme")];
        assert_eq!(found(&twice), Found::Unclear);
    }

    #[test]
    fn an_extension_says_who_it_is() {
        #[derive(Clone)]
        struct Caller(&'static str);
        let by = extension(|caller: &Caller| caller.0);
        let mut request = request(&[]);
        assert_eq!(by.identify(&request), Found::Missing);
        request.extensions.insert(Caller("ada"));
        assert_eq!(by.identify(&request), Found::Identity("ada".to_owned()));
    }

    #[test]
    fn a_route_is_its_pattern_and_methods_that_nobody_knows_are_one() {
        #[derive(Clone)]
        struct Matched(String);
        impl Matched {
            fn as_str(&self) -> &str {
                &self.0
            }
        }
        let by = route(Matched::as_str);
        let mut request = request(&[]);
        assert_eq!(by.identify(&request), Found::Missing);
        request
            .extensions
            .insert(Matched("/orders/{id}".to_owned()));
        let found = |method: &str| Found::Identity(format!("{method} /orders/{{id}}"));
        assert_eq!(by.identify(&request), found("OTHER"));
        request.method = Method::PATCH;
        assert_eq!(by.identify(&request), found("PATCH"));
    }

    #[test]
    fn what_no_segment_can_be_is_hashed_and_what_looks_hashed_too() {
        let long = "x".repeat(129);
        for odd in [".", "..", &long, "sha256:00", &hashed("ada")] {
            let segment = segment(odd);
            assert_eq!(segment, hashed(odd));
            assert!(
                segment.starts_with("sha256:") && segment.len() == 71,
                "{segment}"
            );
        }
        assert_eq!(
            hashed("abc"),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(segment("a/b"), "a/b");
        assert_eq!(segment(&"x".repeat(128)), "x".repeat(128));
    }

    proptest! {
        #[test]
        fn identities_stay_within_their_segment_and_are_told_apart(
            one in ".{1,200}", other in ".{1,200}",
        ) {
            let base = Key::parse("user").unwrap();
            let key = |identity| base.with_segments([segment(identity)]).unwrap();
            prop_assert_eq!(key(&one).segments().count(), 2);
            prop_assert_eq!(key(&one) == key(&other), one == other);
        }
    }
}
