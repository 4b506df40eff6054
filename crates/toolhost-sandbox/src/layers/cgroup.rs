//! Layer: cgroup. Counts and limits memory, processes and CPU of a call as a whole.
//!
//! Host side: makes a group and opens its files. Launcher side: puts the child into the group,
//! reads the counters. Where no group can be made the launcher samples instead (`sampler`), and
//! says so.

use crate::plan::{Plan, Step};
use crate::protocol::{Problem, ProblemKind, Version};
use nix::errno::Errno;
use nix::sys::uio::{pread, pwrite};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use toolhost_base::lock;

/// Where groups are made.
#[derive(Debug)]
pub struct Cgroups {
    version: Version,
    /// v1: the folders of memory, pids, cpuacct (counts CPU) and, if it is another hierarchy, cpu
    /// (distributes CPU). v2: one folder for all.
    folders: Vec<PathBuf>,
    /// The group above all calls of each principal, in the folder that distributes CPU. The kernel
    /// gives each new group the same weight. So principals have equal shares of the CPU, and the
    /// calls of each divide its share.
    principals: Mutex<HashMap<String, Weak<Folder>>>,
}

/// The folder of a group, which is removed when this is dropped.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Keeps it from sweeps; the kernel releases it when the host dies.
    _lock: File,
}

const FOLDER: &str = "toolhost";
/// v2: the leaf group of a host that had to leave the group it was given.
const LEAF: &str = "toolhost-host";
/// v2: controllers that must be on below a group. `cpu.stat` counts CPU time in every group without
/// a controller.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];

impl Cgroups {
    /// Finds the hierarchies this process may make groups in; removes what dead hosts left there.
    pub fn find() -> Option<Cgroups> {
        // With `cgroup.memory=nokmem` the kernel charges its own memory to no group, with
        // `nosocket` no buffers of connections. Sampling counts descriptors instead.
        let options = std::fs::read_to_string("/proc/cmdline").ok()?;
        let memory = options
            .split_whitespace()
            .filter_map(|option| option.strip_prefix("cgroup.memory="));
        if memory
            .flat_map(|flags| flags.split(','))
            .any(|flag| flag == "nokmem" || flag == "nosocket")
        {
            return None;
        }
        Cgroups::v1().map_or_else(Cgroups::v2, Cgroups::make_groups)
    }

    /// `None` where no group can be made: the folder may belong to another user.
    fn make_groups(self) -> Option<Cgroups> {
        for folder in &self.folders {
            std::fs::create_dir_all(folder).ok()?;
            sweep(folder);
        }
        self.make("", u64::MAX, 64).ok()?;
        Some(self)
    }

    fn v1() -> Option<Cgroups> {
        fn place(controller: &str) -> Option<PathBuf> {
            Some(own_group_v1(controller)?.join(FOLDER))
        }
        let cpu = place("cpuacct")?;
        let share = place("cpu").filter(|share| *share != cpu);
        let folders = [place("memory")?, place("pids")?, cpu]
            .into_iter()
            .chain(share)
            .collect();
        Some(Cgroups {
            version: Version::V1,
            folders,
            principals: Mutex::default(),
        })
    }

