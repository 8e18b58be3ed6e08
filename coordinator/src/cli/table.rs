//! Columns for people.

/// Rows under headings, each column as wide as its widest cell; numbers to the right.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells
            .chain(headings.get(column).map(|h| h.chars().count()))
            .max()
            .unwrap_or(0)
    };
    let numeric = |column: usize| {
        let mut cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .filter(|cell| *cell != "-")
            .peekable();
        cells.peek().is_some() && cells.all(|cell| is_quantity(cell))
    };
    let columns: Vec<(usize, bool)> = (0..headings.len())
        .map(|column| (width(column), numeric(column)))
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(&columns)
            .map(|(cell, (width, right))| {
                if *right {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            })
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&mut headings.iter().copied())];
    lines.extend(
        rows.iter()
            .map(|row| line(&mut row.iter().map(String::as_str))),
    );
    lines.join("\n")
}

/// `12`, `1.5` or `250ms`, but not an address or an id.
fn is_quantity(cell: &str) -> bool {
    let unit = cell.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    unit.len() < cell.len() && matches!(unit, "" | "ms" | "s" | "m" | "h" | "d")
}

/// `name  value` lines.
pub(super) fn facts(pairs: &[(&str, String)]) -> String {
    let width = pairs
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    let lines: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}"))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_numbers_stand_to_the_right() {
        let rows = vec![
            vec!["a".to_owned(), "7".to_owned()],
            vec!["long".to_owned(), "100".to_owned()],
        ];
        assert_eq!(
            table(&["KEY", "FREE"], &rows),
            "KEY   FREE\na        7\nlong   100"
        );
        assert_eq!(table(&["KEY", "FREE"], &[]), "KEY  FREE");
        assert_eq!(
            facts(&[("a", "1".to_owned()), ("bcd", "2".to_owned())]),
            "a    1\nbcd  2"
        );
    }
}
