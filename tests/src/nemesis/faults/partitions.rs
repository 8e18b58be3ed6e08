//! Links that carry nothing, one way only, slowly, or are half-open.

use std::time::Duration;

use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    fleet,
    host::Host,
    link::Mode,
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    let kind = |name, lasts_ms, make| Kind {
        name,
        scope: Scope::Network,
        lasts_ms,
        needs: |_| Ok(()),
        make,
    };
    vec![
        kind("partition-leader", 2_000..9_000, || {
            Box::new(Cut(Shape::LeaderAlone))
        }),
        kind("partition-leader-with-gateways", 3_500..9_000, || {
            Box::new(Cut(Shape::LeaderWithGateways))
        }),
        kind("partition-bridge", 2_000..9_000, || {
            Box::new(Cut(Shape::Bridge))
        }),
        kind("partition-one-way", 2_000..9_000, || {
            Box::new(Cut(Shape::OneWay))
        }),
        kind("partition-majority-less", 2_000..8_000, || {
            Box::new(Cut(Shape::AllApart))
        }),
        kind("half-open-links", 2_000..6_000, || {
            Box::new(Cut(Shape::HalfOpen))
        }),
        kind("flapping-links", 500..1_500, || {
            Box::new(Cut(Shape::Flapping))
        }),
        kind("slow-links", 4_000..10_000, || Box::new(SlowLinks)),
    ]
}

enum Shape {
    /// From all nodes, while every gateway still reaches it.
    LeaderAlone,
    /// With half of the gateways, from everybody else.
    LeaderWithGateways,
    /// Two halves, and one node that hears both.
    Bridge,
    /// The leader is not heard, or does not hear.
    OneWay,
    /// Every node from every other.
    AllApart,
    /// Connections of the leader that both ends believe in.
    HalfOpen,
    /// Pairs that are cut and joined, again and again.
    Flapping,
}

struct Cut(Shape);

fn nodes(world: &World) -> Vec<Host> {
    world.cluster.ids().into_iter().map(Host::Node).collect()
}

fn gateways(world: &World) -> Vec<Host> {
    (0..world.fleet.size()).map(fleet::host).collect()
}

impl Fault for Cut {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let leads = world.cluster.leader();
        let leader = leads.map(Host::Node).ok_or("nobody leads");
        // Packets that are lost, or connections that are refused.
        let mode = if draw.chance(50) {
            Mode::Stall
        } else {
            Mode::Cut
        };
        let all = nodes(world);
        match self.0 {
            Shape::LeaderAlone => {
                let leader = leader?;
                world.links.partition(&[leader], &all, mode);
                Ok(format!("{leader} from all nodes, {mode:?}"))
            }
            Shape::LeaderWithGateways => {
                let leader = leader?;
                let mut some = gateways(world);
                draw.shuffle(&mut some);
                some.truncate(some.len().div_ceil(2));
                let mut side = some.clone();
                side.push(leader);
                let others = world.links.hosts();
                let rest: Vec<Host> = others
                    .into_iter()
                    .filter(|host| !side.contains(host))
                    .collect();
                world.links.partition(&side, &rest, mode);
                Ok(format!("{leader} and {some:?} from all others, {mode:?}"))
            }
            Shape::Bridge => {
                let mut halves = all;
                draw.shuffle(&mut halves);
                let bridge = halves.pop().ok_or("there is no node")?;
                let (one, other) = halves.split_at(halves.len() / 2);
                world.links.partition(one, other, mode);
                Ok(format!(
                    "{one:?} from {other:?}, {bridge} hears both, {mode:?}"
                ))
            }
            Shape::OneWay => {
                let leader = leader?;
                let is_deaf = draw.chance(50);
                for other in all.iter().filter(|other| **other != leader) {
                    let (from, to) = if is_deaf {
                        (*other, leader)
                    } else {
                        (leader, *other)
                    };
                    world.links.change(from, to, |path| path.mode = Mode::Stall);
                }
                let what = if is_deaf { "hears" } else { "is heard by" };
                Ok(format!("{leader} {what} no other node"))
            }
            Shape::AllApart => {
                world.links.partition(&all, &all, mode);
                Ok(format!("every node from every other, {mode:?}"))
            }
            Shape::HalfOpen => {
                let leader = leader?;
                for other in world.links.others(leader) {
                    world.links.half_open(leader, other);
                }
                Ok(format!("all connections of {leader}"))
            }
            Shape::Flapping => {
                for _ in 0..12 {
                    let (one, other) = (draw.index(all.len()), draw.index(all.len()));
                    let (apart, joined) = (draw.millis(50..900), draw.millis(20..400));
                    if one == other {
                        continue;
                    }
                    world.links.part(all[one], all[other], mode);
                    world.hold(apart);
                    world.links.part(all[one], all[other], Mode::Flow);
                    world.hold(joined);
                }
                Ok(format!("pairs of nodes, {mode:?}"))
            }
        }
    }

    fn heal(&mut self, world: &mut World) {
        let hosts = world.links.hosts();
        for one in &hosts {
            for other in hosts.iter().filter(|other| *other > one) {
                world.links.part(*one, *other, Mode::Flow);
            }
        }
    }
}

/// Three regions, 40 ms apart each way.
struct SlowLinks;

const APART: Duration = Duration::from_millis(40);
const WITHIN: Duration = Duration::from_micros(300);
const REGIONS: usize = 3;

impl Fault for SlowLinks {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let jitter = draw.millis(0..10);
        let hosts = world.links.hosts();
        for (place, one) in hosts.iter().enumerate() {
            for (other_place, other) in hosts.iter().enumerate() {
                if one == other {
                    continue;
                }
                let is_apart = place % REGIONS != other_place % REGIONS;
                world.links.change(*one, *other, |path| {
                    path.delay = if is_apart { APART } else { WITHIN };
                    path.jitter = jitter;
                });
            }
        }
        Ok(format!("three regions 40 ms apart, up to {jitter:?} more"))
    }

    fn heal(&mut self, world: &mut World) {
        let hosts = world.links.hosts();
        for one in &hosts {
            for other in hosts.iter().filter(|other| *other != one) {
                world.links.change(*one, *other, |path| {
                    path.delay = Duration::ZERO;
                    path.jitter = Duration::ZERO;
                });
            }
        }
    }
}
