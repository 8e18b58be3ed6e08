//! Why a caller is refused, in words that callers may know. The one place that maps
//! verdicts to statuses and problem types.

use std::time::Duration;

use http::StatusCode;

use crate::{Code, Verdict};

/// How soon it is worth trying again when an ask was on its way only.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// Why a request is refused, as far as its caller is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The quota is used up: 429, `quota-exceeded`.
    QuotaExceeded,
    /// The request costs more than its whole quota, and will never be served: 403,
    /// `quota-exceeded`, without `Retry-After`.
    TooExpensive,
    /// Nobody can be asked and the policy fails closed, or there is no room for another
    /// caller: 503, `temporary-reduced-capacity`.
    ReducedCapacity,
    /// No quota is assigned to this caller: 403.
    NoQuota,
    /// The request does not say who is calling: 403.
    NoIdentity,
    /// What should say who is calling can mean several things, or nothing: 400.
    BadIdentity,
    /// The gateway asks for something that cannot be: 500.
    Misconfigured,
}

impl Reason {
    /// None: the request may go ahead.
    pub(super) fn of(verdict: Verdict) -> Option<Self> {
        if verdict.is_allowed() {
            return None;
        }
        let Verdict::Denied { code, .. } = verdict else {
            return Some(Self::ReducedCapacity);
        };
        Some(match code {
            Code::CostAboveLimit => Self::TooExpensive,
            Code::NoBudget => Self::NoQuota,
            Code::TooManyAccounts
            | Code::TooManyKeys
            | Code::SessionEnded
            | Code::Misbehaved
            | Code::Closed
            | Code::Disconnected
            | Code::NoAnswer
            | Code::Empty => Self::ReducedCapacity,
            Code::BadKey | Code::WrongKind | Code::OtherClient => Self::Misconfigured,
            // Also a denial for a reason that is newer than this version.
            _ => Self::QuotaExceeded,
        })
    }

    /// When it is worth trying again.
    pub(super) fn retry_after(self, verdict: Verdict) -> Option<Duration> {
        match (self, verdict) {
            (Self::ReducedCapacity, Verdict::Empty) => Some(ASKED_FOR),
            (Self::QuotaExceeded | Self::ReducedCapacity, verdict) => verdict.retry_after(),
            _ => None,
        }
    }

    /// The status that it is answered with.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            Self::TooExpensive | Self::NoQuota | Self::NoIdentity => StatusCode::FORBIDDEN,
            Self::ReducedCapacity => StatusCode::SERVICE_UNAVAILABLE,
            Self::BadIdentity => StatusCode::BAD_REQUEST,
            Self::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The problem type, a URI.
    #[must_use]
    pub fn problem_type(self) -> &'static str {
        match self {
            Self::QuotaExceeded | Self::TooExpensive => {
                "https://iana.org/assignments/http-problem-types#quota-exceeded"
            }
            Self::ReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            // The status says it all.
            _ => "about:blank",
        }
    }

    /// The problem's title, for people.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "The quota is used up",
            Self::TooExpensive => "The request costs more than its quota ever allows",
            Self::ReducedCapacity => "The request cannot be served for the moment",
            // RFC 9457: of about:blank, the status in words.
            Self::NoQuota | Self::NoIdentity => "Forbidden",
            Self::BadIdentity => "Bad Request",
            Self::Misconfigured => "Internal Server Error",
        }
    }

    /// What there is to say about it in general.
    pub(super) fn detail(self) -> Option<&'static str> {
        match self {
            Self::NoQuota => Some("no quota is assigned to this caller"),
            Self::NoIdentity => Some("the request does not say who is calling"),
            Self::BadIdentity => Some("it is not clear who is calling"),
            _ => None,
        }
    }

    /// Whether a policy was violated, whose public name is stated.
    pub(super) fn is_violation(self) -> bool {
        matches!(self, Self::QuotaExceeded | Self::TooExpensive)
    }
}
