//! The log as the consensus core sees it. Knows nothing of sockets or of what an
//! entry says.
//!
//! What was not purged is mirrored in memory, so readers never touch the engine,
//! and an entry is readable as soon as `append` returns. The mark of what is
//! committed rides on the next append: it is only a hint for a faster start.

use std::{collections::BTreeMap, fmt::Debug, io, ops::RangeBounds, sync::Arc};

use openraft::{
    EntryPayload, OptionalSend, RaftLogReader,
    entry::RaftEntry,
    storage::{IOFlushed, LogState, RaftLogStorage},
};
use parking_lot::RwLock;
use tokio::sync::oneshot;

use super::{
    api::Member,
    types::{LogEntry, LogId, Types, Vote, log_id, log_pos, stored_vote, vote},
    wire,
};
use crate::store::{Loaded, StoreError, Wal, Write};

/// Entries sent at once are cut at about this many bytes.
const READ_BYTES_MAX: usize = 4 << 20;

#[derive(Default)]
struct Mirror {
    entries: BTreeMap<u64, LogEntry>,
    purged: Option<LogId>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    committed_written: Option<LogId>,
}

/// The log; clones share it, and serve as its readers.
#[derive(Clone)]
pub(super) struct Log {
    mirror: Arc<RwLock<Mirror>>,
    wal: Arc<Wal>,
}

impl Log {
    /// A log over what the store holds.
    pub(super) fn new(loaded: Loaded, wal: Arc<Wal>) -> Result<Self, String> {
        let mut entries = BTreeMap::new();
        for (at, bytes) in loaded.entries {
            let entry = wire::decode_entry(log_id(at), &bytes)
                .map_err(|error| format!("entry {}: {error}", at.index))?;
            entries.insert(at.index, entry);
        }
        let committed = loaded.committed.map(log_id);
        let mirror = Mirror {
            entries,
            purged: loaded.purged.map(log_id),
            vote: loaded.vote.map(vote),
            committed,
            committed_written: committed,
        };
        Ok(Self {
            mirror: Arc::new(RwLock::new(mirror)),
            wal,
        })
    }

    /// Bytes of ledger entries after an index.
    pub(super) fn bytes_after(&self, index: Option<u64>) -> usize {
        let from = index.map_or(0, |index| index.saturating_add(1));
        self.mirror
            .read()
            .entries
            .range(from..)
            .map(|(_, entry)| length(entry))
            .sum()
    }

    /// The first index from which on at most `bytes` of ledger entries follow.
    pub(super) fn last_bytes_begin(&self, bytes: usize) -> Option<u64> {
        let mirror = self.mirror.read();
        let mut seen = 0_usize;
        let mut newest_first = mirror.entries.iter().rev();
        let over = newest_first.find(|(_, entry)| {
            seen = seen.saturating_add(length(entry));
            seen > bytes
        });
        over.map(|(index, _)| index.saturating_add(1))
    }

    /// The last position that is there, and the last membership among the entries.
    pub(super) fn remains(&self) -> (Option<u64>, Option<openraft::Membership<u64, Member>>) {
        let mirror = self.mirror.read();
        let last = mirror.entries.last_key_value().map(|(index, _)| *index);
        let purged = mirror.purged.as_ref().map(|purged| purged.index());
        let mut newest_first = mirror.entries.values().rev();
        let membership = newest_first.find_map(|entry| match &entry.payload {
            EntryPayload::Membership(membership) => Some(membership.clone()),
            EntryPayload::Blank | EntryPayload::Normal(_) => None,
        });
        (last.max(purged), membership)
    }

    /// Returns once everything that was appended before the call is durable; false:
    /// it never will be.
    pub(super) async fn settled(&self) -> bool {
        matches!(self.submit(Vec::new()).await, Ok(Ok(())))
    }

    fn submit(&self, writes: Vec<Write>) -> oneshot::Receiver<Result<(), StoreError>> {
        let (done, wait) = oneshot::channel();
        // Nobody may wait any more: the write happens all the same.
        self.wal
            .submit(writes, Box::new(move |result| drop(done.send(result))));
        wait
    }
}

fn length(entry: &LogEntry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(proposal) => proposal.0.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<LogEntry>, io::Error> {
        Ok(self
            .mirror
            .read()
            .entries
            .range(range)
            .map(|(_, entry)| entry.clone())
            .collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.mirror.read().vote)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<LogEntry>, io::Error> {
        let mut bytes = 0_usize;
        let mirror = self.mirror.read();
        let entries = mirror
            .entries
            .range(start..end)
            .map(|(_, entry)| entry)
            .take_while(|entry| {
                let before = bytes;
                bytes = bytes.saturating_add(length(entry));
                before == 0 || bytes <= READ_BYTES_MAX
            });
        Ok(entries.cloned().collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let mirror = self.mirror.read();
        let last = mirror
            .entries
            .last_key_value()
            .map(|(_, entry)| entry.log_id())
            .or(mirror.purged);
        Ok(LogState {
            last_purged_log_id: mirror.purged,
            last_log_id: last,
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.mirror.write().vote = Some(*vote);
        let durable = self.submit(vec![Write::Vote(stored_vote(vote))]);
        durable
            .await
            .unwrap_or(Err(StoreError::Closed))
            .map_err(Into::into)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.mirror.write().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.mirror.read().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut writes = Vec::new();
        {
            let mut mirror = self.mirror.write();
            for entry in entries {
                let id = entry.log_id();
                let bytes = wire::encode_entry(&entry).map_err(io::Error::other)?;
                writes.push(Write::Append {
                    at: log_pos(&id),
                    bytes,
                });
                mirror.entries.insert(id.index(), entry);
            }
            if mirror.committed != mirror.committed_written {
                mirror.committed_written = mirror.committed;
                writes.push(Write::Committed(mirror.committed.as_ref().map(log_pos)));
            }
        }
        self.wal.submit(
            writes,
            Box::new(move |result| callback.io_completed(result.map_err(Into::into))),
        );
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let from = last.map_or(0, |last| last.index().saturating_add(1));
        self.mirror.write().entries.split_off(&from);
        // Queued, not awaited: whatever is appended next is durable only after it,
        // and a crash before leaves entries that are cut off again.
        drop(self.submit(vec![Write::TruncateAfter(last.as_ref().map(log_pos))]));
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        {
            let mut mirror = self.mirror.write();
            mirror.entries = mirror.entries.split_off(&upto.index().saturating_add(1));
            mirror.purged = Some(upto);
        }
        drop(self.submit(vec![Write::PurgeTo(log_pos(&upto))]));
        Ok(())
    }
}
