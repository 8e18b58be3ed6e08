//! Flipped bits. Knows nothing of formats: every file and every bit of it may be hit.

use std::path::PathBuf;

use rand::{Rng, rngs::StdRng, seq::IteratorRandom};

use super::disk::Tree;

/// Flips a bit of a file, or a few close to each other, and says where.
pub(super) fn flip(tree: &mut Tree, rng: &mut StdRng) -> Option<(PathBuf, usize)> {
    let files = tree.0.iter_mut().filter_map(|(path, content)| {
        let bytes = content.as_mut().filter(|bytes| !bytes.is_empty())?;
        Some((path, bytes))
    });
    // Any file as likely as any other: most of the bytes are the engine's.
    let (path, bytes) = files.choose(rng)?;
    let place = rng.random_range(0..bytes.len());
    let (bits, near) = if rng.random_range(0..4) == 0 {
        (rng.random_range(2..6), 64)
    } else {
        (1, 1)
    };
    for _ in 0..bits {
        let place = (place + rng.random_range(0..near)).min(bytes.len() - 1);
        bytes[place] ^= 1 << rng.random_range(0..8);
    }
    Some((path.clone(), place))
}
