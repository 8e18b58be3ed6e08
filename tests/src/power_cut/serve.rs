//! The power cut under a whole node: a real `leasehold serve`, its real log, and
//! operators whose changes it acknowledged over HTTP. Knows nothing of the log's
//! entries but that they hold the names of policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold_coordinator::store::{self, Identity, StoreError};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Serialize;
use serde_json::json;

use super::{
    NODE_ID, Outcome,
    disk::Tree,
    rebuilt,
    record::{Recorder, Recording},
    trace::{Call, Step},
};
use crate::LocalCluster;

/// As people start it first: the folder is not there, and its name is relative.
const DATA: &str = "data";
const NAME: &str = "cut-";
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Operators at work at the same time.
const OPERATORS: usize = 6;
/// Changes that are acknowledged in one life of the node.
const CHANGES: u64 = 150;
const LIVES: usize = 3;
/// One in so many folders is also served from, by the binary itself.
const SERVED_ONE_IN: usize = 20;

/// What is to be tried.
#[derive(Clone, Debug)]
pub struct ServePlan {
    /// How often power is cut.
    pub cuts: usize,
    /// Decides where.
    pub seed: u64,
    /// The coordinator's binary.
    pub leasehold: PathBuf,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServeReport {
    /// Cuts whose folder was opened.
    pub cuts: usize,
    /// Of these, folders on which a node was started and asked.
    pub served: usize,
    /// Changes that were acknowledged in all.
    pub acknowledged: usize,
    /// Cuts after which a store refused to open, by what it said.
    pub refusals: BTreeMap<String, usize>,
    /// Cuts that broke a promise.
    pub violations: usize,
    /// The violations, in words.
    pub told: Vec<String>,
}

impl ServeReport {
    /// Nothing was lost, and every store started.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations == 0 && self.refusals.is_empty()
    }
}

/// Records a node, cuts its power, and looks at what is left.
///
/// # Errors
/// When nothing can be recorded.
pub fn cut_serve(plan: &ServePlan) -> Outcome<ServeReport> {
    let mut report = ServeReport::default();
    if plan.cuts == 0 {
        return Ok(report);
    }
    let recording = record(plan)?;
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let steps = recording.steps.len();
    let mut moments: Vec<usize> = (0..plan.cuts)
        .map(|_| rng.random_range(0..=steps))
        .collect();
    moments.sort_unstable();
    let mut disk = recording.disk()?;
    for step in &recording.steps {
        disk.step(step)?;
    }
    let whole = read_log(&disk.as_it_is(&mut rng))?;

    let mut disk = recording.disk()?;
    let mut acknowledged = BTreeSet::new();
    let mut done = 0;
    for (number, moment) in moments.into_iter().enumerate() {
        for step in &recording.steps[done..moment] {
            disk.step(step)?;
            acknowledged.extend(answered(step));
        }
        done = moment;
        let cut = disk.draw(&mut rng);
        let tree = disk.cut(&cut, &mut rng);
        report.cuts += 1;
        let looked = look(&tree, &whole, &acknowledged).and_then(|()| {
            if number % SERVED_ONE_IN == SERVED_ONE_IN / 2 {
                report.served += 1;
                serve_from(plan, &tree, &acknowledged)?;
            }
            Ok(())
        });
        if let Err(error) = looked {
            let told = format!("serve, cut at step {moment} ({cut:?}): {error}");
            match error.downcast_ref::<StoreError>() {
                Some(refused) => {
                    let code = refused.code().to_owned();
                    *report.refusals.entry(code).or_default() += 1;
                }
                None => report.violations += 1,
            }
            report.told.push(told);
        }
    }
    for step in &recording.steps[done..] {
        acknowledged.extend(answered(step));
    }
    report.acknowledged = acknowledged.len();
    Ok(report)
}

fn record(plan: &ServePlan) -> Outcome<Recording> {
    let mut recorder = Recorder::new(Tree::default())?;
    let next = AtomicU64::new(0);
    for life in 0..LIVES {
        let mut node = Node::start(recorder.strace(), plan, recorder.root())?;
        node.wait_ready()?;
        let until = next.load(Ordering::Relaxed) + CHANGES;
        let (client, ended) = (node.client, AtomicBool::new(false));
        thread::scope(|scope| -> Outcome<()> {
            for _ in 0..OPERATORS {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        // What fails was not acknowledged.
                        let _ = put(client, number);
                    }
                });
            }
            let give_up = Instant::now() + PATIENCE;
            while next.load(Ordering::Relaxed) < until && Instant::now() < give_up {
                thread::sleep(POLL);
            }
            // In the midst of it; once as an operator stops it.
            let killed = node.end(life % 2 == 1);
            ended.store(true, Ordering::Relaxed);
            killed
        })?;
        recorder.ended()?;
    }
    recorder.finish()
}

