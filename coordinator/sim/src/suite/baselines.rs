//! Values that others published about the designs Leasehold is compared with: the
//! simulator must land on them before its other figures mean anything. Knows
//! nothing of Leasehold itself.

mod gateways;
mod one_node;

use super::{Conditions, Findings};
use crate::output::{Cell, Table};

/// How much of what was published may be missed, where nothing else is said:
/// relatively, or in points of a percentage, whichever is more.
const TOLERANCE: f64 = 0.05;
const TOLERANCE_POINTS: f64 = 1.5;

/// How many runs of what length.
#[derive(Clone, Copy, Debug)]
struct Extent {
    seed: u64,
    /// Of every setting.
    seeds: u64,
    /// Of a quiet key, simulated.
    minutes: u64,
    /// Of a busy key, simulated.
    busy_minutes: u64,
    /// Of a flood, simulated.
    flood_minutes: u64,
    /// Of one minute of retrying clients.
    retry_seeds: u64,
    /// The law of floods is checked for so many gateways.
    law_gateways: &'static [usize],
    /// Multiples of the limit that floods come at.
    floods: &'static [f64],
    /// Fewer runs miss by more: tolerances are multiplied by this.
    widen: f64,
}

impl Extent {
    /// As many as the study made of quiet keys, three hours of a busy key, 100 minutes
    /// of each flood, and twice as many as the study made of retrying clients.
    fn full(seed: u64) -> Self {
        Self {
            seed,
            seeds: 5,
            minutes: 300,
            busy_minutes: 36,
            flood_minutes: 20,
            retry_seeds: 40,
            law_gateways: &[2, 4, 8, 16, 32],
            floods: &[1.5, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0],
            widen: 1.0,
        }
    }

    /// Two hours of a quiet key, some minutes of the others. An hour's refusals
    /// scatter by about a point at 80 % load, hence twice the tolerance.
    fn reduced(seed: u64) -> Self {
        Self {
            seed,
            seeds: 2,
            minutes: 60,
            busy_minutes: 4,
            flood_minutes: 5,
            retry_seeds: 4,
            law_gateways: &[8],
            floods: &[1.5, 10.0, 100.0],
            widen: 2.0,
        }
    }
}

/// What a figure must be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// This percentage.
    Percent(f64),
    /// This number.
    Number(f64),
    /// This, with a deviation that is no matter of chance.
    Within(f64, f64),
    /// No more than this.
    AtMost(f64),
    /// A percentage from one to the other.
    PercentBetween(f64, f64),
}

impl Known {
    fn text(self) -> String {
        match self {
            Self::Percent(value) | Self::Number(value) | Self::Within(value, _) => {
                format!("{}", Decimals(value))
            }
            Self::AtMost(most) => format!("≤ {}", Decimals(most)),
            Self::PercentBetween(least, most) => {
                format!("{} to {}", Decimals(least), Decimals(most))
            }
        }
    }

    /// The least and the most that is accepted.
    fn accepted(self, widen: f64) -> (f64, f64) {
        let points = |value: f64| widen * (TOLERANCE * value).max(TOLERANCE_POINTS);
        match self {
            Self::Percent(value) => (value - points(value), value + points(value)),
            Self::Number(value) => {
                let tolerance = widen * TOLERANCE * value;
                (value - tolerance, value + tolerance)
            }
            Self::Within(value, tolerance) => (value - tolerance, value + tolerance),
            Self::AtMost(most) => (f64::NEG_INFINITY, most),
            Self::PercentBetween(least, most) => (least - points(least), most + points(most)),
        }
    }
}

/// At most three decimals, none that say nothing.
struct Decimals(f64);

impl std::fmt::Display for Decimals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.3}", self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// One published value and what was measured.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    design: String,
    setting: String,
    figure: &'static str,
    measured: f64,
    known: Known,
}

/// Measures every known value.
#[must_use]
pub fn baselines(conditions: &Conditions) -> Findings {
    let extent = if conditions.reduced {
        Extent::reduced(conditions.seed)
    } else {
        Extent::full(conditions.seed)
    };
    let mut rows = gateways::rows(&extent, conditions.progress);
    rows.extend(one_node::rows(&extent, conditions.progress));
    findings(&rows, extent.widen)
}

fn findings(rows: &[Row], widen: f64) -> Findings {
    let mut table = Table::new(
        "baselines",
        "Published values of the designs that Leasehold is compared with, and what the simulator measures.",
        &[
            ("design", "design"),
            ("setting", "setting"),
            ("figure", "figure"),
            ("measured", "measured"),
            ("known", "known"),
            ("accepted_least", ""),
            ("accepted_most", ""),
            ("ok", "lands on it"),
        ],
    );
    let mut complaints = Vec::new();
    for row in rows {
        let (least, most) = row.known.accepted(widen);
        let ok = (least..=most).contains(&row.measured);
        let bound = |bound: f64| {
            if bound.is_finite() {
                Cell::Figure(bound, 3)
            } else {
                Cell::None
            }
        };
        table.push(vec![
            Cell::text(&row.design),
            Cell::text(&row.setting),
            Cell::text(row.figure),
            Cell::Figure(row.measured, 3),
            Cell::text(row.known.text()),
            bound(least),
            bound(most),
            Cell::Held(ok),
        ]);
        if !ok {
            complaints.push(format!(
                "{}, {}: {} is {:.3}, published is {}, accepted {least:.3} to {most:.3}",
                row.design,
                row.setting,
                row.figure,
                row.measured,
                row.known.text()
            ));
        }
    }
    table.note(
        "Limit 100 per 60 s unless said otherwise; one node: 10 per s, 50 clients, 30 jobs per s, 60 s.",
    );
    table.note(if widen > 1.0 {
        "Accepted: 10 % or 3 points around the known value, whichever is more (a reduced run)."
    } else {
        "Accepted: 5 % or 1.5 points around the known value, whichever is more."
    });
    Findings {
        tables: vec![table],
        charts: Vec::new(),
        complaints,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Unwatched;

    #[test]
    fn the_simulator_lands_on_the_published_values() {
        let conditions = Conditions {
            seed: 1,
            reduced: true,
            progress: &Unwatched,
        };
        let findings = baselines(&conditions);
        assert!(findings.hold(), "{}", findings.complaints.join("\n"));
        assert!(findings.tables[0].len() > 50);
    }

    #[test]
    fn a_value_that_is_missed_is_named() {
        let row = Row {
            design: "split".to_owned(),
            setting: "32 gateways".to_owned(),
            figure: "refused %",
            measured: 36.9,
            known: Known::Percent(39.0),
        };
        let missed = findings(std::slice::from_ref(&row), 1.0);
        assert_eq!(
            missed.complaints,
            ["split, 32 gateways: refused % is 36.900, published is 39, accepted 37.050 to 40.950"]
        );
        assert!(findings(&[row], 2.0).hold());
    }
}
