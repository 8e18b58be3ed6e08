//! What the core makes of the coordinator's messages. Knows nothing of what is
//! said next.

use std::{collections::HashMap, sync::Arc};

use super::{ClientCore, Closing, Phase, REPORTS_PER_SYNC, SETTLES_MAX, Session, Settle, to_usize};
use crate::{
    clock::{Clock, SECOND},
    key::KeyCore,
    message::{Incoming, KeyGrant, LeaseState, Next, Opened, SessionId, SettleOut, StreamId},
};

/// The longest settle, well below what a coordinator reads.
const SETTLE_BYTES_MAX: usize = 3 << 20;
/// What a lease takes on the wire besides its key, at most.
const SETTLED_LEASE_BYTES: usize = 48;

impl ClientCore {
    /// Takes in a message of a stream.
    pub fn on_message(&mut self, stream: StreamId, message: Incoming, clock: &impl Clock) -> Next {
        if stream != self.stream || self.phase == Phase::Down {
            return Next::Stay;
        }
        let now = clock.now_ns();
        match (message, self.phase) {
            (Incoming::Moved { leader }, _) => {
                self.go_down(now);
                Next::Reconnect {
                    at_once: leader.is_some(),
                    leader,
                }
            }
            (Incoming::Refused { code, .. }, _) => self.on_refused(&code, now),
            (Incoming::Opened(opened), Phase::Opening { sent_ns, resume }) => {
                self.on_opened(opened, sent_ns, resume, clock);
                Next::Stay
            }
            (
                Incoming::Synced {
                    seq,
                    renewed,
                    grants,
                },
                Phase::Open,
            ) => {
                self.on_synced(seq, renewed, &grants, now);
                Next::Stay
            }
            (Incoming::Granted(grants), Phase::Open) => {
                grants.iter().for_each(|grant| self.on_grant(grant, now));
                Next::Stay
            }
            (
                Incoming::Recall {
                    key_id,
                    generation,
                    returned_total_target,
                    granted_total,
                    whole,
                },
                Phase::Open,
            ) => {
                let grant = KeyGrant {
                    key_id,
                    generation,
                    granted_total,
                    ..KeyGrant::default()
                };
                self.on_grant(&grant, now);
                if let Some(core) = self.announced(key_id) {
                    core.recall(generation, returned_total_target, whole);
                    self.ready.insert(key_id);
                }
                Next::Stay
            }
            (Incoming::Settled(session), _) => {
                self.settles.retain(|settle| settle.out.session != session);
                Next::Stay
            }
            (Incoming::Closed, _) if matches!(self.closing, Closing::Sent(_)) => {
                self.closing = Closing::Done;
                self.session = None;
                self.go_down(now);
                Next::Finished
            }
            _ => Next::Stay,
        }
    }

    fn on_refused(&mut self, code: &str, now: u64) -> Next {
        let mut at_once = false;
        match code {
            "session_expired" => {
                self.lose_session(true);
                at_once = true;
            }
            // Another process goes on with this session, or may not: its books
            // are no longer ours to settle.
            "superseded" => self.lose_session(false),
            // The session was opened as somebody else, whom nobody here is any more.
            "identity_mismatch" if matches!(self.phase, Phase::Opening { .. }) => {
                self.lose_session(false);
                at_once = true;
            }
            // One to settle is not ours, and never will be. The one that is open is.
            "identity_mismatch" => self.settles.clear(),
            _ => {}
        }
        self.go_down(now);
        if self.closing == Closing::Done {
            return Next::Finished;
        }
        Next::Reconnect {
            leader: None,
            at_once,
        }
    }

    /// Voids every lease. What was spent of them is settled later.
    fn lose_session(&mut self, settle: bool) {
        let Some(session) = self.session.take() else {
            return;
        };
        let mut leases = Vec::new();
        let mut bytes = 0;
        let mut spent = Vec::new();
        for core in self.keys.iter_mut().flatten() {
            core.void(&mut spent);
            let key = &core.key;
            for (generation, spent) in spent.drain(..) {
                // What does not fit stays presumed spent: a message that the
                // coordinator cannot read would be repeated for ever.
                bytes += key.len() + SETTLED_LEASE_BYTES;
                if bytes <= SETTLE_BYTES_MAX {
                    leases.push((Arc::clone(key), generation, spent));
                }
            }
        }
        self.sent.clear();
        self.ready.clear();
        if settle && !leases.is_empty() {
            if self.settles.len() >= SETTLES_MAX {
                self.settles.pop_front();
            }
            let out = SettleOut {
                session: session.id,
                leases,
            };
            self.settles.push_back(Settle { out, sent: None });
        }
        if self.closing != Closing::No {
            self.closing = Closing::Done;
        }
    }

