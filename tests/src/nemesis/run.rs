//! A run from its beginning to its end: what happens in which order. Knows no
//! single fault, and leaves judging to `judge`.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold_checkers::{AccountSample, Act, Edit, Healed, Operation, Record};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::{
    Plan,
    callers::Callers,
    cluster::Cluster,
    draw::Draw,
    fault::{Fault, Kind, kinds},
    fleet::{Fleet, host},
    ground::Ground,
    journal::{Journal, Recorder},
    judge::{Evidence, judge},
    keys::{KeyPlan, LASTING, LONGEST_WINDOW_MS, PURSE, budget, keys},
    links::Links,
    machine::Machine,
    node::Settings,
    operators::{Operators, read_register, registers},
    quotas::{QUOTAS, Quota, period_sample},
    report::Report,
    samples::{self, Digests, Sampler},
    schedule::{Round, Schedule},
    world::{PEACE_WITHIN, World},
};
use crate::{Promise, clock_ns};

const SETTINGS: Settings = Settings {
    session_ttl_ms: 3_000,
    sync_interval_ms: 300,
    // Small, so that followers fall behind what is kept within seconds.
    snapshot_every_entries: 400,
    snapshot_keep_entries: 200,
    raft_ms: [100, 500, 1_000],
    region: |_| None,
};
/// Before the first fault.
const CALM: Duration = Duration::from_secs(3);
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// After everything is healed grants must have resumed.
pub(super) const RESUMES_WITHIN: Duration = Duration::from_secs(30);
/// Of rounds that do not recover, so many end the run.
const BROKEN_MAX: u32 = 2;

/// What came of injecting.
#[derive(Clone, Debug, Default)]
pub(super) struct Injected {
    /// By kind.
    pub(super) done: BTreeMap<&'static str, u64>,
    /// By kind, why not: never on this machine.
    pub(super) skipped: BTreeMap<&'static str, String>,
    /// By kind: how often it could not be done at that moment.
    pub(super) missed: BTreeMap<&'static str, u64>,
}

/// Runs, and says what came of it. A violation is in the report.
///
/// # Errors
/// When the run could not be made, which says nothing about the product.
pub fn run(plan: &Plan) -> io::Result<Report> {
    let folder = tempfile::Builder::new()
        .prefix("leasehold-nemesis-")
        .tempdir()?;
    let outcome = run_in(plan, folder.path());
    let keeps = plan.keeps_files || !outcome.as_ref().is_ok_and(Report::is_fine);
    let mut outcome = outcome;
    if keeps {
        let kept = folder.keep();
        if let Ok(report) = &mut outcome {
            report.folder = Some(kept);
        } else {
            eprintln!("nemesis: files are in {}", kept.display());
        }
    }
    outcome
}

fn run_in(plan: &Plan, folder: &Path) -> io::Result<Report> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let journal = Journal::create(&folder.join("nemesis.log"))?;
    let recorder = Recorder::create(&folder.join("nemesis.history"))?;
    let keys = keys();
    let mut world = build(
        plan,
        folder,
        &runtime,
        &keys,
        journal.clone(),
        recorder.clone(),
    )?;

    let mut chosen = kinds();
    if !plan.faults.is_empty() {
        chosen.retain(|kind| plan.faults.iter().any(|name| name == kind.name));
    }
    let mut injected = Injected::default();
    chosen.retain(|kind| match (kind.needs)(&world.machine) {
        Ok(()) => true,
        Err(reason) => {
            journal.say(&format!("{} is skipped: {reason}", kind.name));
            injected.skipped.insert(kind.name, reason);
            false
        }
    });

    begin(&mut world, &keys)?;
    let operators = Operators::start(
        plan.seed,
        &world.cluster.directory(),
        &recorder,
        &keys,
        &folder.join("operator"),
    )?;
    let sampler = Sampler::start(
        world.cluster.directory(),
        recorder.clone(),
        keys.iter().map(|key| key.name.clone()).collect(),
    );
    world.hold(CALM);

    let began = Instant::now();
    let lasts = Duration::try_from_secs_f64(plan.minutes * 60.0).map_err(io::Error::other)?;
    let mut schedule = Schedule::new(plan.seed, chosen);
    let mut healed: Vec<Healed> = Vec::new();
    let mut begun_ns: Vec<u64> = Vec::new();
    let mut broken = 0;
    while began.elapsed() < lasts && !world.is_over() && broken < BROKEN_MAX {
        let Some(round) = schedule.next() else {
            break;
        };
        if let Some(last) = healed.last_mut() {
            last.until_ns = clock_ns();
        }
        begun_ns.push(clock_ns());
        let (healing, recovered) = one_round(&mut world, &schedule, &round, &mut injected);
        healed.push(healing);
        broken += u32::from(!recovered);
    }
    let faults_minutes = began.elapsed().as_secs_f64() / 60.0;

    journal.say("no more faults: everybody ends in peace");
    let evidence = conclude(&mut world, operators, sampler, (begun_ns, healed), &keys)?;
    recorder.flush()?;
    let report = judge(plan, &world, &keys, injected, evidence, faults_minutes)?;
    // Links, gateways and nodes end before what carries them.
    drop(world);
    drop(runtime);
    Ok(report)
}

