//! The encoding of the consensus library's own types, on the wire and on disk:
//! self-describing (MessagePack with field names), so that a field which a later
//! version adds does not shift the others. Knows nothing of what they mean.

use bytes::Bytes;
use openraft::{EntryPayload, entry::RaftEntry};
use serde::{Serialize, de::DeserializeOwned};

use super::types::{LogEntry, LogId, Proposal};

const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// Encodes one of openraft's types.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Bytes, String> {
    rmp_serde::to_vec_named(value)
        .map(Bytes::from)
        .map_err(|error| error.to_string())
}

/// Decodes one of openraft's types.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    rmp_serde::from_slice(bytes).map_err(|error| error.to_string())
}

/// What the store keeps of a log entry: a kind and its content.
pub(super) fn encode_entry(entry: &LogEntry) -> Result<Bytes, String> {
    let (kind, content) = match &entry.payload {
        EntryPayload::Blank => (BLANK, Bytes::new()),
        EntryPayload::Normal(proposal) => (NORMAL, proposal.0.clone()),
        EntryPayload::Membership(membership) => (MEMBERSHIP, encode(membership)?),
    };
    let mut bytes = Vec::with_capacity(content.len() + 1);
    bytes.push(kind);
    bytes.extend_from_slice(&content);
    Ok(bytes.into())
}

/// The reverse of [`encode_entry`].
pub(super) fn decode_entry(id: LogId, bytes: &Bytes) -> Result<LogEntry, String> {
    let (kind, content) = bytes.split_first().ok_or("it is empty")?;
    let payload = match *kind {
        BLANK => EntryPayload::Blank,
        NORMAL => EntryPayload::Normal(Proposal(bytes.slice(1..))),
        MEMBERSHIP => EntryPayload::Membership(decode(content)?),
        other => return Err(format!("kind {other} is unknown")),
    };
    Ok(LogEntry::new(id, payload))
}

#[cfg(test)]
mod tests {
    //! What is on disks must always be read: these bytes never change. A newer version of
    //! the library may add fields; what it writes then gets a snapshot of its own here.
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::{BTreeMap, BTreeSet};

    use openraft::Membership;

    use super::*;
    use crate::raft::{
        api::Member,
        types::{SnapshotMeta, StoredMembership, log_id},
    };
    use crate::store::LogPos;

    fn hex(bytes: &[u8]) -> String {
        let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect();
        let lines: Vec<String> = bytes.chunks(32).map(line).collect();
        lines.join("\n")
    }

    fn at(index: u64) -> LogId {
        log_id(LogPos { term: 3, index })
    }

    fn membership() -> Membership<u64, Member> {
        let member = |node_id: u64| Member {
            node_id,
            disk_id: 0x0001_0203_0405_0607,
            peer_addr: format!("10.0.0.{node_id}:7071"),
            client_url: format!("http://10.0.0.{node_id}:7070"),
            admin_url: String::new(),
            region: "eu".to_owned(),
        };
        let nodes: BTreeMap<u64, Member> = [1, 2, 3].map(|id| (id, member(id))).into();
        Membership::new(vec![BTreeSet::from([1, 2])], nodes).unwrap()
    }

    #[test]
    fn entries_of_the_log_are_written_as_they_were() {
        let payloads = [
            EntryPayload::Blank,
            EntryPayload::Normal(Proposal(Bytes::from_static(b"entry"))),
            EntryPayload::Membership(membership()),
        ];
        let mut written = Vec::new();
        for payload in payloads {
            let entry = LogEntry::new(at(9), payload);
            let bytes = encode_entry(&entry).unwrap();
            let read = decode_entry(at(9), &bytes).unwrap();
            assert_eq!(read.payload, entry.payload);
            written.push(hex(&bytes));
        }
        insta::assert_snapshot!("log_entries_v1", written.join("\n\n"));
    }

    #[test]
    fn the_description_of_a_snapshot_is_written_as_it_was() {
        let meta = SnapshotMeta {
            last_log_id: Some(at(9)),
            last_membership: StoredMembership::new(Some(at(2)), membership()),
        };
        let bytes = encode(&meta).unwrap();
        assert_eq!(decode::<SnapshotMeta>(&bytes).unwrap(), meta);
        insta::assert_snapshot!("snapshot_description_v1", hex(&bytes));
    }
}
