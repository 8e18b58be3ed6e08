//! What a check adds to each request, beside the same gateway without one and with one
//! that asks Redis. Measures in turns, so that a slow moment of the machine hits all
//! three alike; judges nothing.

use std::{net::SocketAddr, path::Path, time::Duration};

use leasehold_tests::LocalCluster;
use serde_json::{Value, json};

use super::{
    Outcome,
    ground::Ground,
    load::Load,
    proxies::{Edit, Instance, Proxy, Wiring},
    redis_check::RedisCheck,
};

/// The median of so many turns counts.
const TURNS: usize = 5;
/// Where a request is not checked.
const UNCHECKED: &str = "/free";

/// What one gateway takes for a request, in microseconds: the median of requests that
/// come one after another, and what a request costs when many come at once.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    alone_us: f64,
    busy_us: f64,
}

/// One gateway's figures.
pub(super) struct Overhead {
    gateway: &'static str,
    unchecked: Cost,
    agent: Cost,
    redis: Cost,
}

impl Overhead {
    /// Measures a gateway, each turn for `turn`.
    pub(super) async fn measure(
        (proxy, program): (Proxy, &Path),
        redis: &Path,
        deploy: &Path,
        ground: &Ground,
        turn: Duration,
    ) -> Outcome<Self> {
        let folder = ground
            .cluster
            .dir()
            .join(format!("overhead-{}", proxy.name()));
        std::fs::create_dir_all(&folder)?;
        let redis = RedisCheck::start(redis, &folder).await?;
        let edit = unchecked_route(proxy).ok_or("it cannot be compared")?;
        let mut started = Vec::new();
        let mut at = Vec::new();
        for (name, check) in [("agent", ground.agents[0].at), ("redis", redis.at)] {
            let port = LocalCluster::free_ports(1)?[0];
            let wiring = Wiring {
                listens: SocketAddr::from(([127, 0, 0, 1], port)),
                agent: check,
                upstream: ground.upstream_at,
            };
            let folder = folder.join(name);
            started.push(Instance::start(
                proxy,
                program,
                deploy,
                &folder,
                wiring,
                &[edit],
            )?);
            at.push(wiring.listens);
        }
        let (agent, redis) = (at[0], at[1]);
        let ways = [(agent, UNCHECKED), (agent, "/orders"), (redis, "/orders")];
        let mut turns: [Vec<Cost>; 3] = Default::default();
        for _ in 0..TURNS {
            for (costs, (to, path)) in turns.iter_mut().zip(ways) {
                costs.push(Cost {
                    alone_us: alone_us(to, path, turn).await?,
                    busy_us: busy_us(to, path, turn).await?,
                });
            }
        }
        let [unchecked, agent, redis] = turns.map(|costs| Cost {
            alone_us: median(costs.iter().map(|cost| cost.alone_us)),
            busy_us: median(costs.iter().map(|cost| cost.busy_us)),
        });
        Ok(Self {
            gateway: proxy.name(),
            unchecked,
            agent,
            redis,
        })
    }

    /// What the agent adds to a request, as a share of what Redis adds.
    fn ratio(&self, of: fn(&Cost) -> f64) -> f64 {
        let added = |cost: &Cost| of(cost) - of(&self.unchecked);
        added(&self.agent) / added(&self.redis)
    }

    pub(super) fn json(&self) -> Value {
        let cost = |cost: &Cost| json!({ "alone_us": cost.alone_us, "busy_us": cost.busy_us });
        json!({
            "gateway": self.gateway, "unchecked": cost(&self.unchecked),
            "agent": cost(&self.agent), "redis": cost(&self.redis),
            "added_by_agent_per_redis_alone": self.ratio(|cost| cost.alone_us),
            "added_by_agent_per_redis_busy": self.ratio(|cost| cost.busy_us),
        })
    }

    pub(super) fn print(&self) {
        for (what, of) in [
            (
                "one request after another",
                (|cost: &Cost| cost.alone_us) as fn(&Cost) -> f64,
            ),
            ("16 connections, time per request", |cost: &Cost| {
                cost.busy_us
            }),
        ] {
            println!(
                "{:<8} {what:<34} no check {:>6.0} µs, agent {:>6.0} µs, Redis {:>6.0} µs: \
                 the agent adds {:.2} × what Redis adds",
                self.gateway,
                of(&self.unchecked),
                of(&self.agent),
                of(&self.redis),
                self.ratio(of),
            );
        }
    }
}

/// Gateways that can ask the Redis-backed service as they are configured.
pub(super) fn is_compared(proxy: Proxy) -> bool {
    unchecked_route(proxy).is_some()
}

fn unchecked_route(proxy: Proxy) -> Option<Edit> {
    match proxy {
        Proxy::Envoy => Some((
            "                        - match: { prefix: \"/\" }\n",
            "                        - match: { prefix: \"/free\" }\n                          \
             route: { cluster: upstream }\n                        - match: { prefix: \"/\" }\n",
        )),
        Proxy::Nginx => Some((
            "    location / {\n",
            "    location /free {\n      proxy_pass http://app;\n      proxy_http_version 1.1;\n      \
             proxy_set_header Connection \"\";\n    }\n    location / {\n",
        )),
        Proxy::Traefik | Proxy::Caddy | Proxy::Haproxy => None,
    }
}

async fn run(to: SocketAddr, path: &str, connections: usize, turn: Duration) -> Outcome<Vec<f64>> {
    let seen = Load {
        gateways: &[to],
        path,
        key: "counted-overhead",
        connections,
        pace: None,
        lasts: turn,
    }
    .run()
    .await?;
    if let Some(other) = seen.answers.iter().find(|answer| answer.status != 200) {
        return Err(format!("{path} was answered by {other:?}").into());
    }
    if seen.unanswered > 0 || seen.answers.is_empty() {
        return Err(format!("{path} was not answered: {}", seen.last_error).into());
    }
    let took = |ns: u64| std::time::Duration::from_nanos(ns).as_secs_f64() * 1e6;
    let each = seen.answers.iter();
    Ok(each
        .map(|answer| took(answer.answered_ns - answer.sent_ns))
        .collect())
}

async fn alone_us(to: SocketAddr, path: &str, turn: Duration) -> Outcome<f64> {
    Ok(median(run(to, path, 1, turn).await?.into_iter()))
}

async fn busy_us(to: SocketAddr, path: &str, turn: Duration) -> Outcome<f64> {
    let count = run(to, path, 16, turn).await?.len();
    Ok(turn.as_secs_f64() * 1e6 / f64::from(u32::try_from(count)?))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
