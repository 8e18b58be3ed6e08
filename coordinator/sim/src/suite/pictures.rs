//! The designs side by side, over a range of loads, floods and sync intervals: one
//! table and its pictures each. Judges nothing.

use leasehold_ledger::policy::Kind;

use super::{Conditions, Findings};
use crate::{
    SECOND,
    output::{Axis, Cell, Chart, Role, Series, Table, Unwatched},
    scenario::{Design, NamedBudget, Results, Scenario},
    suite::run_each,
    system::Setup,
    traffic::{Arrivals, Cost, Flow, Routing},
};

const MINUTE: u64 = 60 * SECOND;
/// What the published studies measure with: 100 in any minute.
const LIMIT: u64 = 100;
const WINDOW_US: u64 = MINUTE;
/// A session's ttl is at least three sync intervals.
const SYNCS_PER_TTL: u64 = 4;

/// One point along a picture's axis.
#[derive(Clone)]
struct Point {
    gateways: usize,
    routing: Routing,
    /// Of the limit: a load below about 1, a flood far above.
    load: f64,
    sync_us: u64,
    minutes: u64,
    designs: Vec<Design>,
}

impl Point {
    fn run(&self, seed: u64) -> Results {
        let kind = Kind::SlidingWindow {
            limit: LIMIT,
            window_us: WINDOW_US,
        };
        let mut setup = Setup::of_one_key(seed, self.gateways, kind);
        setup.settings.sync_interval_us = self.sync_us;
        setup.settings.session_ttl_us = setup
            .settings
            .session_ttl_us
            .max(SYNCS_PER_TTL * self.sync_us);
        let until_us = (self.minutes + 5) * MINUTE;
        let scenario = Scenario {
            setup,
            budgets: vec![NamedBudget {
                name: "key".to_owned(),
                keys: 0..1,
            }],
            flows: vec![Flow {
                key: 0,
                arrivals: Arrivals::Poisson {
                    per_second: self.load * 100.0 / 60.0,
                },
                routing: self.routing,
                cost: Cost::Fixed(1),
                from_us: 0,
                until_us,
            }],
            designs: self.designs.clone(),
            from_us: 5 * MINUTE,
            until_us,
            remarks: Vec::new(),
        };
        scenario.run(&Unwatched)
    }

    fn routing_name(&self) -> &'static str {
        match self.routing {
            Routing::Even => "even",
            Routing::Skewed => "skewed",
            Routing::One(_) => "one",
            Routing::Moving { .. } => "moving",
        }
    }
}

/// A design's figures at one point.
struct Measured {
    point: Point,
    design: Design,
    wait_pct: f64,
    bound_pct: Option<f64>,
    refused_pct: f64,
    central_pct: f64,
    /// The worst window's share of the limit.
    worst: f64,
    over_admitted: u64,
}

fn measure(points: &[Point], conditions: &Conditions<'_>) -> Vec<Measured> {
    let results = run_each(
        points,
        conditions.progress,
        |point| format!("{} gateways at {} %", point.gateways, 100.0 * point.load),
        |point| point.run(conditions.seed),
    );
    let mut measured = Vec::new();
    for (point, results) in points.iter().zip(results) {
        let central = results.central.first().copied().unwrap_or_default();
        for figures in &results.designs {
            let Some(budget) = figures.budgets.first() else {
                continue;
            };
            measured.push(Measured {
                point: point.clone(),
                design: figures.design,
                wait_pct: budget.tally.percent(budget.tally.waited),
                bound_pct: results.bounds_pct.first().copied().flatten(),
                refused_pct: budget.tally.percent(budget.tally.refused),
                central_pct: central.percent(central.refused),
                worst: budget.worst_ratio,
                over_admitted: budget.over_admitted,
            });
        }
    }
    measured
}

