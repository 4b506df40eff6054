//! Tests a confinement with our own probe, behind the same layers that a call of the tool would
//! have.
//!
//! The tool's own script is not run, nothing is published, and no path is tried outside the layers.

use super::call::ProgramCall;
use super::grants;
use super::pool::Launchers;
use super::scripts::Scripts;
use super::spec::RoleNeeds;
use crate::executor::{Clock, Ending, Outcome, ToolSender};
use crate::fault::{Fault, Kind};
use crate::manifest::Language;
use crate::policy::{
    Access, Area, Confinement, Grant, Limits, Opening, PerCall, Runtime, Shape, base_view,
};
use crate::quantity::{Limit, MIB};
use crate::sandbox::{CallInput, LauncherError, LayerState, identity, probe};
use probe::{PathProbe, ProbeResult, Probes};
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Longest run of the probe, or of a trivial script.
const TIMEOUT_MS: u64 = 20_000;
/// Longest answer of the probe.
const ANSWER: u64 = MIB;
/// Most files of one pattern, and most hidden entries ("strangers") of one folder, that are tried.
const MAX_FILES: usize = 5;
const MAX_STRANGERS: usize = 2;
/// Most entries of a folder that are looked at in search of strangers.
const MAX_ENTRIES: usize = 1000;

/// What the probe found.
#[derive(Clone, Debug, Serialize)]
pub struct Examination {
    pub layers: Vec<LayerState>,
    pub tried: Vec<ProbeResult>,
}

impl Examination {
    pub fn is_as_expected(&self) -> bool {
        !self.tried.is_empty() && self.tried.iter().all(ProbeResult::is_as_expected)
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
pub async fn run(
    launchers: &Arc<Launchers>,
    shape: &Shape,
    around: &Surroundings,
) -> Result<Examination, LauncherError> {
    fn lost(why: String) -> LauncherError {
        Fault::new(Kind::InternalError, "the probe gave no answer")
            .person(format!("the probe: {why}"))
            .into()
    }
    let extra = RoleNeeds {
        role: Some(probe::ROLE),
        ..RoleNeeds::default()
    };
    // First, because this makes the folders that a call would find.
    let ready = launchers.ready(shape, &extra).await?;
    let tries = Probes {
        paths: tries(shape, around),
        hosts: !shape.network.hosts().is_empty(),
    };
    let tries = serde_json::to_vec(&tries).map_err(|e| lost(e.to_string()))?;
    let mut limits = Limits::built_in();
    limits.set(Limit::OutputBytes, ANSWER);
    let call = ProgramCall {
        brings: CallInput {
            stdin: &tries,
            ..CallInput::default()
        },
        secrets: &BTreeMap::new(),
        limits: &limits,
        clock: Clock::new(Instant::now(), TIMEOUT_MS),
        events: &ToolSender::unheard(),
        tools: &[],
        traffic: &Mutex::default(),
    };
    let finished = ready.call(&call).await?;
    let exited = finished.exited;
    let captured = finished.captured;
    if exited.status != 0 || captured.output.is_over {
        let log = captured.logs.join("\n");
        return Err(lost(format!(
            "wait status {}, {:?}: {log}",
            exited.status, exited.killed
        )));
    }
    let tried = serde_json::from_slice(&captured.output.rest).map_err(|e| lost(e.to_string()))?;
    // The launcher is dropped, not kept, and the staged copies with it, unpublished.
    Ok(Examination {
        layers: ready.launcher.layers.to_vec(),
        tried,
    })
}

/// Whether an interpreter really runs behind the layers, shown by a trivial script. Answers the
/// version that the interpreter reports.
pub async fn starts(launchers: &Arc<Launchers>, runtime: &Runtime) -> Result<String, String> {
    let source = match runtime.language {
        Language::Python => "import json, platform\nprint(json.dumps(platform.python_version()))\n",
        Language::Nodejs => "console.log(JSON.stringify(process.versions.node))\n",
        Language::Bun => "console.log(JSON.stringify(Bun.version))\n",
        Language::Bash => "echo \"\\\"$BASH_VERSION\\\"\"\n",
        Language::Wasm => return Err("wasm runs in this binary".to_owned()),
    };
    let version = run_source(launchers, runtime, source, b"{}").await?;
    Ok(serde_json::from_str(&version).unwrap_or(version))
}

/// Runs a script of our own as `core:run-code` would, without a grant. Answers its JSON text.
pub async fn run_source(
    launchers: &Arc<Launchers>,
    runtime: &Runtime,
    source: &str,
    input: &[u8],
) -> Result<String, String> {
    let per_call = PerCall {
        timeout_ms: TIMEOUT_MS,
        source: Some(source.to_owned()),
        ..PerCall::default()
    };
    let confinement = Confinement {
        shape: bare(runtime.clone()).into(),
        per_call,
    };
    let events = ToolSender::unheard();
    let scripts = Scripts::new(launchers.clone());
    let outcome = scripts
        .run_once(None, &confinement, input, Instant::now(), &events)
        .await;
    match outcome {
        Ok((
            Outcome {
                ending: Ending::Answered(answer),
                ..
            },
            _,
        )) => Ok(answer.head(usize::MAX).to_owned()),
        Ok((outcome, _)) => Err(format!(
            "{:?}; {}",
            outcome.ending,
            outcome.logs.join(" / ")
        )),
        Err(fault) => Err(fault.person.unwrap_or(fault.message)),
    }
}

/// All attempts on paths, each with whether the confinement grants it.
fn tries(shape: &Shape, around: &Surroundings) -> Vec<PathProbe> {
    let mut list = List {
        shape,
        tries: Vec::new(),
    };
    for grant in &shape.grants {
        list.grant(grant);
    }
    if let Some(script) = &shape.script {
        list.both(script);
        list.outside(&shape.folder);
    }
    if let Some(manifest) = &around.manifest {
        list.both(manifest);
    }
    if let Some(policies) = &around.policies {
        list.strangers(policies);
    }
    if let Some(home) = &around.home {
        list.strangers(home);
    }
    for (path, write) in [
        ("/etc/shadow", false),
        ("/usr/bin/env", true),
        ("/proc/sys/kernel/core_pattern", true),
    ] {
        list.add(Path::new(path), write);
    }
    list.tries
}

struct List<'a> {
    shape: &'a Shape,
    tries: Vec<PathProbe>,
}

impl List<'_> {
    fn add(&mut self, path: &Path, write: bool) {
        if self
            .tries
            .iter()
            .any(|t| t.path == path && t.write == write)
        {
            return;
        }
        let granted = allowed(self.shape, path, write);
        let closed = granted.then(|| closed(self.shape, path, write)).flatten();
        self.tries.push(PathProbe {
            path: path.to_owned(),
            write,
            granted,
            closed,
        });
    }

