//! The set-up of a launcher, made from a shape and its resolved grants.

use crate::base::mask::Hidden;
use crate::manifest::Language;
use crate::policy::{Program, Shape};
use crate::quantity::Limit;
use crate::runtimes;
use crate::sandbox::protocol::{Executable, Identity, Setup};
use crate::sandbox::{cgroup, environment, grants};

/// What our own roles need beyond the shape.
#[derive(Clone, Debug, Default)]
pub struct RoleNeeds {
    pub memory: u64,
    pub processes: u64,
    pub lasting: bool,
    pub keeps_third: bool,
    /// The script comes with the call.
    pub own_source: bool,
    /// The role where the program is ourselves: argv[0] without the prefix `toolhost-`.
    pub role: Option<&'static str>,
}

/// The identity in the key of an idle launcher: any launcher of the shape will do, whatever its id.
pub const ANY: Identity = Identity { id: u32::MAX, pooled: false };

/// The name under which a call's own source lies in its scratch.
pub fn source_name(language: Language, source: &str) -> &'static str {
    let module = |line: &str| line.starts_with("import ") || line.starts_with("import{") || line.starts_with("export ");
    match language {
        Language::Python => "main.py",
        // Node 20 recognises an ES module by the file's name alone.
        Language::Nodejs if source.lines().any(|l| module(l.trim_start())) => "main.mjs",
        Language::Nodejs => "main.js",
        Language::Bun => "main.ts",
        Language::Wasm => "main.wat",
    }
}

/// The set-up of a launcher for this shape, with `ANY` for its identity.
pub fn build(shape: &Shape, resolved: grants::Resolved, extra: &RoleNeeds, cgroup: Option<cgroup::Version>) -> Setup {
    let language = shape.runtime.language;
    let (program, arguments) = match (&shape.runtime.program, &extra.role) {
        (Program::Path(path), None) => (Executable::Path(path.clone()), arguments(shape, path)),
        (_, role) => (Executable::Ourselves, vec![format!("toolhost-{}", role.unwrap_or("probe"))]),
    };
    let mut limits = shape.limits.clone();
    for (limit, more) in [(Limit::Processes, extra.processes), (Limit::MemoryBytes, extra.memory)] {
        limits.set(limit, limits.get(limit).saturating_add(more));
    }
    // The time limit comes with each call.
    limits.set(Limit::TimeoutMs, 0);
    let mut files = Vec::new();
    if shape.entry_point.is_some()
        && let (Some(text), Some(path)) = (runtimes::shim_source(language), runtimes::shim_path(language))
    {
        let name = path.rsplit('/').next().unwrap_or(path);
        files.push((name.to_owned(), text.to_owned()));
    }
    Setup {
        identity: ANY,
        roots: shape.runtime.roots.clone(),
        mounts: resolved.mounts,
        stages: resolved.stages,
        masks: resolved.masks,
        links: shape.built.iter().filter_map(|built| built.link.clone()).collect(),
        files,
        // A module has no working folder: its paths start at the folders opened for it, and it may have no grant.
        folder: if language == Language::Wasm { "/".into() } else { shape.folder.clone() },
        program,
        arguments,
        environment: Hidden(environment::build(shape)),
        limits,
        cgroup,
        keeps_third: extra.keeps_third,
        lasting: extra.lasting,
        recorded: shape.observe && extra.role.is_none(),
        ports: (!shape.network.hosts().is_empty()).then(|| shape.network.ports()),
    }
}

fn arguments(shape: &Shape, program: &std::path::Path) -> Vec<String> {
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let mut out = vec![text(program)];
    out.extend(shape.runtime.arguments.iter().cloned());
    match (&shape.script, &shape.entry_point) {
        (Some(script), Some(entry)) => {
            out.extend(runtimes::shim_path(shape.runtime.language).map(str::to_owned));
            out.push(text(script));
            out.push(entry.clone());
        }
        (Some(script), None) => out.push(text(script)),
        (None, _) => {}
    }
    out
}
