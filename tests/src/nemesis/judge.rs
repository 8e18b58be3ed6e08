//! From what was written down to what is wrong. Decides nothing itself: each
//! question is a checker's.

use std::{collections::BTreeMap, io, time::Duration};

use leasehold_checkers::{
    AdmissionLog, Healed, History, Quiet, Verdict, books_agree, conservation, digests_agree,
    grants_resume, judge_edited, judge_without_outages, linearizability, lost_acks, lost_units,
    patience,
};

use super::{
    Plan,
    keys::{KeyPlan, LASTING, PROBE, PURSE, Rule},
    quotas::QUOTAS,
    report::{Outages, Report, Violation},
    run::{Injected, RESUMES_WITHIN},
    world::World,
};
use crate::{Judgement, clock_ns};

/// What the end of a run leaves, beside the files.
#[derive(Debug)]
pub(super) struct Evidence {
    /// When each round's first fault was about to be injected.
    pub(super) begun_ns: Vec<u64>,
    pub(super) healed: Vec<Healed>,
    /// Since then nobody spends.
    pub(super) quiet_ns: u64,
    /// The books were read after everything that lasts was over.
    pub(super) settled: bool,
    /// What is counted or outstanding of the key that nothing leaves.
    pub(super) lasting_counted: Option<u64>,
}

/// A request may take so much longer than its patience: machines are busy.
const SLACK: Duration = Duration::from_secs(5);
const MAX_DRIFT_PPM: u32 = 1_000;

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn judge(
    plan: &Plan,
    world: &World,
    keys: &[KeyPlan],
    injected: Injected,
    evidence: Evidence,
    minutes: f64,
) -> io::Result<Report> {
    let (log, history) = read(world)?;
    let began_ns = history.edits.iter().map(|edit| edit.call_ns).min();
    let mut report = Report::new(plan, injected, minutes, began_ns.unwrap_or_else(clock_ns));
    report.namespaces = world.ground.without_namespaces().is_none();

    for key in keys {
        let judged = exactness(key, &log, &history);
        report.exactness(&key.name, &key.promise, judged);
    }
    let mut books = Verdict::default();
    for plan in &QUOTAS {
        let (judged, verdict) = plan.judge(&log, &history);
        report.exactness(plan.name, &plan.quota, judged);
        books.merge(verdict);
    }
    report.take("quota_books", books);

    let mut lost = lost_acks(&history.operations, evidence.quiet_ns);
    let lasting: u64 = log
        .of(LASTING)
        .iter()
        .map(|admission| admission.units)
        .sum();
    if let Some(counted) = evidence.lasting_counted {
        lost.checked += 1;
        if counted < lasting {
            report.lost_acks += lasting - counted;
            report.complain(
                "lost_acks",
                LASTING,
                format!("{lasting} units were admitted, and {counted} are in the books"),
            );
        }
    }
    if !evidence.settled {
        // Cut short: nobody read anything back.
        lost.undecided.clear();
    }
    report.lost_acks += report.take("lost_acks", lost);
    let mut agreement = digests_agree(&history.digests);
    agreement.merge(books_agree(&history.accounts));
    report.digest_mismatches = report.take("digest_mismatches", agreement);
    report.conservation_violations =
        report.take("conservation_violations", conservation(&history.accounts));
    report.not_linearizable = report.take("not_linearizable", linearizability(&history.operations));
    if evidence.settled {
        let quiet = quiet(world, keys, &history, evidence.quiet_ns);
        report.units_lost = report.take("units_lost", lost_units(&quiet, &history.accounts, &log));
    }
    let stuck = patience(&history.requests, &history.pauses, nanos(SLACK));
    report.stuck_waiters = report.take("stuck_waiters", stuck);

    let resumed = grants_resume(
        PROBE,
        log.of(PROBE),
        &evidence.healed,
        nanos(RESUMES_WITHIN),
    );
    report.grant_outage_ms = Outages::of(&resumed.gaps_ns);
    report.probe_pause_ms = Outages::of(&pauses(&log, &evidence));
    report.take("liveness", resumed.verdict);
    for finding in &world.findings {
        report.complain("findings", "the run", finding.clone());
    }
    report.blame(&evidence.healed);
    Ok(report)
}

/// Of each round, faults included: the longest time without an admission of the probe.
fn pauses(log: &AdmissionLog, evidence: &Evidence) -> Vec<u64> {
    let mut returns: Vec<u64> = log.of(PROBE).iter().map(|a| a.return_ns).collect();
    returns.sort_unstable();
    let ends = evidence.begun_ns.iter().skip(1).chain([&evidence.quiet_ns]);
    let rounds = evidence.begun_ns.iter().zip(ends);
    rounds
        .map(|(from_ns, to_ns)| {
            let first = returns.partition_point(|at| at < from_ns);
            let inside = returns[first..].iter().take_while(|at| *at < to_ns);
            let marks: Vec<u64> = [*from_ns]
                .into_iter()
                .chain(inside.copied())
                .chain([*to_ns])
                .collect();
            marks
                .windows(2)
                .map(|pair| pair[1] - pair[0])
                .max()
                .unwrap_or(0)
        })
        .collect()
}

