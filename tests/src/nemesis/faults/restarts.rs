//! Nodes that are restarted in good order, one after another: with the same build,
//! or with another one.

use std::{path::PathBuf, time::Duration};

use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    vec![
        Kind {
            name: "rolling-restart",
            scope: Scope::Members,
            lasts_ms: 200..1_000,
            needs: |_| Ok(()),
            make: || Box::new(Rolling { upgrades: false }),
        },
        Kind {
            name: "rolling-upgrade",
            scope: Scope::Members,
            lasts_ms: 200..1_000,
            needs: |machine| machine.upgrade_to.clone().map(drop),
            make: || Box::new(Rolling { upgrades: true }),
        },
    ]
}

const STOPS_WITHIN: Duration = Duration::from_secs(20);
const READY_WITHIN: Duration = Duration::from_secs(60);

struct Rolling {
    upgrades: bool,
}

impl Fault for Rolling {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let mut ids = world.cluster.ids();
        draw.shuffle(&mut ids);
        let build: Option<PathBuf> = if self.upgrades {
            Some(world.machine.upgrade_to.clone()?)
        } else {
            None
        };
        for id in &ids {
            if !world.cluster.terminate(*id, STOPS_WITHIN) && !world.is_over() {
                world.found(format!(
                    "node {id} did not stop within {} s of SIGTERM",
                    STOPS_WITHIN.as_secs()
                ));
            }
            if let (Some(build), Some(node)) = (&build, world.cluster.node(*id)) {
                node.binary.clone_from(build);
            }
            world
                .cluster
                .run(*id, &world.ground)
                .map_err(|error| error.to_string())?;
            if !world.cluster.await_ready(*id, READY_WITHIN) && !world.is_over() {
                world.found(format!("node {id} is not ready after its restart"));
            }
        }
        if let Some(build) = build {
            world.cluster.binary = build;
        }
        Ok(format!("nodes {ids:?}, one after another"))
    }
}
