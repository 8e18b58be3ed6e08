//! `leasehold restore`: prepares a data folder for the first node of a new cluster
//! from a backup. Talks to no node, and starts none.

use std::{fs::File, io::BufReader, net::SocketAddr, path::PathBuf};

use leasehold_ledger::Voided;
use serde_json::json;

use super::{
    Answer, CliError,
    backup::{contents, counted, describe},
    text::duration,
};
use crate::{
    backup::Backup,
    config::{Config, ServeFlags},
    raft::{Member, begin_from, must_be_empty},
    sequencer::draw_id,
};

/// The longest time to live that any cluster's settings allow, and the shortest.
const TTL_MS: std::ops::RangeInclusive<u64> = 100..=600_000;

/// Flags of `leasehold restore`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RestoreFlags {
    /// What `leasehold backup` wrote
    file: PathBuf,
    /// The longest session_ttl_ms that the old cluster had since the backup, if it was
    /// raised [default: the longest in the backup]
    #[arg(long, value_name = "MS")]
    old_session_ttl_ms: Option<u64>,
    /// Read and check everything and say what would happen; write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    serve: ServeFlags,
}

impl RestoreFlags {
    pub(super) fn run(&self) -> Result<Answer, CliError> {
        let config = Config::load(&self.serve).map_err(|error| CliError::Failed {
            code: error.code(),
            detail: error.to_string(),
        })?;
        let ttl_us = match self.old_session_ttl_ms {
            None => 0,
            Some(ms) if TTL_MS.contains(&ms) => ms * 1_000,
            Some(ms) => {
                return Err(CliError::Usage(format!(
                    "--old-session-ttl-ms ({ms}) must be {} to {}",
                    TTL_MS.start(),
                    TTL_MS.end()
                )));
            }
        };
        let file = File::open(&self.file).map_err(|error| CliError::Failed {
            code: "backup_unreadable",
            detail: format!("cannot read {}: {error}", self.file.display()),
        })?;
        let mut backup = Backup::read(BufReader::new(file)).map_err(|error| CliError::Failed {
            code: error.code(),
            detail: format!("{}: {error}", self.file.display()),
        })?;
        let (about, mut value) = (describe(&backup), contents(&backup));
        let cluster_id = draw_id().ok_or_else(|| CliError::Failed {
            code: "internal",
            detail: "the operating system has no randomness now".to_owned(),
        })?;
        let (ledger, voided) = std::mem::take(&mut backup.ledger).restored(cluster_id, ttl_us);
        if self.dry_run {
            must_be_empty(&config.data_dir)?;
        } else {
            begin_from(
                &config.data_dir,
                first_member(&config),
                &ledger,
                backup.header.term,
            )?;
        }
        value["voided"] = json!({
            "sessions": voided.had.sessions,
            "tombstones": voided.had.tombstones,
            "leases": voided.had.leases,
            "outstanding": voided.had.outstanding,
        });
        value["restored"] = json!({
            "cluster_id": format!("{cluster_id:032x}"),
            "node_id": config.node_id,
            "data_dir": config.data_dir.display().to_string(),
            "written": !self.dry_run,
            "old_session_ttl_ms": voided.ttl_us / 1_000,
            "may_miss_after_log_index": backup.header.log_index,
        });
        let text = self.report(&config, &about, &backup, &voided, cluster_id);
        Ok(Answer { text, value })
    }

    fn report(
        &self,
        config: &Config,
        about: &str,
        backup: &Backup,
        voided: &Voided,
        cluster_id: u128,
    ) -> String {
        let (node_id, dir) = (config.node_id, config.data_dir.display());
        let done = if self.dry_run {
            format!(
                "nothing was written; {dir} would be prepared for node {node_id} of a new cluster"
            )
        } else {
            format!("{dir} is prepared for node {node_id} of the new cluster {cluster_id:032x}")
        };
        let ttl = duration(voided.ttl_us / 1_000);
        let had = voided.had;
        format!(
            "{done}\n\n\
             From {file}:\n{about}\n\n\
             Kept: policies, budgets, settings, and accounts with their lifetime totals.\n\
             Void: {sessions} and {leases}; {units} that were outstanding count as spent, and gateways open new sessions by themselves.\n\
             {free}\n\
             May be missing: everything after log index {index}: edits of policies, budgets and settings, and what accounts counted in their lifetime.\n\
             Assumed: no session of the old cluster had a session_ttl_ms above {ttl_ms}. If it was raised after the backup, empty the folder \
             and restore again with --old-session-ttl-ms.\n\n\
             Before you start this node, stop every node of the old cluster for good. Then:\n  \
             leasehold serve {start}\n  \
             start the other nodes with empty data folders, and for each: leasehold cluster add ID HOST:PEER-PORT",
            free = when_free(&ttl),
            file = self.file.display(),
            sessions = counted(had.sessions, "session", "sessions"),
            leases = counted(had.leases, "lease", "leases"),
            units = counted(had.outstanding, "unit", "units"),
            index = backup.header.log_index,
            ttl_ms = voided.ttl_us / 1_000,
            start = self.start_flags(config),
        )
    }

