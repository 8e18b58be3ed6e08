//! The API's own description. The routes come from the handlers' annotations;
//! here is only what they share.

use axum::{Json, Router, routing::get};
use utoipa::{
    OpenApi,
    openapi::{Content, OpenApi as Description, RefOr, Response, schema::Ref},
};

use super::{Admin, corrections, problem::ProblemBody};

#[derive(OpenApi)]
#[openapi(
    // Paths that end in what is done; the router sees a wildcard.
    paths(corrections::reset, corrections::adjust, corrections::list),
    info(
        title = "Leasehold admin API",
        description = "Policies, budgets, accounts, central spends, sessions and the cluster itself. \
                       Every error is application/problem+json with a stable `code`. Any node \
                       answers: followers forward to the leader. Reads are linearizable, except \
                       of `/v1/replica`, which says what the answering node itself has applied.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(ProblemBody)),
    tags(
        (name = "policies", description = "Rules, by name"),
        (name = "budgets", description = "Which keys follow which policy"),
        (name = "accounts", description = "The books of one key"),
        (name = "spend", description = "Spends decided by the log itself"),
        (name = "sessions", description = "Gateways that hold leases"),
        (name = "periods", description = "Which period it is, by each calendar"),
        (name = "cluster", description = "Members, leadership, settings and backups"),
        (name = "replica", description = "What the answering node itself has applied"),
        (name = "health", description = "For probes and scrapers; each node answers for itself"),
    ),
)]
struct Base;

/// The description without any path.
pub(super) fn base() -> Description {
    Base::openapi()
}

/// axum's `{*rest}` is `{rest}` here, and every operation may answer a problem.
pub(super) fn finish(description: &mut Description) {
    let paths = std::mem::take(&mut description.paths.paths);
    for (path, mut item) in paths {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.delete,
        ];
        for operation in operations.into_iter().flatten() {
            let mut problem = Response::new("A problem; `code` says which");
            problem.content.insert(
                "application/problem+json".to_owned(),
                RefOr::T(Content::new(Some(RefOr::Ref(Ref::from_schema_name(
                    "ProblemBody",
                ))))),
            );
            operation
                .responses
                .responses
                .insert("default".to_owned(), RefOr::T(problem));
        }
        description
            .paths
            .paths
            .insert(path.replace("{*", "{"), item);
    }
}

pub(super) fn route(description: Description) -> Router<Admin> {
    Router::new().route(
        "/openapi.json",
        get(move || std::future::ready(Json(description.clone()))),
    )
}
