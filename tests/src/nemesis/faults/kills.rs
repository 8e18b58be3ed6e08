//! Coordinators that die by SIGKILL and are started again when the fault ends.

use std::time::Duration;

use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    let kind = |name, make| Kind {
        name,
        scope: Scope::Nodes,
        lasts_ms: 500..8_000,
        needs: |_| Ok(()),
        make,
    };
    vec![
        kind("kill-leader", || Box::new(Kill(Whom::Leader))),
        kind("kill-follower", || Box::new(Kill(Whom::Follower))),
        kind("kill-majority", || Box::new(Kill(Whom::Majority))),
        kind("kill-all-nodes", || Box::new(Kill(Whom::All))),
    ]
}

enum Whom {
    Leader,
    Follower,
    Majority,
    All,
}

struct Kill(Whom);

impl Fault for Kill {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let running = world.cluster.running();
        let victims = match self.0 {
            Whom::Leader => world.cluster.leader().into_iter().collect(),
            Whom::Follower => draw.pick(&world.followers()).into_iter().collect(),
            Whom::Majority => {
                let mut some = running.clone();
                draw.shuffle(&mut some);
                some.truncate(world.cluster.ids().len() / 2 + 1);
                some
            }
            Whom::All => running.clone(),
        };
        if victims.is_empty() {
            return Err("there is nobody to kill".to_owned());
        }
        if victims.len() == world.cluster.ids().len() {
            world.dark(
                |world| world.cluster.kill_all(&victims),
                Duration::from_millis(300),
            );
        } else {
            world.cluster.kill_all(&victims);
        }
        Ok(format!("SIGKILL to nodes {victims:?}"))
    }
}
