//! A stand-in for the ledger until it lands.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use leasehold_ledger::{
    entry::{Command, Entry},
    outcome::{Applied, CommandOutcome},
};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    now_us: u64,
    last_index: u64,
    disks: BTreeMap<u64, u128>,
}

impl Ledger {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Applied {
        self.now_us = self.now_us.max(entry.now_us);
        self.last_index = index;
        let mut commands = Vec::new();
        for command in &entry.commands {
            if let Command::RegisterNode { node_id, disk_id } = command {
                self.disks.insert(*node_id, *disk_id);
            }
            commands.push(CommandOutcome::Done { changed: true });
        }
        Applied {
            index,
            now_us: self.now_us,
            commands,
            ..Applied::default()
        }
    }
    pub fn now_us(&self) -> u64 {
        self.now_us
    }
    pub fn last_index(&self) -> u64 {
        self.last_index
    }
    pub fn digest(&self) -> u64 {
        self.now_us ^ self.last_index
    }
    pub fn digest_at(&self, index: u64) -> Option<u64> {
        (index == self.last_index).then(|| self.digest())
    }
    pub fn node_disk(&self, node_id: u64) -> Option<u128> {
        self.disks.get(&node_id).copied()
    }
    pub fn freeze(&self) -> FrozenLedger {
        FrozenLedger(self.clone())
    }
    pub fn decode(chunks: impl Iterator<Item = Vec<u8>>) -> Result<Self, String> {
        let bytes: Vec<u8> = chunks.flatten().collect();
        let mut ledger = Self::new();
        let text = String::from_utf8(bytes).map_err(|e| e.to_string())?;
        let mut parts = text
            .split(' ')
            .filter(|p| !p.is_empty())
            .map(|p| u128::from_str_radix(p, 16).unwrap_or(0));
        ledger.now_us = parts.next().unwrap_or(0) as u64;
        ledger.last_index = parts.next().unwrap_or(0) as u64;
        while let (Some(n), Some(d)) = (parts.next(), parts.next()) {
            ledger.disks.insert(n as u64, d);
        }
        Ok(ledger)
    }
}

pub struct FrozenLedger(Ledger);

impl FrozenLedger {
    pub fn chunks(&self) -> impl Iterator<Item = Vec<u8>> {
        let mut text = format!("{:x} {:x}", self.0.now_us, self.0.last_index);
        for (n, d) in &self.0.disks {
            text.push_str(&format!(" {n:x} {d:x}"));
        }
        std::iter::once(text.into_bytes())
    }
}

pub fn encode(entry: &Entry) -> Vec<u8> {
    let mut text = format!("{:x}", entry.now_us);
    for c in &entry.commands {
        if let Command::RegisterNode { node_id, disk_id } = c {
            text.push_str(&format!(" {node_id:x} {disk_id:x}"));
        }
    }
    text.into_bytes()
}

pub fn decode(bytes: &[u8]) -> Result<Entry, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
    let mut parts = text
        .split(' ')
        .map(|p| u128::from_str_radix(p, 16).unwrap_or(0));
    let mut entry = Entry {
        now_us: parts.next().unwrap_or(0) as u64,
        ..Entry::default()
    };
    while let (Some(n), Some(d)) = (parts.next(), parts.next()) {
        entry.commands.push(Command::RegisterNode {
            node_id: n as u64,
            disk_id: d,
        });
    }
    Ok(entry)
}
