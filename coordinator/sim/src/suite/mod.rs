//! Collections of runs that say something together. Knows no design; each suite
//! is a file of its own.

mod baselines;
mod design;
mod findings;
mod measure;
pub mod pictures;
mod questions;

use std::{
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::output::Progress;

pub use baselines::baselines;
pub use design::design;
pub use findings::{Findings, PictureError};
pub use questions::questions;

/// What all suites are told.
#[derive(Clone, Copy)]
pub struct Conditions<'a> {
    /// Everything random comes from it.
    pub seed: u64,
    /// Fewer and shorter runs, with bounds widened accordingly: for CI.
    pub reduced: bool,
    /// Is told how far it is.
    pub progress: &'a dyn Progress,
}

/// Runs jobs, as many at once as there are processors. The results are in the
/// order of the jobs and do not depend on how many that is: a run shares nothing
/// with another.
pub fn run_each<J, R>(
    jobs: &[J],
    progress: &dyn Progress,
    name: impl Fn(&J) -> String + Sync,
    run: impl Fn(&J) -> R + Sync,
) -> Vec<R>
where
    J: Sync,
    R: Send,
{
    progress.expect(u64::try_from(jobs.len()).unwrap_or(u64::MAX));
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    // Relaxed: only that each place is drawn once matters; results are
                    // handed over under their locks.
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(job), Some(slot)) = (jobs.get(place), results.get(place)) else {
                        break;
                    };
                    let result = run(job);
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                    progress.done(&name(job));
                }
            });
        }
    });
    results
        .into_iter()
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Unwatched;

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..100).collect();
        let squares = run_each(&jobs, &Unwatched, u64::to_string, |job| job * job);
        let expected: Vec<u64> = jobs.iter().map(|job| job * job).collect();
        assert_eq!(squares, expected);
    }
}
