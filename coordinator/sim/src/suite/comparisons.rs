//! Leasehold beside the designs that it is compared with, over the whole range of
//! load, flood and sync interval: three tables and their pictures. Expects nothing
//! but that leases keep the limit.

use super::{
    Conditions, Findings,
    measure::{Figures, Setting, real},
    run_each,
};
use crate::{
    MILLISECOND,
    baseline::Design,
    output::{Axis, Cell, Chart, Role, Series, Table},
    traffic::Routing,
};

const LOADS: [f64; 11] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2];
const FLOODS: [f64; 7] = [1.5, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0];
const SYNCS_MS: [u64; 5] = [100, 300, 1_000, 3_000, 10_000];
const OURS: &str = "Leasehold";

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Leasehold,
    Other(Design),
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Leasehold => OURS,
            Self::Other(design) => design.name(),
        }
    }

    fn role(self) -> Role {
        match self {
            Self::Leasehold => Role::Ours,
            Self::Other(_) => Role::Other,
        }
    }
}

/// One picture's figures: by contender, then by place.
struct Sweep {
    contenders: Vec<Contender>,
    figures: Vec<Vec<Vec<Figures>>>,
}

impl Sweep {
    /// Every contender at every setting.
    fn of(
        conditions: &Conditions,
        contenders: &[Contender],
        settings: &[Setting],
        seeds: u64,
        minutes: u64,
    ) -> Self {
        let mut jobs = Vec::new();
        for &contender in contenders {
            for &setting in settings {
                for run in 0..seeds {
                    jobs.push((contender, setting, conditions.seed + run));
                }
            }
        }
        let runs = run_each(
            &jobs,
            conditions.progress,
            |(contender, setting, _)| format!("{}, {}", contender.name(), setting.text()),
            |&(contender, setting, seed)| match contender {
                Contender::Leasehold => setting.run_leasehold(seed, minutes),
                Contender::Other(design) => Setting { design, ..setting }.run(seed, minutes),
            },
        );
        let seeds = usize::try_from(seeds).unwrap_or(1).max(1);
        let places = settings.len();
        let by_place: Vec<Vec<Figures>> = runs.chunks(seeds).map(<[Figures]>::to_vec).collect();
        Self {
            contenders: contenders.to_vec(),
            figures: by_place.chunks(places).map(<[_]>::to_vec).collect(),
        }
    }

    /// A figure's mean over the runs.
    fn mean(&self, contender: usize, place: usize, figure: impl Fn(&Figures) -> f64) -> f64 {
        let runs = &self.figures[contender][place];
        runs.iter().map(figure).sum::<f64>() / real(runs.len().max(1) as u64)
    }

    /// The greatest of all runs.
    fn most(&self, contender: usize, place: usize, figure: impl Fn(&Figures) -> f64) -> f64 {
        let runs = &self.figures[contender][place];
        runs.iter().map(figure).fold(0.0, f64::max)
    }

    fn lines(&self, xs: &[f64], figure: impl Fn(usize, usize) -> f64) -> Vec<Series> {
        let contenders = self.contenders.iter().enumerate();
        let lines = contenders.map(|(index, contender)| {
            let points = xs.iter().enumerate();
            let points = points.map(|(place, &x)| (x, figure(index, place)));
            Series::line(contender.name(), contender.role(), points.collect())
        });
        lines.collect()
    }

    /// A complaint for each design with leases that passed the limit.
    fn complaints(&self, settings: &[Setting]) -> Vec<String> {
        let mut complaints = Vec::new();
        for (index, contender) in self.contenders.iter().enumerate() {
            let exact = matches!(
                contender,
                Contender::Leasehold
                    | Contender::Other(
                        Design::CentralLog | Design::PlainLeases | Design::AskWhenEmpty
                    )
            );
            for (place, setting) in settings.iter().enumerate() {
                let worst = self.most(index, place, |run| run.worst);
                if exact && worst > 1.0 {
                    complaints.push(format!(
                        "{}, {}: {worst} times the limit within one window",
                        contender.name(),
                        setting.text()
                    ));
                }
            }
        }
        complaints
    }
}

