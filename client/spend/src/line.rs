//! What every spender shares with the one driver: which keys want to be looked
//! at, and whether there is anybody to ask. Knows nothing of leases.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// End of the list of rung keys.
const NOBODY: u32 = u32::MAX;

/// The line between spenders and the driver: a list of keys that were rung for,
/// linked through indexes so that ringing neither locks nor allocates, and the
/// state of the connection.
pub struct Line {
    head: AtomicU32,
    links: Box<[AtomicU32]>,
    rung: Box<[AtomicBool]>,
    /// 0 when a session is open on a live stream; else the clock's reading when
    /// it was lost (at least 1).
    down_since: AtomicU64,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line")
            .field("keys_max", &self.links.len())
            .finish_non_exhaustive()
    }
}

impl Line {
    /// A line for at most `keys_max` keys that calls `wake` when the driver has
    /// something to look at. It starts down.
    #[must_use]
    pub fn new(keys_max: u32, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            head: AtomicU32::new(NOBODY),
            links: (0..keys_max).map(|_| AtomicU32::new(NOBODY)).collect(),
            rung: (0..keys_max).map(|_| AtomicBool::new(false)).collect(),
            down_since: AtomicU64::new(1),
            wake: Box::new(wake),
        }
    }

    /// How many keys the line has room for.
    #[must_use]
    pub fn keys_max(&self) -> u32 {
        u32::try_from(self.links.len()).unwrap_or(u32::MAX)
    }

    /// Asks the driver to look at a key, once however often it is called before
    /// the driver does.
    pub fn ring(&self, index: u32) {
        let (Some(rung), Some(link)) = (at(&self.rung, index), at(&self.links, index)) else {
            return;
        };
        // AcqRel: whoever finds `true` relies on the driver's later look to see
        // what it did before (release), and the driver's clearing swap reads it
        // (acquire). The read-modify-write is also the ticket: only the ringer
        // that turned false into true may touch the link.
        if rung.swap(true, Ordering::AcqRel) {
            return;
        }
        self.hang(index, link);
    }

    /// Asks the driver to look at several keys in one go: a driver that looks at
    /// one of those that this call listed looks at all of them.
    pub fn ring_all(&self, indices: impl IntoIterator<Item = u32>) {
        // The keys whose ticket this call drew, linked from the first to the last.
        // Nobody else touches their links before they are hung up.
        let mut ends: Option<(u32, &AtomicU32)> = None;
        for index in indices {
            let (Some(rung), Some(link)) = (at(&self.rung, index), at(&self.links, index)) else {
                continue;
            };
            // As in `ring`.
            if rung.swap(true, Ordering::AcqRel) {
                continue;
            }
            ends = Some(match ends {
                None => (index, link),
                Some((first, last)) => {
                    // Relaxed: see `hang`.
                    link.store(first, Ordering::Relaxed);
                    (index, last)
                }
            });
        }
        if let Some((first, last)) = ends {
            self.hang(first, last);
        }
    }

    /// Puts a chain of keys before the list: from `first` on they are linked
    /// already, and `last` is the link of the last one.
    fn hang(&self, first: u32, last: &AtomicU32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // Relaxed: the release of the exchange below publishes it.
            last.store(head, Ordering::Relaxed);
            // Release publishes the links (and all that the ringer did) to the
            // driver's acquiring swap. There is no ABA: the list is only ever
            // taken whole.
            match self
                .head
                .compare_exchange_weak(head, first, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if head == NOBODY {
            (self.wake)();
        }
    }

    /// Takes all keys that were rung for, newest first. Only the driver calls it.
    pub fn take_rung(&self, mut each: impl FnMut(u32)) {
        // Acquire: pairs with the ringers' release, links included.
        let mut next = self.head.swap(NOBODY, Ordering::Acquire);
        while next != NOBODY {
            let index = next;
            let (Some(rung), Some(link)) = (at(&self.rung, index), at(&self.links, index)) else {
                return;
            };
            // Read before the flag is cleared: from then on another ringer owns it.
            next = link.load(Ordering::Relaxed);
            // AcqRel: a ringer that still found `true` did its work before this
            // swap in the flag's order, so the look that follows sees it; one
            // that comes later rings again.
            rung.swap(false, Ordering::AcqRel);
            each(index);
        }
    }

    /// Whether there is a coordinator to ask.
    #[must_use]
    pub fn is_up(&self) -> bool {
        // Relaxed: a hint that decides between two refusals, never an admission
        // within the promise.
        self.down_since.load(Ordering::Relaxed) == 0
    }

    /// Since when there has been nobody to ask.
    #[must_use]
    pub fn down_since_ns(&self) -> Option<u64> {
        let since = self.down_since.load(Ordering::Relaxed);
        (since != 0).then_some(since)
    }

    /// A session is open.
    pub(crate) fn up(&self) {
        self.down_since.store(0, Ordering::Relaxed);
    }

    /// The stream is gone; keeps the first moment.
    pub(crate) fn down(&self, now_ns: u64) {
        if self.is_up() {
            self.down_since.store(now_ns.max(1), Ordering::Relaxed);
        }
    }
}

fn at<T>(all: &[T], index: u32) -> Option<&T> {
    usize::try_from(index).ok().and_then(|index| all.get(index))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn a_key_is_listed_once_and_the_driver_woken_once() {
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let line = Line::new(4, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        for index in [2, 0, 2, 3, 0] {
            line.ring(index);
        }
        let mut seen = Vec::new();
        line.take_rung(|index| seen.push(index));
        assert_eq!(seen, [3, 0, 2]);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        line.ring(2);
        assert_eq!(woken.load(Ordering::Relaxed), 2);
        line.ring(99);
    }

    #[test]
    fn keys_that_are_rung_for_together_are_listed_together() {
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let line = Line::new(6, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        line.ring(2);
        line.ring_all([0, 2, 3, 0, 99]);
        line.ring_all([2]);
        line.ring_all([4, 5]);
        let mut seen = Vec::new();
        line.take_rung(|index| seen.push(index));
        assert_eq!(seen, [5, 4, 3, 0, 2]);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_line_remembers_when_it_went_down_first() {
        let line = Line::new(1, || ());
        line.up();
        assert_eq!(line.down_since_ns(), None);
        line.down(5);
        line.down(9);
        assert_eq!(line.down_since_ns(), Some(5));
    }
}
