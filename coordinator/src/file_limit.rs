//! How many files the process may have open, and how many of them connections may be.
//! Knows nothing of connections.
//!
//! A coordinator that cannot open its next snapshot stops. So what strangers can take is
//! always less than there is.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most connections of other coordinators.
const PEERS_MAX: usize = 4_096;
/// Files of the store, the log, certificates and whatever else is not a connection.
const RESERVE: usize = 512;

/// Every gateway is an open file, and shells allow for few. The hard limit stays.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// How many may be open now.
fn now() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    })
}

/// How many connections of other coordinators there may be.
pub(crate) fn for_peers() -> usize {
    peers_of(now())
}

/// How many connections each of so many listeners may have, which wants `most` of them.
pub(crate) fn for_clients(listeners: usize, most: usize) -> usize {
    let files = now();
    let room = clients_of(files, listeners);
    if room < most {
        tracing::warn!(
            files,
            connections_max = room,
            "the process may not open as many files as limits.connections_max ({most}) takes: raise its limit (ulimit -n, LimitNOFILE)"
        );
    }
    room.min(most)
}

fn peers_of(files: usize) -> usize {
    (files / 8).min(PEERS_MAX)
}

fn clients_of(files: usize, listeners: usize) -> usize {
    let others = peers_of(files).saturating_add(RESERVE.min(files / 2));
    files.saturating_sub(others) / listeners.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_everything_else() {
        for files in [64, 256, 300, 1_024, 4_096, 20_000, 65_536, 1 << 20] {
            for listeners in [1, 2] {
                let taken = clients_of(files, listeners) * listeners + peers_of(files);
                let left = files - taken;
                assert!(left >= RESERVE.min(files / 2), "{files}: {left} are left");
                assert!(clients_of(files, listeners) >= files / 8, "{files}");
            }
        }
        assert_eq!(clients_of(usize::MAX, 1), usize::MAX - PEERS_MAX - RESERVE);
    }
}
