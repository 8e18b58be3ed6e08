//! Slows down who keeps failing to prove who they are, by where they call from. Knows
//! nothing of tokens, and never judges an attempt that succeeds: whoever shares an address
//! with a guesser gets in all the same.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Failures that cost nothing: somebody mistypes, a token was just revoked.
const FREE_FAILURES: u32 = 10;
/// What the next one waits; each one after it twice as long ...
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// ... and no longer than this: a gateway that waited longer for an answer would take the
/// node for dead, and would not hear why it is turned away.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Who has not failed for so long begins anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Addresses that are remembered; the one that failed least lately makes room.
const SOURCES_MAX: usize = 16_384;
/// Answers that wait at once, from one source ...
const WAITING_PER_SOURCE_MAX: u32 = 32;
/// ... and in all.
const WAITING_MAX: usize = 2_048;

/// What becomes of the answer to a failed attempt.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It is given after this time.
    After(Duration, Option<Waiting>),
    /// As many answers wait as may: it is given at once, and says to come back later.
    Later,
}

/// A place among the answers that wait; dropped once the answer is given.
#[derive(Debug)]
pub(crate) struct Waiting {
    throttle: Arc<Mutex<Sources>>,
    source: Source,
    _place: OwnedSemaphorePermit,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(failing) = self.throttle.lock().failing.get_mut(&self.source) {
            failing.waiting = failing.waiting.saturating_sub(1);
        }
    }
}

/// Where an attempt came from: an IPv6 address stands for its whole network, since
/// everybody there has more than can be counted; none: a Unix socket.
type Source = Option<IpAddr>;

#[derive(Debug, Default)]
struct Failing {
    failures: u32,
    /// Which failure of all was its latest.
    latest: u64,
    waiting: u32,
}

#[derive(Debug, Default)]
struct Sources {
    failing: HashMap<Source, Failing>,
    /// Failures that were the latest of their source when they were noted, oldest first.
    order: VecDeque<(Source, u64, Instant)>,
    noted: u64,
}

/// Counts failures.
#[derive(Debug)]
pub(crate) struct Throttle {
    sources: Arc<Mutex<Sources>>,
    places: Arc<Semaphore>,
}

impl Throttle {
    pub(crate) fn new() -> Self {
        Self {
            sources: Arc::default(),
            places: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }

    /// Takes note of a failure, and says when to answer it.
    pub(crate) fn failed(&self, addr: Option<IpAddr>, now: Instant) -> Verdict {
        let source = addr.map(network);
        let mut sources = self.sources.lock();
        sources.forget(now);
        sources.noted += 1;
        let latest = sources.noted;
        let failing = sources.failing.entry(source).or_default();
        failing.failures = failing.failures.saturating_add(1);
        failing.latest = latest;
        let wait = wait_after(failing.failures);
        let is_crowded = failing.waiting >= WAITING_PER_SOURCE_MAX;
        sources.order.push_back((source, latest, now));
        if wait.is_zero() {
            return Verdict::After(wait, None);
        }
        let place = Arc::clone(&self.places).try_acquire_owned();
        let (false, Ok(place)) = (is_crowded, place) else {
            return Verdict::Later;
        };
        if let Some(failing) = sources.failing.get_mut(&source) {
            failing.waiting += 1;
        }
        Verdict::After(
            wait,
            Some(Waiting {
                throttle: Arc::clone(&self.sources),
                source,
                _place: place,
            }),
        )
    }
}

impl Sources {
    fn is_latest(&self, source: Source, number: u64) -> bool {
        let failing = self.failing.get(&source);
        failing.is_some_and(|failing| failing.latest == number)
    }

