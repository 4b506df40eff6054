//! Sampler: where no cgroup counts, memory and CPU are summed over the call's pid namespace, every ≤ 20 ms.
//!
//! The weaker form of the wall `cgroup`; audit and outcome say `sampled`. `processes` reads the figures. The quick sum
//! counts a page once for each process that maps it, so it is never too low. Only where it passes the limit are pages
//! counted exactly, once each, while the call is stopped.

use super::held::Held;
use super::processes::{self, Key, Memory, Processes, Seen};
use super::standstill::Standstill;
use nix::errno::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Most bytes that one page fault adds: huge pages are off where memory is sampled (`launcher`).
const PAGE: u64 = 4096;
/// Bytes that page faults can add in a millisecond on each CPU; assumed for processes that came and went unseen.
const UNSEEN_PER_MS: u64 = 4 << 20;
/// After so many counts in a row that were invalid, because the call did not stay stopped, the quick sum decides.
const RESTLESS: u32 = 3;
/// Kernel memory of one mapping, bytes: the area and its tree node, and a link for each process it was forked through.
const AREA: u64 = 256;
const LINK: u64 = 64;
/// Kernel memory of a thread, bytes: its kernel stack and what describes it.
const THREAD: u64 = 32 << 10;
/// Most sessions of a call at a time. Where no group shares out the CPU, each session has its own share (sched(7)).
pub const SESSIONS: u64 = 64;
/// Longest time that one look counts mappings; the next look counts the rest.
const COUNTING: Duration = Duration::from_millis(10);

/// What was seen, over the whole call.
#[derive(Debug, Default)]
pub struct Sampler {
    processes: Processes,
    gone_ms: u64,
    gone_faults: u64,
    waited_ms: u64,
    looks: u64,
    mappings: BTreeMap<Key, Mappings>,
    shared: Option<Shared>,
    restless: u32,
    held: Held,
    /// Most bytes of file pages that one process was seen to have mapped.
    files: u64,
    pub peak: u64,
}

/// What one look found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Scratch included.
    pub bytes: u64,
    pub cpu_ms: u64,
    pub sessions: u64,
}

/// The mappings of one process when they were last counted.
#[derive(Clone, Copy, Debug)]
struct Mappings {
    count: u64,
    at_ms: Option<u64>,
    look: u64,
}

/// The last exact count, and what may have been added since.
#[derive(Debug)]
struct Shared {
    pages: u64,
    faults: u64,
    unseen: u64,
    newest: Option<u32>,
    looked: Instant,
}

impl Sampler {
    /// Looks once. `hurry`: the call is to end now, whatever it holds.
    pub fn look(&mut self, scratch_bytes: u64, limit: u64, hurry: impl FnMut() -> bool) -> Result<Look, Errno> {
        let cpu_ms = self.see(Seen::now()?);
        let threads: u64 = self.processes.values().map(|process| process.threads).sum();
        let mut sum = Memory { own: scratch_bytes + threads * THREAD, ..Memory::default() };
        for (pid, _) in self.processes.keys() {
            let memory = processes::resident(*pid)?;
            sum = Memory { pages: sum.pages + memory.pages, own: sum.own + memory.own, files: sum.files };
            self.files = self.files.max(memory.files);
        }
        // Without the init, which is our only child.
        let tool = self.processes.iter().filter(|(_, process)| process.parent != 1);
        let pids: Vec<u32> = tool.map(|((pid, _), _)| *pid).collect();
        sum.own += self.mapped(limit)?;
        // The room does not subtract pages: their quick sum may be far too high.
        sum.own += self.held.bytes(&pids, cpu_ms, limit.saturating_sub(sum.own))?;
        if sum.pages + sum.own > limit && sum.own <= limit {
            sum.pages = self.counted_once(sum.pages, limit - sum.own, hurry)?;
        }
        let bytes = sum.pages + sum.own;
        self.peak = self.peak.max(bytes);
        let sessions: BTreeSet<u32> = self.processes.values().map(|process| process.session).collect();
        Ok(Look { bytes, cpu_ms, sessions: sessions.len() as u64 })
    }

    /// The peak of the call, also between looks. `largest`: the kernel's peak of its largest process, file pages
    /// included (getrusage(2), ru_maxrss).
    pub fn peak_with(&self, largest: u64) -> u64 {
        self.peak.max(largest.saturating_sub(self.files))
    }

    /// Takes over the processes seen now. Returns the CPU time of all processes so far, ms.
    fn see(&mut self, seen: Seen) -> u64 {
        self.looks += 1;
        let gone = self.processes.iter().filter(|(key, _)| !seen.processes.contains_key(key));
        let gone: Vec<_> = gone.map(|(_, process)| *process).collect();
        self.gone_ms += gone.iter().map(|p| p.own_ms).sum::<u64>();
        self.gone_faults += gone.iter().map(|p| p.faults).sum::<u64>();
        if let Some(shared) = &mut self.shared {
            shared.pass(&seen, !gone.is_empty());
        }
        self.processes = seen.processes;
        self.waited_ms = self.waited_ms.max(self.processes.values().map(|p| p.waited_ms).sum());
        let own: u64 = self.processes.values().map(|p| p.own_ms).sum();
        // Ended processes count once: by what was seen of them, or by what their parents waited for.
        own + self.gone_ms.max(self.waited_ms)
    }

