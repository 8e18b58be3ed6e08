//! Checks that are made again for the same request: they are told what the first one was,
//! and charged once. Knows neither requests nor what they are told.
//!
//! nginx checks again after an internal redirect, and HAProxy's client asks again when an
//! answer is slow. Both send the request's id along, which the gateway must have made
//! itself: who can choose an id can have an answer twice, for as long as it is remembered.
//!
//! What has no answer yet does not age and makes no room, however long it waits: there is
//! one such for each request at work at most, and they are bounded elsewhere.

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
    /// Those that are answered, and since when: oldest first.
    answered: VecDeque<(Instant, Arc<str>)>,
}

#[derive(Debug)]
struct Entry<T> {
    answer: Answer<T>,
    /// How many ask for it at this moment.
    asking: usize,
    is_answered: bool,
}

type Answer<T> = Arc<OnceCell<Arc<T>>>;

/// One who asks. Dropped before there is an answer, it leaves nothing behind that nobody
/// else asks for.
struct Asking<'a, T> {
    repeats: &'a Repeats<T>,
    name: Arc<str>,
    answer: Answer<T>,
}

impl<T> Repeats<T> {
    pub(crate) fn new(remember_for: Duration, remembered_max: usize) -> Self {
        Self {
            known: Mutex::new(Known {
                by_name: HashMap::new(),
                answered: VecDeque::new(),
            }),
            remember_for,
            remembered_max,
        }
    }

    /// What the first request of this name was told, or what `decide` says if this is the
    /// first; and whether it was a repeat. Requests of one name that come meanwhile wait
    /// for the first one's answer; should that one be given up, the next one decides.
    pub(crate) async fn once(&self, name: &str, decide: impl Future<Output = T>) -> (Arc<T>, bool) {
        let asking = self.ask(name);
        let mut is_repeat = true;
        let first = async {
            is_repeat = false;
            Arc::new(decide.await)
        };
        let told = Arc::clone(asking.answer.get_or_init(|| first).await);
        (told, is_repeat)
    }

    /// How many are remembered or waited for.
    pub(crate) fn len(&self) -> usize {
        let mut known = self.known.lock();
        known.forget(self.remember_for, self.remembered_max, Instant::now());
        known.by_name.len()
    }

    fn ask(&self, name: &str) -> Asking<'_, T> {
        let mut known = self.known.lock();
        // First, so that what is too old is not found.
        known.forget(self.remember_for, self.remembered_max, Instant::now());
        let name = match known.by_name.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => name.into(),
        };
        let entry = known
            .by_name
            .entry(Arc::clone(&name))
            .or_insert_with(|| Entry {
                answer: Arc::default(),
                asking: 0,
                is_answered: false,
            });
        entry.asking += 1;
        Asking {
            repeats: self,
            name,
            answer: Arc::clone(&entry.answer),
        }
    }
}

impl<T> Drop for Asking<'_, T> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut known = self.repeats.known.lock();
        // It may be forgotten by now, and another be there of the same name.
        let entry = known.by_name.get_mut(&self.name);
        let Some(entry) = entry.filter(|entry| Arc::ptr_eq(&entry.answer, &self.answer)) else {
            return;
        };
        entry.asking = entry.asking.saturating_sub(1);
        if !self.answer.initialized() {
            if entry.asking == 0 {
                known.by_name.remove(&self.name);
            }
        } else if !entry.is_answered {
            // The one who decided comes by here in the moment in which it has decided.
            entry.is_answered = true;
            known.answered.push_back((now, Arc::clone(&self.name)));
            let (remember_for, most) = (self.repeats.remember_for, self.repeats.remembered_max);
            known.forget(remember_for, most, now);
        }
    }
}

impl<T> Known<T> {
    /// Forgets what was answered too long ago, and the oldest of what is too much.
    fn forget(&mut self, remember_for: Duration, most: usize, now: Instant) {
        while let Some((since, name)) = self.answered.front() {
            if now.duration_since(*since) < remember_for && self.answered.len() <= most {
                return;
            }
            self.by_name.remove(name);
            self.answered.pop_front();
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
        assert!(known.by_name.len() <= 3 && known.answered.len() <= 3);
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

    /// A request of this name, which is told `answer` once `go` says so.
    fn waiting(
        repeats: &Arc<Repeats<u64>>,
        name: &'static str,
        go: &CancellationToken,
        answer: u64,
    ) -> tokio::task::JoinHandle<(u64, bool)> {
        let (repeats, go) = (Arc::clone(repeats), go.clone());
        tokio::spawn(async move {
            let decide = async {
                go.cancelled().await;
                answer
            };
            let (told, is_repeat) = repeats.once(name, decide).await;
            (*told, is_repeat)
        })
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_its_answer_does_not_age_until_it_has_one() {
        let repeats = Arc::new(Repeats::new(2 * SECOND, 100));
        let go = CancellationToken::new();
        let mut all = vec![waiting(&repeats, "a", &go, 1)];
        for answer in 2..6 {
            tokio::task::yield_now().await;
            advance(2 * SECOND).await;
            all.push(waiting(&repeats, "a", &go, answer));
        }
        tokio::task::yield_now().await;
        go.cancel();
        let mut repeated = 0;
        for one in all {
            let (answer, is_repeat) = one.await.unwrap();
            assert_eq!(answer, 1);
            repeated += usize::from(is_repeat);
        }
        assert_eq!(repeated, 4);
        // It is as old as its answer.
        advance(SECOND).await;
        assert_eq!(told(&repeats, "a", 9).await, (1, true));
        advance(SECOND).await;
        assert_eq!(told(&repeats, "a", 9).await, (9, false));
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_its_answer_makes_no_room_for_others() {
        let repeats = Arc::new(Repeats::new(60 * SECOND, 3));
        let go = CancellationToken::new();
        let first = waiting(&repeats, "a", &go, 1);
        tokio::task::yield_now().await;
        for round in 0..100_u64 {
            let _ = told(&repeats, &round.to_string(), round).await;
            assert!(repeats.len() <= 4);
        }
        let second = waiting(&repeats, "a", &go, 2);
        tokio::task::yield_now().await;
        go.cancel();
        assert_eq!(first.await.unwrap(), (1, false));
        assert_eq!(second.await.unwrap(), (1, true));
        assert_eq!(repeats.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_everybody_gave_up_leaves_nothing_behind() {
        let repeats = Arc::new(Repeats::new(60 * SECOND, 100));
        let go = CancellationToken::new();
        let all = [1, 2, 3].map(|answer| waiting(&repeats, "a", &go, answer));
        tokio::task::yield_now().await;
        assert_eq!(repeats.len(), 1);
        for one in all {
            one.abort();
            assert!(one.await.unwrap_err().is_cancelled());
        }
        assert_eq!(repeats.len(), 0);
        assert_eq!(told(&repeats, "a", 4).await, (4, false));
    }
}
