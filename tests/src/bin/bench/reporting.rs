//! Key reports a second and the latency of asks on three nodes with real fsyncs.
//! Speaks the protocol itself, one message in flight per stream, so that the
//! client's own pacing does not matter. Knows no policy but a generous one.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use leasehold_proto::v1::{
    ClientMessage, KeyReport, Open, Sync, client_message, coordinator_message,
    leasehold_client::LeaseholdClient,
};
use leasehold_tests::LocalCluster;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{Figure, Outcome, float, percentile};

/// Gateway streams, and key reports in each of their messages.
const SHAPES: [(u32, u32); 6] = [(1, 1), (8, 1), (64, 1), (1, 16), (8, 16), (64, 16)];
const WARM_UP: Duration = Duration::from_secs(1);

pub(super) fn measure(binary: &Path, duration: Duration) -> Outcome<Vec<Figure>> {
    let mut cluster = LocalCluster::start(binary, 3, "")?;
    cluster.wait_ready(Duration::from_secs(30))?;
    let plenty = json!({ "policy": {
        "kind": "sliding_window", "limit": 1_u64 << 50, "window_ms": 1_000,
    } });
    cluster.request(
        "PUT",
        "/v1/budgets/bench/**",
        Some(&plenty),
        Duration::from_secs(10),
    )?;
    let leader = cluster.wait_leader(Duration::from_secs(10))?;
    let endpoint = cluster.endpoints().swap_remove(leader.node);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut figures = Vec::new();
    for (gateways, keys) in SHAPES {
        let measured = runtime.block_on(run(&endpoint, gateways, keys, duration))?;
        let Measured {
            rounds,
            mut latencies_us,
        } = measured;
        let name = format!("{gateways} gateways x {keys} keys a message");
        let reports = float(rounds * u64::from(keys)) / duration.as_secs_f64();
        figures.push(Figure::new(format!("{name}: key reports"), reports, "1/s"));
        let p50 = float(percentile(&mut latencies_us, 50)) / 1e3;
        let p99 = float(percentile(&mut latencies_us, 99)) / 1e3;
        figures.push(Figure::new(format!("{name}: ask p50"), p50, "ms"));
        figures.push(Figure::new(format!("{name}: ask p99"), p99, "ms"));
    }
    Ok(figures)
}

struct Measured {
    rounds: u64,
    latencies_us: Vec<u64>,
}

async fn run(endpoint: &str, gateways: u32, keys: u32, duration: Duration) -> Outcome<Measured> {
    let mut streams = tokio::task::JoinSet::new();
    let from = Instant::now() + WARM_UP;
    for gateway in 0..gateways {
        let endpoint = endpoint.to_owned();
        streams.spawn(async move { stream(&endpoint, gateway, keys, from, from + duration).await });
    }
    let mut all = Measured {
        rounds: 0,
        latencies_us: Vec::new(),
    };
    while let Some(ended) = streams.join_next().await {
        let latencies_us = ended??;
        all.rounds += u64::try_from(latencies_us.len())?;
        all.latencies_us.extend(latencies_us);
    }
    Ok(all)
}

/// One gateway: reports everything as spent and asks for one more unit of each
/// key, again and again. The latencies of the rounds between `from` and `to`.
async fn stream(
    endpoint: &str,
    gateway: u32,
    keys: u32,
    from: Instant,
    to: Instant,
) -> Outcome<Vec<u64>> {
    let mut client = LeaseholdClient::connect(endpoint.to_owned()).await?;
    let (send, receive) = mpsc::channel(4);
    let open = Open {
        holder: format!("bench-{gateway}"),
        instance: std::iter::repeat_n(gateway.to_be_bytes(), 4)
            .flatten()
            .collect(),
        ..Open::default()
    };
    send.send(ClientMessage {
        kind: Some(client_message::Kind::Open(open)),
    })
    .await?;
    let mut answers = client
        .session(ReceiverStream::new(receive))
        .await?
        .into_inner();
    match answers.message().await?.and_then(|answer| answer.kind) {
        Some(coordinator_message::Kind::Opened(_)) => {}
        other => return Err(format!("not opened: {other:?}").into()),
    }
    // By key id: the lease's generation and what was granted.
    let mut leases: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut latencies_us = Vec::new();
    for seq in 1.. {
        let began = Instant::now();
        if began >= to {
            break;
        }
        let reports = (0..keys)
            .map(|key_id| {
                let (generation, granted) = leases.get(&key_id).copied().unwrap_or_default();
                let first = seq == 1;
                KeyReport {
                    key_id,
                    key: if first {
                        format!("bench/{gateway}/{key_id}")
                    } else {
                        String::new()
                    },
                    generation,
                    granted_seen: granted,
                    spent_total: granted,
                    want: 1,
                    waiting: 1,
                    ..KeyReport::default()
                }
            })
            .collect();
        let sync = Sync { seq, reports };
        send.send(ClientMessage {
            kind: Some(client_message::Kind::Sync(sync)),
        })
        .await?;
        let mut synced = false;
        let mut unanswered = keys;
        while !synced || unanswered > 0 {
            let answer = tokio::time::timeout(Duration::from_secs(10), answers.message()).await??;
            let grants = match answer.and_then(|answer| answer.kind) {
                Some(coordinator_message::Kind::Synced(answer)) => {
                    synced |= answer.seq == seq;
                    answer.grants
                }
                Some(coordinator_message::Kind::Granted(granted)) => granted.grants,
                Some(coordinator_message::Kind::Recall(_)) => continue,
                other => return Err(format!("unexpected: {other:?}").into()),
            };
            for grant in grants {
                let known = leases.entry(grant.key_id).or_default();
                if (grant.generation, grant.granted_total) > *known {
                    *known = (grant.generation, grant.granted_total);
                    unanswered = unanswered.saturating_sub(1);
                }
            }
        }
        if began >= from {
            latencies_us.push(u64::try_from(began.elapsed().as_micros())?);
        }
    }
    Ok(latencies_us)
}
