//! Followers that are so far behind that entries do not help them any more: they
//! need a snapshot, and some die while they receive it.

use std::{fs, time::Duration};

use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    host::Host,
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    let kind = |name, make| Kind {
        name,
        scope: Scope::Members,
        lasts_ms: 100..1_000,
        needs: |_| Ok(()),
        make,
    };
    vec![
        kind("follower-needs-snapshot", || {
            Box::new(Behind { interruptions: 0 })
        }),
        kind("snapshot-interrupted", || {
            Box::new(Behind { interruptions: 3 })
        }),
    ]
}

const PURGES_WITHIN: Duration = Duration::from_secs(60);
/// Slow enough for somebody to die in the middle.
const TRICKLE_BYTES_PER_SECOND: u32 = 30_000;
const BEGINS_WITHIN: Duration = Duration::from_secs(6);

struct Behind {
    interruptions: u32,
}

impl Fault for Behind {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let victim = draw.pick(&world.followers()).ok_or("nobody follows")?;
        let had = world
            .cluster
            .node(victim)
            .and_then(|node| node.position())
            .map(|position| position.last)
            .ok_or("it does not say how far it is")?;
        world.cluster.kill(victim);
        let gone = world.until(PURGES_WITHIN, |world| {
            let status = world.cluster.status();
            let purged = status.and_then(|status| status["log"]["purged"].as_u64());
            purged.is_some_and(|purged| purged > had + 1)
        });
        if !gone {
            return Err(format!("the log still begins before entry {had}"));
        }
        let mut died = 0;
        for _ in 0..self.interruptions {
            for other in world.links.others(Host::Node(victim)) {
                world.links.change(other, Host::Node(victim), |path| {
                    path.bytes_per_second = Some(TRICKLE_BYTES_PER_SECOND);
                });
            }
            world
                .cluster
                .run(victim, &world.ground)
                .map_err(|error| error.to_string())?;
            let begun = world.until(BEGINS_WITHIN, |world| {
                let data = world.cluster.node(victim).map(|node| node.data.clone());
                let folder = fs::read_dir(data.unwrap_or_default().join("snapshots"));
                folder.into_iter().flatten().flatten().any(|item| {
                    let path = item.path();
                    path.extension().is_some_and(|end| end == "part")
                })
            });
            if begun {
                world.hold(draw.millis(0..600));
                died += 1;
            }
            world.cluster.kill(victim);
        }
        Ok(format!(
            "node {victim} had {had} entries when it died, and died {died} times while it received a snapshot"
        ))
    }
}
