//! `toolhost audit`: what a tool may touch, without running it; what a past call did; what our own
//! probe can do.
//!
//! The report is the `policy::Decision` that a call is held to, as JSON, and the same value as
//! text.

use super::refusal::{Exit, Refusal};
use super::settings::{self, Settings};
use super::{host, process, remote, words};
use crate::base::{files, text};
use crate::executor::process::{examine, settle};
use crate::fault::{Fault, Kind};
use crate::manifest::{Language, Manifest, ToolPaths};
use crate::policy::{self, Grantable};
use crate::sandbox::probe::ProbeResult;
use crate::service::ledger::Ledger;
use crate::service::packages::Packages;
use crate::{registry, service};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Members that the summary of a report shows already, or that are only for programs.
const NOT_SHOWN: [&str; 12] = [
    "calls",
    "tool",
    "policy",
    "policyFile",
    "mode",
    "inProcess",
    "startsScripts",
    "script",
    "grants",
    "refused",
    "manifest",
    "digests",
];
const TABLES: [words::Table; 3] = [
    (
        "asks",
        &[
            "what=kind",
            "asked=request",
            "allowed",
            "effective",
            "why",
            "enforcedBy",
        ],
        &["rule", "place", "reason"],
    ),
    (
        "limits",
        &[
            "limit",
            "asked=request",
            "effective",
            "ceiling",
            "from",
            "enforcedBy",
            "clamped",
            "sampled",
        ],
        &[],
    ),
    (
        "denials",
        &[
            "operation",
            "target",
            "rule",
            "narrower",
            "calls",
            "time",
            "call",
        ],
        &["changed"],
    ),
];
/// What our probe tried, and the layers around it.
const PROBED: [words::Table; 2] = [ATTEMPTS, LAYERS];
pub(super) const ATTEMPTS: words::Table =
    ("tried", &["result", "what=attempt", "answer"], &["closed"]);
pub(super) const LAYERS: words::Table = ("layers", &["name=layer", "state", "why=detail"], &[]);

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Args {
    /// The tool: id, id@1.2.0 or id@^1
    #[arg(required_unless_present_any = ["all", "who_can", "call", "diff"])]
    #[arg(conflicts_with_all = ["who_can", "call", "diff"])]
    pub tool: Option<String>,
    /// Show every request, limit and layer after the summary; without a tool, for every tool
    #[arg(long, conflicts_with_all = ["who_can", "call", "diff"])]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the policy text that would grant what the tool asks
    #[arg(long, requires = "tool", conflicts_with_all = ["all", "who_can", "call", "diff"])]
    pub suggest_policy: bool,
    /// Write that text to a new file
    #[arg(long, value_name = "FILE", requires = "suggest_policy")]
    pub out: Option<PathBuf>,
    /// Run our own probe inside that exact confinement (never the tool): what it could and could
    /// not do
    #[arg(long, requires = "tool", conflicts_with_all = ["all", "who_can", "call", "diff", "suggest_policy"])]
    pub probe: bool,
    /// Ask the server at this address, which also knows what other hosts announce: ADDRESS:PORT,
    /// unix:PATH or https://NAME:PORT
    #[arg(long, value_name = "ADDRESS", value_parser = remote::ServerAddress::parse)]
    #[arg(requires = "tool", conflicts_with_all = ["suggest_policy", "probe"])]
    pub http: Option<remote::ServerAddress>,
    /// Which tools can: read:PATH, write:PATH, reach:HOST[:PORT], secret:NAME,
    /// package:NAME[@VERSION], service:ID, ready:TOOL, session:TOOL, approved:TOOL or call:TOOL; a relative path starts at the current
    /// folder
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
    if let Some(id) = &args.call {
        return past_call(settings, id, args.json);
    }
    if let (Some(http), Some(reference)) = (&args.http, &args.tool) {
        let path = format!(
            "/v1/tools/{}/audit",
            utf8_percent_encode(reference, NON_ALPHANUMERIC)
        );
        let report = remote::Server::new(http.clone()).ask(Method::GET, &path, None, "digests")?;
        words::show(render(&report, &args).as_bytes());
        return Ok(Exit::Ok.into());
    }
    let known = host::Tools::load(settings)?;
    fn unheard(settings: &Settings) {
        settings
            .unheard()
            .iter()
            .for_each(|words| words::note(words))
    }
    let Some(reference) = &args.tool else {
        unheard(settings);
        match &args.who_can {
            Some(question) => {
                words::show(answer_who_can(settings, &known, question, args.json)?.as_bytes())
            }
            None => words::stream(|out| all(&known, args.json, out)),
        }
        return Ok(Exit::Ok.into());
    };
    let tool = known
        .snapshot
        .find(reference)
        .inspect_err(|_| unheard(settings));
    let mut tool = tool.map_err(|fault| Refusal::from_fault(&fault))?;
    // Of an alias, and of a server's tool, only the rights are its own.
    if args.probe || args.suggest_policy {
        tool = known.snapshot.of_grants(&tool).unwrap_or(tool);
    }
    if args.probe {
        return probe(settings, &known, &tool, args.json);
    }
    let text = if args.suggest_policy {
        suggest_policy(settings, &known, &tool, args.out.as_deref())?
    } else if args.json {
        render(&with_records(settings, &known, &tool), &args)
    } else {
        words::with_settings(&render(&with_records(settings, &known, &tool), &args))
    };
    words::show(text.as_bytes());
    Ok(Exit::Ok.into())
}

