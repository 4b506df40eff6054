//! `toolhost audit`: what a tool may touch, without running it.
//!
//! For: `cli`. In: a tool or all, policies, a machine. Out: text or JSON.
//! Never: judges by itself: it prints the `policy::Decision` that a call is held to.

use super::refusal::{Exit, Refusal};
use super::settings::Settings;
use super::{audit_denials, audit_packages, host, remote, words};
use crate::base::links;
use crate::fault::{Fault, Kind};
use crate::{manifest, policy, service};
use http::Method;
use manifest::Manifest;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

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
    /// As the server there knows it, which hears what other hosts announce: ADDRESS:PORT, unix:PATH or https://NAME:PORT
    #[arg(long, value_name = "ADDRESS", requires = "tool", conflicts_with_all = ["suggest_policy", "probe"])]
    pub http: Option<remote::At>,
    /// Which tools can: read:PATH, write:PATH, reach:HOST[:PORT], secret:NAME, package:NAME[@VERSION], service:ID or call:TOOL; a relative path starts at the current folder
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
        return super::audit_call::run(settings, call, args.json);
    }
    if let (Some(http), Some(reference)) = (args.http, &args.tool) {
        return asked(&remote::Server { http }, reference, args.json);
    }
    let known = host::Tools::of(settings)?;
    let unheard = || settings.unheard().iter().for_each(|words| words::complain(words));
    let text = if let Some(question) = &args.who_can {
        unheard();
        // That nobody can call what is not there is no answer to somebody who misspelt it.
        let of_a_tool = question.strip_prefix("call:").map(|tool| known.snapshot.find(tool));
        if let Some(Err(fault)) = of_a_tool {
            words::complain(&format!("toolhost: {}", fault.message));
        }
        let tools = known.tools();
        let decisions: Vec<_> = tools.iter().map(|tool| known.decide(tool)).collect();
        let mut bases = settings.bases();
        bases.extend(tools.iter().map(|tool| tool.site.base.clone()));
        who_can(&decisions, &bases, &from_here(question)?, args.json).map_err(|fault| Refusal::of(&fault))?
    } else if let Some(reference) = &args.tool {
        let tool = known.snapshot.find(reference).inspect_err(|_| unheard());
        let tool = tool.map_err(|fault| Refusal::of(&fault))?;
        if args.probe {
            return super::probe::run(settings, &known, &tool, args.json);
        }
        match args.suggest_policy {
            true => policy::suggest::policy(&tool.manifest, &tool.site, &known.decide(&tool)),
            false => {
                let decision = known.foreseen(&tool, &known.policies, &known.machine);
                let last = audit_denials::of(settings, &tool, &decision);
                let kept = audit_packages::of(settings, &known.machine, &decision);
                match args.json {
                    true => {
                        let mut entry = entry(&decision, &tool.manifest);
                        entry[policy::audit::LAST_DENIALS] = audit_denials::value(&last);
                        entry[policy::audit::KEPT_PACKAGES] = service::packages::value(&kept);
                        pretty(&entry)
                    }
                    false => {
                        policy::audit::text(&decision) + &audit_packages::text(&kept) + &audit_denials::text(&last)
                    }
                }
            }
        }
    } else {
        unheard();
        words::stream(|out| all(&known, args.json, out));
        return Ok(Exit::Ok.into());
    };
    words::show(text.as_bytes());
    Ok(Exit::Ok.into())
}

/// What a running server says of a tool.
fn asked(server: &remote::Server, reference: &str, json: bool) -> anyhow::Result<ExitCode> {
    let path = format!("/v1/tools/{}/audit", utf8_percent_encode(reference, NON_ALPHANUMERIC));
    let report = server.ask(Method::GET, &path, None, "digests")?;
    if json {
        words::show_json(&report);
        return Ok(Exit::Ok.into());
    }
    let mut out = String::new();
    words::fields(&report, &mut out);
    words::show(out.as_bytes());
    Ok(Exit::Ok.into())
}

/// Every tool, written one after the other: texts with a line between, or `{"tools": […]}`.
fn all(known: &host::Tools, json: bool, out: &mut dyn Write) -> io::Result<()> {
    let tools = known.tools();
    let (head, between, end) = match (json, tools.is_empty()) {
        (true, _) => ("{\"tools\": [\n", ",\n", "]}\n"),
        (false, true) => ("No tools are loaded.\n", "", ""),
        (false, false) => ("", "\n", ""),
    };
    out.write_all(head.as_bytes())?;
    for (at, tool) in tools.iter().enumerate() {
        let text = one(&known.foreseen(tool, &known.policies, &known.machine), &tool.manifest, json);
        out.write_all(if at > 0 { between.as_bytes() } else { b"" })?;
        out.write_all(text.strip_suffix('\n').filter(|_| json).unwrap_or(&text).as_bytes())?;
    }
    out.write_all(if json && !tools.is_empty() { b"\n" } else { b"" })?;
    out.write_all(end.as_bytes())
}

/// `read:out/x.csv` → `read:/here/out/x.csv`: a relative path starts at the current folder, as it does for a shell.
/// Grants hold no links, so links in the path are resolved.
fn from_here(question: &str) -> anyhow::Result<String> {
    let paths = question.split_once(':').filter(|(verb, path)| ["read", "write"].contains(verb) && !path.is_empty());
    let Some((verb, path)) = paths else { return Ok(question.to_owned()) };
    let mut here = match path.starts_with('/') {
        true => PathBuf::from("/"),
        false => std::env::current_dir().map_err(|e| {
            Refusal::new(Exit::Caller, format!("the current folder is not known ({e}): name the whole path"))
        })?,
    };
    let mut rest = Path::new(path).components().peekable();
    // getcwd(3) holds no link, so `..` at the start can be resolved here; a later one may follow a link, and stays.
    while let Some(first @ (Component::CurDir | Component::ParentDir | Component::RootDir)) = rest.peek() {
        if *first == Component::ParentDir {
            here.pop();
        }
        rest.next();
    }
    here.extend(rest);
    let climbs = here.components().any(|part| part == Component::ParentDir);
    let meant = if climbs { here } else { links::resolved(&here) };
    Ok(format!("{verb}:{}", meant.display()))
}

/// The decision about one tool: text, or one JSON object.
pub fn one(decision: &policy::Decision, manifest: &Manifest, json: bool) -> String {
    if json { pretty(&entry(decision, manifest)) } else { policy::audit::text(decision) }
}

/// The decision as data, with the digest of the script: what `diff` compares.
pub(super) fn entry(decision: &policy::Decision, manifest: &Manifest) -> Value {
    let mut entry = policy::audit::json(decision, manifest);
    entry["digests"]["script"] = json!(decision.script.as_deref().and_then(service::digest_of_script));
    entry
}

/// `audit --who-can QUESTION`. `bases`: the script base folders.
pub fn who_can(decisions: &[policy::Decision], bases: &[PathBuf], question: &str, json: bool) -> Result<String, Fault> {
    let asked =
        policy::who_can::question(question).map_err(|message| Fault::new(Kind::ParameterValidationError, message))?;
    // The path of the question has its links resolved, too (`from_here`).
    let bases: BTreeSet<PathBuf> =
        bases.iter().filter(|base| base.is_absolute()).map(|base| links::resolved(base)).collect();
    let answers = policy::who_can::answer(decisions, &asked, &bases.into_iter().collect::<Vec<_>>());
    if json {
        return Ok(pretty(&json!({ "question": question, "answers": answers })));
    }
    Ok(policy::who_can::text(&asked, &answers))
}

fn pretty(value: &Value) -> String {
    format!("{}\n", crate::base::text::json(value, true))
}
