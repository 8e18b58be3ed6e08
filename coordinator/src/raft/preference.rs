//! Brings leadership to the region that the cluster prefers, and back to it after a
//! failure. Knows nothing of elections: whoever is elected hands over.

use std::{cmp::Reverse, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::time::Instant;

use super::{
    api::Leadership,
    membership::{Changes, LAG_MAX},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// So many looks in a row must find the same node fit: one that has just come back,
/// or whose link comes and goes, is not given the leadership at once.
const FIT_LOOKS: u32 = 5;
/// Between two attempts: each costs the gateways a moment without grants.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Why it has to wait is said so often.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Looks after the leader's place until the core stops.
pub(super) async fn seek(changes: Changes) {
    let mut fit: Option<(u64, u32)> = None;
    let mut said: Option<Instant> = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if changes
            .core
            .metrics()
            .borrow_watched()
            .running_state
            .is_err()
        {
            return;
        }
        fit = match (place(&changes), fit) {
            (Place::Elsewhere(heir), Some((same, looks))) if heir == same => {
                Some((heir, looks + 1))
            }
            (Place::Elsewhere(heir), _) => Some((heir, 1)),
            (Place::Nobody(why), _) => {
                if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN_AFTER) {
                    tracing::info!(%why, "nobody can lead from the preferred region now");
                    said = Some(Instant::now());
                }
                None
            }
            (Place::Right, _) => {
                said = None;
                None
            }
        };
        let Some((heir, FIT_LOOKS..)) = fit else {
            continue;
        };
        fit = None;
        tracing::info!(heir, "handing leadership to the preferred region");
        if let Err(error) = changes.transfer(heir).await {
            tracing::warn!(heir, %error, "the preferred region did not take the leadership");
            tokio::time::sleep(TRY_AGAIN_AFTER).await;
        }
    }
}

/// What there is to do for the leader's place.
enum Place {
    /// This node does not lead, or leads where it should.
    Right,
    /// This voter should lead.
    Elsewhere(u64),
    /// Nobody of the preferred region could take over at once: why not.
    Nobody(String),
}

/// Who should lead instead of this node, if it leads from elsewhere: the voter of
/// the preferred region that lags least, of those that could take over at once.
fn place(changes: &Changes) -> Place {
    if !matches!(&*changes.leadership.borrow(), Leadership::Leading { .. }) {
        return Place::Right;
    }
    let ledger = changes.shared.ledger.read();
    let preferred = match &ledger.settings().preferred_leader_region {
        Some(preferred) if changes.shared.me.region != *preferred => preferred.clone(),
        _ => return Place::Right,
    };
    drop(ledger);
    let voters = changes.core.voter_ids().filter(|voter| {
        let member = changes.member(*voter);
        member.is_some_and(|member| member.region == preferred)
    });
    let (mut best, mut unfit) = (None, Vec::new());
    for voter in voters {
        match changes.lag(voter) {
            _ if !changes.heard_lately(voter) => unfit.push(format!("node {voter} is silent")),
            Some(lag) if lag <= LAG_MAX => best = best.max(Some((Reverse(lag), voter))),
            Some(u64::MAX) | None => {
                unfit.push(format!("how far node {voter} is is not known"));
            }
            Some(lag) => unfit.push(format!("node {voter} lags {lag} entries")),
        }
    }
    match best {
        Some((_, heir)) => Place::Elsewhere(heir),
        None if unfit.is_empty() => Place::Nobody(format!("no voter is in region {preferred}")),
        None => Place::Nobody(unfit.join(", ")),
    }
}
