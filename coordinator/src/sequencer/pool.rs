//! What was taken from the queue and waits for an entry. Knows the order in which
//! streams are served, nothing of what their messages mean.
//!
//! Waiting requests come first, in the order in which they arrived; messages of
//! one stream stay in order all the same, so a stream with a waiting request
//! brings its earlier messages along.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem,
};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::item::{Accepted, Link, Message, Open, StreamId};

/// One thing to put into an entry.
pub(crate) enum Work {
    Open {
        link: Link,
        open: Open,
        opened: oneshot::Sender<Accepted>,
    },
    Message {
        message: Message,
        permit: OwnedSemaphorePermit,
    },
}

impl Work {
    fn weight(&self) -> usize {
        match self {
            Self::Open { .. } => 1,
            Self::Message { message, .. } => message.weight(),
        }
    }

    fn is_urgent(&self) -> bool {
        match self {
            Self::Open { .. } => true,
            Self::Message { message, .. } => message.is_urgent(),
        }
    }
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Work>,
    urgent: bool,
}

/// Everything that waits for an entry.
#[derive(Default)]
pub(crate) struct Pool {
    lanes: HashMap<StreamId, Lane>,
    /// Streams with something waiting, each at most once in each list; a stream in
    /// `urgent` is served there and skipped in `bulk`.
    urgent: VecDeque<StreamId>,
    bulk: VecDeque<StreamId>,
    weight: usize,
}

