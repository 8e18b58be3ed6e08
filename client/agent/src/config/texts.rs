//! The files that a configuration is made of, as they were found. Knows nothing of what
//! they say but which files the first one names.

use std::path::{Path, PathBuf};

/// The text of the configuration file, and those of the files that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Texts {
    pub(super) own: Found,
    /// `rls.ratelimit_files`, in their order.
    pub(super) ratelimit: Vec<(PathBuf, Found)>,
}

/// A text, or why there is none.
pub(super) type Found = Result<String, String>;

impl Texts {
    /// Reads the files that are there now.
    pub(crate) fn read(path: &Path) -> Self {
        let own = found(path);
        let named = own.as_deref().map(named).unwrap_or_default();
        let folder = path.parent().unwrap_or(Path::new(""));
        let ratelimit = named.into_iter().map(|name| {
            let path = folder.join(name);
            let text = found(&path);
            (path, text)
        });
        Self {
            ratelimit: ratelimit.collect(),
            own,
        }
    }

    /// A configuration of one file.
    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self {
            own: Ok(text.to_owned()),
            ratelimit: Vec::new(),
        }
    }
}

fn found(path: &Path) -> Found {
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

/// The files that a text names. One that is malformed names none, and is refused anyway.
fn named(text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let files = table
        .get("rls")
        .and_then(|rls| rls.get("ratelimit_files"))
        .and_then(toml::Value::as_array);
    let names = files.into_iter().flatten();
    names
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::fs;

    use super::*;

    #[test]
    fn files_that_are_named_stand_beside_the_one_that_names_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        let text = "[rls]\nratelimit_files = [\"one.yaml\", \"/absent.yaml\"]\n";
        fs::write(&path, text).unwrap();
        fs::write(dir.path().join("one.yaml"), "domain: edge\n").unwrap();
        let texts = Texts::read(&path);
        assert_eq!(texts.own.as_deref(), Ok(text));
        assert_eq!(
            texts.ratelimit[0],
            (dir.path().join("one.yaml"), Ok("domain: edge\n".to_owned()))
        );
        assert_eq!(texts.ratelimit[1].0, Path::new("/absent.yaml"));
        assert!(texts.ratelimit[1].1.is_err());
        fs::write(dir.path().join("one.yaml"), "domain: other\n").unwrap();
        assert_ne!(Texts::read(&path), texts);
    }
}