/// Processes and links; no load yet.
fn build(
    plan: &Plan,
    folder: &Path,
    runtime: &Runtime,
    keys: &[KeyPlan],
    journal: Journal,
    recorder: Recorder,
) -> io::Result<World> {
    let mut ground = Ground::new();
    journal.say(&format!(
        "seed {}, {} nodes, {} gateways, {} minutes; files are in {}",
        plan.seed,
        plan.nodes,
        plan.gateways,
        plan.minutes,
        folder.display()
    ));
    let callers = ground.without_namespaces().map(|reason| {
        journal.say(&format!(
            "loopback addresses instead of network namespaces: {reason}"
        ));
        Callers::default()
    });
    let machine = Machine::look(plan.upgrade_to.as_deref());
    let mut links = Links::new(runtime.handle().clone(), callers.clone());
    for place in 0..plan.gateways {
        let host = host(usize::try_from(place).unwrap_or(0));
        ground.add(host)?;
        links.add(&ground, host)?;
    }
    let cluster = Cluster::start(
        folder,
        plan.nodes,
        SETTINGS,
        &plan.leasehold,
        &mut ground,
        &mut links,
        callers.clone(),
    )?;
    let fleet = Fleet::new(
        folder,
        &plan.gateway,
        keys.to_vec(),
        plan.gateways,
        recorder.clone(),
        callers,
    );
    Ok(World {
        fleet,
        cluster,
        links,
        ground,
        machine,
        journal,
        recorder,
        runtime: runtime.handle().clone(),
        settings: SETTINGS,
        folder: folder.to_owned(),
        findings: Vec::new(),
        excused: Vec::new(),
        ends_seen: 0,
        gateway_ends_seen: 0,
        stop: Arc::clone(&plan.stop),
    })
}

/// A leader, budgets, gateways.
fn begin(world: &mut World, keys: &[KeyPlan]) -> io::Result<()> {
    if !world.recovers() {
        return Err(io::Error::other("the nodes do not form a cluster"));
    }
    for key in keys {
        let path = format!("/v1/budgets/{}", key.name);
        let body = budget(&key.name, key.promise);
        let call_ns = clock_ns();
        let answer = world.cluster.ask("PUT", &path, Some(&body), PATIENCE);
        if answer.as_ref().is_none_or(|answer| answer.status >= 300) {
            return Err(io::Error::other(format!("PUT {path}: {answer:?}")));
        }
        world.recorder.note(&Record::Edit(Edit {
            key: key.name.clone(),
            call_ns,
            return_ns: clock_ns(),
            acknowledged: true,
            promise: key.promise,
        }));
        if let (PURSE, Promise::Window { limit, .. }) = (key.name.as_str(), key.promise) {
            world.recorder.note(&Record::Operation(Operation {
                object: format!("spend/{PURSE}"),
                call_ns,
                return_ns: clock_ns(),
                acknowledged: true,
                act: Act::Limit(limit),
            }));
        }
    }
    begin_quotas(world)?;
    world.refill();
    Ok(())
}

