//! Bodies of refusals: problem+json (RFC 9457). Knows no verdicts.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;

use super::reason::Reason;

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(rename = "violated-policies", skip_serializing_if = "<[_]>::is_empty")]
    violated: &'a [&'a str],
}

pub(super) fn headers() -> HeaderMap {
    HeaderMap::from_iter([(header::CONTENT_TYPE, PROBLEM_JSON)])
}

pub(super) fn body(reason: Reason, detail: Option<&str>, violated: &[&str]) -> Bytes {
    let problem = Problem {
        kind: reason.problem_type(),
        title: reason.title(),
        status: reason.status().as_u16(),
        detail: detail.or(reason.detail()),
        violated,
    };
    // It has no map and no number that JSON lacks: it always can be written.
    serde_json::to_vec(&problem).unwrap_or_default().into()
}

/// What the caller of a request that can never be served should know.
pub(super) fn too_expensive(units: u64, limit: u64) -> String {
    format!("the request costs {units} of a quota of {limit}")
}