    fn both(&mut self, path: &Path) {
        self.add(path, false);
        self.add(path, true);
    }

    fn grant(&mut self, grant: &Grant) {
        match grant.opening() {
            Opening::Live { path } | Opening::Staged { folder: path, .. } => self.both(&path),
            Opening::Snapshot { folder, names } => {
                let files = entries(&folder).into_iter().filter(|path| {
                    grant.area.holds(path)
                        && path.symlink_metadata().is_ok_and(|m: std::fs::Metadata| {
                            m.is_file() && grants::opens(&folder, &names, m.uid(), m.mode())
                        })
                });
                files.take(MAX_FILES).for_each(|path| self.both(&path));
            }
        }
    }

    /// Adds paths outside the tool's folder: its parent, the parent's other entries, a name with
    /// the same beginning.
    fn outside(&mut self, folder: &Path) {
        let Some(above) = folder.parent().filter(|above| above.parent().is_some()) else {
            return;
        };
        // The call's own scratch can be written.
        if !of_each_call(above) {
            self.add(above, true);
        }
        self.strangers(above);
        let mut alike = folder.as_os_str().to_owned();
        alike.push("-other");
        let alike = PathBuf::from(alike);
        if self.is_foreign(&alike) {
            self.add(&alike, false);
        }
    }

    /// Adds existing entries of a folder that the tool must not see.
    fn strangers(&mut self, folder: &Path) {
        let all = if folder.is_dir() {
            entries(folder)
        } else {
            vec![folder.to_owned()]
        };
        let strangers: Vec<PathBuf> = all
            .into_iter()
            .filter(|path| self.is_foreign(path))
            .take(MAX_STRANGERS)
            .collect();
        strangers.iter().for_each(|path| self.add(path, false));
    }

    /// Whether the tool must not see this path: it is not granted, not above a path in the view
    /// (there the view has empty folders of the same names), and not a path that every call has.
    fn is_foreign(&self, path: &Path) -> bool {
        let leads = in_view(self.shape).any(|shown| shown.starts_with(path));
        !allowed(self.shape, path, false) && !leads && !of_each_call(path)
    }
}

