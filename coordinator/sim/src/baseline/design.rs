//! The designs by name. Knows nothing of how each decides.

use leasehold_ledger::policy::Kind;

use super::{
    AskWhenEmpty, AssumeOthers, CentralLog, PlainLeases, SharedCounter, Split, Syncs, TrackShare,
    Window,
};
use crate::Limiter;

/// A design that Leasehold is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Design {
    /// Every request asks the store.
    CentralLog,
    /// Each gateway has its part of the limit.
    Split,
    /// A counter that gateways sync with.
    SharedCounter,
    /// The same, counting own admissions once for every gateway.
    AssumeOthers,
    /// The same, by the measured share.
    TrackShare,
    /// Leases handed back at every sync.
    PlainLeases,
    /// Leases, and asking at once when there is nothing left.
    AskWhenEmpty,
}

impl Design {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::CentralLog,
        Self::Split,
        Self::SharedCounter,
        Self::AssumeOthers,
        Self::TrackShare,
        Self::PlainLeases,
        Self::AskWhenEmpty,
    ];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CentralLog => "central log",
            Self::Split => "split",
            Self::SharedCounter => "shared counter",
            Self::AssumeOthers => "assume the others",
            Self::TrackShare => "track my share",
            Self::PlainLeases => "plain leases",
            Self::AskWhenEmpty => "ask when empty",
        }
    }

    /// The design over `gateways` gateways, for one key with a sliding window.
    #[must_use]
    pub fn limiter(
        self,
        gateways: usize,
        limit: u64,
        window_us: u64,
        syncs: Syncs,
        round_trip_us: u64,
    ) -> Box<dyn Limiter> {
        let window = Window::Sliding(window_us);
        match self {
            Self::CentralLog => Box::new(CentralLog::new(
                &[Kind::SlidingWindow { limit, window_us }],
                round_trip_us,
            )),
            Self::Split => Box::new(Split::new(gateways, limit, window_us)),
            Self::SharedCounter => Box::new(SharedCounter::new(gateways, limit, window, syncs)),
            Self::AssumeOthers => Box::new(AssumeOthers::new(gateways, limit, window, syncs)),
            Self::TrackShare => Box::new(TrackShare::new(gateways, limit, window, syncs)),
            Self::PlainLeases => Box::new(PlainLeases::new(gateways, limit, window_us, syncs)),
            Self::AskWhenEmpty => Box::new(AskWhenEmpty::new(
                gateways,
                limit,
                window_us,
                syncs,
                round_trip_us,
            )),
        }
    }
}
