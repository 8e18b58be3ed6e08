//! What came of a run, as one JSON object and as text. Knows no checker.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf};

use leasehold_checkers::Healed;
use serde_json::{Value, json};

use super::{Plan, run::Injected};

/// Something that must not be.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) invariant: &'static str,
    /// The key, the object or the node.
    pub(super) subject: String,
    /// When, if that is known.
    pub(super) at_ns: u64,
    pub(super) detail: String,
}

/// From healing to the next admission, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outages {
    median: u64,
    worst: u64,
    count: usize,
}

impl Outages {
    pub(super) fn of(gaps_ns: &[u64]) -> Self {
        let mut gaps: Vec<u64> = gaps_ns.iter().map(|ns| ns / 1_000_000).collect();
        gaps.sort_unstable();
        Self {
            median: gaps.get(gaps.len() / 2).copied().unwrap_or(0),
            worst: gaps.last().copied().unwrap_or(0),
            count: gaps.len(),
        }
    }

    fn json(&self) -> Value {
        json!({ "median": self.median, "worst": self.worst, "count": self.count })
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    seed: u64,
    minutes: f64,
    nodes: u64,
    gateways: u64,
    began_ns: u64,
    injected: Injected,
    pub(super) namespaces: bool,
    pub(super) admitted: u64,
    pub(super) over_admitted: u64,
    pub(super) lost_acks: u64,
    pub(super) digest_mismatches: u64,
    pub(super) conservation_violations: u64,
    pub(super) not_linearizable: u64,
    pub(super) units_lost: u64,
    pub(super) stuck_waiters: u64,
    pub(super) grant_outage_ms: Outages,
    /// The longest time without an admission in each round, faults included.
    pub(super) probe_pause_ms: Outages,
    /// By checker: how much it had to judge.
    pub(super) checked: BTreeMap<&'static str, u64>,
    pub(super) violations: Vec<Violation>,
    /// What could not be judged.
    pub(super) undecided: Vec<String>,
    /// Where the files are, if they are kept.
    pub folder: Option<PathBuf>,
}

impl Report {
    pub(super) fn new(plan: &Plan, injected: Injected, minutes: f64, began_ns: u64) -> Self {
        Self {
            seed: plan.seed,
            minutes,
            nodes: plan.nodes,
            gateways: plan.gateways,
            began_ns,
            injected,
            namespaces: false,
            admitted: 0,
            over_admitted: 0,
            lost_acks: 0,
            digest_mismatches: 0,
            conservation_violations: 0,
            not_linearizable: 0,
            units_lost: 0,
            stuck_waiters: 0,
            grant_outage_ms: Outages::default(),
            probe_pause_ms: Outages::default(),
            checked: BTreeMap::new(),
            violations: Vec::new(),
            undecided: Vec::new(),
            folder: None,
        }
    }

    /// Whether everything held, and everything could be judged.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.violations.is_empty() && self.undecided.is_empty()
    }

    /// Adds to each violation which faults were before it.
    pub(super) fn blame(&mut self, healed: &[Healed]) {
        for violation in &mut self.violations {
            let before = healed
                .iter()
                .find(|healing| healing.at_ns > violation.at_ns && violation.at_ns > 0);
            if let Some(before) = before {
                let _ = write!(violation.detail, " (during or before {})", before.faults);
            }
        }
    }

    /// One JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut kinds: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, count) in &self.injected.done {
            kinds.insert(name, json!({ "injected": count }));
        }
        for (name, count) in &self.injected.missed {
            let kind = kinds
                .entry(name)
                .or_insert_with(|| json!({ "injected": 0 }));
            kind["not_possible_then"] = json!(count);
        }
        for (name, reason) in &self.injected.skipped {
            kinds.insert(name, json!({ "injected": 0, "skipped": reason }));
        }
        let wrong: Vec<String> = self
            .violations
            .iter()
            .map(|found| self.line(found))
            .collect();
        json!({
            "seed": self.seed,
            "minutes": (self.minutes * 100.0).round() / 100.0,
            "nodes": self.nodes,
            "gateways": self.gateways,
            "network_namespaces": self.namespaces,
            "over_admitted": self.over_admitted,
            "lost_acks": self.lost_acks,
            "digest_mismatches": self.digest_mismatches,
            "conservation_violations": self.conservation_violations,
            "not_linearizable": self.not_linearizable,
            "units_lost": self.units_lost,
            "stuck_waiters": self.stuck_waiters,
            "admitted": self.admitted,
            "checked": self.checked,
            "faults_injected": self.injected.done.values().sum::<u64>(),
            "faults": kinds,
            "grant_outage_ms": self.grant_outage_ms.json(),
            "probe_pause_ms": self.probe_pause_ms.json(),
            "violations": wrong,
            "undecided": self.undecided,
        })
    }

    fn line(&self, violation: &Violation) -> String {
        let when = match violation.at_ns.checked_sub(self.began_ns) {
            Some(ns) if violation.at_ns > 0 => format!(" at {} ms", ns / 1_000_000),
            _ => String::new(),
        };
        format!(
            "{}: {}{when}: {}",
            violation.invariant, violation.subject, violation.detail
        )
    }

    /// What people want to know.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "seed {}: {:.1} minutes, {} faults of {} kinds, {} admissions checked\n",
            self.seed,
            self.minutes,
            self.injected.done.values().sum::<u64>(),
            self.injected.done.len(),
            self.admitted
        );
        for (name, count) in &self.injected.done {
            let _ = writeln!(text, "  {count:4} × {name}");
        }
        for (name, reason) in &self.injected.skipped {
            let _ = writeln!(text, "  skipped {name}: {reason}");
        }
        let _ = writeln!(
            text,
            "grants resumed {} ms after healing at the median, {} ms at worst, of {}; the longest \
             pause, faults included, was {} ms",
            self.grant_outage_ms.median,
            self.grant_outage_ms.worst,
            self.grant_outage_ms.count,
            self.probe_pause_ms.worst
        );
        for found in &self.violations {
            let _ = writeln!(text, "VIOLATED {}", self.line(found));
        }
        for what in &self.undecided {
            let _ = writeln!(text, "UNDECIDED {what}");
        }
        if let Some(folder) = &self.folder {
            let _ = writeln!(text, "files are in {}", folder.display());
        }
        text.push_str(if self.is_fine() { "KEPT" } else { "BROKEN" });
        text
    }
}
