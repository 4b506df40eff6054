//! What /proc tells the launcher about the processes of a call.
//!
//! The launcher is pid 1 of its own pid namespace. All other processes in its /proc belong to the
//! call, except the recorder of a recorded call.

use crate::sys::{Compared, KernelObject, errno, kcmp};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;

/// Page faults that system calls under way in stopped processes may still take, 16 MiB. (fork(2)
/// itself takes none.)
const LATE_FAULTS: u64 = 4096;

/// Pid and start time, which tell a process from a later one with the same pid.
pub type ProcessKey = (u32, u64);

#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub parent: u32,
    pub session: u32,
    pub threads: u64,
    /// One letter, as in proc(5).
    pub state: char,
    /// Page faults so far, of all its threads; a new process starts at zero.
    pub faults: u64,
    pub own_ms: u64,
    pub waited_ms: u64,
}

impl Process {
    /// Whether it is a zombie. One whose first thread ended looks the same, but has others.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

/// Memory of one process, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Anonymous and shared memory, resident or swapped out; other processes may hold the same
    /// pages.
    pub pages: u64,
    /// Of these what is anonymous and resident, each page once.
    pub anonymous: u64,
    /// Memory of this process alone: page tables, and huge pages of hugetlbfs.
    pub own: u64,
    /// Pages of files. They do not count as memory of the call, but the kernel's ru_maxrss includes
    /// them.
    pub files: u64,
    /// Mapped or only reserved.
    pub addresses: u64,
}

/// Signals every process of this pid namespace but ourselves. Refused unless we are its pid 1:
/// anywhere else, kill(2) with -1 reaches processes that are not of the call.
pub fn signal_all(signal: Signal) -> Result<(), Errno> {
    if std::process::id() != 1 {
        return Err(Errno::EPERM);
    }
    kill(Pid::from_raw(-1), signal)
}

/// All processes of a call at one moment.
#[derive(Clone, Debug, Default)]
pub struct ProcessSnapshot {
    /// The pid given out last in this namespace, read before the rest: while it is unchanged, no
    /// process and no thread was made.
    pub newest: Option<u32>,
    pub processes: BTreeMap<ProcessKey, Process>,
    pub recorder: Option<u32>,
}

impl ProcessSnapshot {
    pub fn now() -> Result<ProcessSnapshot, Errno> {
        // In this order, so that a process older than `newest` that is not listed has ended.
        let newest = text("/proc/loadavg")?
            .split_whitespace()
            .last()
            .and_then(|pid| pid.parse().ok());
        let mut snapshot = ProcessSnapshot {
            newest,
            ..ProcessSnapshot::default()
        };
        for entry in std::fs::read_dir("/proc").map_err(|e| errno(&e))? {
            let name = entry.map_err(|e| errno(&e))?.file_name();
            let Some(pid) = name
                .to_str()
                .and_then(|name| name.parse().ok())
                .filter(|pid| *pid != 1)
            else {
                continue;
            };
            match process(pid)? {
                // The recorder is the only child of the launcher that leads a session.
                Some((_, process)) if process.parent == 1 && process.session == pid => {
                    snapshot.recorder = Some(pid)
                }
                found => snapshot.processes.extend(found),
            }
        }
        Ok(snapshot)
    }

    pub fn faults(&self) -> u64 {
        self.processes.values().map(|process| process.faults).sum()
    }

    /// Whether what was read of stopped processes between this moment and `later` holds for one
    /// moment: none was made, none ended, and system calls under way faulted in little.
    pub fn is_still(&self, later: &ProcessSnapshot) -> bool {
        fn living(seen: &ProcessSnapshot) -> Vec<(u32, u64)> {
            seen.processes
                .iter()
                .filter(|(_, process)| !process.has_ended())
                .map(|(key, _)| *key)
                .collect()
        }
        self.newest.is_some()
            && self.newest == later.newest
            && living(self) == living(later)
            && !later.took_memory_since(self)
    }

    pub fn took_memory_since(&self, earlier: &ProcessSnapshot) -> bool {
        self.faults().saturating_sub(earlier.faults()) > LATE_FAULTS
    }

    /// The pids of the tool's processes: all but the init, our only child, which opens no files and
    /// shows none in /proc.
    pub fn of_the_tool(&self) -> Vec<u32> {
        self.processes
            .iter()
            .filter(|(_, process)| process.parent != 1)
            .map(|((pid, _), _)| *pid)
            .collect()
    }
}

/// CPU time (ms) and anonymous memory (bytes) that the living processes of the call show.
pub fn shown_now() -> Result<(u64, u64), Errno> {
    let mut cpu_ms = 0;
    let mut bytes = 0;
    for ((pid, _), process) in ProcessSnapshot::now()?.processes {
        cpu_ms += process.own_ms;
        bytes += resident(pid)?.unwrap_or_default().anonymous;
    }
    Ok((cpu_ms, bytes))
}

