//! Writable tools: nothing that a tool may write is loaded: a tool cannot make tools.
//!
//! For: the registry. In: settled tools, the policies, what was loaded before. Out: the tools to leave out, and why.
//! Never: takes down a tool that was loaded before: its files are protected, so policy refuses the newcomer's grant.

use super::Tool;
use super::conflicts::{Held, Refused};
use crate::manifest::Code;
use crate::policy;
use std::path::PathBuf;

/// What these tools may write. Their own files are not protected here, so that a grant which holds one counts.
pub(super) fn written(tools: &[Tool], policies: &policy::Policies, machine: &policy::Machine) -> policy::WritablePaths {
    let writers = tools.iter().filter(|tool| !tool.manifest.asks.write.is_empty());
    let decisions: Vec<_> = writers.map(|tool| policy::decide(&tool.manifest, &tool.site, policies, machine)).collect();
    policy::WritablePaths::of(&decisions)
}

/// Takes out the newcomers whose manifest or script another tool may write. (Policy refuses a tool's own files to it.)
pub(super) fn withhold(tools: &mut Vec<Tool>, written: &policy::WritablePaths, held: &Held) -> Vec<Refused> {
    let mut refused = Vec::new();
    for tool in std::mem::take(tools) {
        let writer = files(&tool).find_map(|file| written.by(&file));
        match writer.filter(|_| !held.has(&tool)) {
            None => tools.push(tool),
            Some(writer) => refused.push(Refused::new(tool, Code::Security, why(writer))),
        }
    }
    refused
}

/// Why a file that a tool may write is not loaded.
pub(super) fn why(writer: &str) -> String {
    format!("it lies where {writer}, and a tool cannot make tools: if you know who made it, move it elsewhere")
}

/// The tool's manifest and script, if they are files.
pub(super) fn files(tool: &Tool) -> impl Iterator<Item = PathBuf> + use<> {
    let site = &tool.site;
    let files = [Some(site.manifest.clone()), site.script.clone()];
    files.into_iter().flatten().filter(|path| !path.as_os_str().is_empty())
}
