//! The figures that the lease policy has to reach, with everything as it is
//! shipped. Knows the policy by what comes out of it only: the real ledger, lease
//! policy and client core run beside an exact central log on the same arrivals.

use leasehold_ledger::policy::Kind;

use super::{Conditions, Findings, measure::real, run_each};
use crate::{
    Limiter as _, Messages, Record, SECOND, Tally,
    baseline::Exact,
    drive,
    output::{Cell, Table},
    system::{Leasehold, Setup, promise_of},
    traffic::{Arrivals, Cost, Flow, Routing, Traffic},
    wait_bound_pct,
};

const MINUTE_US: u64 = 60 * SECOND;
/// Left out at a run's beginning: windows and estimates fill.
const WARM_UP_US: u64 = 5 * MINUTE_US;
/// Buckets of all rows refill so much a minute.
const REFILL: u64 = 100;

/// What a row's budget is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Budget {
    /// So many per minute.
    Window(u64),
    /// A bucket of so many, 100 a minute.
    Bucket(u64),
}

/// One row: a setting and what it has to keep.
#[derive(Clone, Copy, Debug)]
struct Row {
    budget: Budget,
    gateways: usize,
    routing: Routing,
    page_loads: bool,
    /// Requests per limit.
    load: f64,
    keeps: Keeps,
}

/// The bounds of a row; those that are not claimed are none.
#[derive(Clone, Copy, Debug, Default)]
struct Keeps {
    wait_max_pct: Option<f64>,
    /// What the proven bound is in the long run; a run is held against what it is
    /// along its own arrivals, if that is more.
    bound_pct: Option<f64>,
    excess_max_pp: Option<f64>,
    messages_max: Option<f64>,
    /// The least share of what the central log admits.
    achieved_min: Option<f64>,
}

const fn window(
    limit: u64,
    gateways: usize,
    load: f64,
    wait: f64,
    bound: f64,
    excess: f64,
    messages: f64,
) -> Row {
    Row {
        budget: Budget::Window(limit),
        gateways,
        routing: Routing::Even,
        page_loads: false,
        load,
        keeps: Keeps {
            wait_max_pct: Some(wait),
            bound_pct: Some(bound),
            excess_max_pp: Some(excess),
            messages_max: Some(messages),
            achieved_min: None,
        },
    }
}

const fn bucket(capacity: u64, gateways: usize) -> Row {
    Row {
        budget: Budget::Bucket(capacity),
        gateways,
        routing: Routing::Even,
        page_loads: false,
        load: 0.8,
        keeps: Keeps {
            wait_max_pct: None,
            bound_pct: None,
            excess_max_pp: Some(0.5),
            messages_max: None,
            achieved_min: None,
        },
    }
}

/// At the limit the central log is often empty and its bound is no floor: a policy
/// that refuses a little more than that log need not wait for the rest.
const fn unbounded(mut row: Row) -> Row {
    row.keeps.bound_pct = None;
    row
}

/// The table of the design, and what it says beside it: the fraction of the limit
/// that is achieved at and above the limit, and token buckets.
fn rows() -> Vec<Row> {
    let achieving = |row: Row| Row {
        keeps: Keeps {
            achieved_min: Some(0.99),
            ..row.keeps
        },
        ..row
    };
    let mut rows = vec![
        window(100, 2, 0.8, 1.0, 0.2, 0.05, 0.6),
        window(100, 8, 0.5, 0.1, 0.0, 0.02, 1.2),
        window(100, 8, 0.8, 4.5, 2.7, 0.05, 1.6),
        achieving(window(100, 8, 1.0, 36.0, 26.0, 0.1, 3.0)),
        window(100, 32, 0.8, 41.0, 37.9, 0.1, 3.7),
        Row {
            routing: Routing::Skewed,
            ..window(100, 32, 0.8, 24.0, 14.0, 0.1, 4.2)
        },
        Row {
            page_loads: true,
            ..window(100, 8, 0.8, 15.0, 5.2, 0.1, 1.6)
        },
        window(1_000, 32, 0.8, 0.2, 0.0, 0.02, 0.6),
        window(10_000, 32, 0.8, 0.01, 0.0, 0.01, 0.1),
        unbounded(achieving(window(10_000, 32, 1.0, 2.5, 0.0, 0.35, 1.6))),
    ];
    for (limit, gateways) in [(100, 8), (100, 32), (1_000, 32)] {
        let mut row = window(limit, gateways, 2.0, 0.0, 0.0, 0.0, 0.0);
        row.keeps = Keeps {
            achieved_min: Some(0.99),
            ..Keeps::default()
        };
        rows.push(row);
    }
    for capacity in [20, 100] {
        for gateways in [2, 8, 32] {
            rows.push(bucket(capacity, gateways));
        }
    }
    rows
}

