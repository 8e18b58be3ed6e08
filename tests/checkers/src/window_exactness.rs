//! A sliding window never admits more than its limit in any interval of its
//! length. Does not know the limit: it finds the interval that holds most.

use crate::{Admission, Worst};

/// The closed interval of length `window_us` with the most units whose whole
/// [call, return] lies inside.
///
/// Some best interval begins at a call (move its start to the first call that it
/// holds: nothing falls out), so only those are tried, from left to right: calls
/// before the start leave, returns up to the end enter.
pub(crate) fn worst(admissions: &[Admission], window_us: u64) -> Worst {
    let window_ns = window_us.saturating_mul(1_000);
    let mut by_call: Vec<usize> = (0..admissions.len()).collect();
    by_call.sort_unstable_by_key(|&i| admissions[i].call_ns);
    let mut by_return: Vec<usize> = (0..admissions.len()).collect();
    by_return.sort_unstable_by_key(|&i| admissions[i].return_ns);

    let mut inside = vec![false; admissions.len()];
    let mut units = 0_u64;
    let mut entering = by_return.iter().peekable();
    let mut leaving = by_call.iter().peekable();
    let mut worst = Worst::default();
    for &start in &by_call {
        let from_ns = admissions[start].call_ns;
        let to_ns = from_ns.saturating_add(window_ns);
        while let Some(&i) = leaving.next_if(|&&i| admissions[i].call_ns < from_ns) {
            if inside[i] {
                units -= admissions[i].units;
                inside[i] = false;
            }
        }
        while let Some(&i) = entering.next_if(|&&i| admissions[i].return_ns <= to_ns) {
            if admissions[i].call_ns >= from_ns {
                units += admissions[i].units;
                inside[i] = true;
            }
        }
        if units > worst.units {
            worst = Worst {
                from_ns,
                to_ns,
                units,
                charged: units,
            };
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Promise;

    fn at(call_ns: u64, return_ns: u64, units: u64) -> Admission {
        Admission {
            units,
            call_ns,
            return_ns,
        }
    }

    fn brute(admissions: &[Admission], window_ns: u64) -> u64 {
        // Every possible start, not only calls.
        (0..=400)
            .map(|from| {
                let inside = |a: &&Admission| a.call_ns >= from && a.return_ns <= from + window_ns;
                admissions.iter().filter(inside).map(|a| a.units).sum()
            })
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn an_empty_log_keeps_every_promise() {
        let judgement = Promise::Window {
            limit: 0,
            window_us: 1,
        }
        .judge(&[]);
        assert_eq!((judgement.over_admitted, judgement.worst_units), (0, 0));
    }

    #[test]
    fn anything_admitted_breaks_a_limit_of_zero() {
        let judgement = Promise::Window {
            limit: 0,
            window_us: 1,
        }
        .judge(&[at(5, 6, 1)]);
        assert_eq!(judgement.over_admitted, 1);
        assert!(judgement.worst_ratio > 0.0);
    }

    #[test]
    fn a_burst_across_an_aligned_boundary_is_found() {
        // 100 units at the end of one aligned window and 100 at the start of the
        // next: what a fixed-window counter lets through.
        let log = [at(990_000, 995_000, 100), at(1_000_500, 1_001_000, 100)];
        let judgement = Promise::Window {
            limit: 100,
            window_us: 1_000,
        }
        .judge(&log);
        assert_eq!(judgement.over_admitted, 100);
        assert!((judgement.worst_ratio - 2.0).abs() < 1e-9);
        assert_eq!(
            (judgement.worst_from_ns, judgement.worst_to_ns),
            (990_000, 1_990_000)
        );
    }

    #[test]
    fn a_call_that_outlasts_the_window_proves_nothing() {
        let log = [at(0, 2_000_000, 1), at(10, 20, 1)];
        let judgement = Promise::Window {
            limit: 1,
            window_us: 1_000,
        }
        .judge(&log);
        assert_eq!((judgement.over_admitted, judgement.worst_units), (0, 1));
    }

    #[test]
    fn both_ends_of_the_interval_belong_to_it() {
        let promise = Promise::Window {
            limit: 1,
            window_us: 1_000,
        };
        assert_eq!(
            promise
                .judge(&[at(0, 0, 1), at(1_000_000, 1_000_000, 1)])
                .over_admitted,
            1
        );
        assert_eq!(
            promise
                .judge(&[at(0, 0, 1), at(1_000_001, 1_000_001, 1)])
                .over_admitted,
            0
        );
    }

    proptest! {
        #[test]
        fn it_finds_what_trying_every_interval_finds(
            raw in proptest::collection::vec((0_u64..300, 0_u64..60, 0_u64..5), 0..40),
            window in 0_u64..4,
        ) {
            // The window is in microseconds: shrink the scale so that starts can
            // be tried one by one.
            let scale = 20;
            let log: Vec<_> = raw.iter().map(|&(c, d, u)| at(c, c + d, u)).collect();
            let scaled: Vec<_> = log
                .iter()
                .map(|a| at(a.call_ns * 1_000 / scale, a.return_ns * 1_000 / scale, a.units))
                .collect();
            prop_assert_eq!(worst(&scaled, window).units, brute(&log, window * scale));
        }
    }
}
