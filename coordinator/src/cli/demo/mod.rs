//! `leasehold demo`: three nodes, eight gateways, a flood, a killed leader and a
//! verdict. The verdict comes from what the gateways saw; the demo never looks
//! into the coordinator's books.

mod gateway;
pub mod local_cluster;
mod scenes;
mod table;
mod waits;

use std::{
    io,
    ops::Range,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold_checkers::Promise;
use serde_json::json;

use gateway::{Counts, Gateway, Observed, clock_ns};
use local_cluster::LocalCluster;
use scenes::{SCENES, STEADY};
use table::Table;
use waits::{Share, Waits};

/// Flags of `leasehold demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoFlags {
    /// How long the gateways spend, in seconds
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(5..=3600))]
    pub seconds: u64,
    /// Print one JSON object at the end (progress goes to standard error)
    #[arg(long)]
    pub json: bool,
}

const NODES: usize = 3;
const GATEWAYS: u32 = 8;
/// The killed node stays away for so long.
const AWAY: Duration = Duration::from_secs(6);
/// Runs the demo: exit code 0 when every promise was kept, 1 when anything was
/// over-admitted, 2 when the demo itself failed.
#[must_use]
pub fn run(flags: &DemoFlags) -> ExitCode {
    match perform(flags) {
        Ok(kept) => ExitCode::from(u8::from(!kept)),
        Err(error) => {
            eprintln!("the demo failed: {error}");
            ExitCode::from(2)
        }
    }
}

fn perform(flags: &DemoFlags) -> io::Result<bool> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let stop = Arc::new(AtomicBool::new(false));
    runtime.spawn(stop_on_signal(Arc::clone(&stop)));

    eprintln!("starting {NODES} nodes with stores in a temporary folder ...");
    let binary = std::env::current_exe()?;
    let mut cluster = LocalCluster::start(&binary, NODES, "")?;
    cluster.wait_ready(Duration::from_secs(30))?;
    set_up(&cluster)?;

    eprintln!(
        "{GATEWAYS} gateways spend for {} s; the leader is killed half-way",
        flags.seconds
    );
    let observed = Arc::new(Observed::all());
    let gateways = runtime.block_on(connect(&cluster, &observed))?;
    let spending: Vec<_> = gateways
        .into_iter()
        .map(|gateway| runtime.spawn(gateway.spend_until(Arc::clone(&stop))))
        .collect();

    let mut table = Table::new();
    let direction = direct(&mut cluster, flags, &stop, &observed, &mut table)?;
    let interrupted = stop.swap(true, Ordering::Relaxed);
    runtime.block_on(async {
        for gateway in spending {
            // A gateway that cannot hand its leases back in time is left behind.
            let _ = tokio::time::timeout(Duration::from_secs(5), gateway).await;
        }
    });
    table.clear();
    if interrupted {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
    }
    let kept = verdict(flags, &observed, &direction);
    drop(cluster);
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(kept)
}

async fn stop_on_signal(stop: Arc<AtomicBool>) {
    use tokio::signal::unix::{SignalKind, signal};
    if let (Ok(mut int), Ok(mut term)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) {
        tokio::select! { _ = int.recv() => {}, _ = term.recv() => {} }
        stop.store(true, Ordering::Relaxed);
    }
}

