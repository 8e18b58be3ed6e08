//! A live run held against the simulator: real nodes, real gateway processes, real
//! sockets and disks, and the share of requests that had to wait for a message. The
//! delays that were measured meanwhile are given to the simulator, which must say
//! the same of the same requests.
//!
//! `cargo run --release -p leasehold-tests --bin live -- --minutes 10` prints a
//! table and a JSON line, adds the latter to `tests/results/live-run.jsonl`, and
//! fails when the simulator is wrong or a unit was over-admitted. Build the whole
//! package first: it starts the binaries that lie beside it.

mod delays;
mod simulated;

use std::{
    error::Error,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use leasehold_sim::{Request, SECOND};
use leasehold_tests::{
    AdmissionLog, GatewayProcess, Judgement, Load, LocalCluster, Manner, NotedRequest, Promise,
    Told, append_results, clock_ns, read_requests, results_file,
};
use serde_json::{Value, json};

use self::{
    delays::{Commits, Delays, PROBE_KEYS, Probed, probe},
    simulated::{Ideal, Simulated, ideal, replay, simulate},
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
struct Flags {
    /// How long the gateways run, in minutes
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Gateway processes
    #[arg(long, default_value_t = 8)]
    gateways: usize,
    /// Units in any window
    #[arg(long, default_value_t = 100)]
    limit: u64,
    /// The window, in seconds
    #[arg(long, default_value_t = 10)]
    window: u64,
    /// Requests per limit
    #[arg(long, default_value_t = 0.8)]
    load: f64,
    /// How far the simulator may be off, in points; a short run needs more
    #[arg(long, default_value_t = 3.0)]
    tolerance: f64,
    /// Hours of virtual time per seed
    #[arg(long, default_value_t = 10)]
    hours: u64,
    /// Seeds of the simulator
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// The coordinator's binary [default: the one built beside this program]
    #[arg(long)]
    leasehold: Option<PathBuf>,
    /// Where the result is added [default: tests/results/live-run.jsonl]
    #[arg(long)]
    results: Option<PathBuf>,
}

/// What both worlds have in common.
#[derive(Clone, Copy, Debug)]
struct Setting {
    gateways: usize,
    limit: u64,
    window_s: u64,
    load: f64,
    seeds: u64,
}

const KEY: &str = "live/orders";
const PATIENCE: Duration = Duration::from_secs(30);
/// Windows that are left out at the beginning, while estimates fill.
const WARM_UP_WINDOWS: u64 = 3;
/// The simulator's gateways start so long before the first request, as the real
/// ones connect before they spend.
const HEAD_START_US: u64 = 2 * SECOND;

impl Setting {
    fn window_us(&self) -> u64 {
        self.window_s * SECOND
    }

    fn warm_up_us(&self) -> u64 {
        HEAD_START_US + WARM_UP_WINDOWS * self.window_us()
    }

    fn per_second(&self) -> f64 {
        self.load * float(self.limit) / float(self.window_s)
    }

    fn promise(&self) -> Promise {
        Promise::Window {
            limit: self.limit,
            window_us: self.window_us(),
        }
    }
}

/// A live request, where it arrived, and when on the simulator's clock.
#[derive(Clone, Copy, Debug)]
struct Live {
    gateway: usize,
    at_us: u64,
    noted: NotedRequest,
}

/// What came of a live run.
struct Run {
    requests: Vec<Live>,
    judged: Judgement,
    delays: Delays,
    probes_failed: u64,
    leader_changed: bool,
}

fn main() -> ExitCode {
    match report(&Flags::parse()) {
        Ok(complaints) if complaints.is_empty() => ExitCode::SUCCESS,
        Ok(complaints) => {
            for complaint in complaints {
                eprintln!("live: {complaint}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("live: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report(flags: &Flags) -> Outcome<Vec<String>> {
    let setting = Setting {
        gateways: flags.gateways,
        limit: flags.limit,
        window_s: flags.window,
        load: flags.load,
        seeds: flags.seeds,
    };
    let warm_up = Duration::from_micros(setting.warm_up_us());
    let duration = Duration::try_from_secs_f64(60.0 * flags.minutes)?;
    if duration <= warm_up {
        return Err(format!(
            "--minutes {} must be more than the first {} s, which do not count",
            flags.minutes,
            warm_up.as_secs()
        )
        .into());
    }
    if setting.gateways == 0 || setting.seeds == 0 {
        return Err("--gateways and --seeds must be at least 1".into());
    }
    let run = run_live(&setting, duration, flags.leasehold.clone())?;
    let arrived: Vec<Request> = (0..)
        .zip(&run.requests)
        .map(|(id, live)| live.request(id))
        .collect();
    println!("simulating {} x {} h", setting.seeds, flags.hours);
    let figures = Figures {
        live: count(&setting, &run.requests),
        replayed: replay(&setting, &run.delays, &arrived)?,
        simulated: simulate(&setting, &run.delays, flags.hours)?,
        ideal: ideal(&setting, &arrived),
        run,
    };
    figures.print(&setting);
    let line = figures.line(&setting, flags);
    println!("{line}");
    let results = flags.results.clone();
    let results = results.unwrap_or_else(|| results_file("live-run.jsonl"));
    append_results(&results, &[line])?;
    println!("added to {}", results.display());
    Ok(figures.complaints(flags.tolerance))
}

fn run_live(setting: &Setting, duration: Duration, binary: Option<PathBuf>) -> Outcome<Run> {
    let own = std::env::current_exe()?;
    let binary = binary.unwrap_or_else(|| own.with_file_name("leasehold-under-test"));
    let gateway = own.with_file_name("gateway");
    for needed in [&binary, &gateway] {
        if !needed.exists() {
            return Err(format!(
                "{} is not there; build all of this package first: cargo build --release -p \
                 leasehold-tests",
                needed.display()
            )
            .into());
        }
    }
    let mut cluster = LocalCluster::start(&binary, 3, "")?;
    cluster.wait_ready(PATIENCE)?;
    let leader = cluster.wait_leader(PATIENCE)?;
    put_budget(&cluster, KEY, setting.limit, 1_000 * setting.window_s)?;
    put_budget(&cluster, PROBE_KEYS, 1 << 50, 1_000)?;

    let per_second = setting.per_second() / float(u64::try_from(setting.gateways)?);
    let load = Load {
        key: KEY.to_owned(),
        per_second,
        manner: Manner::Honest,
    };
    let began = Instant::now();
    let path = |number: usize, what: &str| cluster.dir().join(format!("gateway-{number}.{what}"));
    let mut gateways = (0..setting.gateways)
        .map(|number| {
            GatewayProcess::start_noting(
                &gateway,
                &format!("gateway-{number}"),
                &cluster.endpoints(),
                std::slice::from_ref(&load),
                path(number, "admissions"),
                Some(&path(number, "requests")),
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    println!(
        "{} gateways at {per_second} requests/s each, for {} s",
        setting.gateways,
        duration.as_secs()
    );
    std::thread::sleep(Duration::from_micros(setting.warm_up_us()));
    let before = Commits::scrape(&cluster)?;
    let mut probed: Probed =
        tokio::runtime::Runtime::new()?.block_on(probe(&cluster.endpoints(), began + duration))?;
    let after = Commits::scrape(&cluster)?;
    // What comes while they end is not the traffic that was asked for.
    let until_ns = clock_ns();
    for gateway in &mut gateways {
        gateway.wind_up();
    }
    let mut noted = Vec::new();
    let mut admissions = AdmissionLog::default();
    for (number, gateway) in gateways.into_iter().enumerate() {
        gateway.finish()?;
        admissions.read(&path(number, "admissions"))?;
        for request in read_requests(&path(number, "requests"))? {
            if request.call_ns < until_ns {
                noted.push((number, request));
            }
        }
    }
    noted.sort_unstable_by_key(|(number, request)| (request.call_ns, *number));
    let first_ns = noted.first().map_or(0, |(_, request)| request.call_ns);
    let requests = noted
        .into_iter()
        .map(|(gateway, noted)| Live {
            gateway,
            at_us: HEAD_START_US + (noted.call_ns - first_ns) / 1_000,
            noted,
        })
        .collect();
    Ok(Run {
        requests,
        judged: setting.promise().judge(admissions.of(KEY)),
        delays: Delays::derive(&mut probed, (&before, &after))?,
        probes_failed: probed.failed,
        leader_changed: cluster.wait_leader(PATIENCE)? != leader,
    })
}

fn put_budget(cluster: &LocalCluster, pattern: &str, limit: u64, window_ms: u64) -> Outcome<()> {
    let body = json!({ "policy": {
        "kind": "sliding_window", "limit": limit, "window_ms": window_ms,
    } });
    let path = format!("/v1/budgets/{pattern}");
    let answer = cluster.request("PUT", &path, Some(&body), PATIENCE)?;
    if answer.status >= 300 {
        return Err(format!("PUT {path}: {answer:?}").into());
    }
    Ok(())
}

impl Live {
    fn request(&self, id: u64) -> Request {
        Request {
            id,
            at_us: self.at_us,
            gateway: self.gateway,
            key: 0,
            units: 1,
            lane: leasehold_sim::LOWEST_LANE,
        }
    }
}

/// Counts of live requests after the warm-up.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    requests: u64,
    admitted: u64,
    refused: u64,
    waited: u64,
    /// Of the refused ones: nobody could be asked.
    unavailable: u64,
}

impl Count {
    fn percent(&self, of: u64) -> f64 {
        100.0 * float(of) / float(self.requests.max(1))
    }
}

fn count<'a>(setting: &Setting, requests: impl IntoIterator<Item = &'a Live>) -> Count {
    let mut count = Count::default();
    for live in requests {
        if live.at_us < setting.warm_up_us() {
            continue;
        }
        let told = live.noted.told;
        count.requests += 1;
        count.waited += u64::from(live.noted.waited);
        count.admitted += u64::from(told == Told::Admitted);
        count.refused += u64::from(told != Told::Admitted);
        count.unavailable += u64::from(matches!(told, Told::Unavailable | Told::Degraded));
    }
    count
}

/// Everything that the result tells.
struct Figures {
    run: Run,
    live: Count,
    replayed: Simulated,
    simulated: Simulated,
    ideal: Ideal,
}

impl Figures {
    fn live_wait_pct(&self) -> f64 {
        self.live.percent(self.live.waited)
    }

    fn replayed_wait_pct(&self) -> f64 {
        self.replayed.tally.percent(self.replayed.tally.waited)
    }

    fn simulated_wait_pct(&self) -> f64 {
        self.simulated.tally.percent(self.simulated.tally.waited)
    }

    /// Live minus simulated, whichever of the two simulations is further off.
    fn difference_pp(&self) -> f64 {
        let replayed = self.live_wait_pct() - self.replayed_wait_pct();
        let simulated = self.live_wait_pct() - self.simulated_wait_pct();
        if replayed.abs() > simulated.abs() {
            replayed
        } else {
            simulated
        }
    }

    /// Refusals beyond an exact central log on the same requests, in points.
    fn excess_pp(&self) -> f64 {
        self.live.percent(self.live.refused) - self.ideal.refused_pct
    }

    fn replayed_excess_pp(&self) -> f64 {
        self.replayed.tally.percent(self.replayed.tally.refused) - self.ideal.refused_pct
    }

    /// The median wait of requests that waited and were admitted, recalls and all.
    fn waited_p50_ms(&self) -> f64 {
        let waited = self
            .run
            .requests
            .iter()
            .filter(|live| live.noted.waited && live.noted.told == Told::Admitted);
        let mut waited_us: Vec<u64> = waited
            .map(|live| (live.noted.return_ns - live.noted.call_ns) / 1_000)
            .collect();
        waited_us.sort_unstable();
        waited_us
            .get(waited_us.len() / 2)
            .map_or(0.0, |us| float(*us) / 1e3)
    }

    fn print(&self, setting: &Setting) {
        let delays = &self.run.delays;
        println!("measured: {delays:?}");
        println!(
            "{:<22} {:>9} {:>9} {:>9} {:>9}  over-admitted",
            "", "requests", "waits %", "refused %", "admitted"
        );
        for number in 0..setting.gateways {
            let own = self
                .run
                .requests
                .iter()
                .filter(|live| live.gateway == number);
            let own = count(setting, own);
            row(&format!("gateway {number}"), &own, None);
        }
        row("live", &self.live, Some(self.run.judged.over_admitted));
        for (what, simulated) in [
            ("the same, replayed", &self.replayed),
            ("simulated", &self.simulated),
        ] {
            let tally = simulated.tally;
            let count = Count {
                requests: tally.requests,
                admitted: tally.admitted,
                refused: tally.refused,
                waited: tally.waited,
                unavailable: 0,
            };
            row(what, &count, Some(simulated.over_admitted));
        }
        println!(
            "proven bound on these arrivals: {:.2} % wait; an exact central log refuses {:.2} %",
            self.ideal.wait_bound_pct, self.ideal.refused_pct
        );
    }

    fn line(&self, setting: &Setting, flags: &Flags) -> Value {
        json!({
            "optimized": !cfg!(debug_assertions),
            "minutes": flags.minutes,
            "gateways": setting.gateways,
            "limit": setting.limit,
            "window_s": setting.window_s,
            "load": setting.load,
            "requests": self.live.requests,
            "unavailable": self.live.unavailable,
            "live_wait_pct": rounded(self.live_wait_pct()),
            "replayed_wait_pct": rounded(self.replayed_wait_pct()),
            "simulated_wait_pct": rounded(self.simulated_wait_pct()),
            "difference_pp": rounded(self.difference_pp()),
            "tolerance_pp": flags.tolerance,
            "bound_pct": rounded(self.ideal.wait_bound_pct),
            "over_admitted": self.run.judged.over_admitted,
            "worst_window_units": self.run.judged.worst_units,
            "refused_pct": rounded(self.live.percent(self.live.refused)),
            "excess_pp": rounded(self.excess_pp()),
            "replayed_excess_pp": rounded(self.replayed_excess_pp()),
            "waited_p50_ms": rounded(self.waited_p50_ms()),
            "delays": self.run.delays,
            "probes_failed": self.run.probes_failed,
            "leader_changed": self.run.leader_changed,
        })
    }

    fn complaints(&self, tolerance_pp: f64) -> Vec<String> {
        let mut complaints = Vec::new();
        let off = self.difference_pp();
        if off.abs() > tolerance_pp {
            complaints.push(format!(
                "live waits are {off:.2} points off the simulator's; at most {tolerance_pp} are allowed"
            ));
        }
        let over = [
            ("live", self.run.judged.over_admitted),
            ("replayed", self.replayed.over_admitted),
            ("simulated", self.simulated.over_admitted),
        ];
        for (what, over_admitted) in over {
            if over_admitted > 0 {
                complaints.push(format!("{what}: {over_admitted} units over-admitted"));
            }
        }
        complaints
    }
}

fn row(what: &str, count: &Count, over_admitted: Option<u64>) {
    println!(
        "{what:<22} {:>9} {:>9.2} {:>9.2} {:>9}  {}",
        count.requests,
        count.percent(count.waited),
        count.percent(count.refused),
        count.admitted,
        over_admitted.map_or_else(String::new, |units| units.to_string()),
    );
}

fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn float(value: u64) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "delays are not negative; `as` saturates"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}
