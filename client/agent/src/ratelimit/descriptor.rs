//! A domain's rules as a file states them, checked. Knows nothing of YAML and nothing of
//! coordinators.

use std::sync::Arc;

use leasehold_key::Pattern;

use super::{
    Place,
    segment::{Segment, Value},
};

/// The rules of one domain.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) file: Arc<str>,
    pub(super) at: Place,
    pub(super) descriptors: Vec<Descriptor>,
}

/// What one entry of a descriptor may be, and what follows.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) segment: Segment,
    pub(super) limit: Option<Limit>,
    /// In the order of the file.
    pub(super) descriptors: Vec<Self>,
}

/// A rate limit.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    pub(super) at: Place,
    pub(super) rate: Rate,
    pub(super) shadow: bool,
    pub(super) name: Option<String>,
    /// Names of limits that are not looked at when this one is there too, and where they
    /// stand.
    pub(super) replaces: Vec<(Place, String)>,
    /// All keys that are counted by it.
    pub(super) pattern: Pattern,
}

/// How much a limit lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rate {
    Unlimited,
    Per { requests: u32, unit: Unit },
}

/// The time that a limit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    pub(super) const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}
