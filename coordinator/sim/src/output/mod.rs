//! How results look: tables, CSV, JSON, pictures, progress. Knows nothing of what
//! the figures mean.

mod axis;
mod chart;
mod picture;
mod progress;
mod table;

pub use chart::{Axis, Chart, Mark, Role, Scale, Series};
pub use picture::{DrawError, svg};
pub use progress::{Bar, Progress, Unwatched};
pub use table::{Cell, Table};