/// The report of one tool, as the flags ask for it.
fn render(report: &Value, args: &Args) -> String {
    match (args.json, args.all) {
        (true, _) => pretty(report),
        (false, true) => whole(report),
        (false, false) => summary(report),
    }
}

/// What a tool may touch, for a person.
pub(super) fn of_tool(settings: &Settings, known: &host::Tools, tool: &registry::Tool) -> String {
    summary(&with_records(settings, known, tool))
}

/// The report of a tool with what is recorded of it: what its last calls were refused, and what its
/// packages are.
fn with_records(settings: &Settings, known: &host::Tools, tool: &registry::Tool) -> Value {
    let decision = known.foreseen(tool, &known.policies, &known.machine);
    let reached = known.reached(&decision, &known.policies, &known.machine);
    let mut entry = entry(&decision, &tool.manifest, reached);
    let log = || host::audit_log(settings).map_err(|why| why.to_string());
    let last = log().and_then(|log| log.last_denials(tool, &decision));
    entry[policy::audit::LAST_DENIALS] =
        last.map_or_else(|why| json!({ "unreadable": why }), |last| json!(last));
    let kept = decision
        .packages
        .required
        .as_ref()
        .and_then(|_| match log() {
            Ok(log) => {
                let ledger = Arc::new(Ledger::open_beside(log.path()));
                let settings = host::packages(settings, &known.machine, false);
                Packages::new(settings, None, log, ledger).found(&decision)
            }
            Err(why) => Some(Err(why)),
        });
    entry[policy::audit::KEPT_PACKAGES] = service::packages::value(&kept);
    entry
}

/// Answers a question of `--who-can`: which tools can do something.
fn answer_who_can(
    settings: &Settings,
    known: &host::Tools,
    question: &str,
    json: bool,
) -> anyhow::Result<String> {
    // A misspelt id is an error, and not a tool that no caller may call. A range means the version
    // that it finds.
    let (kind, target) = question.split_once(':').unwrap_or_default();
    let is_of_tool = matches!(kind, "call" | "approved" | "ready" | "session");
    let tool = is_of_tool.then(|| known.snapshot.find(target)).transpose();
    let tool = tool
        .map_err(|fault| Refusal::from_fault(&fault))?
        .filter(|_| kind == "call" && question.contains('@'));
    let question = &tool.map_or(question.to_owned(), |tool| {
        format!("call:{}", tool.reference())
    });
    host::say_root(settings);
    let tools = known.tools();
    let decisions: Vec<_> = tools.iter().map(|tool| known.decide(tool)).collect();
    let mut bases = settings.bases();
    bases.extend(tools.iter().map(|tool| tool.site.base.clone()));
    Ok(who_can(&decisions, &bases, &from_here(question)?, json)
        .map_err(|fault| Refusal::from_fault(&fault))?)
}