/// A node below strace, or by itself.
struct Node {
    child: Child,
    client: SocketAddr,
}

impl Node {
    fn start(mut command: Command, plan: &ServePlan, cwd: &Path) -> Outcome<Self> {
        let ports = LocalCluster::free_ports(2)?;
        let client = SocketAddr::from(([127, 0, 0, 1], ports[0]));
        let child = command
            .arg(&plan.leasehold)
            .args(["serve", "--data-dir", DATA, "--listen"])
            .arg(client.to_string())
            .args(["--peer-listen", &format!("127.0.0.1:{}", ports[1])])
            .args(["--log", "error"])
            .current_dir(cwd)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, client })
    }

    fn wait_ready(&mut self) -> Outcome<()> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let answer = LocalCluster::ask(self.client, "GET", "/readyz", None);
            if answer.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("the node ended: {status}").into());
            }
            if Instant::now() > give_up {
                return Err("the node is not ready".into());
            }
            thread::sleep(POLL);
        }
    }

    /// Ends the traced process, so that strace ends too.
    fn end(&mut self, gently: bool) -> Outcome<()> {
        use rustix::process::{Pid, Signal, kill_process};
        let strace = self.child.id();
        let children = fs::read_to_string(format!("/proc/{strace}/task/{strace}/children"))?;
        let signal = if gently { Signal::TERM } else { Signal::KILL };
        for child in children.split_whitespace() {
            let pid = Pid::from_raw(child.parse()?).ok_or("no process id")?;
            kill_process(pid, signal)?;
        }
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It has ended already, or nobody asks how.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn put(client: SocketAddr, number: u64) -> Outcome<()> {
    let body = json!({"kind": "sliding_window", "limit": number, "window_ms": 60_000});
    LocalCluster::ask(
        client,
        "PUT",
        &format!("/v1/policies/{NAME}{number:06}"),
        Some(&body),
    )?;
    Ok(())
}

/// The policy whose change is acknowledged by what was said.
fn answered(step: &Step) -> Option<String> {
    let Step::Begin {
        call: Call::Said { bytes },
        ..
    } = step
    else {
        return None;
    };
    let text = String::from_utf8_lossy(bytes);
    if !text.starts_with("HTTP/1.") || !text.contains(" 200 ") {
        return None;
    }
    let (_, rest) = text.split_once(NAME)?;
    Some(format!("{NAME}{}", rest.get(..6)?))
}

type Entries = BTreeMap<u64, (u64, Vec<u8>)>;

fn read_log(tree: &Tree) -> Outcome<Entries> {
    let dir = rebuilt(tree)?;
    let data = dir.path().join(DATA);
    let identity = Identity::load_or_create(&data, NODE_ID)?;
    let opened = store::open(&data, &identity, |_| {})?;
    let entries = &opened.loaded.entries;
    Ok(entries
        .iter()
        .map(|(at, bytes)| (at.index, (at.term, bytes.to_vec())))
        .collect())
}

fn look(tree: &Tree, whole: &Entries, acknowledged: &BTreeSet<String>) -> Outcome<()> {
    let found = read_log(tree)?;
    for (index, entry) in &found {
        // A later life may have replaced what was not acknowledged.
        if whole.get(index).is_some_and(|(term, _)| *term == entry.0)
            && whole.get(index) != Some(entry)
        {
            return Err(format!("entry {index} has other bytes").into());
        }
    }
    let mut names = BTreeSet::new();
    for (_, bytes) in found.values() {
        let places = bytes.windows(NAME.len()).enumerate();
        for (place, _) in places.filter(|(_, window)| *window == NAME.as_bytes()) {
            let name = bytes.get(place..place + NAME.len() + 6);
            names.extend(name.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
    }
    missing(acknowledged, &names)
}

fn missing(acknowledged: &BTreeSet<String>, found: &BTreeSet<String>) -> Outcome<()> {
    match acknowledged.difference(found).next() {
        None => Ok(()),
        Some(name) => Err(format!(
            "acknowledged policy {name} is lost; {} were acknowledged, {} found",
            acknowledged.len(),
            found.len()
        )
        .into()),
    }
}

/// Starts the binary on what is left, and asks it over HTTP.
fn serve_from(plan: &ServePlan, tree: &Tree, acknowledged: &BTreeSet<String>) -> Outcome<()> {
    let dir = rebuilt(tree)?;
    let mut env = Command::new("env");
    env.arg("--");
    let mut node = Node::start(env, plan, dir.path())?;
    node.wait_ready()?;
    let answer = LocalCluster::ask(node.client, "GET", "/v1/policies", None)?;
    let listed = answer.json();
    let listed = listed["policies"].as_array().cloned().unwrap_or_default();
    let names = listed
        .iter()
        .filter_map(|policy| policy["name"].as_str().map(str::to_owned))
        .collect();
    missing(acknowledged, &names)
}
