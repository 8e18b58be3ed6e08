//! What Leasehold does where routing is sticky: all of a key's requests at one
//! gateway, for ever or until they move.

use super::place;
use crate::{
    SECOND,
    baseline::Design,
    output::{Axis, Cell, Chart, Role, Series, Table},
    suite::{
        Conditions, Findings,
        measure::{Figures, Setting, real},
        run_each,
    },
    traffic::Routing,
};

const ROUTINGS: [(&str, Routing); 5] = [
    ("even", Routing::Even),
    (
        "moves, 10 s",
        Routing::Moving {
            every_us: 10 * SECOND,
        },
    ),
    (
        "moves, 60 s",
        Routing::Moving {
            every_us: 60 * SECOND,
        },
    ),
    (
        "moves, 600 s",
        Routing::Moving {
            every_us: 600 * SECOND,
        },
    ),
    ("one gateway", Routing::One(0)),
];
const LOADS: [f64; 2] = [0.8, 1.0];
const GATEWAYS: [usize; 2] = [8, 32];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Leasehold,
    Asking,
    Central,
}

const CONTENDERS: [Contender; 3] = [Contender::Leasehold, Contender::Asking, Contender::Central];

pub(super) fn answer(conditions: &Conditions) -> Findings {
    let (seeds, minutes) = if conditions.reduced { (1, 20) } else { (3, 60) };
    let mut labels = Vec::new();
    let mut jobs = Vec::new();
    for gateways in GATEWAYS {
        for load in LOADS {
            for (name, routing) in ROUTINGS {
                let setting = Setting {
                    gateways,
                    load,
                    routing,
                    ..Setting::usual(Design::AskWhenEmpty)
                };
                labels.push((name, setting));
                for contender in CONTENDERS {
                    for run in 0..seeds {
                        jobs.push((contender, setting, conditions.seed + run));
                    }
                }
            }
        }
    }
    let runs = run_each(
        &jobs,
        conditions.progress,
        |(_, setting, _)| setting.text(),
        |(contender, setting, seed)| match contender {
            Contender::Leasehold => setting.run_leasehold(*seed, minutes),
            Contender::Asking => setting.run(*seed, minutes),
            Contender::Central => Setting {
                design: Design::CentralLog,
                ..*setting
            }
            .run(*seed, minutes),
        },
    );
    let seeds = usize::try_from(seeds).unwrap_or(1);
    let mut table = Table::new(
        "sticky-routing",
        "Where a key's requests all go to one gateway: limit 100 per 60 s.",
        &[
            ("gateways", "gateways"),
            ("load_pct", "load %"),
            ("routing", "routing"),
            ("wait_pct", "waited %"),
            ("excess_pp", "excess pp"),
            ("messages_per_request", "messages/request"),
            ("over_admitted", ""),
            ("asking_wait_pct", "ask when empty: waited %"),
            ("asking_excess_pp", "excess pp"),
            ("central_refused_pct", "central refuses %"),
        ],
    );
    let mut complaints = Vec::new();
    let mut waits: Vec<(f64, f64)> = Vec::new();
    for (label, runs) in labels.iter().zip(runs.chunks(seeds * CONTENDERS.len())) {
        let (name, setting) = label;
        let of = |contender: usize| &runs[contender * seeds..(contender + 1) * seeds];
        let (ours, asking, central) = (of(0), of(1), of(2));
        let refused = mean(central, Figures::refused_pct);
        let worst = ours
            .iter()
            .fold(0.0, |worst: f64, run| worst.max(run.worst));
        let waited = (
            mean(ours, Figures::waited_pct),
            mean(asking, Figures::waited_pct),
        );
        table.push(vec![
            Cell::Count(setting.gateways as u64),
            Cell::Figure(100.0 * setting.load, 0),
            Cell::text(*name),
            Cell::Figure(waited.0, 2),
            Cell::Figure(mean(ours, Figures::refused_pct) - refused, 2),
            Cell::Figure(mean(ours, |run| run.keyed_per_request), 2),
            Cell::Figure((worst - 1.0).max(0.0) * real(setting.limit), 0),
            Cell::Figure(waited.1, 2),
            Cell::Figure(mean(asking, Figures::refused_pct) - refused, 2),
            Cell::Figure(refused, 2),
        ]);
        if worst > 1.0 {
            complaints.push(format!(
                "{}, {name}: {worst} times the limit",
                setting.text()
            ));
        }
        if setting.gateways == GATEWAYS[0] && setting.load < 1.0 {
            waits.push(waited);
        }
    }
    table.note("Excess: refusals beyond an exact central log on the same requests.");
    let bars = |label: &str, role, figure: fn(&(f64, f64)) -> f64| {
        let points = waits.iter().enumerate();
        let points = points.map(|(index, waited)| (place(index), figure(waited)));
        Series::bars(label, role, points.collect())
    };
    let names = ROUTINGS.map(|(name, _)| name.to_owned());
    let chart = Chart {
        name: "sticky-routing",
        title: "Requests that wait where routing is sticky".to_owned(),
        setting: "100 per 60 s, 8 gateways, 80 % load".to_owned(),
        x: Axis::names(
            "where requests go, and how often that moves",
            names.to_vec(),
        ),
        y: Axis::linear("requests that waited, %"),
        series: vec![
            bars("Leasehold", Role::Ours, |waited| waited.0),
            bars("ask when empty, Δ 1 s", Role::Other, |waited| waited.1),
        ],
    };
    Findings {
        tables: vec![table],
        charts: vec![chart],
        complaints,
    }
}

fn mean(runs: &[Figures], figure: impl Fn(&Figures) -> f64) -> f64 {
    runs.iter().map(figure).sum::<f64>() / real(runs.len().max(1) as u64)
}
