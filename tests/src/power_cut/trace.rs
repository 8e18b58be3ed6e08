//! What a traced process did to files, read from the output of
//! `strace -f -y -xx`. Knows nothing of what the files are for.
//!
//! One line is one system call, or its beginning or its end where another thread
//! came in between: the order of lines is the order in which things happened.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use super::Outcome;

/// The calls that can change a file, a name, or what is durable of them. Whatever
/// else of them touches the folder is an error, so that nothing is missed.
pub(super) const TRACED: &str = "openat,open,creat,write,pwrite64,writev,pwritev,pwritev2,lseek,\
     ftruncate,truncate,fallocate,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,\
     unlinkat,rmdir,mkdir,mkdirat,fsync,fdatasync,sync_file_range,copy_file_range,sendfile,splice,\
     sendto,sendmsg,mmap,sync,syncfs";

/// A system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A file is opened, and perhaps created or emptied.
    Open {
        path: PathBuf,
        create: bool,
        empty: bool,
    },
    /// Bytes go to a file: to a place, or to where its last write ended.
    Write {
        path: PathBuf,
        at: Option<u64>,
        bytes: Vec<u8>,
    },
    /// The place of the next write without one is what the call returns.
    Seek { path: PathBuf },
    /// A file gets a length.
    Resize { path: PathBuf, length: u64 },
    /// Everything that was done to a file, or to the names in a folder, is durable
    /// when the call returns.
    Sync { path: PathBuf },
    /// A name replaces another.
    Rename { from: PathBuf, to: PathBuf },
    /// A name goes.
    Unlink { path: PathBuf },
    /// A folder is made.
    MakeDir { path: PathBuf },
    /// Bytes go to something that is not a file.
    Said { bytes: Vec<u8> },
}

/// A moment of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A thread enters a call.
    Begin { thread: u32, call: Call },
    /// A thread's call returns; an error is below zero.
    End { thread: u32, result: i64 },
}

/// Reads a trace of processes whose working folder is `root`; what they write to
/// `notes` was said. A call that cannot be followed is an error where it touches
/// something below `root`.
pub(super) fn read(text: &str, root: &Path, notes: &Path) -> Outcome<Vec<Step>> {
    let reader = Reader { root, notes };
    let mut steps = Vec::new();
    for line in text.lines() {
        reader
            .line(line, &mut steps)
            .map_err(|error| format!("{error} in: {}", line.get(..300).unwrap_or(line)))?;
    }
    Ok(steps)
}

struct Reader<'a> {
    root: &'a Path,
    notes: &'a Path,
}

