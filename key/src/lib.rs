//! Keys and key patterns in their one canonical encoding.
//!
//! A [`Key`] names one account: 1 to 16 path segments joined by `/`, each
//! percent-encoded UTF-8. Two texts that name the same segments become the same
//! bytes, and two lists of segments that differ never do: `["a_b", "c"]` and
//! `["a", "b_c"]` are different keys by construction.
//!
//! This crate does not know what a key stands for, who may use it, or what a
//! pattern is bound to.
//!
//! ```
//! use leasehold_key::{Key, Pattern, PatternMap};
//!
//! let key = Key::new(["acme", "orders/read"])?;
//! assert_eq!(key.as_str(), "acme/orders%2Fread");
//! assert_eq!(Key::parse("acme/orders%2fread")?, key);
//!
//! let mut map = PatternMap::new();
//! map.insert(Pattern::parse("acme/*")?, "all of acme");
//! map.insert(Pattern::parse("acme/orders*")?, "its orders");
//! assert_eq!(map.resolve(&key).map(|(_, value)| *value), Some("its orders"));
//! # Ok::<(), leasehold_key::KeyError>(())
//! ```

mod encoding;
mod error;
mod key;
mod map;
mod pattern;

pub use error::KeyError;
pub use key::Key;
pub use map::PatternMap;
pub use pattern::{Pattern, PatternSegment};

/// The most segments that a key or pattern has.
pub const SEGMENTS_MAX: usize = 16;
/// The most bytes that a key or pattern has in canonical encoding, slashes included.
pub const ENCODED_BYTES_MAX: usize = 512;
