//! What the sequencer needs of the replicated log, so that its tests can run over
//! one in memory.

use std::{future::Future, sync::Arc};

use leasehold_ledger::{Ledger, entry::Entry, outcome::Applied};

use crate::raft::{ProposeError, Replica};

/// A log that applies entries to a ledger.
pub(crate) trait Log: Clone + Send + Sync + 'static {
    /// Appends an entry in `term` and waits until it is applied.
    fn propose(
        &self,
        term: u64,
        entry: Entry,
    ) -> impl Future<Output = Result<Arc<Applied>, ProposeError>> + Send;

    /// Reads the applied state.
    fn with_ledger<T>(&self, read: impl FnOnce(&Ledger) -> T) -> T;

    /// The wall time that a majority of the members' clocks agree to have come, in
    /// microseconds since 1970; none: no majority was heard lately.
    fn majority_wall_unix_us(&self) -> Option<u64>;

    /// The newest version of the stored formats that every member reads; none: not
    /// every member was heard yet.
    fn members_format_version(&self) -> Option<u32>;
}

impl Log for Replica {
    async fn propose(&self, term: u64, entry: Entry) -> Result<Arc<Applied>, ProposeError> {
        Self::propose(self, term, entry).await
    }

    fn with_ledger<T>(&self, read: impl FnOnce(&Ledger) -> T) -> T {
        Self::with_ledger(self, read)
    }

    fn majority_wall_unix_us(&self) -> Option<u64> {
        Self::majority_wall_unix_us(self)
    }

    fn members_format_version(&self) -> Option<u32> {
        Self::members_format_version(self)
    }
}
