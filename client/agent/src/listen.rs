//! Where gateways connect: a TCP address and a Unix socket. Knows nothing of what is said
//! there.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};

use crate::config::UnixSocket;

/// Owner and group may connect.
const MODE: u32 = 0o660;

/// Why an agent does not listen.
#[derive(Debug, Error)]
pub(crate) enum ListenError {
    /// An address is taken.
    #[error(
        "listen.tcp {0} is in use by another process: stop it, or choose another address (port \
         0: any that is free)"
    )]
    AddressInUse(SocketAddr),
    /// Another agent has the socket.
    #[error(
        "listen.unix {path} is in use by another process: stop it, or choose another path",
        path = .0.display()
    )]
    SocketInUse(PathBuf),
    /// Something else is where the socket should be.
    #[error(
        "listen.unix {path} is there and is no socket: it is left alone; remove it, or choose \
         another path",
        path = .0.display()
    )]
    NotASocket(PathBuf),
    /// There is no such group.
    #[error(
        "listen.unix_group {0}: there is no such group in /etc/group; add it, or use its number"
    )]
    NoGroup(String),
    /// It does not work otherwise.
    #[error("cannot listen on {on}: {source}")]
    Other {
        /// The address or path.
        on: String,
        /// Why.
        source: io::Error,
    },
}

impl ListenError {
    /// The stable code.
    #[must_use]
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::AddressInUse(_) | Self::SocketInUse(_) => "port_in_use",
            Self::NotASocket(_) | Self::NoGroup(_) | Self::Other { .. } => "cannot_listen",
        }
    }
}

/// Listens on a TCP address.
pub(crate) async fn tcp(addr: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(addr).await.map_err(|source| {
        if source.kind() == io::ErrorKind::AddrInUse {
            ListenError::AddressInUse(addr)
        } else {
            let on = format!("listen.tcp {addr}");
            ListenError::Other { on, source }
        }
    })
}

/// A Unix socket in its place, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Which file it is: should another have taken its place, that one stays.
    inode: (u64, u64),
    /// Held for as long as the socket is: whoever has it may replace what is left of
    /// another process.
    _lock: File,
}

impl Socket {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.inode);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket stays behind");
        }
    }
}

/// Whether a socket's folder and group are there: what can be known of listening without
/// doing it.
pub(crate) fn check(socket: &UnixSocket) -> Result<(), ListenError> {
    let folder = socket.path.parent().unwrap_or(&socket.path);
    let found = fs::metadata(folder).and_then(|found| match found.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    found.map_err(|source| ListenError::Other {
        on: format!("listen.unix {} (its folder)", socket.path.display()),
        source,
    })?;
    socket.group.as_deref().map_or(Ok(()), |group| {
        group_id(group)?;
        Ok(())
    })
}

/// Listens on a Unix socket. What a process left behind that is gone is replaced, and
/// nothing else.
pub(crate) fn unix(socket: &UnixSocket) -> Result<(UnixListener, Socket), ListenError> {
    let path = &socket.path;
    let other = |source| ListenError::Other {
        on: format!("listen.unix {}", path.display()),
        source,
    };
    let lock = lock(path)?;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.clone()));
        }
        // Of a process that does not lock: nobody answers, if it is gone.
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(ListenError::SocketInUse(path.clone()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(other(error)),
    }
    // Made beside its place and moved there, so that it is never to be had with the
    // wrong rights, and never missing.
    let beside = beside(path, ".new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(other(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&beside).map_err(other)?;
    let dressed = (|| {
        if let Some(group) = &socket.group {
            let gid = group_id(group)?;
            std::os::unix::fs::chown(&beside, None, Some(gid)).map_err(other)?;
        }
        fs::set_permissions(&beside, fs::Permissions::from_mode(MODE)).map_err(other)?;
        let made = fs::symlink_metadata(&beside).map_err(other)?;
        fs::rename(&beside, path).map_err(other)?;
        Ok((made.dev(), made.ino()))
    })();
    match dressed {
        Ok(inode) => Ok((
            listener,
            Socket {
                path: path.clone(),
                inode,
                _lock: lock,
            },
        )),
        Err(error) => {
            // Nothing is left behind; if that fails too, the next start sees to it.
            let _ = fs::remove_file(&beside);
            Err(error)
        }
    }
}

fn lock(path: &Path) -> Result<File, ListenError> {
    let beside = beside(path, ".lock");
    let other = |source| ListenError::Other {
        on: format!("listen.unix {} (its lock)", path.display()),
        source,
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&beside)
        .map_err(other)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ListenError::SocketInUse(path.to_owned())),
        Err(error) => Err(other(error.into())),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// A group's number, which is looked up in `/etc/group` unless it is one already.
fn group_id(group: &str) -> Result<u32, ListenError> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let listed = fs::read_to_string("/etc/group").unwrap_or_default();
    let number = listed.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?
    });
    number.ok_or_else(|| ListenError::NoGroup(group.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn socket(dir: &Path) -> UnixSocket {
        UnixSocket {
            path: dir.join("agent.sock"),
            group: None,
        }
    }

    #[tokio::test]
    async fn a_socket_is_for_owner_and_group_and_goes_with_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let socket = socket(dir.path());
        let (_listener, place) = unix(&socket).unwrap();
        let mode = fs::symlink_metadata(&socket.path).unwrap().mode();
        assert_eq!(mode & 0o777, MODE);
        drop(place);
        assert!(!socket.path.exists());
    }

    #[tokio::test]
    async fn another_processs_socket_is_left_alone_while_it_lives_and_replaced_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let socket = socket(dir.path());
        let first = unix(&socket).unwrap();
        assert!(matches!(unix(&socket), Err(ListenError::SocketInUse(_))));
        // A process that was killed: its socket stays, its lock goes.
        let (listener, place) = first;
        drop(listener);
        let gone = fs::File::create(dir.path().join("left")).unwrap();
        let Socket { path, inode, _lock } = &place;
        assert_eq!(path, &socket.path);
        assert_ne!(inode.1, gone.metadata().unwrap().ino());
        rustix::fs::flock(_lock, FlockOperation::Unlock).unwrap();
        let (_again, _place) = unix(&socket).unwrap();
        // The first one's place is another's now.
        drop(place);
        assert!(socket.path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_answers_is_left_alone_though_it_is_not_locked() {
        let dir = tempfile::tempdir().unwrap();
        let socket = socket(dir.path());
        let _living = UnixListener::bind(&socket.path).unwrap();
        assert!(matches!(unix(&socket), Err(ListenError::SocketInUse(_))));
        assert!(socket.path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let socket = socket(dir.path());
        fs::write(&socket.path, "precious").unwrap();
        assert!(matches!(unix(&socket), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&socket.path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_group_that_is_not_there_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let mut socket = socket(dir.path());
        socket.group = Some("no-such-group".to_owned());
        assert!(matches!(unix(&socket), Err(ListenError::NoGroup(_))));
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|file| file.unwrap().file_name())
            .collect();
        assert_eq!(left, ["agent.sock.lock"]);
        assert!(matches!(check(&socket), Err(ListenError::NoGroup(_))));
        socket.group = Some("root".to_owned());
        assert!(check(&socket).is_ok());
        socket.path = dir.path().join("nowhere/agent.sock");
        assert!(matches!(check(&socket), Err(ListenError::Other { .. })));
        assert_eq!(group_id("root").unwrap(), 0);
        assert_eq!(group_id("1234").unwrap(), 1234);
    }
}
