//! When this node leads, from when on it may serve, and where its term's time
//! begins. Knows nothing of what is proposed.
//!
//! Winning an election is not enough: a restarted node may see its old term again,
//! and a new leader's ledger may lag its log. A term is published as led only once
//! an entry of that very term was applied here. No proposal is accepted before, so
//! the ledger's time at that moment is what it was when the term's first entry was
//! applied: the anchor.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use openraft::{RaftMetrics, async_runtime::WatchReceiver, type_config::alias::WatchReceiverOf};
use tokio::sync::{mpsc, watch};

use super::{
    api::{Leadership, Member},
    peers::Shared,
    types::{Core, Types},
};
use crate::clock::Reading;

const TRY_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What the core's metrics say of leadership.
enum Seen {
    Stopped(String),
    Leads(u64),
    Follows(Option<Member>),
}

/// The outcome of one attempt to apply an entry of a term.
struct Attempt {
    term: u64,
    applied: Option<(u64, Reading)>,
}

/// Publishes leadership until the core stops.
pub(super) async fn publish(
    core: Core,
    shared: Arc<Shared>,
    leadership: watch::Sender<Leadership>,
    stopping: Arc<AtomicBool>,
) {
    let mut metrics = core.metrics();
    let (attempts, mut attempted) = mpsc::unbounded_channel();
    let mut attempting: Option<u64> = None;
    loop {
        match look(&metrics) {
            Seen::Stopped(reason) => {
                set(&leadership, Leadership::Following { leader: None });
                // Relaxed: a flag on its own; a stop that is reported twice does no harm.
                if !stopping.load(Ordering::Relaxed) {
                    shared.fail(format!("the consensus core stopped: {reason}"));
                }
                return;
            }
            Seen::Follows(leader) => {
                attempting = None;
                set(&leadership, Leadership::Following { leader });
            }
            Seen::Leads(term) => {
                let serving = matches!(&*leadership.borrow(), Leadership::Leading { term: led, .. } if *led == term);
                if !serving && attempting != Some(term) {
                    attempting = Some(term);
                    set(&leadership, Leadership::Following { leader: None });
                    tokio::spawn(attempt(
                        core.clone(),
                        Arc::clone(&shared),
                        term,
                        attempts.clone(),
                    ));
                }
            }
        }
        tokio::select! {
            changed = metrics.changed() => {
                if changed.is_err() {
                    set(&leadership, Leadership::Following { leader: None });
                    if !stopping.load(Ordering::Relaxed) {
                        shared.fail("the consensus core is gone".to_owned());
                    }
                    return;
                }
            }
            Some(Attempt { term, applied }) = attempted.recv() => {
                if attempting != Some(term) {
                    continue;
                }
                attempting = None;
                // Leadership may have been lost since: only what is true now counts.
                if let (Some((anchor_us, since)), Seen::Leads(now)) = (applied, look(&metrics))
                    && now == term
                {
                    tracing::info!(term, anchor_us, "leading");
                    set(&leadership, Leadership::Leading { term, anchor_us, since });
                }
            }
        }
    }
}

/// Writes a blank entry and waits until it was applied here.
async fn attempt(
    core: Core,
    shared: Arc<Shared>,
    term: u64,
    attempts: mpsc::UnboundedSender<Attempt>,
) {
    let applied = match core.write_blank().await {
        Ok(response) if **response.log_id.committed_leader_id() == term => {
            // The clock is read after the term was won, and as late as possible:
            // cluster time then stands still a little longer, which is always safe.
            let anchor_us = shared.ledger.read().now_us();
            Some((anchor_us, Reading::now()))
        }
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(term, %error, "no entry of this term yet");
            tokio::time::sleep(TRY_AGAIN_AFTER).await;
            None
        }
    };
    // The watcher may be gone: the core stopped.
    let _ = attempts.send(Attempt { term, applied });
}

fn look(metrics: &CoreMetrics) -> Seen {
    let metrics = metrics.borrow_watched();
    if let Err(fatal) = &metrics.running_state {
        return Seen::Stopped(fatal.to_string());
    }
    if metrics.state.is_leader() {
        return Seen::Leads(metrics.current_term);
    }
    let leader = metrics
        .current_leader
        .filter(|leader| *leader != metrics.id);
    Seen::Follows(leader.and_then(|leader| metrics.membership_config.get_node(&leader).cloned()))
}

type CoreMetrics = WatchReceiverOf<Types, RaftMetrics<Types>>;

fn set(leadership: &watch::Sender<Leadership>, new: Leadership) {
    leadership.send_if_modified(|current| {
        let changed = *current != new;
        if changed {
            *current = new;
        }
        changed
    });
}
