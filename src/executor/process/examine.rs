//! Proves a confinement by our own probe, behind the same walls that a call of the tool would have.
//!
//! The tool's own script is not run, nothing is published, and no path is tried outside the walls.

use super::launcher::LauncherError;
use super::{CallInput, Extra, Launchers, Scripts, capture};
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::policy::{Access, Confinement, Opening, PerCall, Runtime, Shape, base_view};
use crate::quantity::MIB;
use crate::sandbox::protocol::{Mount, Setup, Stage};
use crate::sandbox::{Stood, identity, probe};
use probe::{Tried, Tries, Try};
use serde::Serialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest run of the probe, or of a trivial script.
const LONGEST_MS: u64 = 20_000;
/// Longest answer of the probe.
const ANSWER: u64 = MIB;
/// Most files of one pattern, and most strangers of one folder, that are tried.
const MOST_FILES: usize = 5;
const MOST_STRANGERS: usize = 2;
/// Most entries of a folder that are looked at in search of strangers.
const MOST_LOOKED: usize = 1000;

/// What the probe found.
#[derive(Clone, Debug, Serialize)]
pub struct Examined {
    pub walls: Vec<Stood>,
    pub tried: Vec<Tried>,
}

impl Examined {
    pub fn as_said(&self) -> bool {
        !self.tried.is_empty() && self.tried.iter().all(Tried::as_said)
    }
}

/// Paths around the tool that are not its own: the probe tries them as well.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    pub manifest: Option<PathBuf>,
    pub policies: Option<PathBuf>,
    pub home: Option<PathBuf>,
}

/// A confinement for this runtime that belongs to no tool: no grants, default limits.
pub fn bare(runtime: Runtime) -> Shape {
    Shape::bare("toolhost:doctor@1.0.0", runtime)
}

/// A runtime that is this binary.
pub fn ourselves() -> Runtime {
    Runtime::ourselves(probe::ROLE)
}

/// Runs the probe inside exactly this confinement.
pub async fn run(launchers: &Arc<Launchers>, shape: &Shape, around: &Surroundings) -> Result<Examined, LauncherError> {
    let extra = Extra { role: Some(probe::ROLE.to_owned()), ..Extra::default() };
    // First, because this makes the folders that a call would find.
    let launcher = launchers.ready(shape, &extra).await?;
    let tries = Tries { paths: tries(shape, &launcher.setup, around), hosts: !shape.network.hosts().is_empty() };
    let tries = serde_json::to_vec(&tries).map_err(|e| lost(&e.to_string()))?;
    let pipes = super::hand_over(&launcher, LONGEST_MS, &CallInput::default())?;
    let over = tokio::sync::Notify::new();
    let events = super::Events::unheard();
    let (stdout, log) = (super::OutputReader::new(ANSWER, &events), super::Log::new(ANSWER, &events));
    let reading = async { Ok(capture::run(pipes, &tries, stdout, log, &over).await) };
    let both = async { tokio::try_join!(reading, super::ended(&launcher)) };
    let longest = Duration::from_millis(LONGEST_MS + 1000);
    let (captured, (exited, _)) =
        tokio::time::timeout(longest, both).await.map_err(|_| lost("it did not end in time"))??;
    if exited.status != 0 || captured.output.is_over {
        let log = captured.logs.join("\n");
        return Err(lost(&format!("wait status {}, {:?}: {log}", exited.status, exited.killed)).into());
    }
    let tried = serde_json::from_slice(&captured.output.rest).map_err(|e| lost(&e.to_string()))?;
    // The launcher is dropped, not kept, and the staged copies with it, unpublished.
    Ok(Examined { walls: launcher.walls.to_vec(), tried })
}

fn lost(why: &str) -> Fault {
    Fault::new(Kind::InternalError, "the probe gave no answer").person(format!("the probe: {why}"))
}

/// Whether an interpreter really runs behind the walls, shown by a trivial script, run as `core:run-code` would.
/// Answers the version that the interpreter reports.
pub async fn starts(launchers: &Arc<Launchers>, runtime: &Runtime) -> Result<String, String> {
    let source = match runtime.language {
        Language::Python => "import json, platform\nprint(json.dumps(platform.python_version()))\n",
        Language::Nodejs => "console.log(JSON.stringify(process.versions.node))\n",
        Language::Bun => "console.log(JSON.stringify(Bun.version))\n",
        Language::Wasm => return Err("wasm runs in this binary".to_owned()),
    };
    let per_call = PerCall { timeout_ms: LONGEST_MS, source: Some(source.to_owned()), ..PerCall::default() };
    let confinement = Confinement { shape: bare(runtime.clone()).into(), per_call };
    let events = super::Events::unheard();
    let scripts = Scripts::new(launchers.clone());
    let outcome = scripts.run_once(None, &confinement, b"{}", Instant::now(), &events).await;
    match outcome {
        Ok((super::Outcome { ending: super::Ending::Answered(version), .. }, _)) => {
            Ok(version.string().unwrap_or_else(|| version.to_string()))
        }
        Ok((outcome, _)) => Err(format!("{:?}; {}", outcome.ending, outcome.logs.join(" / "))),
        Err(fault) => Err(fault.person.unwrap_or(fault.message)),
    }
}

