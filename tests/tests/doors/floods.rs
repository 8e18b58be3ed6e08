//! What somebody sends who wants a node to fall over leaves it serving others as ever.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold_tests::{ADMIN, TlsCluster, until_closed};
use rand::RngCore as _;

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a node waits for a handshake, a head, or a next request.
const LIMITS: &str = "[limits]\nhandshake_ms = 1000\nheader_ms = 1000\nidle_ms = 2000\n";
/// Asks in one measurement.
const ASKS: usize = 30;
const MIB: usize = 1 << 20;

fn node() -> TlsCluster {
    let cluster = TlsCluster::start(Path::new(LEASEHOLD), 1, LIMITS).unwrap();
    let budget = r#"{"policy": {"kind": "sliding_window", "limit": 1000000, "window_ms": 60000}}"#;
    let token = cluster.token(ADMIN).unwrap();
    let answer = cluster.ask(0, "PUT", "/v1/budgets/acme/*", Some(&token), budget);
    assert!(answer.as_ref().unwrap().status < 300, "{answer:?}");
    cluster
}

/// How long the median spend takes, connection and handshake included.
fn usual(cluster: &TlsCluster) -> Duration {
    let token = cluster.token(ADMIN).unwrap();
    let body = r#"{"key": "acme/orders", "units": 1}"#;
    let mut took: Vec<Duration> = (0..ASKS)
        .map(|_| {
            let begun = Instant::now();
            let answer = cluster
                .ask(0, "POST", "/v1/spend", Some(&token), body)
                .unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            begun.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[ASKS / 2]
}

/// The most memory that the node ever had, in bytes.
fn memory_peak(cluster: &TlsCluster) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", cluster.nodes[0].pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.unwrap().parse::<usize>().unwrap() << 10
}

/// Spends go on as before while an attack goes on, and the node does not swell.
fn served_as_ever(cluster: &TlsCluster, attack: impl Fn() + Sync) {
    let before = usual(cluster);
    let memory_before = memory_peak(cluster);
    let is_over = AtomicBool::new(false);
    let during = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                attack();
            }
        });
        let during = usual(cluster);
        is_over.store(true, Ordering::Relaxed);
        during
    });
    // The attacker takes its share of two processors; a node that is held up takes seconds.
    let bound = 10 * before + Duration::from_millis(200);
    assert!(during < bound, "{during:?}, before {before:?}");
    let grown = memory_peak(cluster).saturating_sub(memory_before);
    assert!(grown < 128 * MIB, "it grew by {} MiB", grown / MIB);
}

/// Writes until everything is written or the other side has had enough.
fn write_all_it_takes(
    to: &mut impl Write,
    bytes: usize,
    mut piece: impl FnMut(&mut [u8]),
) -> usize {
    let mut buffer = vec![0; 64 << 10];
    let mut written = 0;
    while written < bytes {
        piece(&mut buffer);
        let length = buffer.len().min(bytes - written);
        match to.write(&buffer[..length]) {
            Ok(0) => break,
            Ok(n) => written += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written
}

fn ports(cluster: &TlsCluster) -> [SocketAddr; 2] {
    [cluster.nodes[0].client, cluster.nodes[0].peer]
}

#[test]
fn a_thousand_slow_connections_are_closed_and_hold_nobody_up() {
    let cluster = node();
    let before = usual(&cluster);
    let silent = |addr| TcpStream::connect(addr).unwrap();
    // The beginning of a TLS record that never ends.
    let half_a_hello = |addr| {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream
            .write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01])
            .unwrap();
        stream
    };
    let mut slow: Vec<TcpStream> = Vec::new();
    for nth in 0..900 {
        let addr = ports(&cluster)[nth / 2 % 2];
        slow.push(if nth % 2 == 0 {
            silent(addr)
        } else {
            half_a_hello(addr)
        });
    }
    // They are through the handshake, and never end a head.
    let mut through: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = cluster.connect(cluster.nodes[0].client, None).unwrap();
            stream
                .write_all(b"POST /v1/spend HTTP/1.1\r\nhost: node\r\nx-slow: ")
                .unwrap();
            stream
        })
        .collect();
    let during = usual(&cluster);
    assert!(
        during < 10 * before + Duration::from_millis(200),
        "{during:?}, before {before:?}"
    );
    let give_up = Instant::now() + PATIENCE;
    for stream in slow
        .iter_mut()
        .chain(through.iter_mut().map(|tls| &mut tls.sock))
    {
        let left = give_up.saturating_duration_since(Instant::now());
        let (_, is_closed) = until_closed(stream, left).unwrap();
        assert!(is_closed, "a slow connection stays");
    }
}

