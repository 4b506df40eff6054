//! The ready processes of a host. Each serves one call, and only one whose confinement is equal to
//! what it was started for.

use super::call::Ready;
use super::idle_memory::{self, HeldMemory};
use crate::base::mask::Hidden;
use crate::base::{lock, millis, text};
use crate::egress::protocol::Served;
use crate::packages::store::EnvironmentLease;
use crate::policy::{Access, Area, Program, ReadFile, Shape};
use crate::quantity::MIB;
use crate::sandbox::{Pipes, Spec};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use walkdir::{DirEntry, WalkDir};

/// Most memory of all together, unless the host's configuration says otherwise.
const READY_BYTES: u64 = 512 * MIB;
/// Most ready processes of a host.
pub const MAX_WAITING: usize = 32;
/// Most MCP servers of a host.
pub const MAX_SERVERS: usize = 64;
/// Most files of a tool that are looked at before each call.
const MAX_FILES: usize = 1000;
/// Most of the log of a process that ended early, bytes.
const MAX_LAST_WORDS: usize = 4096;

/// The state of the files that code of a shape can come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnFiles {
    /// Over the path, inode and times of each.
    hash: u64,
    /// When one changed last: seconds and nanoseconds.
    pub latest: (i64, i64),
}

/// What a process was started for.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadyKey {
    pub spec: Spec,
    pub served: Option<Served>,
    pub shape: Arc<Shape>,
    pub script: Option<ReadFile>,
    pub env: Hidden<BTreeMap<String, String>>,
    pub secrets: Hidden<BTreeMap<String, String>>,
    /// The digest of tool, policies and script.
    pub digest: String,
    pub files: OwnFiles,
}

/// A process that waits for its call.
#[derive(Debug)]
pub struct Waiting {
    pub key: ReadyKey,
    pub ready: Ready,
    pub pipes: Pipes,
    pub since: Instant,
    pub began: String,
    /// Keeps its packages in the store.
    pub environment: Option<EnvironmentLease>,
}

/// A ready process, for operators.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadyProcess {
    /// In lists, beside the phases of calls.
    pub phase: &'static str,
    pub tool: String,
    pub began: String,
    pub waited_ms: u64,
    pub memory_bytes: u64,
}

/// A process that ended before its call came.
#[derive(Clone, Debug)]
pub struct EarlyEnd {
    pub tool: String,
    pub digest: String,
    /// The last line that it wrote to stderr.
    pub last_line: String,
}

/// All ready processes of this host.
#[derive(Debug)]
pub struct WaitingPool {
    /// The oldest first. `None`: the host is drained.
    waiting: Mutex<Option<Vec<Waiting>>>,
    /// Most memory of all together.
    pub max_bytes: u64,
}

impl Default for WaitingPool {
    fn default() -> WaitingPool {
        WaitingPool {
            waiting: Mutex::new(Some(Vec::new())),
            max_bytes: READY_BYTES,
        }
    }
}

impl WaitingPool {
    /// A process that was started for exactly this.
    pub fn take(&self, key: &ReadyKey) -> Option<Waiting> {
        let mut waiting = lock(&self.waiting);
        let all = waiting.as_mut()?;
        let at = all
            .iter()
            .position(|it| it.key == *key && it.ready.waits())?;
        Some(all.remove(at))
    }

    pub fn put(&self, started: Waiting) {
        if let Some(waiting) = &mut *lock(&self.waiting) {
            waiting.push(started);
        }
        self.bound();
    }

    /// Ends those of the same tool that were started for anything else, and counts the others.
    /// `None`: the host is drained.
    pub fn keep_equal(&self, key: &ReadyKey) -> Option<usize> {
        let tool = &key.shape.tool;
        self.remove(|it| it.key.shape.tool == *tool && it.key != *key);
        let waiting = lock(&self.waiting);
        Some(waiting.as_ref()?.iter().filter(|it| it.key == *key).count())
    }

    /// Ends what waited long enough or whose files changed, and the oldest where all together have
    /// too much memory. Returns those that ended by themselves.
    pub fn sweep(&self) -> Vec<EarlyEnd> {
        let ended = self.remove(|it| !it.ready.waits());
        let mut shapes: Vec<(Arc<Shape>, OwnFiles)> = Vec::new();
        for it in lock(&self.waiting).iter().flatten() {
            shapes.push((it.key.shape.clone(), it.key.files));
        }
        // Without the lock: a file system may take long to answer.
        shapes.retain(|(shape, files)| own_files(shape) != Some(*files));
        self.remove(|it| {
            let idle_ms = it.key.shape.ready.as_ref().map_or(0, |grant| grant.idle_ms);
            it.since.elapsed() >= Duration::from_millis(idle_ms)
                || shapes
                    .iter()
                    .any(|(shape, _)| Arc::ptr_eq(shape, &it.key.shape))
        });
        self.bound();
        let ends = ended.into_iter().map(|it| EarlyEnd {
            last_line: it.last_line(),
            tool: it.key.shape.tool.clone(),
            digest: it.key.digest,
        });
        ends.collect()
    }

