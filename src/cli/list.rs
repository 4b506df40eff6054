//! `list`: the tools there are, and what keeps one from being called.
//!
//! For: the command line. In: a snapshot, what policy decides, the machine's facts. Out: a table, or JSON.
//! Never: prints a manifest's text raw.

use super::refusal::Exit;
use super::settings::Settings;
use super::{host, words};
use crate::base::text::{head, json as json_text, printable};
use crate::service::preflight::{self, Obstacle};
use crate::{policy, registry};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// Only tools with this tag (may be given several times: any of them)
    #[arg(long = "tag", value_name = "T")]
    pub tags: Vec<String>,
    /// Only tools of this category
    #[arg(long, value_name = "C")]
    pub category: Option<String>,
    /// Only tools of this namespace (the part before ':')
    #[arg(long, value_name = "N")]
    pub namespace: Option<String>,
    /// Only tools of this source (files, builtin, in-process)
    #[arg(long, value_name = "S")]
    pub source: Option<String>,
    /// As this caller sees it (else your login name): what callers.policy.toml gives it
    #[arg(long, value_name = "NAME")]
    pub caller: Option<String>,
    /// JSON: everything a model or a program needs
    #[arg(long)]
    pub json: bool,
}

/// Widest description in the table, characters.
const WIDE: usize = 60;

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    let host = host::Tools::of(settings)?;
    let mut out = Vec::new();
    show(&host.snapshot, &host.policies, &host.machine, &args, &mut out)?;
    words::show(&out);
    let descriptors = host.snapshot.descriptors();
    if descriptors > 0 {
        words::complain(&format!(
            "{descriptors} tool service descriptor(s) are not read: unavailable, {}",
            registry::DESCRIPTOR_NEEDS
        ));
    }
    let skipped = host.snapshot.skipped();
    if skipped > 0 {
        words::complain(&format!("{skipped} file(s) were skipped: `toolhost check` says why."));
    }
    Ok(Exit::Ok.into())
}

pub fn show(
    snapshot: &registry::Snapshot,
    policies: &policy::Policies,
    machine: &policy::Machine,
    args: &Args,
    out: &mut dyn Write,
) -> io::Result<()> {
    let filter = registry::Filter {
        tags: args.tags.clone(),
        category: args.category.clone(),
        namespace: args.namespace.clone(),
        source: args.source.clone(),
    };
    let policies = snapshot.protect(policies);
    let needs = |tool: &registry::Tool| {
        let decision = policy::decide(&tool.manifest, &tool.site, &policies, machine);
        preflight::obstacles(tool, &decision, preflight::shipped(&tool.manifest.handler))
    };
    let caller = args.caller.clone().unwrap_or_else(host::login);
    let known = |id: &str| policies.callers().is_none_or(|callers| callers.may_call(&caller, id));
    let mut tools = snapshot.list(&filter);
    tools.retain(|tool| known(&tool.manifest.id));
    let tools: Vec<_> = tools.into_iter().map(|tool| (needs(&tool), tool)).collect();
    if args.json {
        let listed: Vec<_> = tools.iter().map(|(needs, tool)| entry(tool, needs)).collect();
        return writeln!(out, "{}", json_text(&Value::Array(listed), true));
    }
    if tools.is_empty() {
        return writeln!(out, "No tool.");
    }
    table(&tools, out)
}

/// One tool as JSON.
fn entry(tool: &registry::Tool, needs: &[Obstacle]) -> Value {
    let manifest = &tool.manifest;
    let examples: Vec<_> = manifest
        .examples
        .iter()
        .map(|e| json!({"description": e.description, "input": e.input, "expectedOutput": e.expected_output}))
        .collect();
    json!({
        "toolId": manifest.id,
        "version": manifest.version.to_string(),
        "displayName": manifest.display_name,
        "description": manifest.description,
        "source": tool.source,
        "available": needs.is_empty(),
        "needs": needs.iter().map(|obstacle| &obstacle.need.words).collect::<Vec<_>>(),
        "parameters": manifest.parameters.as_ref().map(|schema| &schema.raw),
        "output": manifest.output.as_ref().map(|schema| &schema.raw),
        "examples": examples,
        "tags": manifest.tags,
        "metadata": {
            "category": manifest.metadata.category,
            "author": manifest.metadata.author,
            "permissions": manifest.metadata.permissions,
        },
        "final": manifest.is_final,
        "hidden": manifest.hidden,
        "manifest": path_or_null(&tool.site.manifest),
        "script": tool.site.script.as_deref().map(|path| path.to_string_lossy()),
    })
}

fn path_or_null(path: &std::path::Path) -> Value {
    if path.as_os_str().is_empty() { Value::Null } else { json!(path.to_string_lossy()) }
}

fn table(tools: &[(Vec<Obstacle>, Arc<registry::Tool>)], out: &mut dyn Write) -> io::Result<()> {
    let id_wide = tools.iter().map(|(_, tool)| tool.manifest.id.chars().count()).max().unwrap_or(0).max(4);
    let version = |tool: &registry::Tool| head(&tool.manifest.version.to_string(), 20);
    let version_wide = tools.iter().map(|(_, tool)| version(tool).chars().count()).max().unwrap_or(0).max(7);
    writeln!(out, "{:id_wide$}  {:version_wide$}  {:8}  DESCRIPTION", "TOOL", "VERSION", "SOURCE")?;
    for (needs, tool) in tools {
        let first = tool.manifest.description.lines().next().unwrap_or_default();
        let said = printable(&head(first, WIDE));
        let source = printable(&head(&tool.source, 20));
        writeln!(out, "{:id_wide$}  {:version_wide$}  {source:8}  {said}", tool.manifest.id, version(tool))?;
        for need in needs {
            writeln!(out, "{:id_wide$}  unavailable: {}", "", printable(&need.said()))?;
        }
    }
    Ok(())
}
