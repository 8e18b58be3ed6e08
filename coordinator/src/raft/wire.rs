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
