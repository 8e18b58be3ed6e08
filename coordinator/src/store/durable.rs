//! Small files written so that a crash leaves the old or the new content, never
//! a mixture. Knows nothing of what is in them.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::Path,
};

use super::StoreError;

/// The mode of a folder that is its owner's alone.
const OWNERS: u32 = 0o700;

/// Replaces `dir/name` by `bytes`: temporary file, fsync, rename, fsync of the folder.
pub(super) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let path = dir.join(name);
    let temporary = dir.join(format!("{name}.new"));
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|error| StoreError::io(&path, &error))
}

/// Creates a folder and its parents, its owner's alone, and makes all their names durable.
pub(super) fn create_dir(dir: &Path) -> Result<(), StoreError> {
    let made: Vec<&Path> = dir
        .ancestors()
        .take_while(|made| *made == dir || !made.exists())
        .collect();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(OWNERS)
        .create(dir)
        .map_err(|error| StoreError::io(dir, &error))?;
    for path in dir.ancestors() {
        let Some(parent) = path.parent() else { break };
        let parent = match parent.as_os_str().is_empty() {
            true => Path::new("."),
            false => parent,
        };
        let synced = sync_dir(parent);
        if made.contains(&path) {
            synced?;
        }
        // Others were there before. A process that was killed may have made them and
        // not come to this, but a folder that cannot be read was made by nobody like us.
    }
    Ok(())
}

/// Takes a folder from everybody but its owner. One that others than this process own
/// (a volume that an orchestrator lends) can only be looked at.
///
/// # Errors
/// When anybody may write to it, and that cannot be changed.
pub(super) fn own(dir: &Path) -> Result<(), StoreError> {
    let failed = |error| StoreError::io(dir, &error);
    let mode = fs::metadata(dir).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    match fs::set_permissions(dir, fs::Permissions::from_mode(OWNERS)) {
        Ok(()) => {
            tracing::info!(dir = %dir.display(), "the data folder is its owner's alone now");
            Ok(())
        }
        Err(error) if mode & 0o002 != 0 => Err(failed(std::io::Error::new(
            error.kind(),
            format!(
                "anybody may write to it (its mode is {mode:03o}), and it is another user's: say chmod 700"
            ),
        ))),
        Err(error) => {
            tracing::warn!(
                dir = %dir.display(), %error,
                "others than its owner can read the data folder, and it is another user's"
            );
            Ok(())
        }
    }
}

/// Makes the names in a folder durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| StoreError::io(dir, &error))
}
