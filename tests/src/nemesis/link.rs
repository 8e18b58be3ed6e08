//! One connection that is carried through a link, byte by byte. Knows no host and
//! no protocol.
//!
//! What flows from x to y is governed by one *path*, whoever opened the
//! connection: so a one-way partition stops requests in one connection and answers
//! in another.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use rand::Rng as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
};

/// What a path does with bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Carries them.
    #[default]
    Flow,
    /// Keeps them, as a network that loses every packet: they arrive if it heals
    /// before somebody gives up.
    Stall,
    /// Ends connections, and refuses new ones.
    Cut,
}

/// A path as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathState {
    /// Every byte is so much later.
    pub(crate) delay: Duration,
    /// And up to so much more.
    pub(crate) jitter: Duration,
    /// Not more than so many bytes a second.
    pub(crate) bytes_per_second: Option<u32>,
    /// What it does.
    pub(crate) mode: Mode,
    /// Connections with a lower number are half-open: what they are given is lost
    /// for ever, and nobody is told.
    pub(crate) dead_below: u64,
}

/// One direction as its ends see it.
pub(super) type Path = watch::Receiver<PathState>;

const CHUNK_BYTES: usize = 16 * 1024;
/// Chunks that are on their way at once.
const CHUNKS: usize = 256;

/// Waits until the path carries bytes, or says that it is cut.
async fn passable(path: &mut Path) -> bool {
    match path.wait_for(|state| state.mode != Mode::Stall).await {
        Ok(state) => state.mode != Mode::Cut,
        Err(_) => false,
    }
}

async fn cut(path: &mut Path) {
    if path
        .wait_for(|state| state.mode == Mode::Cut)
        .await
        .is_err()
    {
        pending::<()>().await;
    }
}

/// Carries an accepted connection to where `dial` leads, until either path is cut
/// or both ends have closed.
pub(super) async fn carry(
    number: u64,
    accepted: TcpStream,
    dial: std::net::SocketAddr,
    mut forth: Path,
    mut back: Path,
) {
    // A connection begins with a packet each way.
    if !passable(&mut forth).await || !passable(&mut back).await {
        let _ = accepted.set_zero_linger();
        return;
    }
    let Ok(Ok(dialled)) =
        tokio::time::timeout(Duration::from_secs(5), TcpStream::connect(dial)).await
    else {
        let _ = accepted.set_zero_linger();
        return;
    };
    let _ = accepted.set_nodelay(true);
    let _ = dialled.set_nodelay(true);
    let (near_read, near_write) = accepted.into_split();
    let (far_read, far_write) = dialled.into_split();
    let (cut_forth, cut_back) = (forth.clone(), back.clone());
    let both = async {
        tokio::join!(
            pump(number, near_read, far_write, forth),
            pump(number, far_read, near_write, back)
        )
    };
    let either_cut = async {
        let (mut forth, mut back) = (cut_forth, cut_back);
        tokio::select! { () = cut(&mut forth) => {}, () = cut(&mut back) => {} }
    };
    tokio::select! { _ = both => {}, () = either_cut => {} }
}

struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

async fn pump(number: u64, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, path: Path) {
    let (queue, mut queued) = mpsc::channel::<Chunk>(CHUNKS);
    let mut reading = path.clone();
    let read = async move {
        let mut last = Instant::now();
        loop {
            if !passable(&mut reading).await {
                return;
            }
            let mut bytes = vec![0; CHUNK_BYTES];
            let Ok(length) = from.read(&mut bytes).await else {
                return;
            };
            if length == 0 {
                return;
            }
            bytes.truncate(length);
            let state = *reading.borrow();
            let jitter = state.jitter.mul_f64(rand::rng().random_range(0.0..1.0_f64));
            let mut due = Instant::now() + state.delay + jitter;
            if let Some(rate) = state.bytes_per_second {
                #[expect(clippy::cast_precision_loss, reason = "a few thousand bytes")]
                let takes = Duration::from_secs_f64(length as f64 / f64::from(rate.max(1)));
                due = due.max(last) + takes;
            }
            // Bytes of one connection keep their order.
            due = due.max(last);
            last = due;
            if queue.send(Chunk { due, bytes }).await.is_err() {
                return;
            }
        }
    };
    let mut writing = path;
    let write = async move {
        while let Some(chunk) = queued.recv().await {
            if chunk.due > Instant::now() {
                tokio::time::sleep_until(chunk.due.into()).await;
            }
            if !passable(&mut writing).await {
                return;
            }
            if number < writing.borrow().dead_below {
                continue;
            }
            if to.write_all(&chunk.bytes).await.is_err() {
                return;
            }
        }
        // The end travels like everything else.
        if !passable(&mut writing).await {
            return;
        }
        if number < writing.borrow().dead_below {
            pending::<()>().await;
        }
        let _ = to.shutdown().await;
    };
    // Nobody to write to: nothing more is read, and the sender hears of it.
    tokio::pin!(read);
    tokio::pin!(write);
    let mut reads = true;
    loop {
        tokio::select! {
            () = &mut read, if reads => reads = false,
            () = &mut write => return,
        }
    }
}