/// The policy that would grant what a tool asks for: printed, or written to a new file.
fn suggest_policy(
    settings: &Settings,
    known: &host::Tools,
    tool: &registry::Tool,
    file: Option<&Path>,
) -> anyhow::Result<String> {
    let decision = known.decide(tool);
    let places = policy::suggest::Places {
        root: &files::resolved(&settings.root),
        policies: &files::resolved(&settings.policy_path()),
    };
    let text = policy::suggest::policy(&tool.manifest, &tool.site, &decision, &places);
    let text = words::with_settings(&text);
    let Some(file) = file else { return Ok(text) };
    // A second policy that names the exact id would stop everything.
    if decision.governing.exact || !text.lines().any(|line| line.starts_with("tools = ")) {
        return Err(Refusal::new(Exit::Caller, format!("{text}nothing was written")).into());
    }
    words::write_file(file, &text, false).map_err(|e: io::Error| {
        Refusal::new(
            Exit::Caller,
            format!("{}: {e}; nothing was written", text::path(file)),
        )
    })?;
    Ok(format!(
        "{}: written; read each line, and delete what the tool should not have\n",
        text::path(file)
    ))
}

/// What runs, and with which interpreter.
fn runs(report: &Value, runtimes: impl Iterator<Item = String>) -> String {
    if let Value::String(script) = &report["script"] {
        let parts: Vec<_> = std::iter::once(script.clone()).chain(runtimes).collect();
        return parts.join("; ");
    }
    if report["inProcess"] == false {
        "where the client of a call is: nothing of it runs here".to_owned()
    } else if report["service"].is_null() {
        "inside toolhost, without layers of its own; a script that it starts has them".to_owned()
    } else {
        "a service elsewhere, which nothing here confines".to_owned()
    }
}

/// What may be started before calls, or go on between them.
fn waits(report: &Value) -> Vec<String> {
    let ready: Option<policy::ReadyGrant> = serde_json::from_value(report["ready"].clone()).ok();
    let sessions: Option<policy::SessionGrant> =
        serde_json::from_value(report["sessions"].clone()).ok();
    let mcp: Option<policy::McpGrant> = serde_json::from_value(report["mcp"].clone()).ok();
    let ready = ready.iter().map(Grantable::text);
    let sessions = sessions.iter().map(Grantable::text);
    ready
        .chain(sessions)
        .chain(mcp.iter().map(Grantable::text))
        .collect()
}

/// Where the files lie that a call brings, and those that it leaves, if its tool takes any.
fn call_folders(report: &Value) -> [Option<String>; 2] {
    let mut folders = list(&report["everywhere"]["call"]).iter().map(word);
    [
        "the files that the call brings",
        "what lies there goes to its caller",
    ]
    .map(|what| Some(format!("{}: {what}", folders.next()?)))
}