/// All attempts on paths, each with what the launcher was told of it.
fn tries(shape: &Shape, setup: &Setup, around: &Surroundings) -> Vec<Try> {
    let mut list = List { shape, setup, tries: Vec::new() };
    for grant in &shape.grants {
        match &grant.opening {
            Opening::Live { path } | Opening::Staged { folder: path, .. } => list.both(path),
            Opening::Snapshot { folder, .. } => {
                let files = setup.mounts.iter().filter(|mount| mount.path.parent() == Some(folder));
                files.take(MOST_FILES).for_each(|mount| list.both(&mount.path));
            }
        }
    }
    if let Some(script) = &shape.script {
        list.both(script);
        list.outside(&shape.folder);
    }
    if let Some(manifest) = &around.manifest {
        list.both(manifest);
    }
    [&around.policies, &around.home].into_iter().flatten().for_each(|folder| list.strangers(folder));
    for (path, write) in [("/etc/shadow", false), ("/usr/bin/env", true), ("/proc/sys/kernel/core_pattern", true)] {
        list.add(Path::new(path), write);
    }
    list.tries
}

struct List<'a> {
    shape: &'a Shape,
    setup: &'a Setup,
    tries: Vec<Try>,
}

impl List<'_> {
    fn add(&mut self, path: &Path, write: bool) {
        if self.tries.iter().any(|t| t.path == path && t.write == write) {
            return;
        }
        let granted = is_granted(self.shape, self.setup, path, write);
        let closed = granted.then(|| closed(self.setup, path, write)).flatten();
        self.tries.push(Try { path: path.to_owned(), write, granted, closed });
    }

    fn both(&mut self, path: &Path) {
        self.add(path, false);
        self.add(path, true);
    }

    /// What lies beside the tool's folder: the folder above, its other entries, a name that only begins alike.
    fn outside(&mut self, folder: &Path) {
        let Some(above) = folder.parent().filter(|above| above.parent().is_some()) else { return };
        // Below /tmp the folders above a grant are made in the call's own scratch, where the tool may write.
        if !["/tmp", "/dev/shm"].iter().any(|scratch| above.starts_with(scratch)) {
            self.add(above, true);
        }
        self.strangers(above);
        let mut alike = folder.as_os_str().to_owned();
        alike.push("-other");
        let alike = PathBuf::from(alike);
        if self.strange(&alike) {
            self.add(&alike, false);
        }
    }

    /// Existing entries of a folder that the tool must not see.
    fn strangers(&mut self, folder: &Path) {
        let all = if folder.is_dir() { entries(folder) } else { vec![folder.to_owned()] };
        let strangers: Vec<PathBuf> = all.into_iter().filter(|path| self.strange(path)).take(MOST_STRANGERS).collect();
        strangers.iter().for_each(|path| self.add(path, false));
    }

    /// Whether this path, if the tool sees it, is the host's own: it is not granted, it is not above a path in the view
    /// (there the view has empty folders of the same names), and it is not a place that every call has.
    fn strange(&self, path: &Path) -> bool {
        let leads = in_view(self.shape).any(|shown| shown.starts_with(path));
        !is_granted(self.shape, self.setup, path, false) && !leads && !of_each_call(path)
    }
}

/// Sorted by name, so that two runs try the same.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST_LOOKED);
    let mut all: Vec<PathBuf> = read.map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// Every place of this tool in the view, shown or empty.
fn in_view(shape: &Shape) -> impl Iterator<Item = &Path> {
    let own = std::iter::once(shape.folder.as_path()).chain(shape.script.as_deref());
    own.chain(shape.grants.iter().map(|g| g.opening.folder())).chain(shape.runtime.roots.iter().map(PathBuf::as_path))
}

