//! Node, Bun and npm, wherever nvm, a package or an archive put them.

use super::binary::{Binary, Roots, always_in_view, follow, small_text};
use super::probe::InterpreterProbe;
use super::trust::{self, OffLimits, outside};
use crate::manifest::Language;
use crate::policy;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// No packages fetched while running, no `.env` and no `bunfig.toml` read: only the script says
/// what it does.
const BUN_ARGUMENTS: [&str; 3] = ["--no-install", "--env-file=/dev/null", "--config=/dev/null"];

pub(super) fn runtime(
    language: Language,
    binary: &Binary,
    found: &str,
    off_limits: &OffLimits,
    probe: Option<&InterpreterProbe>,
) -> Result<policy::Runtime, String> {
    let prefix = binary
        .real
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("/"));
    let mut roots = Roots::default();
    roots.add(&binary.real);
    roots.store(&binary.real);
    let arguments = if language == Language::Bun {
        BUN_ARGUMENTS.map(str::to_owned).to_vec()
    } else {
        // conda's node, and those built with shared libraries, find them beside `bin`.
        if !always_in_view(&binary.real) {
            roots.libraries(prefix);
        }
        Vec::new()
    };
    let told = if language == Language::Bun {
        package_version(prefix)
    } else {
        header_version(prefix)
    };
    let mut runtime = policy::Runtime {
        language,
        program: policy::Program::Path(binary.real.clone()),
        arguments,
        roots: roots.finish(),
        version: String::new(),
        found: found.to_owned(),
        environment: None,
    };
    // The interpreter may load any file in its roots, so they are checked before it is run.
    let version = told
        .or_else(|| {
            outside(&runtime, off_limits).ok()?;
            probe.and_then(|probe| probe.version(&binary.real).ok())
        })
        .unwrap_or_else(|| "unknown (its files do not say)".to_owned());
    runtime.version = version.trim_start_matches('v').to_owned();
    Ok(runtime)
}

/// `include/node/node_version.h`, which comes with node's own archives and packages.
fn header_version(prefix: &Path) -> Option<String> {
    let text = small_text(&prefix.join("include/node/node_version.h"))?;
    fn number(name: &str, text: &str) -> Option<u32> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    }
    let parts = (
        number("NODE_MAJOR_VERSION ", &text)?,
        number("NODE_MINOR_VERSION ", &text)?,
        number("NODE_PATCH_VERSION ", &text)?,
    );
    Some(format!("{}.{}.{}", parts.0, parts.1, parts.2))
}

/// `package.json` of the npm package `bun`, whose `bin` folder holds the binary itself.
fn package_version(prefix: &Path) -> Option<String> {
    let package: serde_json::Value =
        serde_json::from_str(&small_text(&prefix.join("package.json"))?).ok()?;
    let name = package.get("name")?.as_str()?;
    let version = package.get("version")?.as_str()?;
    (name == "bun" || name.starts_with("@oven/bun")).then(|| version.to_owned())
}

/// The script that is npm, to which the name `npm` of a search path leads.
const NPM: &str = "npm/bin/npm-cli.js";

/// The npm beside this Node, or the first on `search_path` that may be trusted.
pub fn npm(
    node: &policy::Runtime,
    search_path: &OsStr,
    off_limits: &OffLimits,
) -> Result<PathBuf, String> {
    let policy::Program::Path(node) = &node.program else {
        return Err("there is no Node".to_owned());
    };
    let prefix = node
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("/"));
    let beside = prefix.join("lib/node_modules").join(NPM);
    let named = std::env::split_paths(search_path).filter(|folder| folder.is_absolute());
    let candidates = std::iter::once(beside).chain(named.map(|folder| folder.join("npm")));
    let mut why = "none beside Node and none on PATH; install npm".to_owned();
    for candidate in candidates.filter(|candidate| candidate.exists()) {
        match npm_script(&candidate, off_limits) {
            Ok(script) => return Ok(script),
            Err(reason) => why = format!("{}: passed over: {reason}", candidate.display()),
        }
    }
    Err(format!("no npm: {why}"))
}

fn npm_script(candidate: &Path, off_limits: &OffLimits) -> Result<PathBuf, String> {
    let found = follow(candidate, off_limits)?;
    if !found.real.ends_with(NPM) {
        return Err("it is a launcher, not npm itself".to_owned());
    }
    trust::readable_by_tools(&found.real)?;
    Ok(found.real)
}
