//! Where values stand along an axis, and which are written beside it. Knows no
//! drawing.

use super::chart::{Axis, Scale};

/// Gaps between ticks, about.
const GAPS: f64 = 6.0;

/// An axis that has been fitted to its values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fitted {
    from: f64,
    to: f64,
    is_log: bool,
    /// Values that are written out, and how.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Fitted {
    /// Fits an axis to the values that are shown along it.
    pub(super) fn to_values(axis: &Axis, values: impl Iterator<Item = f64> + Clone) -> Self {
        let shown = values.filter(|value| value.is_finite());
        let least = shown.clone().fold(f64::INFINITY, f64::min);
        let most = shown.fold(f64::NEG_INFINITY, f64::max);
        match &axis.scale {
            Scale::Linear => {
                let from = axis.from.unwrap_or_else(|| least.min(0.0));
                Self::linear(from, axis.to, most)
            }
            Scale::Log => Self::log(axis.from.unwrap_or(least), axis.to.unwrap_or(most)),
            Scale::Names(names) => Self {
                from: -0.5,
                to: f64::from(u32::try_from(names.len().max(1)).unwrap_or(u32::MAX)) - 0.5,
                is_log: false,
                ticks: (0_u32..)
                    .map(f64::from)
                    .zip(names.iter().cloned())
                    .collect(),
            },
        }
    }

    fn linear(from: f64, to: Option<f64>, most: f64) -> Self {
        let end = to.unwrap_or(most);
        let span = if end > from { end - from } else { 1.0 };
        let step = round_step(span / GAPS);
        // Without an end that is given, it is the next tick.
        let to = to.unwrap_or_else(|| from + (span / step - 1e-9).ceil() * step);
        let first = (from / step - 1e-9).ceil();
        let ticks = (0..)
            .map(|count| (first + f64::from(count)) * step)
            .take_while(|value| *value <= to + step * 1e-6)
            .map(|value| (value, plain(value, step)));
        Self {
            from,
            to,
            is_log: false,
            ticks: ticks.collect(),
        }
    }

    fn log(from: f64, to: f64) -> Self {
        let from = if from > 0.0 && from.is_finite() {
            from
        } else {
            1.0
        };
        let to = if to > from { to } else { from * 10.0 };
        let decades = (to / from).log10();
        let steps: &[f64] = match decades {
            d if d < 2.5 => &[1.0, 2.0, 5.0],
            d if d < 4.0 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let (first, last) = (from.log10().floor(), to.log10().ceil());
        let mut ticks = Vec::new();
        let mut decade = first;
        while decade <= last {
            for step in steps {
                let value = step * 10_f64.powf(decade);
                if (from * 0.999..=to * 1.001).contains(&value) {
                    ticks.push((value, plain(value, value)));
                }
            }
            decade += 1.0;
        }
        Self {
            from,
            to,
            is_log: true,
            ticks,
        }
    }

    /// Where a value stands: 0 at the beginning, 1 at the end.
    pub(super) fn share(&self, value: f64) -> f64 {
        if self.is_log {
            (value.max(f64::MIN_POSITIVE) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        }
    }
}

/// 1, 2, 2.5 or 5 × a power of ten, at least as large.
fn round_step(step: f64) -> f64 {
    let decade = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * decade)
        .find(|candidate| *candidate >= step * (1.0 - 1e-9))
        .unwrap_or(step)
}

/// A value with as many decimals as tell it from one a step away, thousands
/// grouped.
fn plain(value: f64, step: f64) -> String {
    let decimals = (0_usize..9)
        .find(|decimals| {
            let scaled = step * 10_f64.powi(i32::try_from(*decimals).unwrap_or(0));
            (scaled - scaled.round()).abs() < 1e-6 * scaled.abs().max(1e-9)
        })
        .unwrap_or(9);
    let text = format!("{value:.decimals$}");
    let (whole, part) = text
        .split_once('.')
        .map_or((&*text, None), |(w, p)| (w, Some(p)));
    let (sign, digits) = whole
        .strip_prefix('-')
        .map_or(("", whole), |rest| ("-", rest));
    let mut grouped = String::from(sign);
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    match part {
        Some(part) => format!("{grouped}.{part}"),
        None => grouped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis, values: &[f64]) -> Vec<String> {
        let fitted = Fitted::to_values(axis, values.iter().copied());
        fitted.ticks.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn a_linear_axis_begins_at_0_and_ends_at_a_tick() {
        let axis = Axis::linear("waits, %");
        assert_eq!(
            ticks(&axis, &[3.0, 97.0]),
            ["0", "20", "40", "60", "80", "100"]
        );
        assert_eq!(
            ticks(&axis, &[0.3, 0.7]),
            ["0.0", "0.2", "0.4", "0.6", "0.8"]
        );
        assert_eq!(
            ticks(&axis, &[2_600.0]),
            ["0", "500", "1,000", "1,500", "2,000", "2,500", "3,000"]
        );
        assert_eq!(
            ticks(&axis, &[0.0]),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
        let fitted = Fitted::to_values(&axis, [0.0, 97.0].into_iter());
        assert!((fitted.share(50.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_log_axis_names_its_decades() {
        let axis = Axis::log("flood, times the limit");
        assert_eq!(
            ticks(&axis, &[1.5, 1_000.0]),
            ["3", "10", "30", "100", "300", "1,000"]
        );
        assert_eq!(
            ticks(&axis, &[0.1, 10.0]),
            ["0.1", "0.2", "0.5", "1", "2", "5", "10"]
        );
        let fitted = Fitted::to_values(&axis, [0.1, 10.0].into_iter());
        assert!((fitted.share(1.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn names_stand_in_the_middle_of_their_places() {
        let axis = Axis::names("", vec!["a".to_owned(), "b".to_owned()]);
        let fitted = Fitted::to_values(&axis, std::iter::empty());
        assert!((fitted.share(0.0) - 0.25).abs() < 1e-9);
        assert_eq!(fitted.ticks.len(), 2);
    }
}
