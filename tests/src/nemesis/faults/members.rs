//! The membership: nodes that are replaced by empty ones, come and go, and
//! leaders that hand over, all under load.

use std::time::Duration;

use serde_json::json;

use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    let kind = |name, scope, make| Kind {
        name,
        scope,
        lasts_ms: 500..3_000,
        needs: |_| Ok(()),
        make,
    };
    vec![
        kind("replace-node", Scope::Members, || Box::new(Replace)),
        kind("change-members", Scope::Members, || Box::new(Change)),
        kind("transfer-leader", Scope::Nodes, || Box::new(Transfer)),
    ]
}

const CHANGE_WITHIN: Duration = Duration::from_secs(60);

/// Puts an empty node under a new id in the place of one that is dead for good.
pub(super) fn replace(world: &mut World, id: u64) -> Result<u64, String> {
    world.cluster.kill(id);
    let new = start(world)?;
    let ground = &world.ground;
    world.cluster.join(new, Some(id), ground, CHANGE_WITHIN)?;
    world
        .cluster
        .forget(id, &mut world.ground, &mut world.links);
    Ok(new)
}

/// The same in two steps, as somebody does who has no spare machine.
fn remove_and_add(world: &mut World, id: u64) -> Result<u64, String> {
    world.cluster.kill(id);
    world.cluster.expel(id, CHANGE_WITHIN)?;
    world
        .cluster
        .forget(id, &mut world.ground, &mut world.links);
    add(world)
}

fn start(world: &mut World) -> Result<u64, String> {
    let started = world.cluster.start_new(&mut world.ground, &mut world.links);
    started.map_err(|error| error.to_string())
}

fn add(world: &mut World) -> Result<u64, String> {
    let new = start(world)?;
    world
        .cluster
        .join(new, None, &world.ground, CHANGE_WITHIN)?;
    Ok(new)
}

struct Replace;

impl Fault for Replace {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let victim = draw.pick(&world.cluster.running()).ok_or("no node runs")?;
        let (new, how) = if draw.chance(50) {
            (replace(world, victim), "in one step")
        } else {
            (remove_and_add(world, victim), "in two steps")
        };
        let new = new.inspect_err(|error| world.found(error.clone()))?;
        Ok(format!("node {victim} by node {new}, {how}"))
    }
}

/// One more node, and one less.
struct Change;

impl Fault for Change {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let leaving = draw.pick(&world.cluster.running()).ok_or("no node runs")?;
        let new = add(world).inspect_err(|error| world.found(error.clone()))?;
        world.hold(draw.millis(200..1_500));
        // When it hears that it was removed it ends by itself.
        world.excused.push(leaving);
        world
            .cluster
            .expel(leaving, CHANGE_WITHIN)
            .inspect_err(|error| world.found(error.clone()))?;
        // It still runs, and nobody may believe it.
        world.hold(draw.millis(0..1_500));
        world
            .cluster
            .forget(leaving, &mut world.ground, &mut world.links);
        Ok(format!("node {new} joined, node {leaving} left"))
    }
}

/// The leader hands over, again and again.
struct Transfer;

impl Fault for Transfer {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let mut answers = Vec::new();
        for _ in 0..4 {
            let Some(to) = draw.pick(&world.followers()) else {
                continue;
            };
            let body = json!({ "node_id": to });
            let within = Duration::from_secs(4);
            let answer = world
                .cluster
                .ask("POST", "/v1/cluster/leader", Some(&body), within);
            answers.push(format!(
                "{to}: {}",
                answer.map_or(0, |answer| answer.status)
            ));
            world.hold(draw.millis(100..1_200));
        }
        Ok(format!("asked to hand over to {answers:?}"))
    }
}
