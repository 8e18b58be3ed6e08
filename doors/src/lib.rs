//! Who comes in: listeners, their connections, and TLS on both ends. Knows nothing of what
//! is asked inside: neither budgets nor routes nor roles.
//!
//! A [`Door`] takes the connections of a listener and serves a router on each. Whoever
//! answers requests finds a [`Caller`] among a request's extensions, put there by the
//! connection on which the request came. Certificates and keys are [`Kept`]: they are read
//! again when they change, and a broken file leaves the one before in force.

mod accept;
mod caller;
mod idle;
mod kept;
mod pem;
mod room;
mod tls;

pub use accept::{Door, Limits, Listener, Refused};
pub use caller::{Caller, Certificate, Connection};
pub use kept::{Contents, Kept, KeptError, Source, Watch};
pub use pem::{Expiry, Pem, WARN_AHEAD};
pub use room::{Place, Places};
pub use tls::{Dialer, DialerFiles, ListenerFiles, ListenerTls, Secured, is_distrust};
