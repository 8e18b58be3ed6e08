//! A process that can be stopped, continued and ended, and that ends with its
//! owner. Knows nothing of what it does.

use std::{
    io,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

const POLL: Duration = Duration::from_millis(10);

/// A running process, or one that has ended by itself.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    is_paused: bool,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Self {
            child: command.spawn()?,
            is_paused: false,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; none: it runs, or is paused.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It has not been waited for, so the id is still its own.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Stops it where it is.
    pub(crate) fn pause(&mut self) {
        self.signal(Signal::STOP);
        self.is_paused = true;
    }

    /// Lets it go on.
    pub(crate) fn resume(&mut self) {
        self.signal(Signal::CONT);
        self.is_paused = false;
    }

    /// SIGKILL, without waiting for the end.
    pub(crate) fn strike(&mut self) {
        let _ = self.child.kill();
    }

    /// SIGKILL; it is gone when this returns.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// What it was given as input ends, which tells a gateway to end.
    pub(crate) fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let give_up = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() > give_up {
                return None;
            }
            thread::sleep(POLL);
        }
    }

    fn end(&mut self) {
        // An error here says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
