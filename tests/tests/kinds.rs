//! Every exact kind of budget in real processes, with leaders killed, one gateway killed
//! and one stopped for longer than its session, judged by what gateways and operators
//! saw.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold_checkers::{
    AccountSample, Change, ChargeSample, Correction, History, PeriodQuota, PeriodSample, Record,
    Verdict, all_or_none, judge_periods, judge_permits, judge_total, period_books, settlements,
    total_books,
};
use leasehold_tests::{
    Admission, AdmissionLog, GatewayProcess, HIGH_LANE, Judgement, Load, LocalCluster, Manner,
    Promise, clock_ns,
};
use serde_json::{Value, json};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
const GATEWAY: &str = env!("CARGO_BIN_EXE_gateway");
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Short sessions, so that what a killed gateway has comes back within a test.
const QUICK: &str = "[cluster]\nsession_ttl_ms = 3000\nsync_interval_ms = 300\n";
/// Longer than a session.
const STOPPED_FOR: Duration = Duration::from_millis(4_500);

const WINDOW: &str = "acme/window";
const BUCKET: &str = "acme/bucket";
const PACED: &str = "acme/paced";
const LANES: &str = "acme/lanes";
const DAY: &str = "acme/day";
const CREDIT: &str = "acme/credit";
const TENANT: &str = "acme/joint.tenant";
const USER: &str = "acme/joint.user";
const PERMITS: &str = "acme/permits";
const RESERVED: &str = "acme/reserved";

const DAILY: PeriodQuota = PeriodQuota {
    limit: 300,
    carry_over: 50,
};
const PREPAID: u64 = 200;
const TOP_UP: i64 = 20;
const AT_ONCE: u64 = 8;

/// Clusters want the machine for themselves.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const fn window(limit: u64, ms: u64) -> Promise {
    Promise::Window {
        limit,
        window_us: ms * 1_000,
    }
}

const fn bucket(capacity: u64, per_second: u64) -> Promise {
    Promise::Bucket {
        capacity,
        refill: per_second,
        refill_period_us: 1_000_000,
        tick_us: 1,
    }
}

/// What is promised by interval, whatever asks for it in which manner.
const BY_INTERVAL: [(&str, Promise); 7] = [
    (WINDOW, window(60, 500)),
    (BUCKET, bucket(20, 60)),
    (PACED, bucket(5, 40)),
    (LANES, window(40, 1_000)),
    (TENANT, window(30, 1_000)),
    (USER, bucket(40, 50)),
    (RESERVED, window(60, 1_000)),
];

fn policy_of(key: &str, promise: Promise) -> Value {
    match promise {
        Promise::Window { limit, window_us } => {
            let mut policy = json!({
                "kind": "sliding_window", "limit": limit, "window_ms": window_us / 1_000,
            });
            if key == LANES {
                policy["lanes"] = json!([{ "name": HIGH_LANE, "reserve": 10 }, { "name": "low" }]);
            }
            policy
        }
        Promise::Bucket {
            capacity,
            refill,
            refill_period_us,
            ..
        } => json!({
            "kind": if key == PACED { "paced" } else { "token_bucket" },
            "capacity": capacity, "refill": refill,
            "refill_period_ms": refill_period_us / 1_000,
        }),
    }
}

