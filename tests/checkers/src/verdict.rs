//! What a checker answers. Knows no invariant.

use serde::Serialize;

/// What a checker found in a history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How many facts were held against the invariant. A run in which this is 0
    /// has shown nothing.
    pub checked: u64,
    /// Where the invariant was broken.
    pub violations: Vec<Violation>,
    /// What could not be judged, and why: never to be taken for fine.
    pub undecided: Vec<String>,
}

/// One break of an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The key, the object, the gateway or the log index that it concerns.
    pub subject: String,
    /// When, as far as that is known.
    pub at_ns: u64,
    /// What was seen, and what would have been right.
    pub detail: String,
}

impl Verdict {
    /// Whether the invariant held wherever it was judged, and all was judged.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.violations.is_empty() && self.undecided.is_empty()
    }

    /// Adds another's findings.
    pub fn merge(&mut self, other: Self) {
        self.checked = self.checked.saturating_add(other.checked);
        self.violations.extend(other.violations);
        self.undecided.extend(other.undecided);
    }

    pub(crate) fn violated(&mut self, subject: &str, at_ns: u64, detail: String) {
        self.violations.push(Violation {
            subject: subject.to_owned(),
            at_ns,
            detail,
        });
    }
}
