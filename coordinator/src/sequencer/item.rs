//! What waits for the next entry. Knows nothing of the log or of the wire.

use leasehold_allotter::Level;
use leasehold_key::Key;
use leasehold_ledger::{
    entry::{Command, Report, SessionId, SettledLease},
    outcome::CommandOutcome,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{SubmitError, event::Event};
use crate::access::{Sight, Spender};

/// So many ages take as much of an entry as one report: an entry's length in bytes
/// is bounded with its weight.
const AGES_PER_WEIGHT: usize = 16;

/// One stream of one holder, for as long as this process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamId(pub(crate) u64);

/// What the sequencer's queue carries.
pub(crate) enum Item {
    /// A new stream's first message.
    Open {
        stream: StreamId,
        link: Link,
        open: Open,
        /// Told once the session is open; dropped when it is refused.
        opened: oneshot::Sender<Accepted>,
    },
    /// A later message of an open stream.
    Message {
        stream: StreamId,
        message: Message,
        /// Given back once the message was handled: bounds what one stream has
        /// under way.
        permit: OwnedSemaphorePermit,
    },
    /// Whoever speaks on the stream may use other keys than before.
    Sight { stream: StreamId },
    /// The stream has ended.
    Gone { stream: StreamId },
    /// An operator's command, or a central spend.
    Command(CommandItem),
}

/// A command and who waits for its outcome.
pub(crate) struct CommandItem {
    pub(crate) command: Command,
    /// A spend of a key that whoever asks may not see: it goes the way of all others, and
    /// is decided as if no budget matched the key.
    pub(crate) is_unseen: bool,
    /// For whom it opens an account; none: for nobody in particular.
    pub(crate) spender: Option<Spender>,
    pub(crate) reply: oneshot::Sender<Result<CommandOutcome, SubmitError>>,
}

/// How the sequencer reaches a stream.
pub(crate) struct Link {
    /// Bounded; a stream that lets it fill up is dropped.
    pub(crate) events: mpsc::Sender<Event>,
    /// Cancelled when the stream is to end.
    pub(crate) end: CancellationToken,
    /// The keys that whoever speaks may use.
    pub(crate) sight: Sight,
    /// For whom accounts are opened; none: for nobody in particular.
    pub(crate) spender: Option<Spender>,
}

/// What the reading half needs to know of its session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    pub(crate) keys_max: u32,
}

/// Opens or resumes a session.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) holder: String,
    pub(crate) identity: String,
    pub(crate) instance: [u8; 16],
    pub(crate) resume: Option<SessionId>,
}

/// A message of an open stream.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    Sync(SyncMessage),
    Settle {
        session: SessionId,
        identity: String,
        leases: Vec<SettledLease>,
    },
}

/// A sync, or a close.
#[derive(Clone, Debug)]
pub(crate) struct SyncMessage {
    pub(crate) seq: u64,
    pub(crate) close: bool,
    pub(crate) reports: Vec<KeyReport>,
}

/// What a sync says of one key.
#[derive(Clone, Debug)]
pub(crate) struct KeyReport {
    pub(crate) key_id: u32,
    pub(crate) key: Key,
    /// For the ledger; none when the client has no lease.
    pub(crate) report: Option<Report>,
    /// For the lease policy.
    pub(crate) level: Level,
    pub(crate) refused: u64,
    pub(crate) degraded: u64,
    /// Admitted although its policy, which is a shadow, would have refused it.
    pub(crate) shadowed: u64,
}

impl Message {
    /// How much of an entry it takes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Sync(sync) => {
                let ages: usize = sync
                    .reports
                    .iter()
                    .filter_map(|report| report.report.as_ref())
                    .map(|report| report.ages.len())
                    .sum();
                sync.reports.len().max(1) + ages / AGES_PER_WEIGHT
            }
            Self::Settle { leases, .. } => leases.len().max(1),
        }
    }

    /// Whether somebody waits for it.
    pub(crate) fn is_urgent(&self) -> bool {
        match self {
            Self::Sync(sync) => {
                sync.close || sync.reports.iter().any(|report| report.level.is_waiting())
            }
            Self::Settle { .. } => false,
        }
    }
}