/// A cluster with all budgets, and where its nodes listen.
fn cluster_of_all_kinds() -> (LocalCluster, Vec<SocketAddr>) {
    let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), 3, QUICK).unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    let put = |key: &str, policy: Value| {
        let path = format!("/v1/budgets/{key}");
        let body = json!({ "policy": policy });
        let answer = cluster.request("PUT", &path, Some(&body), PATIENCE);
        let answer = answer.unwrap();
        assert!(answer.status < 300, "PUT {path}: {answer:?}");
    };
    for (key, promise) in BY_INTERVAL {
        put(key, policy_of(key, promise));
    }
    put(
        DAY,
        json!({
            "kind": "period", "limit": DAILY.limit, "carry_over": DAILY.carry_over,
            "period": "day", "time_zone": "Asia/Kathmandu",
        }),
    );
    put(CREDIT, json!({ "kind": "total", "limit": PREPAID }));
    put(PERMITS, json!({ "kind": "concurrency", "limit": AT_ONCE }));
    // What was spent of these is read in the end. An account that was corrected is kept for
    // an hour, and this correction frees nothing: nothing is counted yet.
    for key in [TENANT, USER, RESERVED] {
        let path = format!("/v1/accounts/{key}/adjust");
        let body = json!({ "id": "kept", "units": 1, "reason": "to be kept" });
        let answer = cluster
            .request("POST", &path, Some(&body), PATIENCE)
            .unwrap();
        assert_eq!(answer.status, 200, "POST {path}: {answer:?}");
    }
    let nodes = cluster.endpoints();
    let nodes = nodes.iter().map(|url| url["http://".len()..].parse());
    let nodes = nodes.collect::<Result<_, _>>().unwrap();
    (cluster, nodes)
}

/// Gateways, and everything that they left behind.
struct Gateways {
    loads: Vec<Load>,
    running: Vec<GatewayProcess>,
    left: Vec<(PathBuf, PathBuf)>,
}

impl Gateways {
    fn new(loads: &[(&str, Manner, f64)]) -> Self {
        let load = |&(key, manner, per_second): &(&str, Manner, f64)| Load {
            key: key.to_owned(),
            per_second,
            manner,
        };
        Self {
            loads: loads.iter().map(load).collect(),
            running: Vec::new(),
            left: Vec::new(),
        }
    }

    fn start(&mut self, cluster: &LocalCluster) {
        let name = format!("gw-{}", self.left.len() + 1);
        let file = |what: &str| cluster.dir().join(format!("{name}.{what}"));
        let (log, history) = (file("admissions"), file("history"));
        self.left.push((log.clone(), history.clone()));
        let gateway = GatewayProcess::start_with_history(
            Path::new(GATEWAY),
            &name,
            &cluster.endpoints(),
            &self.loads,
            log,
            history,
        );
        self.running.push(gateway.unwrap());
    }

    /// All end in peace.
    fn finish(&mut self) {
        for gateway in self.running.drain(..) {
            let summary = gateway.finish().unwrap();
            assert_eq!(summary.degraded, 0, "no policy here fails open");
        }
    }

    fn read(&self) -> (AdmissionLog, History) {
        let (mut log, mut history) = (AdmissionLog::default(), History::default());
        for (admissions, noted) in &self.left {
            if admissions.exists() {
                log.read(admissions).unwrap();
            }
            if noted.exists() {
                history.read(noted).unwrap();
            }
        }
        (log, history)
    }
}

/// Somebody who reads books and corrects accounts, asking one node after another.
struct Operator {
    nodes: Vec<SocketAddr>,
    asked: usize,
    seen: Vec<Record>,
}

impl Operator {
    fn new(nodes: &[SocketAddr]) -> Self {
        Self {
            nodes: nodes.to_vec(),
            asked: 0,
            seen: Vec::new(),
        }
    }

    /// The answer, if there is a good one, with the moments around it.
    fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> (u64, Option<Value>) {
        self.asked += 1;
        let node = self.nodes[self.asked % self.nodes.len()];
        let call_ns = clock_ns();
        let answer = LocalCluster::ask(node, method, path, body);
        let answer = answer.ok().filter(|answer| answer.status == 200);
        (call_ns, answer.map(|answer| answer.json()))
    }