    /// Tries the root of the hierarchy first, for root, then our own group, where it was delegated
    /// to us.
    fn v2() -> Option<Cgroups> {
        let (mount, own) = own_group_v2()?;
        // A process that another toolhost started is in that host's leaf; groups are made beside
        // the leaf.
        let own = if own.ends_with(LEAF) {
            own.parent()?.to_owned()
        } else {
            own
        };
        [mount.clone(), own].iter().find_map(|parent| {
            let base = parent.join(FOLDER);
            if !enable_controllers(parent)
                || std::fs::create_dir_all(&base).is_err()
                || !enable_controllers(&base)
            {
                return None;
            }
            // Turns `cpu` on where the group above has it; at the root of the hierarchy that is the
            // machine's decision.
            for group in [parent, &base].into_iter().filter(|group| **group != mount) {
                let _ = std::fs::write(group.join("cgroup.subtree_control"), "+cpu");
            }
            Cgroups {
                version: Version::V2,
                folders: vec![base],
                principals: Mutex::default(),
            }
            .make_groups()
        })
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// One group with its limits, below that of its principal.
    pub fn make(&self, principal: &str, memory: u64, processes: u64) -> std::io::Result<Group> {
        let group = self.unlimited(self.of_principal(principal)?)?;
        group.limit(memory, processes)?;
        Ok(group)
    }

    fn of_principal(&self, principal: &str) -> std::io::Result<Arc<Folder>> {
        let mut principals = lock(&self.principals);
        if let Some(group) = principals.get(principal).and_then(Weak::upgrade) {
            return Ok(group);
        }
        let parent = self.folders.last().ok_or(std::io::ErrorKind::NotFound)?;
        let group = Arc::new(make_folder(parent)?);
        if self.version == Version::V2 {
            // Without a controller that a call needs, opening that controller's files fails.
            enable_controllers(&group.path);
            let _ = std::fs::write(group.path.join("cgroup.subtree_control"), "+cpu");
        }
        principals.retain(|_, group| group.strong_count() > 0);
        principals.insert(principal.to_owned(), Arc::downgrade(&group));
        Ok(group)
    }

    fn unlimited(&self, principal: Arc<Folder>) -> std::io::Result<Group> {
        let (_, others) = self
            .folders
            .split_last()
            .ok_or(std::io::ErrorKind::NotFound)?;
        let folders = others
            .iter()
            .chain([&principal.path])
            .map(|parent| make_folder(parent));
        let folders: Vec<_> = folders.collect::<std::io::Result<_>>()?;
        fn reads(folder: &Folder, name: &str) -> Result<File, std::io::Error> {
            File::open(folder.path.join(name))
        }
        fn writes(folder: &Folder, name: &str) -> Result<File, std::io::Error> {
            File::options().write(true).open(folder.path.join(name))
        }
        fn both(folder: &Folder, name: &str) -> Result<File, std::io::Error> {
            File::options()
                .read(true)
                .write(true)
                .open(folder.path.join(name))
        }
        let files = match folders.as_slice() {
            [memory, pids, cpu, share @ ..] => {
                let mut files = vec![
                    both(memory, "memory.max_usage_in_bytes")?,
                    reads(memory, "memory.oom_control")?,
                    reads(cpu, "cpuacct.usage")?,
                    reads(pids, "pids.events")?,
                ];
                for folder in [memory, pids, cpu].into_iter().chain(share) {
                    files.push(writes(folder, "tasks")?);
                }
                files
            }
            folders => {
                let all = folders.first().ok_or(std::io::ErrorKind::NotFound)?;
                // Writing resets the peak (Linux 6.12); before, it is the peak of all the
                // launcher's calls. Before 5.19 the file does not exist: /dev/null is read instead,
                // and no peak is reported.
                let peak = both(all, "memory.peak").or_else(|_| reads(all, "memory.peak"));
                vec![
                    peak.or_else(|_| File::open("/dev/null"))?,
                    reads(all, "memory.events")?,
                    reads(all, "cpu.stat")?,
                    reads(all, "pids.events")?,
                    writes(all, "cgroup.procs")?,
                ]
            }
        };
        Ok(Group {
            version: self.version,
            folders,
            files,
            _principal: principal,
        })
    }
}

/// v2: turns the controllers on for the groups below this one; false where they are not on.
///
/// The kernel refuses that to a group with processes of its own (cgroups(7), "no internal
/// processes"). A host that is the only process of a delegated group therefore moves itself to a
/// leaf first.
fn enable_controllers(group: &Path) -> bool {
    fn has_all(file: &str, group: &Path) -> bool {
        let on = std::fs::read_to_string(group.join(file)).unwrap_or_default();
        CONTROLLERS
            .iter()
            .all(|c| on.split_whitespace().any(|o| o == *c))
    }
    let switch = || {
        std::fs::write(
            group.join("cgroup.subtree_control"),
            CONTROLLERS.map(|c| format!("+{c}")).join(" "),
        )
    };
    if has_all("cgroup.controllers", group)
        && switch().is_err_and(|e| e.raw_os_error() == Some(nix::libc::EBUSY))
        && go_to_leaf(group).is_ok()
    {
        // Whether that helped is read below.
        let _ = switch();
    }
    // Read, not assumed: where somebody else turned them on, our own write may fail.
    has_all("cgroup.subtree_control", group)
}

/// Moves this process to a leaf if it is alone in the group: all would have to move, and others are
/// not ours.
fn go_to_leaf(group: &Path) -> std::io::Result<()> {
    let inside = std::fs::read_to_string(group.join("cgroup.procs"))?;
    if inside.trim() != std::process::id().to_string() {
        return Err(std::io::ErrorKind::ResourceBusy.into());
    }
    let leaf = group.join(LEAF);
    std::fs::create_dir_all(&leaf)?;
    std::fs::write(leaf.join("cgroup.procs"), "0")
}

/// The folder of this process's own group of a controller of v1.
fn own_group_v1(controller: &str) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let f: Vec<&str> = line.split(' ').collect();
        let fits = f.get(2) == Some(&"cgroup") && f.get(3)?.split(',').any(|o| o == controller);
        fits.then(|| f[1].to_owned())
    })?;
    Some(Path::new(&mount).join(own_groups().get(controller)?.trim_start_matches('/')))
}

