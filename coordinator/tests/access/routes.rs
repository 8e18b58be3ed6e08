//! Every route and every gRPC method, as every role and as everybody who is none: found by
//! the API's own description, so that a new one without a rule fails here.

use leasehold_proto::FILE_DESCRIPTOR_SET;
use prost::Message as _;
use prost_types::FileDescriptorSet;

use crate::ground::{Guarded, Reply, Token, identity};

/// Who may, by the name of the operation: o, everybody; v, viewers and above; p, operators
/// and above; a, administrators; s, who may spend.
const WHO: &[(&str, char)] = &[
    ("get_health", 'o'),
    ("get_readiness", 'o'),
    ("get_metrics", 'v'),
    ("list_policies", 'v'),
    ("get_policy", 'v'),
    ("list_policy_versions", 'v'),
    ("list_budgets", 'v'),
    ("get_budget", 'v'),
    ("list_budget_versions", 'v'),
    ("list_accounts", 'v'),
    ("get_account", 'v'),
    ("list_corrections", 'v'),
    ("explain", 'v'),
    ("peek", 'v'),
    ("list_sessions", 'v'),
    ("get_session", 'v'),
    ("get_settings", 'v'),
    ("list_periods", 'v'),
    ("get_cluster", 'v'),
    ("get_replica", 'v'),
    ("list_replica_accounts", 'v'),
    ("put_policy", 'p'),
    ("delete_policy", 'p'),
    ("put_budget", 'p'),
    ("put_budgets", 'p'),
    ("delete_budget", 'p'),
    ("reset_account", 'p'),
    ("adjust_account", 'p'),
    ("end_session", 'a'),
    ("put_settings", 'a'),
    ("correct_period", 'a'),
    ("add_member", 'a'),
    ("remove_member", 'a'),
    ("transfer_leader", 'a'),
    ("get_backup", 'a'),
    ("spend", 's'),
];

/// The roles that each letter means.
fn roles(letter: char) -> &'static [&'static str] {
    match letter {
        'o' => &["gateway", "viewer", "operator", "admin"],
        'v' => &["viewer", "operator", "admin"],
        'p' => &["operator", "admin"],
        'a' => &["admin"],
        's' => &["gateway", "operator", "admin"],
        other => panic!("{other}"),
    }
}

struct Crowd {
    node: Guarded,
    /// A name for each, and the headers that they send.
    known: Vec<(&'static str, String)>,
    strangers: Vec<(&'static str, Vec<String>)>,
}

async fn crowd() -> Crowd {
    let [gateway, viewer, operator, expired, unknown] = [(); 5].map(|()| Token::new());
    let others = [
        identity("edge", "gateway", "keys = [\"acme/*\"]", &gateway),
        identity("vera", "viewer", "", &viewer),
        identity("otto", "operator", "", &operator),
        expired.entry(Some("2020-01-01T00:00:00Z")),
        // Known by a certificate, which nobody here shows.
        "[[identity]]\nname = \"cora\"\nrole = \"admin\"\ncertificate = true\n".to_owned(),
    ]
    .concat();
    let node = Guarded::start(&others).await;
    let known = vec![
        ("gateway", gateway.header()),
        ("viewer", viewer.header()),
        ("operator", operator.header()),
        ("admin", node.admin.header()),
    ];
    let forged = Token {
        text: format!("lh_{}{}", node.admin.id, &unknown.text[15..]),
        ..unknown.clone()
    };
    let admin = &node.admin.text;
    let strangers = vec![
        ("nothing", Vec::new()),
        ("unknown", vec![unknown.header()]),
        ("the id of a known one", vec![forged.header()]),
        ("expired", vec![expired.header()]),
        (
            "half",
            vec![format!("authorization: Bearer {}", &admin[..30])],
        ),
        ("no scheme", vec![format!("authorization: {admin}")]),
        (
            "another scheme",
            vec![format!("authorization: Basic {admin}")],
        ),
        ("empty", vec!["authorization: Bearer ".to_owned()]),
        (
            "two",
            vec![
                node.admin.header(),
                format!("authorization: Bearer {}", unknown.text),
            ],
        ),
        (
            "on behalf of somebody",
            vec!["leasehold-on-behalf-of: cora".to_owned()],
        ),
    ];
    Crowd {
        node,
        known,
        strangers,
    }
}

/// Method, path and name of everything that the description lists.
async fn operations(node: &Guarded) -> Vec<(String, String, String)> {
    let description = node.ask("GET", "/openapi.json", &[], "").await.json();
    let mut found = Vec::new();
    for (path, item) in description["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap().to_owned();
            let mut asked = path.clone();
            for (part, value) in [
                ("{key}", "acme/orders"),
                ("{pattern}", "acme/*"),
                ("{name}", "nothing"),
                ("{id}", "00000000000000000000000000000000"),
                ("{node_id}", "99"),
            ] {
                asked = asked.replace(part, value);
            }
            assert!(!asked.contains('{'), "{asked}");
            found.push((method.to_uppercase(), asked, name));
        }
    }
    assert!(found.len() >= WHO.len());
    found
}

/// A body that means something where it is taken, and harms nothing.
fn body_of(operation: &str) -> &'static str {
    match operation {
        "spend" => r#"{"key":"acme/orders"}"#,
        "reset_account" => r#"{"reason":"x"}"#,
        _ => "{",
    }
}

