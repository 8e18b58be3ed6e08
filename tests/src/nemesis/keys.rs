//! The keys of a run: what each promises and what it is offered. Plain data.

use serde_json::{Value, json};

use crate::{Load, Manner, Promise};

/// How a key is spent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// By gateways, who would flood it.
    Flood,
    /// By gateways, at random moments, each willing to wait.
    Honest,
    /// By gateways in both manners, and centrally.
    Mixed,
    /// Flooded by the first gateway, while the others park units that they seldom
    /// need: what one of them spends too late is too much.
    Skewed,
    /// Centrally alone.
    Central,
}

/// Whose rule stays as it is, and whose does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Fixed,
    /// Its limit is put again and again, up to so many percent of the first one.
    Edited,
}

/// One key.
#[derive(Clone, Debug)]
pub(crate) struct KeyPlan {
    pub(crate) name: String,
    pub(crate) promise: Promise,
    pub(crate) offered: Offered,
    /// Requests a second of all gateways together.
    pub(crate) per_second: f64,
    pub(crate) rule: Rule,
}

/// Wanted all the time by everybody and refilled steadily: when it is admitted
/// again, grants have resumed.
pub(crate) const PROBE: &str = "nemesis/probe";
/// Shared with a client that lies.
pub(crate) const HOSTILE: &str = "nemesis/hostile";
/// Spent from centrally alone, and nothing ages while a run lasts.
pub(crate) const PURSE: &str = "nemesis/purse";
/// Spent from by leases, and nothing ages while a run lasts.
pub(crate) const LASTING: &str = "nemesis/lasting";
/// Leases of it are many times what their gateways need.
pub(crate) const PARKED: &str = "nemesis/parked";
/// Requests a second of whoever floods it.
const PARKED_FLOOD: f64 = 400.0;
/// What edited rules have at most, in percent of their first limit.
pub(crate) const EDITED_MAX_PERCENT: u64 = 150;
/// The longest window that ages during a run; buckets fill sooner.
pub(crate) const LONGEST_WINDOW_MS: u64 = 15_000;

const fn window(limit: u64, ms: u64) -> Promise {
    Promise::Window {
        limit,
        window_us: ms * 1_000,
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

const MONTH_MS: u64 = 31 * 24 * 3_600 * 1_000;

/// All keys.
pub(crate) fn keys() -> Vec<KeyPlan> {
    use Offered::{Central, Flood, Honest, Mixed, Skewed};
    let key = |name: &str, promise, offered, per_second| KeyPlan {
        name: match name.strip_prefix("nemesis/") {
            Some(_) => name.to_owned(),
            None => format!("nemesis/{name}"),
        },
        promise,
        offered,
        per_second,
        rule: Rule::Fixed,
    };
    let edited = |plan: KeyPlan| KeyPlan {
        rule: Rule::Edited,
        ..plan
    };
    let mut keys = vec![
        key("window.flooded", window(120, 2_000), Flood, 300.0),
        key("window.short", window(30, 500), Flood, 240.0),
        key("bucket.flooded", bucket(20, 60), Flood, 240.0),
        key("bucket.slow", bucket(40, 5), Flood, 40.0),
        key("window.long", window(400, LONGEST_WINDOW_MS), Honest, 24.0),
        key("bucket.honest", bucket(20, 40), Honest, 30.0),
        key("mixed", window(60, 3_000), Mixed, 30.0),
        key(PARKED, window(150, 1_000), Skewed, 16.0),
        key("central.window", window(40, 2_000), Central, 0.0),
        key("lasting", window(100_000_000, MONTH_MS), Flood, 100.0),
        key("purse", window(100_000_000, MONTH_MS), Central, 0.0),
        key("hostile", window(80, 2_000), Honest, 60.0),
        key("probe", bucket(20, 100), Flood, 200.0),
        edited(key("edited.window", window(80, 2_000), Flood, 160.0)),
        edited(key("edited.bucket", bucket(20, 40), Flood, 120.0)),
    ];
    keys.extend((1..=10).map(|n| key(&format!("customer/{n}"), window(20, 10_000), Honest, 1.6)));
    keys
}

impl KeyPlan {
    /// What the gateway in one of so many places is offered.
    pub(crate) fn loads(&self, place: usize, gateways: u64) -> Vec<Load> {
        #[expect(clippy::cast_precision_loss, reason = "a handful of gateways")]
        let per_second = self.per_second / gateways as f64;
        let load = |manner, per_second| Load {
            key: self.name.clone(),
            per_second,
            manner,
        };
        match self.offered {
            Offered::Flood => vec![load(Manner::Flood, per_second)],
            Offered::Honest => vec![load(Manner::Honest, per_second)],
            Offered::Mixed => vec![
                load(Manner::Honest, per_second / 2.0),
                load(Manner::Flood, per_second / 2.0),
            ],
            Offered::Skewed if place == 0 => vec![load(Manner::Flood, PARKED_FLOOD)],
            Offered::Skewed => vec![load(Manner::Honest, per_second)],
            Offered::Central => Vec::new(),
        }
    }

    /// Whether operators spend from it.
    pub(crate) fn is_spent_centrally(&self) -> bool {
        matches!(self.offered, Offered::Central | Offered::Mixed)
    }

    /// What it may promise at most, whatever it is edited to.
    pub(crate) fn largest(&self) -> Promise {
        match self.rule {
            Rule::Fixed => self.promise,
            Rule::Edited => scaled(self.promise, EDITED_MAX_PERCENT),
        }
    }
}

/// A promise with so many percent of its limit, and of its refill.
pub(crate) fn scaled(promise: Promise, percent: u64) -> Promise {
    let scale = |units: u64| units * percent / 100;
    match promise {
        Promise::Window { limit, window_us } => Promise::Window {
            limit: scale(limit),
            window_us,
        },
        Promise::Bucket {
            capacity,
            refill,
            refill_period_us,
            tick_us,
        } => Promise::Bucket {
            capacity: scale(capacity),
            refill: scale(refill),
            refill_period_us,
            tick_us,
        },
    }
}

/// A budget's body, with the promise as its own policy.
pub(crate) fn budget(key: &str, promise: Promise) -> Value {
    let mut policy = match promise {
        Promise::Window { limit, window_us } => json!({
            "kind": "sliding_window", "limit": limit, "window_ms": window_us / 1_000,
        }),
        Promise::Bucket {
            capacity,
            refill,
            refill_period_us,
            ..
        } => json!({
            "kind": "token_bucket", "capacity": capacity, "refill": refill,
            "refill_period_ms": refill_period_us / 1_000,
        }),
    };
    if key == PARKED {
        policy["slice_factor"] = json!(10);
        policy["demand_horizon_ms"] = json!(2_000);
    }
    json!({ "policy": policy })
}
