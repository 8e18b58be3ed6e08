//! The one place that maps errors and refusals to HTTP statuses, stable codes
//! and problem+json bodies (RFC 9457). Knows nothing of resources or routes.

use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use leasehold_key::KeyError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::raft::Member;

mod errors;

/// Everything that can go wrong here, by its stable code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    InvalidJson,
    InvalidField,
    InvalidKey,
    InvalidPattern,
    InvalidName,
    InvalidId,
    InvalidQuery,
    InvalidHeader,
    BodyTooLarge,
    BodyTooSlow,
    UrlTooLong,
    CrossOrigin,
    Unauthenticated,
    Forbidden,
    TooManyRequests,
    NotFound,
    MethodNotAllowed,
    NoSuchPolicy,
    NoSuchBudget,
    NoSuchAccount,
    NoSuchSession,
    NoSuchMember,
    PolicyInUse,
    PreconditionFailed,
    NodeIdInUse,
    LastVoter,
    QuorumAtRisk,
    ChangeInProgress,
    NodeUnreachable,
    NodeLagging,
    NotCaughtUp,
    TimedOut,
    TooManySessions,
    CorrectionExists,
    TooManyCorrections,
    TooManyAccounts,
    NoBudget,
    Unsuitable,
    IdempotencyKeyReused,
    NoLeader,
    LeaderUnreachable,
    OutcomeUnknown,
    Overloaded,
    MemberTooOld,
    Starting,
    ShuttingDown,
    Stopped,
    Internal,
}

