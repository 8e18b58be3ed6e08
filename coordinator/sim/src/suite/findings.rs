//! What a suite found, for whoever asked. Knows no run.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::output::{Chart, DrawError, Table, svg};

/// What a suite or a scenario found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Its figures.
    pub tables: Vec<Table>,
    /// Pictures of them.
    pub charts: Vec<Chart>,
    /// What is not as it must be, a sentence each; none: all is well.
    pub complaints: Vec<String>,
}

/// Why there are no pictures.
#[derive(Debug, Error)]
pub enum PictureError {
    /// A chart that cannot be drawn; those before it have been written.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// A file that cannot be written; those before it have been.
    #[error("cannot write {}: {cause}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

impl Findings {
    /// Whether everything is as it must be.
    #[must_use]
    pub fn hold(&self) -> bool {
        self.complaints.is_empty()
    }

    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.tables.extend(other.tables);
        self.charts.extend(other.charts);
        self.complaints.extend(other.complaints);
    }

    /// All tables, for people.
    #[must_use]
    pub fn text(&self) -> String {
        self.each_table(Table::text)
    }

    /// All tables as CSV, an empty line between them.
    #[must_use]
    pub fn csv(&self) -> String {
        self.each_table(Table::csv)
    }

    /// All rows of all tables, a JSON object in each line.
    #[must_use]
    pub fn json_lines(&self) -> String {
        self.tables.iter().map(Table::json_lines).collect()
    }

    fn each_table(&self, form: impl Fn(&Table) -> String) -> String {
        let texts: Vec<String> = self.tables.iter().map(form).collect();
        texts.join("\n")
    }

    /// Writes each chart to `NAME.svg` and each table to `NAME.csv`, in a folder
    /// that is made if there is none. Says which files those are.
    ///
    /// # Errors
    /// The first file that cannot be written.
    pub fn write_to(&self, folder: &Path) -> Result<Vec<PathBuf>, PictureError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |cause| PictureError::Write { path, cause }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let mut written = Vec::new();
        let mut write = |name: String, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(failed(&path))?;
            written.push(path);
            Ok::<(), PictureError>(())
        };
        for chart in &self.charts {
            write(format!("{}.svg", chart.name), svg(chart)?)?;
        }
        for table in &self.tables {
            write(format!("{}.csv", table.name), table.csv())?;
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::output::{Axis, Cell, Role, Series};

    #[test]
    fn tables_and_pictures_are_files_of_their_names() {
        let mut table = Table::new("waits", "Waits.", &[("load", "load")]);
        table.push(vec![Cell::Count(80)]);
        let chart = Chart {
            name: "waits",
            title: "Waits".to_owned(),
            setting: String::new(),
            x: Axis::linear("load"),
            y: Axis::linear("waits"),
            series: vec![Series::line("ours", Role::Ours, vec![(0.0, 1.0)])],
        };
        let findings = Findings {
            tables: vec![table.clone(), table],
            charts: vec![chart],
            complaints: Vec::new(),
        };
        assert!(findings.hold());
        assert_eq!(findings.csv(), "load\n80\n\nload\n80\n");
        assert_eq!(findings.json_lines(), "{\"load\":80}\n{\"load\":80}\n");
        let folder = std::env::temp_dir().join(format!("leasehold-sim-{}", std::process::id()));
        let written = findings.write_to(&folder.join("new")).unwrap();
        assert_eq!(written.len(), 3);
        assert!(fs::read_to_string(&written[0]).unwrap().starts_with("<svg"));
        // A file stands where the folder would be.
        let error = findings.write_to(&written[0]).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot write ") && error.contains("waits.svg"),
            "{error}"
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