impl Row {
    fn limit(&self) -> u64 {
        match self.budget {
            Budget::Window(limit) | Budget::Bucket(limit) => limit,
        }
    }

    fn kind(&self) -> Kind {
        match self.budget {
            Budget::Window(limit) => Kind::SlidingWindow {
                limit,
                window_us: MINUTE_US,
            },
            Budget::Bucket(capacity) => Kind::TokenBucket {
                capacity,
                refill: REFILL,
                refill_period_us: MINUTE_US,
            },
        }
    }

    fn traffic(&self, seed: u64, until_us: u64) -> Traffic {
        let per_minute = match self.budget {
            Budget::Window(limit) => limit,
            Budget::Bucket(_) => REFILL,
        };
        let per_second = self.load * real(per_minute) / 60.0;
        let arrivals = if self.page_loads {
            Arrivals::PageLoads { per_second }
        } else {
            Arrivals::Poisson { per_second }
        };
        let flow = Flow {
            key: 0,
            arrivals,
            routing: self.routing,
            cost: Cost::Fixed(1),
            from_us: 0,
            until_us,
        };
        Traffic::new(seed, self.gateways, vec![flow])
    }

    /// Whether the bound says anything about this row; it is not claimed for some
    /// at and above the limit.
    fn has_bound(&self) -> bool {
        self.load < 1.0 || self.keeps.bound_pct.is_some()
    }

    fn routing_text(&self) -> &'static str {
        match (self.routing, self.page_loads) {
            (Routing::Skewed, _) => "skewed",
            (_, true) => "even, page loads",
            _ => "even",
        }
    }

    fn text(&self) -> String {
        let kind = match self.budget {
            Budget::Window(_) => "",
            Budget::Bucket(_) => "bucket ",
        };
        format!(
            "{kind}{}, {} {}, {:.0} %",
            self.limit(),
            self.gateways,
            self.routing_text(),
            100.0 * self.load
        )
    }

    /// Seeds, and minutes of each: quiet keys scatter more and cost less.
    fn extent(&self, reduced: bool) -> (u64, u64) {
        match (self.limit(), reduced) {
            (0..=100, false) => (6, 120),
            (0..=100, true) => (1, 60),
            (101..=1_000, false) => (3, 60),
            (101..=1_000, true) => (1, 20),
            (_, false) => (3, 60),
            (_, true) => (1, 6),
        }
    }
}

/// What came out of one run, or of several.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    tally: Tally,
    /// Refused by the central log.
    central_refused: u64,
    central_admitted: u64,
    /// The sum of the runs' bounds, each times its requests.
    bound_requests: f64,
    messages: Messages,
    requests: u64,
    over_admitted: u64,
    books_broken: bool,
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.central_refused += other.central_refused;
        self.central_admitted += other.central_admitted;
        self.bound_requests += other.bound_requests;
        self.messages.keyed += other.messages.keyed;
        self.messages.regular += other.messages.regular;
        self.messages.acknowledgements += other.messages.acknowledgements;
        self.requests += other.requests;
        self.over_admitted = self.over_admitted.max(other.over_admitted);
        self.books_broken |= other.books_broken;
    }
}