impl Kind {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 48] = [
        Self::InvalidJson,
        Self::InvalidField,
        Self::InvalidKey,
        Self::InvalidPattern,
        Self::InvalidName,
        Self::InvalidId,
        Self::InvalidQuery,
        Self::InvalidHeader,
        Self::BodyTooLarge,
        Self::BodyTooSlow,
        Self::UrlTooLong,
        Self::CrossOrigin,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::TooManyRequests,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::NoSuchPolicy,
        Self::NoSuchBudget,
        Self::NoSuchAccount,
        Self::NoSuchSession,
        Self::NoSuchMember,
        Self::PolicyInUse,
        Self::PreconditionFailed,
        Self::NodeIdInUse,
        Self::LastVoter,
        Self::QuorumAtRisk,
        Self::ChangeInProgress,
        Self::NodeUnreachable,
        Self::NodeLagging,
        Self::NotCaughtUp,
        Self::TimedOut,
        Self::TooManySessions,
        Self::CorrectionExists,
        Self::TooManyCorrections,
        Self::TooManyAccounts,
        Self::NoBudget,
        Self::Unsuitable,
        Self::IdempotencyKeyReused,
        Self::NoLeader,
        Self::LeaderUnreachable,
        Self::OutcomeUnknown,
        Self::Overloaded,
        Self::MemberTooOld,
        Self::Starting,
        Self::ShuttingDown,
        Self::Stopped,
        Self::Internal,
    ];

    /// Status, code and title.
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::InvalidJson => (
                StatusCode::BAD_REQUEST,
                "invalid_json",
                "The body is not valid JSON",
            ),
            Self::InvalidField => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid_field",
                "A field of the body is not acceptable",
            ),
            Self::InvalidKey => (
                StatusCode::BAD_REQUEST,
                "invalid_key",
                "The key is malformed",
            ),
            Self::InvalidPattern => (
                StatusCode::BAD_REQUEST,
                "invalid_pattern",
                "The pattern is malformed",
            ),
            Self::InvalidName => (
                StatusCode::BAD_REQUEST,
                "invalid_name",
                "The policy name is malformed",
            ),
            Self::InvalidId => (StatusCode::BAD_REQUEST, "invalid_id", "The id is malformed"),
            Self::InvalidQuery => (
                StatusCode::BAD_REQUEST,
                "invalid_query",
                "A query parameter is not acceptable",
            ),
            Self::InvalidHeader => (
                StatusCode::BAD_REQUEST,
                "invalid_header",
                "A header of the request is not acceptable",
            ),
            Self::BodyTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "body_too_large",
                "The body is too large",
            ),
            Self::BodyTooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "body_too_slow",
                "The body took too long to come",
            ),
            Self::UrlTooLong => (
                StatusCode::URI_TOO_LONG,
                "url_too_long",
                "The path with its query is too long",
            ),
            Self::CrossOrigin => (
                StatusCode::FORBIDDEN,
                "cross_origin",
                "Requests from other web sites are refused",
            ),
            Self::Unauthenticated => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "Nobody knows who asks",
            ),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "forbidden",
                "Whoever asks may not do this",
            ),
            Self::TooManyRequests => (
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_requests",
                "There are too many requests of this kind",
            ),
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "not_found",
                "There is nothing at this path",
            ),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "The method is not allowed here",
            ),
            Self::NoSuchPolicy => (
                StatusCode::NOT_FOUND,
                "no_such_policy",
                "There is no such policy",
            ),
            Self::NoSuchBudget => (
                StatusCode::NOT_FOUND,
                "no_such_budget",
                "There is no such budget",
            ),
            Self::NoSuchAccount => (
                StatusCode::NOT_FOUND,
                "no_such_account",
                "There is no such account",
            ),
            Self::NoSuchSession => (
                StatusCode::NOT_FOUND,
                "no_such_session",
                "There is no such session",
            ),
            Self::NoSuchMember => (
                StatusCode::NOT_FOUND,
                "no_such_member",
                "There is no such member",
            ),
            Self::PolicyInUse => (
                StatusCode::CONFLICT,
                "policy_in_use",
                "The policy is in use",
            ),
            Self::PreconditionFailed => (
                StatusCode::PRECONDITION_FAILED,
                "precondition_failed",
                "It is not as you saw it",
            ),
            Self::NodeIdInUse => (
                StatusCode::CONFLICT,
                "node_id_in_use",
                "The node id was used before",
            ),
            Self::LastVoter => (
                StatusCode::CONFLICT,
                "last_voter",
                "The last voter cannot be removed",
            ),
            Self::QuorumAtRisk => (
                StatusCode::CONFLICT,
                "quorum_at_risk",
                "The cluster would lose its majority",
            ),
            Self::ChangeInProgress => (
                StatusCode::CONFLICT,
                "change_in_progress",
                "Another change of the membership is under way",
            ),
            Self::NodeUnreachable => (
                StatusCode::CONFLICT,
                "node_unreachable",
                "The node does not answer",
            ),
            Self::NodeLagging => (
                StatusCode::CONFLICT,
                "node_lagging",
                "The node is too far behind",
            ),
            Self::NotCaughtUp => (
                StatusCode::SERVICE_UNAVAILABLE,
                "not_caught_up",
                "The node has not caught up yet",
            ),
            Self::TimedOut => (
                StatusCode::GATEWAY_TIMEOUT,
                "timed_out",
                "It did not happen in time",
            ),
            Self::TooManySessions => (
                StatusCode::CONFLICT,
                "too_many_sessions",
                "There are too many sessions",
            ),
            Self::CorrectionExists => (
                StatusCode::CONFLICT,
                "correction_exists",
                "Another correction has this id",
            ),
            Self::TooManyCorrections => (
                StatusCode::CONFLICT,
                "too_many_corrections",
                "The account has too many corrections",
            ),
            Self::TooManyAccounts => (
                StatusCode::CONFLICT,
                "too_many_accounts",
                "The budget has too many accounts",
            ),
            Self::NoBudget => (
                StatusCode::NOT_FOUND,
                "no_budget",
                "No budget matches the key",
            ),
            Self::Unsuitable => (
                StatusCode::CONFLICT,
                "wrong_kind",
                "That cannot be done with a budget of this kind",
            ),
            Self::IdempotencyKeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_key_reused",
                "The idempotency key belongs to another request",
            ),
            Self::NoLeader => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no_leader",
                "No leader is known at the moment",
            ),
            Self::LeaderUnreachable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "leader_unreachable",
                "The leader does not answer",
            ),
            Self::OutcomeUnknown => (
                StatusCode::SERVICE_UNAVAILABLE,
                "outcome_unknown",
                "Whether the request took effect is unknown",
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "The coordinator is overloaded",
            ),
            Self::MemberTooOld => (
                StatusCode::SERVICE_UNAVAILABLE,
                "member_too_old",
                "Not every member is known to read what would have to be written",
            ),
            Self::Starting => (
                StatusCode::SERVICE_UNAVAILABLE,
                "starting",
                "The node has not started yet",
            ),
            Self::ShuttingDown => (
                StatusCode::SERVICE_UNAVAILABLE,
                "shutting_down",
                "The node is shutting down",
            ),
            Self::Stopped => (
                StatusCode::SERVICE_UNAVAILABLE,
                "stopped",
                "The node has stopped",
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "An unexpected error",
            ),
        }
    }

    /// What an answer of this kind always says beside its body.
    fn headers(self) -> Vec<(HeaderName, HeaderValue)> {
        match self {
            Self::Unauthenticated => {
                vec![(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))]
            }
            _ => Vec::new(),
        }
    }

    /// The stable code.
    pub(crate) const fn code(self) -> &'static str {
        self.parts().1
    }

    /// When it is worth trying again.
    const fn retry_after_s(self) -> Option<u64> {
        match self {
            Self::NoLeader
            | Self::LeaderUnreachable
            | Self::OutcomeUnknown
            | Self::Overloaded
            | Self::MemberTooOld
            | Self::Starting
            | Self::NotCaughtUp
            | Self::ChangeInProgress => Some(1),
            Self::ShuttingDown | Self::Stopped | Self::TooManyRequests => Some(5),
            _ => None,
        }
    }
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ProblemBody {
    /// Names the kind of problem as a URI; equal codes have equal types.
    #[serde(rename = "type")]
    #[schema(example = "urn:leasehold:problem:invalid_field")]
    kind: String,
    /// The kind of problem, for people.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// The kind of problem, for programs; never changes its meaning.
    #[schema(example = "invalid_field")]
    code: &'static str,
    /// This occurrence, for people: what is wrong and what is allowed.
    detail: String,
    /// The offending field of the body, or the query parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The public names of the quotas that are used up.
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated_policies: Option<Vec<String>>,
}

