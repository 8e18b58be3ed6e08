//! What streams are told of an entry that was applied, and how messages are read:
//! as the service does it. Knows nothing of when entries are written.

use std::collections::BTreeMap;

use leasehold_allotter::{LaneLevel, Level};
use leasehold_key::Key;
use leasehold_ledger::{
    entry::{Report, SessionId, SpentAge},
    outcome::{Applied, CommandOutcome},
    policy::{FailureMode, Policy},
};
use leasehold_spend::{
    BudgetKind, Code, LaneRule,
    message::{self, Incoming, KeyGrant, LeaseState, Opened},
};

use super::{Class, Coordinator, LaneRefusal, Slot, Stream};
use crate::system::gateway::Connection;

impl Coordinator {
    pub(super) fn answer(
        &mut self,
        slots: &[Slot],
        applied: &Applied,
        news: &mut BTreeMap<(SessionId, usize), Option<LaneRefusal>>,
    ) {
        let (mut syncs, mut commands) = (applied.syncs.iter(), applied.commands.iter());
        for slot in slots {
            match slot {
                Slot::Open {
                    connection,
                    session,
                } => {
                    if let Some(CommandOutcome::Opened { .. }) = commands.next() {
                        self.enter(*connection, *session);
                    } else {
                        self.outbox.push((
                            *connection,
                            Incoming::Moved { leader: None },
                            Class::Regular,
                        ));
                    }
                }
                Slot::Resume {
                    connection,
                    session,
                } => {
                    if syncs.next().is_some_and(|sync| sync.renewed) {
                        self.enter(*connection, *session);
                    } else {
                        self.outbox.push((*connection, expired(), Class::Regular));
                    }
                }
                Slot::Settle {
                    connection,
                    session,
                } => {
                    commands.next();
                    let session = message::SessionId(session.0.to_be_bytes());
                    self.outbox
                        .push((*connection, Incoming::Settled(session), Class::Regular));
                }
                Slot::Sync {
                    connection,
                    session,
                    seq,
                    close,
                    is_regular,
                    keys,
                } => {
                    let Some(outcome) = syncs.next() else {
                        continue;
                    };
                    if outcome.expired {
                        self.lose_connection(*connection);
                        self.outbox.push((*connection, expired(), Class::Regular));
                        continue;
                    }
                    if *close {
                        self.lose_connection(*connection);
                        self.outbox
                            .push((*connection, Incoming::Closed, Class::Regular));
                        continue;
                    }
                    let Some(stream) = self.streams.get_mut(connection) else {
                        continue;
                    };
                    stream.seq = stream.seq.max(*seq);
                    let mut is_news = false;
                    let grants = keys
                        .iter()
                        .map(|place| {
                            let told = news.remove(&(*session, *place));
                            is_news |= told.is_some();
                            let refusal = told.flatten();
                            self.grant(*connection, *session, *place, *seq, refusal)
                        })
                        .collect();
                    let class = match (*is_regular, is_news) {
                        (true, _) => Class::Regular,
                        (false, true) => Class::Keyed,
                        (false, false) => Class::Acknowledgement,
                    };
                    self.outbox.push((
                        *connection,
                        Incoming::Synced {
                            seq: *seq,
                            renewed: outcome.renewed,
                            grants,
                        },
                        class,
                    ));
                }
            }
        }
    }

    /// Lets a connection speak for its session from now on.
    fn enter(&mut self, connection: Connection, session: SessionId) {
        let Some(view) = self.ledger.session(session) else {
            return;
        };
        if let Some(old) = self.live.insert(session, connection) {
            self.streams.remove(&old);
        }
        self.streams.insert(
            connection,
            Stream {
                session,
                seq: view.seq,
                told: vec![false; self.keys.len()],
            },
        );
        self.allotter.attach(session);
        let leases = self
            .ledger
            .leases(session)
            .into_iter()
            .map(|lease| LeaseState {
                key: lease.key.as_str().into(),
                generation: lease.generation,
                granted_total: lease.granted_total,
                spent_total: lease.spent_total,
                returned_total: lease.returned_total,
            });
        let opened = Opened {
            session: message::SessionId(session.0.to_be_bytes()),
            validity_us: view.validity_us,
            sync_interval_us: self.ledger.settings().sync_interval_us,
            session_ttl_us: view.ttl_us,
            reports_per_sync_max: 0,
            keys_per_session_max: 0,
            leases: leases.collect(),
        };
        self.outbox
            .push((connection, Incoming::Opened(opened), Class::Regular));
    }

