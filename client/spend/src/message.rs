//! What the core says to a coordinator and hears from it, as plain data. Knows
//! no wire format; durations are in microseconds, as the coordinator counts.

use std::sync::Arc;

use crate::{failure::FailureMode, kind::BudgetKind, lane::LaneRule, verdict::Code};

/// The coordinator's name for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

/// Numbers this client's streams; only the newest one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// The first message of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOut {
    /// The stream that begins.
    pub stream: StreamId,
    /// The session to resume; none opens a new one.
    pub resume: Option<SessionId>,
}

/// What to do next with the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Totals and levels.
    Sync(SyncOut),
    /// What an ended session really spent.
    Settle(SettleOut),
    /// Everything handed back; the session ends.
    Close(SyncOut),
    /// The coordinator is silent: leave the stream and open another.
    Leave,
}

/// Totals and levels of some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncOut {
    /// The session's message number.
    pub seq: u64,
    /// One per lease, or per ask of a key without a lease.
    pub reports: Vec<Report>,
    /// It was due in any case, rather than sent for one key's sake.
    pub is_regular: bool,
}

/// What one lease, and the key it is of, have come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The key's number on this stream.
    pub key_id: u32,
    /// The key, the first time that this stream uses the number.
    pub key: Option<Arc<str>>,
    /// The lease; 0: none.
    pub generation: u64,
    /// Nothing is left or held of it, and nothing ever will be.
    pub is_final: bool,
    /// The greatest granted total that was applied.
    pub granted_seen: u64,
    /// Units spent so far.
    pub spent_total: u64,
    /// When the latest of them were spent.
    pub spent_ages: Vec<SpentAge>,
    /// Units handed back so far.
    pub returned_total: u64,
    /// Units taken and not decided.
    pub held: u64,
    /// Unspent units that are kept.
    pub left: u64,
    /// Units wanted now; 0 clears the ask.
    pub want: u64,
    /// Of these, units that requests wait for.
    pub waiting: u64,
    /// What the first of these requests needs.
    pub waiting_head: u64,
    /// How long the most patient of them stays after a refusal.
    pub wait_us: u64,
    /// What waits, lane by lane, when the policy has lanes.
    pub lanes: Vec<LaneWaiting>,
    /// Most arrivals in any demand horizon lately.
    pub peak: u64,
    /// Smoothed demand in thousandths of a unit per second.
    pub demand_milli: u64,
    /// Units that settled reservations used beyond what they had reserved and what
    /// was left, so far.
    pub overrun_total: u64,
    /// Requests refused locally since the last report.
    pub refused: u64,
    /// Units allowed by the failure mode since the last report.
    pub degraded: u64,
    /// Requests that shadow mode let through since the last report, and that would
    /// have been refused.
    pub shadowed: u64,
}

/// What waits in one lane of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneWaiting {
    /// Its place in the policy's list.
    pub lane: u32,
    /// Units that its requests wait for.
    pub waiting: u64,
    /// What the first of them needs.
    pub head: u64,
    /// How long the most patient of them stays after a refusal.
    pub wait_us: u64,
}

/// `units` were spent at least `age_us` ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentAge {
    /// How many.
    pub units: u64,
    /// At least how long ago.
    pub age_us: u64,
}

/// What an ended session really spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleOut {
    /// The session that ended.
    pub session: SessionId,
    /// Key, generation, units spent in all.
    pub leases: Vec<(Arc<str>, u64, u64)>,
}

