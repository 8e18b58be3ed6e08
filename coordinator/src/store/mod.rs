//! The durable side of a replica. Knows nothing of consensus or of the ledger:
//! it keeps numbered byte strings, a vote and a few marks, and says when they
//! are safe.

mod error;

pub use error::StoreError;
