//! `/v1/cluster`: members, leadership, and how far every node is.

use axum::{
    Json,
    extract::{OriginalUri, State},
    http::StatusCode,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Admin,
    json::{self, Body, Whole},
    path,
    problem::{Kind, Problem},
};
use crate::raft::{ClusterStatus, MemberStatus, Role};

const MEMBERS: &str = "/v1/cluster/members/";

/// The cluster as one node knows it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Cluster {
    /// Drawn when the cluster was born or restored; null: it is older than ids.
    cluster_id: Option<String>,
    /// The node that answers: the leader, unless none is known.
    answered_by: u64,
    /// The leader's id; null: none is known.
    leader: Option<u64>,
    term: u64,
    /// The answering node's log.
    log: LogIndexes,
    /// What the wall clocks of a majority of the voters show at least, by which periods
    /// end: an instant in UTC, ISO 8601; null: no majority answers.
    majority_wall_time: Option<String>,
    members: Vec<ClusterMember>,
}

/// How far the answering node's log is.
#[derive(Debug, Serialize, ToSchema)]
struct LogIndexes {
    last: Option<u64>,
    committed: Option<u64>,
    applied: Option<u64>,
    /// The last index in the snapshot.
    snapshot: Option<u64>,
    /// The last index dropped from the log.
    purged: Option<u64>,
}

/// One member.
#[derive(Debug, Serialize, ToSchema)]
struct ClusterMember {
    node_id: u64,
    /// `voter` or `learner`.
    role: &'static str,
    leader: bool,
    /// Where the other coordinators reach it.
    peer: String,
    /// Where gateways reach it.
    client_url: String,
    /// Where operators reach it, if elsewhere.
    #[serde(skip_serializing_if = "String::is_empty")]
    admin_url: String,
    /// Where its machine stands, if its configuration says so.
    #[serde(skip_serializing_if = "String::is_empty")]
    region: String,
    disk_id: String,
    /// The last log index known to be on it; only a leader knows.
    matched: Option<u64>,
    /// Entries behind the leader; only a leader knows.
    lag: Option<u64>,
    /// Its ledger's digest, at a log index that it has applied.
    digest: Option<Digest>,
    /// The newest format of entries and snapshots that it reads; null: it has not
    /// answered since the answering node was started.
    format_version: Option<u32>,
}

/// A fingerprint of the whole ledger.
#[derive(Debug, Serialize, ToSchema)]
struct Digest {
    index: u64,
    /// 16 hexadecimal digits.
    value: String,
    /// Whether it equals the answering node's at the same index; null: not comparable.
    agrees: Option<bool>,
}

impl From<ClusterStatus> for Cluster {
    fn from(status: ClusterStatus) -> Self {
        let leader = status.leader;
        Self {
            cluster_id: status.cluster_id.map(|id| format!("{id:032x}")),
            answered_by: status.node_id,
            leader,
            term: status.term,
            log: LogIndexes {
                last: status.last_log,
                committed: status.committed,
                applied: status.applied,
                snapshot: status.snapshot,
                purged: status.purged,
            },
            majority_wall_time: status
                .majority_wall_unix_us
                .and_then(|unix_us| i64::try_from(unix_us).ok())
                .and_then(leasehold_calendar::utc_text),
            members: status
                .members
                .into_iter()
                .map(|member| ClusterMember::new(member, leader))
                .collect(),
        }
    }
}

impl ClusterMember {
    fn new(status: MemberStatus, leader: Option<u64>) -> Self {
        let MemberStatus {
            member,
            role,
            matched,
            lag,
            digest,
            digest_agrees,
            format_version,
        } = status;
        Self {
            node_id: member.node_id,
            role: match role {
                Role::Voter => "voter",
                Role::Learner => "learner",
            },
            leader: leader == Some(member.node_id),
            peer: member.peer_addr,
            client_url: member.client_url,
            admin_url: member.admin_url,
            region: member.region,
            disk_id: format!("{:032x}", member.disk_id),
            matched,
            lag,
            digest: digest.map(|(index, value)| Digest {
                index,
                value: format!("{value:016x}"),
                agrees: digest_agrees,
            }),
            format_version,
        }
    }
}

