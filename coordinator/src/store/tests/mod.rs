//! Claims about the store: what a crash, a failed fsync and damage can do to it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod damage;
mod golden;
mod group_commit;
mod kill;
mod segments;

use bytes::Bytes;

use super::{LogPos, Opened, StoreError, Write};

/// What the tests write at a position: its content is known from the position,
/// and some are longer than one value of the engine.
fn content(at: LogPos) -> Bytes {
    let length = if at.index % 37 == 36 {
        150_000
    } else {
        20 + (at.index * 7 % 300) as usize
    };
    let seed = at.index.wrapping_mul(31).wrapping_add(at.term) as u8;
    (0..length)
        .map(|place| seed.wrapping_add(place as u8))
        .collect::<Vec<u8>>()
        .into()
}

fn append(at: LogPos) -> Write {
    Write::Append {
        at,
        bytes: content(at),
    }
}

/// Writes, and waits until it is durable.
fn write(opened: &Opened, writes: Vec<Write>) -> Result<(), StoreError> {
    let (done, wait) = std::sync::mpsc::channel();
    opened
        .wal
        .submit(writes, Box::new(move |result| done.send(result).unwrap()));
    wait.recv().unwrap()
}
