//! What kinds of budgets there are, as far as a gateway acts differently for
//! them. Knows no limits and no times.

/// The kind of the budget that a key follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum BudgetKind {
    /// So many units in any interval of one length.
    Window = 1,
    /// So many units at once, refilled at a rate.
    Bucket,
    /// So many units in each hour, day, week, month or year.
    Period,
    /// So many units, ever.
    Total,
    /// So many permits at one moment. Its units are never spent: they are taken
    /// and come back.
    Concurrency,
    /// Counted here and compared later: an estimate.
    Estimate,
    /// Released one after another at a rate.
    Paced,
    /// Counted, and never refused.
    Unlimited,
    /// A kind that this version does not know: spent like a window's.
    #[default]
    Other,
}

impl BudgetKind {
    const ALL: [Self; 9] = [
        Self::Window,
        Self::Bucket,
        Self::Period,
        Self::Total,
        Self::Concurrency,
        Self::Estimate,
        Self::Paced,
        Self::Unlimited,
        Self::Other,
    ];

    /// The stable text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Window => "sliding_window",
            Self::Bucket => "token_bucket",
            Self::Period => "period",
            Self::Total => "total",
            Self::Concurrency => "concurrency",
            Self::Estimate => "estimate",
            Self::Paced => "paced",
            Self::Unlimited => "unlimited",
            Self::Other => "other",
        }
    }

    /// The kind with this text, or `Other`.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        known.unwrap_or(Self::Other)
    }

    /// None for 0, which stands for a kind that was not told yet.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_again_by_its_text_and_its_number() {
        for kind in BudgetKind::ALL {
            assert_eq!(BudgetKind::from_text(kind.as_str()), kind);
            assert_eq!(BudgetKind::from_number(kind as u32), Some(kind));
        }
        assert_eq!(BudgetKind::from_text("from_the_future"), BudgetKind::Other);
        assert_eq!(BudgetKind::from_number(0), None);
    }
}
