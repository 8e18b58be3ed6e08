//! Where members that moved are reached until the membership says so, and by
//! connections that were made before it did. Knows nothing of connections.
//!
//! The core keeps its connections to a member when only its address changes, so a
//! connection asks here before it is used.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::RwLock;

/// Moves: a node and an address it had, to the address it had next. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Addresses(Arc<RwLock<BTreeMap<(u64, String), String>>>);

impl Addresses {
    /// A node that was at one address is at another now.
    pub(super) fn moved(&self, node_id: u64, from: &str, to: &str) {
        if from != to && !to.is_empty() {
            let mut moves = self.0.write();
            // Back to where it was once: that is no longer left for elsewhere.
            moves.remove(&(node_id, to.to_owned()));
            moves.insert((node_id, from.to_owned()), to.to_owned());
        }
    }

    /// Where a node is, that was known to be at an address.
    pub(super) fn now(&self, node_id: u64, known: &str) -> String {
        let moves = self.0.read();
        let mut at = known.to_owned();
        // As many steps as there are moves: a circle ends as well.
        for _ in 0..moves.len() {
            match moves.get(&(node_id, at.clone())) {
                Some(next) => at.clone_from(next),
                None => break,
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_moves_on_or_back_is_where_it_is_last() {
        let addresses = Addresses::default();
        addresses.moved(1, "a", "b");
        addresses.moved(1, "b", "c");
        assert_eq!(addresses.now(1, "a"), "c");
        assert_eq!(addresses.now(2, "a"), "a");
        addresses.moved(1, "c", "a");
        assert_eq!(addresses.now(1, "b"), "a");
        assert_eq!(addresses.now(1, "a"), "a");
    }
}
