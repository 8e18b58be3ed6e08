//! `/v1/check`: for gateways that ask over HTTP whether a request may go ahead. Query and
//! body are not looked at; the key, the cost and the lane come from the headers that the
//! configuration names, and from nowhere else.
//!
//! Allowed is 204. Refused is 429, 503 when nobody can be asked and the policy fails
//! closed, 403 without a key or a budget. nginx takes 403 alone for a refusal and turns
//! everything else into an error of its own, so `/v1/check/nginx` answers 403 and says in
//! `Leasehold-Status` what its caller should be told.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    response::Response,
    routing::any,
};
use leasehold_client::{
    Code, Verdict,
    http::{Answer, Reason},
};
use tokio::time::Instant;

use crate::{
    agent::{Agent, request_id},
    config::{Check, NoKey, Unless},
    decide::{Ask, Charge, Decision, Part},
    metrics::{self, Outcome, Via},
};

/// What the caller of nginx should be told.
const STATUS: HeaderName = HeaderName::from_static("leasehold-status");

/// What operators are told whose budget is of kind `concurrency`.
pub(crate) const PERMITS: &str = "its budget is of kind concurrency: a gateway cannot hold \
    permits through the agent; acquire them with the client crate, or bind the key to a policy \
    of another kind";

pub(crate) fn router() -> Router<Arc<Agent>> {
    Router::new()
        .route("/v1/check", any(unnamed))
        .route("/v1/check/nginx", any(unnamed_nginx))
        .route("/v1/check/{name}", any(named))
        .route("/v1/check/{name}/nginx", any(named_nginx))
}

async fn unnamed(State(agent): State<Arc<Agent>>, headers: HeaderMap) -> Response {
    respond(&agent, "", Via::Check, &headers).await
}

async fn unnamed_nginx(State(agent): State<Arc<Agent>>, headers: HeaderMap) -> Response {
    respond(&agent, "", Via::Nginx, &headers).await
}

async fn named(
    State(agent): State<Arc<Agent>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    respond(&agent, &name, Via::Check, &headers).await
}

async fn named_nginx(
    State(agent): State<Arc<Agent>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    respond(&agent, &name, Via::Nginx, &headers).await
}

async fn respond(agent: &Agent, name: &str, via: Via, headers: &HeaderMap) -> Response {
    let since = Instant::now();
    let (outcome, answer) = answer(agent, name, headers).await;
    metrics::answered(via, outcome, since);
    render(via, answer)
}

/// None: the request passes, and there is nothing to tell about it.
async fn answer(agent: &Agent, name: &str, headers: &HeaderMap) -> (Outcome, Option<Answer>) {
    let Some(_place) = agent.requests.take() else {
        return (Outcome::Overloaded, Some(agent.overloaded()));
    };
    let rules = agent.rules();
    let at = if name.is_empty() { "check" } else { name };
    let Some(check) = rules.checks.get(name) else {
        // The name is the gateway's path, which no client chooses.
        agent
            .said
            .once(name, "there is no such check", Unless::Deny);
        let detail = Some("there is no such check");
        return refusal(agent, Reason::Misconfigured, detail);
    };
    let ask = match ask_of(check, headers) {
        Ok(ask) => ask,
        Err(Odd {
            unless,
            reason,
            why,
        }) => {
            agent.said.once(at, &why, unless);
            return match unless {
                Unless::Allow => (Outcome::Uncharged, None),
                Unless::Deny => refusal(agent, reason, None),
            };
        }
    };
    let id = check.request_id_header.as_ref().and_then(|header| {
        let values = headers.get_all(header).iter();
        request_id(values.map(HeaderValue::as_bytes))
    });
    // Never the rate limit service's scope, whatever the check is called.
    let scope = format!("check {name}");
    let decision = agent.decide(&scope, id, &ask).await;
    if decision.told.verdict.code() == Some(Code::WrongKind) {
        agent.said.once(at, PERMITS, Unless::Deny);
    }
    (outcome_of(&decision), Some(decision.answer(&agent.answers)))
}

fn refusal(agent: &Agent, reason: Reason, detail: Option<&str>) -> (Outcome, Option<Answer>) {
    let answer = agent.answers.refusal(reason, detail);
    (Outcome::Refused, Some(answer))
}

pub(crate) fn outcome_of(decision: &Decision) -> Outcome {
    let parts = &decision.parts;
    let is_uncharged = !parts.is_empty() && parts.iter().all(Part::is_uncharged);
    match decision.told.verdict {
        verdict if is_uncharged && verdict.is_allowed() => Outcome::Uncharged,
        Verdict::Admitted => Outcome::Admitted,
        Verdict::Estimated => Outcome::Estimated,
        Verdict::Degraded => Outcome::Degraded,
        Verdict::Shadowed { .. } => Outcome::Shadowed,
        Verdict::Unavailable { .. } => Outcome::Unavailable,
        verdict => match verdict.code() {
            Some(Code::NoBudget | Code::BadKey | Code::WrongKind) => Outcome::Refused,
            Some(Code::TooManyKeys) => Outcome::Unavailable,
            _ => Outcome::Denied,
        },
    }
}

/// Why a request cannot be charged as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Odd {
    unless: Unless,
    reason: Reason,
    /// For operators: it names headers, and no values.
    why: String,
}