/// A few lines: whether a call runs, under which policy, and what it may touch. What is empty is
/// shown as `none`.
fn summary(report: &Value) -> String {
    let asks = list(&report["asks"]);
    fn effective(ask: &Value) -> Option<String> {
        ask["effective"].as_str().map(str::to_owned)
    }
    let granted = |kind: &'static str| {
        asks.iter()
            .filter(move |ask| ask["what"] == kind)
            .filter_map(effective)
    };
    let capabilities = asks.iter().filter(|ask: &&Value| {
        ask["what"] == "capability" && !word(&ask["asked"]).starts_with("secret:")
    });
    let capabilities = capabilities
        .filter_map(|ask| Some(format!("{}: {}", word(&ask["asked"]), effective(ask)?)));
    let secrets = list(&report["secrets"]).iter();
    let secrets = secrets.map(|it| {
        format!(
            "{}: {}, from {}",
            word(&it["name"]),
            word(&it["use"]),
            word(&it["from"])
        )
    });
    // Several requests can be met by one grant.
    let calls = serde_json::from_value(report["calls"].clone());
    let calls: Vec<policy::CallGrant> = calls.unwrap_or_default();
    let risks = list(&report["highRisks"]).iter();
    let risks = risks.map(|risk| {
        format!(
            "high risk: `{}`: {}",
            word(&risk["host"]),
            word(&risk["why"])
        )
    });
    let denied = asks.iter().filter(|ask| ask["allowed"] == false);
    let denied = denied.map(|ask| {
        format!(
            "{} {}: {}",
            word(&ask["what"]),
            word(&ask["asked"]),
            word(&ask["reason"])
        )
    });
    let fault = report["refused"]["person"]
        .as_str()
        .into_iter()
        .flat_map(str::lines)
        .map(str::to_owned);
    let uses = secrets
        .chain(capabilities)
        .chain(["env", "package", "service"].into_iter().flat_map(granted))
        .chain(calls.iter().map(Grantable::text))
        .chain(list(&report["reaches"]).iter().map(word));
    let policy = word(&report["policy"]);
    let mode = word(&report["mode"]);
    let file = word(&report["policyFile"]);
    let policy = format!("{policy} (mode {mode}) {file}");
    let runs = std::iter::once(runs(report, granted("runtime")));
    let runs = runs.chain(waits(report)).collect();
    let [input, output] = call_folders(report);
    let lines: [(&str, Vec<String>); 10] = [
        ("policy", vec![policy.trim_end().to_owned()]),
        ("runs", runs),
        ("read", granted("read").chain(input).collect()),
        ("write", granted("write").chain(output).collect()),
        ("hosts", granted("host").chain(risks).collect()),
        ("uses", uses.collect()),
        ("limits", vec![limits(effective_limits(report)).join("; ")]),
        ("callers", callers(report)),
        (
            "denied",
            denied
                .chain(last_denials(&report[policy::audit::LAST_DENIALS]))
                .collect(),
        ),
        (
            "notes",
            fault
                .chain(list(&report["notes"]).iter().map(word))
                .collect(),
        ),
    ];
    let verdict = match &report["refused"] {
        Value::Null => "can be called (--all shows every request, limit and layer)".to_owned(),
        fault => format!(
            "a call is refused: {}: {}",
            word(&fault["type"]),
            word(&fault["message"])
        ),
    };
    let mut out = text::printable(&format!("{}: {verdict}", word(&report["tool"]))) + "\n";
    for (name, parts) in lines {
        let shown = (!parts.is_empty()).then_some(parts);
        words::field(name, &json!(shown), &mut out);
    }
    out
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("none").to_owned()
}

/// Whether a process of this host does the work, so that there is something to confine.
fn has_process(report: &Value) -> bool {
    report["inProcess"] != true || report["startsScripts"] == true
}

/// The limits that a call is held to: without a process there is only its time and its answer,
/// without a network no traffic, and without calls from its code none of their number.
fn effective_limits(report: &Value) -> impl Iterator<Item = &Value> {
    list(&report["limits"]).iter().filter(|limit| {
        if has_process(report) {
            (report["network"] != "none" || limit["enforcedBy"] != "network")
                && (limit["limit"] != "nestedCalls" || !list(&report["calls"]).is_empty())
        } else {
            limit["limit"] == "timeoutMs" || limit["limit"] == "outputBytes"
        }
    })
}

/// The limits that people look for, and those that the manifest names.
fn limits<'r>(all: impl Iterator<Item = &'r Value>) -> Vec<String> {
    let shown = all
        .filter(|limit: &&Value| {
            !limit["asked"].is_null()
                || limit["limit"] == "timeoutMs"
                || limit["limit"] == "memoryBytes"
        })
        .map(|limit| {
            let clamped = if limit["clamped"] == true {
                " (clamped)"
            } else {
                ""
            };
            format!("{} {}{clamped}", word(&limit["limit"]), limit["effective"])
        });
    shown.collect()
}

/// Who may call the tool, and whether a person agrees to each call.
fn callers(report: &Value) -> Vec<String> {
    let named = report["callers"]
        .as_array()
        .map(|all| all.iter().map(|caller| word(&caller["name"])).collect());
    let mut parts: Vec<String> =
        named.unwrap_or_else(|| vec![policy::CallerGrant::anybody().text()]);
    let approval = &report["approval"];
    if let Some(by) = approval["requiredBy"].as_str() {
        let state = word(&approval["state"]);
        let record = word(&approval["record"]);
        parts.push(format!("only as approved ({by}): {state}: {record}"));
    }
    for confirm in list(&report["confirm"]) {
        let by_client = confirm["byClient"].as_str();
        let by_client =
            by_client.map(|why| format!("; the MCP client that calls may ask its person: {why}"));
        let policy = word(&confirm["policy"]);
        let why = word(&confirm["why"]);
        let by_client = by_client.unwrap_or_default();
        parts.push(format!(
            "a person is asked before each call (policy {policy}: {why}{by_client})"
        ));
    }
    parts
}

