//! Takes a changed identities file while the node runs: all of it or nothing. Knows
//! nothing of what identities are for.
//!
//! The file is looked at every second, by its name and its content: so an editor that
//! renames and an orchestrator that swaps links are seen like one that overwrites. A change
//! is taken once two looks in a row have found the same, so that a file that is being
//! written is not taken half. SIGHUP takes what is there at once.

use std::{path::Path, sync::Arc, time::Duration};

use metrics::gauge;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::{
    Guarded,
    register::{Identities, RegisterError, text_of},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was found: a text, or in words why there is none.
type Found = Result<String, String>;

/// Watches until `stopped`.
pub(super) async fn run(guarded: Arc<Guarded>, mut stopped: watch::Receiver<bool>) {
    let mut watcher = Watcher {
        judged: find(&guarded.path),
        found: find(&guarded.path),
        guarded,
    };
    // What changed between the first reading and this one.
    watcher.judge();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let Ok(mut hangups) = signal(SignalKind::hangup()) else {
        tracing::warn!("SIGHUP cannot be heard: the identities file is looked at every second");
        return;
    };
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => return,
            _ = looks.tick() => watcher.look(),
            _ = hangups.recv() => {
                watcher.found = find(&watcher.guarded.path);
                watcher.judge();
            }
        }
    }
}

struct Watcher {
    guarded: Arc<Guarded>,
    /// What was taken or refused last.
    judged: Found,
    /// What the last look found.
    found: Found,
}

impl Watcher {
    fn look(&mut self) {
        let found = find(&self.guarded.path);
        let is_settled = found == self.found;
        self.found = found;
        if is_settled && self.found != self.judged {
            self.judge();
        }
    }

    fn judge(&mut self) {
        self.judged = self.found.clone();
        let path = &self.guarded.path;
        let identities = match &self.found {
            Ok(text) => Identities::parse(path, text).map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        match identities {
            Ok(identities) => {
                taken(path, &identities);
                *self.guarded.problem.lock() = None;
                self.guarded.identities.send_replace(Arc::new(identities));
            }
            Err(error) => {
                gauge!("leasehold_identities_kept").set(1.0);
                tracing::error!(
                    path = %path.display(),
                    code = "identities_kept",
                    "the changed identities file is not taken, and the one before stays in force: {error}"
                );
                *self.guarded.problem.lock() = Some(error);
            }
        }
    }
}

fn find(path: &Path) -> Found {
    text_of(path).map_err(|error: RegisterError| error.to_string())
}

/// Says what is in force from now on.
pub(super) fn taken(path: &Path, identities: &Identities) {
    let count = identities.len();
    #[expect(clippy::cast_precision_loss, reason = "a metric")]
    gauge!("leasehold_identities").set(count as f64);
    gauge!("leasehold_identities_kept").set(0.0);
    tracing::info!(path = %path.display(), identities = count, "the identities file is taken");
    if count == 0 {
        tracing::warn!(
            "the identities file names nobody, so nobody may ask anything: `leasehold token create` adds an identity"
        );
    }
    for name in identities.unbounded() {
        tracing::warn!(identity = name, "a gateway may use every key");
    }
}
