//! What a picture shows, as data. Knows neither how it is drawn nor what the
//! figures mean.

/// A picture with two axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Names its file: lower case, dashes.
    pub name: &'static str,
    /// What it shows, in a few words.
    pub title: String,
    /// The setting: limit, gateways, traffic.
    pub setting: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// What is drawn; the first is drawn last, on top.
    pub series: Vec<Series>,
}

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it measures, with its unit.
    pub label: String,
    /// How values are placed.
    pub scale: Scale,
    /// Where it begins; none: where the figures begin, or at 0 if linear.
    pub from: Option<f64>,
    /// Where it ends; none: a little above the greatest figure.
    pub to: Option<f64>,
}

/// How values are placed along an axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// Each decade as wide as the next; figures must be above 0.
    Log,
    /// Named places: the figures 0, 1, 2 … in the order of the names.
    Names(Vec<String>),
}

/// Figures that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// Decides its colour and weight.
    pub role: Role,
    /// Which of the colours of its role it has, so that the same thing has the same
    /// colour in every picture; none: the next.
    pub hue: Option<usize>,
    /// How it is drawn.
    pub mark: Mark,
    /// Its figures, by x.
    pub points: Vec<(f64, f64)>,
}

/// What a series stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What the reader looks for first.
    Ours,
    /// Proven: nothing can be better. Drawn dashed and grey.
    Bound,
    /// What it is compared with.
    Other,
}

/// How figures are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line through dots.
    Line,
    /// Bars; several series stand side by side. For named places.
    Bars,
}

impl Axis {
    /// Evenly placed values from 0.
    #[must_use]
    pub fn linear(label: impl Into<String>) -> Self {
        Self::placed(label, Scale::Linear)
    }

    /// Values in decades.
    #[must_use]
    pub fn log(label: impl Into<String>) -> Self {
        Self::placed(label, Scale::Log)
    }

    /// Named places.
    #[must_use]
    pub fn names(label: impl Into<String>, names: Vec<String>) -> Self {
        Self::placed(label, Scale::Names(names))
    }

    fn placed(label: impl Into<String>, scale: Scale) -> Self {
        Self {
            label: label.into(),
            scale,
            from: None,
            to: None,
        }
    }

    /// The same, from one value to another.
    #[must_use]
    pub fn between(self, from: f64, to: f64) -> Self {
        Self {
            from: Some(from),
            to: Some(to),
            ..self
        }
    }
}

impl Series {
    /// A line.
    #[must_use]
    pub fn line(label: impl Into<String>, role: Role, points: Vec<(f64, f64)>) -> Self {
        Self {
            label: label.into(),
            role,
            hue: None,
            mark: Mark::Line,
            points,
        }
    }

    /// Bars.
    #[must_use]
    pub fn bars(label: impl Into<String>, role: Role, points: Vec<(f64, f64)>) -> Self {
        Self {
            label: label.into(),
            role,
            hue: None,
            mark: Mark::Bars,
            points,
        }
    }

    /// The same in a colour that it has in other pictures, too.
    #[must_use]
    pub fn hued(self, hue: usize) -> Self {
        Self {
            hue: Some(hue),
            ..self
        }
    }
}
