//! What a stream is told. Domain types only: `service::convert` puts them on the
//! wire.

use std::sync::Arc;

use leasehold_ledger::{
    entry::SessionId,
    outcome::{LeaseView, Refusal},
    policy::Policy,
};

/// One message to a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The session is open, or resumed.
    Opened(Opened),
    /// A sync was applied.
    Synced {
        /// Which.
        seq: u64,
        /// The session's deadline moved.
        renewed: bool,
        /// One per key that it reported.
        answers: Vec<Answer>,
    },
    /// Units or refusals for asks that waited.
    Granted(Vec<Answer>),
    /// Hand units back.
    Recall {
        /// The key, as the stream calls it.
        key_id: u32,
        /// The lease.
        generation: u64,
        /// Until the lease's returned total reaches this.
        returned_total_target: u64,
        /// What the lease was granted so far.
        granted_total: u64,
        /// All that is left up to the target is needed, not half of it.
        whole: bool,
    },
    /// This node does not lead; the leader's URL, empty when unknown.
    Moved(String),
    /// The old session is settled.
    Settled(SessionId),
    /// Everything is handed back.
    Closed,
    /// The stream ends.
    Refused(StreamRefusal),
}

impl Event {
    /// Whether the stream ends with it.
    pub(crate) const fn is_last(&self) -> bool {
        matches!(self, Self::Moved(_) | Self::Closed | Self::Refused(_))
    }
}

/// Answers an open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) session: SessionId,
    pub(crate) validity_us: u64,
    pub(crate) ttl_us: u64,
    pub(crate) sync_interval_us: u64,
    pub(crate) keys_per_session_max: u32,
    pub(crate) leases: Vec<LeaseView>,
}

/// The state of one key of the session after an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) key_id: u32,
    /// 0 when the session has no lease for the key.
    pub(crate) generation: u64,
    pub(crate) granted_total: u64,
    pub(crate) basis_seq: u64,
    pub(crate) refusal: Option<Refusal>,
    /// The highest lane that the refusal is about.
    pub(crate) refused_lane: u32,
    /// When new to the stream's key, or changed.
    pub(crate) policy: Option<Arc<Policy>>,
    pub(crate) free: u64,
    /// Leases of the key, of all sessions.
    pub(crate) holders: u64,
    /// For how long the lease is good by itself; 0: it has no limit of its own.
    pub(crate) valid_us: u64,
    /// What was refused before may be there by now.
    pub(crate) is_anew: bool,
}

/// Why a stream ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamRefusal {
    pub(crate) code: StreamCode,
    pub(crate) detail: String,
}

/// Stable codes of [`StreamRefusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamCode {
    SessionExpired,
    Superseded,
    IdentityMismatch,
    /// Whoever speaks is nobody any more: revoked, expired, or something else by now.
    Unauthenticated,
    TooManySessions,
    BadMessage,
    ShuttingDown,
}

impl StreamCode {
    /// What clients see.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::SessionExpired => "session_expired",
            Self::Superseded => "superseded",
            Self::IdentityMismatch => "identity_mismatch",
            Self::Unauthenticated => "unauthenticated",
            Self::TooManySessions => "too_many_sessions",
            Self::BadMessage => "bad_message",
            Self::ShuttingDown => "shutting_down",
        }
    }
}
