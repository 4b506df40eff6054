//! `list`: the tools, and why some are unavailable. `prompt`: the same as text for a model.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{host, terminal, words};
use crate::base::text::{head, json as json_text, path, printable};
use crate::executor::method::is_call_status;
use crate::manifest::Handler;
use crate::service::audit::UsageByTool;
use crate::service::readiness::{Need, Readiness};
use crate::service::{offered, requirements};
use crate::transport::export;
use crate::{policy, registry};
use serde_json::{Map, Value, json};
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
    /// Only tools of this source (files, builtin)
    #[arg(long, value_name = "S")]
    pub source: Option<String>,
    /// The tools of this caller (default: your login name), as callers.policy.toml allows
    #[arg(long, value_name = "NAME")]
    pub caller: Option<String>,
    /// Print JSON, with everything that a model or a program needs
    #[arg(long)]
    pub json: bool,
    /// Print the tools that can be called, as a model API takes them: openai, openai-responses,
    /// anthropic or gemini; or as text for a prompt: prompt; or as the
    /// functions that code has which calls tools: python-stubs or typescript-stubs
    #[arg(long, value_name = "F", value_parser = export::Format::parse, conflicts_with = "json")]
    pub format: Option<export::Format>,
    /// Mark each definition to be loaded once a search found it: anthropic, openai-responses
    #[arg(long, requires = "format")]
    pub defer: bool,
    /// Show how often each tool was called, what failed and how long it took, from the newest 32 MiB of
    /// the audit log; with --caller the calls of that caller alone
    #[arg(long, conflicts_with_all = ["bytes", "format"])]
    pub usage: bool,
    /// Show how many bytes of each tool a model reads, the largest first
    #[arg(long, conflicts_with = "format")]
    pub bytes: bool,
}

#[derive(Debug, clap::Args)]
pub struct PromptArgs {
    /// Only tools of this namespace (the part before ':')
    #[arg(long, value_name = "N")]
    pub namespace: Option<String>,
    /// Only tools with this tag (may be given several times: any of them)
    #[arg(long = "tag", value_name = "T")]
    pub tags: Vec<String>,
}

/// Widest description in a table that no terminal shows, characters.
const MAX_DESCRIPTION_CHARS: usize = 60;

pub fn prompt(
    settings: &Settings,
    PromptArgs { namespace, tags }: PromptArgs,
) -> anyhow::Result<ExitCode> {
    run(
        settings,
        Args {
            namespace,
            tags,
            format: Some(export::Format::Prompt),
            ..Args::default()
        },
    )
}

pub fn run(settings: &Settings, args: Args) -> anyhow::Result<ExitCode> {
    let host = host::Tools::load(settings)?;
    let usage = args.usage;
    let usage = usage.then(|| self::usage(settings, &host, &args));
    let usage = usage.transpose()?;
    let mut out = Vec::new();
    show(&host, &args, usage.as_ref(), &mut out)?;
    if args.json || args.format.is_some() {
        words::show(&out);
    } else {
        words::show(words::with_settings(&String::from_utf8_lossy(&out)).as_bytes());
    }
    let skipped = host.snapshot.skipped();
    if skipped > 0 {
        words::note(&format!(
            "{skipped} file(s) were skipped: `toolhost check` says why."
        ));
    }
    host::say_nothing_found(settings, &host.snapshot);
    let caller = args.caller.clone().unwrap_or_else(host::login);
    withheld(&host.policies, &host.snapshot, &caller)
        .iter()
        .chain(&settings.unheard())
        .for_each(|words| words::note(words));
    Ok(Exit::Ok.into())
}

/// The calls of all, or of the caller that is named.
fn usage(settings: &Settings, host: &host::Tools, args: &Args) -> anyhow::Result<UsageByTool> {
    let usage = host::audit_log(settings)?.usage();
    let usage = usage.map_err(|why| Refusal::new(Exit::Host, printable(&why)))?;
    for unread in &usage.not_looked_at {
        words::note(&format!("toolhost: not counted: {}", printable(unread)));
    }
    let tools = host.snapshot.list(&registry::Filter::default());
    Ok(usage.of(&tools, args.caller.as_deref()))
}

/// Why nothing is shown: `callers.policy.toml` grants this caller no tool.
pub fn withheld(
    policies: &policy::Policies,
    snapshot: &registry::Snapshot,
    caller: &str,
) -> Option<String> {
    let callers = policies.callers()?;
    let tools = snapshot.list(&registry::Filter::default());
    let none = !tools.is_empty()
        && !tools
            .iter()
            .any(|tool| callers.may_call(caller, &tool.manifest.id));
    let shown = printable(caller);
    let file = path(&callers.file);
    none.then(|| {
        format!(
            "toolhost: {file} grants {shown} no tool; `toolhost list --caller NAME` shows another \
             caller's tools"
        )
    })
}

