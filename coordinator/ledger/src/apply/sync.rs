//! Reports and renewals. Totals only grow, so a repeated, delayed or reordered
//! message changes nothing the second time.

use crate::{account::Reported, entry::Sync, ledger::Ledger, outcome::SyncOutcome, time};

use super::finish;

/// Applies what a session says of its leases.
pub(crate) fn sync(ledger: &mut Ledger, sync: &Sync) -> SyncOutcome {
    let id = sync.session;
    let now_us = ledger.now_us;
    let mut outcome = SyncOutcome {
        renewed: false,
        expired: false,
        ended: false,
        refused: Vec::new(),
    };
    let Some(session) = ledger.sessions.get(id) else {
        outcome.expired = true;
        return outcome;
    };
    outcome.ended = session.ended;

    for (place, report) in sync.reports.iter().enumerate() {
        // A session that closes spends nothing any more, but units that are held
        // may still be decided: that lease stays.
        let last = report.last || (sync.close && report.held == 0);
        let reported = ledger.accounts.update(&report.key, now_us, |account| {
            account.report(id, report, last, now_us)
        });
        match reported {
            Some(Reported::Forgotten) => ledger.sessions.release(id, &report.key),
            Some(Reported::Refused(refusal)) => outcome.refused.push((place, refusal)),
            Some(Reported::Applied | Reported::Unknown) | None => {}
        }
    }

    outcome.renewed = ledger
        .sessions
        .update(id, |session| {
            // An older message than was applied says nothing new about whether
            // the holder is alive.
            // A resume has no number: it is as new as its stream.
            let newer = sync.seq == 0 || sync.seq > session.seq;
            session.seq = session.seq.max(sync.seq);
            let renews = sync.renew && newer && !session.ended && !sync.close;
            if renews {
                session.deadline_us = session
                    .deadline_us
                    .max(time::deadline_us(now_us, session.ttl_us));
            }
            renews
        })
        .unwrap_or(false);
    if sync.close {
        finish(ledger, id);
        outcome.ended |= ledger.sessions.get(id).is_some();
    }
    outcome
}
