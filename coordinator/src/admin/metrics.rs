//! `/metrics` in Prometheus' text format. Counters and histograms are recorded
//! where things happen; here they are described, and the gauges are read from
//! the node when somebody scrapes.

use std::sync::OnceLock;

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::Admin;

/// Seconds of a commit or of an fsync: 50 µs to 10 s.
const SECONDS: [f64; 17] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];
/// Items in one entry.
const ITEMS: [f64; 9] = [0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 512.0, 1_024.0, 2_048.0];

/// The process's recorder.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder, once in a process; later calls share it.
    #[must_use]
    pub fn install() -> Self {
        static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
        let handle = HANDLE.get_or_init(|| {
            let recorder = builder().build_recorder();
            let handle = recorder.handle();
            // Somebody else's recorder keeps the counters; the gauges below still answer.
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed: /metrics shows gauges only");
            }
            describe();
            handle
        });
        Self(handle.clone())
    }

    /// Forgets samples that no scrape fetched; call it now and then.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

fn builder() -> PrometheusBuilder {
    METRICS
        .iter()
        .fold(PrometheusBuilder::new(), |builder, (shape, name, _)| {
            let bounds: &[f64] = match shape {
                Shape::Seconds => &SECONDS,
                Shape::Items => &ITEMS,
                Shape::Gauge | Shape::Counter => return builder,
            };
            // Fails for an empty list only, and these are not.
            builder
                .set_buckets_for_metric(Matcher::Full((*name).to_owned()), bounds)
                .unwrap_or_else(|_| PrometheusBuilder::new())
        })
}

/// What a metric is.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Gauge,
    Counter,
    Seconds,
    Items,
}

/// Every metric of this process, with its meaning. Names are a promise.
const METRICS: [(Shape, &str, &str); 36] = [
    (
        Shape::Counter,
        "leasehold_refused_total",
        "Connections and requests that met a limit of this node, by which",
    ),
    (
        Shape::Counter,
        "leasehold_peers_refused_total",
        "Connections to the address of coordinators that were turned away, by why",
    ),
    (
        Shape::Gauge,
        "leasehold_certificate_expires_seconds",
        "Seconds until a certificate expires, by the field that names its file",
    ),
    (
        Shape::Gauge,
        "leasehold_certificates_kept",
        "1 while changed certificates are not taken, because something is wrong with them",
    ),
    (
        Shape::Gauge,
        "leasehold_leader",
        "1 on the node that leads, 0 elsewhere",
    ),
    (
        Shape::Gauge,
        "leasehold_leader_known",
        "1 while this node knows who leads",
    ),
    (Shape::Gauge, "leasehold_term", "The Raft term"),
    (
        Shape::Gauge,
        "leasehold_log_last_index",
        "The last index in this node's log",
    ),
    (
        Shape::Gauge,
        "leasehold_log_committed_index",
        "The last index known to be committed",
    ),
    (
        Shape::Gauge,
        "leasehold_log_applied_index",
        "The last index applied here",
    ),
    (Shape::Gauge, "leasehold_members", "Members of the cluster"),
    (
        Shape::Gauge,
        "leasehold_wall_clock_behind_seconds",
        "How far the other members' wall clocks are ahead of this node's, by their median",
    ),
    (
        Shape::Gauge,
        "leasehold_wall_clock_far",
        "1 while this node's wall clock is further than is tolerated from more than half of the others'",
    ),
    (
        Shape::Gauge,
        "leasehold_accounts",
        "Accounts in this node's ledger",
    ),
    (
        Shape::Gauge,
        "leasehold_sessions",
        "Live sessions in this node's ledger",
    ),
    (
        Shape::Gauge,
        "leasehold_leases",
        "Leases in this node's ledger",
    ),
    (
        Shape::Gauge,
        "leasehold_outstanding_units",
        "Units in leases, neither reported spent nor handed back",
    ),
    (
        Shape::Gauge,
        "leasehold_streams",
        "Gateways connected to this node",
    ),
    (
        Shape::Seconds,
        "leasehold_commit_seconds",
        "From proposing an entry until it was applied",
    ),
    (
        Shape::Seconds,
        "leasehold_wal_sync_seconds",
        "One durable write of the log",
    ),
    (
        Shape::Items,
        "leasehold_entry_reports",
        "Key reports that one entry carried",
    ),
    (
        Shape::Counter,
        "leasehold_entries_total",
        "Entries that this node proposed",
    ),
    (
        Shape::Counter,
        "leasehold_reports_total",
        "Key reports that this node put into entries",
    ),
    (
        Shape::Counter,
        "leasehold_refusals_total",
        "Grants and spends that were refused, by code",
    ),
    (
        Shape::Counter,
        "leasehold_refused_locally_total",
        "Requests that gateways refused by themselves",
    ),
    (
        Shape::Counter,
        "leasehold_degraded_total",
        "Requests that gateways allowed by their failure mode",
    ),
    (
        Shape::Counter,
        "leasehold_shadowed_total",
        "Requests that a policy would have refused and only counted, as gateways and central spends tell",
    ),
    (
        Shape::Counter,
        "leasehold_recalls_total",
        "Recalls sent to gateways",
    ),
    (
        Shape::Counter,
        "leasehold_streams_dropped_total",
        "Streams closed because their gateway did not read",
    ),
    (
        Shape::Counter,
        "leasehold_http_requests_total",
        "Requests to the HTTP API, by status class",
    ),
    (
        Shape::Counter,
        "leasehold_http_forwarded_total",
        "Requests that this node forwarded to the leader",
    ),
    (
        Shape::Gauge,
        "leasehold_identities",
        "Identities that the identities file names",
    ),
    (
        Shape::Gauge,
        "leasehold_identities_kept",
        "1 while a changed identities file is not taken, because something is wrong with it",
    ),
    (
        Shape::Counter,
        "leasehold_unauthenticated_total",
        "Requests and streams of nobody known, by what was wrong with the proof",
    ),
    (
        Shape::Counter,
        "leasehold_unauthenticated_slowed_total",
        "Of these, those whose answer was slowed because their source kept failing",
    ),
    (
        Shape::Counter,
        "leasehold_forbidden_total",
        "Requests and streams of somebody known whose role does not allow them",
    ),
];

