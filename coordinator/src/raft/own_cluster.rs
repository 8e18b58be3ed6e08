//! To which cluster this node belongs, said with everything that it says to peers, and
//! compared with what they say. Knows nothing of what is said besides.
//!
//! Two clusters may share an authority, and an address may be another cluster's tomorrow:
//! a certificate says that somebody is a coordinator, and not of which cluster. A cluster
//! that is being born has no id yet, so a call without one is taken.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use leasehold_ledger::Ledger;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
};

const NAME: &str = "leasehold-cluster";
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The cluster of this node; a copy is the same one.
#[derive(Clone)]
pub(super) struct OwnCluster(Arc<Inner>);

struct Inner {
    ledger: Arc<RwLock<Ledger>>,
    /// Once it is known it stays.
    id: OnceLock<MetadataValue<Ascii>>,
    said: Mutex<Option<Instant>>,
}

fn text(id: u128) -> Option<MetadataValue<Ascii>> {
    format!("{id:032x}").parse().ok()
}

impl OwnCluster {
    /// `known`: what the data folder says.
    pub(super) fn new(known: Option<u128>, ledger: Arc<RwLock<Ledger>>) -> Self {
        let known = known.and_then(text);
        Self(Arc::new(Inner {
            ledger,
            id: known.map_or_else(OnceLock::new, OnceLock::from),
            said: Mutex::new(None),
        }))
    }

    fn id(&self) -> Option<&MetadataValue<Ascii>> {
        if self.0.id.get().is_none() {
            let id = self.0.ledger.read().cluster_id().and_then(text)?;
            // Whoever was faster has set the same.
            let _ = self.0.id.set(id);
        }
        self.0.id.get()
    }

    /// Refuses what another cluster says.
    pub(super) fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let (Some(theirs), Some(ours)) = (request.metadata().get(NAME), self.id()) else {
            return Ok(());
        };
        if theirs == ours {
            return Ok(());
        }
        let mut said = self.0.said.lock();
        if said.is_none_or(|at| at.elapsed() >= SAY_AGAIN_AFTER) {
            *said = Some(Instant::now());
            tracing::error!(
                code = "other_cluster",
                ours = ours.to_str().unwrap_or_default(),
                theirs = theirs.to_str().unwrap_or_default(),
                "refused a coordinator of another cluster"
            );
        }
        Err(Status::failed_precondition("other_cluster"))
    }
}

impl Interceptor for OwnCluster {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(id) = self.id() {
            request.metadata_mut().insert(NAME, id.clone());
        }
        Ok(request)
    }
}
