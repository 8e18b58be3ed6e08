//! A scenario's results for people and for machines: the capacity plan. Knows no
//! run.

use super::{
    Design, Scenario,
    ranges::float,
    run::{BudgetFigures, Figures, Results},
};
use crate::{
    Messages, SECOND, Tally, Work,
    output::{Cell, Table},
    suite::Findings,
};

/// Messages per second that a coordinator of three nodes took, each about one key:
/// `cargo run --release -p leasehold-tests --bin bench`, "64 gateways x 1 keys a
/// message: key reports" (7,012/s; nodes and gateways on one machine with 2 cores;
/// kept in `tests/results/first-figures.jsonl`).
pub const COORDINATOR_MESSAGES_PER_S: u64 = 7_000;

/// With fewer, a share scatters by more than a point.
const REQUESTS_FEW: u64 = 2_000;

const COLUMNS: [(&str, &str); 20] = [
    ("design", "design"),
    ("budget", "budget"),
    ("requests", "requests"),
    ("wait_pct", "waits %"),
    ("bound_pct", "bound %"),
    ("wait_ms_p50", ""),
    ("wait_ms_p99", "p99 ms"),
    ("refused_pct", "refused %"),
    ("unavailable_pct", "unanswered %"),
    ("excess_pp", "excess pp"),
    ("over_admitted", "over-admitted"),
    ("messages_per_request", "msgs/request"),
    ("messages_per_s", "msgs/s"),
    ("keyed_up_per_s", ""),
    ("keyed_down_per_s", ""),
    ("regular_up_per_s", ""),
    ("regular_down_per_s", ""),
    ("entries_per_s", ""),
    ("reports_per_s", ""),
    ("keys_per_coordinator", ""),
];

impl Results {
    /// A row for each design (and each budget, if there are several), what they
    /// mean for a coordinator that takes so many messages per second, and whether
    /// every promise was kept.
    #[must_use]
    pub fn findings(&self, scenario: &Scenario, coordinator_messages_per_s: u64) -> Findings {
        let report = Report {
            scenario,
            results: self,
            seconds: float(scenario.until_us - scenario.from_us) / float(SECOND),
            coordinator: float(coordinator_messages_per_s),
        };
        report.findings()
    }
}

struct Report<'a> {
    scenario: &'a Scenario,
    results: &'a Results,
    /// How long requests were counted.
    seconds: f64,
    /// Messages per second that a coordinator takes.
    coordinator: f64,
}

