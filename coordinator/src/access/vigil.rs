//! Watches over somebody who stays: whether they are still known, and which keys they may
//! use. Knows nothing of what they do meanwhile.

use std::{sync::Arc, time::Duration};

use leasehold_key::Key;
use parking_lot::RwLock;
use tokio::sync::watch;

use super::{
    identity::{Patterns, Role},
    register::{Identities, Proof},
    visitor::{Known, Visitor, now_unix_us},
};

/// The wall clock may be set: an expiry is looked at this often at least.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The keys that a stream may use at the moment; shared by whoever reads it and whoever
/// answers it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight(Option<Arc<RwLock<Patterns>>>);

impl Sight {
    pub(crate) fn reaches(&self, key: &Key) -> bool {
        self.0
            .as_ref()
            .is_none_or(|patterns| patterns.read().cover(key))
    }

    fn set(&self, patterns: Patterns) {
        if let Some(seen) = &self.0 {
            *seen.write() = patterns;
        }
    }
}

/// What became of a visitor.
#[derive(Debug)]
pub(crate) enum Change {
    /// They may use other keys than before; the sight shows it already.
    Keys,
    /// They are nobody any more, or something else.
    Gone,
}

/// Watches over a visitor who stays.
pub(crate) struct Vigil {
    known: Option<Arc<Known>>,
    identities: Option<watch::Receiver<Arc<Identities>>>,
    sight: Sight,
    keys: Patterns,
}

impl Vigil {
    pub(crate) fn over(visitor: &Visitor) -> Self {
        let known = visitor.known().cloned();
        let guarded = known.as_ref().and_then(|known| known.access.0.as_ref());
        let mut identities = guarded.map(|guarded| guarded.identities.changes());
        if let Some(identities) = &mut identities {
            // What changed since they passed the gate is looked at first.
            identities.mark_changed();
        }
        let keys = known
            .as_ref()
            .map(|known| known.identity.keys.clone())
            .unwrap_or_default();
        let is_bound = known
            .as_ref()
            .is_some_and(|known| known.identity.role == Role::Gateway);
        Self {
            known,
            identities,
            sight: Sight(is_bound.then(|| Arc::new(RwLock::new(keys.clone())))),
            keys,
        }
    }

    pub(crate) fn sight(&self) -> Sight {
        self.sight.clone()
    }

    /// Waits until something changes for them. Nothing is lost when it is dropped.
    pub(crate) async fn change(&mut self) -> Change {
        let (Some(known), Some(identities)) = (&self.known, &mut self.identities) else {
            return std::future::pending().await;
        };
        loop {
            let wait = expiry_in(&identities.borrow(), &known.proof);
            tokio::select! {
                changed = identities.changed() => {
                    if changed.is_err() {
                        // Nobody watches the file any more: the node stops.
                        return std::future::pending().await;
                    }
                }
                () = tokio::time::sleep(wait) => {}
            }
            let confirmed = identities.borrow_and_update().confirm(
                &known.identity.name,
                &known.proof,
                now_unix_us(),
            );
            let Some(identity) = confirmed.filter(|now| now.role == known.identity.role) else {
                return Change::Gone;
            };
            if identity.keys != self.keys {
                self.keys = identity.keys.clone();
                self.sight.set(identity.keys.clone());
                return Change::Keys;
            }
        }
    }
}

/// How long a proof may stand before it is to be looked at again.
fn expiry_in(identities: &Identities, proof: &Proof) -> Duration {
    let Some(expires) = identities.expires_unix_us(proof) else {
        return LOOK_EVERY;
    };
    let us = u64::try_from(expires.saturating_sub(now_unix_us())).unwrap_or(0);
    // At the moment itself it has expired.
    Duration::from_micros(us).min(LOOK_EVERY)
}
