//! Envoy's rate limit service, version 3: descriptors in, verdicts out. Knows nothing of
//! how a key is spent.
//!
//! - A descriptor costs its own `hits_addend` if it has one, else the request's, else 1.
//!   0 costs nothing, and is answered by whether one unit would be refused now.
//! - All descriptors of a request are charged, or none of them.
//! - A descriptor that says of itself what its limit is (`limit`), or that it refunds
//!   (`is_negative_hits`), asks for what budgets do not do here: see
//!   [`LimitOverride`](crate::config::LimitOverride); a refund is refused.
//! - Envoy answers a refusal with 429, always. One that nobody could be asked about has
//!   the number 503 as `status` in the dynamic metadata, by which a `local_reply_config`
//!   changes it (see `deploy/gateways/`).
//! - What cannot be read (a text that is no UTF-8, too long a message) is refused like a
//!   key that is none. It is no gRPC error: Envoy may take an error for a pass, and what
//!   is in a descriptor is often chosen by callers.

mod mapping;
mod reply;
mod unread;

use std::sync::Arc;

// What others' tests ask, in Envoy's words.
#[cfg(test)]
pub(crate) use envoy_types::pb;
use envoy_types::pb::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor,
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
    },
};
use leasehold_client::{
    Code,
    http::{Answer, Reason},
};
use tokio::time::Instant;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use crate::{
    agent::{Agent, request_id},
    check::{PERMITS, outcome_of},
    config::{LimitOverride, Rls, UnavailableAs, Unless},
    decide::{Ask, Charge, Decision},
    metrics::{self, Outcome, Via},
};
use mapping::Mapped;
use reply::Standing;
pub(crate) use unread::refuse_unread;

/// Descriptors are short texts: more is no question of Envoy's.
const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// Its name in gRPC health.
pub(crate) const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The service.
pub(crate) struct Service {
    agent: Arc<Agent>,
}

impl Service {
    pub(crate) fn server(agent: Arc<Agent>) -> RateLimitServiceServer<Self> {
        RateLimitServiceServer::new(Self { agent }).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let since = Instant::now();
        let rules = self.agent.rules();
        let unconfigured = Rls::default();
        let rls = rules.rls.as_ref();
        let (outcome, told) = match (self.agent.requests.take(), rls) {
            (None, _) => (Outcome::Overloaded, Told::refused(self.agent.overloaded())),
            (_, None) => {
                tracing::debug!("a gateway asks the rate limit service, which has no [rls]");
                let reason = Reason::Misconfigured;
                let answer = self.agent.answers.refusal(reason, None);
                (Outcome::Refused, Told::refused(answer))
            }
            (Some(_place), Some(rls)) => {
                let most = rules.descriptors_max;
                self.tell(rls, most, request.metadata(), request.get_ref())
                    .await
            }
        };
        metrics::answered(Via::Rls, outcome, since);
        let is_unavailable =
            told.answer.as_ref().and_then(|answer| answer.reason) == Some(Reason::ReducedCapacity);
        let rls = rls.unwrap_or(&unconfigured);
        if is_unavailable && rls.unavailable == UnavailableAs::Error {
            return Err(Status::unavailable(Reason::ReducedCapacity.title()));
        }
        Ok(Response::new(reply::response(
            told.answer.as_ref(),
            &told.standings,
        )))
    }
}

/// What a request is told.
struct Told {
    /// None: it passes, and there is nothing to tell about it.
    answer: Option<Answer>,
    /// One for each descriptor.
    standings: Vec<Standing>,
}

impl Told {
    fn refused(answer: Answer) -> Self {
        Self {
            answer: Some(answer),
            standings: Vec::new(),
        }
    }
}

impl Service {
    async fn tell(
        &self,
        rls: &Rls,
        descriptors_max: usize,
        metadata: &MetadataMap,
        request: &RateLimitRequest,
    ) -> (Outcome, Told) {
        let descriptors = &request.descriptors;
        if descriptors.is_empty() {
            let said = &self.agent.said;
            said.once(&request.domain, "no descriptors", rls.no_descriptor);
            return match rls.no_descriptor {
                Unless::Allow => passed(Vec::new()),
                Unless::Deny => self.refused(Reason::NoIdentity, Vec::new()),
            };
        }
        if descriptors.len() > descriptors_max {
            let what = "more descriptors than limits.descriptors_max";
            self.agent.said.once(&request.domain, what, Unless::Deny);
            return self.refused(Reason::Misconfigured, Vec::new());
        }
        let mut standings = Vec::with_capacity(descriptors.len());
        let mut charges = Vec::with_capacity(descriptors.len());
        // The descriptor that a charge is for.
        let mut places = Vec::with_capacity(descriptors.len());
        let mut refusal = None;
        let mapped = mapping::mapped(&rls.mapping, &request.domain, descriptors);
        for (place, (descriptor, mapped)) in descriptors.iter().zip(mapped).enumerate() {
            match self.charge(rls, request, descriptor, mapped) {
                Ok(Some(charge)) => {
                    charges.push(charge);
                    places.push(place);
                    standings.push(Standing::default());
                }
                Ok(None) => standings.push(Standing::default()),
                Err(reason) => {
                    refusal = refusal.or(Some(reason));
                    standings.push(Standing::refused());
                }
            }
        }
        if let Some(reason) = refusal {
            return self.refused(reason, standings);
        }
        if charges.is_empty() {
            return passed(standings);
        }
        let ask = Ask {
            charges,
            lane: None,
            no_budget: rls.no_rule,
        };
        let id = rls.request_id_header.as_ref().and_then(|header| {
            let values = metadata.get_all(header.as_str()).iter();
            request_id(values.map(|value| value.as_bytes()))
        });
        let decision = self.agent.decide("rls", id, &ask).await;
        self.note_budgets(&decision, descriptors, &places, &request.domain);
        reply::fill(&mut standings, &places, &decision);
        let answer = decision.answer(&self.agent.answers);
        (
            outcome_of(&decision),
            Told {
                answer: Some(answer),
                standings,
            },
        )
    }

