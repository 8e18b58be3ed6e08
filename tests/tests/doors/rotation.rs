//! Leaders die while certificates and tokens are replaced under load: nothing is
//! over-admitted, and gateways go on without being told.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use leasehold_tests::{
    ADMIN, AdmissionLog, GatewayProcess, Load, Manner, Promise, TlsCluster, clock_ns,
};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
const GATEWAY: &str = env!("CARGO_BIN_EXE_gateway");
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Short sessions, so that units of those that ended come back within the test.
const QUICK: &str = "[cluster]\nsession_ttl_ms = 3000\nsync_interval_ms = 300\n";
const KEY: &str = "acme/orders";
const LIMIT: u64 = 60;
const WINDOW_MS: u64 = 1_000;

/// Replaces the certificates of all nodes, which take them while they run.
fn replace_certificates(cluster: &TlsCluster) {
    for node in 1..=cluster.nodes.len() {
        let name = format!("node{node}");
        let args = [
            "cert", "node", "--ca-dir", "secrets", "--name", &name, "--force",
        ];
        cluster.run(&args).unwrap();
    }
}

/// Gives the gateways another token, and takes away the one before once all nodes know
/// the new one.
fn replace_token(cluster: &TlsCluster) {
    let before = cluster.token("edge").unwrap();
    let after = cluster.another_token("edge", &[]).unwrap();
    let give_up = Instant::now() + PATIENCE;
    for node in 0..cluster.nodes.len() {
        // Known, and not allowed that.
        let is_known = || {
            let answer = cluster.ask(node, "GET", "/v1/cluster", Some(&after), "");
            answer.is_ok_and(|answer| answer.status == 403)
        };
        while !is_known() {
            assert!(Instant::now() < give_up, "the new token is never known");
            thread::sleep(Duration::from_millis(50));
        }
    }
    cluster.keep_token("edge", &after).unwrap();
    let id = &before[3..15];
    let args = [
        "token",
        "revoke",
        id,
        "--identities",
        "secrets/identities.toml",
    ];
    cluster.run(&args).unwrap();
}

/// Whether something was admitted after this moment, within time.
fn goes_on(gateways: &[GatewayProcess], since_ns: u64) -> bool {
    let give_up = Instant::now() + PATIENCE;
    while Instant::now() < give_up {
        let mut log = AdmissionLog::default();
        // A gateway writes its first line when it has started.
        for gateway in gateways.iter().filter(|gateway| gateway.log().exists()) {
            log.read(gateway.log()).unwrap();
        }
        if log
            .of(KEY)
            .iter()
            .any(|admission| admission.call_ns > since_ns)
        {
            return true;
        }
        thread::sleep(Duration::from_millis(100));
    }
    false
}

#[test]
fn nothing_is_over_admitted_while_leaders_die_and_certificates_and_tokens_are_replaced() {
    let mut cluster = TlsCluster::start(Path::new(LEASEHOLD), 3, QUICK).unwrap();
    let token = cluster.token(ADMIN).unwrap();
    let policy = format!(
        r#"{{"policy": {{"kind": "sliding_window", "limit": {LIMIT}, "window_ms": {WINDOW_MS}}}}}"#
    );
    // By any node: who follows sends it on over TLS.
    for node in 0..3 {
        let answer = cluster.ask(node, "PUT", "/v1/budgets/acme/*", Some(&token), &policy);
        assert!(answer.as_ref().unwrap().status < 300, "{answer:?}");
    }
    let of_gateways = ["--role", "gateway", "--keys", "acme/*"];
    cluster.create_token("edge", &of_gateways).unwrap();
    let load = Load {
        key: KEY.to_owned(),
        per_second: 400.0,
        manner: Manner::Flood,
    };
    let gateways: Vec<GatewayProcess> = (0..3)
        .map(|number| {
            let name = format!("edge-{number}");
            let log = cluster.dir().join(format!("{name}.admissions"));
            let shown = (cluster.secret("node-ca.pem"), cluster.token_file("edge"));
            GatewayProcess::start_as(
                Path::new(GATEWAY),
                (&shown.0, &shown.1),
                &name,
                &cluster.endpoints(),
                std::slice::from_ref(&load),
                log,
            )
            .unwrap()
        })
        .collect();
    assert!(goes_on(&gateways, 0), "nothing was ever admitted");
    for round in 0..3 {
        replace_certificates(&cluster);
        replace_token(&cluster);
        let replaced = clock_ns();
        assert!(
            goes_on(&gateways, replaced),
            "round {round}: not after the token"
        );
        let leader = cluster.leader(PATIENCE).unwrap();
        cluster.kill_and_restart(leader).unwrap();
        let killed = clock_ns();
        cluster.wait_ready(PATIENCE).unwrap();
        assert!(
            goes_on(&gateways, killed),
            "round {round}: not after the leader"
        );
    }
    let mut log = AdmissionLog::default();
    for gateway in gateways {
        let path = gateway.log().to_owned();
        gateway.finish().unwrap();
        log.read(&path).unwrap();
    }
    let promise = Promise::Window {
        limit: LIMIT,
        window_us: WINDOW_MS * 1_000,
    };
    let judgement = promise.judge(log.of(KEY));
    assert_eq!(judgement.over_admitted, 0, "{judgement:?}");
    assert!(judgement.admitted > 2 * LIMIT, "starved: {judgement:?}");
}
