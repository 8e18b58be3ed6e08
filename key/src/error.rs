//! Why a text is not a key or not a pattern. Knows nothing of where the text
//! came from.

use thiserror::Error;

use crate::{ENCODED_BYTES_MAX, SEGMENTS_MAX};

/// A text that is not a key or not a pattern. Segments are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// There is no segment at all.
    #[error("key is empty: it needs 1 to {SEGMENTS_MAX} segments joined by '/'")]
    Empty,
    /// Two slashes in a row, or one at an end.
    #[error("key segment {segment} is empty: every segment needs at least one character")]
    EmptySegment {
        /// Which one.
        segment: usize,
    },
    /// `.` or `..`, also when written with escapes.
    #[error("key segment {segment} is '.' or '..': neither is allowed")]
    DotSegment {
        /// Which one.
        segment: usize,
    },
    /// Too many segments.
    #[error("key has more than {SEGMENTS_MAX} segments: 1 to {SEGMENTS_MAX} are allowed")]
    TooManySegments,
    /// Too long once encoded.
    #[error("key has {bytes} bytes in canonical encoding: 1 to {ENCODED_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length in canonical encoding.
        bytes: usize,
    },
    /// A `%` that two hexadecimal digits do not follow.
    #[error("key segment {segment} has a '%' that two hexadecimal digits do not follow")]
    BadEscape {
        /// Which one.
        segment: usize,
    },
    /// The escapes do not decode to UTF-8.
    #[error("key segment {segment} is not UTF-8 once its escapes are decoded")]
    NotUtf8 {
        /// Which one.
        segment: usize,
    },
    /// A bare `*` in a key.
    #[error("key segment {segment} has a bare '*': write a literal one as %2A")]
    BareStar {
        /// Which one.
        segment: usize,
    },
    /// A `*` before the end of a pattern's segment.
    #[error(
        "pattern segment {segment} has a '*' before its end: allowed are a literal, \
         'prefix*', '*' and, as the last one, '**'"
    )]
    MisplacedStar {
        /// Which one.
        segment: usize,
    },
    /// `**` before the last segment.
    #[error("pattern segment {segment} is '**': only the last segment may be")]
    MisplacedDoubleStar {
        /// Which one.
        segment: usize,
    },
}
