//! Where no cgroup counts, memory and CPU are summed over the call's pid namespace, every ≤ 20 ms.
//!
//! The weaker form of the layer `cgroup`; audit and outcome say `sampled`. The quick sum counts a
//! page once for each process that maps it, so it is never too low. Only where it passes the limit
//! are pages counted exactly, once each, while the call is stopped: counting takes some 10 ms for
//! each GiB of each process, and a process that runs meanwhile turns shared pages into its own.

use crate::account::held::DescriptorMemory;
use crate::account::processes::{self, Memory, Met, ProcessKey, ProcessSnapshot};
use crate::account::walk::Stopped;
use crate::layers::scratch::Usage;
use crate::sys::Compared;
use nix::errno::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Most bytes that one page fault adds: huge pages are off where memory is sampled (`launcher`).
const PAGE: u64 = 4096;
/// Kernel memory of one mapping, bytes: the area and its tree node, and a link for each process
/// that may share it.
const AREA: u64 = 256;
const LINK: u64 = 64;
/// Kernel memory of a thread, bytes: its kernel stack and what describes it.
const THREAD: u64 = 32 << 10;
/// Most sessions of a call at a time. Where no group shares out the CPU, each session has its own
/// share (sched(7)).
pub const SESSIONS: u64 = 64;
/// Longest time that one look counts mappings; the next look counts the rest.
const COUNTING: Duration = Duration::from_millis(10);

/// The samples of one call.
#[derive(Debug, Default)]
pub struct Sampler {
    seen: ProcessSnapshot,
    gone_ms: u64,
    waited_ms: u64,
    looks: u64,
    mappings: BTreeMap<ProcessKey, Mappings>,
    shown: BTreeMap<ProcessKey, Shown>,
    /// The last exact count: bytes of all pages, and page faults until then. Kept while the counted
    /// processes live.
    counted: Option<(u64, u64)>,
    pub descriptors: DescriptorMemory,
    /// Most bytes of file pages that one process was seen to have mapped.
    files: u64,
    pub peak: u64,
    /// Most processes and threads of the tool that were seen at one time.
    pub most_threads: u64,
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

/// What a process has as far as it was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    memory: Memory,
    /// Page faults until then.
    faults: u64,
}

impl Sampler {
    /// Takes one sample.
    pub fn look(&mut self, scratch: Usage, limit: u64) -> Result<Look, Errno> {
        let cpu_ms = self.see(ProcessSnapshot::now()?);
        self.remember_shown()?;
        let mut sum = Memory {
            own: scratch.bytes,
            ..Memory::default()
        };
        let mut addresses = 0;
        let mut largest = 0;
        for (key, Shown { memory, .. }) in &self.shown {
            let process = &self.seen.processes[key];
            sum.pages += memory.pages;
            sum.own += memory.own + process.threads * THREAD;
            addresses += memory.addresses / PAGE;
            largest = largest.max(memory.anonymous);
            self.files = self.files.max(memory.files);
        }
        // The room does not subtract pages: their quick sum may be far too high.
        sum.own += self.descriptors.bytes(
            &self.seen.of_the_tool(),
            scratch.files,
            cpu_ms,
            limit.saturating_sub(sum.own),
        )?;
        // One mapping for each page of the addresses is more than there can be.
        let each = AREA + LINK * self.seen.processes.len() as u64;
        if addresses.saturating_mul(each) > limit.saturating_sub(sum.own + sum.pages) {
            sum.own += self.mapped(limit)?;
        }
        // What one process has alone is over the limit whatever the others share.
        if sum.pages + sum.own > limit && largest + sum.own <= limit {
            sum.pages = self.counted_once(sum.pages, limit - sum.own)?;
        }
        let all: u64 = self.seen.processes.values().map(|p| p.threads).sum();
        // All but the init.
        self.most_threads = self.most_threads.max(all.saturating_sub(1));
        let bytes = sum.pages + sum.own;
        self.peak = self.peak.max(bytes);
        let sessions: BTreeSet<u32> = self
            .seen
            .processes
            .values()
            .map(|process| process.session)
            .collect();
        Ok(Look {
            bytes,
            cpu_ms,
            sessions: sessions.len() as u64,
            watches: self.descriptors.watches,
        })
    }

    /// The peak of the call, also between looks. `largest`: the kernel's peak of its largest
    /// process, file pages included (getrusage(2), ru_maxrss).
    pub fn peak_with(&self, largest: u64) -> u64 {
        self.peak.max(largest.saturating_sub(self.files))
    }

    /// Records the processes seen now. Returns the CPU time of all processes so far, ms.
    fn see(&mut self, seen: ProcessSnapshot) -> u64 {
        self.looks += 1;
        let gone = |key: &ProcessKey| !seen.processes.contains_key(key);
        self.gone_ms += self
            .seen
            .processes
            .iter()
            .filter(|(key, _)| gone(key))
            .map(|(_, p)| p.own_ms)
            .sum::<u64>();
        // Others may hold pages of a process that ended, or that lived between two looks. (A thread
        // looks the same.)
        let all_there = self
            .seen
            .newest
            .zip(seen.newest)
            .is_some_and(|(before, now)| {
                let made = seen
                    .processes
                    .keys()
                    .filter(|(pid, _)| (before + 1..=now).contains(pid))
                    .count();
                now.checked_sub(before)
                    .is_some_and(|numbers| numbers as usize == made)
            });
        if !all_there || self.seen.processes.keys().any(gone) {
            self.counted = None;
        }
        self.seen = seen;
        self.waited_ms = self
            .waited_ms
            .max(self.seen.processes.values().map(|p| p.waited_ms).sum());
        let own: u64 = self.seen.processes.values().map(|p| p.own_ms).sum();
        // Ended processes count once: by what was seen of them, or by what their parents waited
        // for.
        own + self.gone_ms.max(self.waited_ms)
    }