impl Pool {
    /// How many reports wait.
    pub(crate) const fn weight(&self) -> usize {
        self.weight
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Adds a stream's next message.
    pub(crate) fn push(&mut self, stream: StreamId, work: Work) {
        self.weight += work.weight();
        let is_urgent = work.is_urgent();
        let is_new = !self.lanes.contains_key(&stream);
        let lane = self.lanes.entry(stream).or_default();
        lane.queue.push_back(work);
        if is_urgent && !lane.urgent {
            lane.urgent = true;
            self.urgent.push_back(stream);
        } else if is_new {
            self.bulk.push_back(stream);
        }
    }

    /// Takes what goes into the next entry: at least one message when there is
    /// any, and no more than `weight_max` reports otherwise. A quarter is kept for
    /// streams where nobody waits: their syncs renew sessions.
    pub(crate) fn take(&mut self, weight_max: usize) -> Vec<(StreamId, Work)> {
        let mut taken = Vec::new();
        let mut room = weight_max;
        let kept = if self.bulk.is_empty() {
            0
        } else {
            weight_max / 4
        };
        let mut urgent = mem::take(&mut self.urgent);
        let mut bulk = mem::take(&mut self.bulk);
        room -= kept;
        self.take_from(&mut urgent, &mut room, &mut taken);
        room += kept;
        self.take_from(&mut bulk, &mut room, &mut taken);
        self.take_from(&mut urgent, &mut room, &mut taken);
        if self.lanes.is_empty() {
            urgent.clear();
            bulk.clear();
        } else if bulk.len() > self.lanes.len() * 2 + 1_024 {
            // Streams that were served as urgent and came back are in it twice.
            let mut seen = HashSet::new();
            bulk.retain(|stream| self.lanes.contains_key(stream) && seen.insert(*stream));
        }
        self.urgent = urgent;
        self.bulk = bulk;
        taken
    }

    fn take_from(
        &mut self,
        list: &mut VecDeque<StreamId>,
        room: &mut usize,
        taken: &mut Vec<(StreamId, Work)>,
    ) {
        while let Some(stream) = list.pop_front() {
            let Some(lane) = self.lanes.get_mut(&stream) else {
                continue;
            };
            while let Some(next) = lane.queue.front() {
                let weight = next.weight();
                if weight > *room && !taken.is_empty() {
                    list.push_front(stream);
                    return;
                }
                *room = room.saturating_sub(weight);
                self.weight = self.weight.saturating_sub(weight);
                if let Some(work) = lane.queue.pop_front() {
                    taken.push((stream, work));
                }
            }
            self.lanes.remove(&stream);
        }
    }

    /// Forgets what a stream still waits for.
    pub(crate) fn drop_stream(&mut self, stream: StreamId) {
        if let Some(lane) = self.lanes.remove(&stream) {
            let weight: usize = lane.queue.iter().map(Work::weight).sum();
            self.weight = self.weight.saturating_sub(weight);
        }
    }

    /// Takes everything, in no useful order.
    pub(crate) fn drain(&mut self) -> Vec<(StreamId, Work)> {
        self.urgent.clear();
        self.bulk.clear();
        self.weight = 0;
        self.lanes
            .drain()
            .flat_map(|(stream, lane)| lane.queue.into_iter().map(move |work| (stream, work)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;

    use leasehold_allotter::Level;
    use leasehold_key::Key;
    use tokio::sync::Semaphore;

    use super::{
        super::item::{KeyReport, SyncMessage},
        *,
    };

    fn sync(seq: u64, reports: usize, waiting: u64) -> Work {
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let report = KeyReport {
            key_id: 1,
            key: Key::parse("a").unwrap(),
            report: None,
            level: Level {
                want: waiting,
                waiting,
                ..Level::default()
            },
            refused: 0,
            degraded: 0,
            shadowed: 0,
        };
        Work::Message {
            message: Message::Sync(SyncMessage {
                seq,
                close: false,
                reports: vec![report; reports],
            }),
            permit,
        }
    }

    fn taken(pool: &mut Pool, weight_max: usize) -> Vec<(u64, u64)> {
        pool.take(weight_max)
            .into_iter()
            .map(|(stream, work)| match work {
                Work::Message {
                    message: Message::Sync(sync),
                    ..
                } => (stream.0, sync.seq),
                _ => (stream.0, 0),
            })
            .collect()
    }

    #[test]
    fn waiting_requests_come_first_and_a_stream_stays_in_order() {
        let mut pool = Pool::default();
        pool.push(StreamId(1), sync(1, 5, 0));
        pool.push(StreamId(2), sync(1, 5, 0));
        pool.push(StreamId(2), sync(2, 1, 1));
        pool.push(StreamId(3), sync(1, 1, 1));
        assert_eq!(taken(&mut pool, 100), [(2, 1), (2, 2), (3, 1), (1, 1)]);
        assert!(pool.is_empty());
        assert_eq!(pool.weight(), 0);
    }

    #[test]
    fn an_entry_takes_no_more_than_its_bound_but_always_something() {
        let mut pool = Pool::default();
        pool.push(StreamId(1), sync(1, 10, 0));
        pool.push(StreamId(1), sync(2, 10, 0));
        pool.push(StreamId(2), sync(1, 3, 0));
        assert_eq!(taken(&mut pool, 4), [(1, 1)]);
        assert_eq!(taken(&mut pool, 15), [(1, 2), (2, 1)]);
        assert_eq!(taken(&mut pool, 15), []);
    }

    #[test]
    fn a_stream_that_came_late_is_not_passed_over() {
        let mut pool = Pool::default();
        for stream in 1..=3 {
            pool.push(StreamId(stream), sync(1, 2, 0));
        }
        assert_eq!(taken(&mut pool, 4), [(1, 1), (2, 1)]);
        pool.push(StreamId(1), sync(2, 2, 0));
        assert_eq!(taken(&mut pool, 4), [(3, 1), (1, 2)]);
    }

    #[test]
    fn nothing_of_a_dropped_stream_is_taken() {
        let mut pool = Pool::default();
        pool.push(StreamId(1), sync(1, 2, 1));
        pool.push(StreamId(2), sync(1, 2, 0));
        pool.drop_stream(StreamId(1));
        assert_eq!(pool.weight(), 2);
        assert_eq!(taken(&mut pool, 100), [(2, 1)]);
    }
}
