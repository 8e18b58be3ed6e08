//! `leasehold-agent import`: makes a coordinator's policies and budgets what the
//! configuration of envoyproxy/ratelimit says. Running it again changes nothing.
//!
//! Does not know how rules are followed: what the files say is [`crate::ratelimit`]'s, what
//! a rule means is the coordinator's. What the files say nothing of (`failure_mode`, lanes,
//! `accounts_max`, …) stays as somebody has set it.

mod admin;
mod changes;
mod credentials;
mod error;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use crate::ratelimit::{Config, Plan};

use admin::Admin;
use changes::{Change, Deed, Present, Thing};
use credentials::CredentialFlags;
pub use error::ImportError;

/// Policies that are tried one by one in a dry run, each of which looks at every account.
const TRIED_MAX: usize = 100;

/// What `leasehold-agent import` is told.
#[derive(Debug, Args)]
pub struct ImportFlags {
    /// Files of envoyproxy/ratelimit, one domain each
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The URL of a coordinator; of several, the first that answers
    #[arg(
        long,
        value_name = "URL",
        env = "LEASEHOLD_ENDPOINT",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7070"
    )]
    coordinator: Vec<String>,
    /// Change nothing: say what would be changed, and exit with 9 if anything would
    #[arg(long)]
    dry_run: bool,
    /// Also delete budgets below the files' domains that the files do not have, and the
    /// policies that were imported for them
    #[arg(long)]
    prune: bool,
    /// Write what the files need to a file that `leasehold apply -f` takes (`-`: standard
    /// output), and do nothing else: no coordinator is asked or changed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "prune"])]
    plan: Option<PathBuf>,
    /// Who you are, for the histories of what you change; nobody checks it [default: $USER]
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_BY")]
    by: Option<String>,
    #[command(flatten)]
    credentials: CredentialFlags,
}

/// What an import did, or would do.
#[derive(Debug)]
pub struct Imported {
    /// Whether it was only a dry run.
    pub dry_run: bool,
    /// What was changed, or would be.
    pub changes: usize,
    /// What to print, one line each.
    pub lines: Vec<String>,
}

impl ImportFlags {
    /// Imports, prints what became of it, and gives the exit code: 0 done, 1 refused or
    /// failed, 2 wrong usage or files, 3 nobody answers, 9 a dry run would change something.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                complain(&format!("cannot start the runtime: {error} (fatal)"));
                return ExitCode::FAILURE;
            }
        };
        let imported = match runtime.block_on(self.import()) {
            Ok(imported) => imported,
            Err(error) => {
                complain(&format!("{error} ({})", error.code()));
                return ExitCode::from(error.exit_code());
            }
        };
        let mut out = std::io::stdout().lock();
        let text = imported.lines.join("\n");
        match writeln!(out, "{text}").and_then(|()| out.flush()) {
            // A reader that went away (`| head`) is no error.
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                complain(&format!("cannot print the answer: {error} (cannot_write)"));
                ExitCode::FAILURE
            }
            _ if imported.dry_run && imported.changes > 0 => ExitCode::from(9),
            _ => ExitCode::SUCCESS,
        }
    }

    /// Imports.
    ///
    /// # Errors
    /// When a file is not understood, in which case nobody was asked anything, and when the
    /// coordinator cannot be reached or refuses; it says what was changed before.
    pub async fn import(&self) -> Result<Imported, ImportError> {
        let config = Config::read(&self.files)?;
        let plan = config.plan();
        let mut lines: Vec<String> = config
            .notes()
            .iter()
            .map(|note| format!("note: {note}"))
            .collect();
        if let Some(path) = &self.plan {
            return written(path, &plan, lines);
        }
        let credentials = self.credentials.credentials();
        let admin = Admin::reach(&self.coordinator, self.by.as_deref(), &credentials).await?;
        let present = Present::of(&admin).await?;
        let mut changes = present.changes(&plan);
        let others = present.others(&plan);
        if self.prune {
            changes.extend(others);
        } else if !others.is_empty() {
            let names: Vec<String> = others.iter().map(Change::title).collect();
            lines.push(format!(
                "not in the files, and left alone without --prune: {}",
                names.join(", ")
            ));
        }
        if changes.is_empty() {
            lines.push("nothing to do: the coordinator has what the files say".to_owned());
        } else if self.dry_run {
            lines.extend(changes.iter().map(Change::line));
            lines.extend(foreseen(&admin, &changes).await?);
            lines.push(format!(
                "{} would change, nothing was changed",
                many(changes.len())
            ));
        } else {
            make(&admin, &changes).await?;
            lines.extend(changes.iter().map(Change::line));
            lines.push(format!("{} changed", many(changes.len())));
        }
        Ok(Imported {
            dry_run: self.dry_run,
            changes: changes.len(),
            lines,
        })
    }
}

