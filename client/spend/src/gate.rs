//! When units that are there may go out: not while the key cools down, and of a paced
//! budget one after another. Plain data behind the slot's lock: knows neither units nor
//! leases nor who waits.

/// A release may be late by so much without the rate suffering: what was missed goes
/// out with it. Timers of a runtime are a millisecond or two late, so that without it a
/// thousand releases a second would be the most. It is also the longest burst.
const LATENESS_NS: u64 = 5_000_000;

/// What stands between units and requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gate {
    /// Nothing goes out before this; 0: it is not cooling down.
    cooling_until_ns: u64,
    pace: Option<Pace>,
}

/// One unit after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    every_ns: u64,
    /// When the next unit's turn is.
    next_ns: u64,
}

impl Gate {
    /// The key cools down until then, or later if it does already.
    pub(crate) fn cool(&mut self, until_ns: u64) {
        self.cooling_until_ns = self.cooling_until_ns.max(until_ns);
    }

    /// Until when it cools down, if it does.
    pub(crate) fn cooling_until(&self) -> Option<u64> {
        (self.cooling_until_ns != 0).then_some(self.cooling_until_ns)
    }

    /// Ends the cool-down, whatever its time.
    pub(crate) fn end_cool_down(&mut self) {
        self.cooling_until_ns = 0;
    }

    /// Ends the cool-down if its time is up. Says whether it is over.
    pub(crate) fn thaw(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.cooling_until_ns {
            self.cooling_until_ns = 0;
        }
        self.cooling_until_ns == 0
    }

    /// Units go out no faster than one in this time; 0: as they come.
    pub(crate) fn set_pace(&mut self, every_ns: u64) {
        let next_ns = self.pace.map_or(0, |pace| pace.next_ns);
        self.pace = (every_ns > 0).then_some(Pace { every_ns, next_ns });
    }

    pub(crate) fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// Whether units go out under the lock only, by somebody who knows the time.
    pub(crate) fn is_shut(&self) -> bool {
        self.cooling_until_ns != 0 || self.pace.is_some()
    }

    /// When the next unit's turn is, if that is later.
    pub(crate) fn turn_after(&self, now_ns: u64) -> Option<u64> {
        let next_ns = self.pace?.next_ns;
        (next_ns > now_ns).then_some(next_ns)
    }

    /// Units went out, in their turn.
    pub(crate) fn passed(&mut self, units: u64, now_ns: u64) {
        if let Some(pace) = &mut self.pace {
            let turn_ns = pace.next_ns.max(now_ns.saturating_sub(LATENESS_NS));
            pace.next_ns = turn_ns.saturating_add(pace.every_ns.saturating_mul(units));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn paced(every_ns: u64) -> Gate {
        let mut gate = Gate::default();
        gate.set_pace(every_ns);
        gate
    }

    /// Units that go out when it is looked at every so often.
    fn released(gate: &mut Gate, from: u64, until: u64, every: u64) -> Vec<u64> {
        let mut moments = Vec::new();
        let mut now = from;
        while now < until {
            while gate.turn_after(now).is_none() {
                gate.passed(1, now);
                moments.push(now);
            }
            now += every;
        }
        moments
    }

    #[test]
    fn ten_thousand_a_second_go_out_though_the_timer_is_two_milliseconds_late() {
        let mut gate = paced(100_000);
        gate.passed(1, 1_000 * MS);
        let moments = released(&mut gate, 1_000 * MS, 2_000 * MS, 2 * MS);
        assert!(
            (9_950..=10_050).contains(&moments.len()),
            "{}",
            moments.len()
        );
    }

    #[test]
    fn a_slow_pace_lets_one_out_and_never_early() {
        let mut gate = paced(100 * MS);
        let moments = released(&mut gate, 1_000 * MS, 2_000 * MS, MS);
        assert_eq!(moments.len(), 11);
        assert!(moments.is_sorted_by(|one, next| next - one >= 95 * MS));
    }

    #[test]
    fn a_cool_down_only_gets_longer_and_ends() {
        let mut gate = Gate::default();
        gate.cool(10);
        gate.cool(5);
        assert!(gate.is_shut());
        assert!(!gate.thaw(9));
        assert!(gate.thaw(10));
        assert_eq!((gate.is_shut(), gate.cooling_until()), (false, None));
    }

    proptest! {
        #[test]
        fn no_interval_gets_more_than_its_share_and_a_lateness_worth(
            every_ns in 50_000..20 * MS,
            steps in prop::collection::vec((0..8 * MS, 1..4_u64), 1..300),
        ) {
            let mut gate = paced(every_ns);
            let mut now = 1_000 * MS;
            let mut out: Vec<(u64, u64)> = Vec::new();
            for (step, units) in steps {
                now += step;
                while gate.turn_after(now).is_none() {
                    gate.passed(units, now);
                    out.push((now, units));
                }
            }
            for (place, (from, _)) in out.iter().enumerate() {
                let mut units = 0;
                for (at, cost) in &out[place..] {
                    // A costly request goes out when its first unit's turn has come.
                    let most = (at - from + LATENESS_NS) / every_ns + 1;
                    prop_assert!(units <= most, "{units} of {most}");
                    units += cost;
                }
            }
        }
    }
}
