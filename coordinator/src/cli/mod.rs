//! The command line. `serve` runs a node, `demo` and `simulate` need none; every
//! other command talks to a running one over HTTP and knows nothing of how it works.

mod accounts;
mod cluster;
pub mod demo;
mod http;
mod policies;
mod sessions;
mod settings;
pub mod simulate;
mod table;
mod text;

use std::{io::Write, process::ExitCode};

use clap::{Parser, Subcommand};
use serde_json::Value;
use thiserror::Error;

use crate::{
    config::{Config, LogFormat, ServeFlags},
    serve,
};

/// Quotas enforced exactly across gateways.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, propagate_version = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done · 1 refused, denied or failed · 2 wrong usage or configuration · 3 nobody answers (serve: address \
in use) · serve only: 4 damaged store, 5 disk lost, 6 data folder in use, 7 unknown format";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node; without flags a durable one-node coordinator on 127.0.0.1:7070
    Serve(Box<ServeFlags>),
    /// Watch three nodes, eight gateways and a flood, with the leader killed half-way
    Demo(demo::DemoFlags),
    /// Try gateways, traffic and limits in virtual time, beside other designs
    Simulate(simulate::SimulateFlags),
    /// Rules, by name
    Policy {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        command: policies::PolicyCommand,
    },
    /// Which keys follow which policy
    Budget {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        command: policies::BudgetCommand,
    },
    /// The books of a key
    Account {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        command: accounts::AccountCommand,
    },
    /// Spend units of a key, decided by the log itself
    Spend {
        #[command(flatten)]
        remote: Remote,
        /// The key; a slash within a segment is %2F
        key: String,
        /// All or none of them
        #[arg(default_value_t = 1)]
        units: u64,
    },
    /// Gateways that hold leases
    Session {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        command: sessions::SessionCommand,
    },
    /// Members and leadership
    Cluster {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        command: Option<cluster::ClusterCommand>,
    },
    /// What is the same on every node
    Settings {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        command: Option<settings::SettingsCommand>,
    },
}

/// Which node to talk to, and how to print.
#[derive(Clone, Debug, clap::Args)]
struct Remote {
    /// The URL of a running node; any member will do
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "LEASEHOLD_ENDPOINT",
        default_value = "http://127.0.0.1:7070"
    )]
    endpoint: String,
    /// Print JSON, for machines
    #[arg(long, global = true)]
    json: bool,
}

/// Why a command did not do what was asked.
#[derive(Debug, Error)]
enum CliError {
    /// The arguments do not make sense together.
    #[error("{0}")]
    Usage(String),
    /// Nobody answered.
    #[error("{0}")]
    Unreachable(String),
    /// The coordinator said no.
    #[error("{}", refusal(.0))]
    Refused(Value),
}

fn refusal(problem: &Value) -> String {
    let text = |name: &str| {
        problem
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let retry = problem
        .get("retry_after_s")
        .map(|seconds| format!("; try again in {seconds} s"))
        .unwrap_or_default();
    format!(
        "{}: {}{retry} ({})",
        text("title"),
        text("detail"),
        text("code")
    )
}

impl CliError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
        }
    }
}

/// Parses the arguments, does what they say, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    if let Command::Demo(flags) = &command {
        // It has a runtime of its own.
        return demo::run(flags);
    }
    if let Command::Simulate(flags) = &command {
        return simulate::run(flags);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start the runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(async {
        match command {
            Command::Serve(flags) => run_node(&flags).await,
            other => ask_node(other).await,
        }
    });
    // What was to be stopped has stopped; nothing that still sleeps holds up the exit.
    runtime.shutdown_background();
    code
}

async fn run_node(flags: &ServeFlags) -> ExitCode {
    let config = match Config::load(flags) {
        Ok(config) => config,
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::from(2);
        }
    };
    if let Err(error) = serve::start_logging(&config) {
        complain(&error);
        return ExitCode::from(2);
    }
    let format = config.log_format;
    match serve::run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Once, where whoever started this looks.
            match format {
                LogFormat::Json => tracing::error!(code = error.code(), "{error}"),
                LogFormat::Text => complain(&format!("{error} ({})", error.code())),
            }
            ExitCode::from(error.exit_code())
        }
    }
}

async fn ask_node(command: Command) -> ExitCode {
    let (remote, answer) = match command {
        Command::Serve(_) | Command::Demo(_) | Command::Simulate(_) => return ExitCode::SUCCESS,
        Command::Policy { remote, command } => (remote.clone(), command.run(&remote).await),
        Command::Budget { remote, command } => (remote.clone(), command.run(&remote).await),
        Command::Account { remote, command } => (remote.clone(), command.run(&remote).await),
        Command::Session { remote, command } => (remote.clone(), command.run(&remote).await),
        Command::Spend { remote, key, units } => {
            (remote.clone(), accounts::spend(&remote, &key, units).await)
        }
        Command::Cluster { remote, command } => (
            remote.clone(),
            command
                .unwrap_or(cluster::ClusterCommand::Status)
                .run(&remote)
                .await,
        ),
        Command::Settings { remote, command } => (
            remote.clone(),
            command
                .unwrap_or(settings::SettingsCommand::Get)
                .run(&remote)
                .await,
        ),
    };
    match answer {
        Ok(answer) => {
            print(&if remote.json {
                answer.json()
            } else {
                answer.text
            });
            ExitCode::SUCCESS
        }
        Err(error) => {
            match &error {
                CliError::Refused(problem) if remote.json => print(&pretty(problem)),
                _ => complain(&error.to_string()),
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// What a command prints: for people, or for machines.
#[derive(Debug)]
struct Answer {
    text: String,
    value: Value,
}

impl Answer {
    fn json(&self) -> String {
        pretty(&self.value)
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn print(text: &str) {
    // A reader that went away (`| head`) is no error.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "leasehold: {text}");
}
