//! The live streams and the sessions they speak for. Knows of the ledger only which
//! rules are in force; a stream that does not read what it is told is dropped here, never waited for.

use std::{collections::HashMap, sync::Arc};

use leasehold_key::Key;
use leasehold_ledger::{Ledger, entry::SessionId, policy::Policy};
use tokio::sync::mpsc::error::TrySendError;

use super::{
    event::{Event, StreamCode, StreamRefusal},
    item::{Link, StreamId},
};
use crate::access::{Sight, Spender};

/// What a stream calls a key, and what it was told of it.
#[derive(Debug)]
pub(crate) struct KeySlot {
    pub(crate) key_id: u32,
    /// The policy as the stream knows it.
    pub(crate) policy: Option<Arc<Policy>>,
}

/// One live stream with an open session.
pub(crate) struct Stream {
    link: Link,
    pub(crate) session: SessionId,
    /// The latest sync of it that was applied.
    pub(crate) seq: u64,
    pub(crate) keys: HashMap<Key, KeySlot>,
}

impl Stream {
    /// The keys that whoever speaks may use.
    pub(crate) const fn sight(&self) -> &Sight {
        &self.link.sight
    }

    /// For whom accounts are opened.
    pub(crate) const fn spender(&self) -> Option<&Spender> {
        self.link.spender.as_ref()
    }

    /// Takes note that other keys may be used than before. Gives those that may not be seen
    /// any more, and those that may again.
    pub(crate) fn look_anew(&mut self) -> (Vec<Key>, Vec<Key>) {
        let (mut lost, mut found) = (Vec::new(), Vec::new());
        for (key, slot) in &mut self.keys {
            if self.link.sight.reaches(key) {
                found.extend(slot.policy.is_none().then(|| key.clone()));
            } else if slot.policy.take().is_some() {
                lost.push(key.clone());
            }
        }
        (lost, found)
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Streams {
    streams: HashMap<StreamId, Stream>,
    live: HashMap<SessionId, StreamId>,
    /// Which process speaks for a session, for as long as the session lives.
    instances: HashMap<SessionId, [u8; 16]>,
    /// Sessions that lost their stream since this was last asked.
    detached: Vec<SessionId>,
}

impl Streams {
    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn get_mut(&mut self, stream: StreamId) -> Option<&mut Stream> {
        self.streams.get_mut(&stream)
    }

    pub(crate) fn get(&self, stream: StreamId) -> Option<&Stream> {
        self.streams.get(&stream)
    }

    /// What streams were told another rule of than is in force: a holder that has
    /// nothing to report would not hear of an edit otherwise.
    pub(crate) fn outdated(&self, ledger: &Ledger) -> impl Iterator<Item = (SessionId, Key)> {
        self.streams.values().flat_map(|stream| {
            let keys = stream.keys.iter().filter(|(key, slot)| {
                let in_force = ledger.resolve(key).map(|(_, _, policy)| policy);
                slot.policy
                    .as_deref()
                    .is_some_and(|told| in_force.is_some_and(|policy| told != policy))
            });
            keys.map(|(key, _)| (stream.session, key.clone()))
        })
    }

    /// Sessions and keys whose rule, as they were told it, is one of these.
    pub(crate) fn keys_where(&self, is_meant: impl Fn(&Policy) -> bool) -> Vec<(SessionId, Key)> {
        let mut found = Vec::new();
        for stream in self.streams.values() {
            let keys = stream.keys.iter();
            let meant = keys.filter(|(_, slot)| slot.policy.as_deref().is_some_and(&is_meant));
            found.extend(meant.map(|(key, _)| (stream.session, key.clone())));
        }
        found
    }

    /// Sessions whose stream knows a key.
    pub(crate) fn sessions_with(&self, key: &Key) -> impl Iterator<Item = SessionId> {
        self.streams
            .values()
            .filter(|stream| stream.keys.contains_key(key))
            .map(|stream| stream.session)
    }

    /// The stream that speaks for a session now.
    pub(crate) fn of_session(&self, session: SessionId) -> Option<StreamId> {
        self.live.get(&session).copied()
    }

    /// Lets a stream speak for a session; the one that did so before is told
    /// `superseded` and ends.
    pub(crate) fn open(
        &mut self,
        stream: StreamId,
        link: Link,
        session: SessionId,
        instance: [u8; 16],
        seq: u64,
    ) {
        if let Some(old) = self.of_session(session) {
            let refusal = StreamRefusal {
                code: StreamCode::Superseded,
                detail: "the session was resumed on another stream".to_owned(),
            };
            self.tell(old, Event::Refused(refusal));
        }
        self.live.insert(session, stream);
        self.instances.insert(session, instance);
        self.streams.insert(
            stream,
            Stream {
                link,
                session,
                seq,
                keys: HashMap::new(),
            },
        );
    }

    /// Whether another process than this one is known to speak for a session.
    pub(crate) fn is_another_process(&self, session: SessionId, instance: &[u8; 16]) -> bool {
        self.instances
            .get(&session)
            .is_some_and(|known| known != instance)
    }

    /// Forgets who spoke for a session that has ended.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.instances.remove(&session);
    }

    /// Sessions that lost their stream since the last call and have no other.
    pub(crate) fn take_detached(&mut self) -> Vec<SessionId> {
        let mut detached = std::mem::take(&mut self.detached);
        detached.retain(|session| !self.live.contains_key(session));
        detached
    }

    /// Tells a stream something. Ends it when that was its last word, or when it
    /// has not read so much that its buffer is full; says whether it goes on.
    pub(crate) fn tell(&mut self, stream: StreamId, event: Event) -> bool {
        let Some(entry) = self.streams.get(&stream) else {
            return false;
        };
        // An entry can bring more recalls than a buffer has places. One that is not
        // told is repeated while it matters; answers are what the buffer is for.
        let events = &entry.link.events;
        if matches!(event, Event::Recall { .. }) && events.capacity() <= events.max_capacity() / 2 {
            return true;
        }
        let is_last = event.is_last();
        match entry.link.events.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                tracing::warn!(
                    session = format_args!("{:032x}", entry.session.0),
                    "a holder does not read its stream; dropping the stream"
                );
                metrics::counter!("leasehold_streams_dropped_total").increment(1);
                self.remove(stream);
                return false;
            }
            Err(TrySendError::Closed(_)) => {
                self.remove(stream);
                return false;
            }
        }
        if is_last {
            self.remove(stream);
        }
        !is_last
    }

    /// Forgets a stream and ends it.
    pub(crate) fn remove(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.remove(&stream) else {
            return;
        };
        entry.link.end.cancel();
        if self.live.get(&entry.session) == Some(&stream) {
            self.live.remove(&entry.session);
            self.detached.push(entry.session);
        }
    }

    /// Tells everybody the same last word.
    pub(crate) fn tell_all(&mut self, event: &Event) {
        for (_, entry) in self.streams.drain() {
            // A full buffer only loses the reason: the stream ends all the same.
            drop(entry.link.events.try_send(event.clone()));
            entry.link.end.cancel();
        }
        self.live.clear();
        self.instances.clear();
        self.detached.clear();
    }
}

/// Tells a stream that never opened its last word.
pub(crate) fn turn_away(link: &Link, event: Event) {
    // The buffer of a stream that was told nothing is empty; if its reader is gone
    // there is nobody to tell.
    drop(link.events.try_send(event));
    link.end.cancel();
}