/// What the headers say that the request costs.
fn ask_of<'a>(check: &Check, headers: &'a HeaderMap) -> Result<Ask<'a>, Odd> {
    let units = cost(check, headers)?;
    let mut charges: Vec<Charge> = Vec::with_capacity(check.keys.len());
    for template in &check.keys {
        let key = template.key(headers).map_err(|no_key| match no_key {
            NoKey::Missing(name) => Odd {
                unless: check.missing_key,
                reason: Reason::NoIdentity,
                why: format!("the header {name} is missing"),
            },
            NoKey::Twice(name) => bad_key(check, format!("the header {name} is there twice")),
            NoKey::NotUtf8(name) => bad_key(check, format!("the header {name} is not UTF-8")),
            NoKey::Bad(error) => bad_key(check, error.to_string()),
        })?;
        charges.push(Charge {
            key,
            units,
            only_counted: false,
        });
    }
    let lane = check.lane_header.as_ref().and_then(|header| {
        let mut values = headers.get_all(header).iter();
        let first = values.next()?;
        // Two lanes are none: whoever put the second one there may not choose.
        let lane = first.to_str().ok()?;
        Some(lane).filter(|lane| values.next().is_none() && !lane.is_empty())
    });
    Ok(Ask {
        charges,
        lane,
        no_budget: check.no_budget,
    })
}

fn bad_key(check: &Check, why: String) -> Odd {
    Odd {
        unless: check.bad_key,
        reason: Reason::BadIdentity,
        why,
    }
}

/// 1 without a header.
fn cost(check: &Check, headers: &HeaderMap) -> Result<u64, Odd> {
    let Some(name) = &check.cost_header else {
        return Ok(1);
    };
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return Ok(1);
    };
    // Digits and nothing else: no sign, no space, no list.
    let digits = first
        .to_str()
        .ok()
        .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(units) if values.next().is_none() => Ok(units),
        _ => Err(Odd {
            unless: check.bad_cost,
            reason: Reason::Misconfigured,
            why: format!("the header {name} is not one whole number"),
        }),
    }
}

fn render(via: Via, answer: Option<Answer>) -> Response {
    let mut response = Response::new(Body::empty());
    let Some(answer) = answer else {
        *response.status_mut() = StatusCode::NO_CONTENT;
        return response;
    };
    *response.headers_mut() = answer.headers;
    if answer.is_allowed {
        *response.status_mut() = StatusCode::NO_CONTENT;
        return response;
    }
    *response.status_mut() = answer.status;
    if let Some(body) = answer.body {
        *response.body_mut() = Body::from(body);
    }
    if via == Via::Nginx {
        let status = HeaderValue::from(answer.status.as_u16());
        response.headers_mut().insert(STATUS, status);
        *response.status_mut() = StatusCode::FORBIDDEN;
    }
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::*;
    use crate::config::{Config, Texts};

    fn check(lines: &str) -> Check {
        let text = format!("[check]\nkey = \"edge/{{header:x-key}}\"\n{lines}");
        let mut config = Config::parse(Path::new("agent.toml"), &Texts::of(&text), false).unwrap();
        config.rules.checks.remove("").unwrap()
    }

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    const KEY: (&str, &str) = ("x-key", "acme");

    #[test]
    fn a_request_costs_one_unit_unless_its_header_says_otherwise() {
        let with_cost = check("cost_header = \"x-cost\"");
        let cost = |check: &Check, list: &[(&'static str, &'static str)]| {
            let headers = headers(list);
            let ask = ask_of(check, &headers)?;
            Ok(ask.charges[0].units)
        };
        assert_eq!(cost(&with_cost, &[KEY]), Ok(1));
        assert_eq!(cost(&with_cost, &[KEY, ("x-cost", "7")]), Ok(7));
        assert_eq!(cost(&with_cost, &[KEY, ("x-cost", "0")]), Ok(0));
        assert_eq!(
            cost(&check(""), &[KEY, ("x-cost", "7")]),
            Ok(1),
            "no header is named"
        );
        for bad in [
            "",
            "-1",
            "+1",
            "1.5",
            " 1",
            "1, 2",
            "1e3",
            "18446744073709551616",
        ] {
            let odd: Result<u64, Odd> = cost(&with_cost, &[KEY, ("x-cost", bad)]);
            assert_eq!(odd.unwrap_err().reason, Reason::Misconfigured, "{bad:?}");
        }
        let doubled = cost(&with_cost, &[KEY, ("x-cost", "1"), ("x-cost", "1")]);
        assert_eq!(doubled.unwrap_err().unless, Unless::Deny);
    }

    #[test]
    fn what_a_request_without_a_key_is_told_is_a_setting_that_denies() {
        let missing = ask_of(&check(""), &headers(&[])).unwrap_err();
        assert_eq!(
            (missing.unless, missing.reason),
            (Unless::Deny, Reason::NoIdentity)
        );
        let doubled = headers(&[KEY, ("x-key", "other")]);
        let doubled = ask_of(&check("missing_key = \"allow\""), &doubled).unwrap_err();
        assert_eq!(
            (doubled.unless, doubled.reason),
            (Unless::Deny, Reason::BadIdentity)
        );
        let allowed = ask_of(&check("missing_key = \"allow\""), &headers(&[])).unwrap_err();
        assert_eq!(allowed.unless, Unless::Allow);
    }

    #[test]
    fn a_lane_is_named_once_or_not_at_all() {
        let with_lane = check("lane_header = \"x-lane\"");
        let lane = |list: &[(&'static str, &'static str)]| {
            let headers = headers(list);
            let ask = ask_of(&with_lane, &headers).unwrap();
            ask.lane.map(str::to_owned)
        };
        assert_eq!(lane(&[KEY, ("x-lane", "high")]), Some("high".to_owned()));
        assert_eq!(lane(&[KEY]), None);
        assert_eq!(lane(&[KEY, ("x-lane", "")]), None);
        assert_eq!(lane(&[KEY, ("x-lane", "high"), ("x-lane", "high")]), None);
    }
}
