//! What must hold in front of every gateway, each shown with two instances behind two
//! agents that share one budget. Knows no program.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use leasehold_tests::{Admission, Promise};
use serde_json::Value;

use super::{
    Outcome,
    fleet::Fleet,
    ground::{BUSY_LIMIT, BUSY_WINDOW, FLOOD_LIMIT, FLOOD_WINDOW, Ground, PATIENCE},
    load::{Answer, Load, PATH, Pressure, Seen, ask},
    upstream::KEY,
};

/// The type of a refusal's body.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// One thing that must hold, and what was seen.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) gateway: &'static str,
    pub(super) says: &'static str,
    pub(super) seen: String,
    pub(super) is_kept: bool,
}

/// Checks that stop at the first thing that is not so.
macro_rules! held {
    ($holds:expr, $($why:tt)*) => {
        if !$holds {
            return Ok((false, format!($($why)*)));
        }
    };
}

type Shown = (bool, String);

/// A flood through both instances: the limit holds in every window, whoever looks.
pub(super) async fn exact(ground: &Ground, fleet: &Fleet) -> Outcome<Shown> {
    let key = format!("flood-{}", fleet.name());
    let lasts = Duration::from_secs(8);
    let pressure = match fleet.wrk() {
        Some(wrk) => Some(Pressure::start(wrk, fleet.at()[0], &key, lasts)?),
        None => None,
    };
    let seen = Load {
        gateways: &fleet.at(),
        path: PATH,
        key: &key,
        connections: 6,
        pace: None,
        lasts,
    }
    .run()
    .await?;
    let pressed = match pressure {
        Some(pressure) => tokio::task::spawn_blocking(move || pressure.requests()).await??,
        None => 0,
    };
    let admitted: Vec<Admission> = seen.with_status(200).map(admission).collect();
    let window_us = u64::try_from(FLOOD_WINDOW.as_micros())?;
    let judged = Promise::Window {
        limit: FLOOD_LIMIT,
        window_us,
    }
    .judge(&admitted);
    let served = ground.upstream.count(&key);
    // wrk notes no instants: what it got is seen by what arrived, over all windows.
    let windows = u128::from(ground.upstream.span_ns(&key)) / FLOOD_WINDOW.as_nanos() + 1;
    let most = u128::from(FLOOD_LIMIT) * windows;
    let refused = seen.with_status(429).count();
    held!(
        judged.over_admitted == 0,
        "{} too many in one window: {judged:?}",
        judged.over_admitted
    );
    held!(
        u128::from(served) <= most,
        "{served} arrived, {most} are allowed in {windows} windows"
    );
    held!(refused > 0, "nobody was refused: the flood was none");
    held!(
        u128::from(served) * 2 >= u128::from(FLOOD_LIMIT) * (windows - 1),
        "only {served} of {most} were served"
    );
    held!(
        seen.unanswered == 0,
        "{} requests had no answer: {}",
        seen.unanswered,
        seen.last_error
    );
    too_many_others(&seen, &[200, 429]).map_or_else(
        || {
            Ok((
                true,
                format!(
                    "{} requests, {served} served, at most {} of {FLOOD_LIMIT} in one window",
                    seen.answers.len() as u64 + pressed,
                    judged.worst_units,
                ),
            ))
        },
        |other| Ok((false, other)),
    )
}

fn admission(answer: &Answer) -> Admission {
    Admission {
        units: 1,
        call_ns: answer.sent_ns,
        return_ns: answer.answered_ns,
    }
}

/// A status that is none of these, with its answer.
fn held_statuses(seen: &Seen, allowed: &[u16]) -> Option<String> {
    let other = |answer: &&Answer| !allowed.contains(&answer.status);
    let first = seen.answers.iter().find(other)?;
    let count = seen.answers.iter().filter(other).count();
    Some(format!("{count} answers were like {first:?}"))
}

/// As [`held_statuses`]; but on a machine that stalls an answer may come later than the
/// policy waits, which is a 503 and no pass: one in a hundred may.
fn too_many_others(seen: &Seen, allowed: &[u16]) -> Option<String> {
    let late = seen.with_status(503).count();
    if late * 100 > seen.answers.len() {
        return Some(format!("{late} of {} heard 503", seen.answers.len()));
    }
    held_statuses(seen, &[allowed, &[503]].concat())
}