/// Where v2 is mounted, and the folder of this process's own group there.
fn own_group_v2() -> Option<(PathBuf, PathBuf)> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let mut f = line.split(' ');
        let point = f.nth(1)?;
        (f.next() == Some("cgroup2")).then(|| PathBuf::from(point))
    })?;
    let own = mount.join(own_groups().get("")?.trim_start_matches('/'));
    Some((mount, own))
}

/// The most processes that are started for one call before its tool runs. Those of a refused call
/// have ended when the reason is sought, so a group without room for so many is the reason.
const CALL_PROCESSES: u64 = 12;

/// The group around this process that has no room for the processes of a call, in words.
pub fn full_group() -> Option<String> {
    let own = own_group_v1("pids").or_else(|| Some(own_group_v2()?.1))?;
    own.ancestors().find_map(|group| {
        fn number(file: &str, group: &Path) -> Option<u64> {
            std::fs::read_to_string(group.join(file))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        }
        let now = number("pids.current", group)?;
        let most = number("pids.max", group)?;
        let words = format!(
            "pids.max of the control group {} is {most}, and {now} are there",
            group.display()
        );
        (now + CALL_PROCESSES > most).then_some(words)
    })
}

/// This process's own groups, by controller; "" is v2.
fn own_groups() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut out = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        for controller in controllers.split(',') {
            out.insert(controller.to_owned(), path.to_owned());
        }
    }
    out
}

/// Groups of this host that are not removed yet.
static LEFT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Tries once to remove every group that is left over. The kernel keeps a group (EBUSY) in which a
/// process is still ending, so whoever begins a call or drops a group tries again. False: some are
/// left.
pub fn remove_left() -> bool {
    let mut left = lock(&LEFT);
    left.retain(|folder| {
        std::fs::remove_dir(folder).is_err_and(|e| e.raw_os_error() == Some(nix::libc::EBUSY))
    });
    left.is_empty()
}

