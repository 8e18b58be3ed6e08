//! The demo's table: live where a person watches, now and then where a file
//! does. Knows how things look, not what they mean.

use std::{
    fmt::Write as _,
    io::{IsTerminal as _, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::{Row, scenes::Scene, waits::Waits};

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
                .set_message(format!("{}\n\n{progress}", render(scenes, rows, None)));
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

/// The table as text; with what would have waited under "ask when empty", once
/// that is known.
pub(super) fn render(scenes: &[Scene], rows: &[Row], waits: Option<&Waits>) -> String {
    let mut text = format!(
        "{:<20} {:>12} {:>8} {:>8} {:>12} {:>8} {:>11} {:>7} {:>7}",
        "key",
        "limit",
        "offered",
        "admitted",
        "worst window",
        "refused",
        "unavailable",
        "waited",
        "asking"
    );
    for (index, (scene, row)) in scenes.iter().zip(rows).enumerate() {
        let counts = &row.counts;
        let compared = waits.and_then(|waits| waits.scenes[index]);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n{:<20} {:>12} {:>8} {:>8} {:>10.1} % {:>8} {:>11} {:>7} {:>7}",
            scene.title(),
            scene.limit,
            counts.offered,
            row.judgement.admitted,
            row.judgement.worst_ratio * 100.0,
            counts.refused,
            counts.unavailable,
            percent(row.waits.known_percent()),
            percent(compared.map(|both| both.asking.percent())),
        );
    }
    text
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{share:.1} %"))
}

/// What share of the compared requests waited, here and there.
pub(super) fn waited(waits: &Waits) -> String {
    let (total, led) = (waits.total, waits.while_led);
    format!(
        "waited for a message: {:.1} % (the same requests under \"ask when empty\": {:.1} %), \
         without those of the outage: {:.1} % ({:.1} %)\n\
         both are about the {} honest requests to keys with a window; floods never wait, and \
         the simulator kills no leader",
        total.ours.percent(),
        total.asking.percent(),
        led.ours.percent(),
        led.asking.percent(),
        total.ours.requests,
    )
}
