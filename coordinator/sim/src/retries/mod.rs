//! Clients that try again until they are served, and what limiters make of them:
//! who is served, how evenly, and at what price.

mod clients;
mod one_node;

use leasehold_checkers::Admission;

pub use clients::{Attempts, Clients, Habits, Job, Retry};
pub use one_node::{Algorithm, OneNode};

use crate::{Limiter, MILLISECOND, Record, SECOND, drive};

/// Admissions are counted in pieces of so much time.
const ADMITTED_BUCKET_US: u64 = 200 * MILLISECOND;
/// Arrivals are counted in pieces of so much time.
const ARRIVED_BUCKET_US: u64 = 100 * MILLISECOND;

/// What one run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct RetryFigures {
    /// Served jobs that were served at their first try, in percent.
    pub first_try_pct: f64,
    /// Coefficient of variation of admissions per 200 ms: 0.2 is a steady drip.
    pub burstiness: f64,
    /// Requests per admission.
    pub amplification: f64,
    /// Admissions per second.
    pub goodput: f64,
    /// From a job's coming until it was served, in seconds: 95 % of the served took
    /// no longer.
    pub completion_p95_s: f64,
    /// Jobs that were not served by the end, in percent.
    pub unfinished_pct: f64,
    /// The most requests that arrived within 100 ms.
    pub peak_arrivals: f64,
    /// The busiest 100 ms of each period as a multiple of the mean of that period,
    /// on average over the periods: 1 is even, a stampede is a large figure.
    pub crowding: f64,
    /// The most admitted in any closed interval of one window.
    pub worst_window: f64,
    /// The share of requests that waited for a message, in percent.
    pub waited_pct: f64,
}

impl RetryFigures {
    /// The mean of several runs; of their worst windows the worst.
    #[must_use]
    pub fn mean(runs: &[Self]) -> Self {
        let mean = |figure: fn(&Self) -> f64| {
            runs.iter().map(figure).sum::<f64>() / real(runs.len().max(1))
        };
        Self {
            first_try_pct: mean(|run| run.first_try_pct),
            burstiness: mean(|run| run.burstiness),
            amplification: mean(|run| run.amplification),
            goodput: mean(|run| run.goodput),
            completion_p95_s: mean(|run| run.completion_p95_s),
            unfinished_pct: mean(|run| run.unfinished_pct),
            peak_arrivals: mean(|run| run.peak_arrivals),
            crowding: mean(|run| run.crowding),
            worst_window: runs
                .iter()
                .fold(0.0, |worst, run| worst.max(run.worst_window)),
            waited_pct: mean(|run| run.waited_pct),
        }
    }
}

/// Lets clients with these habits at a limiter over `gateways` gateways, for
/// `run_us`. `window_us` is the limiter's window, and the period of crowding.
pub fn retrying(
    limiter: &mut dyn Limiter,
    habits: Habits,
    gateways: usize,
    window_us: u64,
    seed: u64,
    run_us: u64,
) -> RetryFigures {
    let mut clients = Clients::new(seed, gateways, habits);
    let mut record = Record::new();
    drive(limiter, &mut clients, run_us, &mut record);

    let came: Vec<&Job> = clients
        .jobs()
        .iter()
        .filter(|job| job.attempts > 0)
        .collect();
    let served: Vec<&Job> = came
        .iter()
        .copied()
        .filter(|job| job.done_us.is_some_and(|us| us < run_us))
        .collect();
    let first_try = served.iter().filter(|job| job.attempts == 1).count();
    let mut completions: Vec<u64> = served
        .iter()
        .filter_map(|job| Some(job.done_us? - job.born_us))
        .collect();
    completions.sort_unstable();

    let requests = record.outcomes().len();
    let admissions = record.admissions(0);
    let admitted_at = admissions.iter().map(|admission| admission.call_ns / 1_000);
    let arrived_at = record
        .outcomes()
        .iter()
        .map(|outcome| outcome.request.at_us);
    let arrivals = buckets(arrived_at, ARRIVED_BUCKET_US, run_us);
    let waited = crate::Tally::of(record.outcomes());
    RetryFigures {
        first_try_pct: 100.0 * real(first_try) / real(served.len().max(1)),
        burstiness: variation(&buckets(admitted_at, ADMITTED_BUCKET_US, run_us)),
        amplification: real(requests) / real(served.len().max(1)),
        goodput: real(served.len()) * seconds_inverse(run_us),
        completion_p95_s: completions
            .get((completions.len() * 95).div_ceil(100).saturating_sub(1))
            .map_or(0.0, |us| f64_of(*us) / f64_of(SECOND)),
        unfinished_pct: 100.0 * real(came.len() - served.len()) / real(came.len().max(1)),
        peak_arrivals: real(arrivals.iter().copied().max().unwrap_or(0)),
        crowding: crowding(&arrivals, window_us),
        worst_window: worst_window(&admissions, window_us),
        waited_pct: waited.percent(waited.waited),
    }
}

/// How many moments fall into each piece of time.
fn buckets(moments: impl Iterator<Item = u64>, bucket_us: u64, run_us: u64) -> Vec<usize> {
    let count = usize::try_from(run_us.div_ceil(bucket_us)).unwrap_or(0);
    let mut buckets = vec![0; count];
    for at_us in moments {
        let place = usize::try_from(at_us / bucket_us).unwrap_or(usize::MAX);
        if let Some(bucket) = buckets.get_mut(place) {
            *bucket += 1;
        }
    }
    buckets
}

/// Standard deviation over mean.
fn variation(counts: &[usize]) -> f64 {
    let places = real(counts.len().max(1));
    let mean = counts.iter().copied().map(real).sum::<f64>() / places;
    let squares = counts
        .iter()
        .map(|count| (real(*count) - mean).powi(2))
        .sum::<f64>();
    if mean > 0.0 {
        (squares / places).sqrt() / mean
    } else {
        0.0
    }
}

/// The greatest count of each period over the period's mean, on average.
fn crowding(counts: &[usize], period_us: u64) -> f64 {
    let places = usize::try_from(period_us / ARRIVED_BUCKET_US).unwrap_or(1);
    let periods: Vec<f64> = counts
        .chunks(places.max(1))
        .filter_map(|period| {
            let sum: usize = period.iter().sum();
            let most = period.iter().copied().max()?;
            (sum > 0).then(|| real(most) * real(period.len()) / real(sum))
        })
        .collect();
    periods.iter().sum::<f64>() / real(periods.len().max(1))
}

fn worst_window(admissions: &[Admission], window_us: u64) -> f64 {
    let promise = leasehold_checkers::Promise::Window {
        limit: 0,
        window_us,
    };
    f64_of(promise.judge(admissions).worst_units)
}

fn seconds_inverse(us: u64) -> f64 {
    f64_of(SECOND) / f64_of(us.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
fn real(count: usize) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds of a run are below 2^53"
)]
fn f64_of(us: u64) -> f64 {
    us as f64
}
