//! The allotter.