fn describe() {
    for (shape, name, help) in METRICS {
        match shape {
            Shape::Gauge => describe_gauge!(name, help),
            Shape::Counter => describe_counter!(name, help),
            Shape::Seconds => describe_histogram!(name, Unit::Seconds, help),
            Shape::Items => describe_histogram!(name, Unit::Count, help),
        }
    }
}

/// What Prometheus fetches.
#[utoipa::path(get, path = "/metrics", tag = "health", operation_id = "get_metrics",
    responses((status = 200, description = "Prometheus' text format", content_type = "text/plain", body = String)))]
pub(super) async fn scrape(State(admin): State<Admin>) -> Response {
    let status = admin.node.replica().local_status();
    let totals = admin.node.local(|ledger| ledger.totals());
    let set = |name: &'static str, value: u64| {
        #[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
        gauge!(name).set(value as f64);
    };
    set(
        "leasehold_leader",
        u64::from(status.leader == Some(status.node_id)),
    );
    set("leasehold_leader_known", u64::from(status.leader.is_some()));
    set("leasehold_term", status.term);
    set("leasehold_log_last_index", status.last_log.unwrap_or(0));
    set(
        "leasehold_log_committed_index",
        status.committed.unwrap_or(0),
    );
    set("leasehold_log_applied_index", status.applied.unwrap_or(0));
    set("leasehold_members", status.members.len() as u64);
    set("leasehold_accounts", totals.accounts);
    set("leasehold_sessions", totals.sessions);
    set("leasehold_leases", totals.leases);
    set("leasehold_outstanding_units", totals.outstanding);
    let clock = admin.node.replica().wall_clock();
    set("leasehold_wall_clock_far", u64::from(clock.is_far));
    #[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
    gauge!("leasehold_wall_clock_behind_seconds").set(clock.others_ahead_us as f64 / 1e6);
    let text = admin.metrics.0.render();
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
