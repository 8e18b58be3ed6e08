//! What a request is told. Knows nothing of how it was decided.

use std::{fmt, time::Duration};

/// The answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a verdict that nobody reads lets every request through"]
pub enum Verdict {
    /// Allowed, and within the promise: the units were taken from a valid lease.
    Admitted,
    /// Allowed, as far as this gateway can tell: the budget is counted by each gateway
    /// for itself, and all together may let more through than the limit.
    Estimated,
    /// Allowed by the policy's failure mode, outside the promise.
    Degraded,
    /// Only from `try_spend`: nothing is held here yet; an ask is on its way.
    Empty,
    /// The coordinator's no.
    Denied {
        /// Why.
        code: Code,
        /// When it is worth trying again; none: time alone does not help. That is a total
        /// that only an operator adds to, or a request that can never be admitted.
        retry_after: Option<Duration>,
    },
    /// Nobody to ask, and the policy fails closed, or its emergency allowance is used
    /// up for now.
    Unavailable {
        /// Why.
        code: Code,
    },
    /// Allowed, because the policy is in shadow mode, and outside the promise: it would
    /// have been refused, and is not charged.
    Shadowed {
        /// Why it would have been refused; [`Code::Empty`]: nobody said no, but nothing
        /// was held here.
        code: Code,
    },
}

impl Verdict {
    /// Whether the request may go ahead.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(
            self,
            Self::Admitted | Self::Estimated | Self::Degraded | Self::Shadowed { .. }
        )
    }

    /// Why the request may not go ahead.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Denied { code, .. } | Self::Unavailable { code } => Some(*code),
            _ => None,
        }
    }

    /// Whether a request that is prepared to wait may yet be admitted: time frees units,
    /// or an operator adds some.
    pub(crate) fn may_end(&self) -> bool {
        self.retry_after().is_some() || self.code() == Some(Code::Limit)
    }

    /// When it is worth trying again: as the coordinator said, or soon when nobody
    /// could be asked.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied { retry_after, .. } => *retry_after,
            Self::Unavailable { code } if *code != Code::Closed => Some(UNAVAILABLE_FOR),
            _ => None,
        }
    }
}

/// How soon it is worth trying again when nobody could be asked: a client looks for
/// another coordinator at once, and for as long as an election takes it pauses for no
/// longer than half of this between two attempts.
const UNAVAILABLE_FOR: Duration = Duration::from_secs(1);

/// Why a request was not admitted. The text of `as_str` is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Code {
    /// Nothing is free now.
    Limit = 1,
    /// No budget matches the key.
    NoBudget,
    /// The cost exceeds the limit and can never be admitted.
    CostAboveLimit,
    /// The coordinator keeps as many accounts for the pattern as it may.
    TooManyAccounts,
    /// This client, or its session, has as many keys as it may.
    TooManyKeys,
    /// An operator ended the session.
    SessionEnded,
    /// The session reported more than it was granted.
    Misbehaved,
    /// As many requests wait for this key as may.
    TooManyWaiters,
    /// The text is not a key.
    BadKey,
    /// The client was closed.
    Closed,
    /// There is no connection to a coordinator.
    Disconnected,
    /// The coordinator did not answer in time.
    NoAnswer,
    /// The key is refused for a while because it was refused before.
    Cooldown,
    /// Permits are acquired, and all other units are spent: the budget is of the
    /// other kind.
    WrongKind,
    /// The budget belongs to another client.
    OtherClient,
    /// Nothing was held here at that moment. Nobody said no.
    Empty,
    /// A code that this version does not know.
    Other,
}

impl Code {
    const ALL: [Self; 17] = [
        Self::Limit,
        Self::NoBudget,
        Self::CostAboveLimit,
        Self::TooManyAccounts,
        Self::TooManyKeys,
        Self::SessionEnded,
        Self::Misbehaved,
        Self::TooManyWaiters,
        Self::BadKey,
        Self::Closed,
        Self::Disconnected,
        Self::NoAnswer,
        Self::Cooldown,
        Self::WrongKind,
        Self::OtherClient,
        Self::Empty,
        Self::Other,
    ];

    /// The stable text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::NoBudget => "no_budget",
            Self::CostAboveLimit => "cost_above_limit",
            Self::TooManyAccounts => "too_many_accounts",
            Self::TooManyKeys => "too_many_keys",
            Self::SessionEnded => "session_ended",
            Self::Misbehaved => "misbehaved",
            Self::TooManyWaiters => "too_many_waiters",
            Self::BadKey => "bad_key",
            Self::Closed => "closed",
            Self::Disconnected => "disconnected",
            Self::NoAnswer => "no_answer",
            Self::Cooldown => "cooldown",
            Self::WrongKind => "wrong_kind",
            Self::Empty => "empty",
            Self::OtherClient => "other_client",
            Self::Other => "other",
        }
    }

    /// The code with this text, or `Other`.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let known = Self::ALL.into_iter().find(|code| code.as_str() == text);
        known.unwrap_or(Self::Other)
    }

    pub(crate) fn from_number(number: u64) -> Self {
        let known = Self::ALL.into_iter().find(|code| *code as u64 == number);
        known.unwrap_or(Self::Other)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_again_by_its_text_and_its_number() {
        for code in Code::ALL {
            assert_eq!(Code::from_text(code.as_str()), code);
            assert_eq!(Code::from_number(code as u64), code);
        }
        assert_eq!(Code::from_text("from_the_future"), Code::Other);
    }
}
