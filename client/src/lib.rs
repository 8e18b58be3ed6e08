//! Spend Leasehold leases inside a gateway.
//!
//! A [`Client`] is one *holder*: it keeps one session with the coordinator, asks
//! for units of the keys that its gateway spends, and spends them locally.
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold_client::{Client, Verdict};
//!
//! # async fn gateway() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder()
//!     .endpoint("http://127.0.0.1:7070")
//!     .holder("gw-1")
//!     .connect()
//!     .await?;
//! let orders = client.budget("acme/orders.read")?;
//!
//! // Synchronous: never waits, takes no lock, allocates nothing.
//! match orders.try_spend(1) {
//!     Verdict::Admitted => { /* exact */ }
//!     Verdict::Empty => { /* an ask is on its way */ }
//!     verdict => eprintln!("not now, {:?}", verdict.retry_after()),
//! }
//! // Waits for one answer of the coordinator, a quarter of a second at most.
//! if orders.spend(1).await.is_allowed() { /* serve */ }
//! // Waits for capacity, first come first served.
//! let verdict = orders.spend_within(5, Duration::from_secs(2)).await;
//! # let _ = verdict;
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # More than one unit of one budget at once
//!
//! - [`Client::spend_all`] spends several budgets or none of them.
//! - [`Budget::reserve`] holds units for work whose cost is known afterwards.
//! - [`Budget::acquire`] takes permits of a concurrency budget, which come back when
//!   they are dropped.
//! - [`Budget::peek`] looks without spending.
//!
//! # What is promised
//!
//! [`Verdict::Admitted`] means that the units were taken from a lease that was
//! valid at that moment; over all gateways no more than the limit is admitted,
//! whatever fails. Outside of that promise are [`Verdict::Degraded`] (the policy says
//! to let requests through when there is nobody to ask, all of them or a few) and
//! [`Verdict::Shadowed`] (it only pretends, and charges nothing).
//!
//! The promise rests on the machine's monotonic clock: not more than the
//! coordinator's `max_drift` away from real time, and never a second copy of a
//! running process (no `fork` after connecting, no cloned VM). A suspended machine
//! is noticed within a tenth of a second of its resume; with
//! [`Builder::strict_clock`] every request looks for itself.
//!
//! Keys are best passed in canonical encoding (see [`Key`]): only those are found
//! without allocating.

mod backoff;
mod budget;
mod builder;
mod client;
mod clock;
mod convert;
mod driver;
mod error;
#[cfg(feature = "graphql")]
pub mod graphql;
#[cfg(feature = "http")]
pub mod http;
mod lane;
mod permit;
mod registry;
mod reservation;
mod together;
#[cfg(feature = "tower")]
pub mod tower;
mod transport;

pub use budget::Budget;
pub use builder::Builder;
pub use client::Client;
pub use error::{BudgetError, BuildError, NotAdmitted};
pub use lane::Lane;
pub use leasehold_credentials as credentials;
pub use leasehold_key::{Key, KeyError};
pub use leasehold_spend::{BudgetKind, Code, FailureMode, Peek, Quota, Verdict};
pub use permit::Permit;
pub use reservation::{Reservation, Settled};
pub use together::{JointVerdict, RefusedBy};
