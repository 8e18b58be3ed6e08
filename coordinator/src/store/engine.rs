//! What an engine must do: another one is one new file that implements
//! [`Engine`]. Knows nothing of files, threads or consensus.

use bytes::Bytes;

use super::StoreError;

/// The longest log entry, in bytes.
pub(super) const ENTRY_BYTES_MAX: usize = 64 << 20;

/// A position in the log: an index, and the term that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPos {
    /// The term.
    pub term: u64,
    /// The index.
    pub index: u64,
}

/// A vote: for whom in which term, and whether it is known to have won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredVote {
    /// The term.
    pub term: u64,
    /// A quorum granted it.
    pub committed: bool,
    /// For whom.
    pub node_id: u64,
}

/// One write. Writes take effect in the order in which they were queued.
#[derive(Clone, Debug)]
pub enum Write {
    /// Adds the next entry.
    Append {
        /// Where.
        at: LogPos,
        /// What.
        bytes: Bytes,
    },
    /// Drops every entry after a position; none: every entry.
    TruncateAfter(Option<LogPos>),
    /// Drops every entry up to and including a position. The mark is durable
    /// before the first entry goes.
    PurgeTo(LogPos),
    /// Replaces the vote.
    Vote(StoredVote),
    /// Replaces the mark of what is known to be committed.
    Committed(Option<LogPos>),
}

/// An engine. Used by one thread.
pub trait Engine: Send {
    /// Reads everything back, once, before the first write.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it isn't what was written.
    fn load(&mut self) -> Result<Loaded, StoreError>;

    /// Takes writes, in order; they need not be durable yet. All of them or none
    /// survive a crash before the barrier, or a prefix of them.
    ///
    /// # Errors
    /// The engine's; it is not used afterwards.
    fn write(&mut self, writes: &[Write]) -> Result<(), StoreError>;

    /// Returns once everything written is on stable storage.
    ///
    /// # Errors
    /// The engine's; it is not used afterwards.
    fn barrier(&mut self) -> Result<(), StoreError>;

    /// Does a bounded amount of work that can wait, when nothing else is to do,
    /// and says whether there is more. Only called right after a barrier, or
    /// after itself.
    ///
    /// # Errors
    /// The engine's; it is not used afterwards.
    fn tidy(&mut self) -> Result<bool, StoreError>;
}

/// What an engine holds.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The entries after the purged position, in order.
    pub entries: Vec<(LogPos, Bytes)>,
    /// The vote.
    pub vote: Option<StoredVote>,
    /// The committed mark.
    pub committed: Option<LogPos>,
    /// The position up to which entries were dropped.
    pub purged: Option<LogPos>,
}

impl Loaded {
    /// The last position: of the last entry, or where the log was purged to.
    #[must_use]
    pub fn last(&self) -> Option<LogPos> {
        self.entries.last().map(|(at, _)| *at).or(self.purged)
    }

    /// Nothing was ever written.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.last().is_none() && self.vote.is_none() && self.committed.is_none()
    }

    /// No hole, and terms never go back.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut next = self
            .purged
            .map_or(0, |purged| purged.index.saturating_add(1));
        let mut term = self.purged.map_or(0, |purged| purged.term);
        for (at, _) in &self.entries {
            if at.index != next {
                return Err(format!(
                    "entry {next} is missing; the next one found is {}",
                    at.index
                ));
            }
            if at.term < term {
                return Err(format!(
                    "entry {} has term {}, after an entry of term {term}",
                    at.index, at.term
                ));
            }
            term = at.term;
            next = next.saturating_add(1);
        }
        Ok(())
    }

    /// The term at an index that is still in the log.
    pub(super) fn term_at(&self, index: u64) -> Option<u64> {
        let first = self.entries.first()?.0.index;
        let offset = usize::try_from(index.checked_sub(first)?).ok()?;
        self.entries.get(offset).map(|(at, _)| at.term)
    }
}