    /// Asks until there is a good answer.
    fn insist(&mut self, method: &str, path: &str, body: Option<&Value>) -> (u64, u64, Value) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let (call_ns, Some(answer)) = self.ask(method, path, body) {
                return (call_ns, clock_ns(), answer);
            }
            assert!(
                Instant::now() < give_up,
                "{method} {path} is never answered"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Corrects a key; asks again and again under one id until it is answered.
    fn correct(&mut self, key: &str, id: &str, change: Change) {
        let (what, body) = match change {
            Change::Adjust(units) => (
                "adjust",
                json!({ "id": id, "units": units, "reason": "bought more" }),
            ),
            Change::Reset => ("reset", json!({ "id": id, "reason": "ticket 1" })),
        };
        let path = format!("/v1/accounts/{key}/{what}");
        let give_up = Instant::now() + PATIENCE;
        loop {
            let (call_ns, answer) = self.ask("POST", &path, Some(&body));
            self.seen.push(Record::Correction(Correction {
                key: key.to_owned(),
                id: id.to_owned(),
                call_ns,
                return_ns: clock_ns(),
                acknowledged: answer.is_some(),
                change,
            }));
            if answer.is_some() {
                return;
            }
            assert!(Instant::now() < give_up, "{path} is never answered");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn look(&mut self, key: &str) {
        let path = format!("/v1/accounts/{key}");
        let (call_ns, Some(books)) = self.ask("GET", &path, None) else {
            return;
        };
        let return_ns = clock_ns();
        self.note(key, call_ns, return_ns, &books);
    }

    fn note(&mut self, key: &str, call_ns: u64, return_ns: u64, books: &Value) {
        let figure = |of: &Value, name: &str| of[name].as_u64().expect(name);
        let key = key.to_owned();
        self.seen.push(if books["period"].is_object() {
            Record::Period(PeriodSample {
                key,
                call_ns,
                return_ns,
                number: figure(&books["period"], "number"),
                carried: figure(&books["period"], "carried"),
                counted: figure(books, "counted"),
                outstanding: figure(books, "outstanding"),
            })
        } else {
            Record::Account(AccountSample {
                key,
                call_ns,
                return_ns,
                replica: None,
                limit: figure(books, "limit").into(),
                debt: figure(books, "debt").into(),
                counted: figure(books, "counted").into(),
                outstanding: figure(books, "outstanding").into(),
                free: figure(books, "free").into(),
                leased: None,
                lifetime: None,
            })
        });
    }

    /// What became of the units of a key, read once nobody has any.
    fn charges(&mut self, key: &str) -> ChargeSample {
        let path = format!("/v1/accounts/{key}");
        let give_up = Instant::now() + PATIENCE;
        loop {
            let (call_ns, return_ns, books) = self.insist("GET", &path, None);
            let figure = |name: &str| books["lifetime"][name].as_u64().expect(name);
            let sample = ChargeSample {
                key: key.to_owned(),
                call_ns,
                return_ns,
                spent: figure("spent"),
                presumed_spent: figure("presumed_spent"),
                outstanding: books["outstanding"].as_u64().unwrap(),
                extra: figure("extra"),
                overrun: figure("overrun"),
            };
            // A killed gateway's units come back when its session has expired.
            if sample.outstanding == 0 || Instant::now() > give_up {
                return sample;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Tops up and looks until it is told to stop.
    fn work(&mut self, stop: &AtomicBool) {
        for turn in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let id = format!("top-up-{turn}");
            for key in [CREDIT, DAY] {
                self.correct(key, &id, Change::Adjust(TOP_UP));
                if turn % 3 == 0 {
                    // Whoever lost the answer asks once more.
                    self.correct(key, &id, Change::Adjust(TOP_UP));
                }
            }
            if turn % 5 == 4 {
                self.correct(CREDIT, &format!("refund-{turn}"), Change::Adjust(-7));
            }
            if turn == 6 {
                self.correct(DAY, "reset", Change::Reset);
            }
            for key in [CREDIT, DAY] {
                self.look(key);
            }
            thread::sleep(Duration::from_millis(250));
        }
    }
}

/// Whatever goes wrong meanwhile, the operator goes home.
struct StopsWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Kills the leader, waits for another, and lets the dead one come back.
fn kill_leader(cluster: &mut LocalCluster) -> u64 {
    let leader = cluster.wait_leader(PATIENCE).unwrap();
    cluster.kill(leader.node);
    let killed_ns = clock_ns();
    cluster.wait_leader(PATIENCE).unwrap();
    thread::sleep(Duration::from_millis(1_000));
    cluster.restart(leader.node).unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    killed_ns
}

fn assert_fine(what: &str, verdict: &Verdict) {
    assert!(verdict.checked > 0, "{what}: nothing was judged");
    assert!(verdict.is_fine(), "{what}: {verdict:?}");
}

/// The least share of what a promise allows that a run must have used. A flood uses all
/// that it is given, but a reset gives a period back everything that was used of it: if the
/// machine is so slow that nothing is spent afterwards, half of what is allowed was used.
/// A tenth of everything is for units that die with the gateway that is killed, lie in the
/// one that is stopped, or are added by the operator at the very end.
const USED_AT_LEAST: f64 = 0.5 - 0.1;

/// A promise that is hardly used is easily kept.
fn assert_used_up(key: &str, judgement: &Judgement) {
    assert!(
        judgement.worst_ratio > USED_AT_LEAST,
        "{key}: {judgement:?}"
    );
}

fn assert_kept(key: &str, judgement: &Judgement) {
    eprintln!("{key}: {judgement:?}");
    assert_eq!(judgement.over_admitted, 0, "{key}: {judgement:?}");
}

/// That something was admitted is what makes "never too much" worth anything.
fn assert_useful(key: &str, admissions: &[Admission], since_ns: u64) {
    let useful = admissions
        .iter()
        .any(|admission| admission.call_ns > since_ns);
    assert!(useful, "{key}: nothing was admitted after the last kill");
}

#[test]
fn every_exact_kind_is_kept_while_leaders_and_gateways_are_killed_and_stopped() {
    let _alone = alone();
    let (mut cluster, nodes) = cluster_of_all_kinds();
    let mut operator = Operator::new(&nodes);
    let mut opened = Vec::new();
    for key in [DAY, CREDIT] {
        // An account appears with its first use.
        let body = json!({ "key": key, "units": 1 });
        let (call_ns, return_ns, _) = operator.insist("POST", "/v1/spend", Some(&body));
        opened.push((key, call_ns, return_ns));
        let path = format!("/v1/accounts/{key}");
        let (call_ns, return_ns, books) = operator.insist("GET", &path, None);
        operator.note(key, call_ns, return_ns, &books);
    }
    let both = format!("{TENANT}+{USER}");
    let mut gateways = Gateways::new(&[
        (WINDOW, Manner::Flood, 120.0),
        (BUCKET, Manner::Flood, 80.0),
        (PACED, Manner::Paced, 25.0),
        (LANES, Manner::High, 10.0),
        (LANES, Manner::Honest, 25.0),
        (DAY, Manner::Flood, 60.0),
        (CREDIT, Manner::Flood, 60.0),
        (&both, Manner::Joint, 25.0),
        (PERMITS, Manner::Permits, 40.0),
        (RESERVED, Manner::Reserve, 10.0),
    ]);
    for _ in 0..3 {
        gateways.start(&cluster);
    }

    let stop = AtomicBool::new(false);
    let mut killed_ns = 0;
    thread::scope(|scope| {
        let _stopped = StopsWhenDropped(&stop);
        let working = scope.spawn(|| operator.work(&stop));
        thread::sleep(Duration::from_millis(1_500));
        gateways.running[2].pause();
        let paused = Instant::now();
        kill_leader(&mut cluster);
        gateways.running.remove(0).kill();
        gateways.start(&cluster);
        kill_leader(&mut cluster);
        thread::sleep(STOPPED_FOR.saturating_sub(paused.elapsed()));
        gateways.running[1].resume();
        killed_ns = kill_leader(&mut cluster);
        thread::sleep(Duration::from_millis(1_500));
        stop.store(true, Ordering::Relaxed);
        working.join().expect("the operator");
    });
    gateways.finish();
    for key in [CREDIT, DAY] {
        let path = format!("/v1/accounts/{key}");
        let (call_ns, return_ns, books) = operator.insist("GET", &path, None);
        operator.note(key, call_ns, return_ns, &books);
    }
    let charges = [TENANT, USER, RESERVED].map(|key| operator.charges(key));

    let (mut log, mut history) = gateways.read();
    for (key, call_ns, return_ns) in opened {
        log.add(
            key,
            Admission {
                units: 1,
                call_ns,
                return_ns,
            },
        );
    }
    operator
        .seen
        .into_iter()
        .for_each(|record| history.add(record));
    for (key, promise) in BY_INTERVAL {
        assert_kept(key, &promise.judge(log.of(key)));
        assert_useful(key, log.of(key), killed_ns);
    }
    let corrections = |key: &str| -> Vec<Correction> {
        let all = history.corrections.iter();
        all.filter(|made| made.key == key).cloned().collect()
    };

    let given = corrections(CREDIT);
    let judgement = judge_total(PREPAID, log.of(CREDIT), &given);
    assert_kept(CREDIT, &judgement);
    assert_used_up(CREDIT, &judgement);
    assert_useful(CREDIT, log.of(CREDIT), killed_ns);
    let books = total_books(PREPAID, log.of(CREDIT), &given, &history.accounts);
    assert_fine(CREDIT, &books);

    let given = corrections(DAY);
    let judgement = judge_periods(DAILY, log.of(DAY), &history.periods, &given);
    assert_kept(DAY, &judgement);
    assert_used_up(DAY, &judgement);
    assert_useful(DAY, log.of(DAY), killed_ns);
    let books = period_books(DAILY, log.of(DAY), &history.periods, &given);
    assert_fine(DAY, &books);

    let judgement = judge_permits(AT_ONCE, &history.permits);
    assert_kept(PERMITS, &judgement);
    assert_used_up(PERMITS, &judgement);
    assert_useful(PERMITS, log.of(PERMITS), killed_ns);

    // The other one lost its session, and told afterwards what it had really used.
    let dead = BTreeSet::from(["gw-1".to_owned(), "gw-3".to_owned()]);
    let verdict = all_or_none(&history.joints, &charges, &dead);
    assert_fine("all or none", &verdict);
    let verdict = settlements(&history.settlements, &charges, &dead);
    assert_fine("settled", &verdict);
}

#[test]
fn joint_requests_and_settled_reservations_are_charged_exactly_while_a_leader_is_killed() {
    let _alone = alone();
    let (mut cluster, nodes) = cluster_of_all_kinds();
    let both = format!("{TENANT}+{USER}");
    let mut gateways = Gateways::new(&[
        (&both, Manner::Joint, 60.0),
        (RESERVED, Manner::Reserve, 20.0),
    ]);
    for _ in 0..2 {
        gateways.start(&cluster);
    }
    thread::sleep(Duration::from_millis(1_500));
    let killed_ns = kill_leader(&mut cluster);
    thread::sleep(Duration::from_millis(1_500));
    gateways.finish();
    let mut operator = Operator::new(&nodes);
    let charges = [TENANT, USER, RESERVED].map(|key| operator.charges(key));
    let (log, history) = gateways.read();
    for (key, promise) in BY_INTERVAL {
        assert_kept(key, &promise.judge(log.of(key)));
    }
    for key in [TENANT, USER, RESERVED] {
        assert_useful(key, log.of(key), killed_ns);
    }
    let refused = history.joints.iter().filter(|joint| !joint.admitted);
    assert!(refused.count() > 10, "hardly anything was refused");
    let verdict = all_or_none(&history.joints, &charges, &BTreeSet::new());
    assert_fine("all or none", &verdict);
    let over = history
        .settlements
        .iter()
        .filter(|settled| settled.overrun > 0);
    assert!(over.count() > 0, "nothing was used beyond what was held");
    let verdict = settlements(&history.settlements, &charges, &BTreeSet::new());
    assert_fine("settled", &verdict);
}
