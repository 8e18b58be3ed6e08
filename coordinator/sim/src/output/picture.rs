//! Draws charts as SVG: on white, so that they can be read wherever they are shown.
//! Knows nothing of what the figures mean.

use plotters::{
    coord::Shift,
    element::{Circle, DashedPathElement, PathElement, Rectangle, Text},
    prelude::{DrawingArea, IntoDrawingArea as _, RGBColor, SVGBackend, WHITE},
    style::{
        Color as _, FontStyle, IntoFont as _, ShapeStyle, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};
use thiserror::Error;

use super::{
    axis::Fitted,
    chart::{Chart, Mark, Role, Series},
};

/// Drawn twice as large as it is shown, so that nothing is rounded to whole pixels.
const FINE: i32 = 2;
const WIDTH: i32 = 820 * FINE;
const HEIGHT: i32 = 440 * FINE;
/// The area inside the axes.
const LEFT: i32 = 58 * FINE;
const RIGHT: i32 = 600 * FINE;
const TOP: i32 = 92 * FINE;
const BOTTOM: i32 = 386 * FINE;
const MARGIN: i32 = 18 * FINE;
/// The legend's left edge, and its lines' distance.
const LEGEND: i32 = 624 * FINE;
const LEGEND_LINE: i32 = 22 * FINE;

const FONT: &str = "Helvetica, Arial, sans-serif";
const INK: RGBColor = RGBColor(34, 34, 34);
const QUIET: RGBColor = RGBColor(102, 102, 102);
const GRID: RGBColor = RGBColor(230, 230, 230);
const AXIS: RGBColor = RGBColor(136, 136, 136);
const OURS: RGBColor = RGBColor(11, 93, 180);
const BOUND: RGBColor = RGBColor(70, 70, 70);
/// Told apart also by people who see fewer colours.
const OTHERS: [RGBColor; 8] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 140, 105),
    RGBColor(190, 110, 160),
    RGBColor(214, 152, 0),
    RGBColor(86, 160, 211),
    RGBColor(140, 105, 80),
    RGBColor(120, 120, 120),
    RGBColor(110, 90, 170),
];
/// Above so many bars, none has its figure written on it.
const WRITTEN_BARS_MAX: usize = 24;
/// A line through more points shows no dots.
const DOTS_MAX: usize = 30;

/// A picture that could not be drawn.
#[derive(Debug, Error)]
#[error("cannot draw {name}: {cause}")]
pub struct DrawError {
    name: &'static str,
    cause: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The picture as the text of an SVG file.
///
/// # Errors
/// The backend's own; none of its operations on a text can fail.
pub fn svg(chart: &Chart) -> Result<String, DrawError> {
    let mut text = String::new();
    {
        let size = (WIDTH.unsigned_abs(), HEIGHT.unsigned_abs());
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(chart, &area).map_err(|cause| DrawError {
            name: chart.name,
            cause,
        })?;
    }
    let drawn = format!("width=\"{WIDTH}\" height=\"{HEIGHT}\"");
    let shown = format!("width=\"{}\" height=\"{}\"", WIDTH / FINE, HEIGHT / FINE);
    Ok(text.replacen(&drawn, &shown, 1))
}

fn draw(chart: &Chart, area: &Area<'_>) -> Result<(), String> {
    let put = Pen { area };
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    put.text(&chart.title, (MARGIN, 14 * FINE), &bold(17, &INK))?;
    put.text(&chart.setting, (MARGIN, 38 * FINE), &font(13, &QUIET))?;
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let plot = Plot {
        x: Fitted::to_values(&chart.x, points().map(|point| point.0)),
        y: Fitted::to_values(&chart.y, points().map(|point| point.1)),
    };
    put.text(&chart.y.label, (MARGIN, 66 * FINE), &font(13, &QUIET))?;
    plot.axes(&put)?;
    put.text(
        &chart.x.label,
        ((LEFT + RIGHT) / 2, BOTTOM + 30 * FINE),
        &placed(font(13, &QUIET), HPos::Center, VPos::Top),
    )?;
    let colours = colours(&chart.series);
    let bars: Vec<usize> = (0..chart.series.len())
        .filter(|place| chart.series[*place].mark == Mark::Bars)
        .collect();
    let written = points().count() <= WRITTEN_BARS_MAX;
    // The first on top of the others.
    for (place, series) in chart.series.iter().enumerate().rev() {
        let pen = Stroke::of(series, colours[place]);
        match bars.iter().position(|bar| *bar == place) {
            Some(side) => plot.bars(&put, series, &pen, (side, bars.len()), written)?,
            None => plot.line(&put, series, &pen)?,
        }
    }
    legend(&put, &chart.series, &colours)?;
    area.present().map_err(|error| error.to_string())
}

/// Two axes, fitted.
struct Plot {
    x: Fitted,
    y: Fitted,
}

impl Plot {
    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        (
            LEFT + pixels(self.x.share(x), RIGHT - LEFT),
            BOTTOM - pixels(self.y.share(y).min(1.0), BOTTOM - TOP),
        )
    }

