//! Tells a server that its tools or policies changed. What a tool may write is not watched, so that no running tool
//! causes a reload.

use super::settings::Settings;
use crate::base::lock;
use crate::manifest::Language;
use crate::policy;
use crate::registry::{Snapshot, is_manifest_file};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, statfs};
use notify::event::ModifyKind;
use notify::{Config, Event, EventKind, PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// So long nothing more changes before the change is told, and at the latest after that.
const QUIET: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(2);
/// How often files are looked at where the kernel does not tell.
const POLLED: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(10);
/// File systems where others change files without a word of this kernel: SMB 2, CIFS, 9P, Ceph, AFS.
const REMOTE: [u32; 5] = [0xfe53_4d42, 0xff53_4d42, 0x0102_1997, 0x00c3_6400, 0x5346_414f];

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// As the kernel tells, else by looking every two seconds
    Auto,
    /// By looking every two seconds
    Poll,
    /// Only at a HUP
    Off,
}

/// What counts as a change.
#[derive(Default)]
struct Scope {
    snapshot: Arc<Snapshot>,
    /// Folders of tools, and of policies.
    folders: BTreeSet<PathBuf>,
    /// What was named: folders that may come and go, a policy file.
    named: BTreeSet<PathBuf>,
    /// Folders that went away: who has their names now is not watched yet.
    gone: BTreeSet<PathBuf>,
}

impl Scope {
    fn counts(&mut self, event: &Event) -> bool {
        let moved = matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
        if moved {
            let gone = event.paths.iter().filter(|path| self.folders.contains(*path));
            self.gone.extend(gone.cloned());
        }
        let appears = moved || event.kind.is_create();
        event.need_rescan() || !event.kind.is_access() && event.paths.iter().any(|path| self.concerns(path, appears))
    }

    /// `appears`: or goes. What a tool may write, or could, is never read.
    fn concerns(&self, path: &Path, appears: bool) -> bool {
        if self.named.contains(path) {
            return appears || !path.is_dir();
        }
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
        let ours = path.parent().is_some_and(|folder| self.folders.contains(folder)) || self.folders.contains(path);
        if !ours || name.starts_with('.') || self.snapshot.written.by(path).is_some() {
            return false;
        }
        let script = || !Language::of_file_name(name).is_empty();
        is_manifest_file(name)
            || policy::is_policy_file(name)
            || appears && (self.folders.contains(path) || script() || path.is_dir())
    }
}

pub struct Watch {
    scope: Arc<Mutex<Scope>>,
    watcher: Option<Box<dyn Watcher + Send>>,
    watched: BTreeSet<PathBuf>,
    polls: bool,
    changes: mpsc::Receiver<()>,
    tell: mpsc::Sender<()>,
}

impl Watch {
    pub fn new(mode: Mode, settings: &Settings) -> Watch {
        let (tell, changes) = mpsc::channel(1);
        let polls = mode == Mode::Poll || named(settings).iter().any(|path| is_remote(path));
        let mut watch = Watch { scope: Arc::default(), watcher: None, watched: BTreeSet::new(), polls, changes, tell };
        if mode != Mode::Off {
            watch.begin();
        }
        watch
    }

    /// In words, for the log.
    pub fn describe(&self) -> String {
        match (&self.watcher, self.polls) {
            (None, _) => "tools and policies are read anew at a HUP alone".to_owned(),
            (_, true) => format!("{} folders are looked at every {} s", self.watched.len(), POLLED.as_secs()),
            (_, false) => format!("{} folders are watched", self.watched.len()),
        }
    }

    /// Makes a watcher that watches nothing yet.
    fn begin(&mut self) {
        let told = |scope: Arc<Mutex<Scope>>, tell: mpsc::Sender<()>| {
            move |event: notify::Result<Event>| {
                if event.is_ok_and(|event| lock(&scope).counts(&event)) {
                    // One that waits to be heard says the same.
                    let _ = tell.try_send(());
                }
            }
        };
        let hears = || told(self.scope.clone(), self.tell.clone());
        let kernel = || -> Option<Box<dyn Watcher + Send>> {
            Some(Box::new(RecommendedWatcher::new(hears(), Config::default()).ok()?))
        };
        let looks = || -> Option<Box<dyn Watcher + Send>> {
            Some(Box::new(PollWatcher::new(hears(), Config::default().with_poll_interval(POLLED)).ok()?))
        };
        let watcher = if self.polls { None } else { kernel() };
        self.polls = watcher.is_none();
        self.watcher = watcher.or_else(looks);
        self.watched.clear();
    }