/// What the last calls were refused, in few words.
fn last_denials(last: &Value) -> Option<String> {
    if let Some(why) = last["unreadable"].as_str() {
        return Some(format!("the audit log cannot be read: {why}"));
    }
    let newest = list(&last["denials"]).first()?;
    Some(format!(
        "refused lately: {} {} (--all shows all)",
        word(&newest["operation"]),
        word(&newest["target"])
    ))
}

/// The summary, then all of the report.
fn whole(report: &Value) -> String {
    let mut rest = report.clone();
    rest["limits"] = effective_limits(report).cloned().collect();
    for ask in rest["asks"]
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter(|ask| ask["place"] == "built-in")
    {
        // A built-in rule is in no file.
        ask["rule"] = Value::Null;
        ask["place"] = Value::Null;
    }
    list_packages(&mut rest);
    let last = rest.as_object_mut().map(|fields| {
        fields.retain(|name, value| {
            !NOT_SHOWN.contains(&name.as_str())
                && (has_process(report)
                    || !["folder", "system", "everywhere", "network"].contains(&name.as_str()))
                && !words::is_empty(value)
        });
        fields
            .shift_remove(policy::audit::LAST_DENIALS)
            .unwrap_or_default()
    });
    let last = words::render(&last.unwrap_or_default(), &TABLES);
    let last = if last.is_empty() {
        last
    } else {
        format!("\nlast denials\n{last}")
    };
    format!(
        "{}\n{}{last}",
        summary(report),
        words::render(&rest, &TABLES)
    )
}

/// Packages are listed one a line; JSON has their hashes, too.
fn list_packages(report: &mut Value) {
    shorten_packages(report);
    let kept = &mut report[policy::audit::KEPT_PACKAGES];
    let resolved = kept["resolved"].take();
    let built = kept["built"]["about"]["packages"].take();
    let packages = if built.is_null() { resolved } else { built };
    report["installedPackages"] = packages;
}

/// Each package of the report as `name version`.
fn shorten_packages(value: &mut Value) {
    if value.get("hashes").is_some() {
        *value = json!(format!(
            "{} {}",
            word(&value["name"]),
            word(&value["version"])
        ));
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(shorten_packages),
        Value::Object(fields) => fields.values_mut().for_each(shorten_packages),
        _ => {}
    }
}

/// Every tool: a table of what each may touch, or `{"tools": […]}`, written one after the other.
fn all(known: &host::Tools, json: bool, out: &mut dyn Write) -> io::Result<()> {
    let tools = known.tools();
    let entries = tools.iter().map(|tool| {
        let decision = known.foreseen(tool, &known.policies, &known.machine);
        let reached = known.reached(&decision, &known.policies, &known.machine);
        entry(&decision, &tool.manifest, reached)
    });
    if json {
        writeln!(out, "{{\"tools\": [")?;
        for (at, entry) in entries.enumerate() {
            let between = if at > 0 { ",\n" } else { "" };
            write!(out, "{between}{}", pretty(&entry).trim_end())?;
        }
        return writeln!(out, "\n]}}");
    }
    if tools.is_empty() {
        return writeln!(out, "No tools are loaded.");
    }
    let rows: Vec<Value> = entries.map(|entry| row(&entry)).collect();
    let columns = ["tool", "read", "write", "hosts", "secrets", "packages"];
    write!(out, "{}", words::table(&rows, &columns, &["refused"]))?;
    writeln!(
        out,
        "`toolhost audit TOOL` shows one tool, `--json` all of each."
    )
}

/// What one tool may touch, in a few words.
fn row(entry: &Value) -> Value {
    let granted = |kind: &str| {
        let asks = list(&entry["asks"]).iter();
        let granted = asks.filter(|ask| ask["what"] == kind && ask["effective"].is_string());
        granted.filter_map(|ask| ask["asked"].as_str()).collect()
    };
    let secrets = list(&entry["secrets"]).iter();
    let refused = &entry["refused"];
    json!({
        "tool": entry["tool"],
        "read": few(granted("read")),
        "write": few(granted("write")),
        "hosts": few(granted("host")),
        "secrets": few(secrets.filter_map(|secret| secret["name"].as_str()).collect()),
        "packages": few(granted("package")),
        "refused": refused["type"].as_str().map(|kind| format!("{kind}: {}", word(&refused["message"]))),
    })
}