    fn faults(&self) -> u64 {
        self.processes.values().map(|p| p.faults).sum::<u64>() + self.gone_faults
    }

    /// Bytes of all processes' pages, each page once. Counted anew only if what was added since could pass `room`.
    fn counted_once(&mut self, quick: u64, room: u64, mut hurry: impl FnMut() -> bool) -> Result<u64, Errno> {
        if let Some(shared) = &self.shared {
            let written = self.faults().saturating_sub(shared.faults).saturating_mul(PAGE);
            if shared.pages.saturating_add(shared.unseen).saturating_add(written) <= room {
                return Ok(shared.pages);
            }
        }
        let mut standstill = Standstill::begin(&mut hurry)?;
        let mut pages = 0;
        for (pid, _) in standstill.seen.processes.clone().keys() {
            pages += processes::proportional(*pid)?;
            if pages > room || hurry() {
                return Ok(pages);
            }
            if !standstill.stands(false)? {
                return Ok(self.restless(quick));
            }
        }
        if !standstill.stands(true)? {
            return Ok(self.restless(quick));
        }
        self.restless = 0;
        let newest = standstill.seen.newest;
        self.see(standstill.seen.clone());
        self.shared = Some(Shared { pages, faults: self.faults(), unseen: 0, newest, looked: Instant::now() });
        Ok(pages)
    }

    /// After an invalid count: the last valid one, or after `RESTLESS` of them the quick sum, which is too high.
    fn restless(&mut self, quick: u64) -> u64 {
        self.restless += 1;
        let last = self.shared.as_ref().map_or(0, |shared| shared.pages);
        if self.restless < RESTLESS { last } else { quick }
    }

    /// Kernel memory for mappings. Counted again for processes that are new or used CPU, longest uncounted first. One
    /// not counted yet is taken to have as many as its parent, whose mappings fork(2) copied.
    fn mapped(&mut self, limit: u64) -> Result<u64, Errno> {
        let most = limit / AREA + 1;
        let mut known: BTreeMap<Key, Mappings> = BTreeMap::new();
        let largest = self.mappings.values().map(|m| m.count).max().unwrap_or(0);
        for (key, process) in &self.processes {
            let of_parent = self.mappings.iter().find(|((pid, _), _)| *pid == process.parent).map(|(_, m)| m.count);
            let inherited = Mappings { count: of_parent.unwrap_or(largest), at_ms: None, look: 0 };
            known.insert(*key, self.mappings.get(key).copied().unwrap_or(inherited));
        }
        let due = |(key, _): &(&Key, &mut Mappings)| self.processes.get(key).map(|p| p.own_ms);
        let mut waiting: Vec<_> = known.iter_mut().filter(|entry| due(entry) != entry.1.at_ms).collect();
        waiting.sort_by_key(|(_, mappings)| mappings.look);
        let until = Instant::now() + COUNTING;
        for ((pid, start), mappings) in waiting {
            let at_ms = self.processes.get(&(*pid, *start)).map(|p| p.own_ms);
            *mappings = Mappings { count: processes::mappings(*pid, most)?, at_ms, look: self.looks };
            if Instant::now() > until {
                break;
            }
        }
        self.mappings = known;
        Ok(self.mappings.iter().map(|((pid, _), m)| m.count * (AREA + LINK * self.ancestors(*pid))).sum())
    }

    /// How many processes of the call are ancestors of this one, itself included.
    fn ancestors(&self, pid: u32) -> u64 {
        let parent = |pid: u32| self.processes.range((pid, 0)..=(pid, u64::MAX)).next().map(|(_, p)| p.parent);
        // Each step goes to an older process; the bound is for a pid used again between two reads.
        let mut at = parent(pid);
        let mut count = 1;
        while let Some(above) = at
            && above > 1
            && count < self.processes.len() as u64
        {
            count += 1;
            at = parent(above);
        }
        count
    }
}

impl Shared {
    /// Takes in one more look. Where processes ended, or came and went unseen, others may still hold pages they wrote.
    fn pass(&mut self, seen: &Seen, gone: bool) {
        let all_there = self.newest.zip(seen.newest).is_some_and(|(before, now)| {
            let made = seen.processes.keys().filter(|(pid, _)| (before + 1..=now).contains(pid)).count();
            now.checked_sub(before).is_some_and(|number| number as usize == made)
        });
        if gone || !all_there {
            let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
            let elapsed = self.looked.elapsed().as_millis() as u64 + 1;
            self.unseen = self.unseen.saturating_add(elapsed * cpus * UNSEEN_PER_MS);
        }
        self.newest = seen.newest;
        self.looked = Instant::now();
    }
}