    /// Ends those that were started for none of these digests.
    pub fn keep(&self, digests: &BTreeSet<String>) {
        self.remove(|it| !digests.contains(&it.key.digest));
    }

    /// Ends all, and starts no more.
    pub fn close(&self) {
        let all = lock(&self.waiting).take();
        drop(all);
    }

    /// Ends all for now: their ids are needed, or they are most likely gone.
    pub fn clear(&self) {
        self.remove(|_| true);
    }

    pub fn list(&self) -> Vec<ReadyProcess> {
        let waiting = lock(&self.waiting);
        let shown = waiting.iter().flatten().map(|it| ReadyProcess {
            phase: "ready",
            tool: it.key.shape.tool.clone(),
            began: it.began.clone(),
            waited_ms: millis(it.since.elapsed()),
            memory_bytes: it.ready.launcher.memory_bytes(),
        });
        shown.collect()
    }

    fn remove(&self, goes: impl Fn(&mut Waiting) -> bool) -> Vec<Waiting> {
        let mut waiting = lock(&self.waiting);
        waiting
            .iter_mut()
            .flat_map(|all| all.extract_if(.., |it| goes(it)))
            .collect()
    }

    /// Ends the oldest until the others are few enough, and of the tool that has most until they
    /// fit into the memory.
    fn bound(&self) {
        let mut gone = Vec::new();
        if let Some(waiting) = &mut *lock(&self.waiting) {
            gone.extend(waiting.drain(..waiting.len().saturating_sub(MAX_WAITING)));
            let held = waiting.iter().enumerate().map(|(at, it)| HeldMemory {
                owner: it.key.shape.tool.clone(),
                since: it.since,
                bytes: it.ready.launcher.memory_bytes(),
                what: at,
            });
            let mut over = idle_memory::too_much(held.collect(), self.max_bytes);
            over.sort_unstable();
            gone.extend(over.into_iter().rev().map(|at| waiting.remove(at)));
        }
    }
}

/// The files that code of this shape can come from: the interpreter, and what the manifest names
/// relative to itself. Absolute paths are data. `None`: there are too many.
pub fn own_files(shape: &Shape) -> Option<OwnFiles> {
    let Program::Path(program) = &shape.runtime.program else {
        return None;
    };
    let own = shape
        .grants
        .iter()
        .filter(|grant| grant.access == Access::Read && !grant.asked.starts_with('/'));
    let walks = own.map(|grant| match &grant.area {
        Area::Tree(tree) => WalkDir::new(tree),
        Area::File(file) => WalkDir::new(file),
        Area::Names { folder, .. } => WalkDir::new(folder).max_depth(1),
    });
    let single = [Some(program), shape.script.as_ref()].into_iter().flatten();
    let mut files = OwnFiles::default();
    let mut count = 0;
    for walk in walks.chain(single.map(WalkDir::new)) {
        let walk = walk.into_iter();
        for entry in walk.filter_entry(|it| !shape.written.iter().any(|area| area.holds(it.path())))
        {
            files.add(&entry.ok()?)?;
            count += 1;
            if count > MAX_FILES {
                return None;
            }
        }
    }
    Some(files)
}

impl OwnFiles {
    /// Adds a file, in any order.
    fn add(&mut self, entry: &DirEntry) -> Option<()> {
        let facts = entry.metadata().ok()?;
        let changed = (facts.ctime(), facts.ctime_nsec());
        let mut hasher = DefaultHasher::new();
        (entry.path(), facts.ino(), changed).hash(&mut hasher);
        self.hash = self.hash.wrapping_add(hasher.finish());
        self.latest = self.latest.max(changed);
        Some(())
    }
}

impl Waiting {
    /// The last line that it wrote to its log, unless it has a secret that it could have written.
    fn last_line(&self) -> String {
        let mut variables = self.key.shape.env.values();
        if !self.key.env.is_empty() || variables.any(|it| it.host().is_some()) {
            return String::new();
        }
        let mut buffer = [0; MAX_LAST_WORDS];
        let read = nix::unistd::read(&self.pipes.log, &mut buffer).unwrap_or(0);
        let all = String::from_utf8_lossy(&buffer[..read]);
        let last = all.lines().rev().find(|line| !line.trim().is_empty());
        text::printable(&text::head(last.unwrap_or_default(), 200))
    }
}
