//! Three regions, a node and gateways in each, and distance between them: how long
//! requests take, what the distance costs, what a region does that is cut off, and
//! where the leader is. Knows no fault but these.
//!
//! What a budget is worth is judged from the gateways' logs alone (`judge.rs`); an
//! exact central log is run beside it on the same arrivals.

mod judge;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::runtime::Builder;

use super::{
    callers::Callers,
    cluster::Cluster,
    fleet::host,
    ground::{CLIENT_PORT, Ground},
    host::Host,
    journal::Journal,
    link::Mode,
    links::Links,
    node::Settings,
    process::Process,
};
use crate::{Load, Manner, clock_ns};

const REGIONS: [&str; 3] = ["north", "south", "west"];
/// Where the leader should be.
const HOME: usize = 0;
/// Who is cut off.
const ISLAND: usize = 1;
const BUSY: &str = "regions/busy";
const BUSY_PATTERN: &str = "regions/busy";
const QUIET_PATTERN: &str = "regions/quiet/*";
/// Gateways of each region that spend from the busy key; one more spends from quiet
/// keys, so that most of its requests ask.
const SPENDERS: usize = 2;
const GATEWAYS: usize = SPENDERS + 1;
const QUIET_KEYS: usize = 600;
const QUIET_PER_SECOND: f64 = 1.0 / 60.0;
const WINDOW: Duration = Duration::from_secs(60);
/// Several round trips, so that every ask of a quiet key is answered.
const QUIET_MAX_WAIT_MS: u64 = 1_000;
/// Without distance, for comparison.
const NEAR: Duration = Duration::from_secs(20);
const CUT: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(20);

const SETTINGS: Settings = Settings {
    session_ttl_ms: 10_000,
    sync_interval_ms: 1_000,
    snapshot_every_entries: 5_000,
    snapshot_keep_entries: 5_000,
    // A heartbeat interval of several round trips.
    raft_ms: [300, 1_500, 3_000],
    region: |id| {
        REGIONS
            .get(usize::try_from(id).ok()?.checked_sub(1)?)
            .copied()
    },
};

/// What a run is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long is measured, in minutes.
    pub minutes: f64,
    /// From one region to another, one way.
    pub distance: Duration,
    /// Units of the busy key a minute, and how many requests come for it.
    pub limit: u64,
    /// How long a request for it waits at most. At the limit, what is free is on its
    /// way most of the time: who waits longer is refused less often, and more wait.
    pub busy_max_wait_ms: u64,
    /// Most refusals beyond an exact central log, in points.
    pub excess_max_pp: f64,
    /// Most requests that wait, in percent.
    pub waited_max_pct: f64,
    /// The coordinator's binary.
    pub leasehold: PathBuf,
    /// The gateway's binary.
    pub gateway: PathBuf,
    /// Set by whoever wants the run to end early.
    pub stop: Arc<AtomicBool>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// All figures.
    pub json: Value,
    /// What was promised and not kept.
    pub complaints: Vec<String>,
}

/// Runs, and says what came of it.
///
/// # Errors
/// When the run could not be made, which says nothing about the product.
pub fn run(plan: &Plan) -> io::Result<Report> {
    let folder = tempfile::Builder::new()
        .prefix("leasehold-regions-")
        .tempdir()?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let journal = Journal::create(&folder.path().join("regions.log"))?;
    let mut ground = Ground::new();
    let callers = ground.without_namespaces().map(|_| Callers::default());
    let mut links = Links::new(runtime.handle().clone(), callers.clone());
    for place in 0..REGIONS.len() * GATEWAYS {
        ground.add(host(place))?;
        links.add(&ground, host(place))?;
    }
    let cluster = Cluster::start(
        folder.path(),
        u64::try_from(REGIONS.len()).map_err(io::Error::other)?,
        SETTINGS,
        &plan.leasehold,
        &mut ground,
        &mut links,
        callers.clone(),
    )?;
    let mut world = Regions {
        plan,
        folder: folder.path(),
        gateways: Vec::new(),
        cluster,
        links,
        ground,
        callers,
        journal,
    };
    let report = world.go().and_then(|moments| world.judge(&moments));
    drop(world);
    drop(runtime);
    if !report
        .as_ref()
        .is_ok_and(|report| report.complaints.is_empty())
    {
        eprintln!("regions: files are in {}", folder.keep().display());
    }
    report
}

