//! Central spends under an `Idempotency-Key`, by callers that repeat whatever they got no
//! answer to while leaders are killed: each is charged once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold_tests::LocalCluster;
use serde_json::{Value, json};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
const CALLERS: usize = 4;
const SPENDS: usize = 40;
const UNITS: u64 = 3;

/// Spends once; an error when there is no answer, or none that says what became of it.
fn spend(host: &str, name: &str) -> io::Result<Value> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let body = json!({ "key": "acme/orders", "units": UNITS }).to_string();
    write!(
        stream,
        "POST /v1/spend HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nidempotency-key: {name}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| io::Error::other("no answer"))?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other(text));
    }
    Ok(serde_json::from_str(body)?)
}

/// Repeats until it is answered, by whichever node.
fn insist(hosts: &[String], name: &str) -> Value {
    let give_up = Instant::now() + PATIENCE;
    for host in hosts.iter().cycle() {
        let error = match spend(host, name) {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        assert!(
            Instant::now() < give_up,
            "{name} is never admitted: {error}"
        );
        thread::sleep(Duration::from_millis(20));
    }
    unreachable!("there are nodes")
}

fn central(cluster: &LocalCluster) -> u64 {
    let answer = cluster
        .request("GET", "/v1/accounts/acme/orders", None, PATIENCE)
        .unwrap();
    answer.json()["lifetime"]["central"].as_u64().unwrap()
}

#[test]
fn a_spend_that_is_repeated_across_killed_leaders_is_charged_once() {
    let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), 3, "").unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    let policy = json!({"policy": {"kind": "total", "limit": 1_000_000}});
    let put = cluster.request("PUT", "/v1/budgets/acme/*", Some(&policy), PATIENCE);
    assert_eq!(put.unwrap().status, 200);
    let hosts: Vec<String> = cluster
        .endpoints()
        .iter()
        .map(|url| {
            url.trim_start_matches("http://")
                .trim_end_matches('/')
                .to_owned()
        })
        .collect();

    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (hosts, done) = (&hosts, &done);
            scope.spawn(move || {
                for number in 0..SPENDS {
                    let name = format!("caller-{caller}-request-{number}");
                    let answer = insist(hosts, &name);
                    assert_eq!(answer["admitted"], true, "{answer}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for part in 1..=2 {
            let give_up = Instant::now() + PATIENCE;
            while done.load(Ordering::Relaxed) < CALLERS * SPENDS * part / 3 {
                assert!(Instant::now() < give_up, "the callers stand still");
                thread::sleep(Duration::from_millis(5));
            }
            let leader = cluster.wait_leader(PATIENCE).unwrap();
            cluster.kill(leader.node);
            cluster.restart(leader.node).unwrap();
        }
    });

    let charged = u64::try_from(CALLERS * SPENDS).unwrap() * UNITS;
    assert_eq!(central(&cluster), charged);
    // Known by those who did not lead then, too.
    for caller in 0..CALLERS {
        for number in 0..SPENDS {
            let answer = insist(&hosts, &format!("caller-{caller}-request-{number}"));
            assert_eq!(answer["repeated"], true, "{answer}");
        }
    }
    assert_eq!(central(&cluster), charged);
}
