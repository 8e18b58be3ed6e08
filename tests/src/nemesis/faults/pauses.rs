//! Coordinators that are stopped where they are, and go on as if nothing had been.

use std::ops::Range;

use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    let kind = |name, lasts_ms, make| Kind {
        name,
        scope: Scope::Nodes,
        lasts_ms,
        needs: |_| Ok(()),
        make,
    };
    // Elections come after 500 to 1000 ms, sessions end after 3000 ms.
    vec![
        kind("pause-leader-briefly", 500..1_500, || {
            Box::new(Blink { millis: 150..420 })
        }),
        kind("pause-leader", 1_200..2_800, || {
            Box::new(Pause(Whom::Leader))
        }),
        kind("pause-leader-beyond-ttl", 3_500..9_000, || {
            Box::new(Pause(Whom::Leader))
        }),
        kind("pause-follower", 1_000..7_000, || {
            Box::new(Pause(Whom::Follower))
        }),
        kind("pause-majority", 1_000..8_000, || {
            Box::new(Pause(Whom::Majority))
        }),
    ]
}

/// The leader, again and again, each time for less than an election takes.
struct Blink {
    millis: Range<u64>,
}

impl Fault for Blink {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let leader = world.cluster.leader().ok_or("nobody leads")?;
        for _ in 0..6 {
            let asleep = draw.millis(self.millis.clone());
            let awake = draw.millis(50..300);
            world.cluster.pause(leader);
            std::thread::sleep(asleep);
            world.cluster.resume(leader);
            world.hold(awake);
        }
        Ok(format!(
            "six times SIGSTOP to node {leader}, {:?} ms each",
            self.millis
        ))
    }
}

enum Whom {
    Leader,
    Follower,
    Majority,
}

struct Pause(Whom);

impl Fault for Pause {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let victims: Vec<u64> = match self.0 {
            Whom::Leader => world.cluster.leader().into_iter().collect(),
            Whom::Follower => draw.pick(&world.followers()).into_iter().collect(),
            Whom::Majority => {
                let mut some = world.cluster.running();
                draw.shuffle(&mut some);
                some.truncate(world.cluster.ids().len() / 2 + 1);
                some
            }
        };
        if victims.is_empty() {
            return Err("there is nobody to stop".to_owned());
        }
        for id in &victims {
            world.cluster.pause(*id);
        }
        Ok(format!("SIGSTOP to nodes {victims:?}"))
    }
}
