//! When units were spent, as far as sampling tells. Knows only counts and
//! readings: an age is a lower bound, so every rounding is towards later.

use std::collections::VecDeque;

use crate::{clock::MILLISECOND, message::SpentAge};

/// Spends seen within this much of each other share a bucket.
const BUCKET_NS: u64 = 50 * MILLISECOND;
/// The most buckets; beyond it the two oldest are merged.
const BUCKETS_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    first_ns: u64,
    /// The sample after which all of the bucket's units were spent for sure.
    last_ns: u64,
    units: u64,
}

/// Spends of one lease that no acknowledged report covers, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    buckets: VecDeque<Bucket>,
    units: u64,
}

impl Ages {
    /// `units` more were seen spent in a sample; the clock was read after it.
    pub(crate) fn seen(&mut self, after_sample_ns: u64, units: u64) {
        if units == 0 {
            return;
        }
        self.units += units;
        match self.buckets.back_mut() {
            Some(last) if after_sample_ns.saturating_sub(last.first_ns) < BUCKET_NS => {
                last.last_ns = after_sample_ns;
                last.units += units;
            }
            _ => {
                let (first_ns, last_ns) = (after_sample_ns, after_sample_ns);
                self.buckets.push_back(Bucket {
                    first_ns,
                    last_ns,
                    units,
                });
            }
        }
        if self.buckets.len() > BUCKETS_MAX
            && let Some(oldest) = self.buckets.pop_front()
            && let Some(next) = self.buckets.front_mut()
        {
            next.units += oldest.units;
        }
    }

    /// A report was acknowledged; only the youngest `units` are still open.
    pub(crate) fn keep_youngest(&mut self, units: u64) {
        while self.units > units {
            let Some(oldest) = self.buckets.front_mut() else {
                break;
            };
            let gone = oldest.units.min(self.units - units);
            oldest.units -= gone;
            self.units -= gone;
            if oldest.units == 0 {
                self.buckets.pop_front();
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.buckets.clear();
        self.units = 0;
    }

    /// The ages as of a reading that was made before the report leaves.
    pub(crate) fn report(&self, now_ns: u64) -> Vec<SpentAge> {
        let aged = |bucket: &Bucket| SpentAge {
            units: bucket.units,
            age_us: now_ns.saturating_sub(bucket.last_ns) / 1000,
        };
        self.buckets.iter().map(aged).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = MILLISECOND;

    #[test]
    fn units_seen_together_have_the_age_of_the_last_sample() {
        let mut ages = Ages::default();
        ages.seen(100 * MS, 2);
        ages.seen(140 * MS, 1);
        ages.seen(160 * MS, 4);
        let report = ages.report(200 * MS);
        assert_eq!(
            report,
            [
                SpentAge {
                    units: 3,
                    age_us: 60_000
                },
                SpentAge {
                    units: 4,
                    age_us: 40_000
                }
            ]
        );
    }

    #[test]
    fn an_acknowledged_report_covers_the_oldest_units() {
        let mut ages = Ages::default();
        ages.seen(100 * MS, 2);
        ages.seen(200 * MS, 3);
        ages.keep_youngest(4);
        assert_eq!(
            ages.report(200 * MS)[0],
            SpentAge {
                units: 1,
                age_us: 100_000
            }
        );
        ages.keep_youngest(0);
        assert_eq!(ages.report(200 * MS), []);
    }

    #[test]
    fn too_many_buckets_merge_towards_later() {
        let mut ages = Ages::default();
        for step in 0..=BUCKETS_MAX as u64 {
            ages.seen((step + 1) * 100 * MS, 1);
        }
        let report = ages.report(200 * MS);
        assert_eq!(report.len(), BUCKETS_MAX);
        assert_eq!(
            report[0],
            SpentAge {
                units: 2,
                age_us: 0
            }
        );
    }
}
