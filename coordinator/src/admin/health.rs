//! `/healthz` and `/readyz`: answered by each node for itself, never forwarded.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tokio::time::{sleep, timeout};

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

/// What is committed now has this long to be applied: under load something always
/// is on its way.
const CATCH_UP_WITHIN: Duration = Duration::from_millis(500);

/// Requests may be sent here: a leader is known, and this node has applied what it
/// knew to be committed when it was asked.
pub(super) async fn ready(State(admin): State<Admin>) -> Result<Response, Problem> {
    let replica = admin.node.replica();
    let status = replica.local_status();
    let Some(leader) = status.leader.filter(|_| admin.node.is_serving()) else {
        return Err(Problem::no_leader());
    };
    let catches_up = async {
        while replica.local_status().applied < status.committed {
            sleep(Duration::from_millis(10)).await;
        }
    };
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
    })
    .into_response())
}
