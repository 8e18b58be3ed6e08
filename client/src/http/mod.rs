//! What callers over HTTP are told: statuses, header fields and bodies. Knows no
//! server and no request, and nothing that only operators may see: neither keys nor
//! the names of policies come here, only what [`Budget::quota`] says.
//!
//! [`Answers`] are the settings, and render what a request was told into an
//! [`Answer`]. The layers of this crate do so for themselves; anything else that speaks
//! HTTP (Pingora, a sidecar, a server of one's own) does it like this:
//!
//! ```no_run
//! use leasehold_client::{Client, http::Answers};
//!
//! # async fn example(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
//! let answers = Answers::default();
//! let (tenant, user) = (client.budget("tenant/acme")?, client.budget("user/ada")?);
//! let parts = [(&tenant, 1), (&user, 1)];
//! let told = client.spend_all(parts).await;
//! let answer = answers.answer(&told, &parts);
//! if !answer.is_allowed {
//!     println!("{} {:?} {:?}", answer.status, answer.headers, answer.body);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is sent
//!
//! - `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11, on
//!   refusals and on success: an item for each public name among the budgets. `q` is the
//!   limit, `w` its window (absent where time frees nothing), `r` what the coordinator
//!   last said is free and what is held here: an **estimate**, since other gateways spend
//!   all the time. `t` is there while requests are refused. A budget that is unlimited, or
//!   of which nothing is known yet, has no item: the draft demands a `q`.
//! - `Retry-After` in whole seconds, rounded up, and later by a random part of
//!   [`Answers::jitter`], so that those who were refused together do not come back
//!   together. It is never earlier than the coordinator said, nor than any `t`; it is
//!   absent where no later attempt will succeed.
//! - problem+json (RFC 9457), by [`Reason`].
//! - A header that marks [`Verdict::Degraded`], see
//!   [`Answers::degraded_header`].

mod fields;
#[cfg(feature = "grpc")]
mod grpc;
mod problem;
mod reason;
mod shown;

use std::{ops::RangeInclusive, time::Duration};

use ::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use bytes::Bytes;

use self::{fields::seconds_up, shown::Part};
pub use self::{reason::Reason, shown::Shown};
use crate::{Budget, BudgetError, Client, Code, JointVerdict, Key, Verdict, client::ROOM_AFTER};

const DEGRADED: HeaderName = HeaderName::from_static("quota-degraded");
/// The policy's failure mode let the request through.
const UNREACHABLE: HeaderValue = HeaderValue::from_static("unreachable");
/// Shadow mode let the request through.
const WOULD_REFUSE: HeaderValue = HeaderValue::from_static("would-refuse");

/// How answers are rendered.
#[derive(Clone, Debug)]
pub struct Answers {
    jitter: RangeInclusive<Duration>,
    rate_limit: bool,
    legacy: bool,
    degraded: Option<HeaderName>,
    shadowed: Option<HeaderName>,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            jitter: Duration::ZERO..=Duration::from_secs(2),
            rate_limit: true,
            legacy: false,
            degraded: Some(DEGRADED),
            shadowed: None,
        }
    }
}

impl Answers {
    /// By how much later than it could a refused caller is told to come back: a time
    /// drawn at random from this range for each answer. 0 to 2 seconds unless said
    /// otherwise.
    #[must_use]
    pub fn jitter(mut self, range: RangeInclusive<Duration>) -> Self {
        self.jitter = range;
        self
    }

    /// Whether `RateLimit` and `RateLimit-Policy` are sent, as they are unless said
    /// otherwise.
    #[must_use]
    pub fn rate_limit(mut self, is_sent: bool) -> Self {
        self.rate_limit = is_sent;
        self
    }

    /// Whether `X-RateLimit-Limit`, `-Remaining` and `-Reset` are sent too, for callers
    /// who know no others. They have room for one budget: the one that refused, or else
    /// the one with the least left. `-Reset` is in seconds from now, as `t` is.
    #[must_use]
    pub fn legacy(mut self, is_sent: bool) -> Self {
        self.legacy = is_sent;
        self
    }

    /// The header that marks what the failure mode let through, `Quota-Degraded:
    /// unreachable` unless said otherwise; none: it is not marked.
    #[must_use]
    pub fn degraded_header(mut self, name: Option<HeaderName>) -> Self {
        self.degraded = name;
        self
    }

    /// The header that marks what only shadow mode let through, with the value
    /// `would-refuse`. None unless said otherwise: callers see no difference.
    #[must_use]
    pub fn shadowed_header(mut self, name: Option<HeaderName>) -> Self {
        self.shadowed = name;
        self
    }

    /// Renders what a request for these budgets was told. Each is listed with the units
    /// that the request was for, in the order in which they were spent. The figures are
    /// those of now, so this is best called at once.
    #[must_use]
    pub fn answer(&self, told: impl Into<Told>, budgets: &[(&Budget, u64)]) -> Answer {
        let mut told = told.into();
        if budgets.len() == 1 {
            told.refused_by = Some(0);
        }
        let parts = budgets.iter().enumerate().filter_map(|(index, part)| {
            let (budget, units) = *part;
            Part::of(budget.quota()?.as_ref(), budget.peek(), index, units)
        });
        self.render(told, parts.collect(), self.draw())
    }

