//! The one place between the wire and the core's messages. Decides nothing.

use std::sync::Arc;

use leasehold_proto::v1;
use leasehold_spend::{
    BudgetKind, Code, FailureMode, LaneRule,
    message::{
        Incoming, KeyGrant, LaneWaiting, LeaseState, OpenOut, Opened, Outgoing, Policy, Refusal,
        Report, SessionId, SettleOut, SyncOut,
    },
};

/// What a message lacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the coordinator sent a message without a valid {0}")]
pub(crate) struct BadMessage(&'static str);

/// Who this client is.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) holder: String,
    pub(crate) instance: [u8; 16],
}

pub(crate) fn open(identity: &Identity, open: &OpenOut) -> v1::ClientMessage {
    message(v1::client_message::Kind::Open(v1::Open {
        holder: identity.holder.clone(),
        instance: identity.instance.to_vec(),
        resume: open
            .resume
            .map_or_else(Vec::new, |session| session.0.to_vec()),
    }))
}

/// None: there is nothing to send.
pub(crate) fn outgoing(out: Outgoing) -> Option<v1::ClientMessage> {
    let kind = match out {
        Outgoing::Sync(SyncOut { seq, reports, .. }) => {
            let reports = reports.into_iter().map(report).collect();
            v1::client_message::Kind::Sync(v1::Sync { seq, reports })
        }
        Outgoing::Close(SyncOut { seq, reports, .. }) => {
            let reports = reports.into_iter().map(report).collect();
            v1::client_message::Kind::Close(v1::Close { seq, reports })
        }
        Outgoing::Settle(SettleOut { session, leases }) => {
            let lease = |(key, generation, spent_total): (Arc<str>, u64, u64)| v1::SettledLease {
                key: key.to_string(),
                generation,
                spent_total,
            };
            let leases = leases.into_iter().map(lease).collect();
            v1::client_message::Kind::Settle(v1::Settle {
                session: session.0.to_vec(),
                leases,
            })
        }
        Outgoing::Leave => return None,
    };
    Some(message(kind))
}

fn message(kind: v1::client_message::Kind) -> v1::ClientMessage {
    v1::ClientMessage { kind: Some(kind) }
}

fn report(report: Report) -> v1::KeyReport {
    let age = |age: leasehold_spend::message::SpentAge| v1::SpentAge {
        units: age.units,
        age_us: age.age_us,
    };
    let lane = |lane: LaneWaiting| v1::LaneWaiting {
        lane: lane.lane,
        waiting: lane.waiting,
        head: lane.head,
        wait_us: lane.wait_us,
    };
    v1::KeyReport {
        key_id: report.key_id,
        key: report.key.map_or_else(String::new, |key| key.to_string()),
        generation: report.generation,
        r#final: report.is_final,
        granted_seen: report.granted_seen,
        spent_total: report.spent_total,
        spent_ages: report.spent_ages.into_iter().map(age).collect(),
        returned_total: report.returned_total,
        held: report.held,
        want: report.want,
        waiting: report.waiting,
        wait_us: report.wait_us,
        peak: report.peak,
        demand_milli: report.demand_milli,
        refused: report.refused,
        degraded: report.degraded,
        left: report.left,
        waiting_head: report.waiting_head,
        overrun_total: report.overrun_total,
        lanes: report.lanes.into_iter().map(lane).collect(),
        shadowed: report.shadowed,
    }
}

