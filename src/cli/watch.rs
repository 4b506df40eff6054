//! Detects changes of tools and policies under a server. What a tool may write is not watched, so
//! that no running tool causes a reload.

use super::settings::Settings;
use crate::manifest::Language;
use crate::policy;
use crate::registry::{Filter, Snapshot, is_definition_file};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, statfs};
use notify::event::ModifyKind;
use notify::{Config, Event, EventKind, PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// A change is reported once nothing else changed for this long, and at the latest after `LATEST`.
const DEBOUNCE: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(2);
/// How often files are compared where the kernel reports no changes.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(10);
/// File systems that others change without this kernel's knowledge: SMB 2, CIFS, 9P, Ceph, AFS
/// (statfs(2)).
const REMOTE: [u32; 5] = [
    0xfe53_4d42,
    0xff53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// By notices of the kernel; where there are none, by comparing files every two seconds
    Auto,
    /// By comparing files every two seconds
    Poll,
    /// Only when the server receives SIGHUP
    Off,
}

/// What is a change.
struct Scope {
    snapshot: Arc<Snapshot>,
    /// Folders of tools, and of policies.
    folders: BTreeSet<PathBuf>,
    /// The folders of skills, in which every file counts.
    skills: Vec<PathBuf>,
    /// Paths from the settings: folders, which may appear and disappear, and a policy file.
    named: BTreeSet<PathBuf>,
}

impl Scope {
    fn counts(&self, event: &Event) -> bool {
        let moved = matches!(
            event.kind,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))
        );
        let appears = moved || event.kind.is_create();
        event.need_rescan()
            || !event.kind.is_access()
                && event.paths.iter().any(|path| self.concerns(path, appears))
    }

    /// `appears`: the path was created or removed. A path that a tool may write, or ever could, is
    /// never read.
    fn concerns(&self, path: &Path, appears: bool) -> bool {
        if self.named.contains(path) {
            return appears || !path.is_dir();
        }
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return false;
        };
        let ours = path
            .parent()
            .is_some_and(|folder| self.folders.contains(folder))
            || self.folders.contains(path);
        if !ours || name.starts_with('.') || self.snapshot.written.by(path).is_some() {
            return false;
        }
        is_definition_file(name)
            || self.skills.iter().any(|skill| path.starts_with(skill))
            || policy::is_rules_file(name)
            || appears
                && (self.folders.contains(path)
                    || (!Language::of_file_name(name).is_empty())
                    || path.is_dir())
    }
}

pub struct Watch {
    mode: Mode,
    polls: bool,
    watcher: Option<Box<dyn Watcher + Send>>,
    folders: usize,
    changes: mpsc::Receiver<()>,
    sender: mpsc::Sender<()>,
}

impl Watch {
    pub fn new(mode: Mode, settings: &Settings) -> Watch {
        let (sender, changes) = mpsc::channel(1);
        let polls = mode == Mode::Poll || named(settings).iter().any(|path| is_remote(path));
        Watch {
            mode,
            polls,
            watcher: None,
            folders: 0,
            changes,
            sender,
        }
    }

    /// In words, for the log.
    pub fn describe(&self) -> String {
        match (&self.watcher, self.polls) {
            (None, _) => "tools and policies are read again only at a HUP".to_owned(),
            (_, true) => format!(
                "{} folders are compared every {} s",
                self.folders,
                POLL_INTERVAL.as_secs()
            ),
            (_, false) => format!("{} folders are watched", self.folders),
        }
    }

