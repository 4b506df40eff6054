//! npm on this machine: a script that Node runs.

use super::binary::followed;
use super::off_limits::OffLimits;
use super::trust;
use crate::policy;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The script itself, to which the name `npm` of a search path leads.
const SCRIPT: &str = "npm/bin/npm-cli.js";

/// The npm beside this Node, or the first on `search_path` that may be trusted.
pub fn npm(node: &policy::Runtime, search_path: &OsStr, off_limits: &OffLimits) -> Result<PathBuf, String> {
    let policy::Program::Path(node) = &node.program else { return Err("there is no Node".to_owned()) };
    let prefix = node.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let beside = prefix.join("lib/node_modules").join(SCRIPT);
    let named = std::env::split_paths(search_path).filter(|folder| folder.is_absolute());
    let candidates = std::iter::once(beside).chain(named.map(|folder| folder.join("npm")));
    let mut why = "none beside Node and none on PATH; install npm".to_owned();
    for candidate in candidates.filter(|candidate| candidate.exists()) {
        match script(&candidate, off_limits) {
            Ok(script) => return Ok(script),
            Err(reason) => why = format!("{}: passed over: {reason}", candidate.display()),
        }
    }
    Err(format!("no npm: {why}"))
}

fn script(candidate: &Path, off_limits: &OffLimits) -> Result<PathBuf, String> {
    let found = followed(candidate, off_limits)?;
    if !found.real.ends_with(SCRIPT) {
        return Err("it is a launcher, not npm itself".to_owned());
    }
    trust::readable_by_tools(&found.real)?;
    Ok(found.real)
}