    pub(super) fn grant(
        &mut self,
        connection: Connection,
        session: SessionId,
        place: usize,
        basis_seq: u64,
        refusal: Option<LaneRefusal>,
    ) -> KeyGrant {
        let standing = self
            .ledger
            .standing(session, &self.keys[place], self.ledger.now_us());
        let told = self
            .streams
            .get_mut(&connection)
            .and_then(|stream| stream.told.get_mut(place));
        let policy = match (told, standing.policy) {
            (Some(told), Some(policy)) if !*told => {
                *told = true;
                Some(told_policy(&policy))
            }
            _ => None,
        };
        KeyGrant {
            ask_anew: false,
            key_id: u32::try_from(place).unwrap_or(u32::MAX),
            generation: standing.lease.map_or(0, |lease| lease.generation),
            granted_total: standing.lease.map_or(0, |lease| lease.granted),
            basis_seq,
            valid_for_us: 0,
            refusal: refusal.map(|(refusal, lane)| message::Refusal {
                code: Code::from_text(refusal.code.as_str()),
                retry_after_us: refusal.retry_after_us.unwrap_or(0),
                lane,
            }),
            policy,
            free: Some(standing.free),
            holders: standing.holders,
        }
    }
}

pub(super) fn expired() -> Incoming {
    Incoming::Refused {
        code: "session_expired".to_owned(),
        detail: String::new(),
    }
}

/// What the lease policy reads of a report.
pub(super) fn level(report: &message::Report) -> Level {
    Level {
        generation: report.generation,
        last: report.is_final,
        granted_seen: report.granted_seen,
        spent_total: report.spent_total,
        returned_total: report.returned_total,
        left: report.left,
        held: report.held,
        want: report.want,
        waiting: report.waiting.min(report.want),
        waiting_head: report.waiting_head,
        wait_us: report.wait_us,
        lanes: report
            .lanes
            .iter()
            .map(|lane| LaneLevel {
                lane: lane.lane,
                waiting: lane.waiting,
                head: lane.head,
                wait_us: lane.wait_us,
            })
            .collect(),
        peak: report.peak,
        demand_milli: report.demand_milli,
    }
}

/// What the ledger reads of it.
pub(super) fn totals(key: &Key, report: &message::Report) -> Report {
    Report {
        key: key.clone(),
        generation: report.generation,
        last: report.is_final,
        spent_total: report.spent_total,
        returned_total: report.returned_total,
        held: report.held,
        ages: report
            .spent_ages
            .iter()
            .map(|age| SpentAge {
                units: age.units,
                age_us: age.age_us,
            })
            .collect(),
        overrun_total: 0,
    }
}

/// A policy as clients are told it.
fn told_policy(policy: &Policy) -> message::Policy {
    message::Policy {
        limit: policy.kind.limit(),
        timescale_us: policy.timescale_us(),
        max_wait_us: policy.max_wait_us,
        failure: match policy.failure_mode {
            FailureMode::Closed => leasehold_spend::FailureMode::Closed,
            FailureMode::Open => leasehold_spend::FailureMode::Open,
            FailureMode::Emergency { units } => leasehold_spend::FailureMode::Emergency {
                units: units.unwrap_or(0),
            },
        },
        window_us: policy.kind.own_timescale_us(),
        shadow: policy.shadow,
        kind: BudgetKind::from_text(policy.kind.as_str()),
        cooldown_us: policy.cooldown_us,
        slice_factor_milli: policy.slice_factor_milli,
        lanes: policy
            .lanes
            .iter()
            .map(|lane| LaneRule {
                name: lane.name.clone(),
                max_wait_ns: lane
                    .max_wait_us
                    .unwrap_or(policy.max_wait_us)
                    .saturating_mul(1_000),
            })
            .collect(),
        ..message::Policy::default()
    }
}
