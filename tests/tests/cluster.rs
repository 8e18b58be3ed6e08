//! Real processes, real sockets, real SIGKILLs, judged by what gateways saw.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold_tests::{
    AdmissionLog, GatewayProcess, Load, LocalCluster, Manner, Promise, clock_ns,
};
use serde_json::{Value, json};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
const GATEWAY: &str = env!("CARGO_BIN_EXE_gateway");
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Short sessions, so that a killed gateway's units come back within a test.
const QUICK: &str = "[cluster]\nsession_ttl_ms = 3000\nsync_interval_ms = 300\n";

/// Clusters want the machine for themselves.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nodes that are ready.
fn nodes(size: usize) -> LocalCluster {
    let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), size, QUICK).unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    cluster
}

fn put_budget(cluster: &LocalCluster, key: &str, promise: Promise) {
    let policy = match promise {
        Promise::Window { limit, window_us } => json!({
            "kind": "sliding_window", "limit": limit, "window_ms": window_us / 1_000,
        }),
        Promise::Bucket {
            capacity,
            refill,
            refill_period_us,
            ..
        } => json!({
            "kind": "token_bucket", "capacity": capacity, "refill": refill,
            "refill_period_ms": refill_period_us / 1_000,
        }),
    };
    let path = format!("/v1/budgets/{key}");
    let body = json!({ "policy": policy });
    let answer = cluster
        .request("PUT", &path, Some(&body), PATIENCE)
        .unwrap();
    assert!(answer.status < 300, "PUT {path}: {answer:?}");
}

