//! The ledger: the replicated books of a Leasehold cluster.
//!
//! Pure: it knows no clock, no randomness, no network and no disk. Every replica
//! applies the same entries and reaches the same bytes. It enforces the limit and
//! nothing else: who should get units is proposed to it, in the entry.
//!
//! ```
//! use leasehold_key::{Key, Pattern};
//! use leasehold_ledger::{
//!     Ledger,
//!     entry::{Command, Entry, Grant, Rule, SessionId},
//!     policy::{Kind, Policy},
//! };
//!
//! let policy = Policy::new(Kind::SlidingWindow { limit: 100, window_us: 60_000_000 });
//! let session = SessionId(7);
//! let key = Key::parse("acme/orders")?;
//! let mut ledger = Ledger::new();
//! ledger.apply(1, &Entry {
//!     now_us: 1_000,
//!     commands: vec![
//!         Command::PutBudget { pattern: Pattern::parse("acme/*")?, rule: Rule::Inline(policy) },
//!         Command::Open { session, holder: "gw-1".to_owned(), identity: String::new() },
//!     ],
//!     ..Entry::default()
//! });
//! let applied = ledger.apply(2, &Entry {
//!     now_us: 2_000,
//!     grants: vec![Grant { session, key: key.clone(), units: 130 }],
//!     ..Entry::default()
//! });
//! assert_eq!(applied.grants[0].units, 100, "a grant is clamped to what is free");
//! assert_eq!(ledger.account(&key).map(|account| account.outstanding), Some(100));
//! # Ok::<(), leasehold_key::KeyError>(())
//! ```
#![deny(clippy::arithmetic_side_effects, clippy::float_arithmetic)]
#![deny(clippy::disallowed_types)]

mod account;
mod accounts;
mod apply;
mod check;
pub mod correction;
mod digest;
pub mod edit;
pub mod entry;
mod exact;
mod explain;
mod history;
mod kind;
mod ledger;
pub mod outcome;
pub mod policy;
mod preview;
mod restore;
mod rule_views;
mod rules;
mod sessions;
pub mod settings;
mod shards;
mod snapshot;
mod spent_once;
mod time;
mod views;
mod wire;

pub use check::Violation;
pub use explain::{AfterRestore, Applies, Explanation, Freeing, Peek};
pub use history::Version;
pub use kind::Period;
pub use ledger::Ledger;
pub use preview::Preview;
pub use restore::Voided;
pub use rule_views::RuleView;
pub use snapshot::{CHUNK_BYTES_MAX, Chunks, FrozenLedger, SnapshotError};
pub use views::{LeaseTotals, Standing, Totals};
pub use wire::{FormatError, VERSION as FORMAT_VERSION, VERSION_OF_KINDS as KINDS_SINCE};
