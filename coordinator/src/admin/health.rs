//! `/healthz` and `/readyz`: answered by each node for itself, never forwarded.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::Extensions,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::{
    Admin,
    problem::{Kind, Problem},
};
use crate::access::identity::Takes;

/// What a node says of itself.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
    /// What somebody should look at although requests may be sent here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Warning>,
}

impl Health {
    /// A status, and nothing else.
    const fn of(status: &'static str) -> Self {
        Self {
            status,
            node_id: None,
            leader: None,
            warnings: Vec::new(),
        }
    }
}

/// Something to look at.
#[derive(Serialize, ToSchema)]
pub(super) struct Warning {
    /// Stable; deploy/runbook.md says what to do.
    code: &'static str,
    /// For people.
    detail: String,
}

/// The code of a wall clock that is far from the others'.
const WALL_CLOCK_FAR: &str = "wall_clock_far";
/// The code of a cluster that should have been stopped before this one was restored.
const OLD_CLUSTER_RUNS: &str = "old_cluster_runs";

fn warnings(admin: &Admin) -> Vec<Warning> {
    let replica = admin.node.replica();
    let clock = replica.wall_clock();
    let far = clock.is_far.then(|| Warning {
        code: WALL_CLOCK_FAR,
        detail: format!(
            "the other members' wall clocks are {} ms ahead of this node's, and wall_clock_tolerance_ms is {}: set its \
             clock; no quota depends on it",
            clock.others_ahead_us / 1_000,
            clock.tolerance_us / 1_000
        ),
    });
    let old = replica.old_node().map(|node_id| Warning {
        code: OLD_CLUSTER_RUNS,
        detail: format!(
            "node {node_id} of the cluster that this one was restored from still runs: stop it; what both clusters admit adds up"
        ),
    });
    let (now_us, until_us) =
        replica.with_ledger(|ledger| (ledger.now_us(), ledger.inherited_until_us()));
    let restored = (now_us < until_us).then(|| Warning {
        code: "after_restore",
        detail: format!(
            "this cluster was restored from a backup: nothing is free for {} s more, then buckets begin to fill, and sliding windows \
             are free one window later",
            (until_us - now_us).div_ceil(1_000_000)
        ),
    });
    let kept = admin.access.problem().map(|why| Warning {
        code: "identities_kept",
        detail: format!(
            "the changed identities file is not taken, and the one before stays in force: {why}"
        ),
    });
    far.into_iter()
        .chain(old)
        .chain(restored)
        .chain(kept)
        .collect()
}

/// The process answers: restarting it would not help.
#[utoipa::path(get, path = "/healthz", tag = "health", operation_id = "get_health",
    responses((status = 200, description = "The process answers", body = Health)))]
pub(super) async fn live(State(admin): State<Admin>) -> Response {
    Json(Health {
        status: "alive",
        node_id: Some(admin.node.config().replica.node_id),
        leader: None,
        warnings: Vec::new(),
    })
    .into_response()
}

/// The same, before there is a node.
pub(super) fn alive_while_starting() -> Response {
    Json(Health::of("starting")).into_response()
}

/// What is committed now has this long to be applied: under load something always
/// is on its way.
const CATCH_UP_WITHIN: Duration = Duration::from_millis(500);

/// Requests may be sent here: a leader is known, and this node has applied what it
/// knew to be committed when it was asked. Whoever may not read is told the status alone.
#[utoipa::path(get, path = "/readyz", tag = "health", operation_id = "get_readiness",
    responses((status = 200, description = "Requests may be sent here", body = Health)))]
pub(super) async fn ready(
    State(admin): State<Admin>,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let visitor = admin.access.visitor(&extensions);
    if visitor.is_some_and(|visitor| visitor.may(Takes::Reading)) {
        return readiness(&admin).await;
    }
    Ok(match readiness(&admin).await {
        Ok(_) => Json(Health::of("ready")).into_response(),
        Err(problem) => {
            let status = problem.into_response().status();
            (status, Json(Health::of("not_ready"))).into_response()
        }
    })
}

/// What whoever may read is told.
async fn readiness(admin: &Admin) -> Result<Response, Problem> {
    let replica = admin.node.replica();
    let status = replica.local_status();
    let Some(leader) = status.leader.filter(|_| admin.node.is_serving()) else {
        if status.applied.is_none() {
            return Err(Problem::new(
                Kind::NoLeader,
                "this node has not heard of any leader yet: a new one must be added (`leasehold cluster add`), one of the first \
                 waits for the others",
            ));
        }
        return Err(Problem::no_leader());
    };
    let catches_up = replica.applied(status.committed);
    if timeout(CATCH_UP_WITHIN, catches_up).await.is_err() {
        return Err(Problem::new(
            Kind::NotCaughtUp,
            format!(
                "this node has applied the log up to {}, and {} is committed",
                replica.local_status().applied.unwrap_or(0),
                status.committed.unwrap_or(0)
            ),
        ));
    }
    Ok(Json(Health {
        status: "ready",
        node_id: Some(status.node_id),
        leader: Some(leader),
        warnings: warnings(admin),
    })
    .into_response())
}
