//! When the next period of each calendar is to begin. The only place between the
//! calendars that the ledger compares and the one that can be computed. Decides by what
//! a majority of the members' wall clocks agree on, and does not know how it was asked.

use std::collections::BTreeSet;

use leasehold_calendar::{Calendar as Computed, CalendarError};
use leasehold_ledger::{
    Ledger, Period,
    entry::Roll,
    policy::{Calendar, Policy},
};

/// How long is waited before a period that did not begin is tried again, and the
/// longest time for which nobody looks at the clocks.
const LOOK_EVERY_US: u64 = 1_000_000;
/// While no majority says what time it is.
const ASK_EVERY_US: u64 = 250_000;
/// The shortest time that a lease is said to be good for: when a period is overdue
/// because clocks disagree, what is left of it may still be spent.
const VALID_US_MIN: u64 = 1_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Calendars {
    used: Vec<(Calendar, Option<Period>)>,
    /// Cluster time of the next look at the clocks.
    look_us: u64,
    /// What a majority's clocks said when the present entry was made.
    wall_unix_us: Option<u64>,
    /// Calendars that were complained of.
    bad: BTreeSet<Calendar>,
}

impl Calendars {
    /// Takes note of what the ledger counts by, after an edit or when a period began.
    pub(super) fn refresh(&mut self, ledger: &Ledger) {
        self.used = ledger.calendars();
        self.look_us = 0;
    }

    /// When the clocks are to be looked at again; none: nothing counts by them.
    pub(super) fn next_look_us(&self) -> Option<u64> {
        (!self.used.is_empty()).then_some(self.look_us)
    }

    /// Whether an entry is to be made because a period begins.
    pub(super) fn is_due(&mut self, now_us: u64, wall_unix_us: Option<u64>) -> bool {
        if self.used.is_empty() || now_us < self.look_us {
            return false;
        }
        let Some(wall_unix_us) = wall_unix_us else {
            self.look_us = now_us.saturating_add(ASK_EVERY_US);
            return false;
        };
        let ends = self
            .used
            .iter()
            .filter(|(calendar, _)| !self.bad.contains(calendar));
        let until = ends.map(|(_, period)| remaining_us(period.as_ref(), wall_unix_us));
        match until.min() {
            Some(0) => true,
            Some(until_us) => {
                self.look_us = now_us.saturating_add(until_us.min(LOOK_EVERY_US));
                false
            }
            None => {
                self.look_us = now_us.saturating_add(LOOK_EVERY_US);
                false
            }
        }
    }

    /// The periods that begin with an entry in which `policies` are put in force.
    pub(super) fn due<'a>(
        &mut self,
        now_us: u64,
        wall_unix_us: Option<u64>,
        policies: impl Iterator<Item = &'a Policy>,
    ) -> Vec<Roll> {
        self.wall_unix_us = wall_unix_us;
        let Some(wall_unix_us) = wall_unix_us else {
            return Vec::new();
        };
        let known = |calendar: &Calendar| self.used.iter().any(|(used, _)| used == calendar);
        let mut calendars: Vec<(Calendar, Option<Period>)> = policies
            .filter_map(|policy| policy.kind.calendar())
            .filter(|calendar| !known(calendar))
            .map(|calendar| (calendar.clone(), None))
            .collect();
        if now_us >= self.look_us {
            self.look_us = now_us.saturating_add(LOOK_EVERY_US);
            calendars.extend(self.used.iter().cloned());
        }
        let mut rolls = Vec::new();
        for (calendar, period) in calendars {
            if remaining_us(period.as_ref(), wall_unix_us) > 0 || self.bad.contains(&calendar) {
                continue;
            }
            match roll(&calendar, period.as_ref(), wall_unix_us) {
                Ok(roll) => rolls.push(roll),
                Err(error) => {
                    tracing::error!(
                        code = error.code(),
                        %error,
                        time_zone = calendar.time_zone,
                        "a period cannot begin: its calendar cannot be computed here"
                    );
                    // It may be in the tables of the next leader. An instant out of range
                    // passes by itself.
                    if matches!(error, CalendarError::UnknownTimeZone { .. }) {
                        self.bad.insert(calendar);
                    }
                }
            }
        }
        rolls
    }

    /// For how long a lease of a policy is good by itself, in microseconds; 0: it has no
    /// limit of its own.
    pub(super) fn valid_us(&self, policy: Option<&Policy>) -> u64 {
        let (Some(calendar), Some(wall_unix_us)) = (
            policy.and_then(|policy| policy.kind.calendar()),
            self.wall_unix_us,
        ) else {
            return 0;
        };
        let used = self.used.iter().find(|(used, _)| used == calendar);
        match used {
            Some((_, Some(period))) => remaining_us(Some(period), wall_unix_us).max(VALID_US_MIN),
            _ => 0,
        }
    }
}

