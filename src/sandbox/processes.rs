//! What /proc tells the launcher of the call's processes: for `sampler`, where no cgroup counts.
//!
//! The launcher is pid 1 of its own pid namespace, and everything else in its /proc is the call.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::Read;

/// Pid and start time: the same process, also when its number is used again.
pub type Key = (u32, u64);
pub type Processes = BTreeMap<Key, Process>;

#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub parent: u32,
    /// One letter, as in proc(5).
    pub state: char,
    /// Page faults so far, by all its threads; a new process starts at none.
    pub faults: u64,
    pub own_ms: u64,
    pub waited_ms: u64,
}

/// Memory of one process, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Anonymous and shared memory, in memory or swapped out; other processes may hold the same pages.
    pub pages: u64,
    /// Huge pages of the machine's pool, and the tables that map everything.
    pub own: u64,
}

/// Signals every process of this namespace but ourselves: the call and nothing else, since we are its pid 1. Anybody
/// else would reach whoever they may, so nobody else may ask.
pub fn signal_all(signal: Signal) -> Result<(), Errno> {
    if std::process::id() != 1 {
        return Err(Errno::EPERM);
    }
    kill(Pid::from_raw(-1), signal)
}

/// One look at all of the call.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The pid given out last in this namespace, before the rest was read: as long as it is unchanged, no process and
    /// no thread was made.
    pub newest: Option<u32>,
    pub processes: Processes,
}

impl Seen {
    pub fn now() -> Seen {
        // In this order, so that whoever came before `newest` and is not listed has ended.
        Seen { newest: newest(), processes: all() }
    }

    pub fn faults(&self) -> u64 {
        self.processes.values().map(|process| process.faults).sum()
    }
}

/// Every process but the launcher itself.
fn all() -> Processes {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(|pid| *pid != 1);
    pids.filter_map(process).collect()
}

fn process(pid: u32) -> Option<(Key, Process)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, so count from its closing parenthesis.
    let rest = text.rsplit_once(')')?.1;
    let fields: Vec<u64> = rest.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    let at = |n: usize| fields.get(n - 3).copied().unwrap_or(0);
    // Clock ticks are 10 ms in every Linux user interface (USER_HZ = 100).
    let ms = |n: usize| at(n) * 10;
    let process = Process {
        parent: at(4) as u32,
        state: rest.trim_start().chars().next()?,
        faults: at(10) + at(12),
        own_ms: ms(14) + ms(15),
        waited_ms: ms(16) + ms(17),
    };
    Some(((pid, fields.get(19).copied()?), process))
}

fn newest() -> Option<u32> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().last()?.parse().ok()
}

/// As each process has it mapped: what several share is in the figures of each. Without files of the interpreter.
/// (What no process would show is refused: `seccomp`, `view`.)
pub fn resident(pid: u32) -> Memory {
    let text = status(pid);
    Memory {
        pages: kib(&text, &["RssAnon:", "RssShmem:", "VmSwap:"]) * 1024,
        own: kib(&text, &["HugetlbPages:", "VmPTE:"]) * 1024,
    }
}

/// Its share of the pages it has mapped. The kernel walks all of them: some 10 ms for each GiB.
pub fn proportional(pid: u32) -> u64 {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { return resident(pid).pages };
    kib(&text, &["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]) * 1024
}

/// How many mappings it has; counts no further than `most`.
pub fn mappings(pid: u32, most: u64) -> u64 {
    match lines(&format!("/proc/{pid}/maps"), most) {
        // A first thread that ended shows none; the others still hold all of them.
        0 => threads(pid).map(|thread| lines(&format!("{thread}/maps"), most)).find(|count| *count > 0).unwrap_or(0),
        count => count,
    }
}

fn lines(path: &str, most: u64) -> u64 {
    let Ok(mut file) = std::fs::File::open(path) else { return 0 };
    let mut buffer = [0u8; 16 << 10];
    let mut count = 0;
    while count < most
        && let Ok(length @ 1..) = file.read(&mut buffer)
    {
        count += buffer[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
    }
    count
}

fn status(pid: u32) -> String {
    let own = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // As with its mappings.
    if own.contains("RssAnon:") { own } else { of_another_thread(pid).unwrap_or(own) }
}

fn of_another_thread(pid: u32) -> Option<String> {
    let mut texts = threads(pid).filter_map(|thread| std::fs::read_to_string(format!("{thread}/status")).ok());
    texts.find(|text| text.contains("RssAnon:"))
}

fn threads(pid: u32) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().display().to_string())
}

fn kib(text: &str, names: &[&str]) -> u64 {
    let of = |line: &str| {
        let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
        rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    text.lines().filter_map(of).sum()
}
