//! `/v1/backup`: the whole ledger as one file, from the node that is asked.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    extract::{OriginalUri, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use leasehold_ledger::{FrozenLedger, Ledger};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

use super::{
    Admin,
    problem::{Kind, Problem},
};
use crate::{
    backup::{Header, HeaderMember, Taken},
    clock,
    raft::ClusterStatus,
};

/// What is committed now has this long to be applied here.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(10);
/// Chunks made before the reader takes them.
const CHUNKS_AHEAD: usize = 8;

/// A consistent backup of the ledger as this node has applied it, while it goes on
/// serving. Answered by the node that is asked, never forwarded. Without a leader
/// others may have gone on, so it is refused then, unless `without_leader=true`.
#[utoipa::path(get, path = "/v1/backup", tag = "cluster", operation_id = "get_backup",
    params(("without_leader" = Option<bool>, Query,
        description = "Also when this node knows of no leader: what it has may be old")),
    responses((status = 200, description = "The backup, for `leasehold restore`",
        content_type = "application/octet-stream", body = Vec<u8>)))]
pub(super) async fn get(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, Problem> {
    let without_leader = match uri.query() {
        None | Some("" | "without_leader=false") => false,
        Some("without_leader=true") => true,
        Some(other) => {
            return Err(Problem::new(
                Kind::InvalidQuery,
                format!("the query ({other}) may be without_leader=true, and nothing else"),
            ));
        }
    };
    let replica = admin.node.replica();
    let status = replica.local_status();
    if status.leader.is_none() && !without_leader {
        return Err(Problem::new(
            Kind::NoLeader,
            "this node knows of no leader, so others may have gone on without it: ask another node, or add \
             ?without_leader=true (--without-leader) to take what this one has",
        ));
    }
    let committed = status.committed;
    if timeout(CATCH_UP_WITHIN, replica.applied(committed))
        .await
        .is_err()
    {
        return Err(Problem::new(
            Kind::NotCaughtUp,
            format!(
                "this node has applied the log up to {}, and {} is committed: ask another node",
                replica.local_status().applied.unwrap_or(0),
                committed.unwrap_or(0)
            ),
        ));
    }
    let frozen = admin.node.local(Ledger::freeze);
    let head = header_of(&frozen, replica.me().disk_id, &status)
        .encode()
        .map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
    tracing::info!(log_index = frozen.last_index(), "a backup is being taken");
    let (chunks, taken) = mpsc::channel(CHUNKS_AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut all = std::iter::once(head).chain(frozen.chunks());
        // A reader that went away ends it.
        let _ = all.try_for_each(|chunk| chunks.blocking_send(Bytes::from(chunk)));
    });
    let body = ReceiverStream::new(taken).map(Ok::<_, std::convert::Infallible>);
    let mut response = Body::from_stream(body).into_response();
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    Ok(response)
}

fn header_of(frozen: &FrozenLedger, disk_id: u128, status: &ClusterStatus) -> Header {
    let members = status.members.iter().map(|status| HeaderMember {
        node_id: status.member.node_id,
        peer: status.member.peer_addr.clone(),
        client_url: status.member.client_url.clone(),
    });
    Header {
        cluster_id: frozen.cluster_id().map(|id| format!("{id:032x}")),
        log_index: frozen.last_index(),
        term: status.term,
        cluster_time_us: frozen.now_us(),
        digest: format!("{:016x}", frozen.digest()),
        node_id: status.node_id,
        disk_id: format!("{disk_id:032x}"),
        taken_unix_ms: clock::wall_unix_us() / 1_000,
        taken: Taken::Running {
            leader: status.leader,
        },
        members: members.collect(),
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
