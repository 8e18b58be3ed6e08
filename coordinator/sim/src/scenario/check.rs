//! From what stands in a file to a scenario that can be run. The one place that
//! knows defaults and how things must fit together.

use leasehold_ledger::policy::{Kind, Policy};

use super::{
    Invalid, NamedBudget, Scenario,
    design::Design,
    file::{ArrivalsName, Budget, CostRange, File, Flood, Mishap, MishapName, Route, Stream},
    ranges::{float, millis, minutes, number, seconds, whole},
    rules,
};
use crate::{
    MILLISECOND, SECOND,
    system::{Fault, FaultKind, Network, RequestPatience, Setup},
    traffic::{Arrivals, Cost, Flow, Routing},
};

const MINUTE: u64 = 60 * SECOND;
const GATEWAYS_MAX: u64 = 1_000;
const KEYS_MAX: u64 = 10_000;
/// Every request is kept until the end: some 100 bytes each.
const REQUESTS_MAX: f64 = 20_000_000.0;
/// A budget that nothing is said about gets so much of its limit.
const LOAD: f64 = 0.8;

pub(super) fn scenario(file: &File) -> Result<Scenario, Invalid> {
    let until_us = minutes(
        "minutes",
        file.minutes,
        60 * MINUTE,
        MINUTE..=10_080 * MINUTE,
    )?;
    let from_us = minutes(
        "warm_up_minutes",
        file.warm_up_minutes,
        (until_us / 6).min(5 * MINUTE),
        0..=until_us - MINUTE / 2,
    )?;
    let gateways = whole("gateways", file.gateways, 8, 1..=GATEWAYS_MAX)?;
    let mut parts = Parts {
        gateways,
        until_us,
        routing: route("routing", file.routing, gateways, until_us)?,
        budgets: Vec::new(),
        policies: Vec::new(),
    };
    if file.budgets.is_empty() {
        return Err(Invalid(
            "budgets is empty: say [budgets.NAME] with kind, limit and window_ms".to_owned(),
        ));
    }
    for (name, budget) in &file.budgets {
        parts.add_budget(name, budget)?;
    }
    let flows = parts.flows(file)?;
    let mut remarks = parts.assumed(file);
    if file.designs.is_none() && parts.policies.iter().any(is_bucket) {
        remarks.push(
            "The other designs are defined for sliding windows only, and there is a token bucket."
                .to_owned(),
        );
    }
    let designs = designs(file.designs.as_deref(), &parts.policies)?;
    let settings = rules::settings(&file.cluster)?;
    let drift = whole(
        "drift_ppm",
        file.drift_ppm,
        0,
        0..=u64::from(settings.max_drift_ppm),
    )?;
    let setup = Setup {
        seed: whole("seed", file.seed, 1, 0..=i64::MAX.unsigned_abs())?,
        gateways: size(gateways),
        policies: parts.policies.clone(),
        settings,
        network: Network {
            delay_us: millis(
                "network.delay_ms",
                file.network.delay_ms,
                5_000,
                0..=10 * SECOND,
            )?,
            jitter_us: millis(
                "network.jitter_ms",
                file.network.jitter_ms,
                0,
                0..=10 * SECOND,
            )?,
            loss: number("network.loss", file.network.loss, 0.0, 0.0..=0.9)?,
            duplication: number(
                "network.duplication",
                file.network.duplication,
                0.0,
                0.0..=0.9,
            )?,
        },
        commit_us: millis(
            "commit_ms",
            file.commit_ms,
            2 * MILLISECOND,
            0..=10 * SECOND,
        )?,
        drift_ppm: u32::try_from(drift).unwrap_or(u32::MAX),
        patience: match file.patience_ms {
            None => RequestPatience::OneAnswer,
            Some(_) => RequestPatience::Within(millis(
                "patience_ms",
                file.patience_ms,
                0,
                0..=60 * SECOND,
            )?),
        },
        faults: parts.faults(&file.fault)?,
    };
    Ok(Scenario {
        setup,
        budgets: parts.budgets,
        flows,
        designs,
        from_us,
        until_us,
        remarks,
    })
}

