//! Keys and key patterns in their one canonical encoding.

/// A key in canonical encoding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(std::sync::Arc<str>);

/// A key pattern in canonical encoding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(std::sync::Arc<str>);