fn is_refused(reply: &Reply) -> bool {
    matches!(reply.status, 401 | 403)
}

#[tokio::test]
async fn each_role_may_what_it_may_on_every_route_and_nobody_else_anything() {
    let Crowd {
        node,
        known,
        strangers,
    } = crowd().await;
    let operations = operations(&node).await;
    for (method, path, name) in &operations {
        let Some((_, letter)) = WHO.iter().find(|(known, _)| known == name) else {
            panic!("{method} {path} ({name}) is new: who may ask it?");
        };
        for (role, header) in &known {
            let reply = node.ask(method, path, &[header], body_of(name)).await;
            if roles(*letter).contains(role) {
                assert!(
                    !is_refused(&reply),
                    "{role}: {method} {path}: {}",
                    reply.body
                );
            } else {
                assert_eq!(
                    (reply.status, &*reply.code()),
                    (403, "forbidden"),
                    "{role}: {method} {path}"
                );
            }
        }
        for (who, headers) in &strangers {
            let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
            // However often they come: the answers of some are slowed, and are the same.
            if *letter != 'o' && !headers.is_empty() && name != "get_policy" && name != "spend" {
                continue;
            }
            let reply = node.ask(method, path, &headers, body_of(name)).await;
            if *letter == 'o' {
                assert_eq!(reply.status, 200, "{who}: {method} {path}: {}", reply.body);
                continue;
            }
            assert_eq!(
                (reply.status, &*reply.code()),
                (401, "unauthenticated"),
                "{who}: {method} {path}"
            );
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"), "{who}");
            assert_eq!(
                reply.header("content-type"),
                Some("application/problem+json")
            );
        }
    }
    let unlisted: Vec<_> = WHO
        .iter()
        .filter(|(known, _)| !operations.iter().any(|(.., name)| name == known))
        .collect();
    assert!(unlisted.is_empty(), "not offered any more: {unlisted:?}");
}

/// What a gRPC answer without a body says.
fn grpc_status(reply: &Reply) -> Option<&str> {
    reply.header("grpc-status")
}

#[tokio::test]
async fn grpc_methods_are_for_gateways_alone_and_those_of_coordinators_for_nobody() {
    let Crowd {
        node,
        known,
        strangers,
    } = crowd().await;
    let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut sessions = 0;
    for file in &files.file {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                let is_session = path == "/leasehold.v1.Leasehold/Session";
                sessions += u32::from(is_session);
                for (role, header) in &known {
                    let headers = ["content-type: application/grpc", header];
                    let reply = node.ask("POST", &path, &headers, "").await;
                    let status = grpc_status(&reply);
                    match (is_session, *role) {
                        // Let in; that it says nothing is the service's to judge.
                        (true, "gateway") => {
                            assert!(!matches!(status, Some("7" | "16")), "{status:?}");
                        }
                        (true, _) => {
                            assert_eq!(status, Some("7"), "{role}: {path}");
                            assert_eq!(reply.header("leasehold-code"), Some("forbidden"));
                        }
                        (false, _) => assert_eq!(reply.status, 404, "{role}: {path}"),
                    }
                }
                for (who, headers) in &strangers {
                    if !is_session && *who != "nothing" {
                        continue;
                    }
                    let mut all = vec!["content-type: application/grpc"];
                    all.extend(headers.iter().map(String::as_str));
                    let reply = node.ask("POST", &path, &all, "").await;
                    assert_eq!(grpc_status(&reply), Some("16"), "{who}: {path}");
                    assert_eq!(reply.header("leasehold-code"), Some("unauthenticated"));
                }
            }
        }
    }
    assert_eq!(sessions, 1);
}

#[tokio::test]
async fn what_nobody_serves_is_not_found_by_whom_is_known_and_refused_to_strangers() {
    let Crowd { node, known, .. } = crowd().await;
    for path in ["/v1/nothing", "/", "/v1/policies/a/b/c"] {
        assert_eq!(node.ask("GET", path, &[], "").await.status, 401, "{path}");
        for (role, header) in &known {
            let reply = node.ask("GET", path, &[header], "").await;
            assert_eq!(reply.status, 404, "{role}: {path}");
        }
    }
    for (role, header) in &known {
        let reply = node.ask("PATCH", "/v1/settings", &[header], "").await;
        let expected = if *role == "gateway" { 403 } else { 405 };
        assert_eq!(reply.status, expected, "{role}");
        let head = node.ask("HEAD", "/v1/settings", &[header], "").await;
        let expected = if *role == "gateway" { 403 } else { 200 };
        assert_eq!(head.status, expected, "{role}");
    }
}