/// Budgets of quotas, and the first look at each period: what is admitted before it
/// cannot be judged.
fn begin_quotas(world: &mut World) -> io::Result<()> {
    for plan in &QUOTAS {
        let done = |method: &str, path: &str, body: Option<&Value>| {
            let call_ns = clock_ns();
            let answer = world.cluster.ask(method, path, body, PATIENCE);
            match answer {
                Some(answer) if answer.status < 300 => Ok((call_ns, answer.json())),
                answer => Err(io::Error::other(format!("{method} {path}: {answer:?}"))),
            }
        };
        let budget = plan.budget();
        done("PUT", &format!("/v1/budgets/{}", plan.name), Some(&budget))?;
        if let Quota::Day(_) = plan.quota {
            // An account appears with its first use.
            let spend = json!({ "key": plan.name, "units": 1 });
            done("POST", "/v1/spend", Some(&spend))?;
            let path = format!("/v1/accounts/{}", plan.name);
            let (call_ns, account) = done("GET", &path, None)?;
            if let Some(sample) = period_sample(&account, call_ns, clock_ns()) {
                world.recorder.note(&Record::Period(sample));
            }
        }
    }
    Ok(())
}

/// Injects, waits, undoes, waits until all is well; false: it does not get well.
fn one_round(
    world: &mut World,
    schedule: &Schedule,
    round: &Round,
    injected: &mut Injected,
) -> (Healed, bool) {
    let names: Vec<&str> = round.faults.iter().map(|kind| kind.name).collect();
    let names = names.join(" + ");
    let mut at_work: Vec<(&Kind, Box<dyn Fault>)> = Vec::new();
    for (number, kind) in round.faults.iter().enumerate() {
        if let Some(wait) = number
            .checked_sub(1)
            .and_then(|before| round.stagger.get(before))
        {
            world.hold(*wait);
        }
        if world.is_over() {
            break;
        }
        world
            .journal
            .say(&format!("round {}: {} ...", round.number, kind.name));
        let mut draw: Draw = schedule.draw(round.number, number);
        let mut fault = (kind.make)();
        let outcome = fault.inject(world, &mut draw);
        let text = match &outcome {
            Ok(done) => {
                *injected.done.entry(kind.name).or_default() += 1;
                format!("{}: {done}", kind.name)
            }
            Err(reason) => {
                *injected.missed.entry(kind.name).or_default() += 1;
                format!("{} could not be injected: {reason}", kind.name)
            }
        };
        world
            .journal
            .say(&format!("round {}: {text}", round.number));
        at_work.push((kind, fault));
    }
    world.hold(round.lasts);
    for (_, fault) in at_work.iter_mut().rev() {
        fault.heal(world);
    }
    world.mend();
    let at_ns = clock_ns();
    world
        .journal
        .say(&format!("round {}: healed", round.number));
    let ready = world.recovers();
    let resumed = world.grants_resume(at_ns, RESUMES_WITHIN * 2);
    let text = match resumed {
        Some(ns) => format!("grants resumed {} ms after healing", ns / 1_000_000),
        None => "grants have not resumed".to_owned(),
    };
    world
        .journal
        .say(&format!("round {}: {text}", round.number));
    world.hold(round.rest);
    let healing = Healed {
        at_ns,
        until_ns: u64::MAX,
        faults: names,
    };
    (healing, (ready && resumed.is_some()) || world.is_over())
}