fn account(cluster: &LocalCluster, key: &str) -> Value {
    let answer = cluster
        .request("GET", &format!("/v1/accounts/{key}"), None, PATIENCE)
        .unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn figure(account: &Value, name: &str) -> u64 {
    account[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {account}"))
}

fn load(manner: Manner, key: &str, per_second: f64) -> Load {
    Load {
        key: key.to_owned(),
        per_second,
        manner,
    }
}

fn gateway(cluster: &LocalCluster, name: &str, loads: &[Load]) -> GatewayProcess {
    let log = cluster.dir().join(format!("{name}.admissions"));
    GatewayProcess::start(Path::new(GATEWAY), name, &cluster.endpoints(), loads, log).unwrap()
}

fn read(logs: &[PathBuf]) -> AdmissionLog {
    let mut log = AdmissionLog::default();
    for path in logs.iter().filter(|path| path.exists()) {
        log.read(path).unwrap();
    }
    log
}

/// Looks again and again until it holds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "never: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn no_interval_over_admits_while_leaders_and_gateways_are_killed() {
    let _alone = alone();
    let seconds: u64 =
        std::env::var("LEASEHOLD_TEST_SECONDS").map_or(24, |text| text.parse().unwrap());
    let window = |limit, ms: u64| Promise::Window {
        limit,
        window_us: ms * 1_000,
    };
    let bucket = |capacity, refill, ms: u64| Promise::Bucket {
        capacity,
        refill,
        refill_period_us: ms * 1_000,
        tick_us: 1,
    };
    let flood = |per_second| (Manner::Flood, per_second);
    let honest = |per_second| (Manner::Honest, per_second);
    // Offered by each of four gateways.
    let keys = [
        ("acme/window.short", window(40, 500), flood(400.0)),
        ("acme/window.long", window(300, 4_000), flood(1_000.0)),
        ("acme/bucket.quick", bucket(10, 100, 1_000), flood(400.0)),
        ("acme/bucket.slow", bucket(50, 5, 1_000), flood(100.0)),
        ("acme/honest.window", window(200, 2_000), honest(20.0)),
        ("acme/honest.bucket", bucket(20, 40, 1_000), honest(8.0)),
    ];

    let mut cluster = nodes(3);
    for (key, promise, _) in keys {
        put_budget(&cluster, key, promise);
    }
    let loads: Vec<Load> = keys
        .iter()
        .map(|&(key, _, (manner, rate))| load(manner, key, rate))
        .collect();
    let mut logs = Vec::new();
    let mut started = 0;
    let mut start = |cluster: &LocalCluster| {
        started += 1;
        let gateway = gateway(cluster, &format!("gw-{started}"), &loads);
        logs.push(gateway.log().to_owned());
        gateway
    };
    let mut gateways: Vec<_> = (0..4).map(|_| start(&cluster)).collect();

    // Every round: the leader dies, a gateway dies, both come back.
    let began = Instant::now();
    let mut kills = Vec::new();
    for round in 0.. {
        if began.elapsed() > Duration::from_secs(seconds) && kills.len() >= 4 {
            break;
        }
        thread::sleep(Duration::from_millis(1_500));
        let leader = cluster.wait_leader(PATIENCE).unwrap();
        kills.push(clock_ns());
        cluster.kill(leader.node);
        if round % 2 == 1 {
            gateways.remove(0).kill();
            gateways.push(start(&cluster));
        }
        let killed = Instant::now();
        let next = cluster.wait_leader(PATIENCE).unwrap();
        let elected = killed.elapsed();
        thread::sleep(Duration::from_millis(1_000));
        cluster.restart(leader.node).unwrap();
        cluster.wait_ready(PATIENCE).unwrap();
        eprintln!(
            "round {round}: {leader:?} killed; {next:?} after {elected:?}; all ready after {:?}",
            killed.elapsed()
        );
    }
    thread::sleep(Duration::from_millis(1_500));
    let ended = clock_ns();
    for gateway in gateways {
        let summary = gateway.finish().unwrap();
        assert_eq!(summary.degraded, 0, "no policy here fails open");
    }

    let log = read(&logs);
    for (key, promise, _) in keys {
        let judgement = promise.judge(log.of(key));
        eprintln!("{key}: {judgement:?}");
        assert_eq!(judgement.over_admitted, 0, "{key}: {judgement:?}");
        // The safe coordinator that never grants anything is no use.
        assert!(judgement.admitted > 50, "{key} was starved: {judgement:?}");
    }
    let bounds: Vec<u64> = kills.iter().copied().chain([ended]).collect();
    for between in bounds.windows(2) {
        let resumed = log
            .of("acme/bucket.quick")
            .iter()
            .any(|a| between[0] + 500_000_000 < a.call_ns && a.return_ns < between[1]);
        assert!(resumed, "nothing was granted between two kills");
    }
}

#[test]
fn a_killed_and_restarted_node_has_lost_no_counted_or_outstanding_unit() {
    let _alone = alone();
    const LIMIT: u64 = 1_000_000;
    // Nothing leaves the window while the test runs.
    let hour = Promise::Window {
        limit: LIMIT,
        window_us: 3_600_000_000,
    };
    let mut cluster = nodes(1);
    for key in ["acme/leased", "acme/central"] {
        put_budget(&cluster, key, hour);
    }
    let loads = [load(Manner::Flood, "acme/leased", 2_000.0)];
    let gateway = gateway(&cluster, "gw-1", &loads);
    let log = gateway.log().to_owned();

    let (sent, admitted, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let client: SocketAddr = cluster.endpoints()[0]["http://".len()..].parse().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let spend = json!({"key": "acme/central", "units": 1});
            while !stop.load(Ordering::Relaxed) {
                sent.fetch_add(1, Ordering::Relaxed);
                match LocalCluster::post(client, "/v1/spend", &spend) {
                    Ok(answer) if answer.status == 200 => {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(answer) => assert_eq!(answer.status, 503, "{answer:?}"),
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                }
            }
        });
        for _ in 0..4 {
            let before = (
                admitted.load(Ordering::Relaxed),
                read(std::slice::from_ref(&log)).of("acme/leased").len(),
            );
            eventually("both keys are spent from", || {
                admitted.load(Ordering::Relaxed) > before.0 + 20
                    && read(std::slice::from_ref(&log)).of("acme/leased").len() > before.1 + 50
            });
            cluster.kill(0);
            let central = admitted.load(Ordering::Relaxed);
            let leased = read(std::slice::from_ref(&log)).of("acme/leased").len() as u64;
            cluster.restart(0).unwrap();
            cluster.wait_ready(PATIENCE).unwrap();
            let books = account(&cluster, "acme/central");
            assert!(
                figure(&books, "counted") >= central,
                "{central} were admitted: {books}"
            );
            let books = account(&cluster, "acme/leased");
            let used = figure(&books, "counted") + figure(&books, "outstanding");
            assert!(used >= leased, "{leased} were admitted: {books}");
            assert_eq!(used + figure(&books, "free"), LIMIT, "{books}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    gateway.finish().unwrap();

    // Everything was handed back, and what was spent is exactly what is counted.
    let spent = read(&[log]).of("acme/leased").len() as u64;
    let books = account(&cluster, "acme/leased");
    assert_eq!(figure(&books, "outstanding"), 0, "{books}");
    assert!(
        figure(&books, "counted") >= spent,
        "{spent} were admitted: {books}"
    );
    let books = account(&cluster, "acme/central");
    let (admitted, sent) = (admitted.into_inner(), sent.into_inner());
    let counted = figure(&books, "counted");
    assert!(
        (admitted..=sent).contains(&counted),
        "{admitted} of {sent} admitted: {books}"
    );
}

#[test]
fn the_example_files_form_a_cluster() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    // The same files with ports and folders of our own, so that tests do not meet.
    let texts: Vec<String> = (1..=3)
        .map(|id| fs::read_to_string(deploy.join(format!("node{id}.toml"))).unwrap())
        .collect();
    let mut ports: Vec<&str> = texts
        .iter()
        .flat_map(|text| text.split("127.0.0.1:").skip(1))
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    let free = LocalCluster::free_ports(ports.len()).unwrap();
    let mut files = Vec::new();
    for (text, id) in texts.iter().zip(1..) {
        let mut text = text.clone();
        for (port, free) in ports.iter().zip(&free) {
            text = text.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:@{free}"));
        }
        let text: String = text
            .replace('@', "")
            .lines()
            .map(|line| match line.strip_prefix("data_dir") {
                Some(_) => format!(
                    "data_dir = '{}'\n",
                    dir.path().join(format!("n{id}")).display()
                ),
                None => format!("{line}\n"),
            })
            .collect();
        let listen = text
            .lines()
            .find_map(|line| line.strip_prefix("listen = "))
            .unwrap();
        let listen: SocketAddr = listen.split('"').nth(1).unwrap().parse().unwrap();
        let file = dir.path().join(format!("node{id}.toml"));
        fs::write(&file, text).unwrap();
        files.push((file, listen));
    }
    let mut cluster = LocalCluster::from_files(Path::new(LEASEHOLD), dir, files).unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    let leader = cluster.wait_leader(PATIENCE).unwrap();

    put_budget(
        &cluster,
        "acme/*",
        Promise::Window {
            limit: 5,
            window_us: 60_000_000,
        },
    );
    let spend = json!({"key": "acme/orders", "units": 2});
    let answer = cluster
        .request("POST", "/v1/spend", Some(&spend), PATIENCE)
        .unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    cluster.kill(leader.node);
    assert_eq!(figure(&account(&cluster, "acme/orders"), "counted"), 2);
    let status = cluster
        .request("GET", "/v1/cluster", None, PATIENCE)
        .unwrap()
        .json();
    assert_eq!(
        status["members"].as_array().map(Vec::len),
        Some(3),
        "{status}"
    );
}
