//! `POST /v1/spend`: a spend decided by the log itself, with the headers of
//! draft-ietf-httpapi-ratelimit-headers.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use leasehold_key::Key;
use leasehold_ledger::{
    entry::Command,
    outcome::{Code, CommandOutcome, SpendOutcome},
    policy::{Kind as PolicyKind, Policy},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::{
    Admin, header,
    json::{self, Body, Whole, seconds_up},
    problem::{Kind, Problem},
};
use crate::access::Visitor;

/// The greatest integer of a structured field (RFC 9651, section 3.3.1): a greater one
/// would make the whole field unreadable.
const FIELD_INTEGER_MAX: u64 = 999_999_999_999_999;

/// Names a request: the same again is charged once.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What to spend.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"key": "acme/orders.read", "units": 1}))]
pub(super) struct SpendBody {
    /// The key; a slash within a segment is %2F.
    key: String,
    /// All or none of them; 1 unless said otherwise, 0 is admitted and charges nothing.
    #[serde(default)]
    units: Option<Whole>,
}

/// Reads a body as far as nobody has to be asked.
pub(super) fn reads(bytes: &[u8]) -> bool {
    json::parse::<SpendBody>(bytes).is_ok_and(|body| Key::parse(&body.key).is_ok())
}

/// The spend is admitted.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Spent {
    admitted: bool,
    key: String,
    units: u64,
    /// Free units afterwards.
    free: u64,
    /// It was admitted before under its `Idempotency-Key`, and nothing was charged now;
    /// absent otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    repeated: bool,
    /// The budget is an `estimate`: all gateways together may let more through than its
    /// limit. Absent otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    estimated: bool,
    /// Why it would have been denied, if its policy were no `shadow`: nothing was
    /// charged. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadowed: Option<Shadowed>,
}

/// Why a spend would have been denied.
#[derive(Debug, Serialize, ToSchema)]
struct Shadowed {
    /// What `code` would have been.
    #[schema(example = "limit")]
    code: &'static str,
    /// For people.
    detail: String,
    /// What `Retry-After` would have said; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_s: Option<u64>,
}

/// Spends units of a key: exact, at the price of one log entry. For callers too
/// rare to lease.
///
/// With an `Idempotency-Key`, the same request again is answered as it was and charged
/// once, for `idempotency_ttl_ms` after it was admitted and across changes of the leader.
/// The key is one for the whole cluster, or for the identity where the node has `[auth]`; with
/// another body it is refused. What was denied
/// charged nothing: the same again is decided anew. While `idempotency_keys_max` of them
/// are known, spends with a new one are denied with `too_many_idempotency_keys`, since to
/// forget one would charge twice.
#[utoipa::path(post, path = "/v1/spend", tag = "spend", operation_id = "spend", request_body = SpendBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters")),
    responses(
        (status = 200, description = "Admitted", body = Spent,
            headers(("RateLimit" = String), ("RateLimit-Policy" = String))),
        (status = 429, description = "Denied; `code` says why, and Retry-After when to try again (absent: never)",
            content_type = "application/problem+json", body = super::problem::ProblemBody,
            headers(("Retry-After" = u64), ("RateLimit" = String), ("RateLimit-Policy" = String))),
    ))]
pub(super) async fn spend(
    State(admin): State<Admin>,
    visitor: Visitor,
    headers: HeaderMap,
    Body(body): Body<SpendBody>,
) -> Result<Response, Problem> {
    let once = header::visible(&headers, &IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_BYTES_MAX)?;
    let key = Key::parse(&body.key).map_err(|error| Problem::key(&error).at("key"))?;
    let units = body.units.map_or(1, |units| units.0);
    let spend = match once {
        None => Command::Spend {
            key: key.clone(),
            units,
        },
        Some(idempotency_key) => Command::SpendOnce {
            key: key.clone(),
            units,
            idempotency_key: visitors_own(&visitor, idempotency_key),
        },
    };
    let outcome = admin.node.spend_for(&visitor, &key, spend).await?;
    match outcome {
        CommandOutcome::Refused(refusal) => Err(refusal.into()),
        CommandOutcome::Spent(outcome) => {
            let shadowed = u64::from(outcome.shadowed.is_some());
            admin.node.shadowed().add(&key, shadowed);
            answer(&key, units, outcome)
        }
        other => Err(Problem::new(
            Kind::Internal,
            format!("a spend led to {other:?}"),
        )),
    }
}

