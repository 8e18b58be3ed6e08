//! Corrections by their ids: one that was asked for again, after an answer that never
//! came, was made once. Knows no kind of budget.

use std::collections::BTreeMap;

use crate::{Change, Correction};

/// One correction, however often it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    /// It was not made before.
    pub(crate) from_ns: u64,
    /// It was made by then; none: perhaps it never was.
    pub(crate) by_ns: Option<u64>,
    pub(crate) change: Change,
}

impl Made {
    /// Units that it can have given by a moment.
    pub(crate) fn given_at_most(&self, at_ns: u64) -> u64 {
        match self.change {
            Change::Adjust(units) if self.from_ns <= at_ns => u64::try_from(units).unwrap_or(0),
            Change::Adjust(_) | Change::Reset => 0,
        }
    }

    /// Units that it has surely given before a moment.
    pub(crate) fn given_at_least(&self, at_ns: u64) -> u64 {
        match (self.change, self.by_ns) {
            (Change::Adjust(units), Some(by_ns)) if by_ns < at_ns => {
                u64::try_from(units).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Units that it can have taken by a moment.
    pub(crate) fn taken_at_most(&self, at_ns: u64) -> u64 {
        match self.change {
            Change::Adjust(units) if units < 0 && self.from_ns <= at_ns => units.unsigned_abs(),
            Change::Adjust(_) | Change::Reset => 0,
        }
    }

    /// Units that it has surely taken before a moment.
    pub(crate) fn taken_at_least(&self, at_ns: u64) -> u64 {
        match (self.change, self.by_ns) {
            (Change::Adjust(units), Some(by_ns)) if units < 0 && by_ns < at_ns => {
                units.unsigned_abs()
            }
            _ => 0,
        }
    }
}

/// The corrections of one key, each once.
pub(crate) fn made(corrections: &[Correction]) -> Vec<Made> {
    let mut by_id: BTreeMap<&str, Made> = BTreeMap::new();
    for correction in corrections {
        let by_ns = correction.acknowledged.then_some(correction.return_ns);
        by_id
            .entry(&correction.id)
            .and_modify(|made| {
                made.from_ns = made.from_ns.min(correction.call_ns);
                made.by_ns = match (made.by_ns, by_ns) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
            })
            .or_insert(Made {
                from_ns: correction.call_ns,
                by_ns,
                change: correction.change,
            });
    }
    by_id.into_values().collect()
}
