//! What a gateway does when it holds nothing and nobody can be asked. Knows no slot
//! and no connection.

/// What a policy says about requests that nobody can be asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureMode {
    /// Refuse them.
    #[default]
    Closed,
    /// Let them through, marked as degraded.
    Open,
    /// Let a few of them through, marked as degraded.
    Emergency {
        /// Units in a window; 0: the limit divided by the gateways last known.
        units: u64,
    },
}

/// So many spans of a window have a part of the allowance each.
const SPANS: u64 = 10;
/// Units are counted in tenths, so that a span's part of a few is not nothing.
const UNIT: i64 = 10;
/// The window of a policy that is not known.
const WINDOW_UNKNOWN_NS: u64 = 60_000_000_000;

/// The emergency allowance of one key, spread over the spans of its window. What a span
/// does not use lapses, but for a fraction of a unit; a request may take more than its
/// span's part, and the spans that follow make up for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Units in a window; 0: the limit divided by the gateways.
    stated: u64,
    limit: Option<u64>,
    window_ns: u64,
    /// Gateways that were last said to hold the key.
    holders: u64,
    /// Tenths of units that may be taken now.
    tenths: i64,
    /// The span that this is true of, counted from 1; 0: none was taken ever.
    span: u64,
}

impl Allowance {
    /// Takes in the policy.
    pub(crate) fn set_rule(&mut self, stated: u64, limit: u64, window_ns: u64) {
        (self.stated, self.limit) = (stated, Some(limit));
        self.window_ns = window_ns;
    }

    /// Takes in an allowance for a key of which no policy is known.
    pub(crate) fn set_before_contact(&mut self, stated: u64) {
        self.stated = stated;
    }

    /// Takes in how many gateways hold the key; 0: not said.
    pub(crate) fn set_holders(&mut self, holders: u64) {
        if holders > 0 {
            self.holders = holders;
        }
    }

    /// Units in a window, at least 1 of a limit that is not 0.
    fn units(&self) -> u64 {
        match (self.stated, self.limit) {
            (0, Some(limit)) => (limit / self.holders.max(1)).max(limit.min(1)),
            (0, None) => 1,
            (stated, _) => stated,
        }
    }

    /// Takes units, if so many are to be had now.
    pub(crate) fn take(&mut self, units: u64, now_ns: u64) -> bool {
        let all = self.units();
        let window_ns = match self.window_ns {
            0 => WINDOW_UNKNOWN_NS,
            window_ns => window_ns,
        };
        let span = now_ns / (window_ns / SPANS).max(1) + 1;
        let part = i64::try_from(all).unwrap_or(i64::MAX);
        let passed = i64::try_from(span.saturating_sub(self.span)).unwrap_or(i64::MAX);
        // A tenth of the units is as many tenths as there are units.
        let most = part.saturating_add(UNIT - 1).max(UNIT);
        if self.span == 0 {
            // The first is served at once, also of an allowance that is less than one
            // a span.
            self.tenths = part.max(UNIT.min(part.saturating_mul(UNIT)));
        } else if passed > 0 {
            let left = self.tenths.min(self.tenths.rem_euclid(UNIT));
            self.tenths = left.saturating_add(part.saturating_mul(passed)).min(most);
        }
        self.span = self.span.max(span);
        if self.tenths < UNIT || units > all {
            return false;
        }
        let taken = i64::try_from(units).unwrap_or(i64::MAX);
        self.tenths = self.tenths.saturating_sub(taken.saturating_mul(UNIT));
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: u64 = 10_000;

    fn allowance(stated: u64, limit: u64, holders: u64) -> Allowance {
        let mut allowance = Allowance::default();
        allowance.set_rule(stated, limit, WINDOW);
        allowance.set_holders(holders);
        allowance
    }

    /// Requests of one unit that are let through among those that come every so often.
    fn taken(allowance: &mut Allowance, from: u64, until: u64, every: usize) -> Vec<u64> {
        let moments = (from..until).step_by(every);
        moments.filter(|now| allowance.take(1, *now)).collect()
    }

    #[test]
    fn a_window_has_the_limit_divided_by_the_gateways() {
        let mut flooded = allowance(0, 100, 5);
        assert_eq!(taken(&mut flooded, 0, WINDOW, 1).len(), 20);
        assert_eq!(taken(&mut flooded, WINDOW, 2 * WINDOW, 1).len(), 20);
    }

    #[test]
    fn each_span_has_its_part_and_what_it_does_not_use_lapses() {
        let mut flooded = allowance(50, 1, 1);
        for span in 0..10 {
            let moments = taken(&mut flooded, span * 1_000, (span + 1) * 1_000, 1);
            assert_eq!(moments.len(), 5, "span {span}");
        }
        assert_eq!(
            taken(&mut flooded, 50_000, 51_000, 1).len(),
            5,
            "after a long silence"
        );
    }

    #[test]
    fn one_unit_in_a_window_is_one_unit_in_a_window() {
        let mut flooded = allowance(0, 3, 8);
        assert_eq!(
            taken(&mut flooded, 0, 4 * WINDOW, 1),
            [0, 10_000, 20_000, 30_000]
        );
        assert!(
            taken(&mut allowance(0, 0, 1), 0, WINDOW, 1).is_empty(),
            "a limit of 0"
        );
    }

    #[test]
    fn what_nobody_knows_the_policy_of_has_one_unit_unless_more_is_stated() {
        let mut unknown = Allowance::default();
        assert!(unknown.take(1, 5));
        assert!(!unknown.take(1, 6));
        unknown.set_before_contact(30);
        let minute = 60_000_000_000;
        assert_eq!(taken(&mut unknown, minute, 2 * minute, 1_000_000).len(), 30);
    }

    #[test]
    fn a_costly_request_takes_the_spans_that_follow() {
        let mut allowance = allowance(10, 1, 1);
        assert!(allowance.take(5, 0));
        assert_eq!(
            taken(&mut allowance, 0, WINDOW, 100),
            [5_000, 6_000, 7_000, 8_000, 9_000]
        );
        assert!(!allowance.take(11, WINDOW), "more than all of it");
    }

    proptest! {
        #[test]
        fn no_window_gets_more_than_its_allowance_and_one_span_more(
            stated in 1..200_u64,
            steps in prop::collection::vec((0..3_000_u64, 1..4_u64), 1..400),
        ) {
            let mut allowance = allowance(stated, 1, 1);
            let mut now = 0;
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            for (step, units) in steps {
                now += step;
                if allowance.take(units, now) {
                    admitted.push((now, units));
                }
            }
            for (from, _) in &admitted {
                let within = admitted.iter().filter(|(at, _)| at >= from && *at < from + WINDOW);
                let units: u64 = within.map(|(_, units)| units).sum();
                // Eleven spans meet a window, and the last request may cost several.
                prop_assert!(units <= stated + stated.div_ceil(10) + 1 + 3, "{units} of {stated}");
            }
        }
    }
}