fn run(row: &Row, seed: u64, minutes: u64) -> Outcome {
    let until_us = WARM_UP_US + minutes * MINUTE_US;
    let kind = row.kind();
    let setup = Setup::of_one_key(seed, row.gateways, kind.clone());
    let promise = promise_of(&setup.policies[0]);
    let mut leasehold = Leasehold::new(setup);
    let mut source = row.traffic(seed, until_us);
    let mut record = Record::new();
    drive(&mut leasehold, &mut source, WARM_UP_US, &mut record);
    let (before, before_requests) = (leasehold.messages(), record.outcomes().len());
    drive(&mut leasehold, &mut source, until_us, &mut record);
    let mut outcome = Outcome {
        tally: Tally::of(record.since(WARM_UP_US)),
        messages: leasehold.messages().since(&before),
        requests: u64::try_from(record.outcomes().len() - before_requests).unwrap_or(u64::MAX),
        over_admitted: record.judge(0, &promise).over_admitted,
        books_broken: leasehold.check().is_err(),
        ..Outcome::default()
    };
    let mut central = Exact::new(&kind);
    for seen in record.outcomes() {
        let request = &seen.request;
        let admitted = central.take(request.at_us, request.units).is_ok();
        if request.at_us >= WARM_UP_US {
            if admitted {
                outcome.central_admitted += 1;
            } else {
                outcome.central_refused += 1;
            }
        }
    }
    let requests = record.outcomes().iter().map(|seen| &seen.request);
    let bound = wait_bound_pct(requests, &kind, row.routing, row.gateways, WARM_UP_US);
    outcome.bound_requests = bound.unwrap_or(0.0) * real(outcome.tally.requests);
    outcome
}

/// Runs the table of the design: every row must keep its bounds, and nothing may
/// ever be over-admitted.
///
/// A reduced suite runs for a shorter time, so that its figures scatter. What must
/// be kept is widened accordingly: waits by what the proven bound is more along
/// these arrivals than in the long run, and by a fifth; excess by a tenth of a
/// point; messages by a fifth.
#[must_use]
pub fn design(conditions: &Conditions<'_>) -> Findings {
    let rows = rows();
    let mut jobs: Vec<(usize, u64, u64)> = Vec::new();
    for (place, row) in rows.iter().enumerate() {
        let (seeds, minutes) = row.extent(conditions.reduced);
        for seed in 0..seeds {
            jobs.push((place, conditions.seed.wrapping_add(seed), minutes));
        }
    }
    let outcomes = run_each(
        &jobs,
        conditions.progress,
        |(place, ..)| rows[*place].text(),
        |(place, seed, minutes)| run(&rows[*place], *seed, *minutes),
    );
    let mut sums = vec![Outcome::default(); rows.len()];
    for ((place, ..), outcome) in jobs.iter().zip(&outcomes) {
        sums[*place].add(outcome);
    }
    let mut findings = Findings::default();
    let mut table = Table::new(
        "design",
        "Waits, refusals and messages of the shipped policy, 5 ms from the coordinator, window \
         60 s (buckets: 100 units a minute).",
        &[
            ("kind", "kind"),
            ("limit", "limit"),
            ("gateways", "gateways"),
            ("routing", "routing"),
            ("load", "load"),
            ("central_refused_pct", "central refuses %"),
            ("wait_pct", "waits %"),
            ("wait_max_pct", "at most"),
            ("bound_pct", "proven bound %"),
            ("excess_pp", "excess points"),
            ("excess_max_pp", "at most"),
            ("messages_per_request", "messages/request"),
            ("messages_max", "at most"),
            ("acknowledgements_per_request", ""),
            ("achieved", "of central"),
            ("over_admitted", "over-admitted"),
            ("ok", "kept"),
        ],
    );
    for (row, sum) in rows.iter().zip(&sums) {
        let judged = Judged::of(row, sum, conditions.reduced);
        for complaint in &judged.complaints {
            findings
                .complaints
                .push(format!("{}: {complaint}", row.text()));
        }
        table.push(judged.cells(row, sum));
    }
    table.note(
        "Excess: refusals beyond an exact central log on the same arrivals, in points. Messages: \
         those that the key was the reason for, without acknowledgements and regular syncs.",
    );
    findings.tables.push(table);
    findings
}

