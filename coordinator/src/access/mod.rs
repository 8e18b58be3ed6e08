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

use std::{io, path::PathBuf, sync::Arc, time::Instant};

use leasehold_doors::{Kept, Source, Watch};
use parking_lot::Mutex;

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
    identities: Kept<Identities>,
    throttle: Throttle,
    crowd: Crowd,
    /// When it was said last that somebody is slowed.
    said: Mutex<Option<Instant>>,
}

/// Reads text as an identities file and its first line as a token, and says how many
/// identities there are, or what a node would say. For fuzzing.
#[doc(hidden)]
pub fn identities_that_read(text: &str) -> Result<usize, String> {
    let shown = text.lines().next().and_then(token::Token::parse);
    let identities = Identities::parse(std::path::Path::new("identities.toml"), text);
    let identities = identities.map_err(|error| error.to_string())?;
    if let Some(token) = shown {
        // Nobody has it: the file has hashes, and who wrote it knows no text of one.
        drop(identities.by_token(&token, 0));
    }
    Ok(identities.len())
}

impl Access {
    /// Nobody has to prove anything.
    #[must_use]
    pub fn for_everybody() -> Self {
        Self(None)
    }

    /// Only for whom the identities file names, each of whom takes no more than `limits`.
    /// `files` takes it anew when it changes.
    ///
    /// # Errors
    /// When the file cannot be read or makes no sense.
    pub fn by_file(
        path: PathBuf,
        limits: PerIdentity,
        files: &mut Watch,
    ) -> Result<Self, RegisterError> {
        // What is wrong is said by its line.
        Identities::read(&path)?;
        let source = Source {
            path: path.clone(),
            is_secret: false,
        };
        let own = path.clone();
        let identities = files
            .keep(
                "the identities of [auth]",
                vec![source],
                move |contents| Identities::of(&own, contents.of(&own)?),
                |_| Vec::new(),
            )
            .map_err(|error| RegisterError::Unreadable {
                path,
                source: io::Error::other(error),
            })?;
        Ok(Self(Some(Arc::new(Guarded {
            identities,
            throttle: Throttle::new(),
            crowd: Crowd::new(limits),
            said: Mutex::default(),
        }))))
    }

    /// Why the identities file as it is now was not taken, if it was not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.0.as_ref()?.identities.problem()
    }

    /// Shows in metrics whom the file names, and whether it is the one that is there.
    pub(crate) fn show(&self) {
        let Some(guarded) = &self.0 else { return };
        #[expect(clippy::cast_precision_loss, reason = "Prometheus knows floats only")]
        let count = guarded.identities.now().len() as f64;
        metrics::gauge!("leasehold_identities").set(count);
        let is_kept = guarded.identities.problem().is_some();
        metrics::gauge!("leasehold_identities_kept").set(f64::from(u8::from(is_kept)));
    }

    /// Whether everybody may everything.
    #[must_use]
    pub const fn is_for_everybody(&self) -> bool {
        self.0.is_none()
    }
}
