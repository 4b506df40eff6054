//! Has each Python script parsed by its interpreter, behind the layers and without running it: a
//! fault of syntax, a function that does not take what the manifest declares, and hints about what
//! the script could do.

use crate::base::files;
use crate::base::text::{self, printable};
use crate::cli::process;
use crate::executor::process::{Launchers, examine};
use crate::manifest::{Code, Language, Problem, Severity};
use crate::policy;
use crate::registry::{self, FileReport};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Longest script that is read, bytes.
pub const MAX_SCRIPT_BYTES: u64 = 4 << 20;
/// The parser of all scripts of one interpreter.
const PARSER: &str = include_str!("parse.py");

/// The end of a hint of the parser.
pub const REACHES: &str = "reaches the network";

/// Most entries of a folder `src` that are looked at.
const MAX_MODULES: usize = 200;

/// Most bytes of scripts that one process parses.
const MAX_BATCH_BYTES: usize = 8 << 20;

/// A script of a tool.
pub struct Script {
    tool: Arc<registry::Tool>,
    /// Parses it. `None`: it is not a script of Python, or has no interpreter.
    runtime: Option<policy::Runtime>,
}

/// What the parser reads.
#[derive(Serialize)]
struct Source {
    text: String,
    /// The function that is called. `None`: the script is run.
    entry: Option<String>,
    /// The parameters that the manifest declares. `None`: it accepts others, too.
    parameters: Option<Vec<String>>,
    /// It calls other tools, so `await` may stand at its top.
    awaits: bool,
    /// Modules that lie in `src/` and not beside the script.
    apart: Vec<String>,
    /// Whether hints are wanted.
    hints: bool,
}

/// What the parser found, in the order of the sources.
#[derive(Deserialize)]
struct Finding {
    /// The script's line; 0: it is about the function, or the whole file.
    line: usize,
    message: String,
    #[serde(default)]
    kind: FindingKind,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FindingKind {
    #[default]
    Failure,
    /// The call fails unless something else helps.
    Likely,
    /// Something that the script could do.
    Hint,
}

impl Script {
    pub fn new(tool: &Arc<registry::Tool>, decision: &policy::Decision) -> Option<Script> {
        let is_script = tool.manifest.handler.script().is_some();
        let runtime = decision.grants.runtime.clone();
        is_script.then(|| Script {
            tool: tool.clone(),
            runtime: runtime.filter(|runtime| runtime.language == Language::Python),
        })
    }

    fn source(&self, hints: bool) -> Option<Source> {
        self.runtime.as_ref()?;
        let manifest = &self.tool.manifest;
        let script = manifest.handler.script()?;
        // A script that is longer was read in part.
        let bytes =
            script_text(&self.tool).filter(|text| (text.len() as u64) < MAX_SCRIPT_BYTES)?;
        let text = text::decode(&bytes).ok()?.to_owned();
        let schema = manifest.parameters.as_ref().map(|schema| &schema.raw);
        let declared = schema.and_then(|schema| schema["properties"].as_object());
        Some(Source {
            text,
            entry: script.entry_point.clone(),
            awaits: !manifest.calls.is_empty(),
            parameters: declared.map(|declared| declared.keys().cloned().collect()),
            apart: modules_apart(self.tool.site.script.as_deref()?.parent()?),
            hints,
        })
    }
}

/// The modules of a project with a `src` folder, which only an installed project finds.
fn modules_apart(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("src")).into_iter().flatten();
    entries
        .take(MAX_MODULES)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !folder.join(name).exists())
        .map(|name| name.trim_end_matches(".py").to_owned())
        .collect()
}

/// The beginning of a script.
pub fn script_text(tool: &registry::Tool) -> Option<Vec<u8>> {
    let file = files::open(tool.site.script.as_deref()?, OFlag::O_NOFOLLOW).ok()?;
    let mut text = Vec::new();
    file.take(MAX_SCRIPT_BYTES).read_to_end(&mut text).ok()?;
    Some(text)
}

