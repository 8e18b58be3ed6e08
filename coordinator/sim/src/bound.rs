//! The least share of requests that must wait for a message, whatever a policy
//! does. Knows no policy.

use leasehold_ledger::policy::Kind;

use crate::{Request, baseline::Exact, traffic::Routing};

/// The lower bound on waits, in percent of the requests that arrive at `from_us`
/// or later; none where it is not claimed.
///
/// With F units free, a policy can have placed them at F gateways at most. A
/// request whose gateway does not depend on the past finds one there with the
/// routing share of the F busiest at most, so `1 − E[P_top(F)]` of the requests
/// that an exact central log admits must wait. F is what that log has left before
/// each request. Requests that it refuses need not wait: they are sure to be
/// refused.
///
/// Not claimed where routing depends on the past ([`Routing::Moving`]) and where a
/// request costs more than one unit.
#[must_use]
pub fn wait_bound_pct<'a>(
    requests: impl IntoIterator<Item = &'a Request>,
    kind: &Kind,
    routing: Routing,
    gateways: usize,
    from_us: u64,
) -> Option<f64> {
    if matches!(routing, Routing::Moving { .. }) {
        return None;
    }
    let top = top_shares(routing.shares(gateways));
    let mut central = Exact::new(kind);
    let (mut counted, mut found) = (0_u32, 0.0);
    for request in requests {
        if request.units != 1 {
            return None;
        }
        let free = central.free(request.at_us);
        let _ = central.take(request.at_us, 1);
        if request.at_us >= from_us {
            counted += 1;
            found += if free == 0 {
                1.0
            } else {
                let busiest = usize::try_from(free).unwrap_or(usize::MAX);
                top[busiest.min(gateways)]
            };
        }
    }
    (counted > 0).then(|| 100.0 * (1.0 - found / f64::from(counted)).max(0.0))
}

/// By f, the share of the f busiest.
fn top_shares(mut shares: Vec<f64>) -> Vec<f64> {
    shares.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut top = vec![0.0];
    let mut sum = 0.0;
    for share in shares {
        sum += share;
        top.push(sum);
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        SECOND, Source as _,
        traffic::{Arrivals, Cost, Flow, Traffic},
    };

    const KIND: Kind = Kind::SlidingWindow {
        limit: 100,
        window_us: 60 * SECOND,
    };
    const FROM_US: u64 = 300 * SECOND;

    fn bound(gateways: usize, routing: Routing, load: f64, page_loads: bool) -> f64 {
        let per_second = load * 100.0 / 60.0;
        let flow = Flow {
            key: 0,
            arrivals: if page_loads {
                Arrivals::PageLoads { per_second }
            } else {
                Arrivals::Poisson { per_second }
            },
            routing,
            cost: Cost::Fixed(1),
            from_us: 0,
            until_us: 60 * 3_600 * SECOND,
        };
        let mut traffic = Traffic::new(11, gateways, vec![flow]);
        let mut requests = Vec::new();
        while traffic.next_us().is_some() {
            requests.push(traffic.next_request());
        }
        wait_bound_pct(&requests, &KIND, routing, gateways, FROM_US).unwrap_or(f64::NAN)
    }

    #[test]
    fn the_bound_is_what_was_proven_for_the_design() {
        // Sixty hours: a percentage scatters by half a point.
        for (gateways, routing, load, page_loads, known) in [
            (2, Routing::Even, 0.8, false, 0.2),
            (8, Routing::Even, 0.5, false, 0.0),
            (8, Routing::Even, 0.8, false, 2.7),
            (8, Routing::Even, 1.0, false, 26.0),
            (32, Routing::Even, 0.8, false, 37.9),
            (32, Routing::Skewed, 0.8, false, 14.0),
            (8, Routing::Even, 0.8, true, 5.2),
        ] {
            let bound = bound(gateways, routing, load, page_loads);
            assert!(
                (bound - known).abs() < 1.0,
                "{gateways} {routing:?} {load}: {bound}, known {known}"
            );
        }
    }

    #[test]
    fn nothing_is_claimed_where_routing_depends_on_the_past() {
        let request = |units| Request {
            id: 0,
            at_us: 0,
            gateway: 0,
            key: 0,
            units,
            lane: crate::LOWEST_LANE,
        };
        let moving = Routing::Moving { every_us: SECOND };
        let bound = |units, routing| wait_bound_pct(&[request(units)], &KIND, routing, 8, 0);
        assert_eq!(bound(1, moving), None);
        assert_eq!(bound(2, Routing::Even), None);
        assert_eq!(bound(1, Routing::One(3)), Some(0.0));
    }
}
