//! The canonical encoding of one segment. Knows neither keys nor patterns.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{ENCODED_BYTES_MAX, KeyError, SEGMENTS_MAX};

/// Everything but RFC 3986 `pchar`; `*` is encoded too, so that a bare one can
/// mean "any" in patterns.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Whether a byte stays as it is in canonical encoding.
pub(crate) const fn is_literal(byte: u8) -> bool {
    matches!(byte,
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9'
        | b'-' | b'.' | b'_' | b'~'
        | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'+' | b',' | b';' | b'='
        | b':' | b'@')
}

/// Encodes a raw segment onto `out`.
pub(crate) fn encode(raw: &str, out: &mut String) {
    out.extend(utf8_percent_encode(raw, ENCODED));
}

/// Undoes the escapes of a segment. `number` is its place, from 1, for errors.
pub(crate) fn decode(text: &str, number: usize) -> Result<Cow<'_, str>, KeyError> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text));
    }
    let bytes = text.as_bytes();
    let mut raw = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'%' {
            let digits = bytes.get(at + 1..at + 3).and_then(hex_pair);
            raw.push(digits.ok_or(KeyError::BadEscape { segment: number })?);
            at += 3;
        } else {
            raw.push(byte);
            at += 1;
        }
    }
    String::from_utf8(raw)
        .map(Cow::Owned)
        .map_err(|_| KeyError::NotUtf8 { segment: number })
}

fn hex_pair(pair: &[u8]) -> Option<u8> {
    let [high, low] = pair else { return None };
    Some(hex_digit(*high)? << 4 | hex_digit(*low)?)
}

const fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// Refuses raw segments that no key has.
pub(crate) fn check_raw(raw: &str, number: usize) -> Result<(), KeyError> {
    match raw {
        "" => Err(KeyError::EmptySegment { segment: number }),
        "." | ".." => Err(KeyError::DotSegment { segment: number }),
        _ => Ok(()),
    }
}

/// Refuses a segment number beyond the last allowed one.
pub(crate) fn check_count(number: usize) -> Result<(), KeyError> {
    if number > SEGMENTS_MAX {
        Err(KeyError::TooManySegments)
    } else {
        Ok(())
    }
}

/// Refuses an encoding that is too long.
pub(crate) fn check_length(encoded: &str) -> Result<(), KeyError> {
    let bytes = encoded.len();
    if bytes > ENCODED_BYTES_MAX {
        Err(KeyError::TooLong { bytes })
    } else {
        Ok(())
    }
}
