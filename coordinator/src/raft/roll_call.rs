//! Asks the other members now and then what their wall clocks say, whether this node
//! is still one of them, and whether their cluster has taken the place of this one.
//! What they say of themselves is kept in `answers`; nothing here reaches the ledger. It also says what this node has durable, so that it
//! can be told if it ever has less than that. A node that was removed hears of it here alone,
//! because nobody sends it the log any more; and so does a node that was started on
//! its old folder after its cluster was restored from a backup.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use leasehold_proto::v1::{RollCallReply, RollCallRequest};
use openraft::async_runtime::WatchReceiver;

use super::{
    api::{Member, WallClock},
    log::Log,
    network::{Client, Links},
    peers::Shared,
    rollback,
    types::{Core, LogId},
};
use crate::clock::Reading;

const EVERY: Duration = Duration::from_secs(2);
/// Generous: a busy machine must not keep a node from hearing that it was removed.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How far another wall clock is ahead of this node's, as far as a round trip tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offset {
    ahead_us: i64,
    /// It may be so much more or less: half of the round trip.
    uncertain_us: u64,
}

/// Connections are kept from one call to the next.
type Clients = BTreeMap<u64, (String, Client)>;

/// Goes on until the core is gone.
pub(super) async fn keep(
    core: Core,
    shared: Arc<Shared>,
    links: Links,
    tolerance: Duration,
    log: Log,
) {
    let tolerance_us = u64::try_from(tolerance.as_micros()).unwrap_or(u64::MAX);
    let mut clients = Clients::new();
    let mut silent = BTreeSet::new();
    let mut committed = 0;
    loop {
        // What was committed a round ago is in the log by now, and durable with it.
        let claimed = if log.settled().await { committed } else { 0 };
        committed = index(&core.metrics().borrow_watched().local_committed);
        let membership = Arc::clone(&core.metrics().borrow_watched().membership_config);
        let known_at = membership.log_id().as_ref().map(|id| id.index());
        let others = membership
            .nodes()
            .filter(|(node_id, _)| **node_id != shared.me.node_id);
        let others: Vec<Member> = others.map(|(_, member)| member.clone()).collect();
        clients.retain(|node_id, _| others.iter().any(|other| other.node_id == *node_id));
        let mut asked = Vec::with_capacity(others.len());
        for other in &others {
            let addr = shared.addresses.now(other.node_id, &other.peer_addr);
            if clients
                .get(&other.node_id)
                .is_none_or(|(at, _)| *at != addr)
            {
                let Ok(client) = links.client(&addr) else {
                    continue;
                };
                clients.insert(other.node_id, (addr, client));
            }
            if let Some((_, client)) = clients.get(&other.node_id) {
                asked.push(ask(client.clone(), &shared, other.node_id, claimed));
            }
        }
        let answers = futures::future::join_all(asked).await;
        let answered = answers.iter().flatten().map(|(reply, _)| reply.node_id);
        say_who_is_silent(&others, &answered.collect(), &mut silent);
        let mut offsets = Vec::with_capacity(answers.len());
        for (reply, offset) in answers.into_iter().flatten() {
            offsets.push(offset);
            let last = core.metrics().borrow_watched().last_log_index;
            if let Some(reason) = rollback::behind(last, reply.committed) {
                shared.fail(reason);
                return;
            }
            if reply.replaced {
                shared.note_replacement();
                return;
            }
            if let Some(removed_at) = reply.removed_at
                && known_at.is_none_or(|known_at| removed_at >= known_at)
            {
                shared.note_removal();
                return;
            }
        }
        note(&shared, compare(&offsets, tolerance_us));
        tokio::time::sleep(EVERY).await;
    }
}

/// Once when a member falls silent, once when it is back: the core would say so with
/// every message.
fn say_who_is_silent(others: &[Member], answered: &BTreeSet<u64>, silent: &mut BTreeSet<u64>) {
    silent.retain(|node_id| others.iter().any(|other| other.node_id == *node_id));
    for other in others {
        let node_id = other.node_id;
        let peer_addr = &other.peer_addr;
        if answered.contains(&node_id) {
            if silent.remove(&node_id) {
                tracing::info!(node_id, %peer_addr, "a member answers again");
            }
        } else if silent.insert(node_id) {
            tracing::warn!(node_id, %peer_addr, "a member does not answer");
        }
    }
}