/// How long a period still has by the clocks; 0: it is over, or none has begun.
fn remaining_us(period: Option<&Period>, wall_unix_us: u64) -> u64 {
    let end = period.map_or(0, |period| u64::try_from(period.end_unix_us).unwrap_or(0));
    end.saturating_sub(wall_unix_us)
}

/// The calendar that can be computed which means the same.
pub(crate) fn computed(calendar: &Calendar) -> Result<Computed, CalendarError> {
    Computed::parse(calendar.unit.as_str(), &calendar.time_zone, calendar.anchor)?
        .beginning_in(calendar.anchor_month)
}

/// The bounds of the period that it is now. It begins where the one before ended at the
/// earliest, also if the zone's rules have changed since that was computed.
pub(crate) fn roll(
    calendar: &Calendar,
    before: Option<&Period>,
    wall_unix_us: u64,
) -> Result<Roll, CalendarError> {
    let computed = computed(calendar)?;
    let wall = i64::try_from(wall_unix_us).unwrap_or(i64::MAX);
    let bounds = computed.period_at(wall)?;
    let start_unix_us = before.map_or(bounds.start_unix_us, |before| {
        bounds.start_unix_us.max(before.end_unix_us)
    });
    Ok(Roll {
        calendar: calendar.clone(),
        start_unix_us,
        end_unix_us: bounds.end_unix_us,
        ends_in_us: u64::try_from(bounds.end_unix_us.saturating_sub(wall)).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_wrap, reason = "tests")]

    use leasehold_ledger::{
        entry::{Command, Entry},
        policy::{Kind, PeriodUnit},
    };

    use super::*;

    const DAY_US: u64 = 24 * 3_600_000_000;

    fn days() -> Calendar {
        Calendar {
            unit: PeriodUnit::Day,
            time_zone: "UTC".to_owned(),
            anchor: 0,
            anchor_month: 0,
        }
    }

    fn policy() -> Policy {
        Policy::new(Kind::Period {
            limit: 10,
            calendar: days(),
            carry_over: 0,
        })
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new();
        let entry = Entry {
            commands: vec![Command::PutPolicy {
                name: "daily".to_owned(),
                policy: policy(),
            }],
            ..Entry::default()
        };
        ledger.apply(1, &entry);
        ledger
    }

    fn calendars(ledger: &Ledger) -> Calendars {
        let mut calendars = Calendars::default();
        calendars.refresh(ledger);
        calendars
    }

    #[test]
    fn the_first_period_begins_with_the_policy_that_counts_by_it() {
        let mut calendars = Calendars::default();
        let rolls = calendars.due(5, Some(3 * DAY_US + 7), std::iter::once(&policy()));
        assert_eq!(rolls.len(), 1);
        assert_eq!(rolls[0].start_unix_us, 3 * DAY_US as i64);
        assert_eq!(rolls[0].ends_in_us, DAY_US - 7);
    }

    #[test]
    fn a_period_begins_when_the_one_before_is_over_and_not_before() {
        let mut ledger = ledger();
        let mut first = calendars(&ledger);
        assert!(first.is_due(1, Some(DAY_US)));
        let rolls = first.due(1, Some(DAY_US), std::iter::empty());
        let entry = Entry {
            now_us: 1,
            rolls,
            ..Entry::default()
        };
        assert!(ledger.apply(2, &entry).rolled);
        let mut next = calendars(&ledger);
        assert!(!next.is_due(2, Some(2 * DAY_US - 500_000)));
        assert_eq!(
            next.next_look_us(),
            Some(500_002),
            "at its end, not a second later"
        );
        assert!(next.is_due(500_002, Some(2 * DAY_US)));
        assert_eq!(
            next.due(500_002, Some(2 * DAY_US), std::iter::empty())
                .len(),
            1
        );
        assert!(
            next.due(500_003, Some(2 * DAY_US), std::iter::empty())
                .is_empty(),
            "tried once a second"
        );
    }

    #[test]
    fn nothing_begins_while_no_majority_says_what_time_it_is() {
        let mut calendars = calendars(&ledger());
        assert!(!calendars.is_due(1, None));
        assert!(calendars.due(1, None, std::iter::empty()).is_empty());
    }

    #[test]
    fn a_zone_that_is_not_known_here_is_left_to_others() {
        let calendar = Calendar {
            time_zone: "Mars/Olympus".to_owned(),
            ..days()
        };
        let unknown = Policy::new(Kind::Period {
            limit: 1,
            calendar,
            carry_over: 0,
        });
        let mut calendars = Calendars::default();
        assert!(
            calendars
                .due(1, Some(DAY_US), std::iter::once(&unknown))
                .is_empty()
        );
    }
}
