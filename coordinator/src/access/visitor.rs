//! Who asks, for as long as what they ask takes: one request, or a stream of hours. Knows
//! nothing of the rules of routes.

use std::{fmt, sync::Arc};

use leasehold_key::Key;

use super::{
    Access,
    identity::{Identity, Role, Takes},
    register::Proof,
};
use crate::clock::wall_unix_us;

/// Somebody who passed the gate.
#[derive(Clone)]
pub(crate) struct Visitor(Option<Arc<Known>>);

pub(super) struct Known {
    pub(super) identity: Arc<Identity>,
    pub(super) proof: Proof,
    pub(super) access: Access,
}

/// An identity, and how many accounts may be there because of it.
#[derive(Clone, Debug)]
pub(crate) struct Spender {
    pub(crate) identity: Arc<str>,
    pub(crate) accounts_max: usize,
}

impl Visitor {
    /// Nobody in particular, who may everything.
    pub(crate) const fn anybody() -> Self {
        Self(None)
    }

    pub(super) fn new(identity: Arc<Identity>, proof: Proof, access: Access) -> Self {
        Self(Some(Arc::new(Known {
            identity,
            proof,
            access,
        })))
    }

    /// For whom units are asked and spent; none: for nobody in particular.
    pub(crate) fn spender(&self) -> Option<Spender> {
        let known = self.0.as_ref()?;
        let guarded = known.access.0.as_ref()?;
        Some(Spender {
            identity: Arc::clone(&known.identity.name),
            accounts_max: guarded.crowd.limits().accounts_max,
        })
    }

    pub(super) const fn known(&self) -> Option<&Arc<Known>> {
        self.0.as_ref()
    }

    /// Whether anybody could be it.
    pub(crate) const fn is_anybody(&self) -> bool {
        self.0.is_none()
    }

    /// Whether they may use a key. Those who may not are told that no budget matches it.
    pub(crate) fn reaches(&self, key: &Key) -> bool {
        self.0.as_ref().is_none_or(|known| {
            let identity = &known.identity;
            identity.role != Role::Gateway || identity.keys.cover(key)
        })
    }

    /// As the ledger knows them: nobody in particular is called nothing.
    pub(crate) fn name(&self) -> &str {
        self.0.as_ref().map_or("", |known| &known.identity.name)
    }

    /// Whether they are known by a certificate, which others see only if they are told.
    pub(crate) fn is_by_certificate(&self) -> bool {
        let proof = self.0.as_ref().map(|known| &known.proof);
        matches!(proof, Some(Proof::Certificate))
    }

    pub(crate) fn role(&self) -> Option<Role> {
        self.0.as_ref().map(|known| known.identity.role)
    }

    pub(crate) fn may(&self, takes: Takes) -> bool {
        self.role()
            .map_or(takes != Takes::BeingANode, |role| role.may(takes))
    }
}

impl fmt::Debug for Visitor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Visitor({:?})", self.name())
    }
}

pub(super) fn now_unix_us() -> i64 {
    i64::try_from(wall_unix_us()).unwrap_or(i64::MAX)
}
