//! What an ended session really spent. Each lease is settled once.

use crate::{
    account::Reported,
    entry::{Report, SessionId, SettledLease},
    ledger::Ledger,
    outcome::{CommandOutcome, CommandRefusal},
};

use super::finish;

/// Settles a session for the identity that opened it.
pub(super) fn settle(
    ledger: &mut Ledger,
    id: SessionId,
    identity: &str,
    leases: &[SettledLease],
) -> CommandOutcome {
    if let Some(session) = ledger.sessions.get(id) {
        if *session.identity != *identity {
            return CommandOutcome::Refused(CommandRefusal::IdentityMismatch);
        }
        settle_live(ledger, id, leases);
        return CommandOutcome::Settled;
    }
    let Some(tombstone) = ledger.sessions.tombstone(id) else {
        return CommandOutcome::Refused(CommandRefusal::NoSuchSession);
    };
    if *tombstone.identity != *identity {
        return CommandOutcome::Refused(CommandRefusal::IdentityMismatch);
    }
    let (ended_us, now_us) = (tombstone.ended_us, ledger.now_us);
    for (lease, spent_total) in ledger.sessions.settle(id, leases) {
        let spent = spent_total.saturating_sub(lease.spent).min(lease.presumed);
        let unspent = lease.presumed.saturating_sub(spent);
        ledger.accounts.update(&lease.key, now_us, |account| {
            account.refund(unspent, lease.epoch, ended_us, now_us);
        });
    }
    CommandOutcome::Settled
}

/// A settle that arrives before the deadline closes the session: what it states
/// counts as a last report, spent just now.
fn settle_live(ledger: &mut Ledger, id: SessionId, leases: &[SettledLease]) {
    let now_us = ledger.now_us;
    for lease in leases {
        let report = Report {
            key: lease.key.clone(),
            generation: lease.generation,
            last: true,
            spent_total: lease.spent_total,
            returned_total: 0,
            held: 0,
            ages: Vec::new(),
            overrun_total: 0,
        };
        let reported = ledger.accounts.update(&lease.key, now_us, |account| {
            account.report(id, &report, true, now_us)
        });
        if reported == Some(Reported::Forgotten) {
            ledger.sessions.release(id, &lease.key);
        }
    }
    finish(ledger, id);
}
