//! What becomes of clients that do as they are told: a limiter that tells all of
//! them the same moment gets all of them back at that moment.

use super::{Case, RETRY_COLUMNS, place, retry_cells, retry_means};
use crate::{
    Limiter, SECOND,
    output::{Axis, Cell, Chart, Role, Series, Table},
    retries::{Algorithm, Habits, OneNode, Retry},
    suite::{Conditions, Findings},
};

/// The same rate over a short and a longer window: a whole second is all of the
/// short one.
const WINDOWS_S: [u64; 2] = [1, 10];
const PER_SECOND: u64 = 10;
const HABITS: [(&str, Retry); 4] = [
    ("flat 1 s", Retry::Flat(SECOND)),
    ("Retry-After", Retry::RetryAfter { jitter: false }),
    ("Retry-After, jittered", Retry::RetryAfter { jitter: true }),
    ("full jitter", Retry::FullJitter),
];

pub(super) fn answer(conditions: &Conditions) -> Findings {
    let mut columns = vec![
        ("window_s", "window s"),
        ("limiter", "limiter"),
        ("clients", "clients"),
    ];
    columns.extend(RETRY_COLUMNS);
    let mut table = Table::new(
        "stampedes",
        "Clients that obey Retry-After: 50 clients, 30 jobs per s at a limit of 10 per s, one node.",
        &columns,
    );
    let mut cases = Vec::new();
    let mut labels = Vec::new();
    for window_s in WINDOWS_S {
        for algorithm in Algorithm::SOUND {
            for (habit, retry) in HABITS {
                let window_us = window_s * SECOND;
                cases.push(Case {
                    limiter: move |_| -> Box<dyn Limiter> {
                        let limit = PER_SECOND * window_s;
                        Box::new(OneNode::new(algorithm, limit, window_us))
                    },
                    name: format!("{}, {habit}", algorithm.name()),
                    habits: Habits::fifty(retry),
                    gateways: 1,
                    window_us,
                });
                labels.push((window_s, algorithm, habit));
            }
        }
    }
    let means = retry_means(&cases, conditions);
    for ((window_s, algorithm, habit), figures) in labels.iter().zip(&means) {
        let mut cells = vec![
            Cell::Count(*window_s),
            Cell::text(algorithm.name()),
            Cell::text(*habit),
        ];
        cells.extend(retry_cells(figures));
        table.push(cells);
    }
    table.note(
        "Retry-After is in whole seconds, rounded up; jittered: up to as long again. Crowding: the busiest 100 ms of a window over its mean.",
    );
    let bars = HABITS.map(|(habit, retry)| {
        let of_habit = labels
            .iter()
            .zip(&means)
            .filter(|((window_s, _, name), _)| *window_s == WINDOWS_S[1] && *name == habit);
        let points = of_habit
            .enumerate()
            .map(|(index, (_, figures))| (place(index), figures.crowding))
            .collect();
        let role = match retry {
            Retry::RetryAfter { jitter: false } => Role::Ours,
            _ => Role::Other,
        };
        Series::bars(habit, role, points)
    });
    let names = Algorithm::SOUND.map(|algorithm| algorithm.name().to_owned());
    let chart = Chart {
        name: "stampedes",
        title: "Obeying Retry-After without jitter makes stampedes".to_owned(),
        setting: "one node, 100 per 10 s, 50 clients, 30 jobs per s".to_owned(),
        x: Axis::names("limiter", names.to_vec()),
        y: Axis::linear("busiest 100 ms of a window over its mean"),
        series: bars.to_vec(),
    };
    Findings {
        tables: vec![table],
        charts: vec![chart],
        complaints: Vec::new(),
    }
}
