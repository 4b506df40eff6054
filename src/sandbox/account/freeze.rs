//! Freeze: stops the call's processes while `sampler` counts their shared pages, or `written` their files.
//!
//! Counting pages takes some 10 ms for each GiB of each process, and a process that runs meanwhile turns shared pages
//! into its own. One kill(2) stops all processes at once, also those that fork(2) is just making.

use crate::sandbox::processes::{Key, ProcessSnapshot, signal_all};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Longest wait for processes inside a system call to return and stop: fork(2) takes some 10 ms for each GiB.
const SETTLING: Duration = Duration::from_secs(1);
/// Page faults that system calls under way may still take, 16 MiB. (fork(2) itself takes none.)
const LATE_FAULTS: u64 = 4096;
/// How often `is_valid` looks at the processes.
const LOOK: Duration = Duration::from_millis(20);

/// While this lives, the call is stopped. A kernel timer can still send a process SIGCONT, which `is_valid` detects.
pub struct Frozen {
    stopped_before: BTreeSet<Key>,
    looked: Instant,
    pub seen: ProcessSnapshot,
}

impl Frozen {
    pub fn begin(must_end: &mut impl FnMut() -> bool) -> Result<Frozen, Errno> {
        // Looked at now: what the tool stops between this look and our own signal goes on at the end.
        let stopped = ProcessSnapshot::now()?.processes.into_iter().filter(|(_, process)| process.state == 'T');
        let stopped_before = stopped.map(|(key, _)| key).collect();
        let _ = signal_all(Signal::SIGSTOP);
        let until = Instant::now() + SETTLING;
        let mut frozen = Frozen { stopped_before, looked: Instant::now(), seen: ProcessSnapshot::default() };
        frozen.seen = ProcessSnapshot::now()?;
        let first = frozen.seen.faults();
        while frozen.seen.processes.values().any(|process| matches!(process.state, 'R' | 'S'))
            && frozen.seen.faults().saturating_sub(first) <= LATE_FAULTS
            && Instant::now() < until
            && !must_end()
        {
            std::thread::sleep(Duration::from_millis(1));
            frozen.seen = ProcessSnapshot::now()?;
        }
        Ok(frozen)
    }

    /// Whether the count so far is valid. A process made meanwhile would have lowered the shares of the others.
    pub fn is_valid(&mut self, last: bool) -> Result<bool, Errno> {
        if !last && self.looked.elapsed() < LOOK {
            return Ok(true);
        }
        self.looked = Instant::now();
        let now = ProcessSnapshot::now()?;
        let late = now.faults().saturating_sub(self.seen.faults());
        Ok(now.newest.is_some() && now.newest == self.seen.newest && late <= LATE_FAULTS)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if self.stopped_before.is_empty() {
            let _ = signal_all(Signal::SIGCONT);
            return;
        }
        // Processes that the tool had stopped itself stay stopped.
        let now = ProcessSnapshot::now().unwrap_or_default();
        let stopped = now.processes.keys().filter(|key| !self.stopped_before.contains(key)).map(|key| key.0);
        for pid in stopped.chain(now.recorder) {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGCONT);
        }
    }
}
