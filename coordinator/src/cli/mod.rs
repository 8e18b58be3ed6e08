//! The command line. `serve` runs a node; `demo`, `simulate`, `cert`, `restore` and
//! `backup --data-dir` need none; every other command talks to a running one over HTTP and
//! knows nothing of how it works.

mod accounts;
mod backup;
mod budgets;
mod cert;
mod cluster;
mod corrections;
mod credentials;
mod declared;
pub mod demo;
mod effects;
mod explain;
mod http;
mod periods;
mod policies;
mod private_file;
mod restore;
mod rule_flags;
mod sessions;
mod settings;
pub mod simulate;
mod table;
mod text;
mod token;

use std::{borrow::Cow, io::Write, process::ExitCode};

use clap::{Parser, Subcommand};
use serde_json::Value;
use thiserror::Error;

use credentials::CredentialFlags;

use crate::{
    backup::BackupError,
    config::{Config, LogFormat, ServeFlags},
    serve,
    store::StoreError,
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
in use) · 4 damaged store or backup · 5 disk lost · 6 data folder in use · 7 unknown format · 8 removed from \
its cluster · 9 `apply --dry-run` would change something
Every error ends with a code in parentheses; deploy/runbook.md says what to do about each.";

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
        command: budgets::BudgetCommand,
    },
    /// Make policies and budgets what a file says; prints the differences
    Apply {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        flags: declared::ApplyFlags,
    },
    /// Write all policies and budgets as a file that `apply` takes
    Export {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        flags: declared::ExportFlags,
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
        /// Names this spend, for the whole cluster: the same again is charged once
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
    /// Gateways that hold leases
    Session {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        command: sessions::SessionCommand,
    },
    /// Which period it is, by each calendar that budgets count by
    Period {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        command: periods::PeriodCommand,
    },
    /// Members and leadership
    Cluster {
        #[command(flatten)]
        remote: Remote,
        #[command(subcommand)]
        command: Option<cluster::ClusterCommand>,
    },
    /// Write the whole ledger into a file, while the cluster goes on
    Backup {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        flags: backup::BackupFlags,
    },
    /// Prepare an empty data folder for the first node of a new cluster from a backup
    Restore {
        #[command(flatten)]
        flags: Box<restore::RestoreFlags>,
        /// Print JSON, for machines
        #[arg(long)]
        json: bool,
    },
    /// Make authorities and certificates, for development and small installations
    Cert {
        #[command(subcommand)]
        command: cert::CertCommand,
    },
    /// Who may come in: identities and their tokens, in a file
    Token {
        #[command(subcommand)]
        command: token::TokenCommand,
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
    /// Who you are, for the histories of what you change; nobody checks it [default: $USER]
    #[arg(long, global = true, value_name = "NAME", env = "LEASEHOLD_BY")]
    by: Option<String>,
    /// Print JSON, for machines
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    credentials: CredentialFlags,
}

impl Remote {
    /// Of a command that asks no node.
    fn nowhere(json: bool) -> Self {
        Self {
            endpoint: String::new(),
            by: None,
            json,
            credentials: CredentialFlags::default(),
        }
    }
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
    /// A dry run found something to do: its answer.
    #[error("{}", .0.text)]
    WouldChange(Answer),
    /// Something on this machine.
    #[error("{detail}")]
    Failed {
        /// The stable code.
        code: &'static str,
        /// What happened and what to do.
        detail: String,
    },
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::Failed {
            code: error.code(),
            detail: error.to_string(),
        }
    }
}

impl From<BackupError> for CliError {
    fn from(error: BackupError) -> Self {
        Self::Failed {
            code: error.code(),
            detail: error.to_string(),
        }
    }
}

fn refusal(problem: &Value) -> String {
    let retry = problem
        .get("retry_after_s")
        .and_then(Value::as_u64)
        .map(|seconds| {
            let after = text::wait(seconds.saturating_mul(1_000));
            format!("; try again in {after}")
        })
        .unwrap_or_default();
    let detail = text(problem, "detail");
    // Most say it themselves.
    let field = match text(problem, "field") {
        field if detail.contains(field) => String::new(),
        field => format!("{field}: "),
    };
    let advice = match text(problem, "advice") {
        "" => String::new(),
        advice => format!("; {advice}"),
    };
    format!("{}: {field}{detail}{retry}{advice}", text(problem, "title"))
}

fn stated_code(problem: &Value) -> &str {
    text(problem, "code")
}

fn text<'a>(problem: &'a Value, name: &str) -> &'a str {
    problem
        .get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

impl CliError {
    /// The stable code.
    fn code(&self) -> &str {
        match self {
            Self::Usage(_) => "wrong_usage",
            Self::Unreachable(_) => "unreachable",
            Self::Refused(problem) => stated_code(problem),
            Self::WouldChange(_) => "would_change",
            Self::Failed { code, .. } => code,
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
            Self::WouldChange(_) => 9,
            Self::Failed { code, .. } => serve::exit_code_of(code),
        }
    }
}

/// Parses the arguments, does what they say, and returns the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return refuse_arguments(&error),
    };
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