    fn on_opened(
        &mut self,
        opened: Opened,
        sent_ns: u64,
        resume: Option<SessionId>,
        clock: &impl Clock,
    ) {
        let now = clock.now_ns();
        let is_resumed = self
            .session
            .as_ref()
            .is_some_and(|session| session.id == opened.session);
        if !is_resumed {
            // Asked to resume and given another: the old one is gone.
            self.lose_session(resume.is_some());
            let deadline_ns = sent_ns.saturating_add(opened.validity_us.saturating_mul(1000));
            self.session = Some(Session {
                id: opened.session,
                deadline_ns,
                spread_ns: deadline_ns,
                is_parked: false,
                validity_ns: 0,
                interval_ns: 0,
                silence_ns: 0,
                next_seq: 1,
                reports_max: 0,
                keys_max: 0,
            });
        }
        if let Some(session) = &mut self.session {
            // A resume does not renew: the deadline moves with the first sync.
            session.validity_ns = opened.validity_us.saturating_mul(1000);
            session.interval_ns = opened
                .sync_interval_us
                .saturating_mul(1000)
                .max(SECOND / 100);
            session.silence_ns = (opened.session_ttl_us.saturating_mul(1000) / 4).max(SECOND / 10);
            session.reports_max = match opened.reports_per_sync_max {
                0 => REPORTS_PER_SYNC,
                max => to_usize(max),
            };
            session.keys_max = match opened.keys_per_session_max {
                0 => u32::MAX,
                max => max,
            };
        }
        if matches!(self.closing, Closing::Sent(_)) {
            // The session is still there: the close was lost with its stream.
            self.closing = Closing::Wanted;
        }
        self.phase = Phase::Open;
        self.line.up();
        self.keys
            .iter_mut()
            .flatten()
            .for_each(KeyCore::start_stream);
        if is_resumed {
            self.reconcile(opened.leases, now);
        }
        // A resume restates everything at once; so do requests that waited.
        self.full_due_ns = now;
    }

    /// Compares the coordinator's books with ours: grants that were lost on the
    /// way are taken in, or handed back if they are too old.
    fn reconcile(&mut self, leases: Vec<LeaseState>, now: u64) {
        let Some(session) = &self.session else { return };
        let known: HashMap<&str, &KeyCore> = self
            .keys
            .iter()
            .flatten()
            .map(|core| (&*core.key, core))
            .collect();
        for lease in leases {
            let Some(core) = known.get(&*lease.key) else {
                self.unknown.push(lease);
                continue;
            };
            core.reconcile(&lease, session.deadline_ns, now);
        }
    }

    /// Leases that the coordinator has in its books for keys which are not known
    /// here. The owner adopts a slot for each, hands it to
    /// [`Slot::adopt_unseen`](crate::Slot::adopt_unseen), and so the lease back.
    pub fn take_unknown(&mut self) -> Vec<LeaseState> {
        std::mem::take(&mut self.unknown)
    }

    fn on_synced(&mut self, seq: u64, renewed: bool, grants: &[KeyGrant], now: u64) {
        let stream = self.stream;
        let Some(at) = self
            .sent
            .iter()
            .position(|sent| sent.seq == seq && sent.stream == stream)
        else {
            return;
        };
        // A stream keeps its order: what was sent before and not answered is
        // lost, and must be told again.
        for lost in self
            .sent
            .iter_mut()
            .take(at)
            .filter(|sent| !sent.is_answered)
        {
            lost.is_answered = true;
            let is_present = lost.stream == stream;
            for brief in lost.reports.drain(..) {
                if let Some(Some(core)) = self.keys.get_mut(to_usize(brief.index)) {
                    core.tell_again(is_present.then_some(brief));
                }
            }
        }
        let sent = &mut self.sent[at];
        sent.is_answered = true;
        let sent_ns = sent.at_ns;
        for brief in sent.reports.drain(..) {
            if let Some(Some(core)) = self.keys.get_mut(to_usize(brief.index)) {
                core.acknowledge(seq, brief);
            }
        }
        let rtt = now.saturating_sub(sent_ns);
        self.rtt_ns = if self.rtt_ns == 0 {
            rtt
        } else {
            (7 * self.rtt_ns + rtt) / 8
        };
        if renewed {
            self.renew(sent_ns, now);
        }
        for grant in grants {
            // What answers a sync is based on it, whatever it says.
            let basis_seq = grant.basis_seq.max(seq);
            self.on_grant(
                &KeyGrant {
                    basis_seq,
                    ..grant.clone()
                },
                now,
            );
        }
    }

    fn renew(&mut self, sent_ns: u64, now: u64) {
        let Some(session) = &mut self.session else {
            return;
        };
        // From the moment before the sync was handed to the transport.
        let deadline_ns = sent_ns.saturating_add(session.validity_ns);
        session.deadline_ns = session.deadline_ns.max(deadline_ns);
        // Many keys and many syncs: a slot may lag a little behind, it then only
        // stops earlier.
        let gained = session.deadline_ns - session.spread_ns;
        if session.is_parked || gained > session.validity_ns / 32 {
            self.spread(now);
        }
    }

    /// Tells every slot the session's deadline.
    pub(super) fn spread(&mut self, now: u64) {
        let Some(session) = &mut self.session else {
            return;
        };
        session.spread_ns = session.deadline_ns;
        session.is_parked = now >= session.deadline_ns;
        self.keys
            .iter()
            .flatten()
            .for_each(|core| core.renew(session.deadline_ns, now));
    }

    fn announced(&mut self, key_id: u32) -> Option<&mut KeyCore> {
        self.keys
            .get_mut(to_usize(key_id))?
            .as_mut()
            .filter(|core| core.is_announced)
    }

    fn on_grant(&mut self, grant: &KeyGrant, now: u64) {
        let Some(session) = &self.session else { return };
        let session_deadline_ns = session.deadline_ns;
        let own_deadline_ns = (grant.valid_for_us != 0).then(|| {
            // From when the sync was sent that the grant is based on. If that is
            // not remembered, the lease is taken for ended.
            let basis = self.sent.iter().find(|sent| sent.seq == grant.basis_seq);
            basis.map_or(0, |sent| {
                sent.at_ns
                    .saturating_add(grant.valid_for_us.saturating_mul(1000))
            })
        });
        let rtt_ns = self.rtt_ns;
        let Some(core) = self.announced(grant.key_id) else {
            return;
        };
        core.on_grant(grant, session_deadline_ns, own_deadline_ns, rtt_ns, now);
        self.set_timer(grant.key_id, now);
    }
}