pub(crate) fn incoming(message: v1::CoordinatorMessage) -> Result<Incoming, BadMessage> {
    use v1::coordinator_message::Kind;
    let grants = |grants: Vec<v1::KeyGrant>| grants.into_iter().map(grant).collect();
    Ok(match message.kind.ok_or(BadMessage("kind"))? {
        Kind::Opened(opened) => Incoming::Opened(Opened {
            session: session(&opened.session)?,
            validity_us: opened.validity_us,
            sync_interval_us: opened.sync_interval_us,
            session_ttl_us: opened.session_ttl_us,
            reports_per_sync_max: opened.reports_per_sync_max,
            keys_per_session_max: opened.keys_per_session_max,
            leases: opened.leases.into_iter().map(lease).collect(),
        }),
        Kind::Synced(synced) => Incoming::Synced {
            seq: synced.seq,
            renewed: synced.renewed,
            grants: grants(synced.grants),
        },
        Kind::Granted(granted) => Incoming::Granted(grants(granted.grants)),
        Kind::Recall(recall) => Incoming::Recall {
            key_id: recall.key_id,
            generation: recall.generation,
            returned_total_target: recall.returned_total_target,
            granted_total: recall.granted_total,
            whole: recall.whole,
        },
        Kind::Moved(moved) => Incoming::Moved {
            leader: Some(moved.leader).filter(|leader| !leader.is_empty()),
        },
        Kind::Settled(settled) => Incoming::Settled(session(&settled.session)?),
        Kind::Closed(v1::Closed {}) => Incoming::Closed,
        Kind::Refused(refused) => Incoming::Refused {
            code: refused.code,
            detail: refused.detail,
        },
    })
}

fn session(bytes: &[u8]) -> Result<SessionId, BadMessage> {
    bytes
        .try_into()
        .map(SessionId)
        .map_err(|_| BadMessage("session"))
}

fn lease(lease: v1::LeaseState) -> LeaseState {
    LeaseState {
        key: lease.key.into(),
        generation: lease.generation,
        granted_total: lease.granted_total,
        spent_total: lease.spent_total,
        returned_total: lease.returned_total,
    }
}

fn grant(grant: v1::KeyGrant) -> KeyGrant {
    KeyGrant {
        ask_anew: grant.ask_anew,
        key_id: grant.key_id,
        generation: grant.generation,
        granted_total: grant.granted_total,
        basis_seq: grant.basis_seq,
        valid_for_us: grant.valid_for_us,
        refusal: grant.refusal.map(|refusal| Refusal {
            code: Code::from_text(&refusal.code),
            retry_after_us: refusal.retry_after_us,
            lane: refusal.lane,
        }),
        free: Some(grant.free),
        holders: u64::from(grant.holders),
        policy: grant.policy.map(|policy| Policy {
            kind: BudgetKind::from_text(&policy.kind),
            hold_max_us: policy.hold_max_us,
            release_every_ns: policy.release_every_ns,
            cooldown_us: policy.cooldown_us,
            lanes: policy
                .lanes
                .into_iter()
                .map(|lane| LaneRule {
                    name: lane.name,
                    max_wait_ns: lane.max_wait_us.saturating_mul(1000),
                })
                .collect(),
            limit: policy.limit,
            timescale_us: match policy.timescale_us {
                0 => policy.window_us,
                timescale_us => timescale_us,
            },
            max_wait_us: policy.max_wait_us,
            failure: match v1::FailureMode::try_from(policy.failure_mode) {
                Ok(v1::FailureMode::Open) => FailureMode::Open,
                Ok(v1::FailureMode::Emergency) => FailureMode::Emergency {
                    units: policy.emergency_units,
                },
                // Also one from the future.
                Ok(v1::FailureMode::Closed) | Err(_) => FailureMode::Closed,
            },
            window_us: policy.window_us,
            public_name: policy.public_name,
            shadow: policy.shadow,
            slice_factor_milli: policy.slice_factor_milli,
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_coordinator_that_states_no_timescale_means_the_window() {
        let timescale_us = |stated| {
            let policy = v1::PolicyInfo {
                window_us: 7_000_000,
                timescale_us: stated,
                ..v1::PolicyInfo::default()
            };
            let told = grant(v1::KeyGrant {
                policy: Some(policy),
                ..v1::KeyGrant::default()
            });
            told.policy.unwrap().timescale_us
        };
        assert_eq!(timescale_us(0), 7_000_000);
        assert_eq!(timescale_us(60_000), 60_000);
    }
}