/// Waits and needless refusals of each design against the load.
#[must_use]
pub fn by_load(conditions: &Conditions<'_>) -> Findings {
    const LOADS: [f64; 9] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
    let designs = [
        Design::Leasehold,
        Design::AskWhenEmpty,
        Design::PlainLeases,
        Design::Split,
        Design::CentralLog,
    ];
    let places = [
        (8, Routing::Even),
        (32, Routing::Even),
        (32, Routing::Skewed),
    ];
    let points: Vec<Point> = places
        .into_iter()
        .flat_map(|(gateways, routing)| {
            LOADS.map(|load| Point {
                gateways,
                routing,
                load,
                sync_us: SECOND,
                minutes: if conditions.reduced { 20 } else { 120 },
                designs: designs.to_vec(),
            })
        })
        .collect();
    let measured = measure(&points, conditions);
    let mut charts = Vec::new();
    for (name, (gateways, routing)) in ["waits-8-even", "waits-32-even", "waits-32-skewed"]
        .into_iter()
        .zip(places)
    {
        let here = |m: &&Measured| m.point.gateways == gateways && m.point.routing == routing;
        let mut series = lines(
            // The others never wait: they refuse instead.
            &designs[..2],
            measured.iter().filter(here),
            |m| (100.0 * m.point.load, m.wait_pct),
        );
        let bound = measured
            .iter()
            .filter(here)
            .filter(|m| m.design == Design::Leasehold)
            .filter_map(|m| Some((100.0 * m.point.load, m.bound_pct?)));
        series.insert(
            1,
            Series::line("proven lower bound", Role::Bound, bound.collect()),
        );
        charts.push(Chart {
            name,
            title: "Requests that wait for the coordinator".to_owned(),
            setting: setting(gateways, routing),
            x: Axis::linear("load, % of the limit").between(20.0, 100.0),
            y: Axis::linear("waits, % of requests").between(0.0, 100.0),
            series,
        });
    }
    let (gateways, routing) = places[2];
    let here = |m: &&Measured| m.point.gateways == gateways && m.point.routing == routing;
    charts.push(Chart {
        name: "refusals-by-load",
        title: "Requests refused although the limit had room".to_owned(),
        setting: setting(gateways, routing),
        x: Axis::linear("load, % of the limit").between(20.0, 100.0),
        y: Axis::linear("refusals beyond an exact central log, % of requests"),
        series: lines(&designs[..4], measured.iter().filter(here), |m| {
            (100.0 * m.point.load, m.refused_pct - m.central_pct)
        }),
    });
    Findings {
        tables: vec![table("by-load", "Each design at each load.", &measured)],
        charts,
        complaints: Vec::new(),
    }
}

/// What each design lets through under a flood, in its worst minute.
#[must_use]
pub fn by_flood(conditions: &Conditions<'_>) -> Findings {
    const FLOODS: [f64; 7] = [1.5, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0];
    let designs = [
        Design::Leasehold,
        Design::SharedCounter,
        Design::TrackShare,
        Design::AssumeOthers,
        Design::Split,
        Design::AskWhenEmpty,
    ];
    let points = FLOODS.map(|load| Point {
        gateways: 8,
        routing: Routing::Even,
        load,
        sync_us: SECOND,
        minutes: if conditions.reduced { 2 } else { 15 },
        designs: designs.to_vec(),
    });
    let measured = measure(&points, conditions);
    Findings {
        tables: vec![table(
            "by-flood",
            "Each design under each flood.",
            &measured,
        )],
        charts: vec![Chart {
            name: "over-admission-by-flood",
            title: "Admitted in the worst minute, under a flood".to_owned(),
            setting: setting(8, Routing::Even),
            x: Axis::log("flood, times the limit"),
            y: Axis::linear("admitted in the worst minute, times the limit").between(0.0, 8.0),
            series: lines(&designs, measured.iter(), |m| (m.point.load, m.worst)),
        }],
        complaints: Vec::new(),
    }
}