/// Sorted by name, so that two runs try the same.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .take(MAX_ENTRIES);
    let mut all: Vec<PathBuf> = read.map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// Every place of this tool in the view, shown or empty.
fn in_view(shape: &Shape) -> impl Iterator<Item = &Path> {
    let own = std::iter::once(shape.folder.as_path()).chain(shape.script.as_deref());
    own.chain(shape.grants.iter().map(|g| g.area.folder()))
        .chain(shape.runtime.roots.iter().map(PathBuf::as_path))
}

/// A place that is made for every call, so that what is found there is not the host's. (Paths that
/// the host has below the scratch folders are not of this kind: scratch begins empty.)
fn of_each_call(path: &Path) -> bool {
    let whole = [base_view::PROC, "/dev", base_view::OWN_FOLDER];
    let system = base_view::SYSTEM_FOLDERS
        .iter()
        .chain(&base_view::SYSTEM_ETC)
        .chain(&base_view::MADE_ETC);
    let mut made = system
        .chain(&base_view::SCRATCH)
        .chain(&base_view::EMPTY_FOLDERS)
        .chain(&whole);
    let scratch = base_view::SCRATCH
        .iter()
        .any(|scratch| path.starts_with(scratch));
    made.any(|made| Path::new(made).starts_with(path))
        || (!scratch && whole.iter().any(|made| path.starts_with(made)))
}

/// Owner and mode of a granted path, if they deny it to the tool.
fn closed(shape: &Shape, path: &Path, write: bool) -> Option<String> {
    let facts = path.metadata().ok()?;
    let top = match deciding(shape, path)? {
        // The host made the copies.
        grant if grant.is_staged() => return None,
        Grant {
            area: Area::Tree(tree),
            ..
        } => tree.metadata().ok()?,
        _ => facts.clone(),
    };
    let wanted = match (facts.is_dir(), write) {
        (true, true) => 0o3,
        (true, false) => 0o5,
        (false, true) => 0o2,
        (false, false) => 0o4,
    };
    // Under root a grant is mapped to its owner's id; else the tool has this process's id.
    let (owner, group) = if identity::real_root() {
        (top.uid(), vec![top.gid()])
    } else {
        let groups = nix::unistd::getgroups().unwrap_or_default();
        (
            nix::unistd::geteuid().as_raw(),
            groups
                .into_iter()
                .chain([nix::unistd::getegid()])
                .map(|g| g.as_raw())
                .collect(),
        )
    };
    let mode = facts.mode();
    let rights = match facts.uid() == owner {
        true => mode >> 6,
        false if group.contains(&facts.gid()) => mode >> 3,
        false => mode,
    };
    (rights & wanted != wanted)
        .then(|| format!("mode {:04o}, owner {}", mode & 0o7777, facts.uid()))
}

/// Whether the confinement grants this. The script itself is shown whatever is granted; a module is
/// not, as the host reads it.
fn allowed(shape: &Shape, path: &Path, write: bool) -> bool {
    if let Some(grant) = deciding(shape, path) {
        return !write || grant.access == Access::Write;
    }
    let script = shape.script.as_deref() == Some(path) && shape.runtime.language != Language::Wasm;
    let shown = || {
        crate::sandbox::is_system(path)
            || shape
                .runtime
                .roots
                .iter()
                .any(|root| path.starts_with(root))
    };
    !write && (script || shown())
}

/// The grant that decides about a path: the nearest, and of two for one place the wider.
fn deciding<'s>(shape: &'s Shape, path: &Path) -> Option<&'s Grant> {
    fn length(path: &Path) -> usize {
        path.components().count()
    }
    let near = |grant: &&Grant| match &grant.area {
        Area::Tree(tree) => path.starts_with(tree).then(|| length(tree)),
        files if grant.is_staged() && files.folder() == path => Some(length(path)),
        // The names of a pattern are files: a folder with such a name is another grant's, or
        // nobody's.
        files => (files.holds(path) && !path.is_dir()).then(|| length(path)),
    };
    let covering = shape
        .grants
        .iter()
        .filter_map(|grant| Some((near(&grant)?, grant.access, grant)));
    covering
        .max_by_key(|(depth, access, _)| (*depth, *access))
        .map(|(.., grant)| grant)
}
