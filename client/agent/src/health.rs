//! Whether an agent lives, and whether a coordinator can be asked.
//!
//! An agent without a session still answers, by each policy's failure mode, so gateways
//! should look at `/healthz` or gRPC health, which are about the process alone.
//! `/readyz` is for people and for deployments that wait for a first session.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::agent::Agent;

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    session: Session,
    configuration: Configuration,
}

#[derive(Serialize)]
struct Session {
    open: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize)]
struct Configuration {
    /// The file that is there now is in force.
    current: bool,
    /// How long ago it was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_s_ago: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    needs_restart: Vec<&'static str>,
}

/// The process answers.
pub(crate) async fn live() -> &'static str {
    "ok\n"
}

/// 200 while a session is open; says why not otherwise.
pub(crate) async fn ready(State(agent): State<Arc<Agent>>) -> Response {
    let client = agent.decider.client();
    let is_open = client.is_connected();
    let standing = agent.standing();
    let told = Readiness {
        ready: is_open,
        session: Session {
            open: is_open,
            problem: (!is_open).then(|| client.last_error()),
        },
        configuration: Configuration {
            current: standing.problem.is_none(),
            taken_s_ago: standing.since.map(|since| since.elapsed().as_secs()),
            problem: standing.problem,
            needs_restart: standing.needs_restart,
        },
    };
    let status = if is_open {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(told)).into_response()
}