/// What each design refuses honest clients, against its sync interval.
#[must_use]
pub fn by_sync_interval(conditions: &Conditions<'_>) -> Findings {
    const SYNCS_MS: [u64; 5] = [100, 300, 1_000, 3_000, 10_000];
    let designs = [
        Design::Leasehold,
        Design::PlainLeases,
        Design::Split,
        Design::AssumeOthers,
        Design::TrackShare,
        Design::AskWhenEmpty,
        Design::CentralLog,
    ];
    let points = SYNCS_MS.map(|sync_ms| Point {
        gateways: 32,
        routing: Routing::Skewed,
        load: 0.8,
        sync_us: sync_ms * 1_000,
        minutes: if conditions.reduced { 20 } else { 120 },
        designs: designs.to_vec(),
    });
    let measured = measure(&points, conditions);
    Findings {
        tables: vec![table(
            "by-sync-interval",
            "Each design at each sync interval.",
            &measured,
        )],
        charts: vec![Chart {
            name: "refusals-by-sync-interval",
            title: "Requests refused to honest clients at 80 % of their limit".to_owned(),
            setting: setting(32, Routing::Skewed),
            x: Axis::log("sync interval, s"),
            y: Axis::linear("refusals, % of requests"),
            series: lines(&designs, measured.iter(), |m| {
                (seconds(m.point.sync_us), m.refused_pct)
            }),
        }],
        complaints: Vec::new(),
    }
}

fn setting(gateways: usize, routing: Routing) -> String {
    let routing = match routing {
        Routing::Skewed => "uneven routing (1/i)",
        _ => "even routing",
    };
    format!("limit {LIMIT} per 60 s, {gateways} gateways, {routing}, 5 ms one way")
}

/// A line for each design.
fn lines<'a>(
    designs: &[Design],
    measured: impl Iterator<Item = &'a Measured> + Clone,
    point: impl Fn(&Measured) -> (f64, f64),
) -> Vec<Series> {
    let hue = |design: &Design| Design::ALL.iter().position(|other| other == design);
    let each = designs.iter().map(|design| {
        let points = measured.clone().filter(|m| m.design == *design).map(&point);
        let role = if *design == Design::Leasehold {
            Role::Ours
        } else {
            Role::Other
        };
        // The first of all is ours, which has a colour of its own.
        Series::line(design.name().replace('_', " "), role, points.collect())
            .hued(hue(design).unwrap_or(0).saturating_sub(1))
    });
    each.collect()
}

fn table(name: &'static str, title: &str, measured: &[Measured]) -> Table {
    let mut table = Table::new(
        name,
        title,
        &[
            ("limit", "limit"),
            ("gateways", "gateways"),
            ("routing", "routing"),
            ("load", "load"),
            ("sync_s", "sync s"),
            ("design", "design"),
            ("wait_pct", "waits %"),
            ("bound_pct", "bound %"),
            ("refused_pct", "refused %"),
            ("excess_pp", "excess pp"),
            ("worst_window", "worst window"),
            ("over_admitted", "over-admitted"),
        ],
    );
    for m in measured {
        table.push(vec![
            Cell::Count(LIMIT),
            Cell::Count(m.point.gateways as u64),
            Cell::text(m.point.routing_name()),
            Cell::Figure(m.point.load, 2),
            Cell::Figure(seconds(m.point.sync_us), 1),
            Cell::text(m.design.name()),
            Cell::Figure(m.wait_pct, 2),
            m.bound_pct
                .map_or(Cell::None, |bound| Cell::Figure(bound, 2)),
            Cell::Figure(m.refused_pct, 2),
            Cell::Figure(m.refused_pct - m.central_pct, 2),
            Cell::Figure(m.worst, 3),
            Cell::Count(m.over_admitted),
        ]);
    }
    table
}

#[expect(clippy::cast_precision_loss, reason = "an interval below an hour")]
fn seconds(us: u64) -> f64 {
    us as f64 / SECOND as f64
}
