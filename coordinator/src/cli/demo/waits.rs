//! Whose requests had to wait for a message, and whose would have had to under
//! "ask when empty". Knows arrivals and what became of them; neither the client
//! nor the coordinator.
//!
//! The comparison is about honest requests to keys with a window. Floods spend
//! without waiting, whatever happens, and the other design is known for windows
//! only.

use std::ops::Range;

use leasehold_checkers::Promise;
use leasehold_sim::{
    Record, Request, SECOND,
    baseline::{AskWhenEmpty, Keys, Syncs},
    drive,
    traffic::Replay,
};

use super::{
    GATEWAYS,
    scenes::{Scene, Traffic},
};

/// How often gateways under "ask when empty" sync: as often as those of the demo.
const SYNC_US: u64 = SECOND;
/// Moments of those syncs are drawn from it.
const SEED: u64 = 1;

/// An honest request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// On the host's clock.
    pub(super) at_ns: u64,
    pub(super) gateway: usize,
    /// What its gateway held or knew did not answer it.
    pub(super) waited: bool,
}

/// Requests, and how many of them waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) requests: u64,
    pub(super) waited: u64,
}

impl Share {
    fn count(&mut self, waited: bool) {
        self.requests += 1;
        self.waited += u64::from(waited);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.waited += other.waited;
    }

    #[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
    pub(super) fn percent(self) -> f64 {
        100.0 * self.waited as f64 / self.requests.max(1) as f64
    }

    /// The percentage, of whatever there is.
    pub(super) fn known_percent(self) -> Option<f64> {
        (self.requests > 0).then(|| self.percent())
    }
}

/// The same requests here and under "ask when empty".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    pub(super) ours: Share,
    pub(super) asking: Share,
}

impl Compared {
    fn add(&mut self, other: &Self) {
        self.ours.add(other.ours);
        self.asking.add(other.asking);
    }
}

/// All comparisons of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waits {
    /// By scene; none where there is nothing to compare.
    pub(super) scenes: Vec<Option<Compared>>,
    /// Of all of these.
    pub(super) total: Compared,
    /// Of those requests that arrived outside the outage.
    pub(super) while_led: Compared,
}

/// What share of them waited.
pub(super) fn share(arrivals: &[Arrival]) -> Share {
    let mut share = Share::default();
    for arrival in arrivals {
        share.count(arrival.waited);
    }
    share
}

/// Replays the arrivals of every key and compares. `arrivals` are by key, with the
/// scene that the key belongs to.
pub(super) fn compare(
    scenes: &[Scene],
    arrivals: &[(usize, Vec<Arrival>)],
    outage_ns: &Range<u64>,
) -> Waits {
    let mut requests = Vec::new();
    let mut limiters = Vec::new();
    // Of each limiter: the scene, and what became of the requests here.
    let mut keys: Vec<(usize, Vec<Arrival>)> = Vec::new();
    let all = arrivals.iter().flat_map(|(_, arrivals)| arrivals);
    let begin_ns = all.map(|arrival| arrival.at_ns).min().unwrap_or(0);
    let micros = |ns: u64| ns.saturating_sub(begin_ns) / 1_000;
    for (scene, arrivals) in arrivals {
        let (Promise::Window { limit, window_us }, Traffic::Honest) =
            (scenes[*scene].promise, scenes[*scene].traffic)
        else {
            continue;
        };
        requests.extend(arrivals.iter().map(|arrival| Request {
            id: 0,
            at_us: micros(arrival.at_ns),
            gateway: arrival.gateway,
            key: limiters.len(),
            units: 1,
            lane: leasehold_sim::LOWEST_LANE,
        }));
        limiters.push(AskWhenEmpty::new(
            GATEWAYS as usize,
            limit,
            window_us,
            Syncs::every(SYNC_US, SEED),
            0,
        ));
        keys.push((*scene, arrivals.clone()));
    }
    let mut replay = Replay::new(requests);
    let mut record = Record::new();
    let end_us = replay.end_us();
    drive(&mut Keys::new(limiters), &mut replay, end_us, &mut record);

    let outage_us = micros(outage_ns.start)..micros(outage_ns.end);
    let mut waits = Waits {
        scenes: vec![None; scenes.len()],
        total: Compared::default(),
        while_led: Compared::default(),
    };
    let mut of_keys = vec![(Compared::default(), Compared::default()); keys.len()];
    for ((_, arrivals), (total, led)) in keys.iter().zip(&mut of_keys) {
        for arrival in arrivals {
            total.ours.count(arrival.waited);
            if !outage_us.contains(&micros(arrival.at_ns)) {
                led.ours.count(arrival.waited);
            }
        }
    }
    for outcome in record.outcomes() {
        let waited = outcome.answer.is_none_or(|answer| answer.waited);
        let (total, led) = &mut of_keys[outcome.request.key];
        total.asking.count(waited);
        if !outage_us.contains(&outcome.request.at_us) {
            led.asking.count(waited);
        }
    }
    for ((scene, _), (total, led)) in keys.iter().zip(&of_keys) {
        waits.scenes[*scene].get_or_insert_default().add(total);
        waits.total.add(total);
        waits.while_led.add(led);
    }
    waits
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use super::{super::scenes::SCENES, *};

    const MS: u64 = 1_000_000;

    fn scene(key: &str) -> usize {
        let at = SCENES.iter().position(|scene| scene.key == key);
        at.unwrap_or_else(|| panic!("no {key}"))
    }

    fn every(ms: u64, waited: bool) -> Vec<Arrival> {
        (0..30)
            .map(|number| Arrival {
                at_ns: 77 * MS + number * ms * MS,
                gateway: (number % 8) as usize,
                waited,
            })
            .collect()
    }

    #[test]
    fn a_quiet_key_waits_for_nearly_every_request_when_gateways_ask_when_empty() {
        let waits = compare(
            &SCENES,
            &[(scene("demo/customer/*"), every(375, false))],
            &(0..0),
        );
        assert_eq!(
            (waits.total.ours.requests, waits.total.ours.waited),
            (30, 0)
        );
        assert_eq!(waits.total.asking.requests, 30);
        assert!(waits.total.asking.waited > 20, "{waits:?}");
        assert_eq!(waits.while_led, waits.total);
    }

    #[test]
    fn both_sides_leave_out_the_same_requests() {
        let arrivals = [(scene("demo/reports"), every(1_000, true))];
        let outage = (77 + 10_000) * MS..(77 + 15_000) * MS;
        let waits = compare(&SCENES, &arrivals, &outage);
        assert_eq!(waits.total.ours.requests, 30);
        assert_eq!(waits.while_led.ours.requests, 25);
        assert_eq!(waits.while_led.asking.requests, 25);
    }

    #[test]
    fn buckets_and_floods_are_not_compared() {
        let (bucket, flood) = (scene("demo/login"), scene("demo/search.flooded"));
        let arrivals = [(bucket, every(10, true)), (flood, every(10, true))];
        let waits = compare(&SCENES, &arrivals, &(0..0));
        assert_eq!(waits.total, Compared::default());
        assert!(waits.scenes.iter().all(Option::is_none));
    }

    #[test]
    fn keys_of_one_scene_have_a_limit_each() {
        let customers = scene("demo/customer/*");
        let one = compare(&SCENES, &[(customers, every(375, false))], &(0..0));
        let arrivals = [
            (customers, every(375, false)),
            (customers, every(375, false)),
        ];
        let two = compare(&SCENES, &arrivals, &(0..0));
        assert_eq!(two.total.asking.waited, 2 * one.total.asking.waited);
        assert_eq!(two.scenes[customers], Some(two.total));
    }
}
