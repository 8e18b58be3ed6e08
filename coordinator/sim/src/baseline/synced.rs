//! A store that gateways sync with, and what each knows of it in between: the
//! count at its last sync, aged exactly, and what it admitted itself since. Knows
//! nothing of what a gateway concludes from that.

use std::collections::VecDeque;

use super::{
    exact::{Log, Window},
    syncs::{Schedule, Syncs},
};
use crate::Messages;

/// The store and the gateways' knowledge of it.
#[derive(Clone, Debug)]
pub(super) struct Synced {
    window: Window,
    every_us: u64,
    store: Log,
    /// Units ever pushed.
    pushed: u64,
    gateways: Vec<Gateway>,
    schedule: Schedule,
    syncs: u64,
}

#[derive(Clone, Debug)]
struct Gateway {
    /// What the store counted at the last sync, less what stopped counting since.
    known: u64,
    /// What of it stops counting before the next sync.
    leaving: VecDeque<(u64, u64)>,
    /// Admitted here since the last sync.
    since: Log,
    /// Units ever pushed by anyone, at the last sync.
    pushed: u64,
}

/// What one sync brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    pub(super) gateway: usize,
    /// Units that this gateway pushed.
    pub(super) own: u64,
    /// Units that all gateways pushed since its last sync, its own included.
    pub(super) all: u64,
}

impl Synced {
    pub(super) fn new(gateways: usize, window: Window, syncs: Syncs) -> Self {
        let gateway = Gateway {
            known: 0,
            leaving: VecDeque::new(),
            since: Log::new(window),
            pushed: 0,
        };
        Self {
            window,
            every_us: syncs.every_us,
            store: Log::new(window),
            pushed: 0,
            gateways: vec![gateway; gateways],
            schedule: syncs.schedule(gateways),
            syncs: 0,
        }
    }

    pub(super) fn gateways(&self) -> usize {
        self.gateways.len()
    }

    /// What the store said, and what the gateway admitted since; both without what
    /// has stopped counting.
    pub(super) fn known_and_since(&mut self, gateway: usize, now_us: u64) -> (u64, u64) {
        let gateway = &mut self.gateways[gateway];
        while let Some(&(at_us, units)) = gateway.leaving.front() {
            if self.window.counts_until_us(at_us) >= now_us {
                break;
            }
            gateway.known -= units;
            gateway.leaving.pop_front();
        }
        (gateway.known, gateway.since.counted(now_us))
    }

    pub(super) fn admit(&mut self, gateway: usize, now_us: u64, units: u64) {
        self.gateways[gateway].since.add(now_us, units);
    }

    pub(super) fn next_us(&self) -> Option<u64> {
        self.schedule.next_us()
    }

    /// Lets the gateways that are due sync: all push before any looks, so that
    /// those that sync at the same instant see each other.
    pub(super) fn sync(&mut self, now_us: u64) -> Vec<News> {
        let mut news = Vec::new();
        for gateway in self.schedule.all_due(now_us) {
            let mut own = 0;
            for (at_us, units) in self.gateways[gateway].since.drain() {
                own += units;
                self.store.add(at_us, units);
            }
            self.pushed += own;
            news.push(News {
                gateway,
                own,
                all: 0,
            });
        }
        let known = self.store.counted(now_us);
        for news in &mut news {
            self.syncs += 1;
            let gateway = &mut self.gateways[news.gateway];
            news.all = self.pushed - gateway.pushed;
            gateway.pushed = self.pushed;
            gateway.known = known;
            gateway.leaving.clear();
            let next_us = now_us.saturating_add(self.every_us);
            // One more than needed: a request may come at the next sync's instant.
            gateway
                .leaving
                .extend(self.store.leaving(next_us.saturating_add(1)));
        }
        news
    }

    pub(super) fn messages(&self) -> Messages {
        Messages {
            keyed: 0,
            regular: 2 * self.syncs,
            acknowledgements: 0,
        }
    }
}
