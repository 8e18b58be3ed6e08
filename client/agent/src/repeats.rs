//! Checks that are made again for the same request: they are told what the first one was,
//! and charged once. Knows neither requests nor what they are told.
//!
//! nginx checks again after an internal redirect, and HAProxy's client asks again when an
//! answer is slow. Both send the request's id along, which the gateway must have made
//! itself: who can choose an id can have an answer twice, for as long as it is remembered.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::OnceCell, time::Instant};

/// Answers by what they were asked for, of which an id is only a part: the same id with
/// another key or cost is another request.
#[derive(Debug)]
pub(crate) struct Repeats<T> {
    known: Mutex<Known<T>>,
    remember_for: Duration,
    remembered_max: usize,
}

#[derive(Debug)]
struct Known<T> {
    by_name: HashMap<Arc<str>, Entry<T>>,
    /// Oldest first, each with the number of the entry that it was made for.
    order: VecDeque<(Arc<str>, u64)>,
    next: u64,
}

#[derive(Debug)]
struct Entry<T> {
    number: u64,
    since: Instant,
    answer: Answer<T>,
}

type Answer<T> = Arc<OnceCell<Arc<T>>>;

impl<T> Repeats<T> {
    pub(crate) fn new(remember_for: Duration, remembered_max: usize) -> Self {
        Self {
            known: Mutex::new(Known {
                by_name: HashMap::new(),
                order: VecDeque::new(),
                next: 0,
            }),
            remember_for,
            remembered_max,
        }
    }

    /// What the first request of this name was told, or what `decide` says if this is the
    /// first; and whether it was a repeat. Requests of one name that come meanwhile wait
    /// for the first one's answer; should that one be given up, the next one decides.
    pub(crate) async fn once(&self, name: &str, decide: impl Future<Output = T>) -> (Arc<T>, bool) {
        let answer = self.answer_of(name);
        let mut is_repeat = true;
        let first = async {
            is_repeat = false;
            Arc::new(decide.await)
        };
        let told = Arc::clone(answer.get_or_init(|| first).await);
        (told, is_repeat)
    }

    /// How many are remembered.
    pub(crate) fn len(&self) -> usize {
        let mut known = self.known.lock();
        known.forget(self.remember_for, self.remembered_max, Instant::now());
        known.by_name.len()
    }

    fn answer_of(&self, name: &str) -> Answer<T> {
        let now = Instant::now();
        let mut known = self.known.lock();
        // First, so that what is too old is not found.
        let room = self.remembered_max.saturating_sub(1);
        if let Some(entry) = known.by_name.get(name)
            && now.duration_since(entry.since) < self.remember_for
        {
            return Arc::clone(&entry.answer);
        }
        known.forget(self.remember_for, room, now);
        known.add(name, now)
    }
}

impl<T> Known<T> {
    fn add(&mut self, name: &str, now: Instant) -> Answer<T> {
        let name: Arc<str> = name.into();
        let entry = Entry {
            number: self.next,
            since: now,
            answer: Arc::default(),
        };
        self.next += 1;
        let answer = Arc::clone(&entry.answer);
        self.order.push_back((Arc::clone(&name), entry.number));
        self.by_name.insert(name, entry);
        answer
    }

    /// Forgets what is too old, and the oldest of what is too much.
    fn forget(&mut self, remember_for: Duration, most: usize, now: Instant) {
        while let Some((name, number)) = self.order.front() {
            let entry = self.by_name.get(name);
            let entry = entry.filter(|entry| entry.number == *number);
            let is_old = |entry: &Entry<T>| now.duration_since(entry.since) >= remember_for;
            if entry.is_some_and(|entry| !is_old(entry)) && self.by_name.len() <= most {
                return;
            }
            if entry.is_some() {
                self.by_name.remove(name);
            }
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::time::advance;
    use tokio_util::sync::CancellationToken;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn told(repeats: &Repeats<u64>, name: &str, answer: u64) -> (u64, bool) {
        let (told, is_repeat) = repeats.once(name, async move { answer }).await;
        (*told, is_repeat)
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_request_is_decided_once_until_it_is_forgotten() {
        let repeats = Repeats::new(2 * SECOND, 100);
        assert_eq!(told(&repeats, "a", 1).await, (1, false));
        advance(SECOND).await;
        assert_eq!(told(&repeats, "a", 2).await, (1, true));
        assert_eq!(told(&repeats, "b", 3).await, (3, false));
        // Two seconds after the first, not after the last.
        advance(SECOND).await;
        assert_eq!(told(&repeats, "a", 4).await, (4, false));
        assert_eq!(repeats.len(), 2);
        advance(2 * SECOND).await;
        assert_eq!(repeats.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_make_room() {
        let repeats = Repeats::new(SECOND, 3);
        for (name, answer) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
            assert_eq!(told(&repeats, name, answer).await, (answer, false));
            assert!(repeats.len() <= 3);
        }
        assert_eq!(told(&repeats, "b", 9).await, (2, true));
        assert_eq!(told(&repeats, "a", 9).await, (9, false), "a was forgotten");
        for round in 0..10_000_u64 {
            let _ = told(&repeats, &round.to_string(), round).await;
        }
        let known = repeats.known.lock();
        assert!(known.by_name.len() <= 3 && known.order.len() <= 3);
    }

    #[tokio::test]
    async fn whoever_comes_meanwhile_waits_for_the_first_ones_answer() {
        let repeats = Arc::new(Repeats::new(60 * SECOND, 100));
        let (go, decided) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let ask = |answer: u64| {
            let (repeats, go, decided) = (repeats.clone(), go.clone(), decided.clone());
            tokio::spawn(async move {
                let decide = async {
                    go.cancelled().await;
                    decided.fetch_add(1, Ordering::Relaxed);
                    answer
                };
                let (told, _) = repeats.once("same", decide).await;
                *told
            })
        };
        let all: Vec<_> = (0..20).map(ask).collect();
        tokio::task::yield_now().await;
        go.cancel();
        let mut answers = Vec::new();
        for one in all {
            answers.push(one.await.unwrap());
        }
        answers.dedup();
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert_eq!(decided.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn when_the_first_is_given_up_the_next_decides() {
        let repeats = Arc::new(Repeats::new(60 * SECOND, 100));
        let first = {
            let repeats = repeats.clone();
            tokio::spawn(async move { repeats.once("same", std::future::pending::<u64>()).await })
        };
        while repeats.len() == 0 {
            tokio::task::yield_now().await;
        }
        let next = {
            let repeats = repeats.clone();
            tokio::spawn(async move { told(&repeats, "same", 7).await })
        };
        tokio::task::yield_now().await;
        first.abort();
        assert_eq!(next.await.unwrap(), (7, false));
    }
}
