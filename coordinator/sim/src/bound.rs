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
