//! A client that lies: old, repeated, reordered, inflated and forged reports, ages
//! that cannot be, sessions that are not its own, and no end in good order. It
//! shares a key with honest gateways, whose promise is what is judged.

use std::time::Duration;

use leasehold_proto::v1::{
    KeyReport, Open, Settle, SettledLease, SpentAge, Sync, client_message::Kind as Say,
    coordinator_message::Kind as Told,
};
use rand::Rng as _;
use tokio::task::JoinHandle;

use super::light_client::{LightClient, channel};
use crate::nemesis::{
    cluster::Directory,
    draw::Draw,
    fault::{Fault, Kind, Scope},
    keys::{HOSTILE, PROBE},
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    vec![Kind {
        name: "hostile-client",
        scope: Scope::Gateways,
        lasts_ms: 4_000..9_000,
        needs: |_| Ok(()),
        make: || Box::new(Hostile(Vec::new())),
    }]
}

const CLIENTS: usize = 4;
const EAR: Duration = Duration::from_millis(200);

struct Hostile(Vec<JoinHandle<u64>>);

impl Fault for Hostile {
    fn inject(&mut self, world: &mut World, _: &mut Draw) -> Result<String, String> {
        let directory = world.cluster.directory();
        for _ in 0..CLIENTS {
            self.0.push(world.runtime.spawn(lie(directory.clone())));
        }
        Ok(format!("{CLIENTS} clients that lie about {HOSTILE}"))
    }

    fn heal(&mut self, world: &mut World) {
        for task in self.0.drain(..) {
            task.abort();
            if let Err(error) = world.runtime.block_on(task)
                && error.is_panic()
            {
                world.found(format!("the hostile client panicked: {error}"));
            }
        }
    }
}

/// What it was told of its lease.
#[derive(Clone, Copy, Default)]
struct Lease {
    generation: u64,
    granted: u64,
}

async fn lie(directory: Directory) -> u64 {
    let mut sessions: Vec<Vec<u8>> = Vec::new();
    for turn in 0_u64.. {
        let places = directory.places();
        let Some(place) = places.get(rand::rng().random_range(0..places.len().max(1))) else {
            tokio::time::sleep(EAR).await;
            continue;
        };
        // Now and then it comes back in a session that was its own, or nobody's.
        let resume = match turn % 5 {
            3 => sessions.last().cloned().unwrap_or_default(),
            4 => rand::random::<[u8; 16]>().to_vec(),
            _ => Vec::new(),
        };
        let opened =
            async { LightClient::open(channel(place.client).await?, "hostile", &resume).await };
        let Ok(client) = opened.await else {
            tokio::time::sleep(EAR).await;
            continue;
        };
        sessions.push(client.opened.session.clone());
        spoil(client, &sessions).await;
    }
    0
}