fn is_bucket(policy: &Policy) -> bool {
    matches!(policy.kind, Kind::TokenBucket { .. })
}

/// What later fields are checked against.
struct Parts {
    gateways: u64,
    until_us: u64,
    routing: Routing,
    budgets: Vec<NamedBudget>,
    policies: Vec<Policy>,
}

impl Parts {
    fn add_budget(&mut self, name: &str, budget: &Budget) -> Result<(), Invalid> {
        let path = format!("budgets.{name}");
        let policy = rules::policy(&path, budget)?;
        let keys = whole(&format!("{path}.keys"), budget.keys, 1, 1..=KEYS_MAX)?;
        let first = self.policies.len();
        self.policies
            .extend(std::iter::repeat_n(policy, size(keys)));
        self.budgets.push(NamedBudget {
            name: name.to_owned(),
            keys: first..self.policies.len(),
        });
        Ok(())
    }

    fn budget(&self, field: &str, name: Option<&str>) -> Result<&NamedBudget, Invalid> {
        let names = || {
            let names: Vec<&str> = self.budgets.iter().map(|b| b.name.as_str()).collect();
            names.join(", ")
        };
        match (name, self.budgets.as_slice()) {
            (None, [only]) => Ok(only),
            (None, _) => Err(Invalid(format!("{field} is missing: one of {}", names()))),
            (Some(name), budgets) => budgets
                .iter()
                .find(|budget| budget.name == name)
                .ok_or_else(|| Invalid(format!("{field} ({name}) must be one of {}", names()))),
        }
    }

    /// What is assumed of budgets that no traffic is described for.
    fn assumed(&self, file: &File) -> Vec<String> {
        let named = |budget: &&NamedBudget| {
            let mut streams = file.traffic.iter();
            streams.any(|stream| match &stream.budget {
                Some(name) => *name == budget.name,
                None => self.budgets.len() == 1,
            })
        };
        let silent = self.budgets.iter().filter(|budget| !named(budget));
        let assumed = silent.map(|budget| {
            format!(
                "No [[traffic]] names budgets.{}: Poisson at {LOAD} of its limit is assumed.",
                budget.name
            )
        });
        assumed.collect()
    }

    fn flows(&self, file: &File) -> Result<Vec<Flow>, Invalid> {
        let mut flows = Vec::new();
        for (place, stream) in (1..).zip(&file.traffic) {
            self.stream(&format!("traffic[{place}]"), stream, &mut flows)?;
        }
        for budget in &self.budgets {
            let spoken_of = flows.iter().any(|flow| budget.keys.contains(&flow.key));
            if !spoken_of {
                let stream = Stream {
                    budget: Some(budget.name.clone()),
                    arrivals: ArrivalsName::Poisson,
                    load: Some(LOAD),
                    per_second: None,
                    cost: None,
                    routing: None,
                    from_s: None,
                    until_s: None,
                };
                let path = format!("the traffic of budgets.{}", budget.name);
                self.stream(&path, &stream, &mut flows)?;
            }
        }
        for (place, flood) in (1..).zip(&file.flood) {
            flows.push(self.flood(&format!("flood[{place}]"), flood)?);
        }
        let requests: f64 = flows.iter().map(requests).sum();
        if requests > REQUESTS_MAX {
            return Err(Invalid(format!(
                "minutes ({}) × traffic come to {requests:.0} requests, must be at most {REQUESTS_MAX}: \
                 say fewer minutes, keys or requests per second",
                float(self.until_us) / float(MINUTE)
            )));
        }
        Ok(flows)
    }

