//! The designs that a scenario can compare, by name.

use leasehold_ledger::policy::Kind;
use serde::Deserialize;

use crate::{
    Limiter,
    baseline::{
        AskWhenEmpty, AssumeOthers, CentralLog, Keys, PlainLeases, SharedCounter, Split, Syncs,
        TrackShare, Window,
    },
    system::{Leasehold, Setup},
};

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

    /// The design over a setup's gateways and budgets. All but Leasehold itself
    /// have a store that is told in no time and that never fails, so that a setup's
    /// faults, losses and clocks do not concern them; where a request has to go
    /// there and back, it takes as long as a setup's messages do on average.
    #[must_use]
    pub fn limiter(self, setup: &Setup) -> Box<dyn Limiter> {
        let gateways = setup.gateways;
        let syncs = Syncs::every(setup.settings.sync_interval_us, setup.seed);
        let round_trip_us = 2 * setup.network.delay_us + setup.network.jitter_us + setup.commit_us;
        match self {
            Self::Leasehold => Box::new(Leasehold::new(setup.clone())),
            Self::CentralLog => {
                let kinds: Vec<Kind> = setup.policies.iter().map(|p| p.kind.clone()).collect();
                Box::new(CentralLog::new(&kinds, round_trip_us))
            }
            Self::AskWhenEmpty => each(setup, |limit, us| {
                AskWhenEmpty::new(gateways, limit, us, syncs, round_trip_us)
            }),
            Self::PlainLeases => each(setup, |limit, us| {
                PlainLeases::new(gateways, limit, us, syncs)
            }),
            Self::TrackShare => each(setup, |limit, us| {
                TrackShare::new(gateways, limit, Window::Sliding(us), syncs)
            }),
            Self::AssumeOthers => each(setup, |limit, us| {
                AssumeOthers::new(gateways, limit, Window::Sliding(us), syncs)
            }),
            Self::SharedCounter => each(setup, |limit, us| {
                SharedCounter::new(gateways, limit, Window::Sliding(us), syncs)
            }),
            Self::Split => each(setup, |limit, us| Split::new(gateways, limit, us)),
        }
    }
}

/// A design for one window, for each of a setup's keys.
fn each<L: Limiter + 'static>(setup: &Setup, limiter: impl Fn(u64, u64) -> L) -> Box<dyn Limiter> {
    // Not asked for buckets (`knows_buckets`): as a window, one is what it refills.
    let limiters = setup
        .policies
        .iter()
        .map(|policy| limiter(policy.kind.limit(), policy.kind.own_timescale_us()));
    Box::new(Keys::new(limiters.collect()))
}
