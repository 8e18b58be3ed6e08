//! Small files written so that a crash leaves the old or the new content, never
//! a mixture. Knows nothing of what is in them.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use super::StoreError;

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

/// Creates a folder and its parents, and makes all their names durable.
pub(super) fn create_dir(dir: &Path) -> Result<(), StoreError> {
    let made: Vec<&Path> = dir
        .ancestors()
        .take_while(|made| *made == dir || !made.exists())
        .collect();
    fs::create_dir_all(dir).map_err(|error| StoreError::io(dir, &error))?;
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

/// Makes the names in a folder durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| StoreError::io(dir, &error))
}