/// Errors of reading /proc of an ended process: not a failure.
pub fn gone(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(nix::libc::ENOENT | nix::libc::ESRCH)
    )
}

/// A text file of /proc; empty where its process has ended.
fn text(path: &str) -> Result<String, Errno> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(e) if gone(&e) => Ok(String::new()),
        Err(e) => Err(errno(&e)),
    }
}

/// How many lines of a /proc file are wanted, at most `most`. If the process ended: of the lines
/// read.
pub fn lines(path: &str, is_wanted: impl FnMut(&[u8]) -> bool, most: u64) -> Result<u64, Errno> {
    lines_at(AT_FDCWD, path, is_wanted, most)
}

/// As `lines`, of a file in an open folder.
pub fn lines_at(
    folder: impl AsFd,
    name: &str,
    mut is_wanted: impl FnMut(&[u8]) -> bool,
    most: u64,
) -> Result<u64, Errno> {
    let mut count = 0;
    let file = openat(
        folder,
        name,
        OFlag::O_RDONLY | OFlag::O_CLOEXEC,
        Mode::empty(),
    );
    let read = file.map_err(std::io::Error::from).and_then(|file| {
        let file = std::fs::File::from(file);
        for line in BufReader::with_capacity(16 << 10, file).split(b'\n') {
            count += u64::from(is_wanted(&line?));
            if count >= most {
                break;
            }
        }
        Ok(())
    });
    match read {
        Err(e) if !gone(&e) => Err(errno(&e)),
        _ => Ok(count),
    }
}

/// A process as it is now; `None` where it has ended.
pub fn process(pid: u32) -> Result<Option<(ProcessKey, Process)>, Errno> {
    Ok(stat(&format!("/proc/{pid}"))?.map(|(start, process)| ((pid, start), process)))
}

/// CPU time of a thread of ours, ms.
pub fn thread_ms(thread: Pid) -> u64 {
    stat(&format!("/proc/self/task/{thread}"))
        .ok()
        .flatten()
        .map_or(0, |(_, thread)| thread.own_ms)
}

/// The start and state of a process or thread, from its /proc folder.
fn stat(folder: &str) -> Result<Option<(u64, Process)>, Errno> {
    let text = text(&format!("{folder}/stat"))?;
    // The name may hold anything, so count from its closing parenthesis.
    let Some((_, rest)) = text.rsplit_once(')') else {
        return Ok(None);
    };
    let fields: Vec<u64> = rest
        .split_whitespace()
        .map(|f| f.parse().unwrap_or(0))
        .collect();
    let at = |n: usize| fields.get(n - 3).copied().unwrap_or(0);
    // Clock ticks are 10 ms in every Linux user interface (USER_HZ = 100).
    let ms = |n: usize| at(n) * 10;
    let process = Process {
        parent: at(4) as u32,
        session: at(6) as u32,
        threads: at(20),
        state: rest.trim_start().chars().next().unwrap_or('X'),
        faults: at(10) + at(12),
        own_ms: ms(14) + ms(15),
        waited_ms: ms(16) + ms(17),
    };
    Ok(Some((at(22), process)))
}

/// Memory that this process has mapped; pages that several share appear in the figures of each.
/// (Memory that no process would show cannot be made: `seccomp` and `view` refuse it.) `None` for
/// one that has ended or is ending.
pub fn resident(pid: u32) -> Result<Option<Memory>, Errno> {
    let text = status(pid)?;
    Ok(shows_memory(&text).then(|| Memory {
        pages: kib(&text, &["RssAnon:", "RssShmem:", "VmSwap:"]) * 1024,
        anonymous: kib(&text, &["RssAnon:"]) * 1024,
        own: kib(&text, &["HugetlbPages:", "VmPTE:"]) * 1024,
        files: kib(&text, &["RssFile:"]) * 1024,
        addresses: kib(&text, &["VmSize:"]) * 1024,
    }))
}

