//! The present period of every calendar that a policy counts by. Does not know how
//! long a period is: the leader says when the next one begins.

use std::collections::BTreeMap;

use super::Period;
use crate::{digest, policy::Calendar, wire};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Periods {
    present: BTreeMap<Calendar, Period>,
}

impl Periods {
    pub(crate) fn get(&self, calendar: &Calendar) -> Option<&Period> {
        self.present.get(calendar)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Calendar, &Period)> {
        self.present.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// The calendars that have a present period.
    pub(crate) fn calendars(&self) -> impl Iterator<Item = &Calendar> {
        self.present.keys()
    }

    /// Sets a calendar's present period.
    pub(crate) fn put(&mut self, calendar: Calendar, period: Period) {
        self.present.insert(calendar, period);
    }

    /// The hash of all of them.
    pub(crate) fn hash(&self) -> u64 {
        let mut sum = digest::Sum::default();
        for (calendar, period) in &self.present {
            sum.add(digest::bytes(&wire::period_bytes(calendar, period)));
        }
        sum.value()
    }
}
