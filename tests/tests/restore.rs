//! Everything is lost but a backup, or but one node's folder, and another cluster
//! begins from it: real processes, judged by what gateways saw.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, MutexGuard, PoisonError},
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
const PATIENCE: Duration = Duration::from_secs(120);
const QUICK: &str = "[cluster]\nsession_ttl_ms = 3000\nsync_interval_ms = 300\n";

/// Clusters want the machine for themselves.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn leasehold(arguments: &[&str]) -> Output {
    Command::new(LEASEHOLD).args(arguments).output().unwrap()
}

/// Runs a command that must succeed, and gives what it printed.
fn done(arguments: &[&str]) -> String {
    let output = leasehold(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with an exit code, and gives what it complained of.
fn refused(arguments: &[&str], code: i32) -> String {
    let output = leasehold(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    said
}

fn json_of(printed: &str) -> Value {
    serde_json::from_str(printed).unwrap()
}

/// Looks again and again until it holds.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "never: {what}");
        thread::sleep(Duration::from_millis(50));
    }
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

fn flood(key: &str, per_second: f64) -> Load {
    Load {
        key: key.to_owned(),
        per_second,
        manner: Manner::Flood,
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

fn config(cluster: &LocalCluster, id: usize) -> String {
    let path = cluster.dir().join(format!("node{id}.toml"));
    path.to_str().unwrap().to_owned()
}

/// Where a node listens for its peers.
fn peer(cluster: &LocalCluster, id: usize) -> String {
    let text = fs::read_to_string(config(cluster, id)).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("peer_listen = "))
        .unwrap();
    line.trim_matches('"').to_owned()
}

/// Every node stops at once and for good; what they had is moved out of the way.
fn lose_everything(cluster: &mut LocalCluster) {
    for node in 0..cluster.size() {
        cluster.kill(node);
    }
    for id in 1..=cluster.size() {
        let data = cluster.dir().join(format!("node{id}"));
        fs::rename(&data, data.with_extension("lost")).unwrap();
    }
}

/// A new cluster of all nodes from a backup on the first one.
fn restore_all(cluster: &mut LocalCluster, backup: &str) {
    let restored = done(&["restore", backup, "--config", &config(cluster, 1), "--json"]);
    assert_eq!(json_of(&restored)["restored"]["node_id"], 1, "{restored}");
    for node in 0..cluster.size() {
        cluster.restart(node).unwrap();
    }
    eventually("the restored node leads", || {
        cluster.leader().is_some_and(|leader| leader.node == 0)
    });
    let endpoint = cluster.endpoints().remove(0);
    for id in 2..=cluster.size() {
        let (id, peer) = (id.to_string(), peer(cluster, id));
        let add = ["cluster", "add", &id, &peer, "--endpoint", &endpoint];
        // A leader may lose a vote while it waits for a new voter on a busy machine.
        eventually("a member is added", || leasehold(&add).status.success());
    }
    cluster.wait_ready(PATIENCE).unwrap();
}

#[test]
fn no_interval_over_admits_across_the_loss_of_a_cluster_and_its_restore() {
    let _alone = alone();
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
    let keys = [
        ("acme/window.short", window(60, 1_000), 100.0),
        ("acme/window.long", window(300, 8_000), 200.0),
        ("acme/bucket.quick", bucket(20, 100, 1_000), 100.0),
        ("acme/bucket.slow", bucket(60, 4, 1_000), 50.0),
        // Spent for the first time after the backup.
        ("acme/window.late", window(300, 8_000), 200.0),
        ("acme/bucket.late", bucket(60, 4, 1_000), 50.0),
    ];
    let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), 3, QUICK).unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    for (key, promise, _) in keys {
        put_budget(&cluster, key, promise);
    }
    let loads = |late: bool| -> Vec<Load> {
        let chosen = keys
            .iter()
            .filter(|(key, ..)| key.ends_with("late") == late);
        chosen.map(|&(key, _, rate)| flood(key, rate)).collect()
    };
    let mut gateways = Vec::new();
    for name in ["gw-1", "gw-2", "gw-3"] {
        gateways.push(gateway(&cluster, name, &loads(false)));
    }
    let logs_of = |gateways: &[GatewayProcess]| -> Vec<PathBuf> {
        gateways
            .iter()
            .map(|gateway| gateway.log().to_owned())
            .collect()
    };
    let spends = |gateways: &[GatewayProcess], key: &str| read(&logs_of(gateways)).of(key).len();
    eventually("the keys are spent from", || {
        spends(&gateways, "acme/window.long") > 100 && spends(&gateways, "acme/bucket.slow") > 30
    });

    let leader = cluster.wait_leader(PATIENCE).unwrap();
    let follower = (leader.node + 1) % 3;
    let file = cluster.dir().join("cluster.backup");
    let file = file.to_str().unwrap().to_owned();
    let endpoint = cluster.endpoints().remove(follower);
    let printed = done(&["backup", &file, "--endpoint", &endpoint, "--json"]);
    let backup = json_of(&printed);
    assert_eq!(backup["header"]["node_id"], follower + 1, "{backup}");
    assert_eq!(backup["budgets"], keys.len(), "{backup}");
    assert!(backup["sessions"].as_u64() >= Some(1), "{backup}");
    let again = refused(&["backup", &file, "--endpoint", &endpoint], 1);
    assert!(again.contains("(file_exists)"), "{again}");

    gateways.push(gateway(&cluster, "gw-4", &loads(true)));
    eventually("the late keys are spent from", || {
        spends(&gateways, "acme/window.late") > 100 && spends(&gateways, "acme/bucket.late") > 30
    });
    lose_everything(&mut cluster);
    restore_all(&mut cluster, &file);
    let restored_ns = clock_ns();

    eventually("every key is admitted again", || {
        let log = read(&logs_of(&gateways));
        keys.iter().all(|(key, ..)| {
            let admissions = log.of(key).iter();
            admissions.filter(|a| a.call_ns > restored_ns).count() > 20
        })
    });
    let logs = logs_of(&gateways);
    for gateway in gateways {
        gateway.finish().unwrap();
    }
    let log = read(&logs);
    for (key, promise, _) in keys {
        let judgement = promise.judge(log.of(key));
        eprintln!("{key}: {judgement:?}");
        assert_eq!(judgement.over_admitted, 0, "{key}: {judgement:?}");
    }
    let status = cluster
        .request("GET", "/v1/cluster", None, PATIENCE)
        .unwrap()
        .json();
    assert_ne!(status["cluster_id"], backup["header"]["cluster_id"]);
    assert_eq!(status["members"].as_array().map(Vec::len), Some(3));
}

#[test]
fn one_surviving_folder_of_three_begins_a_new_cluster() {
    let _alone = alone();
    let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), 3, QUICK).unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    let hour = Promise::Window {
        limit: 1_000,
        window_us: 3_600_000_000,
    };
    put_budget(&cluster, "acme/*", hour);
    let spend = json!({"key": "acme/orders", "units": 7});
    let answer = cluster
        .request("POST", "/v1/spend", Some(&spend), PATIENCE)
        .unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let survivor = 2;
    let folder = cluster.dir().join("node3");
    let folder = folder.to_str().unwrap().to_owned();
    let file = cluster.dir().join("survivor.backup");
    let file = file.to_str().unwrap().to_owned();
    eventually("the survivor knows of the spend", || {
        let answer = cluster.get_from(survivor, "/v1/accounts/acme/orders");
        answer.is_ok_and(|answer| answer.status == 200)
    });
    let running = refused(&["backup", &file, "--data-dir", &folder], 6);
    assert!(running.contains("(store_locked)"), "{running}");
    for node in [0, 1] {
        cluster.kill(node);
    }

    // Alone, it says so and serves nothing; what it has can still be saved.
    eventually("the survivor knows of no leader", || {
        cluster
            .get_from(survivor, "/readyz")
            .is_ok_and(|answer| answer.status == 503)
    });
    let endpoint = cluster.endpoints().remove(survivor);
    let leaderless = refused(&["backup", &file, "--endpoint", &endpoint], 1);
    assert!(leaderless.contains("(no_leader)"), "{leaderless}");
    let printed = done(&["backup", &file, "--endpoint", &endpoint, "--without-leader"]);
    assert!(printed.contains("which knew of no leader"), "{printed}");
    cluster.kill(survivor);
    let printed = done(&["backup", &file, "--data-dir", &folder, "--force"]);
    assert!(printed.contains("which had stopped"), "{printed}");

    let occupied = refused(&["restore", &file, "--config", &config(&cluster, 3)], 2);
    let told = refused(
        &[
            "restore",
            &file,
            "--config",
            &config(&cluster, 3),
            "--dry-run",
        ],
        2,
    );
    assert_eq!(told, occupied, "a dry run says what would happen");
    assert!(occupied.contains("(folder_not_empty)"), "{occupied}");
    lose_everything(&mut cluster);
    let looked = done(&[
        "restore",
        &file,
        "--config",
        &config(&cluster, 1),
        "--dry-run",
    ]);
    assert!(looked.starts_with("nothing was written"), "{looked}");
    restore_all(&mut cluster, &file);
    let ready = cluster.get_from(0, "/readyz").unwrap().json();
    assert_eq!(ready["warnings"][0]["code"], "after_restore", "{ready}");
    let account = cluster
        .request("GET", "/v1/accounts/acme/orders", None, PATIENCE)
        .unwrap()
        .json();
    assert_eq!(account["free"], 0, "{account}");
    assert_eq!(account["lifetime"]["central"], 7, "{account}");
    // A key that nobody has heard of starts no better.
    let spend = json!({"key": "acme/other", "units": 1});
    let answer = cluster
        .request("POST", "/v1/spend", Some(&spend), PATIENCE)
        .unwrap();
    assert_eq!(answer.status, 429, "{answer:?}");
}

#[test]
fn a_damaged_backup_is_refused_and_prepares_nothing() {
    let _alone = alone();
    let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), 1, QUICK).unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    let file = cluster.dir().join("one.backup");
    let endpoint = cluster.endpoints().remove(0);
    done(&["backup", file.to_str().unwrap(), "--endpoint", &endpoint]);
    let good = fs::read(&file).unwrap();
    let data = cluster.dir().join("new");
    let restore = |bytes: &[u8]| {
        let bad = cluster.dir().join("bad.backup");
        fs::write(&bad, bytes).unwrap();
        let arguments = [
            "restore",
            bad.to_str().unwrap(),
            "--data-dir",
            data.to_str().unwrap(),
        ];
        leasehold(&arguments).status.code()
    };
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 4;
    assert_eq!(restore(&flipped), Some(4));
    assert_eq!(restore(&good[..good.len() - 3]), Some(4));
    assert_eq!(restore(b"not a backup at all, only some text"), Some(2));
    assert!(!data.exists(), "nothing is prepared");
    assert_eq!(restore(&good), Some(0));
    assert_eq!(restore(&good), Some(2), "the folder is not empty any more");
}
