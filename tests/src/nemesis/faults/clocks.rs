//! Nodes whose wall clock jumps, and nodes whose clocks all run at another rate.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    vec![
        Kind {
            name: "wall-clock-jumps-an-hour",
            scope: Scope::Nodes,
            lasts_ms: 2_000..5_000,
            needs: |machine| machine.faketime.clone().map(drop),
            make: || Box::new(Jump::new(["+1h", "-1h"])),
        },
        Kind {
            name: "wall-clock-jumps-a-month",
            scope: Scope::Nodes,
            lasts_ms: 2_000..5_000,
            needs: |machine| machine.faketime.clone().map(drop),
            make: || Box::new(Jump::new(["+31d", "-31d"])),
        },
        Kind {
            name: "clocks-run-1000-ppm-off",
            scope: Scope::Members,
            lasts_ms: 15_000..25_000,
            needs: |machine| machine.faketime.clone().map(drop),
            make: || {
                Box::new(Drift {
                    victims: Vec::new(),
                })
            },
        },
    ]
}

/// Another fault may keep it from being ready.
const READY_WITHIN: Duration = Duration::from_secs(8);
/// Several roll calls.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
const HALF_AN_HOUR_S: f64 = 1_800.0;

struct Jump {
    ways: [&'static str; 2],
    victims: Vec<u64>,
}

impl Jump {
    fn new(ways: [&'static str; 2]) -> Self {
        Self {
            ways,
            victims: Vec::new(),
        }
    }
}

/// Starts a node again, under these variables.
fn restart(world: &mut World, id: u64, environment: Vec<(String, String)>) -> Result<(), String> {
    world.cluster.kill(id);
    if let Some(node) = world.cluster.node(id) {
        node.environment = environment;
    }
    let ground = &world.ground;
    world
        .cluster
        .run(id, ground)
        .map_err(|error| error.to_string())
}

fn preload(library: PathBuf, more: &[(&str, String)]) -> Vec<(String, String)> {
    let mut all = vec![("LD_PRELOAD".to_owned(), library.display().to_string())];
    all.extend(
        more.iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone())),
    );
    all
}

/// A fault that reaches no clock proves nothing: the node itself must see that it is
/// away from the others.
fn noticed(world: &mut World, id: u64) -> Result<String, String> {
    let give_up = Instant::now() + NOTICED_WITHIN;
    loop {
        let node = world.cluster.node(id).ok_or("it is gone")?;
        let metrics = node.ask("GET", "/metrics", None).ok();
        let behind = metrics.as_ref().and_then(|answer| {
            let line = answer
                .body
                .lines()
                .find_map(|line| line.strip_prefix("leasehold_wall_clock_behind_seconds "));
            line?.parse::<f64>().ok()
        });
        match behind {
            Some(seconds) if seconds.abs() > HALF_AN_HOUR_S => {
                return Ok(format!("{seconds:.0} s behind, says the node"));
            }
            _ if Instant::now() > give_up => {
                return Err(format!(
                    "node {id} says it is {behind:?} s behind the others"
                ));
            }
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

impl Fault for Jump {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let library = world.machine.faketime.clone()?;
        let mut running = world.cluster.running();
        draw.shuffle(&mut running);
        // One node, or all of them, each its own way.
        if draw.chance(50) {
            running.truncate(1);
        }
        let mut done = Vec::new();
        for id in running {
            let file = world.folder.join(format!("node-{id}.clock"));
            fs::write(&file, "+0").map_err(|error| error.to_string())?;
            let environment = preload(
                library.clone(),
                &[
                    ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
                    ("FAKETIME_NO_CACHE", "1".to_owned()),
                    ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
                ],
            );
            self.victims.push(id);
            restart(world, id, environment)?;
            world.cluster.await_ready(id, READY_WITHIN);
            done.push((id, file));
        }
        let mut said = Vec::new();
        for (id, file) in &done {
            let way = self.ways[draw.index(2)];
            fs::write(file, way).map_err(|error| error.to_string())?;
            said.push(format!("node {id} {way}"));
        }
        if let [(id, _)] = done.as_slice() {
            said.push(noticed(world, *id)?);
        }
        Ok(said.join(", "))
    }

    fn heal(&mut self, world: &mut World) {
        for id in std::mem::take(&mut self.victims) {
            if let Err(error) = restart(world, id, Vec::new()) {
                world.found(format!("node {id} cannot be started: {error}"));
            }
        }
    }
}

/// One node fast and another one slow, by all that the promise allows for.
struct Drift {
    victims: Vec<u64>,
}

impl Fault for Drift {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let library = world.machine.faketime.clone()?;
        let mut running = world.cluster.running();
        draw.shuffle(&mut running);
        let rates = ["+0 x1.001", "+0 x0.999"];
        let mut said = Vec::new();
        for (id, rate) in running.into_iter().zip(rates) {
            let environment = preload(library.clone(), &[("FAKETIME", rate.to_owned())]);
            self.victims.push(id);
            restart(world, id, environment)?;
            world.cluster.await_ready(id, READY_WITHIN);
            said.push(format!("node {id} {rate}"));
        }
        // One of them leads, if it can be had.
        if let Some(id) = self.victims.first() {
            let body = serde_json::json!({ "node_id": id });
            let led = world.cluster.ask(
                "POST",
                "/v1/cluster/leader",
                Some(&body),
                Duration::from_secs(5),
            );
            said.push(format!(
                "node {id} to lead: {}",
                led.map_or(0, |answer| answer.status)
            ));
        }
        Ok(said.join(", "))
    }

    fn heal(&mut self, world: &mut World) {
        for id in std::mem::take(&mut self.victims) {
            if let Err(error) = restart(world, id, Vec::new()) {
                world.found(format!("node {id} cannot be started: {error}"));
            }
            world.cluster.await_ready(id, READY_WITHIN);
        }
    }
}
