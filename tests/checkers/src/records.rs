//! What the kinds of budgets need to be judged by, beside admissions: corrections,
//! the books of periods and of charges, looks at permits, settlements and joint
//! requests. Plain data; does not know who wrote it.

use serde::{Deserialize, Serialize};

/// An account was corrected by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    /// The key.
    pub key: String,
    /// Names the correction within the key: however often it is asked for, it is made
    /// once.
    pub id: String,
    /// Before the request left.
    pub call_ns: u64,
    /// After the answer came, or when the caller gave up.
    pub return_ns: u64,
    /// False: it may have taken effect at any moment since the call, or never. What
    /// was refused is no correction.
    pub acknowledged: bool,
    /// What it was.
    pub change: Change,
}

/// What a correction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// So many units more can be spent; below 0: fewer.
    Adjust(i64),
    /// What was counted is not any more.
    Reset,
}

/// The books of a key in its period: a linearizable read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeriodSample {
    /// The key.
    pub key: String,
    /// Before the request left.
    pub call_ns: u64,
    /// After the answer came.
    pub return_ns: u64,
    /// Which period it was; it grows by one with each.
    pub number: u64,
    /// What the period has beyond the policy's limit.
    pub carried: u64,
    /// Units that count as spent in it.
    pub counted: u64,
    /// Units in leases.
    pub outstanding: u64,
}

/// A look at a permit by its holder. A permit is looked at as often as one likes, each
/// time with the same gateway and number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitLook {
    /// Who holds it.
    pub gateway: String,
    /// The key.
    pub key: String,
    /// Names the permit within the gateway.
    pub number: u64,
    /// Units.
    pub units: u64,
    /// Before it was asked for.
    pub call_ns: u64,
    /// After it was got.
    pub return_ns: u64,
    /// The clock before a look that found it valid and not dropped; absent: it was not
    /// looked at, or had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_ns: Option<u64>,
}

/// A reservation was settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// Who settled it.
    pub gateway: String,
    /// The key.
    pub key: String,
    /// Before it was asked to be reserved.
    pub call_ns: u64,
    /// After it was settled.
    pub return_ns: u64,
    /// Units that were reserved.
    pub reserved: u64,
    /// Units that were used.
    pub used: u64,
    /// Units that were spent from what the holder had.
    pub charged: u64,
    /// Units beyond those.
    pub overrun: u64,
}

/// A request that wanted units of several keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joint {
    /// Who made it.
    pub gateway: String,
    /// Each key, with its units.
    pub parts: Vec<(String, u64)>,
    /// Before the call.
    pub call_ns: u64,
    /// After the return.
    pub return_ns: u64,
    /// Whether it got all of them; false: none.
    pub admitted: bool,
}

/// What became of a key's units since its account was opened: a linearizable read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeSample {
    /// The key.
    pub key: String,
    /// Before the request left.
    pub call_ns: u64,
    /// After the answer came.
    pub return_ns: u64,
    /// Units that holders said they spent.
    pub spent: u64,
    /// Units of dead holders.
    pub presumed_spent: u64,
    /// Units in leases.
    pub outstanding: u64,
    /// Units that settlements needed beyond what their holders had, and that were free.
    pub extra: u64,
    /// Units that settlements needed, and that were not free.
    pub overrun: u64,
}
