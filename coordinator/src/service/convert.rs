//! The one place between the wire and the domain. Knows both, and decides
//! nothing but whether a message makes sense.

use leasehold_allotter::{LaneLevel, Level};
use leasehold_key::Key;
use leasehold_ledger::{
    entry::{Report, SessionId, SettledLease, SpentAge},
    outcome::{LeaseView, Refusal},
    policy::{FailureMode, Kind, Policy, UNITS_MAX},
};
use leasehold_proto::v1;

use super::key_ids::{KeyIdError, KeyIds};
use crate::sequencer::{
    event::{Answer, Event, StreamRefusal},
    item::{KeyReport, Open, SyncMessage},
};

/// Key reports in one sync.
pub(crate) const REPORTS_PER_SYNC_MAX: usize = 1_024;
/// Ages in one key report.
const AGES_PER_REPORT_MAX: usize = 512;
/// Lanes in one key report.
const LANES_PER_REPORT_MAX: usize = 64;
/// Leases in one settle.
const LEASES_PER_SETTLE_MAX: usize = 65_536;
/// The longest holder name in bytes.
const HOLDER_BYTES_MAX: usize = 128;
/// The longest wait that is taken note of: an hour.
const WAIT_US_MAX: u64 = 3_600_000_000;

/// What is wrong with a message: the field and what it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadMessage(pub(crate) String);

/// Reads an open; `identity` is what the transport authenticated.
pub(crate) fn open(open: v1::Open, identity: String) -> Result<Open, BadMessage> {
    if open.holder.is_empty() || open.holder.len() > HOLDER_BYTES_MAX {
        return Err(BadMessage(format!(
            "open.holder ({} bytes) must have 1 to {HOLDER_BYTES_MAX} bytes",
            open.holder.len()
        )));
    }
    if open.holder.chars().any(char::is_control) {
        return Err(BadMessage(
            "open.holder must have no control characters".to_owned(),
        ));
    }
    let instance: [u8; 16] = open.instance.as_slice().try_into().map_err(|_| {
        BadMessage(format!(
            "open.instance ({} bytes) must have 16 bytes",
            open.instance.len()
        ))
    })?;
    let resume = match open.resume.len() {
        0 => None,
        _ => Some(session_id("open.resume", &open.resume)?),
    };
    Ok(Open {
        holder: open.holder,
        identity,
        instance,
        resume,
    })
}

/// Reads a sync.
pub(crate) fn sync(sync: v1::Sync, key_ids: &mut KeyIds) -> Result<SyncMessage, BadMessage> {
    sync_message("sync", sync.seq, false, sync.reports, key_ids)
}

/// Reads a close.
pub(crate) fn close(close: v1::Close, key_ids: &mut KeyIds) -> Result<SyncMessage, BadMessage> {
    sync_message("close", close.seq, true, close.reports, key_ids)
}

fn sync_message(
    name: &str,
    seq: u64,
    close: bool,
    reports: Vec<v1::KeyReport>,
    key_ids: &mut KeyIds,
) -> Result<SyncMessage, BadMessage> {
    if seq == 0 {
        return Err(BadMessage(format!("{name}.seq (0) must be at least 1")));
    }
    // A close too: a report of a few bytes may stand for a long key, and an entry
    // states every key in full. Who has more leases says so in syncs before it.
    if reports.len() > REPORTS_PER_SYNC_MAX {
        return Err(BadMessage(format!(
            "{name}.reports ({}) must be at most {REPORTS_PER_SYNC_MAX}",
            reports.len()
        )));
    }
    let reports = reports
        .into_iter()
        .enumerate()
        .map(|(place, report)| {
            key_report(report, key_ids)
                .map_err(|BadMessage(what)| BadMessage(format!("{name}.reports[{place}].{what}")))
        })
        .collect::<Result<_, _>>()?;
    Ok(SyncMessage {
        seq,
        close,
        reports,
    })
}