/// Asks until the answer is another than that none came in time: a key of which an agent
/// knows nothing yet has to be asked for.
async fn ask_patiently(to: SocketAddr, headers: &[(&str, &str)]) -> Outcome<Answer> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let answer = ask(to, headers).await?;
        if answer.status != 503 || Instant::now() > give_up {
            return Ok(answer);
        }
    }
}

/// Both agents have units of a key.
async fn warm(fleet: &Fleet, key: &str) -> Outcome<()> {
    for at in fleet.at() {
        let answer = ask_patiently(at, &[(KEY, key)]).await?;
        if answer.status != 200 {
            return Err(format!("{key} is not served: {answer:?}").into());
        }
    }
    Ok(())
}

/// What a client is told, on what is served and on what is refused.
pub(super) async fn headers(_: &Ground, fleet: &Fleet) -> Outcome<Shown> {
    let key = format!("few-{}", fleet.name());
    let at = fleet.at()[0];
    let served = ask_patiently(at, &[(KEY, &key)]).await?;
    held!(served.status == 200, "the first was not served: {served:?}");
    if fleet.tells_the_served() {
        held!(
            served.header("ratelimit-policy") == "\"default\";q=3;w=30",
            "RateLimit-Policy of what is served: {served:?}"
        );
        held!(
            served.header("ratelimit").starts_with("\"default\";r="),
            "RateLimit of what is served: {served:?}"
        );
    }
    let give_up = Instant::now() + PATIENCE;
    let refused = loop {
        let answer = ask_patiently(at, &[(KEY, &key)]).await?;
        if answer.status != 200 {
            break answer;
        }
        held!(Instant::now() < give_up, "nothing was ever refused");
    };
    held!(refused.status == 429, "refused by {refused:?}");
    let after = refused.header("retry-after").parse::<u64>();
    held!(
        after.as_ref().is_ok_and(|after| (1..=60).contains(after)),
        "Retry-After: {refused:?}"
    );
    held!(
        refused
            .header("ratelimit")
            .starts_with("\"default\";r=0;t="),
        "RateLimit of what is refused: {refused:?}"
    );
    held!(
        refused.header("ratelimit-policy") == "\"default\";q=3;w=30",
        "RateLimit-Policy of what is refused: {refused:?}"
    );
    held!(
        refused
            .header("content-type")
            .starts_with("application/problem+json"),
        "Content-Type: {refused:?}"
    );
    let body: Value = serde_json::from_slice(&refused.body)?;
    held!(
        body["type"] == QUOTA_EXCEEDED && body["status"] == 429,
        "the body is {body}"
    );
    let internal = ["api_key", "route=", "leasehold-agent", "sliding"];
    let text = format!("{:?}{body}", refused.headers);
    for word in internal {
        held!(
            !text.contains(word),
            "{word:?} is nobody's business: {text}"
        );
    }
    Ok((
        true,
        format!(
            "429, Retry-After {}, {}",
            after.unwrap_or(0),
            refused.header("ratelimit")
        ),
    ))
}

/// Without a key nothing is served, whatever else the client sends.
pub(super) async fn keyless(ground: &Ground, fleet: &Fleet) -> Outcome<Shown> {
    let key = format!("counted-{}-borrowed", fleet.name());
    let before = ground.upstream.total();
    let at = fleet.at()[0];
    let mut told = Vec::new();
    for headers in [
        vec![],
        vec![(KEY, "")],
        // The names that the agent listens to, written by a client.
        vec![("x-quota-key", key.as_str()), ("x-quota-cost", "0")],
    ] {
        let answer = ask(at, &headers).await?;
        held!(
            (400..500).contains(&answer.status),
            "{headers:?} was answered by {answer:?}"
        );
        told.push(answer.status.to_string());
    }
    let served = ground.upstream.total() - before;
    held!(served == 0, "{served} were served");
    let charged = ground.charged(&key)?;
    held!(charged == 0, "{charged} units of another's were charged");
    Ok((true, format!("answered {}", told.join(", "))))
}