/// The first, and how many more there are.
fn few(granted: Vec<&str>) -> String {
    match granted[..] {
        [] => "-".to_owned(),
        ["(default)"] => "own folder".to_owned(),
        [one] => one.to_owned(),
        [first, ..] => format!("{first} +{}", granted.len() - 1),
    }
}

/// `read:out/x.csv` → `read:/here/out/x.csv`: a relative path starts at the current folder, as it
/// does for a shell. Grants hold no links, so links in the path are resolved.
fn from_here(question: &str) -> anyhow::Result<String> {
    let paths = question
        .split_once(':')
        .filter(|(verb, path)| ["read", "write"].contains(verb) && !path.is_empty());
    let Some((verb, path)) = paths else {
        return Ok(question.to_owned());
    };
    let path = std::path::absolute(path).map_err(|e| {
        Refusal::new(
            Exit::Caller,
            format!("the current folder is not known ({e}): name the whole path"),
        )
    })?;
    Ok(format!("{verb}:{}", files::resolved(&path).display()))
}

/// The decision about one tool: text, or one JSON object.
pub fn one(decision: &policy::Decision, manifest: &Manifest, json: bool) -> String {
    let entry = entry(decision, manifest, Vec::new());
    if json { pretty(&entry) } else { whole(&entry) }
}

/// The decision as data, with the digest of the script and what its code reaches through other
/// tools: what `diff` compares.
pub(super) fn entry(
    decision: &policy::Decision,
    manifest: &Manifest,
    reached: Vec<String>,
) -> Value {
    let mut entry = policy::audit::json(decision, manifest);
    if !reached.is_empty() {
        entry["reaches"] = json!(reached);
    }
    entry["digests"]["script"] = json!(
        decision
            .identity
            .script
            .as_deref()
            .and_then(service::digest_of_script)
    );
    entry
}

/// `audit --who-can QUESTION`. `bases`: the script base folders.
pub fn who_can(
    decisions: &[policy::Decision],
    bases: &[PathBuf],
    question: &str,
    json: bool,
) -> Result<String, Fault> {
    let asked = policy::who_can::question(question)
        .map_err(|message| Fault::new(Kind::ParameterValidationError, message))?;
    // The path of the question has its links resolved, too (`from_here`).
    let bases: BTreeSet<PathBuf> = bases
        .iter()
        .filter(|base| base.is_absolute())
        .map(|base| files::resolved(base))
        .collect();
    let answers =
        policy::who_can::answer(decisions, &asked, &bases.into_iter().collect::<Vec<_>>());
    if json {
        return Ok(pretty(&json!({ "question": question, "answers": answers })));
    }
    Ok(policy::who_can::text(&asked, &answers))
}

fn pretty(value: &Value) -> String {
    format!("{}\n", crate::base::text::json(value, true))
}

/// A past call, by the record and the confinement that were kept of it.
fn past_call(settings: &Settings, id: &str, json: bool) -> anyhow::Result<ExitCode> {
    let recalled = host::audit_log(settings)?.recall(id);
    let recalled = recalled.map_err(|why| Refusal::new(Exit::Caller, text::printable(&why)))?;
    let record = recalled.record;
    let confinement = recalled.confinement;
    let touched = match &confinement {
        Some(confinement) => format!("what it could touch\n{}", words::render(confinement, &[])),
        None if record["service"].is_string() => {
            "a service elsewhere did the work, which nothing here confines\n".to_owned()
        }
        None if record["digests"]["confinement"].is_null() => {
            "this host started no process for the call\n".to_owned()
        }
        None => {
            "the folder of the audit log no longer has the text of its confinement\n".to_owned()
        }
    };
    let version = record["version"]
        .as_str()
        .map_or_else(String::new, |version| format!("@{version}"));
    let of = format!(
        "call {id} of {}{version}",
        record["tool"].as_str().unwrap_or_default()
    );
    words::answer(
        &json!({ "record": record, "confinement": confinement }),
        json,
        || {
            format!(
                "{}\n{}\n{touched}",
                text::printable(&of),
                words::render(&record, &[])
            )
        },
    );
    Ok(Exit::Ok.into())
}

