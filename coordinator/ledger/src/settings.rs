//! Cluster settings: replicated, the same on every node.

/// Settings of the whole cluster. `Settings::validate` is the only judge of
/// their ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a session lives without a renewal.
    pub session_ttl_us: u64,
    /// How often clients sync.
    pub sync_interval_us: u64,
    /// How much faster or slower than real time any monotonic clock may run, in
    /// parts per million.
    pub max_drift_ppm: u32,
    /// The policy of keys that no budget matches; none: they are refused.
    pub default_policy: Option<String>,
    /// Sessions alive at once per identity.
    pub sessions_per_identity_max: u32,
    /// Keys that one session may hold leases of.
    pub keys_per_session_max: u32,
    /// Accounts alive at once per budget pattern.
    pub accounts_per_pattern_max: u64,
    /// How long an expired session can still be settled.
    pub tombstone_ttl_us: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session_ttl_us: 10_000_000,
            sync_interval_us: 1_000_000,
            max_drift_ppm: 1_000,
            default_policy: None,
            sessions_per_identity_max: 20_000,
            keys_per_session_max: 100_000,
            accounts_per_pattern_max: 1_000_000,
            tombstone_ttl_us: 3_600_000_000,
        }
    }
}
