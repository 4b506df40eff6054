//! Paused: a call between two of its requests. Everything that its tool started is stopped by one
//! kill(2) to all processes, from pid 1 of the namespace around theirs: no handler sees SIGSTOP, and
//! a process that fork(2) is just making is stopped with its parent.
//!
//! Launcher and init stay awake: the death of the host ends a paused call like any other, and so
//! does the death of its tool. A pause changes the clock only: the limits are looked at as in a call
//! that runs. A timer of the kernel can still send SIGCONT. Whoever runs although it was seen stopped
//! is seen by its state or its context switches, and ends the call.
//!
//! A look takes place every 20 ms while something runs, else every 40 ms (with many threads it
//! takes at most a twentieth of a processor). System calls that were under way have 5 s, and count
//! against the limits. Connections stay open.

use crate::account::processes::threads_of_the_call;
use crate::account::walk::Stopped;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use toolhost_base::cpu_time;
use toolhost_base::quantity::SAMPLE_MS;

/// How long system calls that were under way may go on.
const SETTLING: Duration = Duration::from_secs(5);
/// The time between two looks at a call in which nothing runs.
const AT_REST: Duration = Duration::from_millis(2 * SAMPLE_MS);
/// The part of a processor that looking at it takes at most.
const LOOKING_SHARE: u32 = 20;

/// While this lives, the call is stopped.
pub struct Paused {
    stopped: Stopped,
    init: Pid,
    since: Instant,
    next_look: Instant,
    /// CPU time of the launcher until its last look.
    cpu_before: Duration,
    /// All threads were seen stopped.
    at_rest: bool,
    /// Context switches of each thread when it was first seen stopped.
    switches: BTreeMap<u32, u64>,
    /// Threads that did not look stopped any more. One that is being killed looks so for a moment.
    woken: BTreeSet<u32>,
}

impl Paused {
    pub fn begin(init: i32) -> Result<Paused, Errno> {
        let paused = Paused {
            stopped: Stopped::begin()?,
            init: Pid::from_raw(init),
            since: Instant::now(),
            next_look: Instant::now(),
            cpu_before: cpu_time(),
            at_rest: false,
            switches: BTreeMap::new(),
            woken: BTreeSet::new(),
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

    /// Whether it is time to look at the call. While something of it runs, that is always.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        if self.at_rest && now < self.next_look {
            return false;
        }
        let cpu = cpu_time();
        let looking = cpu.saturating_sub(self.cpu_before) * LOOKING_SHARE;
        self.cpu_before = cpu;
        self.next_look = now + looking.max(AT_REST);
        true
    }

    /// Whether something of the call runs that was stopped, or has not stopped in time.
    pub fn is_awake(&mut self) -> Result<bool, Errno> {
        let mut runs = false;
        self.at_rest = true;
        for thread in threads_of_the_call()? {
            match thread.state {
                'T' | 't' => {
                    let first = self.switches.entry(thread.id).or_insert(thread.switches);
                    if *first != thread.switches {
                        return Ok(true);
                    }
                }
                // It has ended, or is about to.
                'Z' | 'X' => {}
                _ if thread.is_ending => {}
                'R' | 'S' => {
                    if self.switches.contains_key(&thread.id) && !self.woken.insert(thread.id) {
                        return Ok(true);
                    }
                    runs = true;
                }
                // It is inside a system call behind which it stops.
                _ => self.at_rest = false,
            }
        }
        self.at_rest &= !runs;
        if runs {
            self.stopped.again();
        }
        // Whoever counts the memory of the call stops the init, too.
        self.wake_init();
        Ok(runs && self.lasted() >= SETTLING)
    }
}
