//! The usual places: where config files, records and packages lie where nobody says otherwise.
//!
//! For: `settings`. In: the environment. Out: paths. Never: a path below the current folder.

use super::{PACKAGES, Variables};
use crate::sandbox::identity;
use std::path::PathBuf;

/// The user's own, then the system's.
pub(in crate::cli) fn usual_configs(variable: Variables<'_>) -> Vec<PathBuf> {
    let own = folder(variable, "XDG_CONFIG_HOME", ".config").map(|folder| folder.join("toolhost/config.toml"));
    own.into_iter().chain([PathBuf::from("/etc/toolhost/config.toml")]).collect()
}

/// `$XDG_…`, else the folder below the home folder.
pub(in crate::cli) fn folder(variable: Variables<'_>, xdg: &str, below_home: &str) -> Option<PathBuf> {
    let named = variable(xdg).map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| home(variable).map(|home| home.join(below_home)))
}

pub(in crate::cli) fn home(variable: Variables<'_>) -> Option<PathBuf> {
    let named = variable("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| {
        let me = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten()?;
        Some(me.dir).filter(|path| path.is_absolute())
    })
}

/// Real root logs for the system; everybody else, mapped root included, for themselves.
pub(in crate::cli) fn usual_audit_log(variable: Variables<'_>) -> Option<PathBuf> {
    if identity::real_root() && variable("XDG_STATE_HOME").is_none() {
        return Some(PathBuf::from("/var/log/toolhost/audit.jsonl"));
    }
    Some(folder(variable, "XDG_STATE_HOME", ".local/state")?.join("toolhost/audit.jsonl"))
}

/// Logs are often kept where nothing may be run, and native code of packages is.
pub(in crate::cli) fn usual_packages(variable: Variables<'_>) -> Option<PathBuf> {
    if identity::real_root() && variable("XDG_STATE_HOME").is_none() {
        return Some(PathBuf::from("/var/lib/toolhost").join(PACKAGES));
    }
    Some(folder(variable, "XDG_STATE_HOME", ".local/state")?.join("toolhost").join(PACKAGES))
}