/// An answer that is not a success.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    body: ProblemBody,
    status: StatusCode,
    retry_after_s: Option<u64>,
    headers: Vec<(HeaderName, HeaderValue)>,
    not_leader: Option<NotLeader>,
}

/// Marks an answer of a node that turned out not to lead, so that the request
/// can be forwarded after all.
#[derive(Clone, Debug)]
pub(crate) struct NotLeader(pub(crate) Option<Member>);

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let (status, code, title) = kind.parts();
        Self(Box::new(Parts {
            body: ProblemBody {
                kind: format!("urn:leasehold:problem:{code}"),
                title,
                status: status.as_u16(),
                code,
                detail: detail.into(),
                field: None,
                violated_policies: None,
            },
            status,
            retry_after_s: kind.retry_after_s(),
            headers: kind.headers(),
            not_leader: None,
        }))
    }

    /// A denied spend: 429 whatever the reason; `code` says which, and without
    /// `retry_after_s` no retry will ever help.
    pub(crate) fn denied(
        code: &'static str,
        detail: String,
        retry_after_s: Option<u64>,
        violated: Option<String>,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Self {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let kind = if violated.is_some() {
            "https://iana.org/assignments/http-problem-types#quota-exceeded".to_owned()
        } else {
            format!("urn:leasehold:problem:{code}")
        };
        Self(Box::new(Parts {
            body: ProblemBody {
                kind,
                title: "The spend is denied",
                status: status.as_u16(),
                code,
                detail,
                field: None,
                violated_policies: violated.map(|name| vec![name]),
            },
            status,
            retry_after_s,
            headers,
            not_leader: None,
        }))
    }

    /// A bad field, by name.
    pub(crate) fn field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Kind::InvalidField, detail).at(field)
    }

    /// From one of the domain's own messages, which begin with the field's name.
    pub(crate) fn from_validation(text: String) -> Self {
        let name: String = text
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || *c == '_')
            .collect();
        let problem = Self::new(Kind::InvalidField, text);
        if name.is_empty() {
            problem
        } else {
            problem.at(name)
        }
    }

    pub(crate) fn at(mut self, field: impl Into<String>) -> Self {
        self.0.body.field = Some(field.into());
        self
    }

    /// Names the field when the problem is of this kind.
    pub(crate) fn at_if(self, kind: Kind, field: &str) -> Self {
        if self.0.body.code == kind.parts().1 {
            self.at(field)
        } else {
            self
        }
    }

    /// What is wrong, beginning with the field.
    pub(crate) fn in_words(&self) -> String {
        let body = &self.0.body;
        match &body.field {
            Some(field) if !body.detail.starts_with(field.as_str()) => {
                format!("{field}: {}", body.detail)
            }
            _ => body.detail.clone(),
        }
    }

    /// The same, for a field of a field.
    pub(crate) fn within(mut self, outer: &str) -> Self {
        self.0.body.field = Some(match self.0.body.field {
            Some(inner) => format!("{outer}.{inner}"),
            None => outer.to_owned(),
        });
        self
    }

    pub(crate) fn key(error: &KeyError) -> Self {
        Self::new(Kind::InvalidKey, error.to_string())
    }

    pub(crate) fn pattern(error: &KeyError) -> Self {
        Self::new(Kind::InvalidPattern, error.to_string())
    }

    fn not_leader(leader: Option<Member>) -> Self {
        let mut problem = Self::no_leader();
        problem.0.not_leader = Some(NotLeader(leader));
        problem
    }

    pub(crate) fn no_leader() -> Self {
        Self::new(
            Kind::NoLeader,
            "an election may be under way, or a majority of the members is not reachable; nothing was changed",
        )
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> &'static str {
        self.0.body.code
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let parts = *self.0;
        let mut response = (parts.status, Json(parts.body)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(seconds) = parts.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        headers.extend(parts.headers);
        if let Some(not_leader) = parts.not_leader {
            response.extensions_mut().insert(not_leader);
        }
        response
    }
}
