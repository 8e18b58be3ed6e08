//! What is said in the log once, however often it happens. Knows nothing of what it is.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::config::Unless;

/// As many are told apart; what comes after is not said. Nobody writes so many rules.
const SAID_MAX: usize = 1_000;
/// More of a text is not looked at.
const CHARACTERS_MAX: usize = 400;

/// What was said already.
#[derive(Debug, Default)]
pub(crate) struct Said(Mutex<HashSet<String>>);

impl Said {
    /// Says once what becomes of requests like this. `at` is the check or domain, and
    /// neither it nor `what` may hold what a client wrote, but for its length.
    pub(crate) fn once(&self, at: &str, what: &str, unless: Unless) {
        if !self.is_new(at, what, unless) {
            return;
        }
        match unless {
            Unless::Deny => tracing::warn!(at, what, "such requests are refused (said once)"),
            Unless::Allow => {
                tracing::warn!(at, what, "such requests are not charged for it (said once)");
            }
        }
    }

    fn is_new(&self, at: &str, what: &str, unless: Unless) -> bool {
        let text = format!("{unless:?} {at}: {what}");
        let text = text.chars().take(CHARACTERS_MAX).collect();
        let mut said = self.0.lock();
        said.len() < SAID_MAX && said.insert(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_and_not_without_end() {
        let said = Said::default();
        assert!(said.is_new("edge", "no rule", Unless::Deny));
        assert!(!said.is_new("edge", "no rule", Unless::Deny));
        assert!(said.is_new("edge", "no rule", Unless::Allow));
        assert!(said.is_new("other", "no rule", Unless::Deny));
        let new = (0..10_000).filter(|number| said.is_new("x", &number.to_string(), Unless::Deny));
        assert_eq!(new.count(), SAID_MAX - 3);
    }
}