/// Everybody stops in peace; then the books are read until nothing can still be on
/// its way.
fn conclude(
    world: &mut World,
    operators: Operators,
    sampler: Sampler,
    (begun_ns, mut healed): (Vec<u64>, Vec<Healed>),
    keys: &[KeyPlan],
) -> io::Result<Evidence> {
    operators.stop()?;
    for who in world.fleet.finish_all(PEACE_WITHIN) {
        world.found(who);
    }
    let quiet_ns = clock_ns();
    if let Some(last) = healed.last_mut() {
        last.until_ns = quiet_ns;
    }
    let settled = if world.is_over() {
        false
    } else {
        let sessions_gone = Duration::from_millis(SETTINGS.session_ttl_ms * 2 + 2_000);
        let windows_over = Duration::from_millis(LONGEST_WINDOW_MS + LONGEST_WINDOW_MS / 50);
        world.hold(sessions_gone + windows_over + Duration::from_secs(2));
        true
    };
    sampler.stop();
    let directory = world.cluster.directory();
    let mut counted = None;
    if settled && !world.is_over() {
        agree_on_an_index(world);
        let mut read = true;
        for place in directory.places() {
            read &= samples::books(&place, &world.recorder);
            samples::replica_books(&place, &world.recorder);
        }
        // Where nobody answers there is nothing to wait for.
        if read {
            gone_accounts(world, keys);
            counted = read_back(world);
        } else {
            world.found("in the end not every node told the books".to_owned());
        }
    }
    Ok(Evidence {
        begun_ns,
        healed,
        quiet_ns,
        settled: settled && !world.is_over(),
        lasting_counted: counted,
    })
}

/// Looks at digests until all nodes were seen at one log index.
fn agree_on_an_index(world: &mut World) {
    let mut digests = Digests::default();
    let directory = world.cluster.directory();
    let all = world.cluster.ids().len();
    let met = world.until(Duration::from_secs(30), |world| {
        let seen = digests.look(&directory, &world.recorder);
        seen.len() == all && seen.windows(2).all(|pair| pair[0].1 == pair[1].1)
    });
    if !met && !world.is_over() {
        world.found(
            "the nodes were never seen at one log index, although nothing happens".to_owned(),
        );
    }
}

/// An account that is gone has all its units free.
fn gone_accounts(world: &World, keys: &[KeyPlan]) {
    for key in keys {
        let path = format!("/v1/accounts/{}", key.name);
        let call_ns = clock_ns();
        let answer = world.cluster.ask("GET", &path, None, PATIENCE);
        let gone = answer.is_some_and(|answer| answer.json()["code"] == "no_such_account");
        if !gone {
            continue;
        }
        let limit = match key.promise {
            Promise::Window { limit, .. } => limit,
            Promise::Bucket { capacity, .. } => capacity,
        };
        world.recorder.note(&Record::Account(AccountSample {
            key: key.name.clone(),
            call_ns,
            return_ns: clock_ns(),
            replica: None,
            limit: limit.into(),
            debt: 0,
            counted: 0,
            outstanding: 0,
            free: limit.into(),
            leased: None,
            lifetime: None,
        }));
    }
}

/// Reads every register, what the purse has counted, and what is counted of the key
/// that nothing leaves.
fn read_back(world: &mut World) -> Option<u64> {
    let read = |path: &str| {
        let call_ns = clock_ns();
        let answer = world.cluster.ask("GET", path, None, PATIENCE)?;
        Some((call_ns, answer))
    };
    let mut operations = Vec::new();
    for name in registers() {
        if let Some((call_ns, answer)) = read(&format!("/v1/policies/{name}"))
            && let Some(value) = read_register(&answer)
        {
            operations.push((format!("policies/{name}"), call_ns, Act::Read(value)));
        }
    }
    if let Some((call_ns, answer)) = read(&format!("/v1/accounts/{PURSE}")) {
        let used = match answer.status {
            200 => answer.json()["lifetime"]["central"].as_u64(),
            404 => Some(0),
            _ => None,
        };
        if let Some(used) = used {
            operations.push((format!("spend/{PURSE}"), call_ns, Act::Used(used)));
        }
    }
    let counted = read(&format!("/v1/accounts/{LASTING}")).and_then(|(_, answer)| {
        let books = answer.json();
        Some(books["counted"].as_u64()? + books["outstanding"].as_u64()?)
    });
    for (object, call_ns, act) in operations {
        world.recorder.note(&Record::Operation(Operation {
            object,
            call_ns,
            return_ns: clock_ns(),
            acknowledged: true,
            act,
        }));
    }
    counted
}