/// A row's figures, and what of them is out of bounds.
struct Judged {
    wait_pct: f64,
    bound_pct: f64,
    excess_pp: f64,
    messages: f64,
    achieved: f64,
    keeps: Keeps,
    complaints: Vec<String>,
}

impl Judged {
    fn of(row: &Row, sum: &Outcome, reduced: bool) -> Self {
        let requests = real(sum.tally.requests.max(1));
        let bound_pct = sum.bound_requests / requests;
        let mut keeps = row.keeps;
        if reduced {
            let more = (bound_pct - keeps.bound_pct.unwrap_or(bound_pct)).max(0.0);
            keeps.wait_max_pct = keeps.wait_max_pct.map(|most| 1.2 * (most + more));
            keeps.excess_max_pp = keeps.excess_max_pp.map(|most| most + 0.1);
            keeps.messages_max = keeps.messages_max.map(|most| 1.2 * most);
        }
        let mut judged = Self {
            wait_pct: sum.tally.percent(sum.tally.waited),
            bound_pct,
            excess_pp: sum.tally.percent(sum.tally.refused)
                - sum.tally.percent(sum.central_refused),
            messages: real(sum.messages.keyed) / real(sum.requests.max(1)),
            achieved: real(sum.tally.admitted) / real(sum.central_admitted.max(1)),
            keeps,
            complaints: Vec::new(),
        };
        judged.hold("waits (%)", judged.wait_pct, keeps.wait_max_pct);
        judged.hold("excess (points)", judged.excess_pp, keeps.excess_max_pp);
        judged.hold("messages per request", judged.messages, keeps.messages_max);
        if let Some(least) = keeps.achieved_min
            && judged.achieved < least
        {
            judged.complaints.push(format!(
                "{:.4} of what a central log admits; must be at least {least}",
                judged.achieved
            ));
        }
        if sum.over_admitted > 0 {
            judged
                .complaints
                .push(format!("{} units over-admitted", sum.over_admitted));
        }
        if sum.books_broken {
            judged
                .complaints
                .push("the ledger's books are not in order".to_owned());
        }
        judged
    }

    fn hold(&mut self, what: &str, figure: f64, most: Option<f64>) {
        if let Some(most) = most
            && figure > most
        {
            self.complaints
                .push(format!("{what} {figure:.3}; must be at most {most:.3}"));
        }
    }

    fn cells(&self, row: &Row, sum: &Outcome) -> Vec<Cell> {
        let most = |most: Option<f64>, decimals| match most {
            Some(most) => Cell::Figure(most, decimals),
            None => Cell::None,
        };
        let kind = match row.budget {
            Budget::Window(_) => "window",
            Budget::Bucket(_) => "bucket",
        };
        vec![
            Cell::Text(kind.to_owned()),
            Cell::Count(row.limit()),
            Cell::Count(u64::try_from(row.gateways).unwrap_or(u64::MAX)),
            Cell::Text(row.routing_text().to_owned()),
            Cell::Figure(row.load, 1),
            Cell::Figure(sum.tally.percent(sum.central_refused), 2),
            Cell::Figure(self.wait_pct, 2),
            most(self.keeps.wait_max_pct, 2),
            most(row.has_bound().then_some(self.bound_pct), 2),
            Cell::Figure(self.excess_pp, 3),
            most(self.keeps.excess_max_pp, 3),
            Cell::Figure(self.messages, 2),
            most(self.keeps.messages_max, 2),
            Cell::Figure(
                real(sum.messages.acknowledgements) / real(sum.requests.max(1)),
                2,
            ),
            Cell::Figure(self.achieved, 4),
            Cell::Count(sum.over_admitted),
            Cell::Held(self.complaints.is_empty()),
        ]
    }
}
