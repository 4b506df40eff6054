//! Wall: cgroup. Counts and limits memory, processes and CPU of a call as a whole.
//!
//! Host side: makes a group and opens its files. Launcher side: puts the child into the group, reads the counters.
//! Where no group can be made the launcher samples instead (`sampler`), and says so.

use crate::sandbox::plan::{Plan, Step};
use crate::sandbox::problem::Problem;
use nix::errno::Errno;
use nix::sys::uio::{pread, pwrite};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    V1,
    V2,
}

/// Where groups are made: for v1 one folder for each controller, for v2 one for all.
#[derive(Clone, Debug)]
pub struct Cgroups {
    version: Version,
    memory: PathBuf,
    processes: PathBuf,
    cpu: PathBuf,
    /// v1: the folder of `cpu`, which shares CPU out, where it is not that of `cpuacct`, which counts it.
    share: Option<PathBuf>,
}

const FOLDER: &str = "toolhost";
/// v2: the leaf group of a host that had to leave the group it was given.
const LEAF: &str = "toolhost-host";
/// v2: controllers that must be on below a group. `cpu.stat` counts CPU time in every group without a controller.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];

impl Cgroups {
    /// Finds the hierarchies this process may make groups in; removes what dead hosts left there.
    pub fn find() -> Option<Cgroups> {
        // With `cgroup.memory=nokmem` the kernel charges its own memory to no group, with `nosocket` no buffers of
        // connections; sampling does count descriptors.
        let options = std::fs::read_to_string("/proc/cmdline").ok()?;
        let memory = options.split_whitespace().filter_map(|option| option.strip_prefix("cgroup.memory="));
        if memory.flat_map(|flags| flags.split(',')).any(|flag| flag == "nokmem" || flag == "nosocket") {
            return None;
        }
        let found = Cgroups::v1().or_else(Cgroups::v2)?;
        for folder in found.folders() {
            std::fs::create_dir_all(folder).ok()?;
            sweep(folder);
        }
        found.make_probe().then_some(found)
    }

    fn v1() -> Option<Cgroups> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let own = own_groups();
        let place = |controller: &str| -> Option<PathBuf> {
            let mount = mounts.lines().find_map(|line| {
                let f: Vec<&str> = line.split(' ').collect();
                let fits = f.get(2) == Some(&"cgroup") && f.get(3)?.split(',').any(|o| o == controller);
                fits.then(|| f[1].to_owned())
            })?;
            let own = own.get(controller)?.trim_start_matches('/');
            Some(Path::new(&mount).join(own).join(FOLDER))
        };
        let cpu = place("cpuacct")?;
        let share = place("cpu").filter(|share| *share != cpu);
        Some(Cgroups { version: Version::V1, memory: place("memory")?, processes: place("pids")?, cpu, share })
    }

    /// Tries the root of the hierarchy first, for root, then our own group, where it was delegated to us.
    fn v2() -> Option<Cgroups> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().find_map(|line| {
            let mut f = line.split(' ');
            let point = f.nth(1)?;
            (f.next() == Some("cgroup2")).then(|| PathBuf::from(point))
        })?;
        let own = own_groups();
        let own = mount.join(own.get("")?.trim_start_matches('/'));
        // A process that another toolhost started is in that host's leaf; groups are made beside the leaf.
        let own = if own.ends_with(LEAF) { own.parent()?.to_owned() } else { own };
        [mount.clone(), own].iter().find_map(|parent| {
            let base = parent.join(FOLDER);
            if !hand_down(parent) || std::fs::create_dir_all(&base).is_err() || !hand_down(&base) {
                return None;
            }
            // Turns `cpu` on where the group above has it; at the root of the hierarchy that is the machine's decision.
            for group in [parent, &base].into_iter().filter(|group| **group != mount) {
                let _ = std::fs::write(group.join("cgroup.subtree_control"), "+cpu");
            }
            let (memory, processes) = (base.clone(), base.clone());
            let found = Cgroups { version: Version::V2, memory, processes, cpu: base, share: None };
            // The folder may exist already and belong to another user.
            found.make_probe().then_some(found)
        })
    }

    pub fn version(&self) -> Version {
        self.version
    }

    fn folders(&self) -> Vec<&PathBuf> {
        match self.version {
            Version::V1 => [&self.memory, &self.processes, &self.cpu].into_iter().chain(&self.share).collect(),
            Version::V2 => vec![&self.memory],
        }
    }

    fn make_probe(&self) -> bool {
        self.make(1 << 30, 64).is_ok()
    }

    /// One group with its limits.
    pub fn make(&self, memory: u64, processes: u64) -> std::io::Result<Group> {
        // Hosts of several pid namespaces may share the hierarchy, so no name holds a pid.
        let name = uuid::Uuid::now_v7().to_string();
        let mut group =
            Group { version: self.version, folders: Vec::new(), files: Vec::new(), locks: Vec::new(), share: None };
        for parent in self.folders() {
            let folder = parent.join(&name);
            let _made_and_locked = while_nobody_sweeps(parent)?;
            std::fs::create_dir(&folder)?;
            group.folders.push(folder.clone());
            let lock = File::open(&folder)?;
            // Only a foreign process can hold the lock of a new folder, and then no host sweeps the folder either.
            let _ = lock.try_lock();
            group.locks.push(lock);
        }
        // The kernel counts the init as well, which is none of the tool's processes.
        let processes = processes.saturating_add(1);
        let (m, p, c) = (self.memory.join(&name), self.processes.join(&name), self.cpu.join(&name));
        let write = |file: PathBuf, value: String| std::fs::write(file, value);
        let open = |file: PathBuf, write: bool| {
            OpenOptions::new()
                .read(!write || file.ends_with("memory.max_usage_in_bytes"))
                .write(write)
                .open(file)
                .map(OwnedFd::from)
        };
        match self.version {
            Version::V1 => {
                write(m.join("memory.limit_in_bytes"), memory.to_string())?;
                // Absent where swap is not accounted.
                let _ = write(m.join("memory.memsw.limit_in_bytes"), memory.to_string());
                // Swap is then neither counted nor limited, so none may be used.
                if !m.join("memory.memsw.limit_in_bytes").exists() {
                    write(m.join("memory.swappiness"), "0".to_owned())?;
                }
                write(p.join("pids.max"), processes.to_string())?;
                group.share = self.share.as_ref().map(|c| open(c.join(&name).join("tasks"), true)).transpose()?;
                group.files.push(open(m.join("memory.max_usage_in_bytes"), true)?);
                group.files.push(open(m.join("memory.oom_control"), false)?);
                group.files.push(open(c.join("cpuacct.usage"), false)?);
                group.files.push(open(p.join("pids.events"), false)?);
                for folder in [&m, &p, &c] {
                    group.files.push(open(folder.join("tasks"), true)?);
                }
            }
            Version::V2 => {
                write(m.join("memory.max"), memory.to_string())?;
                let _ = write(m.join("memory.swap.max"), "0".to_owned());
                let _ = write(m.join("memory.oom.group"), "1".to_owned());
                write(p.join("pids.max"), processes.to_string())?;
                // Writing resets the peak (Linux 6.12); before, it is the peak of all the launcher's calls. Before 5.19
                // the file does not exist: /dev/null is read instead, and no peak is reported.
                let peak = m.join("memory.peak");
                let both = OpenOptions::new().read(true).write(true).open(&peak).map(OwnedFd::from);
                let peak = both.or_else(|_| open(peak, false)).or_else(|_| open("/dev/null".into(), false))?;
                group.files.push(peak);
                group.files.push(open(m.join("memory.events"), false)?);
                group.files.push(open(c.join("cpu.stat"), false)?);
                group.files.push(open(p.join("pids.events"), false)?);
                group.files.push(open(m.join("cgroup.procs"), true)?);
            }
        }
        Ok(group)
    }
}

