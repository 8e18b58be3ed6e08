//! Keeps the log within bytes. Knows nothing of what entries say.
//!
//! The core counts entries, but an entry may have a few bytes or a hundred
//! thousand, and the log is mirrored in memory.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;

use super::{log::Log, types::Core};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// With more than this behind the last snapshot, a new one is taken.
const SNAPSHOT_BYTES: usize = 64 << 20;
/// With more than this in the log, what a snapshot includes is dropped down to half.
const LOG_BYTES_MAX: usize = 256 << 20;

/// Looks after the log until the core stops.
pub(super) async fn bound(core: Core, log: Log) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let (snapshot, stopped) = {
            let metrics = core.metrics();
            let metrics = metrics.borrow_watched();
            (
                metrics.snapshot.as_ref().map(|id| id.index()),
                metrics.running_state.is_err(),
            )
        };
        if stopped {
            return;
        }
        if log.bytes_after(snapshot) > SNAPSHOT_BYTES && core.trigger().snapshot().await.is_err() {
            return;
        }
        if log.bytes_after(None) > LOG_BYTES_MAX
            && let Some(keep) = log.last_bytes_begin(LOG_BYTES_MAX / 2)
            && let Some(upto) = snapshot.map(|included| included.min(keep.saturating_sub(1)))
            && core.trigger().purge_log(upto).await.is_err()
        {
            return;
        }
    }
}
