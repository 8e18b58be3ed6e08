//! `/v1/replica`: what the answering node itself has applied, with the log index
//! that it is of. Never forwarded: by these answers the replicas can be compared.
//! Does not know what the others have applied.

use axum::{
    Json,
    extract::{OriginalUri, State},
};
use leasehold_key::Key;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Admin,
    accounts::{ACCOUNTS_PER_LOCK, Account, Page},
    path,
    problem::Problem,
};

/// One replica of the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Replica {
    /// The answering node.
    node_id: u64,
    /// The last log index that it has applied.
    index: u64,
    /// Cluster time as of that entry, in microseconds.
    now_us: u64,
    /// Fingerprints of the whole ledger after the last entries that it applied
    /// itself, at most 64, the oldest first. Equal on all nodes at equal indexes.
    digests: Vec<PastDigest>,
}

/// A fingerprint of the ledger after one entry.
#[derive(Debug, Serialize, ToSchema)]
struct PastDigest {
    index: u64,
    /// 16 hexadecimal digits.
    value: String,
}

/// How far the answering node is, and the ledger's digests there: of this node
/// itself, never forwarded. It may be behind.
#[utoipa::path(get, path = "/v1/replica", tag = "replica", operation_id = "get_replica",
    responses((status = 200, description = "This node's replica", body = Replica)))]
pub(super) async fn get(State(admin): State<Admin>) -> Json<Replica> {
    let node_id = admin.node.config().replica.node_id;
    Json(admin.node.local(|ledger| {
        Replica {
            node_id,
            index: ledger.last_index(),
            now_us: ledger.now_us(),
            digests: ledger
                .digests()
                .map(|(index, digest)| PastDigest {
                    index,
                    value: format!("{digest:016x}"),
                })
                .collect(),
        }
    }))
}

/// One page of a replica's accounts, all as of one log index.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReplicaAccounts {
    /// The answering node.
    node_id: u64,
    /// The last log index that the page includes; the next page's may be later.
    index: u64,
    accounts: Vec<Account>,
    /// Pass it as `cursor` for the next page; null: this is the last.
    next_cursor: Option<String>,
}

/// Accounts as the answering node has them, at most 100 in one page: never
/// forwarded, and possibly behind.
#[utoipa::path(get, path = "/v1/replica/accounts", tag = "replica", operation_id = "list_replica_accounts",
    params(Page), responses((status = 200, description = "One page", body = ReplicaAccounts)))]
pub(super) async fn accounts(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<ReplicaAccounts>, Problem> {
    let page: Page = path::query(&uri)?;
    let limit = path::page_size(page.limit.as_deref())?.min(ACCOUNTS_PER_LOCK);
    let after: Option<Key> = page.after()?;
    let prefix = page.prefix.unwrap_or_default();
    let node_id = admin.node.config().replica.node_id;
    // One more than asked for, to know whether there is a next page.
    let (index, mut views) = admin.node.local(|ledger| {
        let views = ledger.accounts(&prefix, after.as_ref(), limit + 1);
        (ledger.last_index(), views)
    });
    let more = views.len() > limit;
    views.truncate(limit);
    let accounts: Vec<Account> = views.iter().map(Account::new).collect();
    let next_cursor = views
        .last()
        .filter(|_| more)
        .map(|view| view.key.as_str().to_owned());
    Ok(Json(ReplicaAccounts {
        node_id,
        index,
        accounts,
        next_cursor,
    }))
}
