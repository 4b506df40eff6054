//! Where no cgroup counts, memory and CPU are summed over the call's pid namespace, every ≤ 20 ms.
//!
//! The weaker form of the layer `cgroup`; audit and outcome say `sampled`. The quick sum counts a page once for each
//! process that maps it, so it is never too low. Only where it passes the limit are pages counted exactly, once each,
//! while the call is stopped: counting takes some 10 ms for each GiB of each process, and a process that runs meanwhile
//! turns shared pages into its own.

use crate::sandbox::held::DescriptorMemory;
use crate::sandbox::processes::{self, Memory, ProcessKey, ProcessSnapshot, signal_all};
use crate::sandbox::scratch::Usage;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Most bytes that one page fault adds: huge pages are off where memory is sampled (`launcher`).
const PAGE: u64 = 4096;
/// Kernel memory of one mapping, bytes: the area and its tree node, and a link for each process that may share it.
const AREA: u64 = 256;
const LINK: u64 = 64;
/// Kernel memory of a thread, bytes: its kernel stack and what describes it.
const THREAD: u64 = 32 << 10;
/// Most sessions of a call at a time. Where no group shares out the CPU, each session has its own share (sched(7)).
pub const SESSIONS: u64 = 64;
/// Longest wait for processes inside a system call to return and stop: fork(2) takes some 10 ms for each GiB.
const SETTLING: Duration = Duration::from_secs(1);
/// Page faults that system calls under way may still take, 16 MiB. (fork(2) itself takes none.)
const LATE_FAULTS: u64 = 4096;
/// Longest time that one look counts mappings; the next look counts the rest.
const COUNTING: Duration = Duration::from_millis(10);
/// How often a count looks whether the call stays stopped.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// The samples of one call.
#[derive(Debug, Default)]
pub struct Sampler {
    seen: ProcessSnapshot,
    gone_ms: u64,
    waited_ms: u64,
    looks: u64,
    mappings: BTreeMap<ProcessKey, Mappings>,
    /// The last exact count: bytes of all pages, and page faults until then. Kept while the counted processes live.
    counted: Option<(u64, u64)>,
    pub descriptors: DescriptorMemory,
    /// Most bytes of file pages that one process was seen to have mapped.
    files: u64,
    pub peak: u64,
}

/// The result of one sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Scratch included.
    pub bytes: u64,
    pub cpu_ms: u64,
    pub sessions: u64,
    /// Entries of epolls.
    pub watches: u64,
}

/// The mappings of one process when they were last counted.
#[derive(Clone, Copy, Debug)]
struct Mappings {
    count: u64,
    at_ms: Option<u64>,
    look: u64,
}

impl Sampler {
    /// Takes one sample. `must_end`: the call must end now, so exact counting can stop.
    pub fn look(&mut self, scratch: Usage, limit: u64, must_end: impl FnMut() -> bool) -> Result<Look, Errno> {
        let cpu_ms = self.see(ProcessSnapshot::now()?);
        let (mut sum, mut addresses) = (Memory { own: scratch.bytes, ..Memory::default() }, 0);
        for ((pid, _), process) in &self.seen.processes {
            let memory = processes::resident(*pid)?;
            sum.pages += memory.pages;
            sum.own += memory.own + process.threads * THREAD;
            addresses += memory.addresses / PAGE;
            self.files = self.files.max(memory.files);
        }
        // The room does not subtract pages: their quick sum may be far too high.
        sum.own +=
            self.descriptors.bytes(&self.seen.of_the_tool(), scratch.files, cpu_ms, limit.saturating_sub(sum.own))?;
        // One mapping for each page of the addresses is more than there can be.
        let each = AREA + LINK * self.seen.processes.len() as u64;
        if addresses.saturating_mul(each) > limit.saturating_sub(sum.own + sum.pages) {
            sum.own += self.mapped(limit)?;
        }
        if sum.pages + sum.own > limit && sum.own <= limit {
            sum.pages = self.counted_once(sum.pages, limit - sum.own, must_end)?;
        }
        let bytes = sum.pages + sum.own;
        self.peak = self.peak.max(bytes);
        let sessions: BTreeSet<u32> = self.seen.processes.values().map(|process| process.session).collect();
        Ok(Look { bytes, cpu_ms, sessions: sessions.len() as u64, watches: self.descriptors.watches })
    }

    /// The peak of the call, also between looks. `largest`: the kernel's peak of its largest process, file pages
    /// included (getrusage(2), ru_maxrss).
    pub fn peak_with(&self, largest: u64) -> u64 {
        self.peak.max(largest.saturating_sub(self.files))
    }

