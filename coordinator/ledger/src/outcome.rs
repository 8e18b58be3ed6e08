//! What applying an entry led to: refusals are data with a stable code.

use std::sync::Arc;

use leasehold_key::Key;

use crate::{entry::SessionId, policy::Policy};

/// The outcome of one entry, in the order of its items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The log index.
    pub index: u64,
    /// Cluster time after the entry.
    pub now_us: u64,
    /// One per sync.
    pub syncs: Vec<SyncOutcome>,
    /// One per command.
    pub commands: Vec<CommandOutcome>,
    /// One per grant.
    pub grants: Vec<GrantOutcome>,
    /// Sessions that this entry expired.
    pub expired: Vec<SessionId>,
    /// Whether a period began.
    pub rolled: bool,
    /// More sessions are due than one entry expires.
    pub more_due: bool,
}

/// What became of a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncOutcome {
    /// The session's deadline moved.
    pub renewed: bool,
    /// The session is gone (expired, closed or never known): nothing applied.
    pub expired: bool,
    /// The session was ended by an operator or for misbehaving.
    pub ended: bool,
    /// Reports that were refused, by position.
    pub refused: Vec<(usize, ReportRefusal)>,
}

/// Why a report was refused; nothing of it was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportRefusal {
    /// Its totals exceed what was granted: the lease gets no more grants.
    Misbehaved,
    /// `last` was stated while units are held.
    LastWhileHeld,
}

/// What became of a proposed grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantOutcome {
    /// Units given; 0 with a refusal.
    pub units: u64,
    /// The lease's generation; 0 when there is none.
    pub generation: u64,
    /// The lease's new total.
    pub granted_total: u64,
    /// Why fewer than proposed were given.
    pub refusal: Option<Refusal>,
}

/// Why units were not given or a spend not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The stable code.
    pub code: Code,
    /// When it is worth asking again, in microseconds from the entry's `now`;
    /// none: never.
    pub retry_after_us: Option<u64>,
}

/// Stable refusal codes; `as_str` is what users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Code {
    /// Nothing is free now.
    Limit,
    /// No budget matches the key.
    NoBudget,
    /// The cost exceeds the limit and can never be admitted.
    CostAboveLimit,
    /// The pattern has as many accounts as the settings allow.
    TooManyAccounts,
    /// The session has as many keys as the settings allow.
    TooManyKeys,
    /// The session is gone.
    SessionExpired,
    /// The session was ended.
    SessionEnded,
    /// The lease reported more than it was granted.
    Misbehaved,
    /// It was refused a short while ago, and its policy has a cool-down.
    Cooldown,
    /// Its kind is not for what was asked: permits are not spent.
    WrongKind,
    /// As many spends are remembered by idempotency keys as the settings allow.
    TooManyIdempotencyKeys,
}

impl Code {
    /// The code as users see it; never changes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::NoBudget => "no_budget",
            Self::CostAboveLimit => "cost_above_limit",
            Self::TooManyAccounts => "too_many_accounts",
            Self::TooManyKeys => "too_many_keys",
            Self::SessionExpired => "session_expired",
            Self::SessionEnded => "session_ended",
            Self::Misbehaved => "misbehaved",
            Self::Cooldown => "cooldown",
            Self::WrongKind => "wrong_kind",
            Self::TooManyIdempotencyKeys => "too_many_idempotency_keys",
        }
    }
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// A session opened; its deadline in cluster time.
    Opened {
        /// Cluster time at which the session expires unless renewed.
        deadline_us: u64,
        /// How long the client may spend: `ttl × (1 − 2 × drift)`, rounded down.
        validity_us: u64,
        /// The session's frozen ttl.
        ttl_us: u64,
    },
    /// Settled: applied now, or before.
    Settled,
    /// Done. `changed` is false when it was so already.
    Done {
        /// Whether anything changed.
        changed: bool,
    },
    /// A central spend.
    Spent(SpendOutcome),
    /// A correction, done now or before.
    Corrected {
        /// How many units became free by it, or fewer.
        effect: i64,
        /// It was done before: nothing changed now.
        repeated: bool,
    },
    /// An edit, in the order of its changes.
    Edited(Vec<Edited>),
    /// Nothing was changed.
    Refused(CommandRefusal),
}

/// What became of one change of an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edited {
    /// Whether it was otherwise before.
    pub changed: bool,
    /// The version in force; 0: nothing is, or settings, which have none.
    pub version: u64,
    /// What is in force: see [`crate::RuleView::tag`]; none: nothing is.
    pub tag: Option<u64>,
}

/// What became of a central spend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpendOutcome {
    /// Admitted, or why not.
    pub refusal: Option<Refusal>,
    /// Why it would have been refused, if its policy did more than count that. It is
    /// admitted, and nothing was charged.
    pub shadowed: Option<Refusal>,
    /// It was admitted before under its idempotency key: nothing was charged now.
    pub repeated: bool,
    /// Free units afterwards.
    pub free: u64,
    /// The account's policy; none when no budget matches.
    pub policy: Option<Arc<Policy>>,
    /// Microseconds until more units are free; 0 when nothing is used.
    pub reset_us: u64,
}

impl SpendOutcome {
    /// No budget matches the key.
    #[must_use]
    pub const fn without_budget() -> Self {
        Self {
            refusal: Some(Refusal {
                code: Code::NoBudget,
                retry_after_us: None,
            }),
            shadowed: None,
            repeated: false,
            free: 0,
            policy: None,
            reset_us: 0,
        }
    }
}

