//! What this machine can do to a process. Knows no fault; says why not.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{ground::runs, process::Process};

/// Tools, or what is missing.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// System calls of a running process can be made to fail.
    pub(crate) strace: Result<(), String>,
    /// The library that gives a process another wall clock.
    pub(crate) faketime: Result<PathBuf, String>,
    /// The build to upgrade to.
    pub(crate) upgrade_to: Result<PathBuf, String>,
}

const FAKETIME: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];

impl Machine {
    pub(crate) fn look(upgrade_to: Option<&Path>) -> Self {
        Self {
            strace: strace(),
            faketime: FAKETIME
                .iter()
                .map(PathBuf::from)
                .find(|path| path.exists())
                .ok_or_else(|| "libfaketime is not installed".to_owned()),
            upgrade_to: build(upgrade_to, "--upgrade-to names no build"),
        }
    }
}

fn build(path: Option<&Path>, missing: &str) -> Result<PathBuf, String> {
    match path {
        Some(path) if path.exists() => Ok(path.to_owned()),
        Some(path) => Err(format!("{} is not there", path.display())),
        None => Err(missing.to_owned()),
    }
}

fn strace() -> Result<(), String> {
    if !runs("strace", &["-V"]) {
        return Err("strace is not installed".to_owned());
    }
    if runs("strace", &["-o", "/dev/null", "true"]) {
        Ok(())
    } else {
        Err("this machine does not let processes be traced".to_owned())
    }
}

/// System calls of a process that fail or take long, until this is dropped.
#[derive(Debug)]
pub(crate) struct Tampering(Process);

impl Tampering {
    /// `calls` by name, `what` as strace's `-e inject=` says it. With `files`, only
    /// calls on these.
    pub(crate) fn begin(
        pid: u32,
        calls: &str,
        what: &str,
        files: &[PathBuf],
        log: &Path,
    ) -> std::io::Result<Self> {
        let said = File::options().create(true).append(true).open(log)?;
        let mut command = Command::new("strace");
        command
            .args(["-f", "-qq", "-o", "/dev/null"])
            .args(["-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:{what}")])
            .args(["-p", &pid.to_string()]);
        for file in files {
            command.arg("-P").arg(file);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said);
        Process::start(&mut command).map(Self)
    }
}

impl Drop for Tampering {
    fn drop(&mut self) {
        // It lets go of the process when it is asked to.
        self.0.signal(rustix::process::Signal::TERM);
        self.0.wait(std::time::Duration::from_secs(3));
    }
}
