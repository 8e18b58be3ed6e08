//! The end of sessions whose deadline has come: nobody can know what their
//! holders did with what was outstanding, so it counts as spent at the latest
//! possible moment.

use std::sync::Arc;

use crate::{
    entry::SessionId,
    ledger::Ledger,
    outcome::Applied,
    sessions::{Tombstone, TombstoneLease},
};

/// Sessions that one entry expires at most.
const SESSIONS_PER_ENTRY: usize = 256;
/// Leases after which an entry begins no further session.
const LEASES_PER_ENTRY: u64 = 65_536;
/// Leases of one session that can be settled after its end; units of any more stay
/// presumed spent. Bounds a tombstone's record in a snapshot.
const SETTLED_LATER_MAX: usize = 100_000;

/// Expires the sessions whose deadline has come, the oldest deadline first and a
/// bounded number.
pub(crate) fn expire_due(ledger: &mut Ledger, applied: &mut Applied) {
    let mut leases = 0_u64;
    while let Some(id) = ledger.sessions.first_due(ledger.now_us) {
        if applied.expired.len() >= SESSIONS_PER_ENTRY || leases >= LEASES_PER_ENTRY {
            applied.more_due = true;
            return;
        }
        leases = leases.saturating_add(expire(ledger, id));
        applied.expired.push(id);
    }
}

/// Expires one session and gives how many leases it had.
fn expire(ledger: &mut Ledger, id: SessionId) -> u64 {
    let now_us = ledger.now_us;
    let keys = ledger.sessions.take_held(id);
    let Some(session) = ledger.sessions.remove(id) else {
        return 0;
    };
    let mut left_behind = Vec::new();
    let mut ended = 0_u64;
    for key in keys.into_keys() {
        ledger.accounts.update(&key, now_us, |account| {
            let refunds = account.books.refunds();
            let from = left_behind.len();
            account.presume(id, session.deadline_us, now_us, |presumed| {
                ended = ended.saturating_add(1);
                if refunds && presumed.units > 0 && left_behind.len() < SETTLED_LATER_MAX {
                    left_behind.push(TombstoneLease {
                        key: key.clone(),
                        generation: presumed.generation,
                        spent: presumed.spent,
                        presumed: presumed.units,
                        epoch: presumed.epoch,
                    });
                }
            });
            // The newest generation ends first; a tombstone lists the oldest first.
            if let Some(of_key) = left_behind.get_mut(from..) {
                of_key.reverse();
            }
        });
    }
    let tombstone = Tombstone {
        identity: Arc::clone(&session.identity),
        ended_us: session.deadline_us,
        drop_us: now_us.saturating_add(ledger.settings.tombstone_ttl_us),
        leases: left_behind,
    };
    ledger.sessions.bury(id, tombstone);
    ended
}