    /// Spends units of one key, and renders what that was told.
    pub async fn spend(&self, client: &Client, key: Key, units: u64) -> Answer {
        match client.budget_of(key) {
            Ok(budget) => self.answer(budget.spend(units).await, &[(&budget, units)]),
            Err(error) => self.no_room(&error),
        }
    }

    /// The answer where the client has as many keys as it may.
    pub(crate) fn no_room(&self, error: &BudgetError) -> Answer {
        tracing::warn!(%error, "a request is refused");
        let verdict = Verdict::Denied {
            code: Code::TooManyKeys,
            retry_after: Some(ROOM_AFTER),
        };
        self.answer(verdict, &[])
    }

    /// Renders a refusal for which no budget was asked.
    #[must_use]
    pub fn refusal(&self, reason: Reason, detail: Option<&str>) -> Answer {
        Answer {
            is_allowed: false,
            status: reason.status(),
            headers: problem::headers(),
            body: Some(problem::body(reason, detail, &[])),
            reason: Some(reason),
            retry_after: None,
            shown: Vec::new(),
        }
    }

    fn draw(&self) -> Duration {
        let (start, end) = (*self.jitter.start(), *self.jitter.end());
        if start < end {
            rand::random_range(start..=end)
        } else {
            start
        }
    }

    fn render(&self, told: Told, mut parts: Vec<Part>, jitter: Duration) -> Answer {
        let reason = Reason::of(told.verdict);
        let refuser = reason.and(told.refused_by);
        let promised = reason.and_then(|reason| reason.retry_after(told.verdict));
        let mut refused = None;
        if let (Some(reason), Some(index)) = (reason, refuser)
            && let Some(part) = parts.iter_mut().find(|part| part.index == index)
        {
            part.refuses(reason, promised);
            refused = Some((part.shown.clone(), part.units));
        }
        let shown = shown::merged(parts);
        let mut headers = HeaderMap::new();
        if self.rate_limit {
            fields::rate_limit(&shown, &mut headers);
        }
        if self.legacy {
            let name = refused.as_ref().map(|(part, _)| part.public_name.as_str());
            fields::legacy(&shown, name, &mut headers);
        }
        let Some(reason) = reason else {
            let mark = match told.verdict {
                Verdict::Degraded => self.degraded.clone().zip(Some(UNREACHABLE)),
                Verdict::Shadowed { .. } => self.shadowed.clone().zip(Some(WOULD_REFUSE)),
                _ => None,
            };
            headers.extend(mark);
            return Answer {
                is_allowed: true,
                status: StatusCode::OK,
                headers,
                body: None,
                reason: None,
                retry_after: None,
                shown,
            };
        };
        // No earlier than any `t` that is shown.
        let latest = shown.iter().filter_map(|shown| shown.reset).max();
        let retry_after = promised.map(|promised| {
            let earliest = promised.max(latest.unwrap_or_default());
            earliest.saturating_add(jitter)
        });
        if let Some(after) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds_up(after)));
        }
        headers.extend(problem::headers());
        let detail = refused.as_ref().and_then(|(part, units)| {
            (reason == Reason::TooExpensive).then(|| problem::too_expensive(*units, part.limit))
        });
        let violated: Vec<&str> = refused
            .iter()
            .filter(|_| reason.is_violation())
            .map(|(part, _)| part.public_name.as_str())
            .collect();
        Answer {
            is_allowed: false,
            status: reason.status(),
            headers,
            body: Some(problem::body(reason, detail.as_deref(), &violated)),
            reason: Some(reason),
            retry_after,
            shown,
        }
    }
}

/// What a request was told, of one budget or of several.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    verdict: Verdict,
    refused_by: Option<usize>,
}

impl From<Verdict> for Told {
    fn from(verdict: Verdict) -> Self {
        Self {
            verdict,
            refused_by: None,
        }
    }
}

impl From<&JointVerdict> for Told {
    fn from(told: &JointVerdict) -> Self {
        Self {
            verdict: told.verdict,
            refused_by: told.refused_by.as_ref().map(|by| by.index),
        }
    }
}

/// What a caller is told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answer {
    /// Whether the request may go ahead.
    pub is_allowed: bool,
    /// The status of a refusal; 200 if the request may go ahead.
    pub status: StatusCode,
    /// The header fields of the answer, or those to add to the answer of whoever serves
    /// the request.
    pub headers: HeaderMap,
    /// problem+json, of a refusal.
    pub body: Option<Bytes>,
    /// Why it is refused.
    pub reason: Option<Reason>,
    /// When the caller may come back, with the jitter, not rounded; none: never, or the
    /// request may go ahead.
    pub retry_after: Option<Duration>,
    /// The figures of the budgets, as far as callers may know them: what the headers say,
    /// for answers of another form.
    pub shown: Vec<Shown>,
}

impl Answer {
    /// The answer to a request that is refused.
    #[must_use]
    pub fn into_response<B: From<Bytes>>(self) -> Response<B> {
        let mut response = Response::new(B::from(self.body.unwrap_or_default()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }

    /// Adds the header fields to an answer that somebody else made. Items that it has
    /// already in `RateLimit` and `RateLimit-Policy` stay: both are lists.
    pub fn add_to(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            if fields::is_list(name) {
                headers.append(name, value.clone());
            } else {
                headers.insert(name, value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