/// Removes the groups below this one whose host is gone: their lock is free (flock(2)). A group
/// that still has processes in it stays. False: somebody holds the lock of this group itself.
fn sweep(parent: &Path) -> bool {
    // A host holds this lock, shared, while it has the group or makes one below it. If anybody
    // holds it, nothing is swept and nothing waits.
    let locked = File::open(parent).and_then(|parent| Ok(parent.try_lock().map(|()| parent)?));
    let Ok(_lock) = locked else { return false };
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && sweep(&entry.path()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
    true
}

/// Makes a group, with the lock that keeps it from sweeps.
fn make_folder(parent: &Path) -> std::io::Result<Folder> {
    // Hosts of several pid namespaces may share the hierarchy, so no name holds a pid.
    let path = parent.join(uuid::Uuid::now_v7().to_string());
    let _made_and_locked = lock_out_sweeps(parent)?;
    std::fs::create_dir(&path)?;
    let lock = File::open(&path)?;
    // Only a foreign process can hold the lock of a new folder, and then no host sweeps the folder
    // either.
    let _ = lock.try_lock_shared();
    Ok(Folder { path, _lock: lock })
}

/// Blocks sweeps until a new group is locked. A sweep is short, so a lock that is held longer is
/// foreign, and ignored.
fn lock_out_sweeps(parent: &Path) -> std::io::Result<File> {
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
    folders: Vec<Folder>,
    files: Vec<File>,
    /// Removed after this group, unless other calls of the principal have groups.
    _principal: Arc<Folder>,
}

impl Group {
    /// May only lower the memory limit: v1 refuses one above the limit of memory and swap, which is
    /// written second.
    fn limit(&self, memory: u64, processes: u64) -> std::io::Result<()> {
        // The kernel counts the init as well, which is not one of the tool's processes.
        let processes = processes.saturating_add(1).to_string();
        fn write(folder: &Folder, file: &str, value: &str) -> Result<(), std::io::Error> {
            std::fs::write(folder.path.join(file), value)
        }
        let bytes = memory.to_string();
        match self.folders.as_slice() {
            [memory, pids, ..] => {
                write(memory, "memory.limit_in_bytes", &bytes)?;
                // Absent where swap is not accounted.
                let _ = write(memory, "memory.memsw.limit_in_bytes", &bytes);
                // Swap is then neither counted nor limited, so none may be used.
                if !memory.path.join("memory.memsw.limit_in_bytes").exists() {
                    write(memory, "memory.swappiness", "0")?;
                }
                write(pids, "pids.max", &processes)
            }
            folders => {
                let all = folders.first().ok_or(std::io::ErrorKind::NotFound)?;
                write(all, "memory.max", &bytes)?;
                let _ = write(all, "memory.swap.max", "0");
                let _ = write(all, "memory.oom.group", "1");
                write(all, "pids.max", &processes)
            }
        }
    }

    /// Makes the kernel charge the buffers of TCP connections. v2 charges them as memory. v1
    /// charges them only if they have a limit of their own. At that limit sending waits, except for
    /// one page of each socket.
    pub fn charge_sockets(&self, memory: u64) -> std::io::Result<()> {
        let limit = self.folders[0].path.join("memory.kmem.tcp.limit_in_bytes");
        match self.version {
            Version::V1 => std::fs::write(limit, (memory / 4).to_string()),
            Version::V2 => Ok(()),
        }
    }

    /// CPU time of all processes of the group so far, ms. `None`: it cannot be read.
    pub fn cpu_ms(&self) -> Option<u64> {
        cpu_ms(self.version, self.files.get(2)?).ok()
    }

    /// Memory of the group now, bytes: of its processes, and of files in scratch and shared memory.
    pub fn memory_bytes(&self) -> Option<u64> {
        let name = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        let text = std::fs::read_to_string(self.folders.first()?.path.join(name)).ok()?;
        text.trim().parse().ok()
    }

    /// The files for the launcher, in the order that `Counters::from` takes.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.files.iter().map(AsFd::as_fd).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        lock(&LEFT).push(std::mem::take(&mut self.path));
        remove_left();
    }
}