    fn axes(&self, put: &Pen<'_, '_>) -> Result<(), String> {
        let grid = GRID.stroke_width(FINE.unsigned_abs());
        let axis = AXIS.stroke_width(FINE.unsigned_abs());
        let beside = placed(font(12, &QUIET), HPos::Right, VPos::Center);
        for (value, text) in &self.y.ticks {
            let y = BOTTOM - pixels(self.y.share(*value), BOTTOM - TOP);
            put.path(vec![(LEFT, y), (RIGHT, y)], grid)?;
            put.text(text, (LEFT - 8 * FINE, y), &beside)?;
        }
        let below = placed(font(12, &QUIET), HPos::Center, VPos::Top);
        for (value, text) in &self.x.ticks {
            let x = LEFT + pixels(self.x.share(*value), RIGHT - LEFT);
            put.path(vec![(x, BOTTOM), (x, BOTTOM + 5 * FINE)], axis)?;
            put.text(text, (x, BOTTOM + 9 * FINE), &below)?;
        }
        put.path(vec![(LEFT, BOTTOM), (RIGHT, BOTTOM)], axis)
    }

    fn line(&self, put: &Pen<'_, '_>, series: &Series, stroke: &Stroke) -> Result<(), String> {
        let points: Vec<(i32, i32)> = series
            .points
            .iter()
            .filter(|point| point.0.is_finite() && point.1.is_finite())
            .map(|point| self.at(*point))
            .collect();
        stroke.draw(put, points.clone())?;
        if series.role != Role::Bound && points.len() <= DOTS_MAX {
            for point in points {
                stroke.dot(put, point)?;
            }
        }
        Ok(())
    }

    /// Bars of one series, which is at one side of so many.
    fn bars(
        &self,
        put: &Pen<'_, '_>,
        series: &Series,
        stroke: &Stroke,
        (side, sides): (usize, usize),
        written: bool,
    ) -> Result<(), String> {
        let real = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let width = 0.72 / real(sides);
        for &(x, y) in &series.points {
            let from = x - 0.36 + width * real(side);
            let (left, top) = self.at((from + width * 0.06, y));
            let (right, _) = self.at((from + width * 0.94, y));
            put.rectangle([(left, top.min(BOTTOM)), (right, BOTTOM)], stroke.colour)?;
            if written {
                let text = figure(y);
                let above = placed(font(11, &QUIET), HPos::Center, VPos::Bottom);
                put.text(&text, (i32::midpoint(left, right), top - 3 * FINE), &above)?;
            }
        }
        Ok(())
    }
}

/// How a series is drawn.
struct Stroke {
    colour: RGBColor,
    width: i32,
    dashed: bool,
}

impl Stroke {
    fn of(series: &Series, colour: RGBColor) -> Self {
        Self {
            colour,
            width: match series.role {
                Role::Ours => 3 * FINE,
                Role::Bound => 2 * FINE,
                Role::Other => 3 * FINE / 2,
            },
            dashed: series.role == Role::Bound,
        }
    }

    fn draw(&self, put: &Pen<'_, '_>, points: Vec<(i32, i32)>) -> Result<(), String> {
        let style = self.colour.stroke_width(self.width.unsigned_abs());
        if self.dashed {
            put.dashes(points, style)
        } else {
            put.path(points, style)
        }
    }

    fn dot(&self, put: &Pen<'_, '_>, at: (i32, i32)) -> Result<(), String> {
        put.dot(at, self.width + FINE, self.colour)
    }
}

fn legend(put: &Pen<'_, '_>, all: &[Series], colours: &[RGBColor]) -> Result<(), String> {
    let mut y = TOP + 8 * FINE;
    for (series, colour) in all.iter().zip(colours) {
        let stroke = Stroke::of(series, *colour);
        if series.mark == Mark::Bars {
            let corners = [(LEGEND, y - 6 * FINE), (LEGEND + 12 * FINE, y + 6 * FINE)];
            put.rectangle(corners, *colour)?;
        } else {
            stroke.draw(put, vec![(LEGEND, y), (LEGEND + 26 * FINE, y)])?;
            if series.role != Role::Bound {
                stroke.dot(put, (LEGEND + 13 * FINE, y))?;
            }
        }
        let style = if series.role == Role::Ours {
            bold(13, &INK)
        } else {
            font(13, &INK)
        };
        put.text(
            &series.label,
            (LEGEND + 34 * FINE, y),
            &placed(style, HPos::Left, VPos::Center),
        )?;
        y += LEGEND_LINE;
    }
    Ok(())
}