/// Why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandRefusal {
    /// No such policy.
    NoSuchPolicy {
        /// What it would be called.
        name: String,
    },
    /// No such budget.
    NoSuchBudget,
    /// No such session.
    NoSuchSession,
    /// The policy is used by a budget or is the default.
    PolicyInUse {
        /// Its users: `default_policy`, and the first few patterns.
        by: Vec<String>,
        /// How many more there are.
        more: u64,
    },
    /// A bound of the settings is reached.
    TooManySessions {
        /// The bound.
        limit: u32,
    },
    /// The identity did not open the session.
    IdentityMismatch,
    /// The session id was used before.
    SessionExists,
    /// The node id was used by another disk.
    NodeIdInUse,
    /// Another spend was admitted under this idempotency key.
    IdempotencyKeyReused,
    /// Another correction of the account has this id.
    CorrectionExists,
    /// The account has as many corrections as it can have.
    TooManyCorrections {
        /// The bound.
        limit: u64,
    },
    /// The pattern has as many accounts as it may have.
    TooManyAccounts,
    /// No budget matches the key, and it has no account.
    NoBudget,
    /// Nothing of the sort can be done with an account of this kind.
    WrongKind {
        /// For people: why, and what can be done.
        why: &'static str,
    },
    /// A value is outside its range; the text names the field and the range.
    Invalid(String),
    /// What is in force is not what the change expects.
    PreconditionFailed {
        /// The tag of what is; none: nothing is.
        present: Option<u64>,
    },
    /// One of several changes is refused, so that none was made.
    OneOfMany {
        /// Its place among them.
        place: usize,
        /// Why.
        why: Box<CommandRefusal>,
    },
}

/// An account's books at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountView {
    /// The account.
    pub key: Key,
    /// The pattern of the budget that it follows (`default_policy` when none
    /// matches); none: its budget is gone.
    pub pattern: Option<String>,
    /// The policy's name; none for an inline one.
    pub policy_name: Option<String>,
    /// The rule in force.
    pub policy: Policy,
    /// The limit, or the bucket's capacity.
    pub limit: u64,
    /// What is counted and outstanding above the limit.
    pub debt: u64,
    /// Of a total: how many units have to be added before more would be free than is,
    /// because more was used or taken by hand than there was. None: it does not stand
    /// below zero.
    pub below_zero: Option<u64>,
    /// Units that still use up the limit because they were spent.
    pub counted: u64,
    /// Units in leases, neither reported spent nor handed back.
    pub outstanding: u64,
    /// Units that can be granted.
    pub free: u64,
    /// Microseconds until more units become free by time alone; none: nothing is due.
    pub next_free_us: Option<u64>,
    /// Totals over the account's life.
    pub lifetime: Lifetime,
    /// The period that it is charged to now.
    pub period: Option<PeriodView>,
    /// Nothing is granted for so many microseconds, because it was refused.
    pub cooling_us: Option<u64>,
    /// What was corrected by hand, in sum: units that became free by it, or fewer.
    pub corrected: i64,
    /// How many corrections it has.
    pub corrections: u64,
    /// Its leases.
    pub leases: Vec<LeaseView>,
}

/// The period that an account is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodView {
    /// Grows by one with each period of its calendar.
    pub number: u64,
    /// Wall time, in microseconds since 1970.
    pub start_unix_us: i64,
    /// Wall time, in microseconds since 1970.
    pub end_unix_us: i64,
    /// Units beyond the limit that were carried over, or given by hand.
    pub carried: u64,
}

/// Totals over an account's life; they saturate. Every unit granted is spent,
/// presumed spent, returned or outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Units granted to leases.
    pub granted: u64,
    /// Units reported spent.
    pub spent: u64,
    /// Units handed back, or presumed spent and refunded.
    pub returned: u64,
    /// Units presumed spent and not refunded.
    pub presumed_spent: u64,
    /// Units spent centrally.
    pub central: u64,
    /// Units that reservations used beyond what they had reserved, and that were
    /// charged because they were free.
    pub extra: u64,
    /// Units that reservations used beyond what they had reserved, and that nothing
    /// was free for. They were not admitted by anybody.
    pub overrun: u64,
}

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The account.
    pub key: Key,
    /// Who holds it.
    pub session: SessionId,
    /// The holder's name.
    pub holder: String,
    /// The log index that opened it.
    pub generation: u64,
    /// Running totals.
    pub granted_total: u64,
    /// Running totals.
    pub spent_total: u64,
    /// Running totals.
    pub returned_total: u64,
    /// Grants continue in this generation.
    pub current: bool,
    /// Cluster time at which its session expires.
    pub deadline_us: u64,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub id: SessionId,
    /// The holder's name.
    pub holder: String,
    /// Who opened it.
    pub identity: String,
    /// Cluster time at which it opened.
    pub opened_us: u64,
    /// Cluster time at which it expires unless renewed.
    pub deadline_us: u64,
    /// Its frozen ttl.
    pub ttl_us: u64,
    /// `ttl × (1 − 2 × drift)`, rounded down.
    pub validity_us: u64,
    /// The greatest message number applied.
    pub seq: u64,
    /// No grants, no renewal.
    pub ended: bool,
    /// How many leases it has, all generations.
    pub leases: u64,
}

/// What the allotter may count on for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// No budget matches: refuse with [`Code::NoBudget`].
    NoBudget,
    /// The pattern is full of accounts.
    TooManyAccounts,
    /// There is a rule.
    Open {
        /// The rule in force.
        policy: Arc<Policy>,
        /// The limit, with what was carried over or added.
        limit: u64,
        /// The largest cost that may be admitted, now or another time.
        largest_cost: u64,
        /// Units that can be granted at that moment.
        free: u64,
        /// Units in leases.
        outstanding: u64,
        /// Units counted.
        counted: u64,
        /// Microseconds until more units become free by time alone.
        next_free_us: Option<u64>,
        /// Nothing is granted for so many microseconds, because it was refused.
        cooling_us: Option<u64>,
    },
}
