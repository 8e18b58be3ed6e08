//! Ten thousand gateways that open their sessions at once, half of which end in
//! good order and the others without a word.

use std::time::Duration;

use super::light_client::{LightClient, channel};
use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    vec![Kind {
        name: "ten-thousand-sessions",
        scope: Scope::Gateways,
        lasts_ms: 500..2_000,
        needs: |_| Ok(()),
        make: || Box::new(Crowd),
    }]
}

const SESSIONS: usize = 10_000;
/// A connection carries 200 streams at most.
const CONNECTIONS: usize = 100;
const OPEN_WITHIN: Duration = Duration::from_secs(60);

struct Crowd;

async fn arrive(to: std::net::SocketAddr) -> (usize, Vec<LightClient>, String) {
    let mut tasks = tokio::task::JoinSet::new();
    let mut refused = String::new();
    for _ in 0..CONNECTIONS {
        let channel = match channel(to).await {
            Ok(channel) => channel,
            Err(error) => {
                refused = error;
                continue;
            }
        };
        for _ in 0..SESSIONS / CONNECTIONS {
            let channel = channel.clone();
            tasks.spawn(async move { LightClient::open(channel, "crowd", &[]).await });
        }
    }
    let mut open = Vec::new();
    let all = async {
        while let Some(done) = tasks.join_next().await {
            match done {
                Ok(Ok(client)) => open.push(client),
                Ok(Err(error)) => refused = error,
                Err(error) => refused = error.to_string(),
            }
        }
    };
    let _ = tokio::time::timeout(OPEN_WITHIN, all).await;
    (open.len(), open, refused)
}

impl Fault for Crowd {
    fn inject(&mut self, world: &mut World, _: &mut Draw) -> Result<String, String> {
        let leader = world.cluster.leader().ok_or("nobody leads")?;
        let to = world
            .cluster
            .node(leader)
            .map(|node| node.client)
            .ok_or("nobody leads")?;
        let began = std::time::Instant::now();
        let (count, open, refused) = world.runtime.block_on(arrive(to));
        let took = began.elapsed();
        world.runtime.block_on(async {
            for (number, client) in open.into_iter().enumerate() {
                if number % 2 == 0 {
                    client.close().await;
                }
            }
        });
        if count == 0 {
            return Err(format!("no session opened: {refused}"));
        }
        Ok(format!(
            "{count} sessions on node {leader} in {} ms{}{refused}",
            took.as_millis(),
            if refused.is_empty() {
                ""
            } else {
                ", others were told "
            }
        ))
    }
}