/// Adds what the interpreters find to the reports of the manifests. `hints`: those about what each
/// script could do, too.
pub fn check(
    launchers: &Arc<Launchers>,
    mut scripts: Vec<Script>,
    hints: bool,
    files: &mut [FileReport],
) -> anyhow::Result<()> {
    if scripts.is_empty() {
        return Ok(());
    }
    scripts.sort_by_key(|script| format!("{:?}", script.runtime.as_ref().map(|it| &it.program)));
    let parser = Parser {
        launchers,
        hints,
        threads: process::single_threaded_runtime()?,
    };
    let mut batch: Vec<(&Script, Source)> = Vec::new();
    let mut bytes = 0;
    for script in &scripts {
        let Some(source) = script.source(hints) else {
            parser.report(script, Vec::new(), files);
            continue;
        };
        bytes += source.text.len();
        let is_other = batch
            .first()
            .is_some_and(|(first, _)| first.runtime != script.runtime);
        if is_other || bytes > MAX_BATCH_BYTES {
            bytes = source.text.len();
            parser.parse(&std::mem::take(&mut batch), files);
        }
        batch.push((script, source));
    }
    parser.parse(&batch, files);
    Ok(())
}

struct Parser<'a> {
    launchers: &'a Arc<Launchers>,
    hints: bool,
    threads: tokio::runtime::Runtime,
}

impl Parser<'_> {
    /// Parses scripts of one interpreter together. If one of them ends the parser, each is parsed
    /// alone, so that it hides nothing about the others.
    fn parse(&self, batch: &[(&Script, Source)], files: &mut [FileReport]) {
        let Some((first, _)) = batch.first() else {
            return;
        };
        let Some(runtime) = &first.runtime else {
            return;
        };
        match self.run(runtime, batch) {
            Ok(findings) => {
                for ((script, _), findings) in batch.iter().zip(findings) {
                    self.report(script, findings, files);
                }
            }
            Err(why) if batch.len() == 1 => {
                let message = format!("its interpreter could not parse the script: {why}");
                let pointer = "/handler/scriptPath";
                let problem = Problem::new(Severity::Note, Code::Dependency, pointer, message);
                add(first, vec![problem], files);
            }
            Err(_) => batch.chunks(1).for_each(|alone| self.parse(alone, files)),
        }
    }

    fn run(
        &self,
        runtime: &policy::Runtime,
        batch: &[(&Script, Source)],
    ) -> Result<Vec<Vec<Finding>>, String> {
        let sources: Vec<&Source> = batch.iter().map(|(_, source)| source).collect();
        let input = serde_json::to_vec(&sources).map_err(|e| e.to_string())?;
        let parsing = examine::run_source(self.launchers, runtime, PARSER, &input);
        let answer = self.threads.block_on(parsing)?;
        serde_json::from_str(&answer).map_err(|e| e.to_string())
    }

    fn report(&self, script: &Script, findings: Vec<Finding>, files: &mut [FileReport]) {
        let is_seen = findings.iter().any(|it| it.kind == FindingKind::Hint);
        let unseen = (self.hints && !is_seen).then(|| Finding {
            line: 0,
            message: "not looked at: only Python in UTF-8 that its interpreter parses is"
                .to_owned(),
            kind: FindingKind::Hint,
        });
        let path = script.tool.site.script.as_deref().and_then(Path::file_name);
        let name = printable(&path.unwrap_or_default().to_string_lossy());
        let problems = findings.into_iter().chain(unseen);
        let problems = problems.map(|finding| finding.problem(&name));
        add(script, problems.collect(), files);
    }
}

fn add(script: &Script, mut problems: Vec<Problem>, files: &mut [FileReport]) {
    let manifest = &script.tool.site.manifest;
    let file = files.iter_mut().find(|file| file.path == *manifest);
    if let Some(file) = file {
        registry::locate(&mut problems, manifest);
        file.problems.extend(problems);
    }
}

impl Finding {
    /// `script`: its name.
    fn problem(self, script: &str) -> Problem {
        let (severity, code, words) = match self.kind {
            FindingKind::Failure => (Severity::Error, Code::Dependency, "every call fails"),
            FindingKind::Likely => (Severity::Warning, Code::Dependency, "a call fails"),
            FindingKind::Hint => (Severity::Note, Code::Security, "hint"),
        };
        let (pointer, place) = match self.line {
            0 if self.kind != FindingKind::Hint => ("/handler/entryPoint", String::new()),
            0 => ("/handler/scriptPath", String::new()),
            line => ("/handler/scriptPath", format!("{script}:{line}: ")),
        };
        let message = format!("{words}: {place}{}", self.message);
        Problem::new(severity, code, pointer, message)
    }
}
