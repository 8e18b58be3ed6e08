//! Hashes of the ledger's objects. The ledger's digest is the wrapping sum of
//! them, so that changing one object costs the hash of that object alone.
//! Does not know the objects.

use xxhash_rust::xxh3::xxh3_64;

/// The hash of a few numbers in their order.
pub(crate) fn words<const N: usize>(words: [u64; N]) -> u64 {
    xxh3_64(words.map(u64::to_le_bytes).as_flattened())
}

/// The hash of bytes.
pub(crate) fn bytes(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The two halves of a 128-bit number, the upper first.
#[expect(clippy::cast_possible_truncation, reason = "each half is 64 bits")]
pub(crate) const fn halves(number: u128) -> (u64, u64) {
    (number.unbounded_shr(64) as u64, number as u64)
}

/// The 128-bit number with these halves.
pub(crate) fn whole(upper: u64, lower: u64) -> u128 {
    u128::from(upper).unbounded_shl(64) | u128::from(lower)
}

/// A sum of hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum(u64);

impl Sum {
    pub(crate) const fn add(&mut self, hash: u64) {
        self.0 = self.0.wrapping_add(hash);
    }

    pub(crate) const fn remove(&mut self, hash: u64) {
        self.0 = self.0.wrapping_sub(hash);
    }

    pub(crate) const fn value(self) -> u64 {
        self.0
    }
}
