//! Arithmetic on units whose overflow would mean that the books are broken.
//! Knows nothing of what is counted. A broken invariant stops the replica: to go
//! on with a wrapped or clamped figure would be to admit what nobody granted.

/// The sum of two amounts that the books bound far below 2^64.
#[expect(
    clippy::expect_used,
    reason = "limits and debts stay below 2^55, so sums of them fit"
)]
pub(crate) const fn add(a: u64, b: u64) -> u64 {
    a.checked_add(b)
        .expect("amounts in the books fit in 64 bits")
}

/// What is left of `a` after taking `b`, which is part of it.
#[expect(
    clippy::expect_used,
    reason = "a part is never larger than the whole it was added to"
)]
pub(crate) const fn sub(a: u64, b: u64) -> u64 {
    a.checked_sub(b)
        .expect("a part is never larger than its whole")
}

/// One more.
#[expect(clippy::expect_used, reason = "nothing is counted 2^64 times")]
pub(crate) const fn increment(count: u64) -> u64 {
    count.checked_add(1).expect("nothing is counted 2^64 times")
}

/// One fewer of something that is there.
#[expect(clippy::expect_used, reason = "only what was counted is taken away")]
pub(crate) const fn decrement(count: u64) -> u64 {
    count
        .checked_sub(1)
        .expect("only what was counted is taken away")
}
