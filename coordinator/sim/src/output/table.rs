//! Results in rows: for people, as CSV, as JSON lines. Knows nothing of what the
//! figures mean.

use std::fmt::Write as _;

use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// Digits after the point in CSV and JSON; more would only be noise.
const MACHINE_DECIMALS: i32 = 6;

/// A result in rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Names its files: lower case, dashes.
    pub name: &'static str,
    /// What is in it, in a sentence.
    pub title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Column {
    field: &'static str,
    heading: &'static str,
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A name.
    Text(String),
    /// A whole number.
    Count(u64),
    /// A number, and how many decimals people are shown.
    Figure(f64, usize),
    /// Something held, or did not.
    Held(bool),
    /// There is none.
    None,
}

impl Table {
    /// An empty table. Each column has the field's name in CSV and JSON and a
    /// heading for people; one with an empty heading is for machines only.
    #[must_use]
    pub fn new(
        name: &'static str,
        title: impl Into<String>,
        columns: &[(&'static str, &'static str)],
    ) -> Self {
        let columns = columns
            .iter()
            .map(|&(field, heading)| Column { field, heading })
            .collect();
        Self {
            name,
            title: title.into(),
            columns,
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row: a cell for each column; what is missing is none.
    pub fn push(&mut self, mut cells: Vec<Cell>) {
        cells.resize(self.columns.len(), Cell::None);
        self.rows.push(cells);
    }

    /// Adds a line that people read below the table.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Columns for people: each as wide as its widest cell, numbers to the right.
    #[must_use]
    pub fn text(&self) -> String {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&column| !self.columns[column].heading.is_empty())
            .collect();
        let cells: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| shown.iter().map(|&column| row[column].shown()).collect())
            .collect();
        let mut lines = vec![String::new(); cells.len() + 1];
        for (place, &column) in shown.iter().enumerate() {
            let heading = self.columns[column].heading;
            let width = cells
                .iter()
                .map(|row| row[place].chars().count())
                .chain([heading.chars().count()])
                .max()
                .unwrap_or(0);
            let right = !self
                .rows
                .iter()
                .any(|row| matches!(row[column], Cell::Text(_) | Cell::Held(_)));
            let column = std::iter::once(heading).chain(cells.iter().map(|row| &*row[place]));
            for (line, cell) in lines.iter_mut().zip(column) {
                let gap = if place == 0 { "" } else { "  " };
                // Writing to a string cannot fail.
                let _ = if right {
                    write!(line, "{gap}{cell:>width$}")
                } else {
                    write!(line, "{gap}{cell:<width$}")
                };
            }
        }
        let mut text = format!("{}\n\n", self.title);
        for line in lines {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(note);
            text.push('\n');
        }
        text
    }

    /// A heading line and a line for each row, as RFC 4180 has it.
    #[must_use]
    pub fn csv(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| {
            let mut line = cells
                .map(|cell| {
                    if cell.contains([',', '"', '\n', '\r']) {
                        format!("\"{}\"", cell.replace('"', "\"\""))
                    } else {
                        cell
                    }
                })
                .collect::<Vec<_>>()
                .join(",");
            line.push('\n');
            line
        };
        let mut csv = line(&mut self.columns.iter().map(|column| column.field.to_owned()));
        for row in &self.rows {
            csv.push_str(&line(&mut row.iter().map(Cell::machine)));
        }
        csv
    }

    /// One JSON object for each row, a line each, its fields in the columns' order.
    #[must_use]
    pub fn json_lines(&self) -> String {
        let mut lines = String::new();
        for row in &self.rows {
            let row = Row {
                columns: &self.columns,
                cells: row,
            };
            // Names and numbers only: nothing that JSON has no form for.
            lines.push_str(&serde_json::to_string(&row).unwrap_or_default());
            lines.push('\n');
        }
        lines
    }
}

impl Cell {
    /// A name.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => grouped(*count),
            Self::Figure(figure, decimals) if figure.is_finite() => {
                let shown = format!("{figure:.decimals$}");
                // A minus that rounding left without a figure says nothing.
                match shown.strip_prefix('-') {
                    Some(rest) if !rest.contains(|c: char| ('1'..='9').contains(&c)) => {
                        rest.to_owned()
                    }
                    _ => shown,
                }
            }
            Self::Held(held) => (if *held { "yes" } else { "NO" }).to_owned(),
            Self::Figure(..) | Self::None => "-".to_owned(),
        }
    }

    fn machine(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Figure(figure, _) if figure.is_finite() => rounded(*figure).to_string(),
            Self::Held(held) => held.to_string(),
            Self::Figure(..) | Self::None => String::new(),
        }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Count(count) => serializer.serialize_u64(*count),
            Self::Figure(figure, _) if figure.is_finite() => {
                serializer.serialize_f64(rounded(*figure))
            }
            Self::Held(held) => serializer.serialize_bool(*held),
            Self::Figure(..) | Self::None => serializer.serialize_none(),
        }
    }
}

struct Row<'a> {
    columns: &'a [Column],
    cells: &'a [Cell],
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.cells.len()))?;
        for (column, cell) in self.columns.iter().zip(self.cells) {
            map.serialize_entry(column.field, cell)?;
        }
        map.end()
    }
}

/// Rounded for machines; never a negative zero.
fn rounded(figure: f64) -> f64 {
    let scale = 10_f64.powi(MACHINE_DECIMALS);
    let rounded = (figure * scale).round() / scale;
    if rounded == 0.0 { 0.0 } else { rounded }
}

/// `1234567` as `1,234,567`.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(
            "waits",
            "Waits.",
            &[
                ("design", "design"),
                ("wait_pct", "wait %"),
                ("requests", "requests"),
                ("ok", "ok"),
                ("exact", ""),
            ],
        );
        table.push(vec![
            Cell::text("ours, parked"),
            Cell::Figure(3.625, 1),
            Cell::Count(1_234_567),
            Cell::Held(true),
            Cell::Figure(1.0 / 3.0, 0),
        ]);
        table.push(vec![
            Cell::text("split"),
            Cell::Figure(-0.01, 1),
            Cell::Count(7),
        ]);
        table.note("A note.");
        table
    }

    #[test]
    fn people_see_columns_that_line_up() {
        assert_eq!(
            table().text(),
            "Waits.\n\n\
             design        wait %   requests  ok\n\
             ours, parked     3.6  1,234,567  yes\n\
             split            0.0          7  -\n\
             \nA note.\n"
        );
    }

    #[test]
    fn machines_get_every_column_in_order() {
        assert_eq!(
            table().csv(),
            "design,wait_pct,requests,ok,exact\n\
             \"ours, parked\",3.625,1234567,true,0.333333\n\
             split,-0.01,7,,\n"
        );
        assert_eq!(
            table().json_lines(),
            "{\"design\":\"ours, parked\",\"wait_pct\":3.625,\"requests\":1234567,\"ok\":true,\"exact\":0.333333}\n\
             {\"design\":\"split\",\"wait_pct\":-0.01,\"requests\":7,\"ok\":null,\"exact\":null}\n"
        );
    }

    #[test]
    fn a_figure_that_is_none_is_none_everywhere() {
        let cell = Cell::Figure(f64::NAN, 2);
        assert_eq!(
            (cell.shown(), cell.machine()),
            ("-".to_owned(), String::new())
        );
        assert_eq!(rounded(-0.000_000_01).to_string(), "0");
    }
}