/// Writes a plan to a file, or gives it to be printed, with the notes as comments.
fn written(path: &Path, plan: &Plan, notes: Vec<String>) -> Result<Imported, ImportError> {
    let lines = if path == Path::new("-") {
        let comments = notes.iter().flat_map(|note| note.lines());
        let comments = comments.map(|line| format!("# {line}"));
        comments
            .chain(plan.to_string().lines().map(str::to_owned))
            .collect()
    } else {
        std::fs::write(path, plan.to_string()).map_err(|error| ImportError::CannotWrite {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        let mut lines = notes;
        lines.push(format!(
            "the plan is written to {}; nothing was imported",
            path.display()
        ));
        lines
    };
    Ok(Imported {
        dry_run: false,
        changes: 0,
        lines,
    })
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "leasehold-agent: {text}");
}

fn many(things: usize) -> String {
    match things {
        1 => "1 thing".to_owned(),
        things => format!("{things} things"),
    }
}

/// What the policies would do to accounts that are there, and whether the coordinator would
/// take them. A budget that names a policy which is not there yet cannot be tried.
async fn foreseen(admin: &Admin, changes: &[Change]) -> Result<Vec<String>, ImportError> {
    let mut lines = Vec::new();
    let policies = changes.iter().filter(|one| one.thing == Thing::Policy);
    for change in policies.take(TRIED_MAX) {
        let Deed::Put(body) = &change.deed else {
            continue;
        };
        let path = format!("{}?dry_run=true", change.path());
        let tried = admin.put(&path, body, &change.condition).await;
        let tried = tried.map_err(|error| error.about(&change.title(), 0))?;
        let figure = |name: &str| tried.get(name).and_then(serde_json::Value::as_u64);
        if let Some(accounts) = figure("accounts").filter(|accounts| *accounts > 0) {
            let debt = figure("debt").unwrap_or(0);
            lines.push(format!(
                "{}: {accounts} accounts would follow it otherwise than now; debts would grow by {debt}",
                change.title()
            ));
        }
    }
    Ok(lines)
}

/// Policies first, because budgets name them; what is to go, last. Each only if it is still
/// as it was seen.
async fn make(admin: &Admin, changes: &[Change]) -> Result<(), ImportError> {
    let mut made = 0_usize;
    let of = |thing| changes.iter().filter(move |change| change.thing == thing);
    for change in of(Thing::Policy) {
        if let Deed::Put(body) = &change.deed {
            let put = admin.put(&change.path(), body, &change.condition).await;
            put.map_err(|error| error.about(&change.title(), made))?;
            made += 1;
        }
    }
    let budgets: Vec<&Change> = of(Thing::Budget)
        .filter(|change| matches!(change.deed, Deed::Put(_)))
        .collect();
    for part in changes::parts(&budgets) {
        let put = admin.put_many(part).await;
        put.map_err(|error| error.about_one_of(part, made))?;
        made += part.len();
    }
    for thing in [Thing::Budget, Thing::Policy] {
        for change in of(thing).filter(|change| matches!(change.deed, Deed::Delete)) {
            let deleted = admin.delete(&change.path(), &change.condition).await;
            deleted.map_err(|error| error.about(&change.title(), made))?;
            made += 1;
        }
    }
    Ok(())
}