fn show(
    host: &host::Tools,
    args: &Args,
    usage: Option<&UsageByTool>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let filter = registry::Filter {
        tags: args.tags.clone(),
        category: args.category.clone(),
        namespace: args.namespace.clone(),
        source: args.source.clone(),
    };
    let readiness = |tool: &registry::Tool| Readiness::shipped(tool, &host.decide(tool));
    let name_packages = |tool: &mut Arc<registry::Tool>| {
        requirements::name_packages(tool, |tool| host.decide(tool))
    };
    let caller = args.caller.as_deref();
    if let Some(format) = args.format {
        let all = offered_to(host, caller);
        let offered: Vec<_> = all
            .iter()
            .filter(|tool| filter.takes(tool))
            .cloned()
            .collect();
        let definitions = export::tools(&offered, &export::names(&all), format);
        let definitions = match (args.defer, format) {
            (true, export::Format::Anthropic | export::Format::OpenAiResponses) => {
                export::deferred(definitions)
            }
            _ => definitions,
        };
        return match definitions {
            Value::String(text) => write!(out, "{text}"),
            value => writeln!(out, "{}", json_text(&value, true)),
        };
    }
    let mut tools = host.snapshot.list(&filter);
    retain_callable(host, caller, &mut tools);
    let tools = tools.into_iter().map(|mut tool| {
        name_packages(&mut tool);
        (readiness(&tool).needs(), tool)
    });
    let tools: Vec<_> = tools.collect();
    if args.bytes {
        return show_bytes(tools.iter().map(|(_, tool)| tool), args.json, out);
    }
    if args.json {
        let listed: Vec<_> = tools
            .iter()
            .map(|(needs, tool)| {
                let mut entry = entry(tool, needs);
                if let Some(usage) = usage {
                    entry["usage"] = usage_of(tool, usage).into();
                }
                entry
            })
            .collect();
        return writeln!(out, "{}", json_text(&Value::Array(listed), true));
    }
    if tools.is_empty() {
        return writeln!(out, "No tools.");
    }
    let mut rows: Vec<Value> = tools.iter().map(|(needs, tool)| row(tool, needs)).collect();
    let mut columns = vec!["tool", "version", "source", "description"];
    if let Some(usage) = usage {
        columns = vec!["tool", "version", "calls", "failures", "p50Ms", "last"];
        for (row, (_, tool)) in rows.iter_mut().zip(&tools) {
            for (name, value) in usage_of(tool, usage) {
                row[name] = match words::age(&words::flat(&value)) {
                    Some(age) if name == "last" => age.into(),
                    _ => value,
                };
            }
        }
    }
    let below = ["unavailable", "runs", "errors"];
    write!(out, "{}", words::table(&rows, &columns, &below))
}

/// What each tool costs a model, and all together.
fn show_bytes<'t>(
    tools: impl Iterator<Item = &'t Arc<registry::Tool>>,
    as_json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut sizes: Vec<_> = tools
        .map(|tool| (export::definition_bytes(tool), tool.manifest.id.clone()))
        .collect();
    sizes.sort_by(|a, b| b.cmp(a));
    let sum: usize = sizes.iter().map(|(bytes, _)| bytes).sum();
    let rows: Vec<Value> = sizes
        .into_iter()
        .chain([(sum, "all".to_owned())])
        .map(|(bytes, tool)| json!({ "tool": tool, "bytes": bytes }))
        .collect();
    if as_json {
        return writeln!(out, "{}", json_text(&json!(rows), true));
    }
    write!(out, "{}", words::table(&rows, &["tool", "bytes"], &[]))
}

/// The calls of a tool, all its versions together.
fn usage_of(tool: &registry::Tool, usage: &UsageByTool) -> Map<String, Value> {
    let used = usage.get(&tool.manifest.id).cloned();
    used.unwrap_or_default().describe()
}

/// Those that the caller may call (`None`: who runs this process).
pub(super) fn retain_callable(
    host: &host::Tools,
    caller: Option<&str>,
    tools: &mut Vec<Arc<registry::Tool>>,
) {
    let Some(callers) = host.policies.callers() else {
        return;
    };
    let login = host::login();
    let caller = caller.unwrap_or(&login);
    let snapshot = &host.snapshot;
    tools.retain(|tool| snapshot.opens(&tool.manifest.id, |id| callers.may_call(caller, id)));
}

/// The tools that models of this caller are offered.
pub fn offered_to(host: &host::Tools, caller: Option<&str>) -> Vec<Arc<registry::Tool>> {
    let mut all = host.snapshot.list(&registry::Filter::default());
    retain_callable(host, caller, &mut all);
    for tool in &mut all {
        requirements::name_packages(tool, |tool| host.decide(tool));
    }
    offered(
        all,
        |id| host.snapshot.find(id).ok(),
        |tool| {
            matches!(
                Readiness::shipped(tool, &host.decide(tool)),
                Readiness::Ready
            )
        },
    )
}

/// One tool as JSON, with the paths of its files on this machine.
fn entry(tool: &registry::Tool, needs: &[Need]) -> Value {
    let mut entry = export::describe(tool);
    entry["available"] = json!(needs.is_empty());
    entry["needs"] = needs.iter().map(|need| need.words.as_str()).collect();
    entry["manifest"] =
        json!(Some(tool.site.manifest.to_string_lossy()).filter(|path| !path.is_empty()));
    entry["script"] = json!(
        tool.site
            .script
            .as_deref()
            .map(|path| path.to_string_lossy())
    );
    entry
}

/// One tool as a row of the table.
fn row(tool: &registry::Tool, needs: &[Need]) -> Value {
    let runs = match &tool.manifest.handler {
        Handler::Client(_) => vec!["the client of a call".to_owned()],
        Handler::Alias(alias) => vec![alias.tool.clone()],
        _ => Vec::new(),
    };
    let first = tool.manifest.description.lines().next().unwrap_or_default();
    // Every server has this one, and no other process.
    let of_servers = is_call_status(&tool.manifest.handler);
    let missing = needs
        .iter()
        .filter(|need| !of_servers || !matches!(need, Need::Fault(..)));
    json!({
        "tool": tool.manifest.id,
        "version": head(&tool.manifest.version.to_string(), 20),
        "source": head(&tool.source, 20),
        "description": head(first, terminal::columns().unwrap_or(MAX_DESCRIPTION_CHARS)),
        "unavailable": missing.map(Need::text).collect::<Vec<_>>(),
        "runs": runs,
    })
}
