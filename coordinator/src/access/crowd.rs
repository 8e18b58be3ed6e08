//! How much each identity takes at once of one node. Knows nothing of who they are.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::config::PerIdentity;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    Connection,
    Stream,
    Request,
}

impl What {
    /// The setting that bounds it.
    pub(super) const fn limit(self) -> &'static str {
        match self {
            Self::Connection => "connections_per_identity_max",
            Self::Stream => "streams_per_identity_max",
            Self::Request => "requests_per_identity_max",
        }
    }

    const fn most(self, limits: &PerIdentity) -> usize {
        match self {
            Self::Connection => limits.connections_max,
            Self::Stream => limits.streams_max,
            Self::Request => limits.requests_max,
        }
    }
}

type Counts = Mutex<HashMap<(What, Arc<str>), usize>>;

/// Counts for all of them; who takes nothing is not remembered.
#[derive(Debug)]
pub(super) struct Crowd {
    counts: Arc<Counts>,
    limits: PerIdentity,
}

/// One of what an identity takes; given back when it is dropped.
#[derive(Debug)]
#[must_use = "a place that is dropped is free again"]
pub(crate) struct Taken {
    counts: Arc<Counts>,
    of: (What, Arc<str>),
}

impl Crowd {
    pub(super) fn new(limits: PerIdentity) -> Self {
        Self {
            counts: Arc::default(),
            limits,
        }
    }

    pub(super) const fn limits(&self) -> &PerIdentity {
        &self.limits
    }

    /// One more for an identity; none: it has as many as it may.
    pub(super) fn take(&self, what: What, identity: &Arc<str>) -> Option<Taken> {
        let of = (what, Arc::clone(identity));
        let mut counts = self.counts.lock();
        let count = counts.entry(of.clone()).or_default();
        if *count >= what.most(&self.limits) {
            return None;
        }
        *count += 1;
        Some(Taken {
            counts: Arc::clone(&self.counts),
            of,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn each_identity_has_its_own_places_of_each_kind_and_gives_them_back() {
        let crowd = Crowd::new(PerIdentity {
            connections_max: 1,
            streams_max: 2,
            requests_max: 1,
            accounts_max: 1,
        });
        let [one, two]: [Arc<str>; 2] = ["one".into(), "two".into()];
        let first = crowd.take(What::Stream, &one).unwrap();
        let second = crowd.take(What::Stream, &one).unwrap();
        assert!(crowd.take(What::Stream, &one).is_none());
        let others = crowd.take(What::Stream, &two).unwrap();
        let request = crowd.take(What::Request, &one).unwrap();
        drop(first);
        let again = crowd.take(What::Stream, &one).unwrap();
        drop((second, again, others, request));
        assert!(crowd.counts.lock().is_empty());
    }
}
