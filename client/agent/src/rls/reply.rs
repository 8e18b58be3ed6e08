//! What is sent to Envoy. Decides nothing.

use std::{collections::HashMap, time::Duration};

use envoy_types::pb::{
    envoy::{
        config::core::v3::HeaderValue,
        service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
        },
    },
    google::protobuf::{self, Struct, Value, value::Kind},
};
use leasehold_client::{Budget, http::Answer};

use crate::decide::{Decision, Part};

/// How one descriptor stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Standing {
    is_refused: bool,
    limit: Option<RateLimit>,
    remaining: u32,
    reset: Option<Duration>,
}

impl Standing {
    pub(super) fn refused() -> Self {
        Self {
            is_refused: true,
            ..Self::default()
        }
    }

    fn of(part: &Part, refuses: bool, retry_after: Option<Duration>) -> Self {
        if part.is_uncharged() {
            return Self::default();
        }
        if part.budget.quota().is_some_and(|quota| quota.shadow) {
            // It refuses nothing, whatever it would: there are no figures to keep to.
            return Self {
                is_refused: refuses,
                ..Self::default()
            };
        }
        let peek = part.budget.peek();
        let is_refused = refuses || peek.refused.is_some();
        let remaining = if refuses {
            // The estimate knows less than the refusal.
            peek.remaining.min(part.units.saturating_sub(1))
        } else {
            peek.remaining
        };
        Self {
            is_refused,
            limit: limit(&part.budget),
            remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
            reset: if refuses { retry_after } else { None }.or(peek.retry_after),
        }
    }

    fn status(&self) -> DescriptorStatus {
        let code = if self.is_refused {
            Code::OverLimit
        } else {
            Code::Ok
        };
        DescriptorStatus {
            code: code.into(),
            current_limit: self.limit.clone(),
            limit_remaining: self.remaining,
            duration_until_reset: self.reset.map(duration),
            quota: None,
        }
    }
}

/// Fills in how the charged descriptors stand.
pub(super) fn fill(standings: &mut [Standing], places: &[usize], decision: &Decision) {
    let refuser = decision.told.refused_by.as_ref().map(|by| by.index);
    let retry_after = decision.told.retry_after();
    let is_refused = !decision.told.is_allowed();
    for (index, place) in places.iter().enumerate() {
        let Some(standing) = standings.get_mut(*place) else {
            continue;
        };
        let found = decision.parts.iter().enumerate();
        let mut found = found.filter(|(_, part)| part.place == index);
        *standing = match found.next() {
            Some((at, part)) => Standing::of(part, refuser == Some(at), retry_after),
            // There was no room for its key.
            None if is_refused => Standing::refused(),
            None => Standing::default(),
        };
    }
}

fn limit(budget: &Budget) -> Option<RateLimit> {
    let quota = budget.quota()?;
    let limit = quota.limit?;
    Some(RateLimit {
        name: quota.public_name.clone(),
        requests_per_unit: u32::try_from(limit).unwrap_or(u32::MAX),
        unit: quota.window.map_or(Unit::Unknown, unit).into(),
    })
}

/// The unit that is as long as the window; unknown if none is.
fn unit(window: Duration) -> Unit {
    const HOUR: u64 = 3_600;
    if window.subsec_nanos() > 0 {
        return Unit::Unknown;
    }
    match window.as_secs() {
        1 => Unit::Second,
        60 => Unit::Minute,
        HOUR => Unit::Hour,
        86_400 => Unit::Day,
        604_800 => Unit::Week,
        _ => Unit::Unknown,
    }
}

fn duration(time: Duration) -> protobuf::Duration {
    protobuf::Duration {
        seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(time.subsec_nanos()).unwrap_or(0),
    }
}

/// The whole response. None: the request passes, and there is nothing to tell.
pub(super) fn response(answer: Option<&Answer>, standings: &[Standing]) -> RateLimitResponse {
    let is_allowed = answer.is_none_or(|answer| answer.is_allowed);
    let overall = if is_allowed {
        Code::Ok
    } else {
        Code::OverLimit
    };
    let headers = answer.map(|answer| {
        let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| HeaderValue {
            key: name.as_str().to_owned(),
            value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
            ..HeaderValue::default()
        };
        answer.headers.iter().map(header).collect()
    });
    let body = answer.and_then(|answer| answer.body.as_ref());
    RateLimitResponse {
        overall_code: overall.into(),
        statuses: standings.iter().map(Standing::status).collect(),
        response_headers_to_add: headers.unwrap_or_default(),
        raw_body: body.map(|body| body.to_vec()).unwrap_or_default(),
        dynamic_metadata: answer.filter(|_| !is_allowed).map(metadata),
        ..RateLimitResponse::default()
    }
}

/// The status that fits a refusal, which Envoy answers with 429 unless it is told to
/// look here.
fn metadata(answer: &Answer) -> Struct {
    let status = Value {
        kind: Some(Kind::NumberValue(f64::from(answer.status.as_u16()))),
    };
    Struct {
        fields: HashMap::from([("status".to_owned(), status)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_the_unit_that_is_as_long() {
        assert_eq!(unit(Duration::from_secs(60)), Unit::Minute);
        assert_eq!(unit(Duration::from_secs(604_800)), Unit::Week);
        assert_eq!(unit(Duration::from_secs(10)), Unit::Unknown);
        assert_eq!(unit(Duration::from_millis(1_500)), Unit::Unknown);
    }
}
