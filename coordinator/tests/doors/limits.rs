//! What those may take who are in, and what whoever takes more is told.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use tokio::{io::AsyncWriteExt, time::timeout};

use crate::{alone, dial, request, status, told};

const WAIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_head_or_a_path_that_is_too_long_is_refused_and_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let node = alone(folder.path(), "[limits]\nurl_bytes_max = 2000\n").await;
    let addr = node.admin_addr();
    let long = format!("/v1/accounts/{}", "x".repeat(3_000));
    let answer = told(dial(addr).await, &request("GET", &long, "")).await;
    assert_eq!(status(&answer), "414", "{answer}");
    assert!(answer.contains("\"code\":\"url_too_long\""), "{answer}");

    let head = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let answer = told(dial(addr).await, head.as_bytes()).await;
    // It may have been closed in the middle, without a word that arrives.
    assert!(answer.is_empty() || status(&answer) == "431", "{answer}");
    let head = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
        "x".repeat(17_000)
    );
    let answer = told(dial(addr).await, head.as_bytes()).await;
    assert_eq!(status(&answer), "431", "{answer}");

    for port in [addr, node.node().replica().peer_addr()] {
        let junk = vec![0xa5; 1_000_000];
        let closed = timeout(WAIT, told(dial(port).await, &junk)).await;
        assert!(closed.is_ok(), "junk on {port} is listened to");
    }
    let answer = told(dial(addr).await, &request("GET", "/healthz", "")).await;
    assert_eq!(status(&answer), "200");
    node.shutdown().await;
}

#[tokio::test]
async fn so_many_requests_are_in_flight_and_one_more_is_told_so_but_not_a_probe() {
    let folder = tempfile::tempdir().unwrap();
    let limits = "[limits]\nrequests_max = 2\nbody_ms = 3000\n";
    let node = alone(folder.path(), limits).await;
    let addr = node.admin_addr();
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = dial(addr).await;
        let head = "PUT /v1/policies/p HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.unwrap();
        held.push(stream);
    }
    let get = request("GET", "/v1/policies", "");
    let refused = async {
        loop {
            let answer = told(dial(addr).await, &get).await;
            if status(&answer) != "200" {
                return answer;
            }
        }
    };
    let answer = timeout(WAIT, refused).await.unwrap();
    assert_eq!(status(&answer), "503", "{answer}");
    assert!(answer.contains("limits.requests_max"), "{answer}");
    assert!(answer.contains("\"code\":\"overloaded\""), "{answer}");
    let grpc = "POST /leasehold.v1.Leasehold/Session HTTP/1.1\r\nhost: x\r\ncontent-type: \
                application/grpc\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let answer = told(dial(addr).await, grpc.as_bytes()).await;
    assert!(answer.contains("grpc-status: 8\r\n"), "{answer}");
    assert!(answer.contains("overloaded"), "{answer}");
    let answer = told(dial(addr).await, &request("GET", "/healthz", "")).await;
    assert_eq!(status(&answer), "200");

    // Their bodies do not come: they are told so, and their places are free again.
    for stream in held {
        let answer = timeout(WAIT, told(stream, b"")).await.unwrap();
        assert_eq!(status(&answer), "408", "{answer}");
        assert!(answer.contains("\"code\":\"body_too_slow\""), "{answer}");
    }
    let answer = told(dial(addr).await, &get).await;
    assert_eq!(status(&answer), "200", "{answer}");
    node.shutdown().await;
}

#[tokio::test]
async fn connections_that_are_too_many_too_slow_or_idle_are_closed() {
    let folder = tempfile::tempdir().unwrap();
    let limits = "[limits]\nconnections_per_address_max = 3\nheader_ms = 500\nidle_ms = 500\n";
    let node = alone(folder.path(), limits).await;
    let addr = node.admin_addr();
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut stream = dial(addr).await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: ").await.unwrap();
        slow.push(stream);
    }
    let answer = told(dial(addr).await, &request("GET", "/healthz", "")).await;
    assert!(
        answer.starts_with("HTTP/1.1 503") || answer.is_empty(),
        "{answer}"
    );
    for stream in slow {
        timeout(WAIT, told(stream, b"")).await.unwrap();
    }
    let stays = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let asked = async {
        loop {
            let answer = told(dial(addr).await, stays).await;
            if status(&answer) == "200" {
                return;
            }
        }
    };
    // It is closed after its answer, although it did not ask for that.
    timeout(WAIT, asked).await.unwrap();
    let metrics = told(dial(addr).await, &request("GET", "/metrics", "")).await;
    for limit in ["connections_per_address_max", "header_ms"] {
        let counted = format!("leasehold_refused_total{{limit=\"{limit}\"}}");
        assert!(metrics.contains(&counted), "{metrics}");
    }
    node.shutdown().await;
}

#[tokio::test]
async fn the_data_folder_is_its_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data1");
    let mode = || std::fs::metadata(&data).unwrap().permissions().mode() & 0o777;
    alone(folder.path(), "").await.shutdown().await;
    assert_eq!(mode(), 0o700);
    // As systemd makes it, and as an older version did.
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();
    alone(folder.path(), "").await.shutdown().await;
    assert_eq!(mode(), 0o700);
}
