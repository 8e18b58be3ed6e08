//! The command line.

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use leasehold_doors::Watch;

use crate::{config::Config, import::ImportFlags, listen, serve};

/// Brings Leasehold's quotas to Envoy, nginx, Traefik, Caddy and HAProxy.
#[derive(Debug, Parser)]
#[command(name = "leasehold-agent", version, propagate_version = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done · 1 failed · 2 wrong usage or configuration · 3 cannot listen, or nobody \
answers · 9 `import --dry-run` would change something
Every error ends with a code in parentheses; deploy/runbook.md says what to do about each.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer gateways, until SIGTERM; SIGHUP reads the configuration again
    Serve(ConfigFlags),
    /// Say whether a configuration can be taken
    CheckConfig(ConfigFlags),
    /// Make a coordinator's policies and budgets what files of envoyproxy/ratelimit say
    Import(ImportFlags),
}

#[derive(Debug, Args)]
struct ConfigFlags {
    /// The configuration file; deploy/agent.toml explains every field
    #[arg(long, env = "LEASEHOLD_AGENT_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Listen beyond loopback: only trusted hosts can reach it
    #[arg(long)]
    insecure: bool,
}

/// Parses the arguments, does what they say, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(flags) => serve(&flags),
        Command::CheckConfig(flags) => check_config(&flags),
        Command::Import(flags) => flags.run(),
    }
}

fn serve(flags: &ConfigFlags) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start the runtime: {error} (fatal)"), 1),
    };
    let served = runtime.block_on(serve::run(&flags.config, flags.insecure));
    // What was to be stopped has stopped; nothing that still sleeps holds up the exit.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&format!("{error} ({})", error.code()), error.exit_code()),
    }
}

fn check_config(flags: &ConfigFlags) -> ExitCode {
    match Config::load(&flags.config, flags.insecure) {
        Ok(config) => {
            let socket = config.fixed.unix.as_ref();
            if let Some(Err(error)) = socket.map(listen::check) {
                let path = flags.config.display();
                let told = format!("{path}: on this machine, {error} ({})", error.code());
                return complain(&told, 3);
            }
            let files = config.fixed.tls.clone();
            if let Some(Err(error)) = files.map(|tls| serve::keep(tls, &mut Watch::default())) {
                let path = flags.config.display();
                return complain(&format!("{path}: {error} (invalid_config)"), 2);
            }
            if let Err(error) = config.fixed.calling.credentials().check() {
                let path = flags.config.display();
                let told = format!("{path}: on this machine, {error} (unusable_credentials)");
                return complain(&told, 2);
            }
            let mut line = format!("{} can be taken\n", flags.config.display());
            for note in config.notes() {
                line.push_str(&format!("note: {note}\n"));
            }
            // A reader that went away is no error.
            let _ = std::io::stdout().write_all(line.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => complain(&format!("{error} ({})", error.code()), 2),
    }
}

fn complain(text: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "leasehold-agent: {text}");
    ExitCode::from(code)
}