/// Waits by load, over-admission by flood, refusals by sync interval.
#[must_use]
pub fn comparisons(conditions: &Conditions) -> Findings {
    let mut all = Findings::default();
    for found in [waits(conditions), floods(conditions), refusals(conditions)] {
        all.tables.extend(found.tables);
        all.charts.extend(found.charts);
        all.complaints.extend(found.complaints);
    }
    all
}

fn waits(conditions: &Conditions) -> Findings {
    let (seeds, minutes) = if conditions.reduced { (1, 15) } else { (3, 60) };
    let settings = LOADS.map(|load| Setting {
        gateways: 8,
        load,
        ..Setting::usual(Design::CentralLog)
    });
    let contenders = [
        Contender::Leasehold,
        Contender::Other(Design::AskWhenEmpty),
        Contender::Other(Design::CentralLog),
        Contender::Other(Design::SharedCounter),
    ];
    let sweep = Sweep::of(conditions, &contenders, &settings, seeds, minutes);
    let bounds: Vec<f64> = settings
        .iter()
        .map(|setting| {
            let bounds: Vec<f64> = (0..seeds)
                .filter_map(|run| setting.wait_bound_pct(conditions.seed + run, minutes))
                .collect();
            bounds.iter().sum::<f64>() / real(bounds.len().max(1) as u64)
        })
        .collect();
    let mut table = Table::new(
        "waits-by-load",
        "Requests that waited for a message, in percent, by load: limit 100 per 60 s, 8 gateways, even.",
        &[
            ("load_pct", "load %"),
            ("bound_pct", "lower bound"),
            ("leasehold_pct", OURS),
            ("ask_when_empty_pct", "ask when empty"),
            ("central_log_pct", "central log"),
            ("shared_counter_pct", "shared counter"),
        ],
    );
    let waited = |index, place| sweep.mean(index, place, Figures::waited_pct);
    let loads = LOADS.map(|load| 100.0 * load);
    for (place, load) in loads.into_iter().enumerate() {
        let mut cells = vec![Cell::Figure(load, 0), Cell::Figure(bounds[place], 2)];
        cells.extend((0..contenders.len()).map(|index| Cell::Figure(waited(index, place), 2)));
        table.push(cells);
    }
    table.note("Bound: what no policy can go below on these requests. Leasehold: 5 ms one way; the others sync every second.");
    let mut series = sweep.lines(&loads, waited);
    let bound = loads.into_iter().zip(bounds).collect();
    series.insert(1, Series::line("lower bound", Role::Bound, bound));
    let chart = Chart {
        name: "waits-by-load",
        title: "Requests that wait for a message".to_owned(),
        setting: "100 per 60 s, 8 gateways, even routing".to_owned(),
        x: Axis::linear("load, % of the limit"),
        y: Axis::linear("requests that waited, %").between(0.0, 100.0),
        series,
    };
    Findings {
        tables: vec![table],
        charts: vec![chart],
        complaints: sweep.complaints(&settings),
    }
}

fn floods(conditions: &Conditions) -> Findings {
    let (seeds, minutes) = if conditions.reduced { (1, 2) } else { (3, 5) };
    let settings = FLOODS.map(|load| Setting {
        gateways: 8,
        load,
        ..Setting::usual(Design::CentralLog)
    });
    let contenders = [
        Contender::Leasehold,
        Contender::Other(Design::SharedCounter),
        Contender::Other(Design::TrackShare),
        Contender::Other(Design::AssumeOthers),
        Contender::Other(Design::AskWhenEmpty),
        Contender::Other(Design::Split),
    ];
    let sweep = Sweep::of(conditions, &contenders, &settings, seeds, minutes);
    let mut table = Table::new(
        "admitted-by-flood",
        "The most admitted in any 60 s, as a multiple of the limit, by the flood: limit 100, 8 gateways, even, Δ 1 s.",
        &[
            ("flood", "flood ×"),
            ("leasehold", OURS),
            ("shared_counter", "shared counter"),
            ("track_share", "track my share"),
            ("assume_others", "assume the others"),
            ("ask_when_empty", "ask when empty"),
            ("split", "split"),
        ],
    );
    let worst = |index, place| sweep.most(index, place, |run| run.worst);
    for (place, flood) in FLOODS.into_iter().enumerate() {
        let mut cells = vec![Cell::Figure(flood, 1)];
        cells.extend((0..contenders.len()).map(|index| Cell::Figure(worst(index, place), 2)));
        table.push(cells);
    }
    let chart = Chart {
        name: "admitted-by-flood",
        title: "What a flood gets".to_owned(),
        setting: "100 per 60 s, 8 gateways, even routing, synced every second".to_owned(),
        x: Axis::log("flood, multiples of the limit"),
        y: Axis::linear("most admitted in any 60 s, multiples of the limit"),
        series: sweep.lines(&FLOODS, worst),
    };
    Findings {
        tables: vec![table],
        charts: vec![chart],
        complaints: sweep.complaints(&settings),
    }
}