fn key_report(report: v1::KeyReport, key_ids: &mut KeyIds) -> Result<KeyReport, BadMessage> {
    let key = match report.key.as_str() {
        "" => None,
        text => Some(key(text)?),
    };
    // Levels above what any limit can be mean no more than that limit.
    let want = report.want.min(UNITS_MAX);
    let waiting = report.waiting.min(want);
    let key = key_ids
        .resolve(report.key_id, key, report.r#final && want == 0)
        .map_err(|error| {
            BadMessage(match error {
                KeyIdError::Unknown => format!(
                    "key must be stated the first time that a stream uses key_id {}",
                    report.key_id
                ),
                KeyIdError::Taken(key) => {
                    format!("key_id ({}) stands for {key} already", report.key_id)
                }
                KeyIdError::TooMany(max) => {
                    format!(
                        "key_id ({}): a stream has at most {max} keys",
                        report.key_id
                    )
                }
            })
        })?;
    if report.r#final && report.held > 0 {
        return Err(BadMessage(format!(
            "held ({}) must be 0 in a final report",
            report.held
        )));
    }
    if report.spent_ages.len() > AGES_PER_REPORT_MAX {
        return Err(BadMessage(format!(
            "spent_ages ({}) must be at most {AGES_PER_REPORT_MAX}",
            report.spent_ages.len()
        )));
    }
    if report
        .spent_ages
        .iter()
        .try_fold(0_u64, |sum, age| sum.checked_add(age.units))
        .is_none()
    {
        return Err(BadMessage(
            "spent_ages: the units must not add up to more than 2^64 - 1".to_owned(),
        ));
    }
    let lanes = lanes(&report)?;
    let level = Level {
        generation: report.generation,
        last: report.r#final,
        granted_seen: report.granted_seen,
        spent_total: report.spent_total,
        returned_total: report.returned_total,
        left: report.left.min(UNITS_MAX),
        held: report.held.min(UNITS_MAX),
        want,
        waiting,
        waiting_head: report.waiting_head.min(UNITS_MAX),
        wait_us: report.wait_us.min(WAIT_US_MAX),
        lanes,
        peak: report.peak.min(UNITS_MAX),
        demand_milli: report.demand_milli,
    };
    // Without a lease there is nothing for the books.
    let totals = (report.generation != 0).then(|| Report {
        key: key.clone(),
        generation: report.generation,
        last: report.r#final,
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
        overrun_total: report.overrun_total,
    });
    Ok(KeyReport {
        key_id: report.key_id,
        key,
        report: totals,
        level,
        refused: report.refused,
        degraded: report.degraded,
        shadowed: report.shadowed,
    })
}

/// Reads what waits by lane.
fn lanes(report: &v1::KeyReport) -> Result<Vec<LaneLevel>, BadMessage> {
    if report.lanes.is_empty() {
        return Ok(Vec::new());
    }
    if report.lanes.len() > LANES_PER_REPORT_MAX {
        return Err(BadMessage(format!(
            "lanes ({}) must be at most {LANES_PER_REPORT_MAX}",
            report.lanes.len()
        )));
    }
    if !report.lanes.is_sorted_by(|one, next| one.lane < next.lane) {
        return Err(BadMessage(
            "lanes must be in order, the highest first, and each no more than once".to_owned(),
        ));
    }
    let waiting = report
        .lanes
        .iter()
        .fold(0_u64, |sum, lane| sum.saturating_add(lane.waiting));
    if waiting != report.waiting {
        return Err(BadMessage(format!(
            "lanes: what waits in them ({waiting}) must add up to waiting ({})",
            report.waiting
        )));
    }
    let level = |lane: &v1::LaneWaiting| LaneLevel {
        lane: lane.lane,
        waiting: lane.waiting.min(UNITS_MAX),
        head: lane.head.min(UNITS_MAX),
        wait_us: lane.wait_us.min(WAIT_US_MAX),
    };
    Ok(report.lanes.iter().map(level).collect())
}

/// Reads a settle.
pub(crate) fn settle(settle: v1::Settle) -> Result<(SessionId, Vec<SettledLease>), BadMessage> {
    let session = session_id("settle.session", &settle.session)?;
    if settle.leases.len() > LEASES_PER_SETTLE_MAX {
        return Err(BadMessage(format!(
            "settle.leases ({}) must be at most {LEASES_PER_SETTLE_MAX}",
            settle.leases.len()
        )));
    }
    let leases = settle
        .leases
        .into_iter()
        .enumerate()
        .map(|(place, lease)| {
            let key = key(&lease.key)
                .map_err(|BadMessage(what)| BadMessage(format!("settle.leases[{place}].{what}")))?;
            Ok(SettledLease {
                key,
                generation: lease.generation,
                spent_total: lease.spent_total,
            })
        })
        .collect::<Result<_, BadMessage>>()?;
    Ok((session, leases))
}

fn key(text: &str) -> Result<Key, BadMessage> {
    Key::parse(text).map_err(|error| BadMessage(format!("key: {error}")))
}

fn session_id(field: &str, bytes: &[u8]) -> Result<SessionId, BadMessage> {
    let bytes: [u8; 16] = bytes.try_into().map_err(|_| {
        BadMessage(format!(
            "{field} ({} bytes) must have 16 bytes",
            bytes.len()
        ))
    })?;
    Ok(SessionId(u128::from_be_bytes(bytes)))
}

