//! Request headers that mean something here. Knows nothing of what they are for.

use axum::http::{HeaderMap, HeaderName};

use super::problem::{Kind, Problem};

/// The longest text of a header, in bytes, unless said otherwise.
const TEXT_BYTES_MAX: usize = 128;

/// A header's text in UTF-8, of up to 128 bytes; none when it is absent.
pub(super) fn text(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Problem> {
    let Some(bytes) = single(headers, name)? else {
        return Ok(None);
    };
    match std::str::from_utf8(bytes) {
        Ok(text) if text.len() <= TEXT_BYTES_MAX => Ok(Some(text.to_owned())),
        Ok(text) => Err(invalid(
            name,
            &format!(
                "has {} bytes: it may have {TEXT_BYTES_MAX} at most",
                text.len()
            ),
        )),
        Err(_) => Err(invalid(name, "is not UTF-8")),
    }
}

/// A header of 1 to `bytes_max` visible ASCII characters; none when it is absent.
pub(super) fn visible(
    headers: &HeaderMap,
    name: &HeaderName,
    bytes_max: usize,
) -> Result<Option<String>, Problem> {
    let Some(bytes) = single(headers, name)? else {
        return Ok(None);
    };
    let is_visible = bytes.iter().all(u8::is_ascii_graphic);
    match std::str::from_utf8(bytes) {
        Ok(text) if is_visible && (1..=bytes_max).contains(&text.len()) => {
            Ok(Some(text.to_owned()))
        }
        _ => Err(invalid(
            name,
            &format!("must have 1 to {bytes_max} visible ASCII characters"),
        )),
    }
}

/// The one value of a header.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, Problem> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(axum::http::HeaderValue::as_bytes);
    if values.next().is_some() {
        return Err(invalid(name, "is there more than once"));
    }
    Ok(first)
}

fn invalid(name: &HeaderName, why: &str) -> Problem {
    Problem::new(Kind::InvalidHeader, format!("the header {name} {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use axum::http::HeaderValue;

    use super::*;

    const NAME: HeaderName = HeaderName::from_static("leasehold-by");

    fn with(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(NAME, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_text_is_utf8_of_bounded_length_and_there_once() {
        assert_eq!(text(&with(&[]), &NAME).unwrap(), None);
        assert_eq!(
            text(&with(&["Zoë, support".as_bytes()]), &NAME).unwrap(),
            Some("Zoë, support".to_owned())
        );
        for bad in [
            with(&[b"\xff"]),
            with(&[&[b'x'; 129]]),
            with(&[b"one", b"two"]),
        ] {
            assert_eq!(text(&bad, &NAME).unwrap_err().code(), "invalid_header");
        }
    }

    #[test]
    fn visible_means_ascii_without_spaces() {
        assert_eq!(
            visible(&with(&[b"a-1"]), &NAME, 3).unwrap(),
            Some("a-1".to_owned())
        );
        for bad in [
            with(&[b""]),
            with(&[b"a b"]),
            with(&[b"long"]),
            with(&["é".as_bytes()]),
        ] {
            assert_eq!(
                visible(&bad, &NAME, 3).unwrap_err().code(),
                "invalid_header"
            );
        }
    }
}
