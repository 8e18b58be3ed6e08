//! A scenario as it stands in a file. Knows no range and no default.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::design::Design;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) seed: Option<i64>,
    pub(super) minutes: Option<f64>,
    pub(super) warm_up_minutes: Option<f64>,
    pub(super) gateways: Option<i64>,
    #[serde(default)]
    pub(super) routing: Route,
    pub(super) commit_ms: Option<f64>,
    pub(super) drift_ppm: Option<i64>,
    pub(super) patience_ms: Option<f64>,
    pub(super) designs: Option<Vec<Design>>,
    pub(super) budgets: BTreeMap<String, Budget>,
    #[serde(default)]
    pub(super) traffic: Vec<Stream>,
    #[serde(default)]
    pub(super) flood: Vec<Flood>,
    #[serde(default)]
    pub(super) network: Wires,
    #[serde(default)]
    pub(super) cluster: Cluster,
    #[serde(default)]
    pub(super) fault: Vec<Mishap>,
}

/// Field names are those of the admin API.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Budget {
    pub(super) kind: KindName,
    pub(super) limit: Option<i64>,
    pub(super) window_ms: Option<i64>,
    pub(super) capacity: Option<i64>,
    pub(super) refill: Option<i64>,
    pub(super) refill_period_ms: Option<i64>,
    pub(super) slice_factor: Option<f64>,
    pub(super) max_wait_ms: Option<i64>,
    pub(super) reserve: Option<i64>,
    pub(super) demand_horizon_ms: Option<i64>,
    pub(super) failure_mode: Option<FailureModeName>,
    pub(super) public_name: Option<String>,
    pub(super) keys: Option<i64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KindName {
    SlidingWindow,
    TokenBucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FailureModeName {
    Closed,
    Open,
}

/// `"even"`, `"skewed"`, `{ one = 3 }` or `{ moving_every_s = 60 }`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Route {
    #[default]
    Even,
    Skewed,
    One(i64),
    MovingEveryS(f64),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stream {
    pub(super) budget: Option<String>,
    #[serde(default)]
    pub(super) arrivals: ArrivalsName,
    pub(super) load: Option<f64>,
    pub(super) per_second: Option<f64>,
    pub(super) cost: Option<CostRange>,
    pub(super) routing: Option<Route>,
    pub(super) from_s: Option<f64>,
    pub(super) until_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ArrivalsName {
    #[default]
    Poisson,
    PageLoads,
    Steady,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CostRange {
    pub(super) least: i64,
    pub(super) most: i64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Flood {
    pub(super) budget: Option<String>,
    pub(super) times: f64,
    pub(super) gateway: Option<i64>,
    pub(super) from_s: Option<f64>,
    pub(super) until_s: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wires {
    pub(super) delay_ms: Option<f64>,
    pub(super) jitter_ms: Option<f64>,
    pub(super) loss: Option<f64>,
    pub(super) duplication: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster {
    pub(super) session_ttl_ms: Option<i64>,
    pub(super) sync_interval_ms: Option<i64>,
    pub(super) max_drift_ppm: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mishap {
    pub(super) kind: MishapName,
    pub(super) gateway: Option<i64>,
    pub(super) at_s: f64,
    pub(super) for_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MishapName {
    Crash,
    Partition,
    Freeze,
    LeaderLoss,
}