/// Writes what a stream is told.
pub(crate) fn event(event: Event) -> v1::CoordinatorMessage {
    use v1::coordinator_message::Kind;
    let kind = match event {
        Event::Opened(opened) => Kind::Opened(v1::Opened {
            session: session_bytes(opened.session),
            validity_us: opened.validity_us,
            sync_interval_us: opened.sync_interval_us,
            leases: opened.leases.into_iter().map(lease_state).collect(),
            reports_per_sync_max: u32::try_from(REPORTS_PER_SYNC_MAX).unwrap_or(u32::MAX),
            keys_per_session_max: opened.keys_per_session_max,
            session_ttl_us: opened.ttl_us,
        }),
        Event::Synced {
            seq,
            renewed,
            answers,
        } => Kind::Synced(v1::Synced {
            seq,
            renewed,
            grants: answers.into_iter().map(key_grant).collect(),
        }),
        Event::Granted(answers) => Kind::Granted(v1::Granted {
            grants: answers.into_iter().map(key_grant).collect(),
        }),
        Event::Recall {
            key_id,
            generation,
            returned_total_target,
            granted_total,
            whole,
        } => Kind::Recall(v1::Recall {
            key_id,
            generation,
            returned_total_target,
            granted_total,
            whole,
        }),
        Event::Moved(leader) => Kind::Moved(v1::Moved { leader }),
        Event::Settled(session) => Kind::Settled(v1::Settled {
            session: session_bytes(session),
        }),
        Event::Closed => Kind::Closed(v1::Closed {}),
        Event::Refused(StreamRefusal { code, detail }) => Kind::Refused(v1::Refused {
            code: code.as_str().to_owned(),
            detail,
        }),
    };
    v1::CoordinatorMessage { kind: Some(kind) }
}

fn key_grant(answer: Answer) -> v1::KeyGrant {
    v1::KeyGrant {
        key_id: answer.key_id,
        generation: answer.generation,
        granted_total: answer.granted_total,
        basis_seq: answer.basis_seq,
        valid_for_us: answer.valid_us,
        refusal: answer
            .refusal
            .map(|told| refusal(told, answer.refused_lane)),
        policy: answer.policy.as_deref().map(policy_info),
        free: answer.free,
        ask_anew: answer.is_anew,
        holders: u32::try_from(answer.holders).unwrap_or(u32::MAX),
    }
}

fn refusal(refusal: Refusal, lane: u32) -> v1::Refusal {
    v1::Refusal {
        code: refusal.code.as_str().to_owned(),
        // 0 says never, so "at once" is the next microsecond.
        retry_after_us: refusal.retry_after_us.map_or(0, |us| us.max(1)),
        lane,
    }
}

fn policy_info(policy: &Policy) -> v1::PolicyInfo {
    v1::PolicyInfo {
        kind: policy.kind.as_str().to_owned(),
        limit: policy.kind.largest_cost(),
        window_us: policy.kind.own_timescale_us(),
        timescale_us: policy.timescale_us(),
        max_wait_us: policy.max_wait_us,
        failure_mode: match policy.failure_mode {
            FailureMode::Closed => v1::FailureMode::Closed,
            FailureMode::Open => v1::FailureMode::Open,
            FailureMode::Emergency { .. } => v1::FailureMode::Emergency,
        }
        .into(),
        slice_factor_milli: policy.slice_factor_milli,
        public_name: policy.public_name.clone(),
        shadow: policy.shadow,
        lanes: policy
            .lanes
            .iter()
            .map(|lane| v1::Lane {
                name: lane.name.clone(),
                max_wait_us: lane.max_wait_us.unwrap_or(policy.max_wait_us),
            })
            .collect(),
        emergency_units: match policy.failure_mode {
            FailureMode::Emergency { units } => units.unwrap_or(0),
            FailureMode::Closed | FailureMode::Open => 0,
        },
        hold_max_us: policy.hold_max_us,
        release_every_ns: match policy.kind {
            Kind::Paced {
                refill,
                refill_period_us,
                ..
            } => release_every_ns(refill, refill_period_us),
            _ => 0,
        },
        cooldown_us: policy.cooldown_us,
    }
}

/// The time between two units at the refill's rate, rounded up, and never 0.
fn release_every_ns(refill: u64, refill_period_us: u64) -> u64 {
    let period_ns = u128::from(refill_period_us) * 1_000;
    let every_ns = period_ns.div_ceil(u128::from(refill.max(1))).max(1);
    u64::try_from(every_ns).unwrap_or(u64::MAX)
}

fn lease_state(lease: LeaseView) -> v1::LeaseState {
    v1::LeaseState {
        key: lease.key.as_str().to_owned(),
        generation: lease.generation,
        granted_total: lease.granted_total,
        spent_total: lease.spent_total,
        returned_total: lease.returned_total,
    }
}

fn session_bytes(session: SessionId) -> Vec<u8> {
    session.0.to_be_bytes().to_vec()
}