impl Report<'_> {
    fn findings(&self) -> Findings {
        let mut table = Table::new("scenario", self.title(), &COLUMNS);
        let mut findings = Findings::default();
        for figures in &self.results.designs {
            self.rows(figures, &mut table);
            if figures.design == Design::Leasehold {
                for (budget, of_budget) in self.scenario.budgets.iter().zip(&figures.budgets) {
                    if of_budget.over_admitted > 0 {
                        findings.complaints.push(format!(
                            "{}: {} units were admitted beyond the promise, must be 0",
                            budget.name, of_budget.over_admitted
                        ));
                    }
                }
            }
        }
        for note in self.notes() {
            table.note(note);
        }
        findings.tables.push(table);
        findings
    }

    fn title(&self) -> String {
        let Scenario { setup, budgets, .. } = self.scenario;
        let keys = setup.policies.len();
        format!(
            "{} gateways, {} {} of {} {}, {} minutes after {} of warm-up, seed {}.",
            setup.gateways,
            keys,
            if keys == 1 { "key" } else { "keys" },
            budgets.len(),
            if budgets.len() == 1 {
                "budget"
            } else {
                "budgets"
            },
            short(self.seconds / 60.0),
            short(float(self.scenario.from_us) / float(60 * SECOND)),
            setup.seed
        )
    }

    fn rows(&self, figures: &Figures, table: &mut Table) {
        let budgets = &self.scenario.budgets;
        if budgets.len() > 1 {
            for (place, budget) in budgets.iter().enumerate() {
                let mut cells = self.shares(
                    figures.design,
                    &budget.name,
                    &figures.budgets[place],
                    &self.results.central[place],
                    self.results.bounds_pct[place],
                );
                cells.truncate(11);
                table.push(cells);
            }
        }
        let all = together(&figures.budgets);
        let mut central = Tally::default();
        for tally in &self.results.central {
            central.add(tally);
        }
        let name = match budgets.as_slice() {
            [only] => only.name.as_str(),
            _ => "all",
        };
        let mut cells = self.shares(figures.design, name, &all, &central, self.bound_pct());
        let Messages {
            keyed,
            regular,
            acknowledgements,
        } = figures.messages;
        let per_second = |count: u64| float(count) / self.seconds;
        cells.extend([
            Cell::Figure(float(keyed) / float(all.tally.requests.max(1)), 2),
            Cell::Figure(per_second(keyed + regular + acknowledgements), 1),
        ]);
        if let Some(work) = figures.work {
            for count in [
                work.keyed_up,
                work.keyed_down,
                work.regular_up,
                work.regular_down,
                work.entries,
                work.reports,
            ] {
                cells.push(Cell::Figure(per_second(count), 1));
            }
            cells.push(self.keys(&work).map_or(Cell::None, Cell::Count));
        }
        table.push(cells);
    }

    fn shares(
        &self,
        design: Design,
        budget: &str,
        figures: &BudgetFigures,
        central: &Tally,
        bound_pct: Option<f64>,
    ) -> Vec<Cell> {
        let BudgetFigures { tally, .. } = figures;
        let refused_pct = tally.percent(tally.refused);
        let wait_ms = |hundredths: usize, decimals| {
            percentile(&figures.waits_us, hundredths)
                .map_or(Cell::None, |us| Cell::Figure(float(us) / 1_000.0, decimals))
        };
        vec![
            Cell::text(design.name()),
            Cell::text(budget),
            Cell::Count(tally.requests),
            Cell::Figure(tally.percent(tally.waited), 2),
            bound_pct.map_or(Cell::None, |bound| Cell::Figure(bound, 2)),
            wait_ms(50, 1),
            wait_ms(99, 1),
            Cell::Figure(refused_pct, 2),
            Cell::Figure(tally.percent(figures.unavailable), 2),
            Cell::Figure(refused_pct - central.percent(central.refused), 2),
            Cell::Count(figures.over_admitted),
        ]
    }

    /// Of all budgets together, if each has one.
    fn bound_pct(&self) -> Option<f64> {
        let (mut sum, mut weight) = (0.0, 0.0);
        for (bound, central) in self.results.bounds_pct.iter().zip(&self.results.central) {
            sum += (*bound)? * float(central.requests);
            weight += float(central.requests);
        }
        (weight > 0.0).then(|| sum / weight)
    }

    /// How many keys like these a coordinator has room for; none: they send nothing.
    fn keys(&self, work: &Work) -> Option<u64> {
        let per_second = |count: u64| float(count) / self.seconds;
        // A gateway that is cut off, and a coordinator without a leader, say nothing.
        if !self.scenario.setup.faults.is_empty() {
            return None;
        }
        let room = (self.coordinator - per_second(work.regular_up)).max(0.0);
        // Sending a message costs about what taking one does.
        let a_key = per_second(work.keyed_up.max(work.keyed_down))
            / float(self.scenario.setup.policies.len() as u64);
        (a_key > 0.0).then(|| whole(room / a_key))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "waits: share of requests that waited for a message · bound: the fewest waits of any policy that admits \
             what an exact central log admits (none is claimed where routing moves or differs within a key, and where \
             requests cost more than one unit)"
                .to_owned(),
            "excess: refusals beyond an exact central log on the same requests, in percentage points · msgs/request: \
             without regular syncs and acknowledgements, which msgs/s count, too"
                .to_owned(),
            "p99: of the requests that waited, until they were answered, refused ones included · unanswered: refused \
             because no coordinator answered in time (part of the refused)"
                .to_owned(),
        ];
        notes.extend(self.scenario.remarks.iter().cloned());
        let requests: u64 = self
            .results
            .central
            .iter()
            .map(|tally| tally.requests)
            .sum();
        if requests < REQUESTS_FEW {
            notes.push(format!(
                "Only {requests} requests were counted: all figures are rough. Say more minutes."
            ));
        }
        let mut policies = self.scenario.setup.policies.iter();
        if policies.any(|policy| policy.kind.own_timescale_us() > self.scenario.from_us) {
            notes.push(
                "The warm-up is shorter than the longest window or refill: refusals look rarer than they will be.".to_owned(),
            );
        }
        let of_leasehold = self
            .results
            .designs
            .iter()
            .find(|figures| figures.design == Design::Leasehold);
        if let Some((figures, work)) =
            of_leasehold.and_then(|figures| Some((figures, figures.work?)))
        {
            notes.push(String::new());
            notes.extend(self.plan(figures, &work));
        }
        if self.results.designs.len() > 1 && self.has_adversity() {
            notes.push(
                "The other designs are given a store that is told in no time and that never fails: losses, faults \
                 and clocks concern leasehold only."
                    .to_owned(),
            );
        }
        notes
    }

    /// What the coordinator must take, and what one is good for.
    fn plan(&self, figures: &Figures, work: &Work) -> Vec<String> {
        let per_second = |count: u64| short(float(count) / self.seconds);
        let keys = self.scenario.setup.policies.len();
        let gateways = self.scenario.setup.gateways;
        let mut plan = vec![
            format!(
                "The coordinator must take {} messages/s and sends {}; it commits {} log entries/s.",
                per_second(work.keyed_up + work.regular_up),
                per_second(work.keyed_down + work.regular_down),
                per_second(work.entries),
            ),
            format!(
                "  {} up and {} down are about {}; {} up and {} down are the regular syncs of {gateways} {}, however \
                 many keys there are.",
                per_second(work.keyed_up),
                per_second(work.keyed_down),
                if keys == 1 {
                    "the one key".to_owned()
                } else {
                    format!("the {keys} keys together")
                },
                per_second(work.regular_up),
                per_second(work.regular_down),
                if gateways == 1 { "gateway" } else { "gateways" },
            ),
        ];
        if !self.scenario.setup.faults.is_empty() {
            plan.push(
                "  How many keys it has room for is not said: who is cut off sends nothing. Leave the faults out to know."
                    .to_owned(),
            );
        }
        if let Some(keys) = self.keys(work) {
            plan.push(format!(
                "  At {} messages/s (--coordinator-messages-per-s) one coordinator has room for about {keys} keys like \
                 these behind {gateways} such gateways, by what it takes or what it sends, whichever is more. What many \
                 keys say at one moment is one message: the figure is on the safe side.",
                self.coordinator,
            ));
            let keys_max = self.scenario.setup.settings.keys_per_session_max;
            if keys > u64::from(keys_max) {
                plan.push(format!(
                    "  That is more than the {keys_max} keys that one gateway may hold leases of (keys_per_session_max)."
                ));
            }
        }
        let over: u64 = figures
            .budgets
            .iter()
            .map(|b| b.over_admitted)
            .max()
            .unwrap_or(0);
        plan.push(format!(
            "  Over-admitted: {over} units, judged from the admission instants alone."
        ));
        plan
    }

    fn has_adversity(&self) -> bool {
        let setup = &self.scenario.setup;
        !setup.faults.is_empty()
            || setup.network.loss > 0.0
            || setup.network.duplication > 0.0
            || setup.drift_ppm > 0
    }
}