    /// Watches the folders of this snapshot, which was read from `since` on. True: something
    /// changed before the watch began.
    pub fn follow(
        &mut self,
        settings: &Settings,
        snapshot: Arc<Snapshot>,
        since: SystemTime,
    ) -> bool {
        if self.mode == Mode::Off {
            return false;
        }
        let tools = snapshot.list(&Filter::default());
        let links = tools.iter().flat_map(|tool| tool.site.links.clone());
        let named: BTreeSet<PathBuf> = named(settings).into_iter().chain(links).collect();
        let read = snapshot
            .folders
            .iter()
            .filter(|folder| snapshot.written.by(folder).is_none())
            .cloned();
        let policies = Some(settings.policy_path()).filter(|path| path.is_dir());
        let folders: BTreeSet<PathBuf> = read.chain(policies).collect();
        // For a path that does not exist yet, watch the nearest existing folder above it.
        let above = named
            .iter()
            .filter_map(|path| path.ancestors().skip(1).find(|above| above.is_dir()));
        let wanted: BTreeSet<PathBuf> = folders
            .iter()
            .cloned()
            .chain(above.map(Path::to_path_buf))
            .collect();
        let scope = Arc::new(Scope {
            snapshot: snapshot.clone(),
            folders,
            skills: settings.skills.clone(),
            named,
        });
        self.watcher = None;
        if !self.polls {
            self.watcher = self.watch::<RecommendedWatcher>(&scope, &wanted);
            self.polls = self.watcher.is_none();
            if self.polls {
                tracing::warn!(
                    "this user's inotify watches are used up: folders are compared instead"
                );
            }
        }
        if self.polls {
            self.watcher = self.watch::<PollWatcher>(&scope, &wanted);
        }
        self.folders = wanted.len();
        changed_since(since, &wanted, &snapshot)
    }

    /// `None`: the kernel accepts no more watches.
    fn watch<W: Watcher + Send + 'static>(
        &self,
        scope: &Arc<Scope>,
        wanted: &BTreeSet<PathBuf>,
    ) -> Option<Box<dyn Watcher + Send>> {
        let scope = scope.clone();
        let sender = self.sender.clone();
        let report = move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| scope.counts(&event)) {
                // If the channel is full, the same notice already waits in it.
                let _ = sender.try_send(());
            }
        };
        let mut watcher =
            W::new(report, Config::default().with_poll_interval(POLL_INTERVAL)).ok()?;
        for path in wanted {
            match watcher.watch(path, RecursiveMode::NonRecursive) {
                Err(full) if matches!(full.kind, notify::ErrorKind::MaxFilesWatch) => return None,
                // A folder that went away: the one above reports when it comes back.
                Ok(()) | Err(_) => {}
            }
        }
        Some(Box::new(watcher))
    }

    /// Waits for a change, and until nothing changes any more.
    pub async fn changed(&mut self) {
        self.changes.recv().await;
        let latest = Instant::now() + LATEST;
        while let Ok(Some(())) =
            timeout_at(latest.min(Instant::now() + DEBOUNCE), self.changes.recv()).await
        {}
    }
}

/// Folders of tools, and the policies.
fn named(settings: &Settings) -> BTreeSet<PathBuf> {
    settings
        .scanned()
        .into_iter()
        .chain([settings.policy_path()])
        .collect()
}

fn is_remote(path: &Path) -> bool {
    let there = path.ancestors().find_map(|above| statfs(above).ok());
    fn known(kind: FsType) -> bool {
        let number = u32::try_from(kind.0 & 0xffff_ffff).unwrap_or_default();
        [NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, FUSE_SUPER_MAGIC].contains(&kind)
            || REMOTE.contains(&number)
    }
    there.is_some_and(|there| known(there.filesystem_type()))
}

/// Whether one of these folders, or a definition in it, changed since then.
fn changed_since(since: SystemTime, folders: &BTreeSet<PathBuf>, snapshot: &Snapshot) -> bool {
    // The times of files lag behind by up to one tick of the kernel.
    let since = since
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .saturating_sub(TICK);
    let since = (
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        i64::from(since.subsec_nanos()),
    );
    let policies = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let policies = policies.filter(|entry| {
        entry
            .file_name()
            .to_str()
            .is_some_and(policy::is_rules_file)
    });
    let definitions = snapshot.reports.iter().map(|report| report.path.clone());
    let definitions =
        definitions.filter(|path| path.parent().is_some_and(|folder| folders.contains(folder)));
    let mut all = folders
        .iter()
        .cloned()
        .chain(definitions)
        .chain(policies.map(|entry| entry.path()));
    all.any(|path| {
        path.symlink_metadata()
            .is_ok_and(|facts| (facts.ctime(), facts.ctime_nsec()) >= since)
    })
}
