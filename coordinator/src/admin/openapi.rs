//! The API's own description. The routes come from the handlers' annotations;
//! here is only what they share.

use axum::{Router, body::Bytes, http::header, routing::get};
use utoipa::{
    OpenApi,
    openapi::{
        Content, OpenApi as Description, RefOr, Response,
        schema::Ref,
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
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

/// What strangers are answered, too.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];
/// How the scheme is called.
const TOKEN: &str = "token";

/// axum's `{*rest}` is `{rest}` here, and every operation may answer a problem.
pub(super) fn finish(description: &mut Description) {
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "A token of `leasehold token create`; needed where the node has `[auth]`. A client certificate \
             whose name is an identity does as well.",
        ))
        .build();
    description
        .components
        .get_or_insert_default()
        .add_security_scheme(TOKEN, SecurityScheme::Http(scheme));
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
                .insert("default".to_owned(), RefOr::T(problem.clone()));
            if OPEN.contains(&path.as_str()) {
                continue;
            }
            let any_role: [&str; 0] = [];
            operation.security = Some(vec![SecurityRequirement::new(TOKEN, any_role)]);
            for (status, when) in [
                (
                    "401",
                    "No token, or none that is known and valid (where the node has `[auth]`)",
                ),
                ("403", "The identity's role does not allow it"),
            ] {
                problem.description = when.to_owned();
                let responses = &mut operation.responses.responses;
                responses.insert(status.to_owned(), RefOr::T(problem.clone()));
            }
        }
        description
            .paths
            .paths
            .insert(path.replace("{*", "{"), item);
    }
}

pub(super) fn route(description: &Description) -> Router<Admin> {
    // Written once: whoever asks for it a thousand times costs no more than the asking.
    let text = Bytes::from(serde_json::to_vec(description).unwrap_or_default());
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Router::new().route(
        "/openapi.json",
        get(move || std::future::ready((kind, text.clone()))),
    )
}