    /// Records the processes seen now. Returns the CPU time of all processes so far, ms.
    fn see(&mut self, seen: ProcessSnapshot) -> u64 {
        self.looks += 1;
        let gone = |key: &ProcessKey| !seen.processes.contains_key(key);
        self.gone_ms += self.seen.processes.iter().filter(|(key, _)| gone(key)).map(|(_, p)| p.own_ms).sum::<u64>();
        // Others may hold pages of a process that ended, or that lived between two looks. (A thread looks the same.)
        let all_there = self.seen.newest.zip(seen.newest).is_some_and(|(before, now)| {
            let made = seen.processes.keys().filter(|(pid, _)| (before + 1..=now).contains(pid)).count();
            now.checked_sub(before).is_some_and(|numbers| numbers as usize == made)
        });
        if !all_there || self.seen.processes.keys().any(gone) {
            self.counted = None;
        }
        self.seen = seen;
        self.waited_ms = self.waited_ms.max(self.seen.processes.values().map(|p| p.waited_ms).sum());
        let own: u64 = self.seen.processes.values().map(|p| p.own_ms).sum();
        // Ended processes count once: by what was seen of them, or by what their parents waited for.
        own + self.gone_ms.max(self.waited_ms)
    }

    /// Bytes of all processes' pages, each page once. Counted again unless what was added since cannot pass `room`.
    /// Where the call does not stay stopped, the quick sum decides.
    fn counted_once(&mut self, quick: u64, room: u64, mut must_end: impl FnMut() -> bool) -> Result<u64, Errno> {
        if let Some((pages, faults)) = self.counted {
            let written = self.seen.faults().saturating_sub(faults).saturating_mul(PAGE);
            if pages.saturating_add(written) <= room {
                return Ok(pages);
            }
        }
        let frozen = Frozen::begin(&mut must_end)?;
        let (mut pages, mut looked) = (0, Instant::now());
        for (pid, _) in frozen.seen.processes.keys() {
            pages += processes::proportional(*pid)?;
            if pages > room || must_end() {
                return Ok(pages);
            }
            if looked.elapsed() >= SAMPLE_INTERVAL {
                if !frozen.is_valid()? {
                    return Ok(quick);
                }
                looked = Instant::now();
            }
        }
        if !frozen.is_valid()? {
            return Ok(quick);
        }
        self.see(frozen.seen.clone());
        self.counted = Some((pages, self.seen.faults()));
        Ok(pages)
    }

    /// Kernel memory for mappings. Counted again for processes that are new or used CPU, longest uncounted first. One
    /// not counted yet is taken to have as many as its parent, whose mappings fork(2) copied.
    fn mapped(&mut self, limit: u64) -> Result<u64, Errno> {
        let most = limit / AREA + 1;
        let mut known: BTreeMap<ProcessKey, Mappings> = BTreeMap::new();
        let largest = self.mappings.values().map(|m| m.count).max().unwrap_or(0);
        for (key, process) in &self.seen.processes {
            let of_parent = self.mappings.iter().find(|((pid, _), _)| *pid == process.parent).map(|(_, m)| m.count);
            let inherited = Mappings { count: of_parent.unwrap_or(largest), at_ms: None, look: 0 };
            known.insert(*key, self.mappings.get(key).copied().unwrap_or(inherited));
        }
        let now = |key: &ProcessKey| self.seen.processes.get(key).map(|process| process.own_ms);
        let mut waiting: Vec<_> = known.iter_mut().filter(|(key, mappings)| now(key) != mappings.at_ms).collect();
        waiting.sort_by_key(|(_, mappings)| mappings.look);
        let until = Instant::now() + COUNTING;
        for (key, mappings) in waiting {
            *mappings = Mappings { count: processes::mappings(key.0, most)?, at_ms: now(key), look: self.looks };
            if Instant::now() > until {
                break;
            }
        }
        self.mappings = known;
        Ok(self.mappings.iter().map(|((pid, _), m)| m.count * (AREA + LINK * self.ancestors(*pid))).sum())
    }

    /// How many processes of the call are ancestors of this one, itself included.
    fn ancestors(&self, pid: u32) -> u64 {
        let all = &self.seen.processes;
        let parent = |pid: &u32| all.range((*pid, 0)..=(*pid, u64::MAX)).next().map(|(_, p)| p.parent);
        // Each step goes to an older process; the bound is for a pid used again between two reads.
        let line = std::iter::successors(Some(pid), parent).skip(1).take_while(|above| *above > 1);
        1 + line.take(all.len().saturating_sub(1)).count() as u64
    }
}

/// While this lives, the call is stopped. A kernel timer can still send a process SIGCONT, which `is_valid` detects.
pub struct Frozen {
    stopped_before: BTreeSet<ProcessKey>,
    seen: ProcessSnapshot,
}

impl Frozen {
    pub fn begin(must_end: &mut impl FnMut() -> bool) -> Result<Frozen, Errno> {
        // Taken before our own signal: a process that the tool stops in between is continued at the end.
        let stopped = ProcessSnapshot::now()?.processes.into_iter().filter(|(_, process)| process.state == 'T');
        let stopped_before = stopped.map(|(key, _)| key).collect();
        // One kill(2) stops all processes at once, also those that fork(2) is just making.
        let _ = signal_all(Signal::SIGSTOP);
        let until = Instant::now() + SETTLING;
        let mut frozen = Frozen { stopped_before, seen: ProcessSnapshot::default() };
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

    /// Whether the count is valid. A process made meanwhile would have lowered the shares of the others.
    fn is_valid(&self) -> Result<bool, Errno> {
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