async fn ask(
    mut client: Client,
    shared: &Shared,
    node_id: u64,
    committed: u64,
) -> Option<(RollCallReply, Offset)> {
    let request = RollCallRequest {
        node_id: shared.me.node_id,
        disk_id: shared.me.disk_id.to_le_bytes().to_vec(),
        cluster_id: shared.cluster_id(),
        committed,
        format_version: shared.format_version,
    };
    let sent = Reading::now();
    let here_us = (shared.wall_unix_us)();
    let answer = tokio::time::timeout(ANSWER_WITHIN, client.roll_call(request)).await;
    let round_trip_us = sent.elapsed_us();
    let reply = answer.ok()?.ok()?.into_inner();
    if reply.node_id != node_id {
        return None;
    }
    // At once: another member's silence would hold it up for seconds.
    shared.answers.note(&reply, Reading::now());
    let half_us = round_trip_us / 2;
    let ahead_us = i128::from(reply.wall_unix_us) - i128::from(here_us) - i128::from(half_us);
    let offset = Offset {
        ahead_us: i64::try_from(ahead_us).unwrap_or(if ahead_us > 0 { i64::MAX } else { i64::MIN }),
        uncertain_us: round_trip_us - half_us,
    };
    Some((reply, offset))
}

fn index(at: &Option<LogId>) -> u64 {
    at.as_ref().map_or(0, |at| at.index())
}

/// This node is the odd one out if it is far from more than half of those that
/// answered; of two, nobody knows which.
fn compare(offsets: &[Offset], tolerance_us: u64) -> WallClock {
    let far = offsets
        .iter()
        .filter(|offset| {
            offset.ahead_us.unsigned_abs() > tolerance_us.saturating_add(offset.uncertain_us)
        })
        .count();
    let mut ahead: Vec<i64> = offsets.iter().map(|offset| offset.ahead_us).collect();
    ahead.sort_unstable();
    WallClock {
        others_ahead_us: ahead.get(ahead.len() / 2).copied().unwrap_or(0),
        is_far: far > offsets.len() / 2,
        tolerance_us,
    }
}

/// Keeps what was found, and says so when it changes.
fn note(shared: &Shared, found: WallClock) {
    let before = std::mem::replace(&mut *shared.wall_clock.lock(), found);
    let others_ahead_ms = found.others_ahead_us / 1_000;
    match (before.is_far, found.is_far) {
        (false, true) => tracing::warn!(
            others_ahead_ms,
            tolerance_ms = found.tolerance_us / 1_000,
            code = "wall_clock_far",
            "this node's wall clock is far from those of the other members; set it"
        ),
        (true, false) => tracing::info!(
            others_ahead_ms,
            "this node's wall clock agrees with the other members' again"
        ),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn far(ahead_ms: &[i64], uncertain_ms: u64) -> (bool, i64) {
        let offsets: Vec<Offset> = ahead_ms
            .iter()
            .map(|ms| Offset {
                ahead_us: ms * 1_000,
                uncertain_us: uncertain_ms * 1_000,
            })
            .collect();
        let found = compare(&offsets, 1_000_000);
        (found.is_far, found.others_ahead_us / 1_000)
    }

    #[test]
    fn a_wall_clock_is_far_when_more_than_half_of_the_others_are_elsewhere() {
        assert_eq!(far(&[], 0), (false, 0));
        assert_eq!(far(&[3, -5], 0), (false, 3));
        assert_eq!(far(&[3_600_000, 3_600_010], 0), (true, 3_600_010));
        assert_eq!(far(&[-3_600_000, -3_600_010], 0), (true, -3_600_000));
        assert_eq!(
            far(&[3_600_000, 2], 0),
            (false, 3_600_000),
            "the other one is"
        );
        assert_eq!(far(&[3_600_000], 0), (true, 3_600_000), "one of the two is");
        assert_eq!(far(&[1, 2, 5_000, 5_000], 0), (false, 5_000));
        assert_eq!(far(&[1, 5_000, 5_000, 5_000], 0), (true, 5_000));
    }

    #[test]
    fn what_a_round_trip_leaves_open_does_not_count() {
        assert_eq!(far(&[1_400, 1_400], 400), (false, 1_400));
        assert_eq!(far(&[1_401, 1_401], 400), (true, 1_401));
        assert!(far(&[i64::MIN / 1_000, i64::MIN / 1_000], 0).0);
    }
}