/// A place that is made for every call, so that what is found there is not the host's. (Paths that the host has below
/// the scratch folders are not of this kind: scratch begins empty.)
fn of_each_call(path: &Path) -> bool {
    let whole = [base_view::PROC, "/dev", base_view::OURS];
    let system = base_view::SYSTEM_FOLDERS.iter().chain(&base_view::SYSTEM_ETC).chain(&base_view::MADE_ETC);
    let mut made = system.chain(&base_view::SCRATCH).chain(&base_view::EMPTY_FOLDERS).chain(&whole);
    let scratch = base_view::SCRATCH.iter().any(|scratch| path.starts_with(scratch));
    made.any(|made| Path::new(made).starts_with(path)) || (!scratch && whole.iter().any(|made| path.starts_with(made)))
}

/// The mount that shows a path: the nearest above it.
fn mount_of<'a>(setup: &'a Setup, path: &Path) -> Option<&'a Mount> {
    let mounts = setup.mounts.iter().filter(|mount| path.starts_with(&mount.path));
    mounts.max_by_key(|mount| mount.path.components().count())
}

/// Whether a path is a staged folder or a file of one, of which the call has its own copy.
fn is_staged(setup: &Setup, path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let copies = |stage: &Stage| path.parent() == Some(&stage.folder) && name.is_some_and(|name| stage.copies(name));
    setup.stages.iter().any(|stage| stage.folder == path || copies(stage))
}

fn is_granted(shape: &Shape, setup: &Setup, path: &Path, write: bool) -> bool {
    if is_staged(setup, path) {
        return true;
    }
    match mount_of(setup, path) {
        Some(mount) => !write || mount.access == Access::Write,
        None => !write && (crate::sandbox::is_system(path) || shape.runtime.roots.iter().any(|r| path.starts_with(r))),
    }
}

/// Owner and mode of a granted path, where they close it to the tool all the same.
fn closed(setup: &Setup, path: &Path, write: bool) -> Option<String> {
    if is_staged(setup, path) {
        return None;
    }
    let (mount, facts) = (mount_of(setup, path)?, path.metadata().ok()?);
    let wanted = match (facts.is_dir(), write) {
        (true, true) => 0o3,
        (true, false) => 0o5,
        (false, true) => 0o2,
        (false, false) => 0o4,
    };
    // Under root a grant is mapped to its owner's id; else the tool has this process's id.
    let (owner, groups) = if identity::real_root() {
        (mount.uid, vec![mount.gid])
    } else {
        let groups = nix::unistd::getgroups().unwrap_or_default().into_iter().chain([nix::unistd::getegid()]);
        (nix::unistd::geteuid().as_raw(), groups.map(|group| group.as_raw()).collect())
    };
    let mode = facts.mode();
    let rights = match facts.uid() == owner {
        true => mode >> 6,
        false if groups.contains(&facts.gid()) => mode >> 3,
        false => mode,
    };
    (rights & wanted != wanted).then(|| format!("mode {:04o}, owner {}", mode & 0o7777, facts.uid()))
}

#[cfg(test)]
mod tests {
    use super::super::setup;
    use super::*;
    use crate::sandbox::grants::Resolved;

    #[test]
    fn the_nearest_mount_decides() {
        let mut runtime = ourselves();
        runtime.roots = vec!["/opt/python".into()];
        let mount = |path: &str, access| {
            let (path, folder) = (PathBuf::from(path), !path.ends_with(".csv"));
            Mount { path, access, folder, device: 1, inode: 1, uid: 0, gid: 0 }
        };
        let mounts = vec![
            mount("/t", Access::Read),
            mount("/t/made/b.csv", Access::Read),
            mount("/t/out", Access::Write),
            mount("/t/out/kept.csv", Access::Read),
        ];
        let names = vec!["*.csv".to_owned()];
        let stages = vec![Stage { folder: "/t/made".into(), names, device: 1, inode: 1, show_rest: true }];
        let shape = bare(runtime);
        let setup = setup::of(&shape, Resolved { mounts, stages, ..Resolved::default() }, &Extra::default(), None);
        for (path, read, write) in [
            ("/t", true, false),
            ("/t/deep/file", true, false),
            ("/t/out", true, true),
            ("/t/out/new", true, true),
            ("/t/out/kept.csv", true, false),
            ("/t/made", true, true),
            ("/t/made/a.csv", true, true),
            ("/t/made/b.csv", true, true),
            ("/t/made/a.txt", true, false),
            ("/t-other", false, false),
            ("/opt/python/lib", true, false),
            ("/usr/bin/env", true, false),
            ("/etc/shadow", false, false),
        ] {
            let found = [false, true].map(|write| is_granted(&shape, &setup, Path::new(path), write));
            assert_eq!(found, [read, write], "{path}");
        }
    }
}
