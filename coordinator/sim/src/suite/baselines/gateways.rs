//! What is known of the designs over several gateways.

use super::{Extent, Known, Row};
use crate::{
    MILLISECOND, SECOND,
    baseline::Design,
    output::Progress,
    suite::{
        measure::{Figures, Setting, real},
        run_each,
    },
    traffic::Routing,
};

/// Up to so much traffic in one sync interval, in limits, the law of floods holds.
const LAW_FLOOD_MAX: f64 = 2.0;

/// The settings that were run, and every run's figures.
struct Runs {
    settings: Vec<Setting>,
    figures: Vec<Vec<Figures>>,
}

impl Runs {
    fn of(settings: Vec<Setting>, extent: &Extent, progress: &dyn Progress) -> Self {
        let jobs: Vec<(Setting, u64)> = settings
            .iter()
            .flat_map(|setting| (0..extent.seeds).map(|run| (*setting, extent.seed + run)))
            .collect();
        let figures = run_each(
            &jobs,
            progress,
            |(setting, _)| setting.design.name().to_owned(),
            |(setting, seed)| {
                let minutes = if setting.load > 1.0 {
                    extent.flood_minutes
                } else if setting.limit > 1_000 {
                    extent.busy_minutes
                } else {
                    extent.minutes
                };
                setting.run(*seed, minutes)
            },
        );
        let seeds = usize::try_from(extent.seeds).unwrap_or(1).max(1);
        Self {
            settings,
            figures: figures.chunks(seeds).map(<[Figures]>::to_vec).collect(),
        }
    }

    /// A figure's mean over the runs of a setting.
    fn mean(&self, setting: &Setting, figure: impl Fn(&Figures) -> f64) -> f64 {
        let place = self.settings.iter().position(|other| other == setting);
        let Some(runs) = place.and_then(|place| self.figures.get(place)) else {
            return f64::NAN;
        };
        runs.iter().map(figure).sum::<f64>() / real(runs.len() as u64)
    }

    fn refused(&self, setting: &Setting) -> f64 {
        self.mean(setting, Figures::refused_pct)
    }

    fn waited(&self, setting: &Setting) -> f64 {
        self.mean(setting, Figures::waited_pct)
    }

    /// Units admitted per minute, in limits.
    fn multiple(&self, setting: &Setting) -> f64 {
        self.mean(setting, |run| {
            real(run.tally.units) / run.minutes / real(setting.limit)
        })
    }
}

pub(super) fn rows(extent: &Extent, progress: &dyn Progress) -> Vec<Row> {
    let mut settings: Vec<Setting> = Vec::new();
    let mut asked = |list: &[Setting]| {
        for setting in list {
            if !settings.contains(setting) {
                settings.push(*setting);
            }
        }
    };
    let honest: Vec<(Setting, Figure, f64)> = honest();
    for (setting, _, _) in &honest {
        asked(&[*setting]);
    }
    let law = law(extent);
    asked(&law);
    let floods = floods();
    for (setting, _) in &floods {
        asked(&[*setting]);
    }
    asked(&[aligned()]);
    let capped = [
        (Design::AssumeOthers, 2, 1.24),
        (Design::AssumeOthers, 32, 1.68),
        (Design::TrackShare, 32, 3.0),
    ]
    .map(|(design, gateways, known)| (any_flood(design, gateways, extent.floods), known));
    for (settings, _) in &capped {
        asked(settings);
    }
    let busy = busy();
    asked(&busy);

    let runs = Runs::of(settings, extent, progress);
    let mut rows: Vec<Row> = Vec::new();
    for (setting, figure, known) in &honest {
        rows.push(match figure {
            Figure::Refused => row(
                setting,
                "refused %",
                runs.refused(setting),
                Known::Percent(*known),
            ),
            Figure::Waited => row(
                setting,
                "waited %",
                runs.waited(setting),
                Known::Percent(*known),
            ),
        });
    }
    rows.push(erlang(&runs, extent));
    for (setting, known) in &floods {
        let measured = runs.multiple(setting);
        rows.push(row(setting, "admitted / limit", measured, *known));
    }
    rows.push(Row {
        design: Design::SharedCounter.name().to_owned(),
        setting: format!("{} floods of x ≤ 2 per sync, Δ ≤ 1 s", law.len()),
        figure: "off 1 + (K−1)/K·x by %, at most",
        measured: most(law.iter().map(|setting| off_the_law(&runs, setting))),
        known: Known::AtMost(4.0),
    });
    rows.push(Row {
        design: "shared counter, fixed window, aligned".to_owned(),
        ..row(
            &aligned(),
            "admitted / limit",
            runs.multiple(&aligned()),
            Known::Within(4.0, 0.000_5),
        )
    });
    for (settings, known) in &capped {
        rows.extend(worst_flood(&runs, settings, *known));
    }
    rows.extend(busy_rows(&runs, &busy));
    rows.push(leases_are_exact(&runs));
    rows
}

enum Figure {
    Refused,
    Waited,
}

