//! What the node's errors and the ledger's refusals are called here, and what they say
//! to people. Knows nothing of resources or routes.

use leasehold_ledger::outcome::CommandRefusal;

use super::{Kind, Problem};
use crate::{node::SubmitError, raft::ChangeError};

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::NotLeader { leader } => Self::not_leader(leader),
            SubmitError::OutcomeUnknown => Self::new(
                Kind::OutcomeUnknown,
                "leadership was lost while the request was being decided: it may or may not have taken effect",
            ),
            SubmitError::Overloaded => Self::new(
                Kind::Overloaded,
                "too many requests are waiting to be decided; nothing was changed",
            ),
            SubmitError::MemberTooOld { needed, allowed } => Self::new(
                Kind::MemberTooOld,
                format!(
                    "this needs version {needed} of the stored formats, and every member is known to read only {allowed}: upgrade them all, and see that all of them run; nothing was changed"
                ),
            ),
            SubmitError::ShuttingDown => Self::new(
                Kind::ShuttingDown,
                "the node is stopping; ask another node; nothing was changed",
            ),
            SubmitError::Stopped => Self::new(
                Kind::Stopped,
                "the node's replica has stopped; its log says why; nothing was changed",
            ),
        }
    }
}

impl From<ChangeError> for Problem {
    fn from(error: ChangeError) -> Self {
        let kind = match error {
            ChangeError::NotLeader { leader } => return Self::not_leader(leader),
            ChangeError::NoSuchMember(_) => Kind::NoSuchMember,
            ChangeError::NodeIdInUse(_) => Kind::NodeIdInUse,
            ChangeError::Unreachable { .. } => Kind::NodeUnreachable,
            ChangeError::Lagging { .. } => Kind::NodeLagging,
            ChangeError::LastVoter(_) => Kind::LastVoter,
            ChangeError::QuorumAtRisk { .. } => Kind::QuorumAtRisk,
            ChangeError::InProgress => Kind::ChangeInProgress,
            ChangeError::Unknown => Kind::OutcomeUnknown,
            ChangeError::TimedOut(_) => Kind::TimedOut,
            ChangeError::Stopped => Kind::Stopped,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<CommandRefusal> for Problem {
    fn from(refusal: CommandRefusal) -> Self {
        match refusal {
            CommandRefusal::NoSuchPolicy { name } => {
                Self::new(Kind::NoSuchPolicy, format!("no policy is called {name}"))
            }
            CommandRefusal::NoSuchBudget => {
                Self::new(Kind::NoSuchBudget, "no budget has this pattern")
            }
            CommandRefusal::NoSuchSession => Self::new(
                Kind::NoSuchSession,
                "no live session has this id; it may have expired",
            ),
            CommandRefusal::PolicyInUse { by, more } => {
                let first = if by.len() > 1 || more > 0 {
                    "those"
                } else {
                    "that"
                };
                let rest = match more {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                Self::new(
                    Kind::PolicyInUse,
                    format!(
                        "used by {}{rest}: change or delete {first} first",
                        by.join(", ")
                    ),
                )
            }
            CommandRefusal::TooManySessions { limit } => Self::new(
                Kind::TooManySessions,
                format!("sessions_per_identity_max ({limit}) is reached"),
            ),
            CommandRefusal::IdempotencyKeyReused => Self::new(
                Kind::IdempotencyKeyReused,
                "a spend of another key or of other units was admitted under this Idempotency-Key a short while ago, \
                 somewhere in the cluster; nothing was charged now: choose a new one for each request",
            ),
            CommandRefusal::CorrectionExists => Self::new(
                Kind::CorrectionExists,
                "the account has another correction under this id; nothing was changed: look at its corrections, and \
                 choose a new id for a new one",
            )
            .at("id"),
            CommandRefusal::TooManyCorrections { limit } => Self::new(
                Kind::TooManyCorrections,
                format!("the account has {limit} corrections, the most that one can have; nothing was changed"),
            ),
            CommandRefusal::TooManyAccounts => Self::new(
                Kind::TooManyAccounts,
                "the key has no account, and its budget has as many as accounts_max or accounts_per_pattern_max allows; nothing was \
                 changed",
            ),
            CommandRefusal::NoBudget => Self::new(
                Kind::NoBudget,
                "the key has no account, and no budget matches it; nothing was changed",
            ),
            CommandRefusal::WrongKind { why } => {
                Self::new(Kind::Unsuitable, format!("{why}; nothing was changed"))
            }
            CommandRefusal::NodeIdInUse => Self::new(
                Kind::NodeIdInUse,
                "another disk used this node id; ids are never reused: choose a new one",
            ),
            CommandRefusal::PreconditionFailed { present: Some(tag) } => Self::new(
                Kind::PreconditionFailed,
                format!(
                    "somebody has changed it: its ETag is \"{tag:016x}\" now; nothing was changed. Look at it, then repeat"
                ),
            ),
            CommandRefusal::PreconditionFailed { present: None } => Self::new(
                Kind::PreconditionFailed,
                "there is none, or none any more; nothing was changed",
            ),
            CommandRefusal::Invalid(text) => Self::from_validation(text),
            other => Self::new(Kind::Internal, format!("unexpected refusal: {other:?}")),
        }
    }
}
