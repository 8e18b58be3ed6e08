//! Brings leadership to the region that the cluster prefers, and back to it after a
//! failure. Knows nothing of elections: whoever is elected hands over.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;

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

/// Looks after the leader's place until the core stops.
pub(super) async fn seek(changes: Changes) {
    let mut fit: Option<(u64, u32)> = None;
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
        fit = match (heir(&changes), fit) {
            (Some(heir), Some((same, looks))) if heir == same => Some((heir, looks + 1)),
            (Some(heir), _) => Some((heir, 1)),
            (None, _) => None,
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

/// Who should lead instead of this node, if it leads from elsewhere: the voter of
/// the preferred region that lags least, of those that could take over at once.
fn heir(changes: &Changes) -> Option<u64> {
    if !matches!(&*changes.leadership.borrow(), Leadership::Leading { .. }) {
        return None;
    }
    let preferred = changes
        .shared
        .ledger
        .read()
        .settings()
        .preferred_leader_region
        .clone()?;
    if changes.shared.me.region == preferred {
        return None;
    }
    changes
        .core
        .voter_ids()
        .filter(|voter| {
            changes
                .member(*voter)
                .is_some_and(|m| m.region == preferred)
        })
        .filter(|voter| changes.heard_lately(*voter))
        .filter_map(|voter| Some((changes.lag(voter).filter(|lag| *lag <= LAG_MAX)?, voter)))
        .min()
        .map(|(_, voter)| voter)
}