impl Reader<'_> {
    fn line(&self, line: &str, steps: &mut Vec<Step>) -> Outcome<()> {
        let (thread, rest) = line.split_once(' ').ok_or("no thread")?;
        let thread = thread.parse()?;
        let rest = rest.trim_start();
        if rest.starts_with("+++") || rest.starts_with("---") {
            return Ok(());
        }
        if rest.starts_with("<... ") {
            if let Some(result) = result(rest)? {
                steps.push(Step::End { thread, result });
            }
            return Ok(());
        }
        let (name, rest) = rest.split_once('(').ok_or("no call")?;
        let unfinished = rest.contains("<unfinished ...>");
        let arguments = if unfinished {
            rest.split_once(" <unfinished").map_or("", |(all, _)| all)
        } else {
            rest.rsplit_once(" = ").ok_or("no result")?.0.trim_end()
        };
        let arguments = arguments.strip_suffix(')').unwrap_or(arguments);
        // A call that does not matter still ends: its end is passed over by whoever
        // did not see it begin.
        if let Some(call) = self.call(name, arguments)? {
            steps.push(Step::Begin { thread, call });
            if !unfinished && let Some(result) = result(rest)? {
                steps.push(Step::End { thread, result });
            }
        }
        Ok(())
    }

    fn call(&self, name: &str, arguments: &str) -> Outcome<Option<Call>> {
        let parts: Vec<&str> = arguments.split(", ").collect();
        let part = |place: usize| parts.get(place).copied().ok_or("an argument is missing");
        let named =
            |place: usize| -> Outcome<PathBuf> { Ok(self.root.join(path(text(part(place)?)?))) };
        // Relative to the folder that the argument before it names.
        let named_at = |place: usize| -> Outcome<PathBuf> {
            let folder = descriptor(part(place - 1)?)?;
            let folder = folder.as_deref().unwrap_or(self.root);
            Ok(folder.join(path(text(part(place)?)?)))
        };
        let call = match name {
            "open" => self.open(named(0)?, part(1)?),
            "openat" => self.open(named_at(1)?, part(2)?),
            "write" | "pwrite64" | "sendto" => {
                let bytes = text(part(1)?)?;
                match descriptor(part(0)?)? {
                    Some(path) if path.is_absolute() && path != self.notes => {
                        if bytes.len() != part(2)?.parse::<usize>()? {
                            return Err("the bytes are not all there".into());
                        }
                        let at = match name {
                            "pwrite64" => Some(part(3)?.parse()?),
                            _ => None,
                        };
                        Some(Call::Write { path, at, bytes })
                    }
                    _ => Some(Call::Said { bytes }),
                }
            }
            "writev" | "sendmsg" => match descriptor(part(0)?)? {
                Some(path) if path.is_absolute() => self.unfollowed(name, &path)?,
                _ => {
                    let mut bytes = Vec::new();
                    for piece in arguments.split("iov_base=").skip(1) {
                        bytes.extend(text(piece.split(',').next().unwrap_or_default())?);
                    }
                    Some(Call::Said { bytes })
                }
            },
            "lseek" => descriptor(part(0)?)?.map(|path| Call::Seek { path }),
            "ftruncate" => {
                let length = part(1)?.parse()?;
                descriptor(part(0)?)?.map(|path| Call::Resize { path, length })
            }
            "truncate" => Some(Call::Resize {
                path: named(0)?,
                length: part(1)?.parse()?,
            }),
            "fsync" | "fdatasync" => descriptor(part(0)?)?.map(|path| Call::Sync { path }),
            // It starts writing back, and promises nothing: no metadata, no flush of
            // the disk's own cache.
            "sync_file_range" => None,
            "rename" => Some(Call::Rename {
                from: named(0)?,
                to: named(1)?,
            }),
            "renameat" | "renameat2" => Some(Call::Rename {
                from: named_at(1)?,
                to: named_at(3)?,
            }),
            "unlink" => Some(Call::Unlink { path: named(0)? }),
            "unlinkat" if part(2)? == "0" => Some(Call::Unlink { path: named_at(1)? }),
            "unlinkat" => self.unfollowed(name, &named_at(1)?)?,
            "mkdir" => Some(Call::MakeDir { path: named(0)? }),
            "mkdirat" => Some(Call::MakeDir { path: named_at(1)? }),
            "mmap" => {
                let shared = part(3)?.contains("MAP_SHARED") && part(2)?.contains("PROT_WRITE");
                match parts.get(4).map(|fd| descriptor(fd)) {
                    Some(path) if shared => match path? {
                        Some(path) => self.unfollowed(name, &path)?,
                        None => None,
                    },
                    _ => None,
                }
            }
            other => {
                // Whatever it is, it may not touch the folder.
                for quoted in arguments.split(['"', '<', '>']).skip(1) {
                    if let Ok(found) = bytes(quoted) {
                        self.unfollowed(other, &self.root.join(path(found)))?;
                    }
                }
                None
            }
        };
        Ok(call.filter(|call| self.matters(call)))
    }

    fn open(&self, path: PathBuf, flags: &str) -> Option<Call> {
        let has = |flag| flags.split('|').any(|found| found == flag);
        Some(Call::Open {
            create: has("O_CREAT"),
            empty: has("O_TRUNC"),
            path,
        })
    }

    fn unfollowed(&self, name: &str, path: &Path) -> Outcome<Option<Call>> {
        if path.starts_with(self.root) {
            return Err(format!("{name} of {} is not followed", path.display()).into());
        }
        Ok(None)
    }

    fn matters(&self, call: &Call) -> bool {
        match call {
            Call::Said { .. } => true,
            Call::Open { path, .. }
            | Call::Write { path, .. }
            | Call::Seek { path }
            | Call::Resize { path, .. }
            | Call::Sync { path }
            | Call::Unlink { path }
            | Call::MakeDir { path } => path.starts_with(self.root),
            Call::Rename { from, to } => from.starts_with(self.root) || to.starts_with(self.root),
        }
    }
}

