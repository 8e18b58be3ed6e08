//! All faults, a file for each sort. None knows another.

mod clocks;
mod crowd;
mod disks;
mod flipped_byte;
mod gateways;
mod hostile;
mod kills;
mod light_client;
mod members;
mod partitions;
mod pauses;
mod restarts;
mod snapshots;
mod system;
mod wiped_disk;

use super::fault::Kind;

/// Every kind of fault, in the order in which they are listed for people.
pub(super) fn all() -> Vec<Kind> {
    [
        kills::kinds(),
        pauses::kinds(),
        partitions::kinds(),
        disks::kinds(),
        flipped_byte::kinds(),
        wiped_disk::kinds(),
        clocks::kinds(),
        members::kinds(),
        restarts::kinds(),
        snapshots::kinds(),
        gateways::kinds(),
        crowd::kinds(),
        hostile::kinds(),
        system::kinds(),
    ]
    .concat()
}
