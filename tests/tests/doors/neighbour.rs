//! Somebody on the network between a gateway and its coordinator: what they see, and what
//! becomes of what they change.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use leasehold_client::{Client, Verdict};
use leasehold_tests::{ADMIN, TlsCluster};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
/// A name that occurs nowhere by chance.
const KEY: &str = "acme/orders-of-a-customer";

/// Passes on what is said between who connects and a node.
struct Between {
    addr: SocketAddr,
    /// All that was said, both ways.
    heard: Arc<Mutex<Vec<u8>>>,
    /// Whether a bit of every piece that the caller says is changed.
    meddles: Arc<AtomicBool>,
}

impl Between {
    fn new(node: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let meddles = Arc::new(AtomicBool::new(false));
        let (all, meddling) = (Arc::clone(&heard), Arc::clone(&meddles));
        thread::spawn(move || {
            for caller in listener.incoming() {
                let (Ok(caller), Ok(called)) = (caller, TcpStream::connect(node)) else {
                    return;
                };
                let back = (called.try_clone().unwrap(), caller.try_clone().unwrap());
                let (there, here) = (Arc::clone(&all), Arc::clone(&all));
                let meddling = Arc::clone(&meddling);
                thread::spawn(move || pass(caller, called, &there, &meddling));
                let never = AtomicBool::new(false);
                thread::spawn(move || pass(back.0, back.1, &here, &never));
            }
        });
        Self {
            addr,
            heard,
            meddles,
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, heard: &Mutex<Vec<u8>>, meddles: &AtomicBool) {
    let mut piece = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        heard.lock().unwrap().extend_from_slice(&piece[..length]);
        if meddles.load(Ordering::Relaxed) {
            piece[length - 1] ^= 1;
        }
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    // The other half may be gone already.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn node() -> TlsCluster {
    let cluster = TlsCluster::start(Path::new(LEASEHOLD), 1, "").unwrap();
    let token = cluster.token(ADMIN).unwrap();
    let budget = r#"{"policy": {"kind": "sliding_window", "limit": 1000, "window_ms": 60000}}"#;
    let answer = cluster.ask(0, "PUT", "/v1/budgets/acme/*", Some(&token), budget);
    assert!(answer.as_ref().unwrap().status < 300, "{answer:?}");
    cluster
        .create_token("edge", &["--role", "gateway", "--keys", "acme/*"])
        .unwrap();
    cluster
}

/// A gateway that calls through whoever is between.
fn gateway(cluster: &TlsCluster, between: &Between) -> leasehold_client::Builder {
    Client::builder()
        .endpoint(format!("https://{}", between.addr))
        .holder("edge")
        .ca_file(cluster.secret("node-ca.pem"))
        .token_file(cluster.token_file("edge"))
}

fn contains(heard: &[u8], text: &[u8]) -> bool {
    heard.windows(text.len()).any(|window| window == text)
}

#[tokio::test]
async fn a_neighbour_reads_neither_tokens_nor_keys() {
    let cluster = node();
    let between = Between::new(cluster.nodes[0].client);
    let client = gateway(&cluster, &between).connect().await.unwrap();
    let budget = client.budget(KEY).unwrap();
    for _ in 0..20 {
        assert_eq!(budget.spend(1).await, Verdict::Admitted);
    }
    client.close().await;
    let heard = between.heard.lock().unwrap().clone();
    assert!(heard.len() > 1_000, "{} bytes", heard.len());
    let token = cluster.token("edge").unwrap();
    for secret in [
        token.as_bytes(),
        &token.as_bytes()[3..15],
        KEY.as_bytes(),
        b"orders-of",
    ] {
        assert!(!contains(&heard, secret));
    }
}

#[tokio::test]
async fn what_a_neighbour_changes_is_not_believed() {
    let cluster = node();
    let between = Between::new(cluster.nodes[0].client);
    let client = gateway(&cluster, &between).connect().await.unwrap();
    let before = client.budget(KEY).unwrap();
    assert_eq!(before.spend(1).await, Verdict::Admitted);
    // What is asked from now on arrives changed, and ends the connection.
    between.meddles.store(true, Ordering::Relaxed);
    let meanwhile = client.budget("acme/meanwhile").unwrap();
    let verdict = meanwhile.spend(1).await;
    assert!(!verdict.is_allowed(), "{verdict:?}");
    let token = cluster.token(ADMIN).unwrap();
    let books = cluster.ask(0, "GET", "/v1/accounts/acme/meanwhile", Some(&token), "");
    assert_eq!(books.unwrap().status, 404, "nothing was asked of the key");
    between.meddles.store(false, Ordering::Relaxed);
    let verdict = meanwhile.spend_within(1, Duration::from_secs(60)).await;
    assert_eq!(verdict, Verdict::Admitted);
}
