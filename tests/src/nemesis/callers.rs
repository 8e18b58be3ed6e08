//! Who opened a connection, where all hosts share one network: its socket is
//! looked up among those of the processes that were started here. Knows no link.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use super::host::Host;

/// Processes by id, with the host that each is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callers(Arc<Mutex<BTreeMap<u32, Host>>>);

impl Callers {
    /// A process has started.
    pub(crate) fn started(&self, pid: u32, host: Host) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, there| *there != host);
        known.insert(pid, host);
    }

    /// Whose connection this is, as seen by the listener `at`.
    pub(super) async fn find(&self, peer: SocketAddr, at: SocketAddr) -> Option<Host> {
        let known = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        tokio::task::spawn_blocking(move || {
            let socket = format!("socket:[{}]", inode(peer, at)?);
            known
                .into_iter()
                .find(|(pid, _)| holds(*pid, &socket))
                .map(|(_, host)| host)
        })
        .await
        .ok()
        .flatten()
    }
}

/// The dialling socket's number in the kernel's table.
fn inode(local: SocketAddr, remote: SocketAddr) -> Option<String> {
    let (local, remote) = (in_table(local)?, in_table(remote)?);
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&local.as_str()) && fields.get(2) == Some(&remote.as_str()))
            .then(|| fields.get(9).map(|inode| (*inode).to_owned()))
            .flatten()
    })
}

/// As `/proc/net/tcp` writes an address: the bytes of the IP in the machine's order.
fn in_table(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else {
        return None;
    };
    let ip = u32::from_ne_bytes(address.ip().octets());
    Some(format!("{ip:08X}:{:04X}", address.port()))
}

fn holds(pid: u32, socket: &str) -> bool {
    let folder = Path::new("/proc").join(pid.to_string()).join("fd");
    let open = fs::read_dir(folder).into_iter().flatten().flatten();
    open.into_iter()
        .filter_map(|item| fs::read_link(item.path()).ok())
        .any(|target| target.as_os_str() == socket)
}
