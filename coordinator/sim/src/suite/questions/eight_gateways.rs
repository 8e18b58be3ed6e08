//! Who is served, and how evenly, when the limiter is spread over eight gateways:
//! Leasehold, and a shared counter that is stale.

use leasehold_ledger::policy::Kind;

use super::{Case, RETRY_COLUMNS, place, retry_cells, retry_means};
use crate::{
    Limiter, MILLISECOND, SECOND,
    baseline::{CentralLog, SharedCounter, Syncs, Window},
    output::{Axis, Cell, Chart, Role, Series, Table},
    retries::{Attempts, Habits, Retry, RetryFigures},
    suite::{Conditions, Findings, measure::real},
    system::{Leasehold, Setup},
};

const GATEWAYS: usize = 8;
const LIMIT: u64 = 10;
const WINDOW_US: u64 = SECOND;
const STALE_MS: [u64; 3] = [100, 300, 1_000];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Leasehold(Count),
    Central(Count),
    Shared { sync_ms: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Window,
    Bucket,
}

impl Count {
    fn kind(self) -> Kind {
        match self {
            Self::Window => Kind::SlidingWindow {
                limit: LIMIT,
                window_us: WINDOW_US,
            },
            Self::Bucket => Kind::TokenBucket {
                capacity: LIMIT,
                refill: LIMIT,
                refill_period_us: WINDOW_US,
            },
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Window => "sliding window",
            Self::Bucket => "token bucket",
        }
    }
}

impl Contender {
    fn limiter(self, seed: u64) -> Box<dyn Limiter> {
        match self {
            Self::Leasehold(count) => {
                let setup = Setup::of_one_key(seed, GATEWAYS, count.kind());
                Box::new(Leasehold::new(setup))
            }
            Self::Central(count) => Box::new(CentralLog::new(&[count.kind()], 0)),
            Self::Shared { sync_ms } => Box::new(SharedCounter::new(
                GATEWAYS,
                LIMIT,
                Window::Sliding(WINDOW_US),
                Syncs::every(sync_ms * MILLISECOND, seed),
            )),
        }
    }

    /// Its name where there is little room.
    fn short(self) -> String {
        match self {
            Self::Leasehold(Count::Window) => "ours, log".to_owned(),
            Self::Leasehold(Count::Bucket) => "ours, bucket".to_owned(),
            Self::Central(Count::Window) => "log".to_owned(),
            Self::Central(Count::Bucket) => "bucket".to_owned(),
            Self::Shared { sync_ms } => format!("stale {} s", real(sync_ms) / 1_000.0),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Leasehold(count) => format!("Leasehold, {}", count.name()),
            Self::Central(count) => format!("central, {}", count.name()),
            Self::Shared { sync_ms } => {
                format!("shared counter, {} s", real(sync_ms) / 1_000.0)
            }
        }
    }
}

const WAYS: [(&str, Attempts); 2] = [
    ("any gateway", Attempts::Anywhere),
    ("own gateway", Attempts::Sticky),
];

pub(super) fn answer(conditions: &Conditions) -> Findings {
    let mut contenders = Vec::new();
    for count in [Count::Window, Count::Bucket] {
        contenders.push(Contender::Central(count));
        contenders.push(Contender::Leasehold(count));
    }
    contenders.extend(STALE_MS.map(|sync_ms| Contender::Shared { sync_ms }));

    let mut cases = Vec::new();
    let mut labels = Vec::new();
    for (way, attempts) in WAYS {
        for &contender in &contenders {
            cases.push(Case {
                limiter: move |seed| contender.limiter(seed),
                name: contender.name(),
                habits: Habits {
                    attempts,
                    ..Habits::fifty(Retry::Flat(SECOND))
                },
                gateways: GATEWAYS,
                window_us: WINDOW_US,
            });
            labels.push((contender, way));
        }
    }
    let means = retry_means(&cases, conditions);

    let mut columns = vec![("design", "design"), ("attempts_at", "attempts at")];
    columns.extend(RETRY_COLUMNS);
    columns.push(("worst_window_units", "worst 1 s"));
    columns.push(("waited_pct", "waited %"));
    let mut table = Table::new(
        "retries-over-8-gateways",
        "Flat retries after 1 s over 8 gateways: 50 clients, 30 jobs per s at a limit of 10 per s.",
        &columns,
    );
    let mut complaints = Vec::new();
    for ((contender, way), figures) in labels.iter().zip(&means) {
        let mut cells = vec![Cell::text(contender.name()), Cell::text(*way)];
        cells.extend(retry_cells(figures));
        cells.push(Cell::Figure(figures.worst_window, 1));
        cells.push(Cell::Figure(figures.waited_pct, 1));
        table.push(cells);
        let exact = matches!(contender, Contender::Leasehold(Count::Window));
        if exact && figures.worst_window > real(LIMIT) {
            complaints.push(format!(
                "{}: {} units within one window of a limit of {LIMIT}",
                contender.name(),
                figures.worst_window
            ));
        }
    }
    table.note("Leasehold: 5 ms one way, as shipped. A store is asked and synced with in no time.");

    let names: Vec<String> = contenders.iter().map(|one| one.short()).collect();
    let chart = |name, title: &str, label: &str, figure: fn(&RetryFigures) -> f64| {
        let ways = WAYS.iter().zip(means.chunks(contenders.len()));
        let series = ways.map(|((way, attempts), runs)| {
            let points = runs.iter().enumerate();
            let points = points.map(|(index, run)| (place(index), figure(run)));
            let role = match attempts {
                Attempts::Anywhere => Role::Ours,
                Attempts::Sticky => Role::Other,
            };
            Series::bars(*way, role, points.collect())
        });
        Chart {
            name,
            title: title.to_owned(),
            setting: "10 per s, 50 clients, 30 jobs per s, retry after 1 s".to_owned(),
            x: Axis::names(
                "one central store, Leasehold, or a shared counter that is stale",
                names.clone(),
            ),
            y: Axis::linear(label),
            series: series.collect(),
        }
    };
    let charts = vec![
        chart(
            "first-tries-over-8-gateways",
            "Who is served under flat retries, over 8 gateways",
            "first tries, % of served",
            |run| run.first_try_pct,
        ),
        chart(
            "burstiness-over-8-gateways",
            "How evenly units are spent under flat retries, over 8 gateways",
            "burstiness of admissions per 200 ms",
            |run| run.burstiness,
        ),
    ];
    Findings {
        tables: vec![table],
        charts,
        complaints,
    }
}
