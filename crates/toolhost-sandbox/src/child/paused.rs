//! Paused: a call between two of its requests. Everything that its tool started is stopped by one
//! kill(2) to all processes, from pid 1 of the namespace around theirs: no handler sees SIGSTOP, and
//! a process that fork(2) is just making is stopped with its parent.
//!
//! Launcher and init stay awake: the death of the host ends a paused call like any other, and so
//! does the death of its tool. A timer of the kernel can still send SIGCONT. Whoever runs because of
//! that is seen by its context switches, and ends the call.

use crate::account::processes::threads_of_the_call;
use crate::account::walk::Stopped;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use toolhost_base::quantity::SAMPLE_MS;

/// How long system calls that were under way may go on.
const SETTLING: Duration = Duration::from_secs(5);
/// The part of a processor that looking takes at most.
const LOOKING_SHARE: u32 = 20;

/// While this lives, the call is stopped.
pub struct Paused {
    stopped: Stopped,
    init: Pid,
    since: Instant,
    next_look: Instant,
    /// Context switches of each thread when it was first seen stopped.
    switches: BTreeMap<u32, u64>,
}

impl Paused {
    pub fn begin(init: i32) -> Result<Paused, Errno> {
        let paused = Paused {
            stopped: Stopped::begin()?,
            init: Pid::from_raw(init),
            since: Instant::now(),
            next_look: Instant::now(),
            switches: BTreeMap::new(),
        };
        paused.wake_init();
        Ok(paused)
    }

    /// It has nothing to do until the tool ends, and then reports that.
    fn wake_init(&self) {
        let _ = kill(self.init, Signal::SIGCONT);
    }

    pub fn lasted(&self) -> Duration {
        self.since.elapsed()
    }

    /// Whether something of the call runs although it is paused.
    pub fn is_awake(&mut self) -> Result<bool, Errno> {
        let began = Instant::now();
        if began < self.next_look {
            return Ok(false);
        }
        let awake = self.look()?;
        let pause = (began.elapsed() * LOOKING_SHARE).max(Duration::from_millis(SAMPLE_MS));
        self.next_look = Instant::now() + pause;
        Ok(awake)
    }

    fn look(&mut self) -> Result<bool, Errno> {
        let mut runs = false;
        for thread in threads_of_the_call(self.init.as_raw().unsigned_abs())? {
            match thread.state {
                'T' | 't' => {
                    let first = self.switches.entry(thread.id).or_insert(thread.switches);
                    if *first != thread.switches {
                        return Ok(true);
                    }
                }
                'R' | 'S' => runs = true,
                // It has ended, or is inside a system call behind which it stops.
                _ => {}
            }
        }
        if runs && self.lasted() < SETTLING {
            self.stopped.again();
            self.wake_init();
            return Ok(false);
        }
        Ok(runs)
    }
}
