//! How results look: tables, CSV, JSON, pictures, progress. Knows nothing of what
//! the figures mean.

mod chart;
mod progress;
mod table;

pub use chart::{Axis, Chart, Mark, Role, Scale, Series};
pub use progress::{Bar, Progress, Unwatched};
pub use table::{Cell, Table};