fn refusals(conditions: &Conditions) -> Findings {
    let (seeds, minutes) = if conditions.reduced { (1, 15) } else { (3, 60) };
    let settings = SYNCS_MS.map(|sync_ms| Setting {
        sync_us: sync_ms * MILLISECOND,
        routing: Routing::Skewed,
        ..Setting::usual(Design::CentralLog)
    });
    let others = [
        Contender::Other(Design::CentralLog),
        Contender::Other(Design::Split),
        Contender::Other(Design::SharedCounter),
        Contender::Other(Design::AssumeOthers),
        Contender::Other(Design::TrackShare),
        Contender::Other(Design::PlainLeases),
        Contender::Other(Design::AskWhenEmpty),
    ];
    let sweep = Sweep::of(conditions, &others, &settings, seeds, minutes);
    // Leasehold does not wait for its syncs: one figure for all of them.
    let ours = Sweep::of(
        conditions,
        &[Contender::Leasehold],
        &settings[..1],
        seeds,
        minutes,
    );
    let our_refusals = ours.mean(0, 0, Figures::refused_pct);
    let mut table = Table::new(
        "refusals-by-sync",
        "Refused requests of an honest client, in percent, by sync interval: limit 100 per 60 s, 32 gateways, skewed, 80 %.",
        &[
            ("sync_s", "Δ s"),
            ("leasehold_pct", OURS),
            ("central_log_pct", "central log"),
            ("split_pct", "split"),
            ("shared_counter_pct", "shared counter"),
            ("assume_others_pct", "assume the others"),
            ("track_share_pct", "track my share"),
            ("plain_leases_pct", "plain leases"),
            ("ask_when_empty_pct", "ask when empty"),
        ],
    );
    let refused = |index, place| sweep.mean(index, place, Figures::refused_pct);
    let syncs = SYNCS_MS.map(|ms| real(ms) / 1_000.0);
    for (place, sync_s) in syncs.into_iter().enumerate() {
        let mut cells = vec![Cell::Figure(sync_s, 1), Cell::Figure(our_refusals, 2)];
        cells.extend((0..others.len()).map(|index| Cell::Figure(refused(index, place), 2)));
        table.push(cells);
    }
    table.note(
        "Leasehold with its shipped sync interval: what it asks for does not wait for a sync.",
    );
    let mut series = vec![Series::line(
        OURS,
        Role::Ours,
        syncs.map(|sync_s| (sync_s, our_refusals)).to_vec(),
    )];
    series.extend(sweep.lines(&syncs, refused));
    let chart = Chart {
        name: "refusals-by-sync",
        title: "Refusals of an honest client".to_owned(),
        setting: "100 per 60 s, 32 gateways, skewed routing, 80 % load".to_owned(),
        x: Axis::log("sync interval, s"),
        y: Axis::linear("requests refused, %"),
        series,
    };
    let mut complaints = sweep.complaints(&settings);
    complaints.extend(ours.complaints(&settings[..1]));
    Findings {
        tables: vec![table],
        charts: vec![chart],
        complaints,
    }
}