/// Says what is wrong with the arguments, or what was asked about them.
fn refuse_arguments(error: &clap::Error) -> ExitCode {
    use std::io::IsTerminal as _;
    if error.exit_code() == 0 {
        // Help or the version.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let rendered = error.render();
    let is_terminal = std::io::stderr().is_terminal();
    let text = match is_terminal {
        true => rendered.ansi().to_string(),
        false => rendered.to_string(),
    };
    let _ = write!(std::io::stderr(), "{}", in_plain_words(&text));
    ExitCode::from(2)
}

/// What the standard library says of numbers, as people say it.
fn in_plain_words(text: &str) -> String {
    const WORDS: [(&str, &str); 4] = [
        ("invalid digit found in string", "it must be a whole number"),
        (
            "cannot parse integer from empty string",
            "it must be a whole number",
        ),
        (
            "number too large to fit in target type",
            "it is too large a number",
        ),
        (
            "number too small to fit in target type",
            "it is too small a number",
        ),
    ];
    WORDS.iter().fold(text.to_owned(), |text, (theirs, ours)| {
        text.replace(theirs, ours)
    })
}

async fn run_node(flags: &ServeFlags) -> ExitCode {
    let config = match Config::load(flags) {
        Ok(config) => config,
        Err(error) => {
            complain(&format!("{error} ({})", error.code()));
            return ExitCode::from(2);
        }
    };
    if let Err(error) = serve::start_logging(&config) {
        complain(&format!("{error} (invalid_config)"));
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
        Command::Apply { remote, flags } => (remote.clone(), flags.run(&remote).await),
        Command::Export { remote, flags } => (remote.clone(), flags.run(&remote).await),
        Command::Account { remote, command } => (remote.clone(), command.run(&remote).await),
        Command::Session { remote, command } => (remote.clone(), command.run(&remote).await),
        Command::Period { remote, command } => (remote.clone(), command.run(&remote).await),
        Command::Spend {
            remote,
            key,
            units,
            idempotency_key,
        } => (
            remote.clone(),
            accounts::spend(&remote, &key, units, idempotency_key.as_deref()).await,
        ),
        Command::Cluster { remote, command } => (
            remote.clone(),
            command
                .unwrap_or(cluster::ClusterCommand::Status)
                .run(&remote)
                .await,
        ),
        Command::Backup { remote, flags } => (remote.clone(), flags.run(&remote).await),
        Command::Restore { flags, json } => (Remote::nowhere(json), flags.run()),
        Command::Cert { command } => (Remote::nowhere(command.is_json()), command.run()),
        Command::Token { command } => (Remote::nowhere(command.is_json()), command.run()),
        Command::Settings { remote, command } => (
            remote.clone(),
            command
                .unwrap_or(settings::SettingsCommand::Get)
                .run(&remote)
                .await,
        ),
    };
    match answer {
        Ok(answer) => print(&answer.shown(&remote), ExitCode::SUCCESS),
        Err(CliError::WouldChange(answer)) => print(&answer.shown(&remote), ExitCode::from(9)),
        Err(error) => {
            let code = ExitCode::from(error.exit_code());
            match &error {
                CliError::Refused(problem) if remote.json => print(&pretty(problem), code),
                _ => {
                    complain(&format!("{error} ({})", error.code()));
                    code
                }
            }
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
    fn shown(&self, remote: &Remote) -> Cow<'_, str> {
        if remote.json {
            pretty(&self.value).into()
        } else {
            self.text.as_str().into()
        }
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Prints, and gives the exit code: `code`, unless what was to be said is lost.
fn print(text: &str, code: ExitCode) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let printed = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
    match printed {
        // A reader that went away (`| head`) is no error.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            complain(&format!("cannot print the answer: {error} (cannot_write)"));
            ExitCode::FAILURE
        }
        _ => code,
    }
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "leasehold: {text}");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_names_the_field_that_it_is_about() {
        let said = |field: Option<&str>, detail: &str| {
            let mut problem = json!({"title": "No", "detail": detail});
            if let Some(field) = field {
                problem["field"] = field.into();
            }
            refusal(&problem)
        };
        assert_eq!(said(None, "why"), "No: why");
        assert_eq!(
            said(Some("policy.limit"), "it is -1"),
            "No: policy.limit: it is -1"
        );
        assert_eq!(
            said(Some("limit"), "limit (9) is too much"),
            "No: limit (9) is too much"
        );
    }

    #[test]
    fn a_number_that_is_none_is_refused_in_plain_words() {
        for (words, says) in [
            ("spend a much", "it must be a whole number"),
            ("spend a -- -1", "it must be a whole number"),
            (
                "policy set p --total 99999999999999999999",
                "it is too large a number",
            ),
            (
                "account adjust a 1.5 --id i --reason r",
                "it must be a whole number",
            ),
            ("account list --limit=", "it must be a whole number"),
        ] {
            let words = ["leasehold"].into_iter().chain(words.split(' '));
            let error = Cli::try_parse_from(words).unwrap_err();
            let said = in_plain_words(&error.to_string());
            assert!(said.contains(says), "{said}");
            assert!(
                !said.contains("target type") && !said.contains("in string"),
                "{said}"
            );
        }
    }
}