/// An idempotency key as the ledger knows it: whoever is known has theirs for themselves,
/// so that nobody can use up or find out another's.
fn visitors_own(visitor: &Visitor, idempotency_key: String) -> String {
    if visitor.is_anybody() {
        return idempotency_key;
    }
    let hash = Sha256::new()
        .chain_update(visitor.name())
        .chain_update([0])
        .chain_update(&idempotency_key)
        .finalize();
    URL_SAFE_NO_PAD.encode(hash)
}

fn answer(key: &Key, units: u64, outcome: SpendOutcome) -> Result<Response, Problem> {
    let headers = outcome
        .policy
        .as_ref()
        .map(|policy| rate_limit(policy, &outcome))
        .unwrap_or_default();
    let Some(refusal) = outcome.refusal else {
        let shadowed = outcome.shadowed.map(|refusal| Shadowed {
            code: refusal.code.as_str(),
            detail: why(
                key,
                units,
                refusal.code,
                outcome.free,
                outcome.policy.as_deref(),
            ),
            retry_after_s: refusal.retry_after_us.map(seconds_up),
        });
        let estimated = outcome
            .policy
            .as_ref()
            .is_some_and(|policy| matches!(policy.kind, PolicyKind::Estimate { .. }));
        let body = Spent {
            admitted: true,
            key: key.as_str().to_owned(),
            units,
            free: outcome.free,
            repeated: outcome.repeated,
            estimated,
            shadowed,
        };
        return Ok((headers.into_iter().collect::<HeaderMap>(), Json(body)).into_response());
    };
    let detail = why(
        key,
        units,
        refusal.code,
        outcome.free,
        outcome.policy.as_deref(),
    );
    let violated = outcome
        .policy
        .filter(|_| matches!(refusal.code, Code::Limit | Code::CostAboveLimit))
        .map(|policy| policy.public_name.clone());
    Err(Problem::denied(
        refusal.code.as_str(),
        detail,
        refusal.retry_after_us.map(seconds_up),
        violated,
        headers,
    ))
}

/// Why a spend is denied, for people.
pub(super) fn why(key: &Key, units: u64, code: Code, free: u64, policy: Option<&Policy>) -> String {
    match (code, policy) {
        (Code::NoBudget, _) => format!("no budget matches {key}"),
        (Code::CostAboveLimit, Some(policy)) => {
            let limit = policy.kind.limit();
            let with_carry_over = match policy.kind.largest_cost() {
                most if most > limit => format!(", and {most} with all that can be carried over"),
                _ => String::new(),
            };
            format!(
                "{units} units can never be admitted: the limit of {key} is {limit}{with_carry_over}"
            )
        }
        (Code::Limit, _) => {
            format!("{key} has {free} units free now, and {units} were asked for")
        }
        (Code::Cooldown, _) => format!("{key} was refused and stays so for its cool-down"),
        (Code::WrongKind, _) => {
            format!(
                "{key} has permits, which a client holds while it uses them: they are not spent"
            )
        }
        (Code::TooManyAccounts, _) => {
            "as many accounts were opened as accounts_per_pattern_max or accounts_per_identity_max \
             allows"
                .to_owned()
        }
        (Code::TooManyIdempotencyKeys, _) => {
            "as many spends are known by their Idempotency-Key as idempotency_keys_max allows"
                .to_owned()
        }
        (code, _) => code.as_str().to_owned(),
    }
}

