//! Files that are read again when they change. Knows nothing of what is in them.
//!
//! Every second they are read by their names: so a file that is renamed into place and a
//! link that is swapped are seen like one that is overwritten. A change is taken once two
//! looks in a row have found the same, so that what is being written is not taken half.
//! SIGHUP takes what is there at once. What cannot be taken leaves the one before in force.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use leasehold_credentials::{read_private, read_public};
use thiserror::Error;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::pem::Expiry;

const LOOK_EVERY: Duration = Duration::from_secs(1);
const WARN_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// A file to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// It is refused when others than its owner can read or change it.
    pub is_secret: bool,
}

/// What files were found to have. No `Debug`: some of it is secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents(BTreeMap<PathBuf, Result<Vec<u8>, String>>);

impl Contents {
    /// Reads what is there now.
    #[must_use]
    pub fn read(sources: &[Source]) -> Self {
        let files = sources.iter().map(|source| {
            let read = match source.is_secret {
                true => read_private,
                false => read_public,
            };
            let found = read(&source.path).map_err(|what| what.to_string());
            (source.path.clone(), found)
        });
        Self(files.collect())
    }

    /// A file's bytes.
    ///
    /// # Errors
    /// Why it cannot be read, for people.
    pub fn of(&self, path: &Path) -> Result<&[u8], String> {
        match self.0.get(path) {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("was not read".to_owned()),
        }
    }
}

/// Why files cannot be taken at a start.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct KeptError(pub String);

/// What files say; a copy sees the same.
#[derive(Debug)]
pub struct Kept<T> {
    now: watch::Receiver<Arc<T>>,
    problem: watch::Receiver<Option<String>>,
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self {
            now: self.now.clone(),
            problem: self.problem.clone(),
        }
    }
}

impl<T> Kept<T> {
    /// What is in force.
    #[must_use]
    pub fn now(&self) -> Arc<T> {
        Arc::clone(&self.now.borrow())
    }

    /// Why what the files say now is not in force.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.problem.borrow().clone()
    }

    /// Sees every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Arc<T>> {
        self.now.clone()
    }
}

/// Looks at files for as long as it runs.
#[derive(Default)]
pub struct Watch {
    looks: Vec<Box<dyn Look + Send>>,
}

trait Look {
    /// Looks once; `at_once`: takes what is there though it may not have settled.
    fn look(&mut self, at_once: bool);
    fn warn(&self);
}

type Read<T> = Box<dyn Fn(&Contents) -> Result<T, String> + Send>;
type Expiries<T> = fn(&T) -> Vec<Expiry>;

struct Files<T> {
    /// What they are, for people: "the certificates of [tls]".
    what: &'static str,
    /// The code with which it is said that a change was not taken.
    sources: Vec<Source>,
    read: Read<T>,
    expiries: Expiries<T>,
    /// What was taken or refused last.
    judged: Contents,
    /// What the last look found.
    found: Contents,
    now: watch::Sender<Arc<T>>,
    problem: watch::Sender<Option<String>>,
}

impl Watch {
    /// Reads files, and will read them again. `what` names them for people.
    ///
    /// # Errors
    /// When they cannot be taken as they are now.
    pub fn keep<T: Send + Sync + 'static>(
        &mut self,
        what: &'static str,
        sources: Vec<Source>,
        read: impl Fn(&Contents) -> Result<T, String> + Send + 'static,
        expiries: fn(&T) -> Vec<Expiry>,
    ) -> Result<Kept<T>, KeptError> {
        let found = Contents::read(&sources);
        let first = read(&found).map_err(KeptError)?;
        let (now, seen) = watch::channel(Arc::new(first));
        let (problem, problem_seen) = watch::channel(None);
        self.looks.push(Box::new(Files {
            what,
            sources,
            read: Box::new(read),
            expiries,
            judged: found.clone(),
            found,
            now,
            problem,
        }));
        Ok(Kept {
            now: seen,
            problem: problem_seen,
        })
    }

    /// Whether there is nothing to look at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.looks.is_empty()
    }

    /// Looks at everything once, as each second does.
    pub fn look(&mut self) {
        self.each(false);
    }

    /// Looks at everything, and takes what is there at once.
    pub fn look_at_once(&mut self) {
        self.each(true);
    }

    fn each(&mut self, at_once: bool) {
        for look in &mut self.looks {
            look.look(at_once);
        }
    }

    /// Looks each second and at each SIGHUP, and says each day what expires soon. Ends
    /// never.
    ///
    /// # Errors
    /// When the process cannot hear signals.
    pub async fn run(mut self) -> io::Result<()> {
        let mut hangups = signal(SignalKind::hangup())?;
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut warned: Option<Instant> = None;
        loop {
            let at_once = tokio::select! {
                _ = looks.tick() => false,
                _ = hangups.recv() => true,
            };
            let warns = warned.is_none_or(|at| at.elapsed() >= WARN_EVERY);
            if warns {
                warned = Some(Instant::now());
            }
            // A file may be on another machine that does not answer.
            let looked = tokio::task::spawn_blocking(move || {
                self.each(at_once);
                if warns {
                    self.looks.iter().for_each(|look| look.warn());
                }
                self
            });
            self = looked.await.map_err(io::Error::other)?;
        }
    }
}