    /// A stream for each key of its budget.
    fn stream(&self, path: &str, stream: &Stream, flows: &mut Vec<Flow>) -> Result<(), Invalid> {
        let budget = self.budget(&format!("{path}.budget"), stream.budget.as_deref())?;
        let policy = &self.policies[budget.keys.start];
        let cost = cost(path, stream.cost, policy.kind.limit())?;
        let per_second = match (stream.load, stream.per_second) {
            (Some(_), Some(_)) => {
                return Err(Invalid(format!(
                    "{path} has load and per_second: say one of them"
                )));
            }
            (None, Some(per_second)) => number(
                &format!("{path}.per_second"),
                Some(per_second),
                0.0,
                0.000_001..=10_000_000.0,
            )?,
            (load, None) => {
                let load = number(&format!("{path}.load"), load, LOAD, 0.000_001..=10_000.0)?;
                load * units_per_second(path, budget, policy)? / mean(cost)
            }
        };
        let arrivals = match stream.arrivals {
            ArrivalsName::Poisson => Arrivals::Poisson { per_second },
            ArrivalsName::PageLoads => Arrivals::PageLoads { per_second },
            ArrivalsName::Steady => Arrivals::Steady { per_second },
        };
        let routing = match stream.routing {
            None => self.routing,
            Some(routing) => route(
                &format!("{path}.routing"),
                routing,
                self.gateways,
                self.until_us,
            )?,
        };
        let (from_us, until_us) = self.span(path, stream.from_s, stream.until_s)?;
        flows.extend(budget.keys.clone().map(|key| Flow {
            key,
            arrivals,
            routing,
            cost,
            from_us,
            until_us,
        }));
        Ok(())
    }

    /// Requests of one unit each for the first key of a budget.
    fn flood(&self, path: &str, flood: &Flood) -> Result<Flow, Invalid> {
        let budget = self.budget(&format!("{path}.budget"), flood.budget.as_deref())?;
        let policy = &self.policies[budget.keys.start];
        let times = number(
            &format!("{path}.times"),
            Some(flood.times),
            0.0,
            0.001..=1e5,
        )?;
        let routing = match flood.gateway {
            None => Routing::Even,
            Some(gateway) => {
                Routing::One(place(&format!("{path}.gateway"), gateway, self.gateways)?)
            }
        };
        let (from_us, until_us) = self.span(path, flood.from_s, flood.until_s)?;
        Ok(Flow {
            key: budget.keys.start,
            arrivals: Arrivals::Poisson {
                per_second: times * units_per_second(path, budget, policy)?,
            },
            routing,
            cost: Cost::Fixed(1),
            from_us,
            until_us,
        })
    }

    fn span(
        &self,
        path: &str,
        from_s: Option<f64>,
        until_s: Option<f64>,
    ) -> Result<(u64, u64), Invalid> {
        let until_us = seconds(
            &format!("{path}.until_s"),
            until_s,
            self.until_us,
            0..=self.until_us,
        )?;
        let from_us = seconds(&format!("{path}.from_s"), from_s, 0, 0..=self.until_us)?;
        if from_us > until_us {
            return Err(Invalid(format!(
                "{path}.from_s ({}) must not be after its until_s ({})",
                float(from_us) / float(SECOND),
                float(until_us) / float(SECOND)
            )));
        }
        Ok((from_us, until_us))
    }

    fn faults(&self, mishaps: &[Mishap]) -> Result<Vec<Fault>, Invalid> {
        let faults = (1..).zip(mishaps).map(|(number, mishap)| {
            let path = format!("fault[{number}]");
            let gateway = || {
                let Some(gateway) = mishap.gateway else {
                    return Err(Invalid(format!(
                        "{path}.gateway is missing: 1 to {}",
                        self.gateways
                    )));
                };
                place(&format!("{path}.gateway"), gateway, self.gateways)
            };
            let kind = match (mishap.kind, mishap.gateway) {
                (MishapName::Crash, _) => FaultKind::Crash {
                    gateway: gateway()?,
                },
                (MishapName::Partition, _) => FaultKind::Partition {
                    gateway: gateway()?,
                },
                (MishapName::Freeze, _) => FaultKind::Freeze {
                    gateway: gateway()?,
                },
                (MishapName::LeaderLoss, None) => FaultKind::LeaderLoss,
                (MishapName::LeaderLoss, Some(gateway)) => {
                    return Err(Invalid(format!(
                        "{path}.gateway ({gateway}) has no meaning: a leader is not a gateway"
                    )));
                }
            };
            Ok(Fault {
                kind,
                at_us: seconds(
                    &format!("{path}.at_s"),
                    Some(mishap.at_s),
                    0,
                    0..=self.until_us,
                )?,
                for_us: seconds(
                    &format!("{path}.for_s"),
                    Some(mishap.for_s),
                    0,
                    MILLISECOND..=self.until_us,
                )?,
            })
        });
        faults.collect()
    }
}

