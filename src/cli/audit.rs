//! `toolhost audit`: what a tool may touch, without running it.
//!
//! For: `cli`. In: a tool or all, policies, a machine. Out: text or JSON.
//! Never: judges by itself: it prints the `policy::Decision` that a call is held to.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, words};
use crate::service::{self, beforehand};
use crate::{fault, manifest, policy, registry, runtimes, sandbox};
use manifest::{Manifest, Site};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// The tool: id, id@1.2.0 or id@^1
    #[arg(required_unless_present_any = ["all", "who_can", "call", "diff"], conflicts_with_all = ["all", "who_can", "call", "diff"])]
    pub tool: Option<String>,
    /// Every tool
    #[arg(long, conflicts_with_all = ["who_can", "call", "diff"])]
    pub all: bool,
    /// For a program
    #[arg(long)]
    pub json: bool,
    /// Print the policy text that would grant what the tool asks; each `why` is left for you
    #[arg(long, requires = "tool", conflicts_with_all = ["all", "who_can", "call", "diff"])]
    pub suggest_policy: bool,
    /// Run our own probe inside that exact confinement (never the tool): what it could and could not do
    #[arg(long, requires = "tool", conflicts_with_all = ["all", "who_can", "call", "diff", "suggest_policy"])]
    pub probe: bool,
    /// Which tools can: read:PATH, write:PATH or reach:HOST; a relative path starts at the current folder
    #[arg(long, value_name = "QUESTION", conflicts_with = "call")]
    pub who_can: Option<String>,
    /// What a past call did and could touch, by its id
    #[arg(long, value_name = "ID")]
    pub call: Option<String>,
    /// The same as `toolhost diff OLD NEW`
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with_all = ["who_can", "call"])]
    pub diff: Option<Vec<String>>,
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    if let Some(call) = &args.call {
        words::show(past(settings, call, args.json)?.as_bytes());
        return Ok(Exit::Ok.into());
    }
    if let Some([old, new]) = args.diff.as_deref() {
        return super::diff::run(settings, super::diff::Args { old: old.clone(), new: new.clone(), json: args.json });
    }
    let known = host::Tools::of(settings)?;
    let host = Host { tools: &known.pairs(), policies: &known.policies, machine: &known.machine };
    let text = if let Some(question) = &args.who_can {
        who_can(&host, &settings.bases(), &from_here(question)?, args.json).map_err(|fault| Refusal::of(&fault))?
    } else if let Some(reference) = &args.tool {
        let tool = known.snapshot.find(reference).map_err(|fault| Refusal::of(&fault))?;
        if args.probe {
            return super::proof::run(settings, &known, &host, &tool, args.json);
        }
        match args.suggest_policy {
            true => suggest(&host, &tool.manifest, &tool.site),
            false => one_text(&foreseen(&known, &tool, host.policies, host.machine), &tool.manifest, args.json),
        }
    } else {
        words::stream(|out| all(&known, args.json, out));
        return Ok(Exit::Ok.into());
    };
    words::show(text.as_bytes());
    Ok(Exit::Ok.into())
}

/// Every tool, written one after the other: texts with a line between, or `{"tools": […]}`.
fn all(known: &host::Tools, json: bool, out: &mut dyn Write) -> io::Result<()> {
    let tools = known.snapshot.list(&registry::Filter::default());
    let (head, between, end) = match (json, tools.is_empty()) {
        (true, _) => ("{\"tools\": [\n", ",\n", "]}\n"),
        (false, true) => ("No tools are loaded.\n", "", ""),
        (false, false) => ("", "\n", ""),
    };
    out.write_all(head.as_bytes())?;
    for (at, tool) in tools.iter().enumerate() {
        let text = one_text(&foreseen(known, tool, &known.policies, &known.machine), &tool.manifest, json);
        out.write_all(if at > 0 { between.as_bytes() } else { b"" })?;
        out.write_all(text.strip_suffix('\n').filter(|_| json).unwrap_or(&text).as_bytes())?;
    }
    out.write_all(if json && !tools.is_empty() { b"\n" } else { b"" })?;
    out.write_all(end.as_bytes())
}

/// `audit --call ID`: the record of a past call, and the confinement it ran under.
fn past(settings: &Settings, call: &str, json: bool) -> anyhow::Result<String> {
    let recalled = host::audit_log(settings)?
        .recall(call)
        .map_err(|why| Refusal::new(Exit::Caller, manifest::text::printable(&why)))?;
    if json {
        return Ok(pretty(&serde_json::json!({ "record": recalled.record, "confinement": recalled.confinement })));
    }
    Ok(super::past::text(&recalled))
}