    /// Watches what was looked at for this snapshot, which was begun at `since`. True: something changed there before it was
    /// watched.
    pub fn look_at(&mut self, settings: &Settings, snapshot: Arc<Snapshot>, since: SystemTime) -> bool {
        if self.watcher.is_none() {
            return false;
        }
        let named = named(settings);
        let mut folders: BTreeSet<PathBuf> =
            snapshot.folders.iter().filter(|folder| snapshot.written.by(folder).is_none()).cloned().collect();
        folders.extend(Some(settings.policy_path()).filter(|path| path.is_dir()));
        // What is not there yet comes in the nearest folder that is.
        let above = named.iter().filter_map(|path| path.ancestors().skip(1).find(|above| above.is_dir()));
        let wanted: BTreeSet<PathBuf> = folders.iter().cloned().chain(above.map(Path::to_path_buf)).collect();
        let gone = {
            let mut scope = lock(&self.scope);
            *scope = Scope { snapshot: snapshot.clone(), folders, named, gone: std::mem::take(&mut scope.gone) };
            std::mem::take(&mut scope.gone)
        };
        let stale: Vec<PathBuf> =
            self.watched.iter().filter(|path| gone.contains(*path) || !wanted.contains(*path)).cloned().collect();
        for path in stale {
            self.watched.remove(&path);
            // It is gone from there in any case.
            let _ = self.watcher.as_mut().map(|watcher| watcher.unwatch(&path));
        }
        let before = self.watched.clone();
        if !self.add(&wanted) {
            tracing::warn!("this user may watch no more folders (inotify): they are looked at instead");
            self.polls = true;
            self.begin();
            self.add(&wanted);
        }
        changed_since(since, &self.watched.difference(&before).cloned().collect(), &snapshot)
    }

    /// False: the kernel takes no more of them.
    fn add(&mut self, wanted: &BTreeSet<PathBuf>) -> bool {
        let Some(watcher) = &mut self.watcher else { return true };
        for path in wanted.difference(&self.watched.clone()) {
            match watcher.watch(path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(path.clone());
                }
                Err(full) if !self.polls && matches!(full.kind, notify::ErrorKind::MaxFilesWatch) => return false,
                // It went away; the folder above tells when it comes back.
                Err(_) => {}
            }
        }
        true
    }

    /// Waits for a change, and until nothing changes any more.
    pub async fn changed(&mut self) {
        self.changes.recv().await;
        let latest = Instant::now() + LATEST;
        while let Ok(Some(())) = timeout_at(latest.min(Instant::now() + QUIET), self.changes.recv()).await {}
    }
}

/// Folders of tools, and the policies.
fn named(settings: &Settings) -> BTreeSet<PathBuf> {
    settings.scanned().into_iter().chain([settings.policy_path()]).collect()
}

fn is_remote(path: &Path) -> bool {
    let there = path.ancestors().find_map(|above| statfs(above).ok());
    let known = |kind: FsType| {
        let number = u32::try_from(kind.0 & 0xffff_ffff).unwrap_or_default();
        [NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, FUSE_SUPER_MAGIC].contains(&kind) || REMOTE.contains(&number)
    };
    there.is_some_and(|there| known(there.filesystem_type()))
}

/// Whether one of these folders, or a definition in it, changed since then. Folders above what was named are among them:
/// what was not there when it was read may have come before they were watched.
fn changed_since(since: SystemTime, folders: &BTreeSet<PathBuf>, snapshot: &Snapshot) -> bool {
    // Times of files are a tick of the kernel behind.
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(TICK);
    let since = (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), i64::from(since.subsec_nanos()));
    let policies = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let policies = policies.filter(|entry| entry.file_name().to_str().is_some_and(policy::is_policy_file));
    let definitions = snapshot.reports.iter().map(|report| report.path.clone());
    let definitions = definitions.filter(|path| path.parent().is_some_and(|folder| folders.contains(folder)));
    let mut all = folders.iter().cloned().chain(definitions).chain(policies.map(|entry| entry.path()));
    all.any(|path| path.symlink_metadata().is_ok_and(|facts| (facts.ctime(), facts.ctime_nsec()) >= since))
}