    fn refused(&self, reason: Reason, standings: Vec<Standing>) -> (Outcome, Told) {
        let answer = self.agent.answers.refusal(reason, None);
        (
            Outcome::Refused,
            Told {
                answer: Some(answer),
                standings,
            },
        )
    }

    /// What a descriptor is charged to; none: it passes without.
    fn charge(
        &self,
        rls: &Rls,
        request: &RateLimitRequest,
        descriptor: &RateLimitDescriptor,
        mapped: Mapped,
    ) -> Result<Option<Charge>, Reason> {
        let shape = mapping::shape(descriptor);
        let note = |what: &str, unless| {
            let shape = format!("{shape}: {what}");
            self.agent.said.once(&request.domain, &shape, unless);
        };
        if descriptor.is_negative_hits {
            note("it refunds, which budgets do not", Unless::Deny);
            return Err(Reason::Misconfigured);
        }
        if descriptor.limit.is_some() {
            match rls.limit_override {
                LimitOverride::Deny => {
                    note("it brings a limit of its own", Unless::Deny);
                    return Err(Reason::Misconfigured);
                }
                LimitOverride::Ignore => {}
            }
        }
        let units = units(request, descriptor);
        let charge = |key, only_counted| Charge {
            key,
            units,
            only_counted,
        };
        match mapped {
            Mapped::Uncounted => Ok(None),
            Mapped::Key(key) => Ok(Some(charge(key, false))),
            Mapped::Unlimited(key) => Ok(Some(charge(key, true))),
            Mapped::NoRule => {
                note("no rule is for it", rls.no_rule);
                match rls.no_rule {
                    Unless::Allow => Ok(None),
                    Unless::Deny => Err(Reason::NoQuota),
                }
            }
            Mapped::NoKey(error) => {
                note(&error.to_string(), Unless::Deny);
                Err(Reason::BadIdentity)
            }
        }
    }

    /// Says what is wrong with the descriptors' budgets.
    fn note_budgets(
        &self,
        decision: &Decision,
        descriptors: &[RateLimitDescriptor],
        places: &[usize],
        domain: &str,
    ) {
        let refuser = decision.told.refused_by.as_ref().map(|by| by.index);
        let code = decision.told.verdict.code();
        for (index, part) in decision.parts.iter().enumerate() {
            let refused = code.filter(|_| refuser == Some(index));
            let what = match part.uncharged.or(refused) {
                Some(Code::NoBudget) => "no budget matches its key",
                Some(Code::WrongKind) => PERMITS,
                _ => continue,
            };
            let place = places.get(part.place);
            let Some(descriptor) = place.and_then(|place| descriptors.get(*place)) else {
                continue;
            };
            let unless = match part.uncharged {
                Some(_) => Unless::Allow,
                None => Unless::Deny,
            };
            let shape = format!("{}: {what}", mapping::shape(descriptor));
            self.agent.said.once(domain, &shape, unless);
        }
    }
}

/// The descriptor's own, else the request's, of which Envoy's 0 means that it says none.
fn units(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    match &descriptor.hits_addend {
        Some(own) => own.value,
        None => u64::from(request.hits_addend.max(1)),
    }
}

fn passed(standings: Vec<Standing>) -> (Outcome, Told) {
    let answer = None;
    (Outcome::Uncharged, Told { answer, standings })
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::protobuf::UInt64Value;

    use super::*;

    #[test]
    fn a_descriptor_costs_its_own_hits_else_the_requests_else_one() {
        let units = |own: Option<u64>, of_request| {
            let request = RateLimitRequest {
                hits_addend: of_request,
                ..RateLimitRequest::default()
            };
            let descriptor = RateLimitDescriptor {
                hits_addend: own.map(|value| UInt64Value { value }),
                ..RateLimitDescriptor::default()
            };
            super::units(&request, &descriptor)
        };
        assert_eq!(units(Some(3), 7), 3);
        assert_eq!(units(Some(0), 7), 0);
        assert_eq!(units(None, 7), 7);
        assert_eq!(units(None, 0), 1);
    }
}