/// `RateLimit-Policy: "default";q=100;w=60` and `RateLimit: "default";r=0;t=7`.
/// Whole seconds, rounded up, so that nobody comes too early.
pub(super) fn rate_limit(
    policy: &Policy,
    outcome: &SpendOutcome,
) -> Vec<(HeaderName, HeaderValue)> {
    // Counted and never refused; and such a number is more than a header may say.
    if matches!(policy.kind, PolicyKind::Unlimited) {
        return Vec::new();
    }
    let name = policy
        .public_name
        .replace('\\', "\\\\")
        .replace('"', "\\\"");
    let window_us = match &policy.kind {
        // Time frees nothing of these.
        PolicyKind::Total { .. } | PolicyKind::Concurrency { .. } | PolicyKind::Unlimited => None,
        // An empty bucket without refill never fills.
        PolicyKind::TokenBucket { refill: 0, .. } | PolicyKind::Paced { refill: 0, .. } => None,
        kind => Some(kind.own_timescale_us()),
    };
    let mut rule = format!(
        "\"{name}\";q={}",
        policy.kind.limit().min(FIELD_INTEGER_MAX)
    );
    if let Some(us) = window_us {
        rule.push_str(&format!(";w={}", seconds_up(us)));
    }
    // A denied spend's own wait may be longer than the next unit's.
    let wait_us = outcome
        .refusal
        .and_then(|refusal| refusal.retry_after_us)
        .map_or(outcome.reset_us, |retry_us| {
            retry_us.min(outcome.reset_us.max(1))
        });
    let mut state = format!("\"{name}\";r={}", outcome.free.min(FIELD_INTEGER_MAX));
    if wait_us > 0 {
        state.push_str(&format!(";t={}", seconds_up(wait_us)));
    }
    [(RATE_LIMIT_POLICY, rule), (RATE_LIMIT, state)]
        .into_iter()
        .filter_map(|(name, text)| HeaderValue::try_from(text).ok().map(|value| (name, value)))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "tests"
    )]

    use leasehold_ledger::outcome::Refusal;

    use super::*;

    fn headers(
        kind: PolicyKind,
        name: &str,
        free: u64,
        reset_us: u64,
        refusal: Option<Refusal>,
    ) -> String {
        let policy = Policy {
            public_name: name.to_owned(),
            ..Policy::new(kind)
        };
        let outcome = SpendOutcome {
            refusal,
            shadowed: None,
            repeated: false,
            free,
            policy: Some(policy.clone().into()),
            reset_us,
        };
        let texts: Vec<String> = rate_limit(&policy, &outcome)
            .iter()
            .map(|(n, v)| format!("{n}: {}", v.to_str().unwrap()))
            .collect();
        texts.join(" | ")
    }

    #[test]
    fn the_headers_are_those_of_the_draft_in_whole_seconds_rounded_up() {
        let window = PolicyKind::SlidingWindow {
            limit: 100,
            window_us: 60_000_000,
        };
        assert_eq!(
            headers(window.clone(), "default", 0, 6_000_001, None),
            r#"ratelimit-policy: "default";q=100;w=60 | ratelimit: "default";r=0;t=7"#
        );
        assert_eq!(
            headers(window, "say \"hi\"", 100, 0, None),
            r#"ratelimit-policy: "say \"hi\"";q=100;w=60 | ratelimit: "say \"hi\"";r=100"#
        );
        let bucket = PolicyKind::TokenBucket {
            capacity: 20,
            refill: 100,
            refill_period_us: 60_000_000,
        };
        assert_eq!(
            headers(bucket, "b", 3, 1, None),
            r#"ratelimit-policy: "b";q=20;w=12 | ratelimit: "b";r=3;t=1"#
        );
        let huge = PolicyKind::Total { limit: 1 << 53 };
        assert_eq!(
            headers(huge, "h", 1 << 53, 0, None),
            r#"ratelimit-policy: "h";q=999999999999999 | ratelimit: "h";r=999999999999999"#
        );
        let dry = PolicyKind::TokenBucket {
            capacity: 20,
            refill: 0,
            refill_period_us: 60_000_000,
        };
        assert_eq!(
            headers(dry, "b", 3, 0, None),
            r#"ratelimit-policy: "b";q=20 | ratelimit: "b";r=3"#
        );
    }
}
