//! Gateways as processes of their own, so that they can be killed. Knows how one
//! is started and what it leaves behind, not how it spends: that is
//! `src/bin/gateway.rs`.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// How requests of one key arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// In bursts of `try_spend`, with a `spend` in between now and then.
    Flood,
    /// One by one at random moments, each `spend`.
    Honest,
}

/// What one gateway is offered on one key. As text: `flood:KEY=PER_SECOND`.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The key.
    pub key: String,
    /// Requests of one unit a second.
    pub per_second: f64,
    /// How they arrive.
    pub manner: Manner,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let manner = match self.manner {
            Manner::Flood => "flood",
            Manner::Honest => "honest",
        };
        write!(f, "{manner}:{}={}", self.key, self.per_second)
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text} is not like flood:acme/orders=100");
        let (manner, rest) = text.split_once(':').ok_or_else(expected)?;
        let (key, per_second) = rest.rsplit_once('=').ok_or_else(expected)?;
        let manner = match manner {
            "flood" => Manner::Flood,
            "honest" => Manner::Honest,
            _ => return Err(expected()),
        };
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
        let mut command = Command::new(binary);
        command.arg("--holder").arg(holder).arg("--log").arg(&log);
        for endpoint in endpoints {
            command.arg("--endpoint").arg(endpoint);
        }
        for load in loads {
            command.arg("--load").arg(load.to_string());
        }
        if let Some(requests) = requests {
            command.arg("--requests").arg(requests);
        }
        // It spends until its input ends, so it ends with us at the latest.
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self { child, log })
    }

    /// Its admission log.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
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
        let load = Load {
            key: "acme/a=b:c".to_owned(),
            per_second: 12.5,
            manner: Manner::Honest,
        };
        assert_eq!(load.to_string().parse(), Ok(load));
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
