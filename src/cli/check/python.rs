//! Has each Python script parsed by its interpreter, behind the layers and without running it: a
//! fault of syntax, and a function that does not take what the manifest declares.

use super::{File, refused};
use crate::cli::process;
use crate::executor::process::{Launchers, examine};
use crate::manifest::{Code, Handler, Language, Problem, Severity};
use crate::{policy, registry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The parser of all scripts of one interpreter.
const PARSER: &str = include_str!("parse.py");

/// A script that has to be parsed.
pub struct Script {
    manifest: PathBuf,
    runtime: policy::Runtime,
    source: Source,
}

/// What the parser reads.
#[derive(Serialize)]
struct Source {
    text: String,
    /// The function that is called. `None`: the script is run.
    entry: Option<String>,
    /// The parameters that the manifest declares. `None`: it accepts others, too.
    parameters: Option<Vec<String>>,
}

/// What the parser found, in the order of the sources.
#[derive(Deserialize)]
struct Finding {
    /// The script's line; 0: it is about the function.
    line: usize,
    message: String,
}

impl Script {
    pub fn new(tool: &registry::Tool, decision: &policy::Decision) -> Option<Script> {
        let Handler::Script { entry_point, .. } = &tool.manifest.handler else {
            return None;
        };
        let runtime = decision.grants.runtime.clone()?;
        if runtime.language != Language::Python {
            return None;
        }
        let schema = tool.manifest.parameters.as_ref().map(|schema| &schema.raw);
        let declared = schema.and_then(|schema| schema["properties"].as_object());
        Some(Script {
            manifest: tool.site.manifest.clone(),
            runtime,
            source: Source {
                text: String::from_utf8(refused::script_text(tool)?).ok()?,
                entry: entry_point.clone(),
                parameters: declared.map(|declared| declared.keys().cloned().collect()),
            },
        })
    }
}

/// Adds what the interpreters find to the reports of the manifests. A layer that does not work
/// here is reported by `doctor`.
pub fn check(
    launchers: &Arc<Launchers>,
    scripts: Vec<Script>,
    files: &mut [File],
) -> anyhow::Result<()> {
    let mut groups: BTreeMap<String, Vec<Script>> = BTreeMap::new();
    for script in scripts {
        let program = format!("{:?}", script.runtime.program);
        groups.entry(program).or_default().push(script);
    }
    if groups.is_empty() {
        return Ok(());
    }
    let runtime = process::single_threaded_runtime()?;
    for group in groups.into_values() {
        let sources: Vec<&Source> = group.iter().map(|script| &script.source).collect();
        let input = serde_json::to_vec(&sources)?;
        let parsing = examine::run_source(launchers, &group[0].runtime, PARSER, &input);
        let Ok(answer) = runtime.block_on(parsing) else {
            continue;
        };
        let findings: Vec<Option<Finding>> = serde_json::from_str(&answer).unwrap_or_default();
        for (script, finding) in group.iter().zip(findings) {
            let file = files.iter_mut().find(|file| file.path == script.manifest);
            if let (Some(file), Some(finding)) = (file, finding) {
                let mut problems = [finding.problem()];
                registry::locate(&mut problems, &script.manifest);
                file.problems.extend(problems);
            }
        }
    }
    Ok(())
}

impl Finding {
    fn problem(self) -> Problem {
        let (pointer, place) = match self.line {
            0 => ("/handler/entryPoint", String::new()),
            line => ("/handler/scriptPath", format!("line {line}: ")),
        };
        let message = format!("every call fails: {place}{}", self.message);
        Problem::new(Severity::Error, Code::Dependency, pointer, message)
    }
}
