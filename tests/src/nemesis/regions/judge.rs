//! What the logs of a run in three regions say: how much was admitted, what was
//! refused beside an exact central log, how long requests took. Knows nothing of how
//! the run was made.

use std::io;

use leasehold_ledger::policy::Kind;
use leasehold_sim::baseline::Exact;
use serde_json::{Value, json};

use super::{BUSY, CUT, ISLAND, Moments, REGIONS, Regions, Report, WINDOW};
use crate::{AdmissionLog, NotedRequest, Promise, Told, read_requests};

impl Regions<'_> {
    pub(super) fn judge(&self, moments: &Moments) -> io::Result<Report> {
        let mut admissions = AdmissionLog::default();
        // Of the busy key, by region; and of the quiet ones.
        let mut busy: Vec<(usize, NotedRequest)> = Vec::new();
        let mut quiet: Vec<(usize, NotedRequest)> = Vec::new();
        for gateway in &self.gateways {
            admissions
                .read(&gateway.admissions)
                .map_err(io::Error::other)?;
            let requests = read_requests(&gateway.requests)?;
            let of = if gateway.is_spender {
                &mut busy
            } else {
                &mut quiet
            };
            of.extend(
                requests
                    .into_iter()
                    .map(|request| (gateway.region, request)),
            );
        }
        busy.sort_by_key(|(_, request)| request.call_ns);
        let window_us = u64::try_from(WINDOW.as_micros()).map_err(io::Error::other)?;
        let promise = Promise::Window {
            limit: self.plan.limit,
            window_us,
        };
        let judged = promise.judge(admissions.of(BUSY));
        let within =
            |request: &NotedRequest, (from, to): (u64, u64)| (from..to).contains(&request.call_ns);

        // The central log sees every request from the beginning.
        let kind = Kind::SlidingWindow {
            limit: self.plan.limit,
            window_us,
        };
        let mut central = Exact::new(&kind);
        let mut counted = Counted::default();
        for (_, request) in &busy {
            let admitted = central.take(request.call_ns / 1_000, 1).is_ok();
            if within(request, moments.measured_ns) {
                counted.requests += 1;
                counted.waited += u64::from(request.waited);
                counted.refused += u64::from(request.told != Told::Admitted);
                counted.unavailable += u64::from(request.told == Told::Unavailable);
                counted.central_refused += u64::from(!admitted);
            }
        }

        let regions: Vec<Value> = (0..REGIONS.len())
            .map(|region| {
                let of = |requests: &[(usize, NotedRequest)], span| -> Vec<NotedRequest> {
                    requests
                        .iter()
                        .filter(|(at, request)| *at == region && within(request, span))
                        .map(|(_, request)| *request)
                        .collect()
                };
                let local = |span| {
                    let mut took: Vec<u64> = of(&busy, span)
                        .iter()
                        .filter(|request| !request.waited && request.told == Told::Admitted)
                        .map(took_ns)
                        .collect();
                    percentile(&mut took, 50)
                };
                let far = (moments.measured_ns.0, moments.measured_ns.1);
                let asks: Vec<NotedRequest> = of(&quiet, (moments.far_ns, moments.measured_ns.1))
                    .into_iter()
                    .filter(|request| request.waited && request.told == Told::Admitted)
                    .collect();
                let mut ask_ns: Vec<u64> = asks.iter().map(took_ns).collect();
                json!({
                    "region": REGIONS[region],
                    "asks": ask_ns.len(),
                    "ask_p50_ms": millis(percentile(&mut ask_ns, 50)),
                    "ask_p99_ms": millis(percentile(&mut ask_ns, 99)),
                    "local_spend_near_ns": local((moments.near_ns, moments.far_ns)),
                    "local_spend_far_ns": local(far),
                })
            })
            .collect();

        // What the island did alone.
        let told_alone = |told: Told| {
            let asked = busy.iter().filter(|(region, request)| {
                *region == ISLAND && within(request, moments.cut_ns) && request.told == told
            });
            asked.count()
        };
        let back_ns = busy
            .iter()
            .filter(|(region, request)| {
                *region == ISLAND
                    && request.call_ns >= moments.cut_ns.1
                    && request.told == Told::Admitted
            })
            .map(|(_, request)| request.return_ns)
            .min();
        let back_ms = back_ns.map(|at| (at - moments.cut_ns.1) / 1_000_000);

        let excess_pp = counted.percent(counted.refused) - counted.percent(counted.central_refused);
        let waited_pct = counted.percent(counted.waited);
        let json = json!({
            "distance_ms": u64::try_from(self.plan.distance.as_millis()).unwrap_or(u64::MAX),
            "minutes": self.plan.minutes,
            "limit_per_minute": self.plan.limit,
            "busy_max_wait_ms": self.plan.busy_max_wait_ms,
            "namespaces": self.ground.without_namespaces().is_none(),
            "optimized": !cfg!(debug_assertions),
            "over_admitted": judged.over_admitted,
            "admitted": judged.admitted,
            "worst_window_units": judged.worst_units,
            "requests": counted.requests,
            "waited_pct": rounded(waited_pct),
            "refused_pct": rounded(counted.percent(counted.refused)),
            "unavailable_pct": rounded(counted.percent(counted.unavailable)),
            "central_refused_pct": rounded(counted.percent(counted.central_refused)),
            "excess_pp": rounded(excess_pp),
            "regions": regions,
            "cut_off": {
                "region": REGIONS[ISLAND],
                "seconds": CUT.as_secs(),
                "admitted_from_leases": told_alone(Told::Admitted),
                "refused": told_alone(Told::Refused),
                "unavailable": told_alone(Told::Unavailable),
                "degraded": told_alone(Told::Degraded),
                "admits_again_after_ms": back_ms,
            },
            "leader_home_after_setting_ms": moments.home_after_setting_ms,
            "leader_home_after_restart_ms": moments.home_after_failure_ms,
        });
        let mut complaints = Vec::new();
        let mut hold = |kept: bool, text: String| {
            if !kept {
                complaints.push(text);
            }
        };
        hold(
            judged.over_admitted == 0,
            format!("{} units over-admitted", judged.over_admitted),
        );
        hold(
            excess_pp <= self.plan.excess_max_pp,
            format!(
                "{excess_pp:.3} points more refused than by a central log; must be at most {}",
                self.plan.excess_max_pp
            ),
        );
        hold(
            waited_pct <= self.plan.waited_max_pct,
            format!(
                "{waited_pct:.2} % waited; must be at most {}",
                self.plan.waited_max_pct
            ),
        );
        hold(counted.requests > 0, "nothing was measured".to_owned());
        hold(
            told_alone(Told::Admitted) > 0,
            "the region that was cut off spent nothing of what it held".to_owned(),
        );
        hold(
            told_alone(Told::Degraded) == 0,
            "something was admitted without a coordinator, although the failure mode is closed"
                .to_owned(),
        );
        hold(
            back_ms.is_some(),
            "the region that was cut off never admitted again".to_owned(),
        );
        Ok(Report { json, complaints })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    requests: u64,
    waited: u64,
    refused: u64,
    /// Of the refused, those that nobody answered in time.
    unavailable: u64,
    central_refused: u64,
}

impl Counted {
    #[expect(clippy::cast_precision_loss, reason = "some millions")]
    fn percent(&self, part: u64) -> f64 {
        100.0 * part as f64 / self.requests.max(1) as f64
    }
}

fn took_ns(request: &NotedRequest) -> u64 {
    request.return_ns.saturating_sub(request.call_ns)
}

fn percentile(values: &mut [u64], percent: usize) -> Option<u64> {
    values.sort_unstable();
    let place = (values.len() * percent).div_ceil(100).max(1);
    values.get(place - 1).copied()
}

#[expect(clippy::cast_precision_loss, reason = "below an hour")]
fn millis(ns: Option<u64>) -> Option<f64> {
    ns.map(|ns| rounded(ns as f64 / 1e6))
}

fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}
