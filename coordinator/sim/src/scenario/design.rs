//! The designs that a scenario can compare, by name.

use serde::Deserialize;

/// A design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// This product: park ahead, recall on need.
    Leasehold,
    /// Leases of what was needed lately, and an ask whenever one is empty.
    AskWhenEmpty,
    /// Leases that are exchanged at each sync and not in between.
    PlainLeases,
    /// A counter that is synced; a gateway's share of the traffic is estimated.
    TrackShare,
    /// A counter that is synced; the others are taken to do what this one does.
    AssumeOthers,
    /// A counter that is synced.
    SharedCounter,
    /// Each gateway has its part of the limit.
    Split,
    /// Every request asks a store that counts exactly.
    CentralLog,
}

impl Design {
    /// All, in the order in which tables show them.
    pub const ALL: [Self; 8] = [
        Self::Leasehold,
        Self::AskWhenEmpty,
        Self::PlainLeases,
        Self::TrackShare,
        Self::AssumeOthers,
        Self::SharedCounter,
        Self::Split,
        Self::CentralLog,
    ];

    /// Its name, in files and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Leasehold => "leasehold",
            Self::AskWhenEmpty => "ask_when_empty",
            Self::PlainLeases => "plain_leases",
            Self::TrackShare => "track_share",
            Self::AssumeOthers => "assume_others",
            Self::SharedCounter => "shared_counter",
            Self::Split => "split",
            Self::CentralLog => "central_log",
        }
    }

    /// Whether it can do token buckets, too; the others are defined for sliding
    /// windows.
    #[must_use]
    pub fn knows_buckets(self) -> bool {
        matches!(self, Self::Leasehold | Self::CentralLog)
    }
}
