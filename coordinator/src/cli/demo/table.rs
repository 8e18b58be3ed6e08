//! The demo's table: live where a person watches, now and then where a file
//! does. Knows how things look, not what they mean.

use std::{
    fmt::Write as _,
    io::{IsTerminal as _, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::{Row, Scene};

/// How often a line is written when nobody watches.
const UNWATCHED: Duration = Duration::from_secs(5);

pub(super) struct Table {
    bar: ProgressBar,
    watched: bool,
    last: Option<Instant>,
}

impl Table {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            watched: stderr().is_terminal(),
            last: None,
        }
    }

    pub(super) fn show(&mut self, scenes: &[Scene], rows: &[Row], progress: &str) {
        if self.watched {
            self.bar
                .set_message(format!("{}\n\n{progress}", render(scenes, rows)));
            self.bar.tick();
        } else if self.last.is_none_or(|last| last.elapsed() >= UNWATCHED) {
            self.last = Some(Instant::now());
            eprintln!("{progress}");
        }
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The table as text.
pub(super) fn render(scenes: &[Scene], rows: &[Row]) -> String {
    let mut text = format!(
        "{:<20} {:>13} {:>9} {:>9} {:>13} {:>9} {:>7} {:>12}",
        "key", "limit", "offered", "admitted", "worst window", "refused", "waits", "unavailable"
    );
    for (scene, row) in scenes.iter().zip(rows) {
        let counts = &row.counts;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n{:<20} {:>13} {:>9} {:>9} {:>11.1} % {:>9} {:>7} {:>12}",
            scene.key,
            scene.limit,
            counts.offered,
            row.judgement.admitted,
            row.judgement.worst_ratio * 100.0,
            counts.refused,
            counts.waited,
            counts.unavailable,
        );
    }
    text
}
