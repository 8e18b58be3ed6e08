//! Which node this data folder belongs to, and on which disk. Knows nothing of
//! the cluster.

use std::{fs, io::ErrorKind, path::Path};

use super::{StoreError, durable};

const NAME: &str = "identity";
const VERSION: u32 = 1;

/// Who this data folder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node.
    pub node_id: u64,
    /// Drawn at random when the folder was created: a folder that was lost cannot
    /// pass for the one that was there before.
    pub disk_id: u128,
    /// Set before the first vote or entry can be accepted: from then on a missing
    /// log is damage, not a new node.
    pub took_part: bool,
}

impl Identity {
    /// Reads the identity of a data folder, or draws one for a new folder.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the file isn't what was written, or when it is
    /// missing beside other files; [`StoreError::OtherNode`] when it is whole, but
    /// another node's.
    pub fn load_or_create(dir: &Path, node_id: u64) -> Result<Self, StoreError> {
        if let Some(identity) = Self::read(dir)? {
            durable::own(dir)?;
            return if identity.node_id == node_id {
                Ok(identity)
            } else {
                Err(StoreError::OtherNode {
                    path: dir.join(NAME),
                    found: identity.node_id,
                    node_id,
                })
            };
        }
        durable::create_dir(dir)?;
        durable::own(dir)?;
        let identity = Self::draw(node_id)?;
        identity.save(dir)?;
        Ok(identity)
    }

    /// Reads the identity of a data folder; none: the folder is new.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the file isn't what was written, or when it is
    /// missing beside other files.
    pub fn read(dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(NAME);
        match fs::read_to_string(&path) {
            Ok(text) => parse(&text, &path).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if dir.join(super::LOG).exists() || dir.join(super::watermark::NAME).exists() {
                    return Err(StoreError::damaged(path, "the file is missing"));
                }
                Ok(None)
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                Err(StoreError::damaged(path, "it is not text"))
            }
            Err(error) => Err(StoreError::io(path, &error)),
        }
    }

    /// An identity on a new disk.
    ///
    /// # Errors
    /// When the operating system has no randomness.
    pub(super) fn draw(node_id: u64) -> Result<Self, StoreError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| StoreError::io(NAME, &error.into()))?;
        Ok(Self {
            node_id,
            disk_id: u128::from_le_bytes(random),
            took_part: false,
        })
    }

    /// Records that from now on this node may vote and accept entries.
    ///
    /// # Errors
    /// The operating system's; the file then has its old content or the new one.
    pub fn take_part(&mut self, dir: &Path) -> Result<(), StoreError> {
        if self.took_part {
            return Ok(());
        }
        let marked = Self {
            took_part: true,
            ..self.clone()
        };
        marked.save(dir)?;
        *self = marked;
        Ok(())
    }

    pub(super) fn save(&self, dir: &Path) -> Result<(), StoreError> {
        durable::replace(dir, NAME, self.text().as_bytes())
    }

    fn text(&self) -> String {
        let body = format!(
            "leasehold identity {VERSION}\nnode_id {}\ndisk_id {:032x}\ntook_part {}\n",
            self.node_id, self.disk_id, self.took_part
        );
        let sum = crc32fast::hash(body.as_bytes());
        format!("{body}crc32 {sum:08x}\n")
    }
}

fn parse(text: &str, path: &Path) -> Result<Identity, StoreError> {
    let malformed = || StoreError::damaged(path, "it is not what was written there");
    let (body, sum) = text.split_once("crc32 ").ok_or_else(malformed)?;
    if sum != format!("{:08x}\n", crc32fast::hash(body.as_bytes())) {
        return Err(malformed());
    }
    let mut lines = body.lines();
    let mut field = |name: &str| {
        lines
            .next()
            .and_then(|line| line.strip_prefix(name))
            .map(str::to_owned)
            .ok_or_else(malformed)
    };
    let found: u32 = field("leasehold identity ")?
        .parse()
        .map_err(|_| malformed())?;
    if found != VERSION {
        return Err(StoreError::UnknownFormat {
            path: path.to_path_buf(),
            found,
            known: VERSION,
        });
    }
    Ok(Identity {
        node_id: field("node_id ")?.parse().map_err(|_| malformed())?,
        disk_id: u128::from_str_radix(&field("disk_id ")?, 16).map_err(|_| malformed())?,
        took_part: field("took_part ")?.parse().map_err(|_| malformed())?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn another_nodes_folder_is_a_wrong_configuration_not_damage() {
        let dir = tempfile::tempdir().unwrap();
        let first = Identity::load_or_create(dir.path(), 1).unwrap();
        let refused = Identity::load_or_create(dir.path(), 2).unwrap_err();
        assert_eq!(refused.code(), "invalid_config");
        assert!(
            refused
                .to_string()
                .ends_with("belongs to node 1, but node_id is 2: set one of the two right"),
            "{refused}"
        );
        assert_eq!(Identity::load_or_create(dir.path(), 1).unwrap(), first);
    }
}
