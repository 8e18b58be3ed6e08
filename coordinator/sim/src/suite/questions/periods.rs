//! How much hangs on a client's retry period, which the limiter neither sees nor
//! controls.

use super::{Case, retry_means};
use crate::{
    Limiter, MILLISECOND, SECOND,
    output::{Axis, Cell, Chart, Role, Series, Table},
    retries::{Algorithm, Habits, OneNode, Retry},
    suite::{Conditions, Findings, measure::real},
};

const LIMIT: u64 = 10;
const WINDOW_US: u64 = SECOND;
/// From 0.25 s to 2.5 s in steps of 0.05 s: multiples of the time between two tokens
/// (0.1 s) and what lies between them.
const STEP_MS: u64 = 50;
const STEPS: std::ops::RangeInclusive<u64> = 5..=50;

pub(super) fn answer(conditions: &Conditions) -> Findings {
    let periods_ms: Vec<u64> = STEPS.map(|step| step * STEP_MS).collect();
    let mut cases = Vec::new();
    for algorithm in Algorithm::SOUND {
        for &period_ms in &periods_ms {
            cases.push(Case {
                limiter: move |_| -> Box<dyn Limiter> {
                    Box::new(OneNode::new(algorithm, LIMIT, WINDOW_US))
                },
                name: format!("{}, {period_ms} ms", algorithm.name()),
                habits: Habits::fifty(Retry::Flat(period_ms * MILLISECOND)),
                gateways: 1,
                window_us: WINDOW_US,
            });
        }
    }
    let means = retry_means(&cases, conditions);
    let mut table = Table::new(
        "retry-periods",
        "First tries, in percent of what is served, by the clients' flat retry period: one node, 10 per s.",
        &[
            ("period_ms", "period ms"),
            ("token_bucket_pct", "token bucket"),
            ("fixed_window_pct", "fixed window"),
            ("sliding_counter_pct", "sliding counter"),
            ("sliding_log_pct", "sliding log"),
        ],
    );
    let by_algorithm: Vec<Vec<f64>> = means
        .chunks(periods_ms.len())
        .map(|periods| periods.iter().map(|run| run.first_try_pct).collect())
        .collect();
    for (index, &period_ms) in periods_ms.iter().enumerate() {
        let mut cells = vec![Cell::Count(period_ms)];
        let row = by_algorithm.iter().map(|of| Cell::Figure(of[index], 1));
        cells.extend(row);
        table.push(cells);
    }
    let series = Algorithm::SOUND.iter().zip(&by_algorithm);
    let series = series.map(|(algorithm, shares)| {
        let seconds = periods_ms.iter().map(|&ms| real(ms) / 1_000.0);
        let role = match algorithm {
            Algorithm::FixedWindow => Role::Ours,
            _ => Role::Other,
        };
        let points = seconds.zip(shares.iter().copied()).collect();
        Series::line(algorithm.name(), role, points)
    });
    let chart = Chart {
        name: "retry-periods",
        title: "What is served hangs on the clients' retry period".to_owned(),
        setting: "one node, 10 per s, 50 clients, 30 jobs per s, flat retry".to_owned(),
        x: Axis::linear("retry period, s"),
        y: Axis::linear("first tries, % of served").between(0.0, 100.0),
        series: series.collect(),
    };
    Findings {
        tables: vec![table],
        charts: vec![chart],
        complaints: Vec::new(),
    }
}
