#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use axum::response::IntoResponse;
use http_body_util::BodyExt;

use super::*;

async fn shown(problem: Problem) -> String {
    let response = problem.into_response();
    let status = response.status();
    let mut headers: Vec<String> = response
        .headers()
        .iter()
        .map(|(n, v)| format!("{n}: {}", v.to_str().unwrap()))
        .collect();
    headers.retain(|line| !line.starts_with("content-length"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    format!(
        "{status}\n{}\n{}",
        headers.join("\n"),
        String::from_utf8(body.to_vec()).unwrap()
    )
}

#[tokio::test]
async fn every_kind_of_problem_has_a_status_a_code_and_a_title() {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        all.push(shown(Problem::new(kind, "…")).await);
    }
    insta::assert_snapshot!(all.join("\n\n"));
}

#[test]
fn the_description_lists_every_path_and_method() {
    let description = described().description;
    let mut lines = Vec::new();
    for (path, item) in &description.paths.paths {
        for (method, operation) in [
            ("GET", &item.get),
            ("PUT", &item.put),
            ("POST", &item.post),
            ("DELETE", &item.delete),
        ] {
            if let Some(operation) = operation {
                lines.push(format!(
                    "{method} {path} = {}",
                    operation.operation_id.as_deref().unwrap()
                ));
            }
        }
    }
    insta::assert_snapshot!(lines.join("\n"));
}
