//! Log entries: everything that can change the ledger, as data. Knows nothing
//! of how entries are ordered or stored.

use leasehold_key::{Key, Pattern};

use crate::{
    correction::Change,
    edit::Edit,
    policy::{Calendar, Policy},
    settings::Settings,
};

/// An unguessable session name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u128);

/// One log entry. See `Ledger::apply` for the order in which its parts count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Cluster time in microseconds, read after the last item was taken.
    pub now_us: u64,
    /// Reports and renewals, in the order of arrival.
    pub syncs: Vec<Sync>,
    /// Periods that begin now.
    pub rolls: Vec<Roll>,
    /// Admin commands, opens, settles and central spends, in the order of arrival.
    pub commands: Vec<Command>,
    /// Grants that the allotter proposes, in the order in which they count.
    pub grants: Vec<Grant>,
}

/// What one session says of its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sync {
    /// The session that speaks.
    pub session: SessionId,
    /// The session's message number; an older one than was applied still counts
    /// (totals only grow) but does not renew. 0: a resume, which renews.
    pub seq: u64,
    /// Whether this message renews the session.
    pub renew: bool,
    /// Whether this message ends the session: everything unspent is returned.
    pub close: bool,
    /// The totals.
    pub reports: Vec<Report>,
}

/// The running totals of one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The lease's key.
    pub key: Key,
    /// The lease's generation.
    pub generation: u64,
    /// Nothing is left or held, and nothing ever will be.
    pub last: bool,
    /// Units spent so far.
    pub spent_total: u64,
    /// Units handed back so far.
    pub returned_total: u64,
    /// Units taken but not decided; with any of them `last` is refused.
    pub held: u64,
    /// "These units were spent at least so many microseconds ago", any order.
    pub ages: Vec<SpentAge>,
    /// Units that settled reservations used beyond what they had reserved so far.
    pub overrun_total: u64,
}

/// `units` were spent at least `age_us` ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentAge {
    /// How many.
    pub units: u64,
    /// At least how long ago, in microseconds.
    pub age_us: u64,
}

/// A period of a calendar, as the leader computed it. It begins unless the one before
/// has not ended by it, so that repeating it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roll {
    /// Of which calendar.
    pub calendar: Calendar,
    /// Wall time at which it begins, in microseconds since 1970.
    pub start_unix_us: i64,
    /// Wall time at which it ends.
    pub end_unix_us: i64,
    /// In how many microseconds that is likely to be.
    pub ends_in_us: u64,
}

/// Units proposed for a session; the ledger gives `min(units, free)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who gets them.
    pub session: SessionId,
    /// Of which account.
    pub key: Key,
    /// How many at most.
    pub units: u64,
}

/// What an operator or the service asks of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Opens a session.
    Open {
        /// Chosen at random by the leader; an id that was ever used is refused.
        session: SessionId,
        /// A name for people.
        holder: String,
        /// The authenticated identity; empty without authentication.
        identity: String,
    },
    /// States what a session really spent; closes it if it still lives.
    Settle {
        /// The session.
        session: SessionId,
        /// Must be the one that opened it.
        identity: String,
        /// Totals per lease.
        leases: Vec<SettledLease>,
    },
    /// An operator ends a session: no grants, no renewal; units stay
    /// outstanding until its deadline.
    EndSession {
        /// The session.
        session: SessionId,
    },
    /// Creates or replaces a policy.
    PutPolicy {
        /// Its name.
        name: String,
        /// The rule.
        policy: Policy,
    },
    /// Deletes a policy that no budget uses.
    DeletePolicy {
        /// Its name.
        name: String,
    },
    /// Binds a pattern.
    PutBudget {
        /// The keys.
        pattern: Pattern,
        /// The rule that they follow.
        rule: Rule,
    },
    /// Unbinds a pattern.
    DeleteBudget {
        /// The keys.
        pattern: Pattern,
    },
    /// A spend decided by the log itself.
    Spend {
        /// The account.
        key: Key,
        /// How many units; all or none.
        units: u64,
    },
    /// A spend decided by the log itself, which is charged once however often it
    /// comes: what was admitted under this name is known for a while. What was refused
    /// charged nothing and is decided anew.
    SpendOnce {
        /// The account.
        key: Key,
        /// How many units; all or none.
        units: u64,
        /// What the caller named it: 1 to 255 visible ASCII characters, one namespace
        /// for the whole cluster.
        idempotency_key: String,
    },
    /// An operator corrects an account.
    Correct {
        /// The account; it is opened if there is none.
        key: Key,
        /// Unique within the account: the same correction twice changes nothing.
        id: String,
        /// What to do.
        change: Change,
        /// Why, for people.
        reason: String,
        /// Who, as far as is known.
        by: String,
        /// What the leader's wall clock says, in microseconds since 1970.
        wall_unix_us: i64,
    },
    /// The leader refused a key whose policy has a cool-down.
    CoolDown {
        /// The account.
        key: Key,
    },
    /// An operator corrects the bounds of a calendar's present period, because it was
    /// begun by wrong clocks. Nothing is reset.
    CorrectPeriod(Roll),
    /// Replaces the cluster's settings.
    PutSettings(Settings),
    /// An operator changes rules or settings, on conditions and under a name. The five
    /// commands above for the same say neither.
    Edit(Edit),
    /// Records that a node id was used by a disk, for ever.
    RegisterNode {
        /// The id.
        node_id: u64,
        /// The disk that used it.
        disk_id: u128,
    },
    /// Every member reads this version of the stored formats: from now on the leader
    /// may write it. It never falls.
    RaiseFormat {
        /// See [`crate::FORMAT_VERSION`].
        version: u32,
    },
    /// Names a new cluster; the first name stays.
    NameCluster {
        /// Chosen at random by its first leader.
        cluster_id: u128,
    },
}

/// A budget's rule: a policy by name, or its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The named policy, followed through its edits.
    Named(String),
    /// A policy of its own.
    Inline(Policy),
}

/// What one lease of an ended session really spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledLease {
    /// The lease's key.
    pub key: Key,
    /// The lease's generation.
    pub generation: u64,
    /// Units spent in all.
    pub spent_total: u64,
}
