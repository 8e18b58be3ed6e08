//! Runs a scenario's designs on the same requests. Knows no table.

use super::{Design, Scenario};
use crate::{
    Limiter, Messages, Outcome, Record, SECOND, Tally, Verdict, Work,
    baseline::CentralLog,
    drive,
    output::Progress,
    suite::run_each,
    system::{RequestPatience, promise_of},
    traffic::{Routing, Traffic},
    wait_bound_pct,
};

/// Requests of the last moments may still be answered for so long.
const LAST_ANSWERS_US: u64 = 10 * SECOND;

/// What a scenario came to.
#[derive(Clone, Debug)]
pub struct Results {
    /// What an exact central log did with the same requests: of each budget.
    pub central: Vec<Tally>,
    /// The proven lower bound on waits in percent, of each budget that has one.
    pub bounds_pct: Vec<Option<f64>>,
    /// Of each design, in the scenario's order.
    pub designs: Vec<Figures>,
}

/// What became of the requests under one design, after the warm-up.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Which.
    pub design: Design,
    /// Of each budget.
    pub budgets: Vec<BudgetFigures>,
    /// Messages, both directions.
    pub messages: Messages,
    /// What the coordinator had to do, where the design has one.
    pub work: Option<Work>,
}

/// What became of the requests of one budget.
#[derive(Clone, Debug)]
pub struct BudgetFigures {
    /// Counts.
    pub tally: Tally,
    /// Requests that were told that nobody could be asked.
    pub unavailable: u64,
    /// How long those that waited did, in microseconds, in rising order.
    pub waits_us: Vec<u64>,
    /// Units admitted beyond the promise in the worst interval of the worst key,
    /// warm-up included.
    pub over_admitted: u64,
    /// That interval's share of the limit; above 1: the promise was broken.
    pub worst_ratio: f64,
}

impl Scenario {
    /// Runs all its designs.
    #[must_use]
    pub fn run(&self, progress: &dyn Progress) -> Results {
        let kinds: Vec<_> = self.setup.policies.iter().map(|p| p.kind.clone()).collect();
        let mut central = CentralLog::new(&kinds, 0);
        let reference = self.record(&mut central, &mut |_| {});
        Results {
            central: self.by_budget(&reference, Tally::of),
            bounds_pct: self.bounds_pct(&reference),
            designs: run_each(
                &self.designs,
                progress,
                |design| design.name().to_owned(),
                |design| self.figures(*design, design.limiter(&self.setup).as_mut()),
            ),
        }
    }

    fn figures(&self, design: Design, limiter: &mut dyn Limiter) -> Figures {
        let mut marks = Vec::new();
        let record = self.record(limiter, &mut |limiter| {
            marks.push((limiter.messages(), limiter.work()));
        });
        let (first, last) = (
            marks.first().copied().unwrap_or_default(),
            marks.last().copied().unwrap_or_default(),
        );
        let mut budgets = self.by_budget(&record, BudgetFigures::of);
        for (budget, figures) in self.budgets.iter().zip(&mut budgets) {
            for key in budget.keys.clone() {
                let judgement = record.judge(key, &promise_of(&self.setup.policies[key]));
                figures.over_admitted = figures.over_admitted.max(judgement.over_admitted);
                figures.worst_ratio = figures.worst_ratio.max(judgement.worst_ratio);
            }
        }
        Figures {
            design,
            budgets,
            messages: last.0.since(&first.0),
            work: last.1.map(|work| work.since(&first.1.unwrap_or_default())),
        }
    }

    /// Drives all requests; `mark` is called when the warm-up is over and at the end.
    fn record(&self, limiter: &mut dyn Limiter, mark: &mut dyn FnMut(&dyn Limiter)) -> Record {
        let mut traffic = Traffic::new(self.setup.seed, self.setup.gateways, self.flows.clone());
        let mut record = Record::new();
        drive(limiter, &mut traffic, self.from_us, &mut record);
        mark(limiter);
        drive(limiter, &mut traffic, self.until_us, &mut record);
        mark(limiter);
        let patience_us = match self.setup.patience {
            RequestPatience::OneAnswer => 0,
            RequestPatience::Within(us) => us,
        };
        let last_us = self.until_us + LAST_ANSWERS_US + patience_us;
        drive(limiter, &mut traffic, last_us, &mut record);
        record
    }

    /// Something about each budget's requests after the warm-up.
    fn by_budget<R>(&self, record: &Record, about: impl Fn(&[Outcome]) -> R) -> Vec<R> {
        let counted = record.since(self.from_us);
        let each = self.budgets.iter().map(|budget| {
            let outcomes: Vec<Outcome> = counted
                .iter()
                .filter(|outcome| budget.keys.contains(&outcome.request.key))
                .copied()
                .collect();
            about(&outcomes)
        });
        each.collect()
    }

    /// Of each budget whose keys all have one: the mean, weighted by requests.
    fn bounds_pct(&self, reference: &Record) -> Vec<Option<f64>> {
        let key_bound = |key: usize| -> Option<(f64, f64)> {
            let requests: Vec<_> = reference
                .outcomes()
                .iter()
                .map(|outcome| outcome.request)
                .filter(|request| request.key == key)
                .collect();
            let counted = requests
                .iter()
                .filter(|request| request.at_us >= self.from_us)
                .count();
            if counted == 0 {
                return Some((0.0, 0.0));
            }
            let bound = wait_bound_pct(
                &requests,
                &self.setup.policies[key].kind,
                self.only_routing(key)?,
                self.setup.gateways,
                self.from_us,
            )?;
            Some((bound, real(counted)))
        };
        let each = self.budgets.iter().map(|budget| {
            let (mut sum, mut weight) = (0.0, 0.0);
            for key in budget.keys.clone() {
                let (bound, requests) = key_bound(key)?;
                sum += bound * requests;
                weight += requests;
            }
            (weight > 0.0).then(|| sum / weight)
        });
        each.collect()
    }

    /// How a key's requests are routed, if all are routed alike.
    fn only_routing(&self, key: usize) -> Option<Routing> {
        let mut routings = self
            .flows
            .iter()
            .filter(|flow| flow.key == key)
            .map(|flow| flow.routing);
        let first = routings.next()?;
        routings.all(|other| other == first).then_some(first)
    }
}

impl BudgetFigures {
    fn of(outcomes: &[Outcome]) -> Self {
        let mut waits_us: Vec<u64> = outcomes
            .iter()
            .filter_map(|outcome| {
                let answer = outcome.answer.filter(|answer| answer.waited)?;
                Some(answer.at_us.saturating_sub(outcome.request.at_us))
            })
            .collect();
        waits_us.sort_unstable();
        let unavailable = outcomes.iter().filter(|outcome| {
            outcome
                .answer
                .is_some_and(|answer| answer.verdict == Verdict::Unavailable)
        });
        Self {
            tally: Tally::of(outcomes),
            unavailable: unavailable.count() as u64,
            waits_us,
            over_admitted: 0,
            worst_ratio: 0.0,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of a run's requests")]
fn real(count: usize) -> f64 {
    count as f64
}