fn read(world: &World) -> io::Result<(AdmissionLog, History)> {
    let mut log = AdmissionLog::default();
    let mut history = History::default();
    for left in world.fleet.logs() {
        // One that was killed at once has left nothing.
        if left.admissions.exists() {
            log.read(&left.admissions).map_err(io::Error::other)?;
        }
        if left.history.exists() {
            history.read(&left.history).map_err(io::Error::other)?;
        }
    }
    for item in std::fs::read_dir(&world.folder)? {
        let path = item?.path();
        if path.file_stem().is_some_and(|stem| stem == "operator") {
            log.read(&path).map_err(io::Error::other)?;
        }
    }
    history
        .read(&world.folder.join("nemesis.history"))
        .map_err(io::Error::other)?;
    Ok((log, history))
}

/// A key's promise; an edited one by the largest limit and debt in force, a bucket
/// also by a clock that stands still while nobody runs.
fn exactness(key: &KeyPlan, log: &AdmissionLog, history: &History) -> Judgement {
    let admissions = log.of(&key.name);
    let of_key = |name: &String| *name == key.name;
    if key.rule == Rule::Edited {
        let edits: Vec<_> = history
            .edits
            .iter()
            .filter(|e| of_key(&e.key))
            .cloned()
            .collect();
        let samples: Vec<_> = history
            .accounts
            .iter()
            .filter(|sample| of_key(&sample.key))
            .cloned()
            .collect();
        let judged = judge_edited(admissions, &edits, &samples);
        // Whatever was in force when, no more than the largest of all rules.
        let largest = key.largest().judge(admissions);
        return if largest.over_admitted > judged.over_admitted {
            largest
        } else {
            judged
        };
    }
    let judged = key.promise.judge(admissions);
    match judge_without_outages(&key.promise, admissions, &history.outages) {
        Some(led) if led.over_admitted > judged.over_admitted => led,
        _ => judged,
    }
}

/// Keys that have all their units back by now, each with the rule that it has.
fn quiet(world: &World, keys: &[KeyPlan], history: &History, from_ns: u64) -> Vec<Quiet> {
    let ttl = Duration::from_millis(world.settings.session_ttl_ms);
    let mut rules: BTreeMap<&str, _> = BTreeMap::new();
    for key in keys {
        // Nothing leaves these two while a run lasts; an edit whose outcome nobody
        // knows leaves open which limit is to be reached.
        let stays = key.name == LASTING || key.name == PURSE;
        if !stays && key.rule == Rule::Fixed {
            rules.insert(&key.name, key.promise);
        }
    }
    let mentioned = |key: &str| history.accounts.iter().any(|sample| sample.key == key);
    rules
        .into_iter()
        .filter(|(key, _)| mentioned(key))
        .map(|(key, promise)| Quiet {
            key: key.to_owned(),
            promise,
            from_ns,
            settle_ns: nanos(ttl * 2 + Duration::from_secs(2)),
            max_drift_ppm: MAX_DRIFT_PPM,
        })
        .collect()
}

/// Findings of one checker, for the report.
impl Report {
    /// Takes what became of a key's promise.
    fn exactness(&mut self, key: &str, promise: &dyn std::fmt::Debug, judged: Judgement) {
        self.admitted += judged.admitted;
        self.over_admitted += judged.over_admitted;
        if judged.over_admitted > 0 {
            self.violations.push(Violation {
                invariant: "over_admitted",
                subject: key.to_owned(),
                at_ns: judged.worst_from_ns,
                detail: format!(
                    "{} units in the interval of {} ms that begins then, {} more than {promise:?} allows",
                    judged.worst_units,
                    judged.worst_to_ns.saturating_sub(judged.worst_from_ns) / 1_000_000,
                    judged.over_admitted,
                ),
            });
        }
        if judged.admitted == 0 {
            self.complain("starved", key, "nothing was ever admitted".to_owned());
        }
    }

    /// Takes a verdict's violations, and says how many there are.
    fn take(&mut self, invariant: &'static str, verdict: Verdict) -> u64 {
        self.checked.insert(invariant, verdict.checked);
        let count = verdict.violations.len();
        for found in verdict.violations {
            self.violations.push(Violation {
                invariant,
                subject: found.subject,
                at_ns: found.at_ns,
                detail: found.detail,
            });
        }
        for text in verdict.undecided {
            self.undecided.push(format!("{invariant}: {text}"));
        }
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    fn complain(&mut self, invariant: &'static str, subject: &str, detail: String) {
        self.violations.push(Violation {
            invariant,
            subject: subject.to_owned(),
            at_ns: 0,
            detail,
        });
    }
}
