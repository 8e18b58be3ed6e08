//! Files of measured figures: JSON lines that name the commit and the moment.
//! Knows no figure.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

/// The file of results with this name, in this package.
#[must_use]
pub fn results_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("results")
        .join(name)
}

/// Adds objects to a file, each with the commit and the moment.
///
/// # Errors
/// When the file cannot be written.
pub fn append_results(path: &Path, lines: &[Value]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let git = Command::new("git")
        .args(["rev-parse", "--short", "HEAD"])
        .output();
    let commit = git.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    let commit = commit.unwrap_or_default();
    let at = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let mut file = File::options().create(true).append(true).open(path)?;
    for line in lines {
        let mut line = line.clone();
        line["commit"] = json!(commit);
        line["unix_seconds"] = json!(at);
        writeln!(file, "{line}")?;
    }
    Ok(())
}