    /// Makes room, and forgets who has not failed for long.
    fn forget(&mut self, now: Instant) {
        while let Some(&(source, number, at)) = self.order.front() {
            let is_latest = self.is_latest(source, number);
            let is_old = now.saturating_duration_since(at) >= FORGOTTEN_AFTER;
            if is_latest && !is_old && self.failing.len() < SOURCES_MAX {
                // Entries behind this one may be stale; bounded all the same.
                if self.order.len() <= 4 * SOURCES_MAX {
                    return;
                }
                let failing = &self.failing;
                self.order.retain(|(source, number, _)| {
                    failing
                        .get(source)
                        .is_some_and(|failing| failing.latest == *number)
                });
                return;
            }
            self.order.pop_front();
            if is_latest {
                self.failing.remove(&source);
            }
        }
    }
}

fn wait_after(failures: u32) -> Duration {
    match failures.checked_sub(FREE_FAILURES + 1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST_WAIT
            .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
            .min(LONGEST_WAIT),
    }
}

fn network(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => {
            let [a, b, c, d, ..] = addr.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        addr @ IpAddr::V4(_) => addr,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::net::Ipv4Addr;

    use super::*;

    fn addr(number: u32) -> Option<IpAddr> {
        Some(Ipv4Addr::from(number).into())
    }

    fn wait(throttle: &Throttle, addr: Option<IpAddr>, now: Instant) -> Duration {
        match throttle.failed(addr, now) {
            Verdict::After(wait, _) => wait,
            Verdict::Later => panic!("crowded"),
        }
    }

    #[test]
    fn the_first_failures_cost_nothing_and_the_next_more_and_more_up_to_a_bound() {
        let throttle = Throttle::new();
        let now = Instant::now();
        for _ in 0..FREE_FAILURES {
            assert_eq!(wait(&throttle, addr(1), now), Duration::ZERO);
        }
        for ms in [100, 200, 400, 800, 1_000, 1_000] {
            assert_eq!(wait(&throttle, addr(1), now), Duration::from_millis(ms));
        }
        for _ in 0..100 {
            assert_eq!(wait(&throttle, addr(1), now), LONGEST_WAIT);
        }
        assert_eq!(wait(&throttle, addr(2), now), Duration::ZERO, "another");
        assert_eq!(
            wait(&throttle, addr(1), now + FORGOTTEN_AFTER),
            Duration::ZERO,
            "forgotten"
        );
    }

    #[test]
    fn a_network_of_ipv6_addresses_is_one_source() {
        let throttle = Throttle::new();
        let now = Instant::now();
        for host in 0..10 {
            let addr: Ipv6Addr = format!("2001:db8:1:2::{host}").parse().unwrap();
            assert_eq!(wait(&throttle, Some(addr.into()), now), Duration::ZERO);
        }
        let next: Ipv6Addr = "2001:db8:1:2:ffff::1".parse().unwrap();
        assert_eq!(wait(&throttle, Some(next.into()), now), FIRST_WAIT);
        let mapped: Ipv6Addr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(wait(&throttle, Some(mapped.into()), now), Duration::ZERO);
    }

    #[test]
    fn memory_is_bounded_however_many_addresses_fail_and_however_often() {
        let throttle = Throttle::new();
        let now = Instant::now();
        for number in 0..100_000 {
            wait(&throttle, addr(number), now);
        }
        for _ in 0..100_000 {
            drop(throttle.failed(addr(7), now));
        }
        let sources = throttle.sources.lock();
        assert!(sources.failing.len() <= SOURCES_MAX);
        assert!(sources.order.len() <= 4 * SOURCES_MAX + 1);
    }

    #[test]
    fn only_so_many_answers_of_one_source_wait_at_once() {
        let throttle = Throttle::new();
        let now = Instant::now();
        for _ in 0..FREE_FAILURES {
            wait(&throttle, addr(1), now);
        }
        let mut waiting: Vec<Verdict> = (0..WAITING_PER_SOURCE_MAX)
            .map(|_| throttle.failed(addr(1), now))
            .collect();
        assert!(matches!(throttle.failed(addr(1), now), Verdict::Later));
        waiting.pop();
        assert!(matches!(
            throttle.failed(addr(1), now),
            Verdict::After(_, Some(_))
        ));
    }
}