/// A colour for each series; others in turn, unless they have one of their own.
fn colours(all: &[Series]) -> Vec<RGBColor> {
    let mut others = OTHERS.iter().cycle();
    let colours = all.iter().map(|series| match series.role {
        Role::Ours => OURS,
        Role::Bound => BOUND,
        Role::Other => match series.hue {
            Some(hue) => OTHERS[hue % OTHERS.len()],
            None => others.next().copied().unwrap_or(QUIET),
        },
    });
    colours.collect()
}

/// Puts shapes into the picture.
struct Pen<'a, 'b> {
    area: &'a Area<'b>,
}

impl Pen<'_, '_> {
    fn path(&self, points: Vec<(i32, i32)>, style: ShapeStyle) -> Result<(), String> {
        self.area
            .draw(&PathElement::new(points, style))
            .map_err(|error| error.to_string())
    }

    fn dashes(&self, points: Vec<(i32, i32)>, style: ShapeStyle) -> Result<(), String> {
        let dashes = DashedPathElement::new(points, 6 * FINE, 4 * FINE, style);
        self.area.draw(&dashes).map_err(|error| error.to_string())
    }

    fn dot(&self, at: (i32, i32), radius: i32, colour: RGBColor) -> Result<(), String> {
        self.area
            .draw(&Circle::new(at, radius, colour.filled()))
            .map_err(|error| error.to_string())
    }

    fn rectangle(&self, corners: [(i32, i32); 2], colour: RGBColor) -> Result<(), String> {
        self.area
            .draw(&Rectangle::new(corners, colour.filled()))
            .map_err(|error| error.to_string())
    }

    fn text(&self, text: &str, at: (i32, i32), style: &TextStyle<'static>) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        self.area
            .draw(&Text::new(text.to_owned(), at, style.clone()))
            .map_err(|error| error.to_string())
    }
}

/// A font of so many pixels as it is shown.
fn font(pixels: i32, colour: &'static RGBColor) -> TextStyle<'static> {
    // The backend divides by this, to get from a line's height to a font's size.
    let size = f64::from(pixels * FINE) * 1.24;
    TextStyle::from((FONT, size).into_font()).color(colour)
}

fn bold(pixels: i32, colour: &'static RGBColor) -> TextStyle<'static> {
    let size = f64::from(pixels * FINE) * 1.24;
    TextStyle::from((FONT, size).into_font().style(FontStyle::Bold)).color(colour)
}

fn placed(style: TextStyle<'static>, h: HPos, v: VPos) -> TextStyle<'static> {
    style.pos(Pos::new(h, v))
}

/// `0`, `0.38`, `4.2`, `85`.
fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 10.0 => return format!("{value:.0}"),
        size if size >= 1.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a share of a picture's width; `as` saturates"
)]
fn pixels(share: f64, length: i32) -> i32 {
    (share * f64::from(length)).round() as i32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::output::Axis;

    fn chart(mark: Mark) -> Chart {
        Chart {
            name: "waits",
            title: "Requests that waited <by load>".to_owned(),
            setting: "100 per 60 s".to_owned(),
            x: Axis::linear("load, % of the limit"),
            y: Axis::linear("waits, % of requests"),
            series: vec![
                Series {
                    label: "leasehold".to_owned(),
                    role: Role::Ours,
                    hue: None,
                    mark,
                    points: vec![(50.0, 0.0), (80.0, 3.6), (100.0, 33.0)],
                },
                Series::line(
                    "proven bound",
                    Role::Bound,
                    vec![(50.0, 0.0), (100.0, 26.0)],
                ),
            ],
        }
    }

    #[test]
    fn a_picture_names_its_axes_and_what_is_drawn() {
        let text = svg(&chart(Mark::Line)).unwrap();
        assert!(text.starts_with("<svg width=\"820\" height=\"440\" viewBox=\"0 0 1640 880\""));
        for words in [
            "Requests that waited &lt;by load&gt;",
            "load, % of the limit",
            "waits, % of requests",
            "leasehold",
            "proven bound",
        ] {
            assert!(text.contains(words), "{words}");
        }
        assert_eq!(text, svg(&chart(Mark::Line)).unwrap(), "the same each time");
        assert!(svg(&chart(Mark::Bars)).unwrap().contains("33"));
    }

    #[test]
    fn figures_that_are_none_leave_no_mark() {
        let mut chart = chart(Mark::Line);
        chart.series[0].points.push((f64::NAN, 1.0));
        assert_eq!(
            svg(&chart).unwrap().matches("<circle").count(),
            // Three in the plot, one in the legend.
            4
        );
    }
}
