//! What travels between a gateway and the coordinator in the model, with keys
//! spelled out. Durations are in microseconds, as on the real wire.

use leasehold_key::Key;
use leasehold_ledger::{
    entry::{SessionId, SettledLease, SpentAge},
    outcome::{LeaseView, Refusal},
};
use leasehold_spend::message::Policy;

/// A connection; each belongs to one gateway, and none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stream(pub(crate) u64);

#[derive(Clone, Debug)]
pub(crate) enum Up {
    Open {
        resume: Option<SessionId>,
    },
    Sync {
        seq: u64,
        reports: Vec<UpReport>,
    },
    Settle {
        session: SessionId,
        leases: Vec<SettledLease>,
    },
    Close {
        seq: u64,
        reports: Vec<UpReport>,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct UpReport {
    pub(crate) key: Key,
    pub(crate) generation: u64,
    pub(crate) last: bool,
    pub(crate) spent_total: u64,
    pub(crate) returned_total: u64,
    pub(crate) held: u64,
    pub(crate) ages: Vec<SpentAge>,
    pub(crate) want: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Down {
    Opened {
        session: SessionId,
        validity_us: u64,
        leases: Vec<LeaseView>,
    },
    Synced {
        seq: u64,
        renewed: bool,
        grants: Vec<DownGrant>,
    },
    Granted {
        grants: Vec<DownGrant>,
    },
    Recall {
        key: Key,
        generation: u64,
        returned_total_target: u64,
        granted_total: u64,
        whole: bool,
    },
    Settled {
        session: SessionId,
    },
    Closed,
    Moved,
    Expired,
}

#[derive(Clone, Debug)]
pub(crate) struct DownGrant {
    pub(crate) key: Key,
    pub(crate) generation: u64,
    pub(crate) granted_total: u64,
    pub(crate) basis_seq: u64,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) policy: Option<Policy>,
}
