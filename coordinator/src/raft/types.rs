//! The consensus library's type parameters, and how they map to the store's
//! plain numbers. Knows nothing of files, sockets or of what an entry says.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use leasehold_ledger::outcome::Applied;
use openraft::{
    impls::leader_id_std,
    type_config::alias::{
        CommittedLeaderIdOf, EntryOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf,
        VoteOf,
    },
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::api::Member;
use crate::store::{LogPos, SnapshotFile, StoredVote};

openraft::declare_raft_types!(
    /// Entries are opaque bytes; a committed leader is its term.
    pub(super) Types:
        D = Proposal,
        R = Outcome,
        NodeId = u64,
        Node = Member,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
);

pub(super) type LogId = LogIdOf<Types>;
pub(super) type LogEntry = EntryOf<Types>;
pub(super) type Vote = VoteOf<Types>;
pub(super) type SnapshotMeta = SnapshotMetaOf<Types>;
pub(super) type StoredMembership = StoredMembershipOf<Types>;
pub(super) type Snapshot = SnapshotOf<Types, SnapshotFile>;

pub(super) type Core = openraft::Raft<Types, super::machine::Machine>;

/// An encoded ledger entry.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proposal(pub(super) Bytes);

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Serialize for Proposal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Proposal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Proposal;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Proposal, E> {
                Ok(Proposal(Bytes::copy_from_slice(bytes)))
            }
            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Proposal, E> {
                Ok(Proposal(bytes.into()))
            }
        }
        deserializer.deserialize_byte_buf(Visitor)
    }
}

/// What applying an entry led to; none for entries that are not the ledger's.
/// It never leaves the process.
#[derive(Clone, Debug)]
pub(super) struct Outcome(pub(super) Option<Arc<Applied>>);

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom("outcomes stay in the process"))
    }
}

impl<'de> Deserialize<'de> for Outcome {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(de::Error::custom("outcomes stay in the process"))
    }
}

/// A leader whose election is committed is its term.
pub(super) fn committed_leader(term: u64) -> CommittedLeaderIdOf<Types> {
    LogId::new_term_index(term, 0).leader_id
}

pub(super) fn log_id(at: LogPos) -> LogId {
    LogId::new_term_index(at.term, at.index)
}

pub(super) fn log_pos(id: &LogId) -> LogPos {
    LogPos {
        term: **id.committed_leader_id(),
        index: id.index(),
    }
}

pub(super) fn vote(stored: StoredVote) -> Vote {
    Vote {
        leader_id: leader_id_std::LeaderId {
            term: stored.term,
            voted_for: stored.node_id,
        },
        committed: stored.committed,
    }
}

pub(super) fn stored_vote(vote: &Vote) -> StoredVote {
    StoredVote {
        term: vote.leader_id.term,
        committed: vote.committed,
        node_id: vote.leader_id.voted_for,
    }
}
