//! A node that comes back under its id without its store. It has forgotten what it
//! promised, so it must refuse; then an empty node under a new id takes its place.

use std::fs;

use super::{
    flipped_byte::{Outcome, start},
    members,
};
use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    vec![Kind {
        name: "wiped-disk",
        scope: Scope::Members,
        lasts_ms: 100..1_000,
        needs: |_| Ok(()),
        make: || Box::new(Wipe),
    }]
}

struct Wipe;

impl Fault for Wipe {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let victim = draw.pick(&world.cluster.running()).ok_or("no node runs")?;
        world.cluster.kill(victim);
        let node = world.cluster.node(victim).ok_or("it is gone")?;
        fs::remove_dir_all(&node.data).map_err(|error| error.to_string())?;
        let mut said = "refused";
        match start(world, victim) {
            Ok(Outcome::Refused) => {}
            Ok(Outcome::Waits) => said = "had nobody to ask and refused its leader",
            Ok(Outcome::Whole) => world.found(format!("node {victim} came back without its store")),
            Err(wrong) => world.found(format!("node {victim} without its store: {wrong}")),
        }
        let new =
            members::replace(world, victim).inspect_err(|error| world.found(error.clone()))?;
        Ok(format!(
            "node {victim}, which {said}; then replaced by node {new}"
        ))
    }
}
