//! Claims about proposals and conclusions over a real ledger.
