//! Questions that the published studies leave open, each answered with a table and
//! a picture. Expects nothing but that the limit is kept where that is promised.

mod eight_gateways;
mod periods;
mod stampedes;
mod sticky;

use super::{Conditions, Findings, run_each};
use crate::{
    Limiter, SECOND,
    output::Cell,
    retries::{Habits, RetryFigures, retrying},
};

/// How long a run of retrying clients is.
const RETRY_RUN_US: u64 = 60 * SECOND;

/// Answers each with a table and a picture.
#[must_use]
pub fn questions(conditions: &Conditions) -> Findings {
    let mut all = Findings::default();
    for found in [
        stampedes::answer(conditions),
        eight_gateways::answer(conditions),
        periods::answer(conditions),
        sticky::answer(conditions),
    ] {
        all.tables.extend(found.tables);
        all.charts.extend(found.charts);
        all.complaints.extend(found.complaints);
    }
    all
}

/// Retrying clients at one limiter.
#[derive(Clone, Debug)]
struct Case<L> {
    /// Makes the limiter for a seed.
    limiter: L,
    name: String,
    habits: Habits,
    gateways: usize,
    window_us: u64,
}

/// The mean of several runs of each case.
fn retry_means<L>(cases: &[Case<L>], conditions: &Conditions) -> Vec<RetryFigures>
where
    L: Fn(u64) -> Box<dyn Limiter> + Sync,
{
    let seeds = if conditions.reduced { 3 } else { 20 };
    let jobs: Vec<(&Case<L>, u64)> = cases
        .iter()
        .flat_map(|case| (0..seeds).map(move |run| (case, conditions.seed + run)))
        .collect();
    let runs = run_each(
        &jobs,
        conditions.progress,
        |(case, _)| case.name.clone(),
        |(case, seed)| {
            let mut limiter = (case.limiter)(*seed);
            retrying(
                &mut *limiter,
                case.habits,
                case.gateways,
                case.window_us,
                *seed,
                RETRY_RUN_US,
            )
        },
    );
    let seeds = usize::try_from(seeds).unwrap_or(1);
    runs.chunks(seeds).map(RetryFigures::mean).collect()
}

/// The columns that all tables about retries have.
const RETRY_COLUMNS: [(&str, &str); 7] = [
    ("first_try_pct", "first tries %"),
    ("burstiness", "burstiness"),
    ("amplification", "requests/admission"),
    ("goodput_per_s", "admitted/s"),
    ("completion_p95_s", "p95 s"),
    ("peak_per_100ms", "peak/100 ms"),
    ("crowding", "crowding"),
];

fn retry_cells(figures: &RetryFigures) -> Vec<Cell> {
    vec![
        Cell::Figure(figures.first_try_pct, 1),
        Cell::Figure(figures.burstiness, 2),
        Cell::Figure(figures.amplification, 1),
        Cell::Figure(figures.goodput, 2),
        Cell::Figure(figures.completion_p95_s, 1),
        Cell::Figure(figures.peak_arrivals, 0),
        Cell::Figure(figures.crowding, 2),
    ]
}

/// A figure's place among named ones.
fn place(index: usize) -> f64 {
    super::measure::real(index as u64)
}

#[cfg(test)]
mod tests {
    use crate::{SECOND, baseline::Design, suite::measure::Setting, traffic::Routing};

    #[test]
    fn routing_that_moves_passes_no_limit() {
        let setting = Setting {
            gateways: 8,
            load: 1.0,
            routing: Routing::Moving {
                every_us: 10 * SECOND,
            },
            ..Setting::usual(Design::AskWhenEmpty)
        };
        let ours = setting.run_leasehold(1, 1);
        assert!(ours.tally.requests > 50);
        assert!(ours.worst <= 1.0, "{} times the limit", ours.worst);
    }
}
