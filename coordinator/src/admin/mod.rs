//! The HTTP API for operators: JSON over the replicated node, described at
//! `/openapi.json`. Any node answers; a follower forwards to the leader, and what
//! is read is linearizable, except of `/v1/replica`, which says what the node itself
//! has applied. Knows nothing of consensus, storage or sockets.

mod accounts;
mod backup;
mod budgets;
mod bulk;
mod cluster;
mod corrections;
mod edit;
mod explain;
mod forward;
mod header;
mod health;
mod json;
pub mod metrics;
mod openapi;
mod path;
mod periods;
mod policies;
mod policy_body;
mod problem;
mod replica;
mod sessions;
mod settings;
mod spend;
mod versions;

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, FromRef},
    http::Uri,
    middleware,
    response::{IntoResponse, Response},
};
use leasehold_ledger::{entry::Command, outcome::CommandOutcome};
use tokio::sync::Mutex;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{access::Access, node::Node};
pub(crate) use corrections::BY;
pub(crate) use forward::BodyWithin;
use forward::Forwarder;
use metrics::Metrics;
pub(crate) use policies::normal_policy;
pub(crate) use problem::{Kind, Problem};

/// The most bytes that a request's body may have.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// The most bytes that the body of a request may have which sets many budgets.
pub const BULK_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Reads bytes as each kind of body, as its handler does before it asks anybody, and
/// says how many take them. For fuzzing.
#[doc(hidden)]
#[must_use]
pub fn bodies_that_read(bytes: &[u8]) -> usize {
    let read = [
        policies::reads(bytes),
        budgets::reads(bytes),
        bulk::reads(bytes),
        settings::reads(bytes),
        spend::reads(bytes),
        corrections::reads(bytes),
        cluster::reads(bytes),
        periods::reads(bytes),
    ];
    read.into_iter().filter(|read| *read).count()
}

/// What every handler needs.
#[derive(Clone)]
struct Admin {
    node: Node,
    forwarder: Arc<Forwarder>,
    metrics: Metrics,
    access: Access,
    /// Held from reading the settings until they are written back with an edit.
    editing: Arc<Mutex<()>>,
}

impl Admin {
    /// Submits a command and turns the ledger's refusal into a problem.
    async fn submit(&self, command: Command) -> Result<CommandOutcome, Problem> {
        match self.node.submit(command).await? {
            CommandOutcome::Refused(refusal) => Err(refusal.into()),
            outcome => Ok(outcome),
        }
    }
}

impl FromRef<Admin> for Access {
    fn from_ref(admin: &Admin) -> Self {
        admin.access.clone()
    }
}

/// The whole API, for everybody.
pub fn router(node: Node, metrics: Metrics) -> Router {
    router_behind(&Access::for_everybody(), node, metrics)
}

/// The whole API, for whom `access` lets in; it still has to guard these routes.
pub fn router_behind(access: &Access, node: Node, metrics: Metrics) -> Router {
    let admin = Admin {
        forwarder: Arc::new(Forwarder::new(node.config().leader_tls.clone())),
        node,
        metrics,
        access: access.clone(),
        editing: Arc::default(),
    };
    let Described {
        forwarded,
        local,
        description,
    } = described();
    let resources = forwarded
        .route_layer(middleware::from_fn_with_state(
            admin.clone(),
            forward::to_leader,
        ))
        // Bounded there, by what is asked.
        .layer(DefaultBodyLimit::disable())
        .merge(local)
        .route_layer(middleware::from_fn(forward::refuse_other_origins))
        .route_layer(middleware::from_fn(forward::count));
    resources
        .merge(Router::from(probe_routes()))
        .merge(openapi::route(&description))
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(admin)
}

/// Only what probes and scrapers ask, for a listener that has no API.
pub fn probes(access: &Access, node: Node, metrics: Metrics) -> Router {
    let admin = Admin {
        forwarder: Arc::new(Forwarder::new(node.config().leader_tls.clone())),
        node,
        metrics,
        access: access.clone(),
        editing: Arc::default(),
    };
    Router::from(probe_routes())
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(admin)
}

fn probe_routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(metrics::scrape))
}

/// The answer to everything while a node has not taken part yet.
#[must_use]
pub fn starting(path: &str) -> Response {
    if path == "/healthz" {
        return health::alive_while_starting();
    }
    Problem::new(
        Kind::Starting,
        "the node waits for its cluster's other members; nothing was changed",
    )
    .into_response()
}

/// What is refused before anybody looks at what is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TooMuch {
    /// There are as many requests in flight as there may be.
    Requests,
    /// A path with its query is longer than it may be.
    Url {
        /// The most bytes.
        bytes_max: usize,
    },
}

impl TooMuch {
    const fn kind(self) -> Kind {
        match self {
            Self::Requests => Kind::Overloaded,
            Self::Url { .. } => Kind::UrlTooLong,
        }
    }

    /// The stable code.
    pub(crate) const fn code(self) -> &'static str {
        self.kind().code()
    }

    /// For people.
    pub(crate) fn detail(self) -> String {
        match self {
            Self::Requests => "as many requests are in flight as limits.requests_max allows; \
                               nothing was changed"
                .to_owned(),
            Self::Url { bytes_max } => {
                format!("a path with its query has at most {bytes_max} bytes here")
            }
        }
    }
}

impl IntoResponse for TooMuch {
    fn into_response(self) -> Response {
        Problem::new(self.kind(), self.detail()).into_response()
    }
}

/// Routes and their description.
struct Described {
    /// Answered by the leader.
    forwarded: Router<Admin>,
    /// Answered by each node for itself.
    local: Router<Admin>,
    description: utoipa::openapi::OpenApi,
}

/// Routes and their description, from one list each.
fn described() -> Described {
    let (forwarded, mut description) = OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(policies::put, policies::get, policies::delete))
        .routes(routes!(policies::list))
        .routes(routes!(budgets::put, budgets::get, budgets::delete))
        .routes(routes!(budgets::list, bulk::put))
        .routes(routes!(versions::of_policy))
        .routes(routes!(versions::of_budget))
        .routes(routes!(accounts::get))
        .route(
            "/v1/accounts/{*key}",
            axum::routing::post(corrections::post),
        )
        .routes(routes!(accounts::list))
        .routes(routes!(spend::spend))
        .routes(routes!(explain::explain))
        .routes(routes!(explain::peek))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::get, sessions::end))
        .routes(routes!(settings::get, settings::put))
        .routes(routes!(periods::list))
        .routes(routes!(periods::correct))
        .routes(routes!(cluster::get))
        .routes(routes!(cluster::add_member))
        .routes(routes!(cluster::remove_member))
        .routes(routes!(cluster::transfer_leader))
        .split_for_parts();
    let (local, of_local) = OpenApiRouter::new()
        .routes(routes!(backup::get))
        .routes(routes!(replica::get))
        .routes(routes!(replica::accounts))
        .split_for_parts();
    description.merge(of_local);
    description.merge(probe_routes().into_openapi());
    openapi::finish(&mut description);
    Described {
        forwarded,
        local,
        description,
    }
}

async fn no_route(uri: Uri) -> Problem {
    Problem::new(
        Kind::NotFound,
        format!(
            "nothing is served at {}; /openapi.json lists what is",
            uri.path()
        ),
    )
}

async fn wrong_method(method: axum::http::Method, uri: Uri) -> Problem {
    Problem::new(
        Kind::MethodNotAllowed,
        format!(
            "{method} is not offered at {}; /openapi.json lists what is",
            uri.path()
        ),
    )
}

#[cfg(test)]
mod tests;
