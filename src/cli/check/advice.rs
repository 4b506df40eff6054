//! `check --advice`: what of a manifest tells a model too little.

use super::proposals::proposals;
use crate::base::json::escape_segment;
use crate::cli::process;
use crate::manifest::{Code, Manifest, Problem, Severity};
use crate::registry::{self, FileReport};
use std::collections::BTreeSet;

/// A description of fewer words says too little.
const FEW_WORDS: usize = 4;

/// Adds advice to the reports of tools that lack something. `command`: the operator's program,
/// which proposes better texts.
pub fn add(
    command: Option<&[String]>,
    snapshot: &registry::Snapshot,
    files: &mut [FileReport],
) -> anyhow::Result<()> {
    let threads = process::single_threaded_runtime()?;
    for tool in snapshot.list(&registry::Filter::default()) {
        let place = &tool.site.manifest;
        let Some(file) = files.iter_mut().find(|file| file.path == *place) else {
            continue;
        };
        if tool.manifest.mcp_server().is_some() {
            continue;
        }
        let mut found = weak(&tool.manifest);
        let mut proposed = Vec::new();
        if let Some(command) = command.filter(|_| !found.is_empty()) {
            proposed = threads.block_on(proposals(command, &tool.manifest.raw, &found));
        }
        // A warning about the same place says more.
        let warnings = file.problems.iter();
        let warned: BTreeSet<_> = warnings.map(|warning| warning.pointer.clone()).collect();
        found.retain(|advice| !warned.contains(&advice.pointer) || advice.pointer.is_empty());
        found.extend(proposed);
        registry::locate(&mut found, place);
        file.problems.extend(found);
    }
    Ok(())
}

fn note(pointer: &str, message: &str) -> Problem {
    Problem::new(Severity::Note, Code::Schema, pointer, message)
}

fn weak(manifest: &Manifest) -> Vec<Problem> {
    let parameters = manifest.raw["parameters"]["properties"].as_object();
    let parameters = parameters.into_iter().flatten();
    let mut described = vec![(String::new(), &manifest.raw)];
    described.extend(parameters.map(|(name, schema)| {
        let pointer = format!("/parameters/properties/{}", escape_segment(name));
        (pointer, schema)
    }));
    let mut found = Vec::new();
    for (pointer, value) in described {
        let about = value["description"].as_str().unwrap_or_default();
        if about.split_whitespace().count() < FEW_WORDS {
            let message = "advice: let `description` tell a model what this is for, in which form \
                or unit, and what comes of it";
            found.push(note(&pointer, message));
        }
    }
    if manifest.examples.is_empty() {
        found.push(note(
            "",
            "advice: `examples` is empty: add a call that works",
        ));
    }
    found
}
