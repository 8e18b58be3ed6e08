//! `leasehold backup`: the whole ledger in one file, from a node that runs or from
//! the folder of one that does not.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use leasehold_ledger::Ledger;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::{Answer, CliError, Remote, http::download, text::duration};
use crate::{
    backup::{Backup, Header, HeaderMember, Taken},
    clock,
    raft::{Remains, read_stopped},
};

/// Flags of `leasehold backup`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct BackupFlags {
    /// Where to write it; only its owner may read it, for it names live sessions
    file: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
    /// Also from a node that knows of no leader: what it has may be old
    #[arg(long, conflicts_with = "data_dir")]
    without_leader: bool,
    /// Read the data folder of a node that does not run, instead of asking one that does
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl BackupFlags {
    pub(super) async fn run(&self, remote: &Remote) -> Result<Answer, CliError> {
        if self.file.exists() && !self.force {
            return Err(exists(&self.file));
        }
        let mut temporary = self.temporary()?;
        match &self.data_dir {
            Some(dir) => {
                let remains = read_stopped(dir)?;
                let mut out = BufWriter::new(&mut temporary);
                let head = header_of(&remains).encode();
                let written = head.and_then(|head| {
                    out.write_all(&head)?;
                    for chunk in remains.ledger.freeze().chunks() {
                        out.write_all(&chunk)?;
                    }
                    out.flush()
                });
                written.map_err(|error| cannot_write(&self.file, &error))?;
            }
            None => {
                let path = if self.without_leader {
                    "/v1/backup?without_leader=true"
                } else {
                    "/v1/backup"
                };
                let mut out = BufWriter::new(&mut temporary);
                download(remote, path, |bytes| {
                    out.write_all(bytes)
                        .map_err(|error| cannot_write(&self.file, &error))
                })
                .await?;
                out.flush()
                    .map_err(|error| cannot_write(&self.file, &error))?;
            }
        }
        self.keep(temporary)
    }

    /// In the folder of the file, so that it can get the file's name.
    fn temporary(&self) -> Result<NamedTempFile, CliError> {
        tempfile::Builder::new()
            .prefix(".leasehold-backup-")
            .tempfile_in(folder_of(&self.file))
            .map_err(|error| cannot_write(&self.file, &error))
    }

    /// Reads it back, makes it durable, and gives it its name.
    fn keep(&self, temporary: NamedTempFile) -> Result<Answer, CliError> {
        let failed = |error: io::Error| cannot_write(&self.file, &error);
        temporary.as_file().sync_all().map_err(failed)?;
        let bytes = temporary.as_file().metadata().map_err(failed)?.len();
        let backup = Backup::read(BufReader::new(temporary.reopen().map_err(failed)?))?;
        if self.force {
            temporary
                .persist(&self.file)
                .map_err(|error| failed(error.error))?;
        } else {
            temporary
                .persist_noclobber(&self.file)
                .map_err(|error| match error.error.kind() {
                    io::ErrorKind::AlreadyExists => exists(&self.file),
                    _ => failed(error.error),
                })?;
        }
        File::open(folder_of(&self.file))
            .and_then(|folder| folder.sync_all())
            .map_err(failed)?;
        let mut value = contents(&backup);
        value["file"] = self.file.display().to_string().into();
        value["bytes"] = bytes.into();
        let text = format!(
            "wrote {}, {bytes} bytes\n{}",
            self.file.display(),
            describe(&backup)
        );
        Ok(Answer { text, value })
    }
}

fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn exists(file: &Path) -> CliError {
    CliError::Failed {
        code: "file_exists",
        detail: format!(
            "{} is there already: choose another name, or say --force to replace it",
            file.display()
        ),
    }
}

fn cannot_write(file: &Path, error: &io::Error) -> CliError {
    CliError::Failed {
        code: "cannot_write",
        detail: format!("cannot write {}: {error}", file.display()),
    }
}

fn header_of(remains: &Remains) -> Header {
    let Remains {
        identity,
        ledger,
        last,
        committed,
        members,
    } = remains;
    let members = members.iter().map(|member| HeaderMember {
        node_id: member.node_id,
        peer: member.peer_addr.clone(),
        client_url: member.client_url.clone(),
    });
    Header {
        cluster_id: ledger.cluster_id().map(|id| format!("{id:032x}")),
        log_index: ledger.last_index(),
        term: last.term,
        cluster_time_us: ledger.now_us(),
        digest: format!("{:016x}", ledger.digest()),
        node_id: identity.node_id,
        disk_id: format!("{:032x}", identity.disk_id),
        taken_unix_ms: clock::wall_unix_us() / 1_000,
        taken: Taken::Stopped {
            committed: *committed,
            last: last.index,
        },
        members: members.collect(),
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// What is in a backup, for machines.
pub(super) fn contents(backup: &Backup) -> Value {
    let Backup { header, ledger } = backup;
    let totals = ledger.totals();
    json!({
        "header": header,
        "policies": totals.policies,
        "budgets": totals.budgets,
        "accounts": totals.accounts,
        "sessions": totals.sessions,
        "leases": totals.leases,
        "outstanding": totals.outstanding,
        "session_ttl_ms": ledger.session_ttl_max_us() / 1_000,
    })
}

/// The same, for people.
pub(super) fn describe(backup: &Backup) -> String {
    let Backup { header, ledger } = backup;
    let taken = match header.taken {
        Taken::Running {
            leader: Some(leader),
        } if leader == header.node_id => "which led".to_owned(),
        Taken::Running {
            leader: Some(leader),
        } => format!("which followed node {leader}"),
        Taken::Running { leader: None } => {
            "which knew of no leader: others may have gone on without it".to_owned()
        }
        Taken::Stopped { committed, last } => format!(
            "which had stopped; its log ends at {last} of term {}, and it knew that {} was committed",
            header.term,
            committed.map_or_else(|| "nothing".to_owned(), |index| index.to_string())
        ),
    };
    format!(
        "cluster {} as of log index {} and cluster time {}\ntaken on {} from node {}, {taken}\n{}",
        header.cluster_id.as_deref().unwrap_or("without an id"),
        header.log_index,
        duration(header.cluster_time_us / 1_000),
        header.taken_at(),
        header.node_id,
        amounts(ledger),
    )
}

fn amounts(ledger: &Ledger) -> String {
    let totals = ledger.totals();
    format!(
        "{}, {}, {}, {} with {} outstanding",
        counted(totals.policies, "policy", "policies"),
        counted(totals.budgets, "budget", "budgets"),
        counted(totals.accounts, "account", "accounts"),
        counted(totals.sessions, "session", "sessions"),
        counted(totals.outstanding, "unit", "units"),
    )
}

/// A number with its noun.
pub(super) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