/// A group on the launcher's side: its open files.
#[derive(Debug)]
pub struct Counters {
    version: Version,
    peak: OwnedFd,
    oom: OwnedFd,
    cpu: OwnedFd,
    pids: OwnedFd,
    joins: Vec<OwnedFd>,
    before: CgroupUsage,
}

/// Counters that only grow; a call is the difference.
#[derive(Clone, Copy, Debug, Default)]
pub struct CgroupUsage {
    pub oom_kills: u64,
    pub cpu_ms: u64,
    pub refused_processes: u64,
}

impl Counters {
    pub fn from(version: Version, files: Vec<OwnedFd>) -> Option<Counters> {
        let mut files = files.into_iter();
        let peak = files.next()?;
        let oom = files.next()?;
        let cpu = files.next()?;
        let pids = files.next()?;
        let joins: Vec<OwnedFd> = files.by_ref().take(3).collect();
        // The CPU group: the launcher enters it before it starts anything, so that a call has one
        // share of the CPU however many sessions it makes (sched(7), autogroups). The launcher
        // moves itself, because moving another process takes the kernel milliseconds. A launcher
        // with real-time priority, inherited from its host, may not enter: it has no share, but
        // keeps its priority.
        let _ = files.next().map(|share| pwrite(share, b"0", 0));
        (!joins.is_empty()).then_some(Counters {
            version,
            peak,
            oom,
            cpu,
            pids,
            joins,
            before: CgroupUsage::default(),
        })
    }

    /// First step of the child: everything after it is charged to the group.
    pub fn raise(&self, plan: &mut Plan) {
        for file in &self.joins {
            plan.add(
                "cgroup",
                Step::Write {
                    fd: file.as_raw_fd(),
                    data: b"0",
                },
            );
        }
    }

    pub fn begin(&mut self) -> Result<(), Problem> {
        self.before = self.totals()?;
        // A peak that cannot be reset is too high, never too low.
        let _ = pwrite(&self.peak, b"0", 0);
        Ok(())
    }

    /// What this call has used so far.
    pub fn read_usage(&self) -> Result<CgroupUsage, Problem> {
        let now = self.totals()?;
        Ok(CgroupUsage {
            oom_kills: now.oom_kills.saturating_sub(self.before.oom_kills),
            cpu_ms: now.cpu_ms.saturating_sub(self.before.cpu_ms),
            refused_processes: now
                .refused_processes
                .saturating_sub(self.before.refused_processes),
        })
    }

    pub fn peak(&self) -> Option<u64> {
        read(&self.peak).ok()?.trim().parse().ok()
    }

    /// An unreadable counter is an error, since a limit that is not read limits nothing.
    fn totals(&self) -> Result<CgroupUsage, Problem> {
        fn unread(errno: Errno) -> Problem {
            Problem::new(
                ProblemKind::Layer,
                "cgroup",
                "reading the group's counters",
                errno,
            )
        }
        let cpu_ms = cpu_ms(self.version, &self.cpu).map_err(unread)?;
        let oom_kills = field(&self.oom, "oom_kill ").map_err(unread)?;
        let refused_processes = field(&self.pids, "max").map_err(unread)?;
        Ok(CgroupUsage {
            oom_kills,
            cpu_ms,
            refused_processes,
        })
    }
}

fn cpu_ms(version: Version, file: impl AsFd) -> Result<u64, Errno> {
    match version {
        Version::V1 => Ok(field(file, "")? / 1_000_000),
        Version::V2 => Ok(field(file, "usage_usec")? / 1000),
    }
}

fn field(file: impl AsFd, name: &str) -> Result<u64, Errno> {
    let text = read(file)?;
    let value = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok());
    value.ok_or(Errno::ENODATA)
}

fn read(file: impl AsFd) -> Result<String, Errno> {
    let mut buffer = [0u8; 1024];
    let length = pread(file, &mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