impl<T> Look for Files<T> {
    fn look(&mut self, at_once: bool) {
        let found = Contents::read(&self.sources);
        let is_settled = at_once || found == self.found;
        self.found = found;
        if !is_settled || self.found == self.judged {
            return;
        }
        self.judged = self.found.clone();
        let what = self.what;
        match (self.read)(&self.judged) {
            Ok(taken) => {
                self.now.send_replace(Arc::new(taken));
                self.problem.send_replace(None);
                tracing::info!("{what} changed and are taken");
                self.warn();
            }
            Err(reason) => {
                tracing::error!(
                    code = "files_kept",
                    "{what} changed and cannot be taken, so that those before stay in force: {reason}"
                );
                self.problem.send_replace(Some(reason));
            }
        }
    }

    fn warn(&self) {
        for expiry in (self.expiries)(&self.now.borrow()) {
            if expiry.is_near() {
                let (file, field) = (expiry.path.display(), expiry.field);
                let days = expiry.seconds_left().div_euclid(24 * 60 * 60);
                tracing::warn!(
                    %file, field, days,
                    code = "certificate_expires",
                    "a certificate expires in {days} days: renew it"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use super::*;

    fn kept(path: &Path) -> (Watch, Kept<String>) {
        let mut watch = Watch::default();
        let source = Source {
            path: path.to_owned(),
            is_secret: false,
        };
        let own = path.to_owned();
        let read = move |contents: &Contents| {
            let text = String::from_utf8(contents.of(&own)?.to_vec()).unwrap();
            if text.contains("broken") {
                return Err("is broken".to_owned());
            }
            Ok(text)
        };
        let kept = watch.keep("the words", vec![source], read, |_| Vec::new());
        (watch, kept.unwrap())
    }

    #[test]
    fn a_change_is_taken_once_it_has_settled_or_at_once_when_somebody_asks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        fs::write(&path, "one").unwrap();
        let (mut watch, kept) = kept(&path);
        fs::write(&path, "tw").unwrap();
        watch.look();
        fs::write(&path, "two").unwrap();
        watch.look();
        assert_eq!(*kept.now(), "one", "it was being written");
        watch.look();
        assert_eq!(*kept.now(), "two");
        fs::write(&path, "three").unwrap();
        watch.look_at_once();
        assert_eq!(*kept.now(), "three");
    }

    #[test]
    fn what_is_broken_or_gone_changes_nothing_and_is_said_until_it_is_mended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        fs::write(&path, "one").unwrap();
        let (mut watch, kept) = kept(&path);
        fs::write(&path, "broken").unwrap();
        watch.look();
        watch.look();
        assert_eq!(*kept.now(), "one");
        assert_eq!(kept.problem().unwrap(), "is broken");
        fs::remove_file(&path).unwrap();
        watch.look();
        watch.look();
        assert_eq!(*kept.now(), "one");
        assert!(kept.problem().unwrap().contains("cannot be read"));
        fs::write(&path, "one").unwrap();
        watch.look();
        watch.look();
        assert_eq!(kept.problem(), None);
    }
}