/// The shape that a call of this tool gets, for our probe.
fn shape(known: &host::Tools, tool: &registry::Tool) -> anyhow::Result<Arc<policy::Shape>> {
    fn refuse(fault: Fault) -> Refusal {
        Refusal::from_fault(&fault)
    }
    if tool.manifest.id == policy::RUN_CODE {
        let site = ToolPaths {
            folder: crate::sandbox::CALL_FOLDER.into(),
            script: None,
            ..ToolPaths::clone(&tool.site)
        };
        let machine = &known.machine;
        // One language stands for all: what differs is the interpreter's own files.
        let language = machine
            .runtimes
            .keys()
            .next()
            .copied()
            .unwrap_or(Language::Python);
        let target = policy::RunTarget { site, language };
        return Ok(
            policy::decide_run(&target, &tool.manifest, &[], &known.policies, machine)
                .shape
                .map_err(refuse)?,
        );
    }
    if tool.manifest.handler.script().is_none() {
        let what =
            "it starts no process of its own; probe the tool whose script it is asked to run";
        return Err(Refusal::new(Exit::Caller, format!("{}: {what}", tool.manifest.id)).into());
    }
    let mut shape = known.decide(tool).shape.map_err(refuse)?;
    service::ledger::look_back(&mut shape, None, &known.snapshot.written).map_err(refuse)?;
    Ok(shape)
}

/// What could and could not be done inside the exact confinement of a tool. Its script is not run.
fn probe(
    settings: &Settings,
    known: &host::Tools,
    tool: &registry::Tool,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let shape = shape(known, tool)?;
    let around = examine::Surroundings {
        manifest: Some(tool.site.manifest.clone()).filter(|path| !path.as_os_str().is_empty()),
        policies: settings.policies.clone(),
        home: settings::home(&|name| std::env::var_os(name)),
    };
    let runtime = process::runtime()?;
    let examined = runtime.block_on(examine::run(&known.launchers, &shape, &around));
    drop(runtime);
    settle(process::SHUTDOWN_TIMEOUT);
    let examined = examined.map_err(|unready| Refusal::from_fault(&unready.into()))?;
    let report = probe_report(&shape, &examined);
    words::answer(&report, json, || {
        format!(
            "{}\n{}",
            verdict(&examined.tried),
            words::render(&with_results(&report), &PROBED)
        )
    });
    Ok(if examined.is_as_expected() {
        Exit::Ok
    } else {
        Exit::Host
    }
    .into())
}

fn probe_report(shape: &policy::Shape, examined: &examine::Examination) -> Value {
    let tried = examined.tried.iter().map(|t| {
        json!({
            "what": t.what, "granted": t.granted, "could": t.could, "answer": t.answer, "closed": t.closed,
            "asSaid": t.is_as_expected(),
        })
    });
    json!({
        "tool": shape.tool,
        "confinement": shape.digest(),
        "asSaid": examined.is_as_expected(),
        "tried": tried.collect::<Vec<_>>(),
        "layers": examined.layers,
    })
}

/// The report for a person: of each attempt whether the confinement held.
pub(super) fn with_results(report: &Value) -> Value {
    let mut shown = report.clone();
    for tried in shown["tried"].as_array_mut().into_iter().flatten() {
        let result = if tried["could"] == tried["granted"] {
            "PASS"
        } else {
            "FAIL"
        };
        let effect = if tried["could"] == true {
            "allowed"
        } else {
            "blocked"
        };
        tried["result"] = json!(format!("{result}: {effect}"));
    }
    shown
        .as_object_mut()
        .map(|fields| fields.shift_remove("asSaid"));
    shown
}

/// What the attempts of our probe mean.
fn verdict(tried: &[ProbeResult]) -> String {
    let all = tried.len();
    let wrong = tried.iter().filter(|t| !t.is_as_expected());
    match (
        wrong.clone().count(),
        wrong.clone().all(ProbeResult::is_explained),
    ) {
        (0, _) => format!(
            "PASS: {all} attempts, each allowed or blocked as granted; the script was not run"
        ),
        (n, true) => {
            format!(
                "{n} of {all} attempts were blocked although granted: owner and mode close the \
                files to the tool"
            )
        }
        (n, false) => {
            format!(
                "FAIL: {n} of {all} attempts went against the grants: do not run this tool here; \
                please report it"
            )
        }
    }
}