#[test]
fn connections_leave_a_node_the_files_that_its_snapshots_need() {
    let settings = "[raft]\nsnapshot_every_entries = 10\n";
    let mut cluster = TlsCluster::start(Path::new(LEASEHOLD), 1, settings).unwrap();
    cluster.restart_with_files(0, 300).unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    let token = cluster.token(ADMIN).unwrap();
    let policy = r#"{"kind": "total", "limit": 1}"#;
    // One that is there before the others; it goes on.
    let mut operator = cluster.connect(cluster.nodes[0].client, None).unwrap();
    // More than the process may have open.
    let _held: Vec<TcpStream> = (0..400)
        .map(|_| TcpStream::connect(cluster.nodes[0].client).unwrap())
        .collect();
    for _ in 0..100 {
        let head = format!(
            "PUT /v1/policies/any HTTP/1.1\r\nhost: node\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{policy}",
            policy.len()
        );
        operator.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 4096];
        let told = operator.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..told]);
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    }
    let log = cluster.nodes[0].log();
    assert!(!log.contains("Too many open files"), "{log}");
    // Each ends with its handshake's time.
    cluster.wait_ready(PATIENCE).unwrap();
}

#[test]
fn a_body_of_a_gibibyte_is_refused_and_not_kept() {
    let cluster = node();
    let token = cluster.token(ADMIN).unwrap();
    for authorization in [format!("authorization: Bearer {token}\r\n"), String::new()] {
        served_as_ever(&cluster, || {
            let mut stream = cluster.connect(cluster.nodes[0].client, None).unwrap();
            let head = format!(
                "PUT /v1/policies/big HTTP/1.1\r\nhost: node\r\n{authorization}content-length: {}\r\n\r\n",
                1024 * MIB
            );
            stream.write_all(head.as_bytes()).unwrap();
            let taken = write_all_it_takes(&mut stream, 1024 * MIB, |piece| piece.fill(b' '));
            assert!(taken < 64 * MIB, "it took {taken} bytes");
        });
    }
    let body = " ".repeat(2 * MIB);
    let answer = cluster.ask(0, "PUT", "/v1/policies/big", Some(&token), &body);
    // The answer may be lost behind what was still being sent.
    if let Ok(answer) = answer {
        assert_eq!(answer.status, 413, "{answer:?}");
    }
}

/// Sends a head with a field of so many bytes; the beginning of what is answered.
fn answer_to_a_head_of(cluster: &TlsCluster, bytes: usize) -> String {
    let mut stream = cluster.connect(cluster.nodes[0].client, None).unwrap();
    stream
        .write_all(b"GET /v1/cluster HTTP/1.1\r\nhost: node\r\nx-big: ")
        .unwrap();
    write_all_it_takes(&mut stream, bytes, |piece| piece.fill(b'a'));
    let mut answer = [0; 12];
    let told = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..told]).into_owned()
}

#[test]
fn a_head_of_a_mebibyte_is_refused() {
    let cluster = node();
    served_as_ever(&cluster, || {
        // What is answered may be lost behind what was still being sent.
        let answer = answer_to_a_head_of(&cluster, MIB);
        assert!(["", "HTTP/1.1 431"].contains(&answer.as_str()), "{answer}");
    });
    assert_eq!(answer_to_a_head_of(&cluster, 20 << 10), "HTTP/1.1 431");
}

#[test]
fn a_million_bytes_of_junk_on_every_port_end_the_connection_and_nothing_else() {
    let cluster = node();
    let junk = |bytes: &mut [u8]| rand::rng().fill_bytes(bytes);
    served_as_ever(&cluster, || {
        for addr in ports(&cluster) {
            let mut stream = TcpStream::connect(addr).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            write_all_it_takes(&mut stream, 1_000_000, junk);
            let (_, is_closed) = until_closed(&mut stream, PATIENCE).unwrap();
            assert!(is_closed, "junk is still listened to");
        }
        // Behind the handshake, too.
        let mut stream = cluster.connect(cluster.nodes[0].client, None).unwrap();
        write_all_it_takes(&mut stream, 1_000_000, junk);
        let (_, is_closed) = until_closed(&mut stream.sock, PATIENCE).unwrap();
        assert!(is_closed, "junk is still listened to");
    });
    cluster.wait_ready(PATIENCE).unwrap();
}
