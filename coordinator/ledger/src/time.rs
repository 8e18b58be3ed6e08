//! Durations derived from clocks that may drift. Knows no clock: only how wrong
//! one may be.

/// Parts per million.
const MILLION: u128 = 1_000_000;

/// How long a sliding window's unit stays counted after the latest moment at
/// which it can have been spent: `window × (1 + drift)` rounded up, and one tick
/// because cluster time is a floored reading.
pub(crate) fn hold_us(window_us: u64, drift_ppm: u32) -> u64 {
    let scaled = u128::from(window_us).saturating_mul(MILLION.saturating_add(drift_ppm.into()));
    u64::try_from(scaled.div_ceil(MILLION).saturating_add(1)).unwrap_or(u64::MAX)
}

/// How long a client may spend after it sent a renewal: `ttl × (1 − 2 × drift)`
/// rounded down, because its clock may be slow while the leader's is fast.
pub(crate) fn validity_us(ttl_us: u64, drift_ppm: u32) -> u64 {
    let kept = MILLION.saturating_sub(u128::from(drift_ppm).saturating_mul(2));
    let scaled = u128::from(ttl_us)
        .saturating_mul(kept)
        .checked_div(MILLION)
        .unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// The cluster time at which a session ends that was renewed at `now_us`: one
/// tick beyond its ttl, because `now_us` is a floored reading.
pub(crate) const fn deadline_us(now_us: u64, ttl_us: u64) -> u64 {
    now_us.saturating_add(ttl_us).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_to_the_safe_side() {
        assert_eq!(hold_us(60_000_000, 1_000), 60_060_001);
        assert_eq!(hold_us(100_001, 1_000), 100_103);
        assert_eq!(hold_us(100_000, 0), 100_001);
        assert_eq!(validity_us(10_000_000, 1_000), 9_980_000);
        assert_eq!(validity_us(1_001, 1_000), 998);
        assert_eq!(validity_us(1_000, 600_000), 0);
        assert_eq!(deadline_us(5, 10), 16);
        assert_eq!(deadline_us(u64::MAX, 10), u64::MAX);
        assert_eq!(hold_us(u64::MAX, 1_000), u64::MAX);
    }
}
