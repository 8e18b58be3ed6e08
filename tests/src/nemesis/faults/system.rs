//! Everything at once: stopped in good order, or without power.

use std::time::Duration;

use crate::{
    clock_ns,
    nemesis::{
        draw::Draw,
        fault::{Fault, Kind, Scope},
        world::{PEACE_WITHIN, World},
    },
};

pub(super) fn kinds() -> Vec<Kind> {
    let kind = |name, make| Kind {
        name,
        scope: Scope::System,
        lasts_ms: 100..500,
        needs: |_| Ok(()),
        make,
    };
    vec![
        kind("sigterm-everything", || Box::new(Terminate)),
        kind("power-cut", || Box::new(PowerCut)),
    ]
}

const STOPS_WITHIN: Duration = Duration::from_secs(20);

struct Terminate;

impl Fault for Terminate {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let ids = world.cluster.ids();
        let gateways_first = draw.chance(50);
        if gateways_first {
            for who in world.fleet.finish_all(PEACE_WITHIN) {
                world.found(who);
            }
        }
        world.cluster.ask_to_end(&ids);
        for id in &ids {
            if !world.cluster.await_end(*id, STOPS_WITHIN) {
                world.found(format!(
                    "node {id} did not stop within {} s of SIGTERM",
                    STOPS_WITHIN.as_secs()
                ));
            }
        }
        let from_ns = clock_ns();
        if !gateways_first {
            for who in world.fleet.finish_all(PEACE_WITHIN) {
                world.found(who);
            }
        }
        std::thread::sleep(draw.millis(100..2_000));
        world.nobody_ran(from_ns, clock_ns());
        let order = if gateways_first { "gateways" } else { "nodes" };
        Ok(format!("all nodes and gateways, {order} first"))
    }
}

struct PowerCut;

impl Fault for PowerCut {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let ids = world.cluster.ids();
        let lasts = draw.millis(100..6_000);
        world.dark(
            |world| {
                world.cluster.kill_all(&ids);
                world.fleet.kill_all();
            },
            lasts,
        );
        Ok(format!(
            "SIGKILL to everything at one moment, dark for {lasts:?}"
        ))
    }
}
