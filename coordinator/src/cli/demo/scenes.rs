//! The demo's keys: what each promises, and what it is offered. Plain data.

use leasehold_checkers::Promise;

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    /// One by one, at random, each willing to wait for an ask.
    Honest,
    /// In bursts, none willing to wait.
    Flood,
}

/// How much more than its limit the flooded key is offered.
const FLOOD: f64 = 100.0;

/// Keys that are alike, what each promises and what each is offered by all
/// gateways together.
pub(super) struct Scene {
    /// The key, or the pattern that several keys have in common.
    pub(super) key: &'static str,
    /// How many keys.
    pub(super) keys: usize,
    pub(super) limit: &'static str,
    pub(super) promise: Promise,
    pub(super) per_second: f64,
    pub(super) traffic: Traffic,
}

impl Scene {
    /// What the table calls it.
    pub(super) fn title(&self) -> String {
        if self.keys == 1 {
            self.key.to_owned()
        } else {
            format!("{} × {}", self.keys, self.key)
        }
    }

    /// Its keys by name.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        (1..=self.keys).map(|number| self.key.replace('*', &number.to_string()))
    }
}

const fn window(limit: u64, seconds: u64) -> Promise {
    Promise::Window {
        limit,
        window_us: seconds * 1_000_000,
    }
}

const fn bucket(capacity: u64, per_second: u64) -> Promise {
    Promise::Bucket {
        capacity,
        refill: per_second,
        refill_period_us: 1_000_000,
        tick_us: 1,
    }
}

/// Refilled steadily and always wanted: the pause in its admissions is the
/// outage of grants.
pub(super) const STEADY: &str = "demo/steady.flooded";

pub(super) const SCENES: [Scene; 7] = [
    Scene {
        key: "demo/search.flooded",
        keys: 1,
        limit: "500 in 5 s",
        promise: window(500, 5),
        per_second: 100.0 * FLOOD,
        traffic: Traffic::Flood,
    },
    Scene {
        key: STEADY,
        keys: 1,
        limit: "100 + 200/s",
        promise: bucket(100, 200),
        per_second: 800.0,
        traffic: Traffic::Flood,
    },
    Scene {
        key: "demo/orders.read",
        keys: 1,
        limit: "1000 in 10 s",
        promise: window(1_000, 10),
        per_second: 60.0,
        traffic: Traffic::Honest,
    },
    Scene {
        key: "demo/orders.write",
        keys: 1,
        limit: "100 in 2 s",
        promise: window(100, 2),
        per_second: 30.0,
        traffic: Traffic::Honest,
    },
    Scene {
        key: "demo/login",
        keys: 1,
        limit: "30 + 30/s",
        promise: bucket(30, 30),
        per_second: 18.0,
        traffic: Traffic::Honest,
    },
    Scene {
        key: "demo/reports",
        keys: 1,
        limit: "12 in 3 s",
        promise: window(12, 3),
        per_second: 1.5,
        traffic: Traffic::Honest,
    },
    // What most keys are like: a customer each, at 80 % of the limit, of whom a
    // gateway sees a request every three seconds.
    Scene {
        key: "demo/customer/*",
        keys: 40,
        limit: "100 in 30 s",
        promise: window(100, 30),
        per_second: 8.0 / 3.0,
        traffic: Traffic::Honest,
    },
];