/// v2: turns the controllers on for the groups below this one; false where they are not on.
///
/// The kernel refuses that to a group with processes of its own (cgroups(7), "no internal processes"), which a
/// delegated group is when its one process is this host. Then the host goes to a leaf first.
fn hand_down(group: &Path) -> bool {
    let has_all = |file: &str| {
        let on = std::fs::read_to_string(group.join(file)).unwrap_or_default();
        CONTROLLERS.iter().all(|c| on.split_whitespace().any(|o| o == *c))
    };
    let switch =
        || std::fs::write(group.join("cgroup.subtree_control"), CONTROLLERS.map(|c| format!("+{c}")).join(" "));
    if has_all("cgroup.controllers")
        && switch().is_err_and(|e| e.raw_os_error() == Some(nix::libc::EBUSY))
        && go_to_leaf(group).is_ok()
    {
        // Whether that helped is read below.
        let _ = switch();
    }
    // Read, not assumed: where somebody else turned them on, our own write may fail.
    has_all("cgroup.subtree_control")
}

/// Moves this process to a leaf if it is alone in the group: others are not ours to move, and would have to go as well.
fn go_to_leaf(group: &Path) -> std::io::Result<()> {
    let inside = std::fs::read_to_string(group.join("cgroup.procs"))?;
    if inside.trim() != std::process::id().to_string() {
        return Err(std::io::ErrorKind::ResourceBusy.into());
    }
    let leaf = group.join(LEAF);
    std::fs::create_dir_all(&leaf)?;
    std::fs::write(leaf.join("cgroup.procs"), "0")
}

/// This process's own groups, by controller; "" is v2.
fn own_groups() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut out = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        for controller in controllers.split(',') {
            out.insert(controller.to_owned(), path.to_owned());
        }
    }
    out
}

/// Removes a group, with retries: killed processes leave it a moment after they were reaped.
fn remove(folder: &Path, tries: u32) {
    for _ in 0..tries {
        match std::fs::remove_dir(folder) {
            Err(e) if e.raw_os_error() == Some(nix::libc::EBUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            _ => return,
        }
    }
}

/// Removes groups whose host is gone: nobody holds their lock (flock(2)). A group that still has processes in it stays.
fn sweep(parent: &Path) {
    // A host holds this lock, shared, while it makes a group. If anybody holds it, nothing is swept and nothing waits.
    let Ok(_held) = File::open(parent).and_then(|parent| Ok(parent.try_lock().map(|()| parent)?)) else { return };
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let group = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if group && File::open(entry.path()).is_ok_and(|group| group.try_lock().is_ok()) {
            remove(&entry.path(), 4);
        }
    }
}