/// What a call returned; none if its process ended in it.
fn result(rest: &str) -> Outcome<Option<i64>> {
    let (_, result) = rest.rsplit_once(" = ").ok_or("no result")?;
    if result.starts_with('?') {
        return Ok(None);
    }
    let digits: String = result
        .chars()
        .take_while(|sign| sign.is_ascii_digit() || *sign == '-')
        .collect();
    Ok(Some(digits.parse()?))
}

/// The path of `3<\x2f\x74>`; none where the descriptor has none.
fn descriptor(argument: &str) -> Outcome<Option<PathBuf>> {
    match argument.split_once('<') {
        None => Ok(None),
        Some((_, rest)) => {
            let (hex, _) = rest.split_once('>').ok_or("a path without an end")?;
            Ok(bytes(hex).ok().map(path))
        }
    }
}

fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// The bytes of `"\x41\x42"`, which must not be cut short by `...`.
fn text(argument: &str) -> Outcome<Vec<u8>> {
    let inner = argument
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    bytes(inner.ok_or("a string that is cut short")?)
}

fn bytes(hex: &str) -> Outcome<Vec<u8>> {
    let digit = |sign: u8| match sign {
        b'0'..=b'9' => Some(sign - b'0'),
        b'a'..=b'f' => Some(sign - b'a' + 10),
        _ => None,
    };
    let byte = |group: &[u8]| match group {
        [b'\\', b'x', high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let groups = hex.as_bytes().chunks(4).map(byte);
    Ok(groups
        .collect::<Option<Vec<u8>>>()
        .ok_or("not hexadecimal")?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn hex(text: &str) -> String {
        text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
    }

    #[test]
    fn calls_that_overlap_begin_and_end_where_their_lines_say() {
        let file = hex("/d/db");
        let text = format!(
            "7 pwrite64(5<{file}>, \"{}\", 2, 512 <unfinished ...>\n\
             8 fdatasync(5<{file}> <unfinished ...>\n\
             7 <... pwrite64 resumed>) = 2\n\
             8 <... fdatasync resumed>) = 0\n\
             8 rename(\"{}\", \"{file}\") = -1 ENOENT (No such file or directory)\n\
             9 write(1<{}>, \"{}\", 2) = 2\n\
             9 write(3<{file}>, \"{}\", 2 <unfinished ...>) = ?\n\
             9 +++ killed by SIGKILL +++\n",
            hex("ab"),
            hex("new"),
            hex("pipe:[5]"),
            hex("ok"),
            hex("cd"),
        );
        let db = PathBuf::from("/d/db");
        let begin = |thread, call| Step::Begin { thread, call };
        let end = |thread, result| Step::End { thread, result };
        let write = |at, bytes: &[u8]| Call::Write {
            path: db.clone(),
            at,
            bytes: bytes.to_vec(),
        };
        let steps = read(&text, Path::new("/d"), Path::new("/notes")).unwrap();
        assert_eq!(
            steps,
            [
                begin(7, write(Some(512), b"ab")),
                begin(8, Call::Sync { path: db.clone() }),
                end(7, 2),
                end(8, 0),
                begin(
                    8,
                    Call::Rename {
                        from: "/d/new".into(),
                        to: db.clone()
                    }
                ),
                end(8, -1),
                begin(
                    9,
                    Call::Said {
                        bytes: b"ok".to_vec()
                    }
                ),
                end(9, 2),
                begin(9, write(None, b"cd")),
            ]
        );
    }

    #[test]
    fn what_cannot_be_followed_is_an_error_below_the_root_only() {
        let map = |path: &str| {
            format!(
                "1 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3<{}>, 0) = 0x7f00\n",
                hex(path)
            )
        };
        let root = Path::new("/d");
        read(&map("/d/db"), root, root).unwrap_err();
        assert!(read(&map("/lib/x"), root, root).unwrap().is_empty());
    }
}
