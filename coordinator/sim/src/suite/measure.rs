//! One run of one design against one kind of traffic on one key, and its figures.
//! Knows no expectations.

use leasehold_checkers::{Admission, Promise};
use leasehold_ledger::policy::Kind;

use crate::{
    Limiter, Record, SECOND, Tally,
    baseline::{Design, Offsets, SharedCounter, Syncs, Window},
    drive,
    system::{Leasehold, Setup},
    traffic::{Arrivals, Cost, Flow, Routing, Traffic},
};

/// Runs are recorded in pieces of so much time, so that a flood fits into memory.
const PIECE_US: u64 = 300 * SECOND;
const MINUTE_US: u64 = 60 * SECOND;
/// The window of all runs here.
pub(super) const WINDOW_US: u64 = MINUTE_US;
/// What is left out at a run's beginning: windows and estimates fill. A flood fills
/// them sooner.
pub(super) const WARM_UP_US: u64 = 5 * MINUTE_US;
const FLOOD_WARM_UP_US: u64 = 2 * MINUTE_US;
/// More than so many requests per limit are a flood.
const FLOOD_ABOVE: f64 = 1.0;

/// A design's setting and the traffic that it gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) design: Design,
    /// Windows begin at whole minutes, and gateways sync all at once.
    pub(super) fixed_and_aligned: bool,
    pub(super) limit: u64,
    pub(super) gateways: usize,
    pub(super) sync_us: u64,
    pub(super) routing: Routing,
    /// Requests per limit.
    pub(super) load: f64,
    pub(super) page_loads: bool,
}

/// A run's figures, without its beginning.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) tally: Tally,
    pub(super) minutes: f64,
    /// Messages that the key was the reason for, per request of the whole run.
    pub(super) keyed_per_request: f64,
    /// The most units admitted in any window, as a multiple of the limit.
    pub(super) worst: f64,
}

impl Figures {
    pub(super) fn refused_pct(&self) -> f64 {
        self.tally.percent(self.tally.refused)
    }

    pub(super) fn waited_pct(&self) -> f64 {
        self.tally.percent(self.tally.waited)
    }
}

impl Setting {
    /// An honest client at 80 % of 100 per minute over 32 gateways, evenly, syncing
    /// every second.
    pub(super) fn usual(design: Design) -> Self {
        Self {
            design,
            fixed_and_aligned: false,
            limit: 100,
            gateways: 32,
            sync_us: SECOND,
            routing: Routing::Even,
            load: 0.8,
            page_loads: false,
        }
    }

    /// In words, without what is usual.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        if self.limit != 100 {
            text.push_str(&format!("limit {}, ", self.limit));
        }
        let spread = match self.routing {
            Routing::Even => "even",
            Routing::Skewed => "skewed",
            Routing::One(_) => "to one",
            Routing::Moving { .. } => "to one that moves",
        };
        let pages = if self.page_loads { "page loads " } else { "" };
        let load = if self.load > 1.0 {
            format!("flood {}×", self.load)
        } else {
            format!("{} %", 100.0 * self.load)
        };
        let sync = real(self.sync_us) / real(SECOND);
        text + &format!("{} {spread}, {pages}{load}, Δ {sync} s", self.gateways)
    }

    pub(super) fn arrivals(&self) -> Arrivals {
        let per_second = self.load * real(self.limit) / 60.0;
        if self.page_loads {
            Arrivals::PageLoads { per_second }
        } else {
            Arrivals::Poisson { per_second }
        }
    }

    pub(super) fn traffic(&self, seed: u64, until_us: u64) -> Traffic {
        let flow = Flow {
            key: 0,
            arrivals: self.arrivals(),
            routing: self.routing,
            cost: Cost::Fixed(1),
            from_us: 0,
            until_us,
        };
        Traffic::new(seed, self.gateways, vec![flow])
    }

    pub(super) fn limiter(&self, seed: u64) -> Box<dyn Limiter> {
        if self.fixed_and_aligned {
            let syncs = Syncs {
                every_us: self.sync_us,
                offsets: Offsets::Aligned,
            };
            let window = Window::Fixed(WINDOW_US);
            return Box::new(SharedCounter::new(self.gateways, self.limit, window, syncs));
        }
        let syncs = Syncs::every(self.sync_us, seed);
        self.design
            .limiter(self.gateways, self.limit, WINDOW_US, syncs, 0)
    }

    /// Runs it for so many minutes after its beginning.
    pub(super) fn run(&self, seed: u64, minutes: u64) -> Figures {
        // These answer at once, so that no request is open when a piece ends.
        self.run_with(&mut *self.limiter(seed), seed, minutes, PIECE_US)
    }

    /// The same traffic for Leasehold with its shipped policy.
    pub(super) fn run_leasehold(&self, seed: u64, minutes: u64) -> Figures {
        let setup = Setup::of_one_key(seed, self.gateways, self.kind());
        self.run_with(&mut Leasehold::new(setup), seed, minutes, u64::MAX)
    }

    pub(super) fn kind(&self) -> Kind {
        Kind::SlidingWindow {
            limit: self.limit,
            window_us: WINDOW_US,
        }
    }

    fn warm_up_us(&self) -> u64 {
        if self.load > FLOOD_ABOVE {
            FLOOD_WARM_UP_US
        } else {
            WARM_UP_US
        }
    }

    fn run_with(
        &self,
        limiter: &mut dyn Limiter,
        seed: u64,
        minutes: u64,
        piece_us: u64,
    ) -> Figures {
        let warm_up_us = self.warm_up_us();
        let until_us = warm_up_us + minutes * MINUTE_US;
        let mut source = self.traffic(seed, until_us);
        let mut figures = Figures::default();
        let mut admissions: Vec<Admission> = Vec::new();
        let (mut from_us, mut requests) = (0_u64, 0_u64);
        while from_us < until_us {
            let to_us = from_us.saturating_add(piece_us).min(until_us);
            let mut record = Record::new();
            drive(limiter, &mut source, to_us, &mut record);
            admissions.extend(record.admissions(0));
            requests += record.outcomes().len() as u64;
            figures.tally.add(&Tally::of(record.since(warm_up_us)));
            from_us = to_us;
        }
        let promise = Promise::Window {
            limit: self.limit,
            window_us: WINDOW_US,
        };
        let messages = limiter.messages();
        figures.minutes = real(minutes);
        figures.worst = promise.judge(&admissions).worst_ratio;
        figures.keyed_per_request = real(messages.keyed) / real(requests.max(1));
        figures
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
pub(super) fn real(count: u64) -> f64 {
    count as f64
}