/// A client cannot say what its request costs.
pub(super) async fn own_cost(ground: &Ground, fleet: &Fleet) -> Outcome<Shown> {
    let key = format!("counted-{}-cost", fleet.name());
    for cost in ["0", "1000"] {
        let headers = [(KEY, key.as_str()), ("x-quota-cost", cost)];
        let answer = ask_patiently(fleet.at()[0], &headers).await?;
        held!(answer.status == 200, "cost {cost}: {answer:?}");
    }
    charged_once(ground, &key)
}

/// Nor by which id the agent knows a request: it would get its last answer again.
pub(super) async fn own_id(ground: &Ground, fleet: &Fleet) -> Outcome<Shown> {
    let key = format!("counted-{}-id", fleet.name());
    for _ in 0..20 {
        let headers = [
            (KEY, key.as_str()),
            ("x-quota-request-id", "same"),
            ("x-request-id", "same"),
        ];
        let answer = ask_patiently(fleet.at()[0], &headers).await?;
        held!(answer.status == 200, "{answer:?}");
    }
    charged_once(ground, &key)
}

/// As many units are charged as requests were served.
pub(super) async fn once(ground: &Ground, fleet: &Fleet) -> Outcome<Shown> {
    let key = format!("counted-{}", fleet.name());
    warm(fleet, &key).await?;
    let seen = Load {
        gateways: &fleet.at(),
        path: PATH,
        key: &key,
        connections: 4,
        pace: Some(Duration::from_millis(5)),
        lasts: Duration::from_secs(3),
    }
    .run()
    .await?;
    if let Some(other) = too_many_others(&seen, &[200]) {
        return Ok((false, other));
    }
    charged_once(ground, &key)
}

/// As [`once`], where the gateway asks twice about each request.
pub(super) async fn twice(ground: &Ground, fleet: &Fleet) -> Outcome<Shown> {
    let key = format!("counted-{}-twice", fleet.name());
    for _ in 0..20 {
        let answer = ask_patiently(fleet.at()[0], &[(KEY, &key)]).await?;
        held!(answer.status == 200, "{answer:?}");
    }
    charged_once(ground, &key)
}

