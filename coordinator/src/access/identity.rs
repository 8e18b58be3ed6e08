//! Who somebody is and what that lets them do. Knows nothing of how they prove it, nor of
//! routes.

use std::{fmt, sync::Arc};

use leasehold_key::{Key, Pattern};
use serde::{Deserialize, Serialize};

/// What an identity is for; each sees and does more than the one before, except gateways,
/// which do something else.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Opens sessions, asks, spends and settles, for keys of its patterns; sees nothing else.
    Gateway,
    /// Reads everything.
    Viewer,
    /// Also changes policies and budgets, corrects accounts and spends.
    Operator,
    /// Also ends sessions, and changes settings, periods and members.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Gateway, Self::Viewer, Self::Operator, Self::Admin];

    /// As it is written in files.
    #[must_use]
    pub const fn as_word(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// Whether it may do what takes this.
    #[must_use]
    pub const fn may(self, takes: Takes) -> bool {
        match takes {
            Takes::Nothing => true,
            Takes::Reading => matches!(self, Self::Viewer | Self::Operator | Self::Admin),
            Takes::Operating => matches!(self, Self::Operator | Self::Admin),
            Takes::Administering => matches!(self, Self::Admin),
            Takes::Spending => matches!(self, Self::Gateway | Self::Operator | Self::Admin),
            Takes::Leasing => matches!(self, Self::Gateway),
            Takes::BeingANode => false,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_word())
    }
}

/// What a request takes of whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Strangers are answered.
    Nothing,
    /// To be let see everything.
    Reading,
    /// To be let change rules and books.
    Operating,
    /// To be let change the cluster.
    Administering,
    /// To be let spend units of the request's key.
    Spending,
    /// To be let lease units.
    Leasing,
    /// Never granted to whoever asks here: coordinators have a listener of their own.
    BeingANode,
}

/// Somebody whom the identities file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// As it is written into the ledger, and into histories.
    pub name: Arc<str>,
    /// What it is for.
    pub role: Role,
    /// The keys that a gateway may use; the others are not bound to keys.
    pub keys: Patterns,
}

/// Patterns of keys: a key is meant when one of them matches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(Arc<[Pattern]>);

impl Patterns {
    /// Whether one of them matches.
    #[must_use]
    pub fn cover(&self, key: &Key) -> bool {
        self.0.iter().any(|pattern| pattern.matches(key))
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Pattern> {
        self.0.iter()
    }
}

impl FromIterator<Pattern> for Patterns {
    fn from_iter<I: IntoIterator<Item = Pattern>>(patterns: I) -> Self {
        Self(patterns.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn each_role_may_what_it_is_for_and_nobody_is_a_node() {
        let all = [
            Takes::Nothing,
            Takes::Reading,
            Takes::Operating,
            Takes::Administering,
            Takes::Spending,
            Takes::Leasing,
            Takes::BeingANode,
        ];
        let may = |role: Role| all.map(|takes| u8::from(role.may(takes)));
        assert_eq!(may(Role::Gateway), [1, 0, 0, 0, 1, 1, 0]);
        assert_eq!(may(Role::Viewer), [1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(may(Role::Operator), [1, 1, 1, 0, 1, 0, 0]);
        assert_eq!(may(Role::Admin), [1, 1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn a_key_is_meant_when_one_pattern_matches() {
        let parse = |text| Pattern::parse(text).unwrap();
        let patterns: Patterns = ["acme/*", "b*/x"].map(parse).into_iter().collect();
        let covers = |text| patterns.cover(&Key::parse(text).unwrap());
        assert!(covers("acme/orders"));
        assert!(covers("bob/x"));
        assert!(!covers("acme"));
        assert!(!covers("acme/a/b"));
        assert!(!covers("other/orders"));
        assert!(!Patterns::default().cover(&Key::parse("a").unwrap()));
    }
}