/// This process's share of the pages that it has mapped. The kernel walks all of them: some 10 ms
/// for each GiB. `None` for one that has ended or is ending.
pub fn proportional(pid: u32) -> Result<Option<u64>, Errno> {
    let text = text(&format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    // Unreadable, or the first thread has ended: all that is mapped counts, shared or not.
    if !text.lines().any(|line| line.starts_with("Pss_Anon:")) {
        return Ok(resident(pid)?.map(|memory| memory.pages));
    }
    Ok(Some(
        kib(&text, &["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]) * 1024,
    ))
}

/// How many mappings a process has; counting stops at `most`. Only threads show them once the first
/// one has ended.
pub fn mappings(pid: u32, most: u64) -> Result<u64, Errno> {
    let count = |folder: String| lines(&format!("{folder}/maps"), |_| true, most);
    let own = count(format!("/proc/{pid}"))?;
    if own > 0 {
        return Ok(own);
    }
    threads(pid).try_fold(0, |largest: u64, thread| Ok(largest.max(count(thread)?)))
}

/// False for a process that has ended or is exiting.
pub fn has_memory(pid: u32) -> Result<bool, Errno> {
    Ok(shows_memory(&status(pid)?))
}

/// Looks at the start of lines only: a line can contain the name of the process, which the process
/// chooses.
fn shows_memory(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("RssAnon:"))
}

/// The `status` of a process with the memory lines, which a first thread that ended lacks and the
/// other threads have.
fn status(pid: u32) -> Result<String, Errno> {
    let own = text(&format!("/proc/{pid}/status"))?;
    if shows_memory(&own) {
        return Ok(own);
    }
    let others = threads(pid).map(|thread| text(&format!("{thread}/status")));
    Ok(others
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .find(|text| shows_memory(text))
        .unwrap_or(own))
}

/// The /proc folder that shows a process's descriptors, and their number: the size of `fd` (Linux
/// 6.2), else of the table. A first thread that ended shows none; the others show all (`seccomp`
/// lets no thread have its own table).
pub fn files_of(pid: u32) -> (String, u64) {
    fn count(folder: &str) -> u64 {
        let size = std::fs::metadata(format!("{folder}/fd")).map_or(0, |meta| meta.len());
        fn table(folder: &str) -> u64 {
            let status = text(&format!("{folder}/status")).unwrap_or_default();
            status
                .lines()
                .find_map(|line| line.strip_prefix("FDSize:")?.trim().parse().ok())
                .unwrap_or(0)
        }
        if size == 0 { table(folder) } else { size }
    }
    let own = format!("/proc/{pid}");
    let mut folders = std::iter::once(own.clone())
        .chain(threads(pid))
        .map(|folder| (count(&folder), folder));
    folders
        .find(|(count, _)| *count > 0)
        .map_or((own, 0), |(count, folder)| (folder, count))
}

/// Kernel objects that were met: each is read once, however many processes share it.
pub struct Met {
    kind: Compared,
    /// In the order of kcmp(2).
    objects: Vec<KernelObject>,
}

impl Met {
    pub fn new(kind: Compared) -> Met {
        Met {
            kind,
            objects: Vec::new(),
        }
    }

    /// Whether this object was not met before; of tables the descriptor says nothing.
    pub fn is_new(&mut self, pid: u32, descriptor: u32) -> bool {
        let object = KernelObject { pid, descriptor };
        let Err(at) = self
            .objects
            .binary_search_by(|known| kcmp(self.kind, known, &object))
        else {
            return false;
        };
        self.objects.insert(at, object);
        true
    }
}

/// How often the first thread of a process was switched in; unchanged while it is stopped.
pub fn switches(pid: u32) -> u64 {
    switches_in(&text(&format!("/proc/{pid}/status")).unwrap_or_default())
}

fn switches_in(status: &str) -> u64 {
    let counts = status.lines().filter_map(|line| {
        line.split_once("voluntary_ctxt_switches:")?
            .1
            .trim()
            .parse::<u64>()
            .ok()
    });
    counts.sum()
}

/// A thread as it is now.
pub struct Thread {
    pub id: u32,
    /// One letter, as in proc(5).
    pub state: char,
    pub switches: u64,
    /// It was killed, or has no memory any more: none of its own code runs again.
    pub is_ending: bool,
}

/// All threads of the call but its init, which is our child.
pub fn threads_of_the_call() -> Result<Vec<Thread>, Errno> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").map_err(|e| errno(&e))? {
        let name = entry.map_err(|e| errno(&e))?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.filter(|pid| *pid != 1) else {
            continue;
        };
        for folder in threads(pid) {
            let status = text(&format!("{folder}/status"))?;
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
            if field("PPid:").is_some_and(|parent| parent.trim() == "1") {
                break;
            }
            let id = field("Pid:").and_then(|id| id.trim().parse().ok());
            let state = field("State:").and_then(|state| state.trim().chars().next());
            found.extend(id.zip(state).map(|(id, state)| Thread {
                id,
                state,
                switches: switches_in(&status),
                is_ending: is_killed(&status) || !shows_memory(&status),
            }));
        }
    }
    Ok(found)
}

/// Whether SIGKILL, which nothing blocks, is pending for a thread (proc_pid_status(5)).
fn is_killed(status: &str) -> bool {
    const SIGKILL: u64 = 1 << (nix::libc::SIGKILL - 1);
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.is_some_and(|mask| mask & SIGKILL != 0)
}

fn threads(pid: u32) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    entries.map(|entry| entry.path().display().to_string())
}

fn kib(text: &str, names: &[&str]) -> u64 {
    text.lines()
        .filter_map(|line: &str| {
            let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
            rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
        })
        .sum()
}
