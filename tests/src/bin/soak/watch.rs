//! What a node uses: memory, handles, threads, files, series of metrics. Knows
//! nothing of what it does with them.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::Write as _,
    path::Path,
    time::Duration,
};

use leasehold_tests::LocalCluster;
use serde_json::{Value, json};

use super::Outcome;

const MIB: u64 = 1 << 20;

/// What grows, how it is read from a quarter, and by how much it may be more in the
/// last quarter than in the one before: percent, and as much again at most.
const RULES: [(&str, Of, u64, u64); 7] = [
    ("rss_bytes", Of::Median, 5, 8 * MIB),
    ("disk_bytes", Of::Most, 10, 16 * MIB),
    ("log_bytes", Of::Most, 10, 16 * MIB),
    ("files", Of::Most, 0, 4),
    ("handles", Of::Most, 10, 16),
    ("threads", Of::Most, 0, 2),
    ("metric_series", Of::Most, 2, 20),
];

#[derive(Clone, Copy)]
enum Of {
    Median,
    Most,
}

type Sample = BTreeMap<&'static str, u64>;

pub(super) struct Watch {
    samples: Vec<Vec<Sample>>,
    file: Option<File>,
}

impl Watch {
    pub(super) fn new(cluster: &LocalCluster, samples: Option<&Path>) -> Outcome<Self> {
        Ok(Self {
            samples: vec![Vec::new(); cluster.size()],
            file: samples.map(File::create).transpose()?,
        })
    }

    /// Looks at every node.
    pub(super) fn look(&mut self, cluster: &LocalCluster, at: Duration) -> Outcome<()> {
        for (node, samples) in self.samples.iter_mut().enumerate() {
            let sample = look_at(cluster, node)?;
            if let Some(file) = &mut self.file {
                if samples.is_empty() && node == 0 {
                    let names: Vec<&str> = sample.keys().copied().collect();
                    writeln!(file, "second,node,{}", names.join(","))?;
                }
                let figures: Vec<String> = sample.values().map(u64::to_string).collect();
                writeln!(file, "{},{},{}", at.as_secs(), node + 1, figures.join(","))?;
            }
            samples.push(sample);
        }
        Ok(())
    }

    /// The newest sample of each node.
    pub(super) fn last(&self) -> String {
        let last = self.samples.iter().filter_map(|samples| samples.last());
        last.map(|sample| json!(sample).to_string())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// What the last two quarters say of each node.
    pub(super) fn quarters(&self) -> Vec<Growth> {
        let nodes = self.samples.iter().zip(1..);
        nodes
            .map(|(samples, node)| {
                let quarter = |number: usize| {
                    let from = samples.len() * number / 4;
                    let to = samples.len() * (number + 1) / 4;
                    &samples[from..to]
                };
                Growth {
                    node,
                    quarters: [0, 1, 2, 3].map(|number| summary(quarter(number))),
                }
            })
            .collect()
    }
}

fn summary(samples: &[Sample]) -> Sample {
    let figure = |(name, of, ..): &(&'static str, Of, u64, u64)| {
        let mut values: Vec<u64> = samples
            .iter()
            .filter_map(|sample| sample.get(name).copied())
            .collect();
        values.sort_unstable();
        let value = match of {
            Of::Median => values.get(values.len() / 2),
            Of::Most => values.last(),
        };
        (*name, value.copied().unwrap_or(0))
    };
    RULES.iter().map(figure).collect()
}

/// A node, quarter by quarter.
pub(super) struct Growth {
    node: usize,
    quarters: [Sample; 4],
}

impl Growth {
    pub(super) fn complaints(&self) -> Vec<String> {
        let [.., third, fourth] = &self.quarters;
        let mut complaints = Vec::new();
        for (name, _, percent, more) in RULES {
            let (before, after) = (third[name], fourth[name]);
            let allowed = before + before * percent / 100 + more;
            if after > allowed {
                complaints.push(format!(
                    "node {}: {name} went from {before} in the third quarter to {after} in the \
                     last; at most {allowed} were allowed",
                    self.node
                ));
            }
        }
        complaints
    }

    pub(super) fn figures(&self) -> Value {
        json!(self.quarters)
    }
}

impl fmt::Debug for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}: {:?}", self.node, self.quarters)
    }
}

fn look_at(cluster: &LocalCluster, node: usize) -> Outcome<Sample> {
    let pid = cluster.pid(node).ok_or("the node does not run")?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.unwrap_or(0)
    };
    let data = cluster.dir().join(format!("node{}", node + 1));
    let (files, disk_bytes) = size(&data)?;
    let (_, log_bytes) = size(&data.join("log"))?;
    let metrics = cluster.get_from(node, "/metrics")?.body;
    let series = metrics.lines().filter(|line| !line.starts_with('#'));
    let gauge = |name: &str| -> u64 {
        let value = metrics
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let whole = value.and_then(|value| value.split('.').next()?.parse().ok());
        whole.unwrap_or(0)
    };
    Ok(BTreeMap::from([
        ("rss_bytes", field("VmRSS:") * 1024),
        ("threads", field("Threads:")),
        (
            "handles",
            fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64,
        ),
        ("files", files),
        ("disk_bytes", disk_bytes),
        ("log_bytes", log_bytes),
        ("metric_series", series.count() as u64),
        ("accounts", gauge("leasehold_accounts")),
        ("sessions", gauge("leasehold_sessions")),
        ("leases", gauge("leasehold_leases")),
        ("applied", gauge("leasehold_log_applied_index")),
    ]))
}

/// Files and bytes below a folder; what is deleted meanwhile does not count.
fn size(dir: &Path) -> Outcome<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for item in fs::read_dir(dir)? {
        let item = item?;
        match item.metadata() {
            Ok(data) if data.is_dir() => {
                let below = size(&item.path())?;
                files += below.0;
                bytes += below.1;
            }
            Ok(data) => {
                files += 1;
                bytes += data.len();
            }
            Err(_) => {}
        }
    }
    Ok((files, bytes))
}
