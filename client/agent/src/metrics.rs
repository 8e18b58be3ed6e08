//! `/metrics` in Prometheus' text format. Counters and the histogram are recorded where
//! things happen; here they are described, and the gauges are read when somebody scrapes.

use std::sync::{Arc, OnceLock};

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use leasehold_doors::Refused;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::Instant;

use crate::agent::Agent;

/// Seconds of an answer: 10 µs, which is one from what is held here, to 1 s.
const SECONDS: [f64; 14] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05,
    0.1, 0.25, 1.0,
];

const REQUESTS: &str = "leasehold_agent_requests_total";
const REQUEST_SECONDS: &str = "leasehold_agent_request_seconds";
const REPEATS: &str = "leasehold_agent_repeats_total";
const RELOADS: &str = "leasehold_agent_reloads_total";
const CERTIFICATE_EXPIRES: &str = "leasehold_agent_certificate_expires_seconds";
const REFUSED_CONNECTIONS: &str = "leasehold_agent_connections_refused_total";

/// How a gateway asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Check,
    Nginx,
    Rls,
}

/// What became of a request, for those who count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Estimated,
    Degraded,
    Shadowed,
    /// It passed without being charged, as the configuration says.
    Uncharged,
    /// The quota is used up.
    Denied,
    /// Nobody can be asked, or there is no room.
    Unavailable,
    /// It has no key, no rule, no budget, a malformed one, or one that hands out permits.
    Refused,
    /// As many requests are at work as may be.
    Overloaded,
}

impl Via {
    fn text(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Nginx => "nginx",
            Self::Rls => "rls",
        }
    }
}

impl Outcome {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Estimated => "estimated",
            Self::Degraded => "degraded",
            Self::Shadowed => "shadowed",
            Self::Uncharged => "uncharged",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
            Self::Overloaded => "overloaded",
        }
    }
}

/// A request was answered.
pub(crate) fn answered(via: Via, outcome: Outcome, since: Instant) {
    let (via, outcome) = (via.text(), outcome.text());
    counter!(REQUESTS, "via" => via, "outcome" => outcome).increment(1);
    metrics::histogram!(REQUEST_SECONDS, "via" => via).record(since.elapsed().as_secs_f64());
}

/// A request was told what the first of its id was.
pub(crate) fn repeated() {
    counter!(REPEATS).increment(1);
}

/// A changed configuration was taken, or was not.
pub(crate) fn reloaded(is_taken: bool) {
    let outcome = if is_taken { "ok" } else { "failed" };
    counter!(RELOADS, "outcome" => outcome).increment(1);
}

/// A connection was turned away.
pub(crate) fn connection_refused(why: Refused) {
    counter!(REFUSED_CONNECTIONS, "limit" => why.limit()).increment(1);
}

/// The process's recorder.
#[derive(Clone)]
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder, once in a process; later calls share it.
    pub(crate) fn install() -> Self {
        static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
        let handle = HANDLE.get_or_init(|| {
            let recorder = builder().build_recorder();
            let handle = recorder.handle();
            // Somebody else's recorder keeps the counters; the gauges still answer.
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed: /metrics shows gauges only");
            }
            describe();
            handle
        });
        Self(handle.clone())
    }

    /// Forgets samples that no scrape fetched; call it now and then.
    pub(crate) fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

fn builder() -> PrometheusBuilder {
    let seconds = Matcher::Full(REQUEST_SECONDS.to_owned());
    // Fails for an empty list only, and this is none.
    PrometheusBuilder::new()
        .set_buckets_for_metric(seconds, &SECONDS)
        .unwrap_or_else(|_| PrometheusBuilder::new())
}

/// What a metric is.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Gauge,
    Counter,
    Seconds,
}

/// Every metric of this process, with its meaning. Names are a promise.
const METRICS: [(Shape, &str, &str); 13] = [
    (
        Shape::Counter,
        REQUESTS,
        "Requests that gateways asked about, by how they asked and what became of them",
    ),
    (
        Shape::Seconds,
        REQUEST_SECONDS,
        "From a gateway's question to the answer, by how it asked",
    ),
    (
        Shape::Counter,
        REPEATS,
        "Questions that were asked before under the same request id, and were not charged again",
    ),
    (
        Shape::Counter,
        RELOADS,
        "Changed configurations, by whether they were taken",
    ),
    (
        Shape::Counter,
        REFUSED_CONNECTIONS,
        "Connections that were turned away, by the limit that they met",
    ),
    (
        Shape::Gauge,
        "leasehold_agent_session",
        "1 while a coordinator can be asked",
    ),
    (
        Shape::Gauge,
        "leasehold_agent_keys",
        "Keys that are kept here",
    ),
    (
        Shape::Gauge,
        "leasehold_agent_request_ids",
        "Request ids that are remembered",
    ),
    (
        Shape::Gauge,
        "leasehold_agent_connections",
        "Connections of gateways",
    ),
    (
        Shape::Gauge,
        "leasehold_agent_requests",
        "Requests that are at work now",
    ),
    (
        Shape::Gauge,
        "leasehold_agent_configuration_broken",
        "1 while the configuration file cannot be taken, and the one before is in force",
    ),
    (
        Shape::Gauge,
        CERTIFICATE_EXPIRES,
        "Seconds until a certificate expires, by the field that names its file",
    ),
    (
        Shape::Gauge,
        "leasehold_agent_certificates_broken",
        "1 while the files of [listen.tls] cannot be taken, and those before are in force",
    ),
];

fn describe() {
    for (shape, name, help) in METRICS {
        match shape {
            Shape::Gauge => describe_gauge!(name, help),
            Shape::Counter => describe_counter!(name, help),
            Shape::Seconds => describe_histogram!(name, Unit::Seconds, help),
        }
    }
}

/// What Prometheus fetches.
pub(crate) async fn scrape(State(agent): State<Arc<Agent>>) -> Response {
    let set = |name: &'static str, value: usize| {
        #[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
        gauge!(name).set(value as f64);
    };
    let client = agent.decider.client();
    set(
        "leasehold_agent_session",
        usize::from(client.is_connected()),
    );
    set("leasehold_agent_keys", client.keys());
    set("leasehold_agent_request_ids", agent.repeats.len());
    set("leasehold_agent_connections", agent.connections.taken());
    set("leasehold_agent_requests", agent.requests.taken());
    let is_broken = agent.standing().problem.is_some();
    set(
        "leasehold_agent_configuration_broken",
        usize::from(is_broken),
    );
    if let Some(tls) = &agent.tls {
        for expiry in &tls.now().expiries {
            #[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
            gauge!(CERTIFICATE_EXPIRES, "which" => expiry.field).set(expiry.seconds_left() as f64);
        }
        set(
            "leasehold_agent_certificates_broken",
            usize::from(tls.problem().is_some()),
        );
    }
    let text = agent.metrics.0.render();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_metrics_are_a_promise() {
        let lines: Vec<String> = METRICS
            .iter()
            .map(|(shape, name, help)| format!("{name} ({shape:?}): {help}"))
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
