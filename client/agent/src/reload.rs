//! Takes a changed configuration while the agent runs: all of its rules or none. Knows
//! nothing of what the rules are for.
//!
//! The file is read again every quarter of a second, by its name: so an editor that
//! renames and an orchestrator that swaps links are seen like one that overwrites. A
//! change is taken once two looks in a row have found the same, so that a file that is
//! being written is not taken half. SIGHUP takes what is there at once.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    agent::Standing,
    config::{Config, Fixed, Texts},
    metrics,
};

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Watches one configuration file.
pub(crate) struct Watcher {
    path: PathBuf,
    insecure: bool,
    fixed: Fixed,
    standing: watch::Sender<Standing>,
    /// What was taken or refused last.
    judged: Texts,
    /// What the last look found.
    found: Texts,
}

impl Watcher {
    /// Watches for what differs from `texts`, which are in force. Returns where to see what
    /// is.
    pub(crate) fn new(
        path: &Path,
        insecure: bool,
        config: Config,
        texts: Texts,
    ) -> (Self, watch::Receiver<Standing>) {
        let (standing, seen) = watch::channel(Standing {
            rules: Arc::new(config.rules),
            problem: None,
            needs_restart: Vec::new(),
            since: Some(Instant::now()),
        });
        let watcher = Self {
            path: path.to_owned(),
            insecure,
            fixed: config.fixed,
            standing,
            found: texts.clone(),
            judged: texts,
        };
        (watcher, seen)
    }

    /// Watches for as long as the process runs.
    ///
    /// # Errors
    /// When the process cannot hear signals.
    pub(crate) async fn run(mut self) -> std::io::Result<()> {
        let mut hangups = signal(SignalKind::hangup())?;
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => self = self.aside(Self::look).await?,
                _ = hangups.recv() => {
                    tracing::info!("SIGHUP: the configuration is read again");
                    self = self.aside(Self::look_at_once).await?;
                }
            }
        }
    }

    /// Where nobody waits: reading thousands of rules takes a while, and requests are
    /// answered meanwhile.
    async fn aside(mut self, work: fn(&mut Self)) -> std::io::Result<Self> {
        let worked = tokio::task::spawn_blocking(move || {
            work(&mut self);
            self
        });
        worked.await.map_err(std::io::Error::other)
    }

    fn look_at_once(&mut self) {
        let found = Texts::read(&self.path);
        self.judge(found);
    }

    fn look(&mut self) {
        let found = Texts::read(&self.path);
        let is_settled = found == self.found;
        self.found = found.clone();
        if is_settled && found != self.judged {
            self.judge(found);
        }
    }

    /// Takes what was found, or says why not.
    fn judge(&mut self, found: Texts) {
        let path = self.path.display().to_string();
        let config = Config::parse(&self.path, &found, self.insecure);
        self.judged = found;
        metrics::reloaded(config.is_ok());
        match config {
            Ok(config) => {
                let needs_restart = self.fixed.differences(&config.fixed);
                tracing::info!(path, "the configuration is taken");
                for note in config.notes() {
                    tracing::warn!("{note}");
                }
                if !needs_restart.is_empty() {
                    let fields = needs_restart.join(", ");
                    tracing::warn!(path, fields, "changed, and in force after a restart only");
                }
                self.standing.send_replace(Standing {
                    rules: Arc::new(config.rules),
                    problem: None,
                    needs_restart,
                    since: Some(Instant::now()),
                });
            }
            Err(error) => {
                tracing::error!(
                    path,
                    code = "configuration_kept",
                    "the changed configuration is not taken, and the one before stays in force: {error}"
                );
                self.standing
                    .send_modify(|standing| standing.problem = Some(error.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use super::*;

    const FIRST: &str = "[check]\nkey = \"edge/{header:x-key}\"\n";
    const SECOND: &str = "[check]\nkey = \"other/{header:x-key}\"\n";

    fn watched(text: &str) -> (tempfile::TempDir, Watcher, watch::Receiver<Standing>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        fs::write(&path, text).unwrap();
        let texts = Texts::read(&path);
        let config = Config::parse(&path, &texts, false).unwrap();
        let (watcher, seen) = Watcher::new(&path, false, config, texts);
        (dir, watcher, seen)
    }

    /// The key that a customer's requests are charged to.
    fn key(standing: &watch::Receiver<Standing>) -> String {
        let mut headers = http::HeaderMap::new();
        headers.insert("x-key", http::HeaderValue::from_static("acme"));
        let rules = Arc::clone(&standing.borrow().rules);
        let key = rules.checks[""].keys[0].key(&headers).unwrap();
        key.as_str().to_owned()
    }

    #[tokio::test]
    async fn a_change_is_taken_once_it_has_settled() {
        let (_dir, mut watcher, seen) = watched(FIRST);
        watcher.look();
        assert_eq!(key(&seen), "edge/acme");
        fs::write(&watcher.path, "[check]\nkey = \"half\"\n").unwrap();
        watcher.look();
        fs::write(&watcher.path, SECOND).unwrap();
        watcher.look();
        assert_eq!(key(&seen), "edge/acme", "it was being written");
        watcher.look();
        assert_eq!(key(&seen), "other/acme");
    }

    #[tokio::test]
    async fn a_file_that_was_renamed_or_linked_into_place_is_seen() {
        let (dir, mut watcher, seen) = watched(FIRST);
        let beside = dir.path().join("beside");
        fs::write(&beside, SECOND).unwrap();
        fs::rename(&beside, &watcher.path).unwrap();
        watcher.look();
        watcher.look();
        assert_eq!(key(&seen), "other/acme");
        fs::write(dir.path().join("data"), FIRST).unwrap();
        std::os::unix::fs::symlink(dir.path().join("data"), &beside).unwrap();
        fs::rename(&beside, &watcher.path).unwrap();
        watcher.look();
        watcher.look();
        assert_eq!(key(&seen), "edge/acme");
    }

    #[tokio::test]
    async fn a_broken_file_and_a_missing_one_change_nothing_and_are_said_until_it_is_mended() {
        let (_dir, mut watcher, seen) = watched(FIRST);
        fs::write(&watcher.path, "[check]\nkex = 1\n").unwrap();
        watcher.look();
        watcher.look();
        assert_eq!(key(&seen), "edge/acme");
        let problem = seen.borrow().problem.clone().unwrap();
        assert!(problem.contains("kex"), "{problem}");
        fs::remove_file(&watcher.path).unwrap();
        watcher.look();
        watcher.look();
        assert!(
            seen.borrow()
                .problem
                .clone()
                .unwrap()
                .contains("cannot read")
        );
        fs::write(&watcher.path, FIRST).unwrap();
        watcher.look();
        watcher.look();
        assert_eq!(seen.borrow().problem, None);
    }

    #[tokio::test]
    async fn what_only_a_restart_changes_is_named_and_the_rest_is_taken() {
        let (_dir, mut watcher, seen) = watched(FIRST);
        let text = format!("holder = \"another\"\n[listen]\ntcp = \"127.0.0.1:1\"\n{SECOND}");
        fs::write(&watcher.path, text).unwrap();
        watcher.look();
        watcher.look();
        assert_eq!(key(&seen), "other/acme");
        assert_eq!(seen.borrow().needs_restart, ["holder", "listen.tcp"]);
    }
}
