//! The one table of what each request takes. Knows routes by their templates and gRPC
//! methods by their names, and nothing of who asks. What is not in it is refused.

use axum::http::Method;

use super::identity::Takes;

/// Method, template of the path (axum's), and what it takes. gRPC methods are asked by POST
/// at their full names.
const RULES: &[(&str, &str, Takes)] = &[
    ("GET", "/healthz", Takes::Nothing),
    ("GET", "/openapi.json", Takes::Nothing),
    // Strangers are told less.
    ("GET", "/readyz", Takes::Nothing),
    ("GET", "/metrics", Takes::Reading),
    ("GET", "/v1/policies", Takes::Reading),
    ("GET", "/v1/policies/{name}", Takes::Reading),
    ("PUT", "/v1/policies/{name}", Takes::Operating),
    ("DELETE", "/v1/policies/{name}", Takes::Operating),
    ("GET", "/v1/policies/{name}/versions", Takes::Reading),
    ("GET", "/v1/budgets", Takes::Reading),
    ("PUT", "/v1/budgets", Takes::Operating),
    ("GET", "/v1/budgets/{*pattern}", Takes::Reading),
    ("PUT", "/v1/budgets/{*pattern}", Takes::Operating),
    ("DELETE", "/v1/budgets/{*pattern}", Takes::Operating),
    ("GET", "/v1/budget-versions/{*pattern}", Takes::Reading),
    ("GET", "/v1/accounts", Takes::Reading),
    // Also a key's corrections, which are the end of its path.
    ("GET", "/v1/accounts/{*key}", Takes::Reading),
    ("POST", "/v1/accounts/{*key}", Takes::Operating),
    ("POST", "/v1/spend", Takes::Spending),
    ("GET", "/v1/explain", Takes::Reading),
    ("GET", "/v1/peek", Takes::Reading),
    ("GET", "/v1/sessions", Takes::Reading),
    ("GET", "/v1/sessions/{id}", Takes::Reading),
    ("DELETE", "/v1/sessions/{id}", Takes::Administering),
    ("GET", "/v1/settings", Takes::Reading),
    ("PUT", "/v1/settings", Takes::Administering),
    ("GET", "/v1/periods", Takes::Reading),
    ("POST", "/v1/periods/correct", Takes::Administering),
    ("GET", "/v1/cluster", Takes::Reading),
    ("POST", "/v1/cluster/members", Takes::Administering),
    (
        "DELETE",
        "/v1/cluster/members/{node_id}",
        Takes::Administering,
    ),
    ("POST", "/v1/cluster/leader", Takes::Administering),
    ("GET", "/v1/replica", Takes::Reading),
    ("GET", "/v1/replica/accounts", Takes::Reading),
    ("GET", "/v1/backup", Takes::Administering),
    ("POST", "/leasehold.v1.Leasehold/Session", Takes::Leasing),
    ("POST", "/leasehold.v1.Peer/", Takes::BeingANode),
];

/// The end of the templates under which gRPC services are mounted.
const ANY_METHOD: &str = "/{*rest}";

/// What a request takes; none: no rule says. `template` is the route that answers it,
/// `path` what was asked.
pub(crate) fn takes(method: &Method, template: &str, path: &str) -> Option<Takes> {
    let asked = if template.ends_with(ANY_METHOD) {
        path
    } else {
        template
    };
    let method = match *method {
        Method::HEAD => "GET",
        ref method => method.as_str(),
    };
    RULES
        .iter()
        .find(|(ruled, route, _)| *ruled == method && (*route == asked || is_within(route, asked)))
        .map(|(_, _, takes)| *takes)
}

/// Whether this gRPC method is one of a whole service that a rule is about.
fn is_within(route: &str, asked: &str) -> bool {
    route.ends_with('/') && asked.starts_with(route)
}

/// Whether a rule lets anybody ask something else of the same route.
pub(crate) fn has_other_methods(template: &str, may: impl Fn(Takes) -> bool) -> bool {
    RULES
        .iter()
        .any(|(_, route, takes)| *route == template && may(*takes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_grpc_method_has_a_rule() {
        let files = FileDescriptorSet::decode(leasehold_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut methods = Vec::new();
        for file in &files.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                let of_it = service.method.iter();
                methods.extend(of_it.map(|method| format!("/{name}/{}", method.name())));
            }
        }
        assert!(methods.len() > 5, "{methods:?}");
        for method in methods {
            let template = format!("{}{ANY_METHOD}", method.rsplit_once('/').unwrap().0);
            let takes = takes(&Method::POST, &template, &method);
            let expected = if method == "/leasehold.v1.Leasehold/Session" {
                Takes::Leasing
            } else {
                Takes::BeingANode
            };
            assert_eq!(takes, Some(expected), "{method}");
        }
    }

    #[test]
    fn what_is_not_in_the_table_takes_what_nobody_has() {
        let get = |template, path| takes(&Method::GET, template, path);
        assert_eq!(get("/v1/budgets", "/v1/budgets"), Some(Takes::Reading));
        assert_eq!(get("/v1/nothing", "/v1/nothing"), None);
        assert_eq!(get("/v1/budgets", "/healthz"), Some(Takes::Reading));
        assert_eq!(takes(&Method::PATCH, "/v1/budgets", "/v1/budgets"), None);
        assert_eq!(
            takes(&Method::HEAD, "/v1/budgets", "/v1/budgets"),
            Some(Takes::Reading)
        );
        let grpc = |path| takes(&Method::POST, "/leasehold.v1.Leasehold/{*rest}", path);
        assert_eq!(
            grpc("/leasehold.v1.Leasehold/Session"),
            Some(Takes::Leasing)
        );
        assert_eq!(grpc("/leasehold.v1.Leasehold/Another"), None);
        assert_eq!(grpc("/leasehold.v1.Leasehold/Session/x"), None);
    }

    #[test]
    fn no_route_has_two_rules() {
        for (place, (method, route, _)) in RULES.iter().enumerate() {
            let again = RULES[place + 1..]
                .iter()
                .find(|(other, path, _)| other == method && path == route);
            assert_eq!(again, None);
        }
    }
}
