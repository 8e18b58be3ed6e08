//! `/healthz` and `/readyz`: answered by each node for itself, never forwarded.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    Admin,
    problem::{Kind, Problem},
};

#[derive(Serialize)]
struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
}

/// The process answers: restarting it would not help.
pub(super) async fn live(State(admin): State<Admin>) -> Response {
    Json(Health {
        status: "alive",
        node_id: Some(admin.node.config().replica.node_id),
        leader: None,
    })
    .into_response()
}

/// The same, before there is a node.
pub(super) fn alive_while_starting() -> Response {
    Json(Health {
        status: "starting",
        node_id: None,
        leader: None,
    })
    .into_response()
}

/// Requests may be sent here: a leader is known, and this node has applied what
/// it knows to be committed.
pub(super) async fn ready(State(admin): State<Admin>) -> Result<Response, Problem> {
    let status = admin.node.status().await;
    let Some(leader) = status.leader else {
        return Err(Problem::no_leader());
    };
    if status.applied < status.committed {
        return Err(Problem::new(
            Kind::NotCaughtUp,
            format!(
                "this node has applied the log up to {}, and {} is committed",
                status.applied.unwrap_or(0),
                status.committed.unwrap_or(0)
            ),
        ));
    }
    Ok(Json(Health {
        status: "ready",
        node_id: Some(status.node_id),
        leader: Some(leader),
    })
    .into_response())
}
