//! Gateways as processes of their own, so that they can be killed. Knows how one
//! is started and what it leaves behind, not how it spends: that is
//! `src/bin/gateway`.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// The name of the lane that [`Manner::High`] uses.
pub const HIGH_LANE: &str = "high";

/// How requests of one key arrive, and what they want. All but a flood arrive one by
/// one at random moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// In bursts of `try_spend`, with a `spend` in between now and then.
    Flood,
    /// Each `spend`.
    Honest,
    /// As `Honest`, in the lane [`HIGH_LANE`] of the key's policy.
    High,
    /// Each `spend_within` half a second.
    Paced,
    /// Each `spend_all` of several keys, joined by `+`: one unit of the first, two of
    /// the second and so on.
    Joint,
    /// Each `acquire`, and the permit is in use for a while.
    Permits,
    /// Each `reserve`, settled after a while for less or for more.
    Reserve,
}

impl Manner {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Flood, "flood"),
        (Self::Honest, "honest"),
        (Self::High, "high"),
        (Self::Paced, "paced"),
        (Self::Joint, "joint"),
        (Self::Permits, "permits"),
        (Self::Reserve, "reserve"),
    ];
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::ALL.iter().filter(|(manner, _)| manner == self);
        names
            .map(|(_, name)| *name)
            .try_for_each(|name| f.write_str(name))
    }
}

/// What one gateway is offered on one key. As text: `flood:KEY=PER_SECOND`.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The key; of joint requests all of them.
    pub key: String,
    /// Requests a second.
    pub per_second: f64,
    /// How they arrive.
    pub manner: Manner,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}={}", self.manner, self.key, self.per_second)
    }
}

impl Load {
    /// Its keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let separator = match self.manner {
            Manner::Joint => '+',
            // No key has it.
            _ => '\0',
        };
        self.key.split(separator)
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text} is not like flood:acme/orders=100");
        let (manner, rest) = text.split_once(':').ok_or_else(expected)?;
        let (key, per_second) = rest.rsplit_once('=').ok_or_else(expected)?;
        let known = Manner::ALL.iter().find(|(_, name)| *name == manner);
        let (manner, _) = *known.ok_or_else(expected)?;
        let per_second = per_second.parse().map_err(|_| expected())?;
        if !(0.001..=1e7).contains(&per_second) {
            return Err(format!(
                "{per_second} a second is outside 0.001 to 10000000"
            ));
        }
        Ok(Self {
            key: key.to_owned(),
            per_second,
            manner,
        })
    }
}

/// What a gateway counted; printed as JSON when it ends in peace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Requests.
    pub offered: u64,
    /// Admitted.
    pub admitted: u64,
    /// Denied or empty.
    pub refused: u64,
    /// Nobody to ask.
    pub unavailable: u64,
    /// Allowed by the failure mode.
    pub degraded: u64,
}

/// A running gateway; killed when dropped.
#[derive(Debug)]
pub struct GatewayProcess {
    child: Child,
    log: PathBuf,
    history: Option<PathBuf>,
}

impl GatewayProcess {
    /// Starts one; its admissions go to `log`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(
        binary: &Path,
        holder: &str,
        endpoints: &[String],
        loads: &[Load],
        log: PathBuf,
    ) -> io::Result<Self> {
        Self::start_noting(binary, holder, endpoints, loads, log, None)
    }

    /// As `start`, over TLS: it trusts the authority of the file `ca`, and shows the token of
    /// the other.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start_as(
        binary: &Path,
        (ca, token_file): (&Path, &Path),
        holder: &str,
        endpoints: &[String],
        loads: &[Load],
        log: PathBuf,
    ) -> io::Result<Self> {
        let mut command = command(binary, holder, endpoints, loads, &log);
        command.arg("--ca").arg(ca);
        command.arg("--token-file").arg(token_file);
        Ok(Self {
            child: command.spawn()?,
            log,
            history: None,
        })
    }

    /// As `start`; what it did beside admitting goes to `history`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start_with_history(
        binary: &Path,
        holder: &str,
        endpoints: &[String],
        loads: &[Load],
        log: PathBuf,
        history: PathBuf,
    ) -> io::Result<Self> {
        let mut command = command(binary, holder, endpoints, loads, &log);
        command.arg("--history").arg(&history);
        Ok(Self {
            child: command.spawn()?,
            log,
            history: Some(history),
        })
    }

    /// As `start`; if `requests` is a path, what becomes of every request goes there.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start_noting(
        binary: &Path,
        holder: &str,
        endpoints: &[String],
        loads: &[Load],
        log: PathBuf,
        requests: Option<&Path>,
    ) -> io::Result<Self> {
        let mut command = command(binary, holder, endpoints, loads, &log);
        if let Some(requests) = requests {
            command.arg("--requests").arg(requests);
        }
        Ok(Self {
            child: command.spawn()?,
            log,
            history: None,
        })
    }

    /// Its admission log.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Where its history is, if it writes one.
    #[must_use]
    pub fn history(&self) -> Option<&Path> {
        self.history.as_deref()
    }

    /// Stops it where it is (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // It has not been waited for, so the id is still its own.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it with SIGKILL.
    pub fn kill(mut self) {
        self.end();
    }

    /// Tells it to end without waiting for that; `finish` does.
    pub fn wind_up(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Lets it hand its leases back and end.
    ///
    /// # Errors
    /// When it does not end in peace.
    pub fn finish(mut self) -> io::Result<Summary> {
        self.wind_up();
        let mut printed = String::new();
        if let Some(mut stdout) = self.child.stdout.take() {
            io::Read::read_to_string(&mut stdout, &mut printed)?;
        }
        let status = self.child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("the gateway ended with {status}")));
        }
        serde_json::from_str(&printed).map_err(io::Error::other)
    }

    fn end(&mut self) {
        // An error here says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(
    binary: &Path,
    holder: &str,
    endpoints: &[String],
    loads: &[Load],
    log: &Path,
) -> Command {
    let mut command = Command::new(binary);
    command.arg("--holder").arg(holder).arg("--log").arg(log);
    for endpoint in endpoints {
        command.arg("--endpoint").arg(endpoint);
    }
    for load in loads {
        command.arg("--load").arg(load.to_string());
    }
    // It spends until its input ends, so it ends with us at the latest.
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_survives_the_command_line() {
        for (manner, _) in Manner::ALL {
            let load = Load {
                key: "acme/a=b:c+d".to_owned(),
                per_second: 12.5,
                manner,
            };
            assert_eq!(load.to_string().parse(), Ok(load.clone()));
            let keys: Vec<&str> = load.keys().collect();
            if manner == Manner::Joint {
                assert_eq!(keys, ["acme/a=b:c", "d"]);
            } else {
                assert_eq!(keys, ["acme/a=b:c+d"]);
            }
        }
        for wrong in [
            "",
            "flood",
            "flood:a",
            "flood:a=-1",
            "flood:a=x",
            "quiet:a=1",
        ] {
            assert!(wrong.parse::<Load>().is_err(), "{wrong}");
        }
    }
}