/// One session's life.
async fn spoil(mut client: LightClient, sessions: &[Vec<u8>]) {
    let mut lease = Lease::default();
    let honest = |seq, lease: Lease, spent, returned| Sync {
        seq,
        reports: vec![KeyReport {
            key_id: 1,
            key: HOSTILE.to_owned(),
            generation: lease.generation,
            granted_seen: lease.granted,
            spent_total: spent,
            returned_total: returned,
            want: 10,
            waiting: 10,
            wait_us: 1_000_000,
            ..KeyReport::default()
        }],
    };
    let mut seq = 1;
    for _ in 0..40 {
        if !client.say(Say::Sync(honest(seq, lease, 0, 0))).await {
            return;
        }
        seq += 1;
        while let Some(told) = client.hear(EAR).await {
            let grants = match told {
                Told::Synced(synced) => synced.grants,
                Told::Granted(granted) => granted.grants,
                Told::Refused(_) | Told::Moved(_) => return,
                _ => continue,
            };
            for grant in grants.into_iter().filter(|grant| grant.key_id == 1) {
                lease = Lease {
                    generation: grant.generation,
                    granted: grant.granted_total,
                };
            }
            if lease.granted > 0 {
                break;
            }
        }
        let granted = lease.granted;
        let one = |change: &dyn Fn(&mut KeyReport)| {
            let mut sync = honest(seq, lease, 0, 0);
            sync.reports.iter_mut().for_each(change);
            sync
        };
        let lie = rand::rng().random_range(0..15_u32);
        let says: Vec<Say> = match lie {
            // All spent an hour ago, so that all should be free again.
            0 => vec![Say::Sync(one(&|report| {
                report.spent_total = granted;
                report.spent_ages = vec![SpentAge {
                    units: granted,
                    age_us: 3_600_000_000,
                }];
            }))],
            // More ages than units, and ages beyond all time.
            1 => vec![Say::Sync(one(&|report| {
                report.spent_total = granted / 2;
                report.spent_ages = vec![
                    SpentAge {
                        units: u64::MAX,
                        age_us: u64::MAX,
                    };
                    20
                ];
            }))],
            // Spent, and then not spent after all.
            2 => vec![
                Say::Sync(honest(seq, lease, granted, 0)),
                Say::Sync(honest(seq + 1, lease, 0, 0)),
                Say::Sync(honest(seq + 2, lease, 0, granted)),
            ],
            // More than it was given.
            3 => vec![Say::Sync(honest(seq, lease, granted * 10 + 100, 0))],
            4 => vec![Say::Sync(honest(seq, lease, 0, granted + 1_000))],
            5 => vec![Say::Sync(honest(seq, lease, u64::MAX, u64::MAX))],
            // Numbers that go back, and the same one again.
            6 => vec![
                Say::Sync(honest(seq + 5, lease, 0, granted / 2)),
                Say::Sync(honest(seq, lease, 0, 0)),
                Say::Sync(honest(1, lease, 0, 0)),
                Say::Sync(honest(seq + 5, lease, 0, granted / 2)),
            ],
            // Another generation, which is somebody's or nobody's.
            7 => vec![Say::Sync(one(&|report| {
                report.generation = report.generation.wrapping_sub(1);
                report.returned_total = 50;
            }))],
            8 => vec![Say::Sync(one(&|report| {
                report.generation = u64::MAX;
                report.returned_total = 50;
            }))],
            // Final, and wanting more.
            9 => vec![
                Say::Sync(one(&|report| report.r#final = true)),
                Say::Sync(honest(seq + 1, lease, 0, granted)),
            ],
            // Settles what is its own and alive, and what is not its own.
            10 => sessions
                .iter()
                .rev()
                .take(3)
                .cloned()
                .chain([rand::random::<[u8; 16]>().to_vec()])
                .map(|session| {
                    Say::Settle(Settle {
                        session,
                        leases: vec![SettledLease {
                            key: HOSTILE.to_owned(),
                            generation: lease.generation,
                            spent_total: 0,
                        }],
                    })
                })
                .collect(),
            // Wants everything, also of other keys.
            11 => vec![Say::Sync(Sync {
                seq,
                reports: (2..40)
                    .map(|key_id| KeyReport {
                        key_id,
                        key: if key_id % 2 == 0 { PROBE } else { HOSTILE }.to_owned(),
                        want: u64::MAX,
                        waiting: u64::MAX,
                        peak: u64::MAX,
                        demand_milli: u64::MAX,
                        held: u64::MAX,
                        left: u64::MAX,
                        ..KeyReport::default()
                    })
                    .collect(),
            })],
            // Nonsense.
            12 => vec![Say::Sync(Sync {
                seq,
                reports: vec![KeyReport {
                    key_id: u32::MAX,
                    key: "//%zz".repeat(200),
                    ..KeyReport::default()
                }],
            })],
            13 => vec![Say::Open(Open::default())],
            // Silence, with units in hand.
            _ => {
                tokio::time::sleep(EAR * 5).await;
                Vec::new()
            }
        };
        for say in says {
            if !client.say(say).await {
                return;
            }
            seq += 6;
        }
    }
    if rand::rng().random_bool(0.5) {
        client.close().await;
    }
}