/// Steady clients and page loads.
fn honest() -> Vec<(Setting, Figure, f64)> {
    use Design::{AskWhenEmpty, AssumeOthers, CentralLog, PlainLeases, Split, TrackShare};
    let even = Setting::usual;
    let skewed = |design| Setting {
        routing: Routing::Skewed,
        ..even(design)
    };
    let slow = |setting| Setting {
        sync_us: 10 * SECOND,
        ..setting
    };
    let over = |design, gateways, load| Setting {
        gateways,
        load,
        ..even(design)
    };
    let pages = |design| Setting {
        page_loads: true,
        ..over(design, 8, 0.8)
    };
    let larger = |limit, load| Setting {
        limit,
        load,
        ..even(AskWhenEmpty)
    };
    vec![
        (even(CentralLog), Figure::Refused, 0.4),
        (over(CentralLog, 8, 0.5), Figure::Refused, 0.0),
        (over(CentralLog, 8, 1.0), Figure::Refused, 7.7),
        (pages(CentralLog), Figure::Refused, 12.4),
        (even(Split), Figure::Refused, 15.0),
        (skewed(Split), Figure::Refused, 39.0),
        (skewed(AssumeOthers), Figure::Refused, 4.9),
        (slow(skewed(AssumeOthers)), Figure::Refused, 16.4),
        (slow(even(AssumeOthers)), Figure::Refused, 5.4),
        (skewed(TrackShare), Figure::Refused, 1.5),
        (slow(skewed(TrackShare)), Figure::Refused, 4.5),
        (skewed(PlainLeases), Figure::Refused, 36.0),
        (over(AskWhenEmpty, 2, 0.8), Figure::Waited, 24.0),
        (over(AskWhenEmpty, 8, 0.5), Figure::Waited, 95.0),
        (over(AskWhenEmpty, 8, 0.8), Figure::Waited, 90.0),
        (over(AskWhenEmpty, 8, 1.0), Figure::Waited, 88.0),
        (even(AskWhenEmpty), Figure::Waited, 98.0),
        (skewed(AskWhenEmpty), Figure::Waited, 90.0),
        (pages(AskWhenEmpty), Figure::Waited, 67.0),
        (larger(1_000, 0.8), Figure::Waited, 58.0),
        (larger(10_000, 0.8), Figure::Waited, 1.1),
        (larger(10_000, 1.0), Figure::Waited, 4.8),
    ]
}

/// The central log's loss is Erlang's, whatever the order in which units return.
fn erlang(runs: &Runs, extent: &Extent) -> Row {
    let setting = Setting::usual(Design::CentralLog);
    // An hour of one run scatters by 0.13 points.
    let hours = real(extent.seeds * extent.minutes) / 60.0;
    Row {
        figure: "refused %, Erlang's B",
        ..row(
            &setting,
            "",
            runs.refused(&setting),
            Known::Within(
                100.0 * erlang_b(setting.limit, 80.0),
                3.0 * 0.13 / hours.sqrt(),
            ),
        )
    }
}

/// The share of calls lost with so many lines and so many calls per holding time
/// (Erlang 1917), by its usual recursion.
fn erlang_b(lines: u64, load: f64) -> f64 {
    (1..=lines).fold(1.0, |lost, line| load * lost / (real(line) + load * lost))
}

fn flood(design: Design, gateways: usize, sync_us: u64, load: f64) -> Setting {
    Setting {
        gateways,
        sync_us,
        load,
        ..Setting::usual(design)
    }
}

/// Single floods. Where syncs are slow, much depends on who syncs when, so a run
/// scatters by a tenth there.
fn floods() -> Vec<(Setting, Known)> {
    let shared = |gateways, sync_us, load| flood(Design::SharedCounter, gateways, sync_us, load);
    vec![
        (shared(8, SECOND, 100.0), Known::Number(2.4)),
        (shared(8, SECOND, 1_000.0), Known::Number(7.3)),
        (shared(32, 10 * SECOND, 1_000.0), Known::Number(30.7)),
        (shared(2, 300 * MILLISECOND, 100.0), Known::Number(1.24)),
        (shared(32, SECOND, 100.0), Known::Number(2.61)),
        (shared(32, 100 * MILLISECOND, 1_000.0), Known::Number(2.63)),
        (shared(8, 10 * SECOND, 10.0), Known::Within(2.18, 0.4)),
    ]
}

/// What arrives in one sync interval, in limits.
fn per_sync(setting: &Setting) -> f64 {
    setting.load * real(setting.sync_us) / real(60 * SECOND)
}

/// The floods that the law is claimed for.
fn law(extent: &Extent) -> Vec<Setting> {
    let mut settings = Vec::new();
    for &gateways in extent.law_gateways {
        for sync_us in [100 * MILLISECOND, 300 * MILLISECOND, SECOND] {
            for &load in extent.floods {
                let setting = flood(Design::SharedCounter, gateways, sync_us, load);
                if per_sync(&setting) <= LAW_FLOOD_MAX {
                    settings.push(setting);
                }
            }
        }
    }
    settings
}