/// A gateway process, and what it leaves behind.
struct Gateway {
    process: Process,
    region: usize,
    is_spender: bool,
    admissions: PathBuf,
    requests: PathBuf,
}

struct Regions<'a> {
    plan: &'a Plan,
    folder: &'a Path,
    // Processes end before the places that they are in.
    gateways: Vec<Gateway>,
    cluster: Cluster,
    links: Links,
    ground: Ground,
    callers: Option<Callers>,
    journal: Journal,
}

/// When what happened, by `clock_ns`, and how long some of it took.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    near_ns: u64,
    far_ns: u64,
    measured_ns: (u64, u64),
    cut_ns: (u64, u64),
    home_after_setting_ms: u128,
    home_after_failure_ms: u128,
    end_ns: u64,
}

fn region_of(host: Host) -> usize {
    let number = match host {
        Host::Node(id) => id.saturating_sub(1),
        Host::Gateway(place) => place / u64::try_from(GATEWAYS).unwrap_or(1),
    };
    usize::try_from(number).unwrap_or(0)
}

impl Regions<'_> {
    fn say(&self, text: &str) {
        self.journal.say(text);
    }

    /// Lets time pass; an error: the run was told to stop, or somebody has ended.
    fn hold(&mut self, duration: Duration) -> io::Result<()> {
        let until = Instant::now() + duration;
        while Instant::now() < until {
            self.look()?;
            thread::sleep(GLANCE.min(until.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    fn look(&mut self) -> io::Result<()> {
        if self.plan.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("told to stop"));
        }
        for gateway in &mut self.gateways {
            if let Some(status) = gateway.process.ended() {
                return Err(io::Error::other(format!("a gateway ended with {status}")));
            }
        }
        Ok(())
    }

    fn until(&mut self, what: &str, holds: impl Fn(&mut Self) -> bool) -> io::Result<Duration> {
        let began = Instant::now();
        while !holds(self) {
            self.look()?;
            if began.elapsed() > PATIENCE {
                return Err(io::Error::other(format!(
                    "{what} did not happen within {} s",
                    PATIENCE.as_secs()
                )));
            }
            thread::sleep(GLANCE);
        }
        Ok(began.elapsed())
    }

    fn put(&self, path: &str, body: &Value) -> io::Result<()> {
        match self.cluster.ask("PUT", path, Some(body), PATIENCE) {
            Some(answer) if answer.status < 300 => Ok(()),
            other => Err(io::Error::other(format!("PUT {path}: {other:?}"))),
        }
    }

    fn go(&mut self) -> io::Result<Moments> {
        let mut moments = Moments::default();
        self.until("a cluster", |world| {
            let ids = world.cluster.ids();
            world.cluster.leader().is_some()
                && ids
                    .into_iter()
                    .all(|id| world.cluster.node(id).is_some_and(|node| node.is_ready()))
        })?;
        let window_ms = u64::try_from(WINDOW.as_millis()).map_err(io::Error::other)?;
        let budget = |limit: u64, max_wait_ms: u64| {
            let policy = json!({
                "kind": "sliding_window",
                "limit": limit,
                "window_ms": window_ms,
                "max_wait_ms": max_wait_ms,
            });
            json!({ "policy": policy })
        };
        self.put(
            &format!("/v1/budgets/{BUSY_PATTERN}"),
            &budget(self.plan.limit, self.plan.busy_max_wait_ms),
        )?;
        self.put(
            &format!("/v1/budgets/{QUIET_PATTERN}"),
            &budget(100, QUIET_MAX_WAIT_MS),
        )?;
        for place in 0..REGIONS.len() * GATEWAYS {
            self.start_gateway(place)?;
        }
        self.say("no distance yet");
        moments.near_ns = clock_ns();
        self.hold(NEAR)?;

        moments.far_ns = clock_ns();
        self.set_distance();
        self.say("regions are apart");
        self.put(
            "/v1/settings",
            &json!({"preferred_leader_region": REGIONS[HOME]}),
        )?;
        let home = Self::home;
        moments.home_after_setting_ms = self
            .until("a leader in the preferred region", |world| {
                world.cluster.leader() == Some(home())
            })?
            .as_millis();
        self.say("the leader is in the preferred region");
        self.hold(WINDOW + WINDOW / 4)?;

        moments.measured_ns.0 = clock_ns();
        self.say("measuring");
        self.hold(
            Duration::try_from_secs_f64(60.0 * self.plan.minutes).map_err(io::Error::other)?,
        )?;
        moments.measured_ns.1 = clock_ns();

        self.say("a region is cut off");
        moments.cut_ns.0 = clock_ns();
        let (island, rest): (Vec<Host>, Vec<Host>) = self
            .links
            .hosts()
            .into_iter()
            .partition(|host| region_of(*host) == ISLAND);
        self.links.partition(&island, &rest, Mode::Stall);
        self.hold(CUT)?;
        self.links.heal();
        self.set_distance();
        moments.cut_ns.1 = clock_ns();
        self.say("and is back");
        self.hold(CUT)?;

        self.say("the leader's region fails");
        self.cluster.kill(Self::home());
        self.until("a leader elsewhere", |world| {
            world
                .cluster
                .leader()
                .is_some_and(|leader| leader != home())
        })?;
        self.hold(Duration::from_secs(5))?;
        self.cluster.run(Self::home(), &self.ground)?;
        moments.home_after_failure_ms = self
            .until("a leader in the preferred region again", |world| {
                world.cluster.leader() == Some(home())
            })?
            .as_millis();
        self.say("and leads again");
        self.hold(Duration::from_secs(10))?;
        moments.end_ns = clock_ns();
        for gateway in &mut self.gateways {
            gateway.process.close_input();
        }
        for gateway in &mut self.gateways {
            match gateway.process.wait(PATIENCE) {
                Some(status) if status.success() => {}
                other => {
                    return Err(io::Error::other(format!("a gateway ended with {other:?}")));
                }
            }
        }
        Ok(moments)
    }

    fn home() -> u64 {
        u64::try_from(HOME).unwrap_or(0) + 1
    }

    fn set_distance(&self) {
        let hosts = self.links.hosts();
        for from in &hosts {
            for to in &hosts {
                if region_of(*from) != region_of(*to) {
                    self.links
                        .change(*from, *to, |path| path.delay = self.plan.distance);
                }
            }
        }
    }

    fn start_gateway(&mut self, place: usize) -> io::Result<()> {
        let region = region_of(host(place));
        let is_spender = place % GATEWAYS < SPENDERS;
        let holder = format!("{}-{}", REGIONS[region], place % GATEWAYS);
        let file = |what: &str| self.folder.join(format!("{holder}.{what}"));
        let (admissions, requests) = (file("admissions"), file("requests"));
        let mut command = self.ground.command(host(place), &self.plan.gateway);
        command
            .arg("--holder")
            .arg(&holder)
            .arg("--log")
            .arg(&admissions)
            .arg("--requests")
            .arg(&requests);
        // Its own region's node first.
        for offset in 0..REGIONS.len() {
            let id = u64::try_from((region + offset) % REGIONS.len()).unwrap_or(0) + 1;
            let address = self.ground.advertised(Host::Node(id))?;
            command
                .arg("--endpoint")
                .arg(format!("http://{address}:{CLIENT_PORT}"));
        }
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let busy_per_second =
            self.plan.limit as f64 / WINDOW.as_secs_f64() / (REGIONS.len() * SPENDERS) as f64;
        let load = |key: String, per_second| Load {
            key,
            per_second,
            manner: Manner::Honest,
        };
        let loads = if is_spender {
            vec![load(BUSY.to_owned(), busy_per_second)]
        } else {
            (0..QUIET_KEYS)
                .map(|number| {
                    let key = format!("regions/quiet/{}.{number}", REGIONS[region]);
                    load(key, QUIET_PER_SECOND)
                })
                .collect()
        };
        for load in loads {
            command.arg("--load").arg(load.to_string());
        }
        let said = File::create(file("log"))?;
        let process = Process::start(
            command
                .stdin(Stdio::piped())
                .stdout(said.try_clone()?)
                .stderr(said),
        )?;
        if let Some(callers) = &self.callers {
            callers.started(process.id(), host(place));
        }
        self.gateways.push(Gateway {
            process,
            region,
            is_spender,
            admissions,
            requests,
        });
        Ok(())
    }
}
