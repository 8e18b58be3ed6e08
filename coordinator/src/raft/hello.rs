//! How an empty node finds out whether it may take part, and under which
//! circumstances a cluster begins. Knows nothing of the log.
//!
//! An empty node whose id was ever in a cluster has forgotten what it promised
//! there, so it must not come back under that id. It asks every initial member
//! first; until all have answered it neither votes nor accepts entries. If none
//! of them belongs to a cluster, the one with the lowest id begins it.

use std::{collections::BTreeMap, time::Duration};

use leasehold_proto::v1::{HelloReply, HelloRequest};

use super::{
    api::{InitialMember, Member, StartError},
    network::Links,
};

const ASK_TIMEOUT: Duration = Duration::from_secs(2);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How long a node that waits to be added asks members that may be gone.
const STRANGER_PATIENCE: Duration = Duration::from_secs(3);

/// What an empty node does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Begins a cluster of these.
    Begin(BTreeMap<u64, Member>),
    /// Waits until a leader speaks to it.
    Wait,
}

/// Says hello to one node.
pub(super) async fn ask(links: &Links, me: &Member, peer_addr: &str) -> Result<HelloReply, String> {
    let mut client = links.client(peer_addr)?;
    let request = HelloRequest {
        node_id: me.node_id,
        disk_id: me.disk_id.to_le_bytes().to_vec(),
        peer_addr: me.peer_addr.clone(),
        client_url: me.client_url.clone(),
        admin_url: me.admin_url.clone(),
        region: me.region.clone(),
    };
    match tokio::time::timeout(ASK_TIMEOUT, client.hello(request)).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// Decides an empty node's part.
pub(super) async fn find_part(
    links: &Links,
    me: &Member,
    initial: &[InitialMember],
) -> Result<Part, StartError> {
    let named = initial.iter().any(|member| member.node_id == me.node_id);
    let others: Vec<&InitialMember> = initial
        .iter()
        .filter(|member| member.node_id != me.node_id)
        .collect();
    let mut answers: BTreeMap<u64, HelloReply> = BTreeMap::new();
    let started = tokio::time::Instant::now();
    let mut said = 0_u32;
    while answers.len() < others.len() {
        // Those that have answered too: this node may have been added since.
        let asked = others.iter().map(|other| async move {
            (
                other.node_id,
                &other.peer_addr,
                ask(links, me, &other.peer_addr).await,
            )
        });
        for (node_id, peer_addr, reply) in futures::future::join_all(asked).await {
            match reply {
                Ok(reply) if reply.node_id != node_id => {
                    return Err(StartError::Config(format!(
                        "initial_members says that node {node_id} is at {peer_addr}, but node {} answers there{}",
                        reply.node_id,
                        // It dialled itself: it took over the address of a node that is gone.
                        if reply.node_id == me.node_id {
                            "; leave out members that this node replaces"
                        } else {
                            ""
                        }
                    )));
                }
                Ok(reply) => {
                    check_disk(me, &reply)?;
                    answers.insert(node_id, reply);
                }
                Err(reason) if said.is_multiple_of(25) && !answers.contains_key(&node_id) => {
                    tracing::info!(node_id, %peer_addr, %reason, "waiting for an initial member to answer");
                }
                Err(_) => {}
            }
        }
        // A cluster that knows this very disk has nothing more to say against it.
        let known = answers
            .values()
            .any(|reply| reply.member_of_cluster && reply.id_in_use);
        let gave_up = !named && started.elapsed() >= STRANGER_PATIENCE;
        if known || gave_up {
            return Ok(Part::Wait);
        }
        if answers.len() < others.len() {
            said = said.wrapping_add(1);
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    }
    let lowest = others.iter().all(|other| me.node_id < other.node_id);
    if !named || !lowest || answers.values().any(|reply| reply.member_of_cluster) {
        // Alone and without a list, a node is its own cluster.
        return Ok(if initial.is_empty() {
            Part::Begin(BTreeMap::from([(me.node_id, me.clone())]))
        } else {
            Part::Wait
        });
    }
    let mut members = BTreeMap::from([(me.node_id, me.clone())]);
    for (node_id, reply) in answers {
        members.insert(node_id, member(&reply)?);
    }
    Ok(Part::Begin(members))
}

/// The member that a reply describes.
pub(super) fn member(reply: &HelloReply) -> Result<Member, StartError> {
    let disk_id = disk_id(&reply.disk_id).ok_or_else(|| {
        StartError::Core(format!(
            "node {} did not say which disk it is on",
            reply.node_id
        ))
    })?;
    Ok(Member {
        node_id: reply.node_id,
        peer_addr: reply.peer_addr.clone(),
        client_url: reply.client_url.clone(),
        admin_url: reply.admin_url.clone(),
        region: reply.region.clone(),
        disk_id,
    })
}

pub(super) fn disk_id(bytes: &[u8]) -> Option<u128> {
    bytes.try_into().ok().map(u128::from_le_bytes)
}

fn check_disk(me: &Member, reply: &HelloReply) -> Result<(), StartError> {
    match disk_id(&reply.id_in_use_by_disk) {
        Some(known_disk_id) if reply.id_in_use && known_disk_id != me.disk_id => {
            Err(StartError::DiskLost {
                node_id: me.node_id,
                known_disk_id,
                disk_id: me.disk_id,
            })
        }
        _ => Ok(()),
    }
}