/// The books say what the upstream saw, as soon as the agents have reported.
pub(super) fn charged_once(ground: &Ground, key: &str) -> Outcome<Shown> {
    let served = ground.upstream.count(key);
    held!(served > 0, "nothing was served");
    let give_up = Instant::now() + PATIENCE;
    loop {
        let charged = ground.charged(key)?;
        held!(charged <= served, "{charged} units for {served} requests");
        if charged == served {
            return Ok((true, format!("{charged} units for {served} requests")));
        }
        held!(
            Instant::now() < give_up,
            "{charged} units for {served} requests in the end"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The leader dies while a key is busy: nobody notices.
pub(super) async fn leader_dies(ground: &mut Ground, fleet: &Fleet) -> Outcome<Shown> {
    let key = format!("busy-{}", fleet.name());
    warm(fleet, &key).await?;
    let gateways = fleet.at();
    // Half of what the budget gives, from both instances together.
    let per_second = BUSY_LIMIT / BUSY_WINDOW.as_secs() / 2;
    let connections = 2;
    let callers = u64::try_from(gateways.len() * connections)?;
    let pace = Duration::from_micros(1_000_000 * callers / per_second);
    let lasts = Duration::from_secs(18);
    let load = {
        let key = key.clone();
        tokio::spawn(async move {
            Load {
                gateways: &gateways,
                path: PATH,
                key: &key,
                connections,
                pace: Some(pace),
                lasts,
            }
            .run()
            .await
        })
    };
    // A sixth of the window: both agents know the key's demand by then.
    tokio::time::sleep(BUSY_WINDOW / 6).await;
    let leader = ground.cluster.wait_leader(PATIENCE)?;
    let books = ground.account(&key)?;
    let killed_ns = leasehold_tests::clock_ns();
    ground.cluster.kill(leader.node);
    let next = ground.cluster.wait_leader(PATIENCE)?;
    let led_ns = leasehold_tests::clock_ns();
    let seen = load.await??;
    ground.cluster.restart(leader.node)?;
    ground.cluster.wait_ready(PATIENCE)?;
    held!(next.node != leader.node, "nobody else led");
    held!(
        seen.unanswered == 0,
        "{} requests had no answer: {}",
        seen.unanswered,
        seen.last_error
    );
    let leaderless_ms = (led_ns - killed_ns) / 1_000_000;
    if let Some(other) = held_statuses(&seen, &[200]) {
        let ms = |ns: u64| (i128::from(ns) - i128::from(killed_ns)) / 1_000_000;
        let refused = seen.answers.iter().filter(|answer| answer.status != 200);
        let at: Vec<i128> = refused.map(|answer| ms(answer.sent_ns)).collect();
        let ends = at.iter().min().zip(at.iter().max());
        return Ok((
            false,
            format!(
                "nobody led for {leaderless_ms} ms; refused after {ends:?} ms: {other}\n{books}"
            ),
        ));
    }
    Ok((
        true,
        format!(
            "all {} requests were served; nobody led for {leaderless_ms} ms",
            seen.answers.len()
        ),
    ))
}

/// No coordinator was ever reached: the agent fails closed, and says so at once.
pub(super) async fn nobody_to_ask(ground: &Ground, fleet: &Fleet) -> Outcome<Shown> {
    let key = format!("counted-{}-nobody", fleet.name());
    let mut slowest_ms = 0;
    for _ in 0..20 {
        let answer = ask(fleet.at()[0], &[(KEY, &key)]).await?;
        held!(answer.status == 503, "{answer:?}");
        held!(
            !answer.header("retry-after").is_empty(),
            "no Retry-After: {answer:?}"
        );
        let took_ms = (answer.answered_ns - answer.sent_ns) / 1_000_000;
        slowest_ms = slowest_ms.max(took_ms);
    }
    // The agent takes 50 ms at most; a busy machine may take longer.
    held!(slowest_ms < 2_000, "an answer took {slowest_ms} ms");
    let served = ground.upstream.count(&key);
    held!(served == 0, "{served} were served");
    Ok((true, format!("503 within {slowest_ms} ms")))
}

/// The agent dies in the middle of a load: from then on the gateway answers by itself.
pub(super) async fn agent_dies(
    ground: &mut Ground,
    fleet: &Fleet,
    is_open: bool,
) -> Outcome<Shown> {
    let key = format!(
        "counted-{}-{}",
        fleet.name(),
        if is_open { "open" } else { "closed" }
    );
    warm(fleet, &key).await?;
    let at = vec![fleet.at()[0]];
    let load = {
        let key = key.clone();
        tokio::spawn(async move {
            Load {
                gateways: &at,
                path: PATH,
                key: &key,
                connections: 2,
                pace: Some(Duration::from_millis(10)),
                lasts: Duration::from_secs(8),
            }
            .run()
            .await
        })
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    let kill_ns = leasehold_tests::clock_ns();
    ground.agents[0].kill();
    let killed_ns = leasehold_tests::clock_ns();
    let seen = load.await;
    ground.agents[0].start_ready()?;
    let seen = seen??;
    held!(
        seen.unanswered == 0,
        "{} requests had no answer: {}",
        seen.unanswered,
        seen.last_error
    );
    let before: Vec<&Answer> = seen
        .answers
        .iter()
        .filter(|a| a.answered_ns < kill_ns)
        .collect();
    let after: Vec<&Answer> = seen
        .answers
        .iter()
        .filter(|a| a.sent_ns > killed_ns)
        .collect();
    held!(
        before.iter().all(|answer| answer.status == 200) && !before.is_empty(),
        "before: {:?}",
        before.iter().find(|answer| answer.status != 200)
    );
    held!(
        after.len() >= 10,
        "only {} requests afterwards",
        after.len()
    );
    let expected = if is_open { 200 } else { 503 };
    // Traefik has one answer of its own for it.
    let fits = |answer: &&&Answer| {
        answer.status == expected || (!is_open && (500..600).contains(&answer.status))
    };
    let other = after.iter().find(|answer| !fits(answer));
    held!(other.is_none(), "afterwards: {other:?}");
    Ok((
        true,
        format!(
            "{} served before, {} answered {} after",
            before.len(),
            after.len(),
            after[0].status
        ),
    ))
}
