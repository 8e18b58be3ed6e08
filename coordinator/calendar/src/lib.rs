//! When a calendar's hours, days, weeks, months and years begin, in any time zone.
//!
//! Pure: it knows no clock and no machine's settings, and not what a period is counted
//! for. The time zones are those that are compiled in (their version is
//! [`zones_version`]), so that one binary gives one answer everywhere; two binaries may
//! differ about the future, and whoever asks must write the answer down.
//!
//! ```
//! use leasehold_calendar::{Bounds, Calendar};
//!
//! let days = Calendar::parse("day", "Europe/Berlin", 0)?;
//! // 2026-03-29: the clocks go forward, and the day has 23 hours.
//! let bounds = days.period_at(1_774_785_600_000_000)?;
//! assert_eq!(bounds, Bounds {
//!     start_unix_us: 1_774_738_800_000_000,
//!     end_unix_us: 1_774_821_600_000_000,
//! });
//! # Ok::<(), leasehold_calendar::CalendarError>(())
//! ```
#![deny(clippy::arithmetic_side_effects, clippy::float_arithmetic)]
#![deny(clippy::disallowed_types)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod calendar;
mod date;
mod error;
mod text;
mod zone;

pub use calendar::{Bounds, Calendar, EARLIEST_UNIX_US, LATEST_UNIX_US, Unit};
pub use error::CalendarError;
pub use text::{unix_us_of, utc_text};
pub use zone::zones_version;