/// Those that are named, or all that can do these kinds.
fn designs(named: Option<&[Design]>, policies: &[Policy]) -> Result<Vec<Design>, Invalid> {
    let buckets = policies.iter().any(is_bucket);
    let able = |design: Design| !buckets || design.knows_buckets();
    let Some(named) = named else {
        return Ok(Design::ALL.into_iter().filter(|d| able(*d)).collect());
    };
    if let Some(design) = named.iter().find(|design| !able(**design)) {
        return Err(Invalid(format!(
            "designs ({}) is defined for sliding windows only, and there is a token_bucket: \
             say leasehold, central_log or both",
            design.name()
        )));
    }
    if named.is_empty() {
        return Err(Invalid(
            "designs ([]) must name at least one, such as \"leasehold\"".to_owned(),
        ));
    }
    let mut designs = Vec::new();
    for design in named {
        if designs.contains(design) {
            return Err(Invalid(format!(
                "designs ({}) is named twice",
                design.name()
            )));
        }
        designs.push(*design);
    }
    Ok(designs)
}

fn route(field: &str, route: Route, gateways: u64, until_us: u64) -> Result<Routing, Invalid> {
    Ok(match route {
        Route::Even => Routing::Even,
        Route::Skewed => Routing::Skewed,
        Route::One(gateway) => Routing::One(place(&format!("{field}.one"), gateway, gateways)?),
        Route::MovingEveryS(every) => Routing::Moving {
            every_us: seconds(
                &format!("{field}.moving_every_s"),
                Some(every),
                0,
                MILLISECOND..=until_us,
            )?,
        },
    })
}

/// A gateway's number, from 1, as a place.
fn place(field: &str, gateway: i64, gateways: u64) -> Result<usize, Invalid> {
    whole(field, Some(gateway), 1, 1..=gateways).map(|number| size(number) - 1)
}

fn cost(path: &str, cost: Option<CostRange>, limit: u64) -> Result<Cost, Invalid> {
    let Some(CostRange { least, most }) = cost else {
        return Ok(Cost::Fixed(1));
    };
    let most = whole(
        &format!("{path}.cost.most"),
        Some(most),
        1,
        1..=limit.max(1),
    )?;
    let least = whole(
        &format!("{path}.cost.least"),
        Some(least),
        1,
        1..=limit.max(1),
    )?;
    if least > most {
        return Err(Invalid(format!(
            "{path}.cost.least ({least}) must not be above its most ({most})"
        )));
    }
    Ok(if least == most {
        Cost::Fixed(most)
    } else {
        Cost::Between(least, most)
    })
}

fn mean(cost: Cost) -> f64 {
    match cost {
        Cost::Fixed(units) => float(units),
        Cost::Between(least, most) => f64::midpoint(float(least), float(most)),
    }
}

/// What the budget lets one key spend for ever.
fn units_per_second(path: &str, budget: &NamedBudget, policy: &Policy) -> Result<f64, Invalid> {
    let (units, us) = match policy.kind {
        Kind::TokenBucket {
            refill,
            refill_period_us,
            ..
        }
        | Kind::Paced {
            refill,
            refill_period_us,
            ..
        } => (refill, refill_period_us),
        // A scenario has windows and buckets only.
        _ => (policy.kind.limit(), policy.kind.own_timescale_us()),
    };
    if units == 0 {
        return Err(Invalid(format!(
            "{path} is a part of budgets.{}.limit (0), which is nothing: say per_second",
            budget.name
        )));
    }
    Ok(float(units) * float(SECOND) / float(us))
}

fn requests(flow: &Flow) -> f64 {
    let (Arrivals::Poisson { per_second }
    | Arrivals::PageLoads { per_second }
    | Arrivals::Steady { per_second }) = flow.arrivals;
    per_second * float(flow.until_us - flow.from_us) / float(SECOND)
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
