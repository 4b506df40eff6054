//! Where no cgroup counts: memory and CPU summed over the call's pid namespace, every ≤ 20 ms.
//!
//! Part of the wall `cgroup`, in its weaker form; audit and outcome say `sampled`. The launcher sees the
//! tool's processes in its own /proc, where it is pid 1 and everything else is the call.

use std::collections::BTreeMap;

/// What was seen, over the whole call.
#[derive(Debug, Default)]
pub struct Sampler {
    /// CPU of each process when last seen, milliseconds, by pid and start time.
    processes: BTreeMap<(u32, u64), u64>,
    gone_ms: u64,
    waited_ms: u64,
    pub peak: u64,
}

struct Process {
    start: u64,
    own_ms: u64,
    waited_ms: u64,
}

impl Sampler {
    /// Looks once: memory in bytes (scratch included) and CPU in milliseconds so far.
    pub fn look(&mut self, scratch_bytes: u64, limit: u64) -> (u64, u64) {
        let pids = pids();
        let mut seen = BTreeMap::new();
        let mut waited = 0;
        for pid in &pids {
            let Some(process) = process(*pid) else { continue };
            seen.insert((*pid, process.start), process.own_ms);
            waited += process.waited_ms;
        }
        for (key, ms) in &self.processes {
            if !seen.contains_key(key) {
                self.gone_ms += ms;
            }
        }
        self.processes = seen;
        self.waited_ms = self.waited_ms.max(waited);
        let own: u64 = self.processes.values().sum();
        // The dead are counted once: by what was seen of them, or by what their parents waited for.
        let cpu = own + self.gone_ms.max(self.waited_ms);
        let quick: u64 = pids.iter().map(|pid| resident(*pid)).sum::<u64>() + scratch_bytes;
        // Pages that processes share count once, which costs more to find out, so only near the limit.
        let memory =
            if quick > limit { pids.iter().map(|pid| proportional(*pid)).sum::<u64>() + scratch_bytes } else { quick };
        self.peak = self.peak.max(memory);
        (memory, cpu)
    }
}

/// Every process but the launcher itself.
fn pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(|pid| *pid != 1).collect()
}

fn process(pid: u32) -> Option<Process> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, so count from its closing parenthesis.
    let fields: Vec<u64> = text.rsplit_once(')')?.1.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    // Clock ticks are 10 ms in every Linux user interface (USER_HZ = 100).
    let at = |n: usize| fields.get(n - 3).copied().unwrap_or(0) * 10;
    Some(Process { start: fields.get(19).copied()?, own_ms: at(14) + at(15), waited_ms: at(16) + at(17) })
}

/// Anonymous and shared memory pages, in memory or swapped out, and the tables that map them; without files of the
/// interpreter. (What no process would show is refused: `seccomp`, `view`.)
fn resident(pid: u32) -> u64 {
    let text = status(pid);
    kib(&text, &["RssAnon:", "RssShmem:", "HugetlbPages:", "VmSwap:", "VmPTE:"]) * 1024
}

fn status(pid: u32) -> String {
    let own = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // A first thread that ended shows no memory of its own; the others still hold all of it.
    if own.contains("RssAnon:") { own } else { of_another_thread(pid).unwrap_or(own) }
}

fn kib(text: &str, names: &[&str]) -> u64 {
    let of = |line: &str| {
        let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
        rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    text.lines().filter_map(of).sum()
}

fn of_another_thread(pid: u32) -> Option<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let texts = threads.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("status")).ok());
    texts.into_iter().find(|text| text.contains("RssAnon:"))
}

fn proportional(pid: u32) -> u64 {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { return resident(pid) };
    let pages = kib(&text, &["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]);
    (pages + kib(&status(pid), &["HugetlbPages:", "VmPTE:"])) * 1024
}
