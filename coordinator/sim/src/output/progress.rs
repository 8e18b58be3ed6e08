//! How far a long run is. Knows nothing of what runs.

use std::io::{IsTerminal as _, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// Is told how far things are; runs may tell it from several threads.
pub trait Progress: Sync {
    /// So many more runs are to come.
    fn expect(&self, runs: u64);
    /// One of them is done.
    fn done(&self, what: &str);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Progress for Unwatched {
    fn expect(&self, _runs: u64) {}
    fn done(&self, _what: &str) {}
}

/// A bar on standard error, if that is a terminal.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar without any run to come.
    #[must_use]
    pub fn new() -> Self {
        let bar = if stderr().is_terminal() {
            ProgressBar::new(0)
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) =
            ProgressStyle::with_template("{bar:32} {pos}/{len} runs, {elapsed}  {wide_msg}")
        {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Takes it off the screen.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Default for Bar {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress for Bar {
    fn expect(&self, runs: u64) {
        self.0.inc_length(runs);
    }

    fn done(&self, what: &str) {
        self.0.set_message(what.to_owned());
        self.0.inc(1);
    }
}