/// Members, leader, term, log indexes, lag, and the ledger's digest per node.
/// The one resource that also answers while no leader is known.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster", operation_id = "get_cluster",
    responses((status = 200, description = "The cluster", body = Cluster)))]
pub(super) async fn get(State(admin): State<Admin>) -> Json<Cluster> {
    Json(admin.node.status().await.into())
}

/// A node to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"node_id": 4, "peer": "127.0.0.1:7471"}))]
pub(super) struct NewMember {
    /// Never used before in this cluster.
    node_id: Whole,
    /// Its `host:port` for the other coordinators.
    peer: String,
    /// The member whose place it takes in one step, if any.
    #[serde(default)]
    replaces: Option<Whole>,
}

/// Reads a body as far as nobody has to be asked.
pub(super) fn reads(bytes: &[u8]) -> bool {
    json::parse::<NewMember>(bytes).is_ok() || json::parse::<NewLeader>(bytes).is_ok()
}

/// Adds a running, empty node: it follows first, and votes once it has caught up. With
/// `replaces`, a member leaves in the same step.
#[utoipa::path(post, path = "/v1/cluster/members", tag = "cluster", operation_id = "add_member", request_body = NewMember,
    responses((status = 200, description = "The cluster afterwards", body = Cluster)))]
pub(super) async fn add_member(
    State(admin): State<Admin>,
    Body(body): Body<NewMember>,
) -> Result<Json<Cluster>, Problem> {
    if body.node_id.0 == 0 {
        return Err(Problem::field("node_id", "node_id (0) must be at least 1"));
    }
    let well_formed = body
        .peer
        .parse::<axum::http::uri::Authority>()
        .is_ok_and(|a| a.port_u16().is_some());
    if !well_formed {
        return Err(Problem::field(
            "peer",
            format!(
                "peer ({}) must be host:port, as in 127.0.0.1:7071",
                body.peer
            ),
        ));
    }
    match body.replaces {
        None => admin.node.add_member(body.node_id.0, &body.peer).await?,
        Some(old) => {
            let replaced = admin.node.replace_member(old.0, body.node_id.0, &body.peer);
            replaced.await?
        }
    };
    Ok(Json(admin.node.status().await.into()))
}

fn node_id(text: &str) -> Result<u64, Problem> {
    text.parse::<u64>()
        .ok()
        .filter(|id| *id > 0)
        .ok_or_else(|| {
            Problem::new(
                Kind::InvalidId,
                format!("a node id is a whole number from 1, but this one is {text:?}"),
            )
        })
}

/// Removes a member. Its id is never used again.
#[utoipa::path(delete, path = "/v1/cluster/members/{node_id}", tag = "cluster", operation_id = "remove_member",
    params(("node_id" = u64, Path, description = "The member's id")),
    responses((status = 204, description = "Removed")))]
pub(super) async fn remove_member(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<StatusCode, Problem> {
    let id = node_id(&path::segment(&uri, MEMBERS)?)?;
    admin.node.remove_member(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where leadership should go.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewLeader {
    /// A voter that has caught up.
    node_id: Whole,
}

/// Hands leadership to another voter.
#[utoipa::path(post, path = "/v1/cluster/leader", tag = "cluster", operation_id = "transfer_leader", request_body = NewLeader,
    responses((status = 202, description = "The transfer has begun")))]
pub(super) async fn transfer_leader(
    State(admin): State<Admin>,
    Body(body): Body<NewLeader>,
) -> Result<StatusCode, Problem> {
    admin.node.transfer_leader(body.node_id.0).await?;
    Ok(StatusCode::ACCEPTED)
}