/// `read:out/x.csv` → `read:/here/out/x.csv`: a relative path starts at the current folder, as it does for a shell.
/// Grants hold no links, so links in the path are resolved.
fn from_here(question: &str) -> anyhow::Result<String> {
    let Some((verb @ ("read" | "write"), path)) = question.split_once(':') else { return Ok(question.to_owned()) };
    if path.is_empty() {
        return Ok(question.to_owned());
    }
    let whole = if path.starts_with('/') { PathBuf::from(path) } else { below_here(path)? };
    let climbs = whole.components().any(|part| part == Component::ParentDir);
    let meant = if climbs { whole } else { crate::runtimes::resolved(&whole) };
    Ok(format!("{verb}:{}", meant.display()))
}

fn below_here(path: &str) -> anyhow::Result<PathBuf> {
    let mut here = std::env::current_dir().map_err(|e| {
        Refusal::new(Exit::Caller, format!("the current folder is not known ({e}): name the whole path"))
    })?;
    let mut rest = Path::new(path);
    // getcwd(3) holds no link, so `..` at the start can be resolved here; a later one may follow a link, and stays.
    loop {
        let mut parts = rest.components();
        match parts.next() {
            Some(Component::CurDir) => {}
            Some(Component::ParentDir) => {
                here.pop();
            }
            _ => return Ok(here.join(rest)),
        }
        rest = parts.as_path();
    }
}

/// What is known of this host when the verb runs.
pub struct Host<'a> {
    /// Every tool of the registry.
    pub tools: &'a [(Arc<Manifest>, Site)],
    /// With the same files protected as for a call (`Snapshot::protect`).
    pub policies: &'a policy::Policies,
    pub machine: &'a policy::Machine,
}

impl Host<'_> {
    /// The decision for one tool, as a call would get it: no tool may write a file of any other.
    pub fn decide(&self, manifest: &Manifest, site: &Site) -> policy::Decision {
        policy::decide(manifest, site, self.policies, self.machine)
    }

    fn decide_all(&self) -> Vec<policy::Decision> {
        self.tools.iter().map(|(manifest, site)| self.decide(manifest, site)).collect()
    }
}

/// The decision, with the fault that every call would end with in place of its shape: also a fault that is not policy's
/// (a service that is not registered, granted files as they lie now).
pub(super) fn foreseen(
    known: &host::Tools,
    tool: &registry::Tool,
    policies: &policy::Policies,
    machine: &policy::Machine,
) -> policy::Decision {
    let mut decision = policy::decide(&tool.manifest, &tool.site, policies, machine);
    if let Some(fault) = beforehand::fault(tool, &decision, beforehand::shipped(&tool.manifest.handler)) {
        decision.shape = Err(fault);
    }
    known.looks_back(&mut decision);
    let refused = decision.shape.as_ref().ok().and_then(|shape| sandbox::grants::foresee(shape).err());
    if let Some(fault) = refused.map(|(fault, _)| fault) {
        decision.shape = Err(fault);
    }
    decision
}

/// `audit TOOL`: text, or one JSON object.
pub fn one(host: &Host<'_>, manifest: &Manifest, site: &Site, json: bool) -> String {
    one_text(&host.decide(manifest, site), manifest, json)
}

fn one_text(decision: &policy::Decision, manifest: &Manifest, json: bool) -> String {
    if json { pretty(&entry(decision, manifest)) } else { policy::explain::text(decision) }
}

/// The decision as data, with the digest of the script: what `diff` compares.
pub(super) fn entry(decision: &policy::Decision, manifest: &Manifest) -> serde_json::Value {
    let mut entry = policy::explain::json(decision, manifest);
    entry["digests"]["script"] = serde_json::json!(decision.script.as_deref().and_then(service::digest_of_script));
    entry
}

/// `audit TOOL --suggest-policy`
pub fn suggest(host: &Host<'_>, manifest: &Manifest, site: &Site) -> String {
    policy::suggest::policy(manifest, site, &host.decide(manifest, site))
}

/// `audit --who-can QUESTION`. `bases`: the script base folders.
pub fn who_can(host: &Host<'_>, bases: &[PathBuf], question: &str, json: bool) -> Result<String, fault::Fault> {
    let asked = policy::who_can::question(question)
        .map_err(|message| fault::Fault::new(fault::Kind::ParameterValidationError, message))?;
    let bases: BTreeSet<PathBuf> = bases
        .iter()
        .cloned()
        .chain(host.tools.iter().map(|(_, s)| s.base.clone()))
        .filter(|b| b.is_absolute())
        // The path of the question has its links resolved, too (`from_here`).
        .map(|base| runtimes::resolved(&base))
        .collect();
    let bases: Vec<PathBuf> = bases.into_iter().collect();
    let answers = policy::who_can::answer(&host.decide_all(), &asked, &bases);
    if json {
        return Ok(pretty(&serde_json::json!({ "question": question, "answers": answers })));
    }
    Ok(policy::who_can::text(&asked, &answers))
}

pub(super) fn pretty(value: &serde_json::Value) -> String {
    format!("{}\n", manifest::text::json(value, true))
}
