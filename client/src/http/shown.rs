//! The figures of budgets that callers may know. Knows nothing of header fields.

use std::time::Duration;

use super::reason::Reason;
use crate::{Peek, Quota};

/// What a policy is called that the coordinator states no name of.
const DEFAULT_NAME: &str = "default";

/// The figures of one budget, or of several that have the same public name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shown {
    /// The policy's public name.
    pub public_name: String,
    /// Its limit or capacity.
    pub limit: u64,
    /// What is left of it, by estimate.
    pub remaining: u64,
    /// The window, the period's length, or the time in which an empty bucket fills;
    /// none: time frees nothing.
    pub window: Option<Duration>,
    /// How long requests are refused; none: they are not, or time does not end it.
    pub reset: Option<Duration>,
}

/// One budget of a request.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Its place in the request's list.
    pub(super) index: usize,
    /// What the request wants of it.
    pub(super) units: u64,
    pub(super) shown: Shown,
    pub(super) refuses: bool,
}

impl Part {
    /// None of a budget without a limit, or in shadow mode: callers who keep to its figures
    /// would hold back although nothing is refused.
    pub(super) fn of(quota: &Quota, peek: Peek, index: usize, units: u64) -> Option<Self> {
        let limit = quota.limit.filter(|_| !quota.shadow)?;
        let name = Some(quota.public_name.as_str()).filter(|name| !name.is_empty());
        Some(Self {
            index,
            units,
            shown: Shown {
                public_name: name.unwrap_or(DEFAULT_NAME).to_owned(),
                limit,
                remaining: peek.remaining.min(limit),
                window: quota.window,
                reset: peek.retry_after,
            },
            refuses: false,
        })
    }

    /// Takes in that it refused the request, which knows better than the estimate.
    pub(super) fn refuses(&mut self, reason: Reason, promised: Option<Duration>) {
        self.refuses = true;
        if matches!(reason, Reason::QuotaExceeded | Reason::ReducedCapacity) {
            let less = self.units.saturating_sub(1);
            self.shown.remaining = self.shown.remaining.min(less);
            self.shown.reset = promised;
        }
    }
}

/// One for each public name, in the order of the request. Of several with one name the
/// one that refuses is shown, or else the one with the least left; and until all of them
/// let requests through.
pub(super) fn merged(parts: Vec<Part>) -> Vec<Shown> {
    let mut merged: Vec<Part> = Vec::new();
    for part in parts {
        let same = |other: &&mut Part| other.shown.public_name == part.shown.public_name;
        let Some(other) = merged.iter_mut().find(same) else {
            merged.push(part);
            continue;
        };
        let reset = part.shown.reset.max(other.shown.reset);
        let strictness = |part: &Part| (!part.refuses, part.shown.remaining, part.shown.limit);
        if strictness(&part) < strictness(other) {
            *other = part;
        }
        other.shown.reset = reset;
    }
    merged.into_iter().map(|part| part.shown).collect()
}
