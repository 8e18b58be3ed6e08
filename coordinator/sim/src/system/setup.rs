//! What a run of the product consists of: gateways, budgets, the network between
//! them and the coordinator, and what goes wrong when. Plain data.

use leasehold_checkers::Promise;
use leasehold_ledger::{
    policy::{Kind, Policy},
    settings::Settings,
};

use crate::MILLISECOND;

/// One run's setting.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Delays, losses and offsets are drawn from it.
    pub seed: u64,
    /// How many gateways there are.
    pub gateways: usize,
    /// Every key's rule, by the key's number.
    pub policies: Vec<Policy>,
    /// The cluster's settings.
    pub settings: Settings,
    /// How messages travel between a gateway and the coordinator.
    pub network: Network,
    /// How long an entry takes until it is applied, in microseconds.
    pub commit_us: u64,
    /// Clocks run at most so much faster or slower than real time; must be within
    /// the settings' bound for the promise to hold.
    pub drift_ppm: u32,
    /// What requests that find nothing do.
    pub patience: RequestPatience,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// How messages travel. Streams keep their order; what is lost is lost with its
/// stream, as TCP does it, unless `loss` says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// One way, in microseconds.
    pub delay_us: u64,
    /// Up to so much more, evenly distributed.
    pub jitter_us: u64,
    /// The share of messages that never arrive, 0 to 1.
    pub loss: f64,
    /// The share of messages that arrive twice, 0 to 1.
    pub duplication: f64,
}

/// What a request does that finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestPatience {
    /// It waits for the answer to one ask, as `spend` does.
    OneAnswer,
    /// It waits for units, as `spend_within` does, so many microseconds at most.
    Within(u64),
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// When.
    pub at_us: u64,
    /// For how long.
    pub for_us: u64,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A gateway's process dies with all it knows; another one starts in its place
    /// when the time is over.
    Crash {
        /// Which, from 0.
        gateway: usize,
    },
    /// A gateway and the coordinator do not hear of each other.
    Partition {
        /// Which, from 0.
        gateway: usize,
    },
    /// A gateway's process does not run, and goes on afterwards as if nothing had
    /// been. Requests that come meanwhile are decided when it goes on.
    Freeze {
        /// Which, from 0.
        gateway: usize,
    },
    /// The leader dies, with an entry in flight that may or may not be applied.
    /// Cluster time stands still until the next one leads.
    LeaderLoss,
}

/// The faults with those of one kind that overlap made into one that lasts until the
/// last of them ends: who has failed cannot fail again before.
pub(super) fn merged(faults: &[Fault]) -> Vec<Fault> {
    let mut merged: Vec<Fault> = Vec::with_capacity(faults.len());
    let mut ordered = faults.to_vec();
    ordered.sort_by_key(|fault| fault.at_us);
    for fault in ordered {
        let end_us = |fault: &Fault| fault.at_us.saturating_add(fault.for_us);
        let before = merged
            .iter_mut()
            .find(|before| before.kind == fault.kind && end_us(before) >= fault.at_us);
        match before {
            Some(before) => {
                before.for_us = end_us(before).max(end_us(&fault)) - before.at_us;
            }
            None => merged.push(fault),
        }
    }
    merged
}

impl Setup {
    /// Gateways with one key that follows `kind`, everything else as it is shipped,
    /// 5 ms one way and nothing going wrong.
    #[must_use]
    pub fn of_one_key(seed: u64, gateways: usize, kind: Kind) -> Self {
        Self {
            seed,
            gateways,
            policies: vec![shipped_policy(kind)],
            settings: Settings::default(),
            network: Network {
                delay_us: 5 * MILLISECOND,
                jitter_us: 0,
                loss: 0.0,
                duplication: 0.0,
            },
            commit_us: 0,
            drift_ppm: 0,
            patience: RequestPatience::OneAnswer,
            faults: Vec::new(),
        }
    }
}

/// A policy with the defaults of the admin API.
#[must_use]
pub fn shipped_policy(kind: Kind) -> Policy {
    Policy::new(kind)
}

/// What a policy promises, for the checkers.
#[must_use]
pub fn promise_of(policy: &Policy) -> Promise {
    match policy.kind {
        Kind::TokenBucket {
            capacity,
            refill,
            refill_period_us,
        }
        | Kind::Paced {
            capacity,
            refill,
            refill_period_us,
        } => Promise::Bucket {
            capacity,
            refill,
            refill_period_us,
            tick_us: 1,
        },
        // A scenario has windows and buckets only.
        _ => Promise::Window {
            limit: policy.kind.limit(),
            window_us: policy.kind.own_timescale_us(),
        },
    }
}
