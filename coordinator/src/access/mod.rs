//! Who may ask what. Everybody who calls a node passes one gate ([`Access::guard`]): it
//! finds out who they are (`register.rs`, `token.rs`), looks up what their request takes
//! (`rules.rs`) and whether their role grants it (`identity.rs`). Knows nothing of what
//! requests do, nor of the ledger.
//!
//! Without an identities file everybody may everything, as nobody in particular: then only
//! loopback or trusted hosts may reach the node, which the configuration sees to.

mod crowd;
mod gate;
pub(crate) mod identity;
pub(crate) mod register;
pub(crate) mod rules;
mod throttle;
pub(crate) mod token;
mod vigil;
mod visitor;
mod watcher;

use std::{path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

pub(crate) use crowd::Taken;
pub(crate) use gate::on_behalf_of;
pub use identity::{Identity, Role};
pub use register::RegisterError;
pub(crate) use vigil::{Change, Sight, Vigil};
pub(crate) use visitor::{Spender, Visitor};

use crate::config::PerIdentity;
use crowd::Crowd;
use register::Identities;
use throttle::Throttle;

/// The gate of one node; clones are cheap and name the same one.
#[derive(Clone, Default)]
pub struct Access(Option<Arc<Guarded>>);

struct Guarded {
    path: PathBuf,
    identities: watch::Sender<Arc<Identities>>,
    throttle: Throttle,
    crowd: Crowd,
    /// Why the file as it is now was not taken.
    problem: Mutex<Option<String>>,
}

impl Access {
    /// Nobody has to prove anything.
    #[must_use]
    pub fn for_everybody() -> Self {
        Self(None)
    }

    /// Only for whom the identities file names, each of whom takes no more than `limits`.
    ///
    /// # Errors
    /// When the file cannot be read or makes no sense.
    pub fn by_file(path: PathBuf, limits: PerIdentity) -> Result<Self, RegisterError> {
        let identities = Identities::read(&path)?;
        watcher::taken(&path, &identities);
        let (identities, _) = watch::channel(Arc::new(identities));
        Ok(Self(Some(Arc::new(Guarded {
            path,
            identities,
            throttle: Throttle::new(),
            crowd: Crowd::new(limits),
            problem: Mutex::default(),
        }))))
    }

    /// Takes the file anew whenever it changes, until `stopped`. Does nothing without one.
    pub fn keep_watching(&self, stopped: watch::Receiver<bool>) {
        if let Some(guarded) = &self.0 {
            tokio::spawn(watcher::run(Arc::clone(guarded), stopped));
        }
    }

    /// Why the identities file as it is now was not taken, if it was not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.0.as_ref()?.problem.lock().clone()
    }

    /// Whether everybody may everything.
    #[must_use]
    pub const fn is_for_everybody(&self) -> bool {
        self.0.is_none()
    }
}
