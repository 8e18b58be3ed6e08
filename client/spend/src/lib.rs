//! The spending core.