fn together(budgets: &[BudgetFigures]) -> BudgetFigures {
    let mut all = BudgetFigures {
        tally: Tally::default(),
        unavailable: 0,
        waits_us: Vec::new(),
        over_admitted: 0,
        worst_ratio: 0.0,
    };
    for budget in budgets {
        all.tally.add(&budget.tally);
        all.unavailable += budget.unavailable;
        all.waits_us.extend(&budget.waits_us);
        all.over_admitted = all.over_admitted.max(budget.over_admitted);
        all.worst_ratio = all.worst_ratio.max(budget.worst_ratio);
    }
    all.waits_us.sort_unstable();
    all
}

/// The value that so many percent do not exceed.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let place = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(place - 1).copied()
}

/// `12.3`, `0.05`, `1234`: three digits that count.
fn short(figure: f64) -> String {
    let decimals = match figure.abs() {
        f if f >= 100.0 || f.fract() == 0.0 => 0,
        f if f >= 10.0 => 1,
        _ => 2,
    };
    format!("{figure:.decimals$}")
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative; `as` saturates"
)]
fn whole(figure: f64) -> u64 {
    figure as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_occurred() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&values, 50), Some(100));
        assert_eq!(percentile(&values, 99), Some(198));
        assert_eq!(percentile(&[7], 99), Some(7));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn figures_have_three_digits_that_count() {
        let shown: Vec<String> = [0.0, 0.054, 1.234, 12.34, 1234.5, 30.0]
            .into_iter()
            .map(short)
            .collect();
        assert_eq!(shown, ["0", "0.05", "1.23", "12.3", "1234", "30"]);
    }
}