    /// A process that is ending shows no memory and has it until it is a zombie: as it showed last,
    /// and what the page faults since then can have added.
    fn remember_shown(&mut self) -> Result<(), Errno> {
        let mut now = BTreeMap::new();
        let mut known = Met::new(Compared::Memory);
        for (key, process) in self
            .seen
            .processes
            .iter()
            .filter(|(_, process)| !process.has_ended())
        {
            let mut last = self.shown.get(key).copied().unwrap_or_default();
            last.memory.pages += process
                .faults
                .saturating_sub(last.faults)
                .saturating_mul(PAGE);
            let memory = match processes::resident(key.0)? {
                // vfork(2): the memory is its parent's.
                Some(_) if process.state != 'Z' && !known.is_new(key.0, 0) => Memory::default(),
                shown => shown.unwrap_or(last.memory),
            };
            now.insert(
                *key,
                Shown {
                    memory,
                    faults: process.faults,
                },
            );
        }
        self.shown = now;
        Ok(())
    }

    /// Bytes of all processes' pages, each page once. Counted again unless what was added since
    /// cannot pass `room`. The sum holds for one moment, in which all were seen stopped: whoever
    /// ends meanwhile leaves its share to others. Of a call that takes memory although it is
    /// stopped the quick sum counts.
    fn counted_once(&mut self, quick: u64, room: u64) -> Result<u64, Errno> {
        if let Some((pages, faults)) = self.counted {
            let written = self
                .seen
                .faults()
                .saturating_sub(faults)
                .saturating_mul(PAGE);
            if pages.saturating_add(written) <= room {
                return Ok(pages);
            }
        }
        let stopped = Stopped::begin()?;
        let first = ProcessSnapshot::now()?;
        loop {
            let seen = stopped.settled()?;
            if seen.took_memory_since(&first) {
                return Ok(quick);
            }
            if let Some(pages) = shares(&seen, room)?
                && seen.is_still(&ProcessSnapshot::now()?)
            {
                self.see(seen);
                self.counted = Some((pages, self.seen.faults()));
                return Ok(pages);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kernel memory for mappings. Counted again for processes that are new or used CPU, longest
    /// uncounted first. One not counted yet is taken to have as many as its parent, whose mappings
    /// fork(2) copied.
    fn mapped(&mut self, limit: u64) -> Result<u64, Errno> {
        let most = limit / AREA + 1;
        let mut known: BTreeMap<ProcessKey, Mappings> = BTreeMap::new();
        let largest = self.mappings.values().map(|m| m.count).max().unwrap_or(0);
        for (key, process) in &self.seen.processes {
            let of_parent = self
                .mappings
                .iter()
                .find(|((pid, _), _)| *pid == process.parent)
                .map(|(_, m)| m.count);
            let inherited = Mappings {
                count: of_parent.unwrap_or(largest),
                at_ms: None,
                look: 0,
            };
            known.insert(*key, self.mappings.get(key).copied().unwrap_or(inherited));
        }
        let now = |key: &ProcessKey| self.seen.processes.get(key).map(|process| process.own_ms);
        let mut waiting: Vec<_> = known
            .iter_mut()
            .filter(|(key, mappings)| now(key) != mappings.at_ms)
            .collect();
        waiting.sort_by_key(|(_, mappings)| mappings.look);
        let until = Instant::now() + COUNTING;
        for (key, mappings) in waiting {
            *mappings = Mappings {
                count: processes::mappings(key.0, most)?,
                at_ms: now(key),
                look: self.looks,
            };
            if Instant::now() > until {
                break;
            }
        }
        self.mappings = known;
        Ok(self
            .mappings
            .iter()
            .map(|((pid, _), m)| m.count * (AREA + LINK * self.ancestors(*pid)))
            .sum())
    }

    /// How many processes of the call are ancestors of this one, itself included.
    fn ancestors(&self, pid: u32) -> u64 {
        let all = &self.seen.processes;
        // Each step goes to an older process; the bound is for a pid used again between two reads.
        let line = std::iter::successors(Some(pid), |pid: &u32| {
            all.range((*pid, 0)..=(*pid, u64::MAX))
                .next()
                .map(|(_, p)| p.parent)
        })
        .skip(1)
        .take_while(|above| *above > 1);
        1 + line.take(all.len().saturating_sub(1)).count() as u64
    }
}

/// The sum of the shares of all processes; counting stops beyond `room`. `None` while one is
/// ending, which shows no share and has one until it is a zombie.
fn shares(seen: &ProcessSnapshot, room: u64) -> Result<Option<u64>, Errno> {
    let mut pages = 0;
    let mut known = Met::new(Compared::Memory);
    for ((pid, _), process) in seen
        .processes
        .iter()
        .filter(|(_, process)| !process.has_ended())
    {
        let Some(share) = processes::proportional(*pid)? else {
            return Ok(None);
        };
        // The memory of a first thread that ended cannot be compared.
        if process.state == 'Z' || known.is_new(*pid, 0) {
            pages += share;
        }
        if pages > room {
            break;
        }
    }
    Ok(Some(pages))
}