    /// What `serve` needs to be told so that it finds the folder.
    fn start_flags(&self, config: &Config) -> String {
        let mut flags = Vec::new();
        if let Some(file) = &self.serve.config {
            flags.push(format!("--config {}", file.display()));
        }
        if self.serve.data_dir.is_some() || self.serve.config.is_none() {
            flags.push(format!("--data-dir {}", config.data_dir.display()));
        }
        if self.serve.node_id.is_some() {
            flags.push(format!("--node-id {}", config.node_id));
        }
        let ServeFlags {
            config: _,
            data_dir: _,
            node_id: _,
            listen,
            admin_listen,
            peer_listen,
            advertise,
            admin_advertise,
            peer_advertise,
            region,
            insecure,
            log_format: _,
            log: _,
        } = &self.serve;
        let address = |address: &Option<SocketAddr>| address.map(|address| address.to_string());
        for (name, value) in [
            ("--listen", address(listen)),
            ("--admin-listen", address(admin_listen)),
            ("--peer-listen", address(peer_listen)),
            ("--advertise", advertise.clone()),
            ("--admin-advertise", admin_advertise.clone()),
            ("--peer-advertise", peer_advertise.clone()),
            ("--region", region.clone()),
        ] {
            flags.extend(value.map(|value| format!("{name} {value}")));
        }
        if *insecure {
            flags.push("--insecure".to_owned());
        }
        flags.join(" ")
    }
}

/// When something is free again, by kind, and what that needs.
fn when_free(ttl: &str) -> String {
    format!(
        "Nothing is free at first, whatever the account, because nobody knows what the old cluster granted after the backup:\n  \
         a sliding window for {ttl} and one window after the new cluster begins to lead; a bucket is empty and begins to fill after {ttl};\n  \
         a period has nothing before its next one begins (leasehold account reset KEY frees this one);\n  \
         a total has nothing until somebody adds what is left of it (leasehold account adjust KEY UNITS).\n  \
         This holds for keys that are not in the backup too."
    )
}

/// The first node as its configuration describes it; it says where it really is
/// reached when it begins to lead.
fn first_member(config: &Config) -> Member {
    let own = config
        .initial_members
        .iter()
        .find(|member| member.node_id == config.node_id);
    Member {
        node_id: config.node_id,
        peer_addr: config
            .peer_advertise
            .clone()
            .or_else(|| own.map(|own| own.peer.clone()))
            .unwrap_or_else(|| config.peer_listen.to_string()),
        client_url: config
            .advertise
            .clone()
            .unwrap_or_else(|| format!("http://{}", config.listen)),
        admin_url: config.admin_advertise.clone().unwrap_or_default(),
        region: config.region.clone().unwrap_or_default(),
        disk_id: 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use clap::Parser;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: RestoreFlags,
    }

    #[test]
    fn what_a_period_and_a_total_need_is_said() {
        let said = when_free("10s");
        for needs in [
            "a sliding window for 10s and one window",
            "a period has nothing before its next one begins (leasehold account reset KEY",
            "a total has nothing until somebody adds what is left of it (leasehold account adjust KEY UNITS)",
        ] {
            assert!(said.contains(needs), "{said}");
        }
    }

    #[test]
    fn the_command_that_starts_the_node_has_the_addresses_that_were_given() {
        let given = "--data-dir new --node-id 4 --listen 127.0.0.1:9070 --admin-listen 127.0.0.1:9072 \
                     --peer-listen 127.0.0.1:9071 --advertise http://gw:1 --admin-advertise http://admin:2 \
                     --peer-advertise host:3 --region eu --insecure";
        let words = format!("restore file {given}");
        let flags = Line::parse_from(words.split(' ')).flags;
        let config = Config::load(&flags.serve).unwrap();
        assert_eq!(flags.start_flags(&config), given);
        let plain = Line::parse_from(["restore", "file"]).flags;
        let config = Config::load(&plain.serve).unwrap();
        assert_eq!(
            plain.start_flags(&config),
            format!("--data-dir {}", config.data_dir.display())
        );
    }
}