/// Keeps sweeps out while a new group has no lock yet. A sweep is short, so a lock that stays is not a host's: ignored.
fn while_nobody_sweeps(parent: &Path) -> std::io::Result<File> {
    let parent = File::open(parent)?;
    for _ in 0..20 {
        if parent.try_lock_shared().is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(parent)
}

/// One group on the host's side; dropped after its launcher is gone.
#[derive(Debug)]
pub struct Group {
    version: Version,
    folders: Vec<PathBuf>,
    files: Vec<OwnedFd>,
    /// Held as long as the group; the kernel releases them when the host dies.
    locks: Vec<File>,
    share: Option<OwnedFd>,
}

impl Group {
    /// Moves the launcher into the CPU group before it starts anything, so that a call has one share of the CPU however
    /// many sessions it makes (sched(7), autogroups). The kernel refuses this for a host with real-time priority; what
    /// such a host starts has no share, but keeps its priority.
    pub fn share(&self, launcher: u32) {
        let _ = self.share.as_ref().map(|tasks| pwrite(tasks, launcher.to_string().as_bytes(), 0));
    }

    /// Has the buffers of TCP connections charged. v2 charges them as memory. v1 has a limit for them alone, at which
    /// sending waits, but for a page of each socket; without that limit it charges nothing.
    pub fn charge_sockets(&self, memory: u64) -> std::io::Result<()> {
        let limit = self.folders[0].join("memory.kmem.tcp.limit_in_bytes");
        match self.version {
            Version::V1 => std::fs::write(limit, (memory / 4).to_string()),
            Version::V2 => Ok(()),
        }
    }

    /// The files for the launcher, in the order that `Counters::from` takes.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.files.iter().map(AsFd::as_fd).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in &self.folders {
            remove(folder, 200);
        }
    }
}

/// The same group on the launcher's side.
#[derive(Debug)]
pub struct Counters {
    version: Version,
    peak: OwnedFd,
    oom: OwnedFd,
    cpu: OwnedFd,
    pids: OwnedFd,
    joins: Vec<OwnedFd>,
    before: Seen,
}

/// Counters that only grow; a call is the difference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub oom_kills: u64,
    pub cpu_ms: u64,
    pub refused_processes: u64,
}

impl Counters {
    pub fn from(version: Version, files: Vec<OwnedFd>) -> Option<Counters> {
        let mut files = files.into_iter();
        let (peak, oom, cpu, pids) = (files.next()?, files.next()?, files.next()?, files.next()?);
        let joins: Vec<OwnedFd> = files.collect();
        (!joins.is_empty()).then_some(Counters { version, peak, oom, cpu, pids, joins, before: Seen::default() })
    }

    /// First step of the child: everything after it is charged to the group.
    pub fn raise(&self, plan: &mut Plan) {
        for file in &self.joins {
            plan.add("cgroup", Step::Write { fd: file.as_raw_fd(), data: b"0" });
        }
    }

    pub fn begin(&mut self) -> Result<(), Problem> {
        self.before = self.totals()?;
        // A peak that cannot be reset is too high, never too low.
        let _ = pwrite(&self.peak, b"0", 0);
        Ok(())
    }

    /// What this call has used so far.
    pub fn seen(&self) -> Result<Seen, Problem> {
        let now = self.totals()?;
        Ok(Seen {
            oom_kills: now.oom_kills.saturating_sub(self.before.oom_kills),
            cpu_ms: now.cpu_ms.saturating_sub(self.before.cpu_ms),
            refused_processes: now.refused_processes.saturating_sub(self.before.refused_processes),
        })
    }

    pub fn peak(&self) -> Option<u64> {
        read(&self.peak).ok()?.trim().parse().ok()
    }

    /// An unreadable counter is an error, since a limit that is not read holds nobody.
    fn totals(&self) -> Result<Seen, Problem> {
        let unread = |errno| Problem { wall: "cgroup", what: "reading the group's counters".into(), errno };
        let field = |file: &OwnedFd, name: &str| {
            let text = read(file).map_err(unread)?;
            let value = text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok());
            value.ok_or(unread(Errno::ENODATA))
        };
        let cpu_ms = match self.version {
            Version::V1 => field(&self.cpu, "")? / 1_000_000,
            Version::V2 => field(&self.cpu, "usage_usec")? / 1000,
        };
        let (oom_kills, refused_processes) = (field(&self.oom, "oom_kill ")?, field(&self.pids, "max")?);
        Ok(Seen { oom_kills, cpu_ms, refused_processes })
    }
}

fn read(file: &OwnedFd) -> Result<String, Errno> {
    let mut buffer = [0u8; 1024];
    let length = pread(file, &mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
