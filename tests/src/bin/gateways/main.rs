//! The gateways that people run, for real: Envoy, nginx, Traefik, Caddy and HAProxy, each
//! as two instances behind two agents on a cluster of three nodes, on the configurations
//! in `deploy/gateways`.
//!
//! `cargo build --release -p leasehold-tests && cargo run --release -p leasehold-tests --bin
//! gateways` shows what must hold for each, and exits with 1 when something does not.

mod claims;
mod fleet;
mod ground;
mod load;
mod overhead;
mod proxies;
mod redis_check;
mod upstream;

use std::{
    error::Error,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Parser;
use leasehold_tests::{append_results, results_file};
use serde_json::json;

use claims::Claim;
use fleet::{Fleet, Programs};
use ground::Ground;
use proxies::{Edit, Proxy, find};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
struct Flags {
    /// Only these, separated by commas: envoy, nginx, traefik, caddy, haproxy
    #[arg(long, value_delimiter = ',')]
    only: Vec<Proxy>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Fail when a gateway or wrk is not installed, instead of skipping it
    #[arg(long)]
    no_skip: bool,
    /// Show nothing, and measure what a check adds to a request beside one that asks Redis
    /// (Envoy and nginx; adds its figures to tests/results/gateways.jsonl)
    #[arg(long)]
    overhead: bool,
    /// How long each turn of a measurement takes, in seconds
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Folders to look for programs in, before those on the PATH
    #[arg(long)]
    programs: Vec<PathBuf>,
    /// The coordinator's binary [default: the one built beside this program]
    #[arg(long)]
    leasehold: Option<PathBuf>,
    /// The agent's binary [default: the one built beside this program]
    #[arg(long)]
    agent: Option<PathBuf>,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("gateways: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&flags)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gateways: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(flags: &Flags) -> Outcome<bool> {
    let beside =
        |name: &str| Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name(name));
    let leasehold = flags
        .leasehold
        .clone()
        .map_or_else(|| beside("leasehold-under-test"), Ok)?;
    let agent = flags
        .agent
        .clone()
        .map_or_else(|| beside("leasehold-agent-under-test"), Ok)?;
    for (what, file) in [("--leasehold", &leasehold), ("--agent", &agent)] {
        if !file.is_file() {
            return Err(format!(
                "{} is not there: build it, or say {what} FILE",
                file.display()
            )
            .into());
        }
    }
    let programs = Programs {
        deploy: Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/gateways"),
        wrk: find("wrk", &flags.programs),
    };
    let mut skipped = Vec::new();
    if programs.wrk.is_none() {
        skipped.push("wrk (Debian wrk): less pressure".to_owned());
    }
    let mut chosen = Vec::new();
    for proxy in Proxy::ALL {
        if !flags.only.is_empty() && !flags.only.contains(&proxy) {
            continue;
        }
        match find(proxy.name(), &flags.programs) {
            Some(program) => chosen.push((proxy, program)),
            None => skipped.push(format!("{} ({})", proxy.name(), proxy.package())),
        }
    }
    for what in &skipped {
        eprintln!("NOT INSTALLED, SKIPPED: {what}");
    }
    if flags.no_skip && !skipped.is_empty() {
        return Err("--no-skip: install what is missing".into());
    }
    let mut ground = Ground::start(&leasehold, &agent, &programs.deploy).await?;
    if flags.overhead {
        return measure(flags, &chosen, &programs, &ground).await;
    }
    let mut shown = Vec::new();
    for (proxy, program) in &chosen {
        let one = show(*proxy, program, &programs, &mut ground).await?;
        if !flags.json {
            one.iter().for_each(print);
        }
        shown.extend(one);
    }
    let broken = shown.iter().filter(|claim| !claim.is_kept).count();
    if flags.json {
        let each: Vec<_> = shown
            .iter()
            .map(|claim| {
                json!({
                    "gateway": claim.gateway, "claim": claim.says,
                    "kept": claim.is_kept, "seen": claim.seen,
                })
            })
            .collect();
        println!(
            "{}",
            json!({ "claims": each, "broken": broken, "skipped": skipped })
        );
    } else {
        println!("{} claims, {broken} broken", shown.len());
    }
    Ok(broken == 0 && !shown.is_empty())
}

fn print(claim: &Claim) {
    let kept = if claim.is_kept { "kept  " } else { "BROKEN" };
    println!(
        "{:<8} {kept} {:<58} {}",
        claim.gateway, claim.says, claim.seen
    );
}

/// What a check costs, of those that can be compared.
async fn measure(
    flags: &Flags,
    chosen: &[(Proxy, PathBuf)],
    programs: &Programs,
    ground: &Ground,
) -> Outcome<bool> {
    let redis = find("redis-server", &flags.programs);
    let redis = redis.ok_or("redis-server is not installed (Debian redis-server)")?;
    let mut figures = Vec::new();
    for (proxy, program) in chosen {
        if !overhead::is_compared(*proxy) {
            continue;
        }
        let one = overhead::Overhead::measure(
            (*proxy, program),
            &redis,
            &programs.deploy,
            ground,
            Duration::from_secs(flags.seconds.max(1)),
        )
        .await?;
        if !flags.json {
            one.print();
        }
        figures.push(one.json());
    }
    if flags.json {
        println!("{}", json!(figures));
    }
    append_results(&results_file("gateways.jsonl"), &figures)?;
    Ok(!figures.is_empty())
}

/// Everything that must hold for one gateway.
async fn show(
    proxy: Proxy,
    program: &Path,
    programs: &Programs,
    ground: &mut Ground,
) -> Outcome<Vec<Claim>> {
    let gateway = proxy.name();
    let mut shown = Vec::new();
    let fleet = Fleet::start(proxy, program, programs, ground, &[])?;
    let mut note = |says, (is_kept, seen): (bool, String), fleet: &Fleet| {
        if !is_kept {
            eprintln!("{gateway} wrote:\n{}", fleet.log_tail());
        }
        shown.push(Claim {
            gateway,
            says,
            seen,
            is_kept,
        });
    };
    let told = claims::headers(ground, &fleet).await?;
    note("clients are told what the documents say", told, &fleet);
    let told = claims::keyless(ground, &fleet).await?;
    note("a request without a key is not served", told, &fleet);
    let told = claims::own_cost(ground, &fleet).await?;
    note("a client does not say what its request costs", told, &fleet);
    let told = claims::own_id(ground, &fleet).await?;
    note("a client cannot have its last answer again", told, &fleet);
    let told = claims::once(ground, &fleet).await?;
    note("no request is charged twice", told, &fleet);
    let told = claims::exact(ground, &fleet).await?;
    note(
        "a flood through two instances gets the limit and no more",
        told,
        &fleet,
    );
    let told = claims::leader_dies(ground, &fleet).await?;
    note(
        "the leader's death costs a busy key no refusal",
        told,
        &fleet,
    );
    let told = claims::agent_dies(ground, &fleet, false).await?;
    note("the agent is dead: refused, as it is shipped", told, &fleet);
    drop(fleet);
    let stranded = [ground.stranded.at];
    let fleet = Fleet::behind(proxy, program, programs, ground, (&stranded, &[]))?;
    let told = claims::nobody_to_ask(ground, &fleet).await?;
    note(
        "nobody can be asked, and the policy fails closed: 503",
        told,
        &fleet,
    );
    drop(fleet);
    if let Some(opening) = proxy.opening() {
        let fleet = Fleet::start(proxy, program, programs, ground, &[opening])?;
        let told = claims::agent_dies(ground, &fleet, true).await?;
        note(
            "the agent is dead: served, when it is configured so",
            told,
            &fleet,
        );
    }
    if let Some(edits) = checked_twice(proxy) {
        let fleet = Fleet::start(proxy, program, programs, ground, edits)?;
        let told = claims::twice(ground, &fleet).await?;
        note(
            "a request that is checked twice is charged once",
            told,
            &fleet,
        );
    }
    Ok(shown)
}

/// A change after which a gateway asks the agent twice about one request.
fn checked_twice(proxy: Proxy) -> Option<&'static [Edit]> {
    match proxy {
        Proxy::Nginx => Some(&[(
            "      proxy_pass http://app;\n      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n    }",
            "      try_files /no-such-file @app;\n    }\n    location @app {\n      auth_request /_quota;\n      proxy_pass http://app;\n    }",
        )]),
        _ => None,
    }
}