/// Gives every key its budget.
fn set_up(cluster: &LocalCluster) -> io::Result<()> {
    for scene in &SCENES {
        let policy = match scene.promise {
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
        let path = format!("/v1/budgets/{}", scene.key);
        let body = json!({ "policy": policy });
        let answer = cluster.request("PUT", &path, Some(&body), Duration::from_secs(10))?;
        if answer.status >= 300 {
            return Err(io::Error::other(format!(
                "PUT {path}: {} {}",
                answer.status, answer.body
            )));
        }
    }
    Ok(())
}

async fn connect(
    cluster: &LocalCluster,
    observed: &Arc<Vec<Observed>>,
) -> io::Result<Vec<Gateway>> {
    let endpoints = cluster.endpoints();
    let mut gateways = Vec::new();
    for number in 0..GATEWAYS as usize {
        let gateway = Gateway::connect(number, &endpoints, Arc::clone(observed)).await;
        gateways.push(gateway.map_err(io::Error::other)?);
    }
    Ok(gateways)
}

/// What happened on the stage, as seen from outside.
struct Direction {
    began: Instant,
    killed_ns: Option<u64>,
    leader_changes: u64,
    outage_ms: u64,
}

/// Kills the leader half-way, brings it back, and shows how things are.
fn direct(
    cluster: &mut LocalCluster,
    flags: &DemoFlags,
    stop: &AtomicBool,
    observed: &[Observed],
    table: &mut Table,
) -> io::Result<Direction> {
    let total = Duration::from_secs(flags.seconds);
    let mut direction = Direction {
        began: Instant::now(),
        killed_ns: None,
        leader_changes: 0,
        outage_ms: 0,
    };
    let mut leads = cluster.leader().map(|leader| leader.node);
    let mut away: Option<(usize, Instant)> = None;
    loop {
        let elapsed = direction.began.elapsed();
        let outage = outage_ns(observed, direction.killed_ns)
            .map(|pause| (pause.end - pause.start) / 1_000_000);
        direction.outage_ms = outage.unwrap_or(0);
        if elapsed >= total || stop.load(Ordering::Relaxed) {
            return Ok(direction);
        }
        let now_leads = cluster.leader().map(|leader| leader.node);
        if let Some(now) = now_leads
            && leads.replace(now).is_some_and(|before| before != now)
        {
            direction.leader_changes += 1;
        }
        if elapsed >= total / 2
            && direction.killed_ns.is_none()
            && let Some(leader) = now_leads
        {
            direction.killed_ns = Some(clock_ns());
            cluster.kill(leader);
            away = Some((leader, Instant::now()));
        }
        if let Some((node, since)) = away
            && since.elapsed() >= AWAY
        {
            cluster.restart(node)?;
            away = None;
        }
        let stage = match (
            now_leads.filter(|&node| away.is_none_or(|(gone, _)| gone != node)),
            away,
        ) {
            (Some(leader), None) => format!("node {} leads", leader + 1),
            (Some(leader), Some((gone, _))) => {
                format!("node {} was killed; node {} leads", gone + 1, leader + 1)
            }
            (None, Some((gone, _))) => format!("node {} was killed; nobody leads", gone + 1),
            (None, None) => "nobody leads".to_owned(),
        };
        let outage = outage.map_or_else(String::new, |ms| {
            format!("; longest pause without grants {ms} ms")
        });
        let progress = format!(
            "{:>3} / {} s: {stage}{outage}",
            elapsed.as_secs(),
            flags.seconds
        );
        table.show(&SCENES, &observe(observed), &progress);
        thread::sleep(Duration::from_millis(400));
    }
}

/// The longest pause between admissions of the key that always wants, among
/// those that ended after the leader was killed.
fn outage_ns(observed: &[Observed], killed_ns: Option<u64>) -> Option<Range<u64>> {
    let killed_ns = killed_ns?;
    let steady = observed
        .iter()
        .find(|seen| SCENES[seen.scene()].key == STEADY)?;
    let mut instants: Vec<u64> = steady
        .admissions()
        .iter()
        .map(|admission| admission.return_ns)
        .collect();
    instants.sort_unstable();
    let first = instants.partition_point(|&instant| instant < killed_ns);
    // Until now, while the pause lasts.
    instants.push(clock_ns());
    let pauses = instants[first.saturating_sub(1)..]
        .windows(2)
        .map(|pair| pair[0]..pair[1]);
    pauses.max_by_key(|pause| pause.end - pause.start)
}

/// One row of the table: what the keys of a scene come to.
struct Row {
    counts: Counts,
    judgement: Judged,
    /// Of honest requests.
    waits: Share,
}

/// What the admissions of a scene's keys come to.
#[derive(Default)]
struct Judged {
    admitted: u64,
    over_admitted: u64,
    worst_ratio: f64,
}

fn observe(observed: &[Observed]) -> Vec<Row> {
    let of_scene = |(at, scene): (usize, &scenes::Scene)| {
        let mut row = Row {
            counts: Counts::default(),
            judgement: Judged::default(),
            waits: Share::default(),
        };
        for seen in observed.iter().filter(|seen| seen.scene() == at) {
            row.counts.add(&seen.counts());
            row.waits.add(waits::share(&seen.arrivals()));
            let judged = scene.promise.judge(&seen.admissions());
            row.judgement.admitted += judged.admitted;
            row.judgement.over_admitted += judged.over_admitted;
            row.judgement.worst_ratio = row.judgement.worst_ratio.max(judged.worst_ratio);
        }
        row
    };
    SCENES.iter().enumerate().map(of_scene).collect()
}

/// What waited, beside the same requests under "ask when empty".
fn compare(observed: &[Observed], direction: &Direction) -> Waits {
    let arrivals: Vec<_> = observed
        .iter()
        .map(|seen| (seen.scene(), seen.arrivals()))
        .collect();
    // The pause may begin before the kill, when the last grant did; nobody could be
    // asked from the kill on.
    let outage = outage_ns(observed, direction.killed_ns)
        .zip(direction.killed_ns)
        .map_or(0..0, |(pause, killed)| killed..pause.end.max(killed));
    waits::compare(&SCENES, &arrivals, &outage)
}

/// Judges and prints. Whether everything was kept.
fn verdict(flags: &DemoFlags, observed: &[Observed], direction: &Direction) -> bool {
    let rows = observe(observed);
    let waits = compare(observed, direction);
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
    let over_admitted = sum(|row| row.judgement.over_admitted);
    let worst = rows
        .iter()
        .map(|row| row.judgement.worst_ratio)
        .fold(0.0, f64::max);
    let outage = direction.outage_ms;
    if flags.json {
        let keys: Vec<_> = rows
            .iter()
            .zip(&SCENES)
            .zip(&waits.scenes)
            .map(|((row, scene), compared)| {
                json!({
                    "key": scene.key,
                    "keys": scene.keys,
                    "limit": scene.limit,
                    "offered": row.counts.offered,
                    "admitted": row.judgement.admitted,
                    "refused": row.counts.refused,
                    "unavailable": row.counts.unavailable,
                    "degraded": row.counts.degraded,
                    "waited": row.waits.waited,
                    "waited_pct": row.waits.known_percent(),
                    "ask_when_empty_waited_pct": compared.map(|both| both.asking.percent()),
                    "worst_ratio": row.judgement.worst_ratio,
                    "over_admitted": row.judgement.over_admitted,
                })
            })
            .collect();
        println!(
            "{}",
            json!({
                "over_admitted": over_admitted,
                "worst_window_ratio": worst,
                "admitted": sum(|row| row.judgement.admitted),
                "offered": sum(|row| row.counts.offered),
                "refused": sum(|row| row.counts.refused),
                "unavailable": sum(|row| row.counts.unavailable),
                "leader_changes": direction.leader_changes,
                "grant_outage_ms": outage,
                "seconds": direction.began.elapsed().as_secs(),
                "compared": waits.total.ours.requests,
                "waited_pct": waits.total.ours.percent(),
                "ask_when_empty_waited_pct": waits.total.asking.percent(),
                "compared_while_led": waits.while_led.ours.requests,
                "waited_while_led_pct": waits.while_led.ours.percent(),
                "ask_when_empty_waited_while_led_pct": waits.while_led.asking.percent(),
                "keys": keys,
            })
        );
    } else {
        println!("{}", table::render(&SCENES, &rows, Some(&waits)));
        println!(
            "\nleader changes: {}; longest pause without grants: {outage} ms",
            direction.leader_changes
        );
        println!("{}", table::waited(&waits));
        if over_admitted == 0 {
            println!(
                "KEPT: no interval of any window and no run of any bucket admitted more than it may \
                 (the fullest used {:.1} % of its limit)",
                worst * 100.0
            );
        } else {
            println!("BROKEN: {over_admitted} units were admitted beyond the limits");
        }
    }
    over_admitted == 0
}