/// How far a flood is from `1 + (K − 1)/K × x`, in percent.
fn off_the_law(runs: &Runs, setting: &Setting) -> f64 {
    let others = 1.0 - 1.0 / real(setting.gateways as u64);
    let law = 1.0 + others * per_sync(setting);
    100.0 * (runs.multiple(setting) / law - 1.0).abs()
}

fn aligned() -> Setting {
    Setting {
        fixed_and_aligned: true,
        ..flood(Design::SharedCounter, 4, SECOND, 1_000.0)
    }
}

/// Every flood rate at every sync interval of the study.
fn any_flood(design: Design, gateways: usize, floods: &[f64]) -> Vec<Setting> {
    let syncs = [100, 300, 1_000, 3_000, 10_000].map(|ms| ms * MILLISECOND);
    let each = |sync_us| {
        let loads = floods.iter();
        loads.map(move |&load| flood(design, gateways, sync_us, load))
    };
    syncs.into_iter().flat_map(each).collect()
}

fn worst_flood(runs: &Runs, settings: &[Setting], known: f64) -> Option<Row> {
    let Setting {
        design, gateways, ..
    } = settings.first()?;
    Some(Row {
        design: design.name().to_owned(),
        setting: format!("{gateways} even, {} floods", settings.len()),
        figure: "admitted / limit, at most",
        measured: most(settings.iter().map(|setting| runs.multiple(setting))),
        // Published with two decimals; a mean of a few runs.
        known: Known::AtMost(1.01 * known),
    })
}

/// A limit of 10,000 at full load.
fn busy() -> Vec<Setting> {
    let mut settings = Vec::new();
    for gateways in [2, 8, 32] {
        for sync_s in [1, 3, 10] {
            settings.push(Setting {
                limit: 10_000,
                ..flood(Design::AskWhenEmpty, gateways, sync_s * SECOND, 1.0)
            });
        }
    }
    settings.push(central_busy());
    settings
}

fn central_busy() -> Setting {
    Setting {
        limit: 10_000,
        ..flood(Design::CentralLog, 32, SECOND, 1.0)
    }
}

fn busy_rows(runs: &Runs, busy: &[Setting]) -> Vec<Row> {
    let asking: Vec<&Setting> = busy
        .iter()
        .filter(|setting| setting.design == Design::AskWhenEmpty)
        .collect();
    let slow: Vec<&Setting> = asking
        .iter()
        .copied()
        .filter(|setting| setting.sync_us == 10 * SECOND)
        .collect();
    let ends = |values: Vec<f64>| [("least", least(&values)), ("most", most(values))];
    let waits = ends(asking.iter().map(|setting| runs.waited(setting)).collect());
    let refusals = ends(slow.iter().map(|setting| runs.refused(setting)).collect());
    let mut rows = Vec::new();
    for (end, measured) in waits {
        rows.push(Row {
            design: Design::AskWhenEmpty.name().to_owned(),
            setting: format!("limit 10,000, 100 %, 2 to 32 even, Δ 1 to 10 s, {end}"),
            figure: "waited %",
            measured,
            known: Known::PercentBetween(1.0, 6.0),
        });
    }
    for (end, measured) in refusals {
        rows.push(Row {
            design: Design::AskWhenEmpty.name().to_owned(),
            setting: format!("limit 10,000, 100 %, 2 to 32 even, Δ 10 s, {end}"),
            figure: "refused %",
            measured,
            known: Known::PercentBetween(4.0, 6.0),
        });
    }
    let central = central_busy();
    rows.push(row(
        &central,
        "refused %",
        runs.refused(&central),
        Known::Percent(0.8),
    ));
    rows
}

/// No design with leases ever passes the limit.
fn leases_are_exact(runs: &Runs) -> Row {
    let leases = runs
        .settings
        .iter()
        .zip(&runs.figures)
        .filter(|(setting, _)| {
            matches!(
                setting.design,
                Design::PlainLeases | Design::AskWhenEmpty | Design::CentralLog
            )
        });
    Row {
        design: "leases, central log".to_owned(),
        setting: "all runs".to_owned(),
        figure: "worst window / limit",
        measured: most(leases.flat_map(|(_, runs)| runs.iter().map(|run| run.worst))),
        known: Known::AtMost(1.0),
    }
}

fn row(setting: &Setting, figure: &'static str, measured: f64, known: Known) -> Row {
    Row {
        design: setting.design.name().to_owned(),
        setting: setting.text(),
        figure,
        measured,
        known,
    }
}

fn most(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::NEG_INFINITY, f64::max)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erlang_loses_what_his_tables_say() {
        // 10 lines and 5 erlangs: 1.84 %; 100 and 80: 0.40 %.
        assert!((erlang_b(10, 5.0) - 0.018_385).abs() < 1e-6);
        assert!((erlang_b(100, 80.0) - 0.003_992).abs() < 1e-5);
    }
}