/// What the coordinator says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A session is open on this stream.
    Opened(Opened),
    /// One sync was applied.
    Synced {
        /// Which.
        seq: u64,
        /// Whether it renewed the session.
        renewed: bool,
        /// Answers to its asks.
        grants: Vec<KeyGrant>,
    },
    /// Units for asks that waited.
    Granted(Vec<KeyGrant>),
    /// Units are needed elsewhere.
    Recall {
        /// Of which key.
        key_id: u32,
        /// Of which lease.
        generation: u64,
        /// Hand back until the returned total reaches this.
        returned_total_target: u64,
        /// What was granted so far.
        granted_total: u64,
        /// Hand back all that is left, up to the target; no more than half otherwise.
        whole: bool,
    },
    /// This node does not lead.
    Moved {
        /// Who does, if known.
        leader: Option<String>,
    },
    /// A session was settled.
    Settled(SessionId),
    /// The session was closed.
    Closed,
    /// The stream ends.
    Refused {
        /// The stable code.
        code: String,
        /// For people.
        detail: String,
    },
}

/// The terms of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its name.
    pub session: SessionId,
    /// How long its leases may be spent after each renewal was sent.
    pub validity_us: u64,
    /// How often to sync.
    pub sync_interval_us: u64,
    /// Its time to live.
    pub session_ttl_us: u64,
    /// The most reports in one message; 0: no bound stated.
    pub reports_per_sync_max: u32,
    /// The most keys; 0: no bound stated.
    pub keys_per_session_max: u32,
    /// Every lease of it that the coordinator knows.
    pub leases: Vec<LeaseState>,
}

/// A lease as the coordinator's books have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    /// The key.
    pub key: Arc<str>,
    /// The lease.
    pub generation: u64,
    /// Units granted so far.
    pub granted_total: u64,
    /// Units reported spent so far.
    pub spent_total: u64,
    /// Units handed back so far.
    pub returned_total: u64,
}

/// What a key was granted so far, and what was said about the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyGrant {
    /// The key's number on this stream.
    pub key_id: u32,
    /// The lease; 0: none.
    pub generation: u64,
    /// Units granted to it so far.
    pub granted_total: u64,
    /// The latest sync that the coordinator had applied.
    pub basis_seq: u64,
    /// The lease's own limit, from when that sync was sent; 0: none.
    pub valid_for_us: u64,
    /// Why the want was not met in full.
    pub refusal: Option<Refusal>,
    /// The policy, when it is new to this stream.
    pub policy: Option<Policy>,
    /// Units that the account has free after this, if it was said.
    pub free: Option<u64>,
    /// Sessions that hold a lease of the key; 0: not said.
    pub holders: u64,
    /// What was refused before may be there by now.
    pub ask_anew: bool,
}

/// The coordinator's no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub code: Code,
    /// When it is worth asking again; 0: never.
    pub retry_after_us: u64,
    /// The highest lane that is refused, and those below it with it; 0: all.
    pub lane: u32,
}

/// What a client needs to know of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// What kind of budget it is.
    pub kind: BudgetKind,
    /// The limit or capacity.
    pub limit: u64,
    /// W, which all time constants follow.
    pub timescale_us: u64,
    /// How long a request waits for an answer at most.
    pub max_wait_us: u64,
    /// What becomes of requests when there is nobody to ask.
    pub failure: FailureMode,
    /// The window, or the time in which an empty bucket fills.
    pub window_us: u64,
    /// The only name of the policy that callers of the gateway may see.
    pub public_name: String,
    /// Count what would be refused, and refuse nothing.
    pub shadow: bool,
    /// A slice in thousandths of the demand over a horizon.
    pub slice_factor_milli: u32,
    /// How long a reservation may stay unsettled; 0: not said.
    pub hold_max_us: u64,
    /// Of a paced budget: the least time between two units at one gateway.
    pub release_every_ns: u64,
    /// How long a key stays refused once it was refused.
    pub cooldown_us: u64,
    /// Its lanes, the highest first; none: all requests are alike.
    pub lanes: Vec<LaneRule>,
}

/// What the owner of the stream should do after a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    Stay,
    /// Leave this stream and open another.
    Reconnect {
        /// Where, if the coordinator said so.
        leader: Option<String>,
        /// At once, rather than after a pause.
        at_once: bool,
    },
    /// The session was closed in order: nothing more will come.
    Finished,
}
