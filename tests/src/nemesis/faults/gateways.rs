//! Gateways that die, freeze, or are cut off.

use std::ops::Range;

use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    fleet,
    host::Host,
    link::Mode,
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    let kind = |name, lasts_ms: Range<u64>, make| Kind {
        name,
        scope: Scope::Gateways,
        lasts_ms,
        needs: |_| Ok(()),
        make,
    };
    vec![
        kind("kill-gateway", 200..3_000, || Box::new(Kill)),
        kind("zombie-gateway", 3_500..9_000, || {
            Box::new(Zombie(Vec::new()))
        }),
        kind("gateway-cut-off", 2_000..9_000, || {
            Box::new(CutOff {
                from: From::AllNodes,
            })
        }),
        kind("gateway-without-leader", 2_000..9_000, || {
            Box::new(CutOff { from: From::Leader })
        }),
        kind("gateway-restart-storm", 200..1_000, || Box::new(Storm)),
    ]
}

struct Kill;

impl Fault for Kill {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let place = draw.index(world.fleet.size());
        world.fleet.kill(place);
        Ok(format!("SIGKILL to {}", fleet::host(place)))
    }
}

/// Frozen for longer than its session lives, and then awake again.
struct Zombie(Vec<usize>);

impl Fault for Zombie {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let mut places: Vec<usize> = (0..world.fleet.size()).collect();
        draw.shuffle(&mut places);
        places.truncate(draw.index(2) + 1);
        for place in &places {
            world.fleet.pause(*place);
        }
        let said = format!("SIGSTOP to {:?}", places);
        self.0 = places;
        Ok(said)
    }

    fn heal(&mut self, world: &mut World) {
        for place in std::mem::take(&mut self.0) {
            world.fleet.resume(place);
        }
    }
}

enum From {
    AllNodes,
    Leader,
}

struct CutOff {
    from: From,
}

impl Fault for CutOff {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let gateway = fleet::host(draw.index(world.fleet.size()));
        let mode = if draw.chance(50) {
            Mode::Stall
        } else {
            Mode::Cut
        };
        let nodes: Vec<Host> = match self.from {
            From::AllNodes => world.cluster.ids().into_iter().map(Host::Node).collect(),
            From::Leader => vec![Host::Node(world.cluster.leader().ok_or("nobody leads")?)],
        };
        world.links.partition(&[gateway], &nodes, mode);
        Ok(format!("{gateway} from {nodes:?}, {mode:?}"))
    }

    fn heal(&mut self, world: &mut World) {
        for place in 0..world.fleet.size() {
            for id in world.cluster.ids() {
                world
                    .links
                    .part(fleet::host(place), Host::Node(id), Mode::Flow);
            }
        }
    }
}

/// All gateways die and come back, several times in a row.
struct Storm;

impl Fault for Storm {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let times = 3;
        for _ in 0..times {
            world.fleet.kill_all();
            world.refill();
            world.hold(draw.millis(300..2_000));
        }
        Ok(format!("SIGKILL to all gateways, {times} times"))
    }
}
