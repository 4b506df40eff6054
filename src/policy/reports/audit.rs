//! The report: asked / allowed / effective / why / enforced by, and what is not defended.
//!
//! For: `audit`, the run log. In: a `Decision`. Out: text for a person, JSON for a program.
//! Never: says more or less than the decision holds; prints outside text unescaped.

use super::packages;
use crate::base::text::printable;
use crate::manifest::{Language, Manifest};
use crate::policy::secrets::{Secret, used};
use crate::policy::verdict::{Confirm, Decision, LimitVerdict, Verdict, What, wall};
use crate::policy::{Access, CallerGrant, Program, Runtime, SecretGrant, base_view, reach};
use crate::quantity::Limit;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What no wall of this version stops. Said in every report, so that nobody counts on it.
pub const NOT_DEFENDED: [&str; 9] = [
    "a hole in the kernel: every wall here is the kernel's",
    "side channels of the CPU and of shared caches",
    "for an ordinary user: tools have that user's id, so past the walls they are that account",
    "advisory locks on a live read grant: a tool can hold one and make others wait",
    "the truth of what a tool answers: its output is data, never an instruction",
    "what the operator grants: a tool may do anything to the files of a write grant",
    "granted hosts: what they do with what they are sent, other sites asked for inside their TLS (fronting), whoever has a name below a wildcard",
    "the names of mount sources, which a tool can see in its own mount table",
    "the machine's root, and whoever may change the policies, the manifests or this binary",
];

/// The same, of a tool whose work a service elsewhere does; and of one for which the relay adds a secret.
const ANSWERED: &str = "a tool service elsewhere: what it does with what it is sent, and who else reads its queues (an answer on a fanout is read by all who listen there)";
const RETURNED: &str = "a secret that toolhost adds: a host that returns it transformed (other than in base64 or as URLs, JSON and HTML write it) tells it to the tool";

/// The field of an entry that the audit log fills: what past calls were refused.
pub const LAST_DENIALS: &str = "lastDenials";
/// The member of an entry that says what is kept of a tool's packages: no part of the decision either.
pub const KEPT_PACKAGES: &str = "keptPackages";

fn not_defended(decision: &Decision) -> impl Iterator<Item = &'static str> {
    let answered = decision.service.as_ref().map(|_| ANSWERED);
    NOT_DEFENDED.into_iter().chain(decision.added().next().map(|_| RETURNED)).chain(answered)
}

/// Longer cells do not widen their column: the rest of their row is pushed to the right.
const WIDEST: usize = 56;

pub fn text(decision: &Decision) -> String {
    let mut out = String::new();
    head(decision, &mut out);
    asks(decision, &mut out);
    limits(decision, &mut out);
    if !decision.notes.all.is_empty() {
        out.push_str("\n  notes\n");
        decision.notes.all.iter().for_each(|n| line(&mut out, "    - ", n));
    }
    if let Some(refused) = decision.refused() {
        out.push_str("\n  a call is refused\n");
        line(&mut out, "    ", &format!("{}: {}", refused.kind, refused.message));
        for part in refused.person.as_deref().unwrap_or_default().lines() {
            line(&mut out, "    ", part);
        }
    }
    out.push_str("\n  not defended\n");
    not_defended(decision).for_each(|n| line(&mut out, "    - ", n));
    out
}

/// Whether walls stand around what runs: not where a service elsewhere or toolhost itself does the work.
fn walled(decision: &Decision) -> bool {
    !decision.in_process || decision.starts_scripts
}

fn line(out: &mut String, lead: &str, text: &str) {
    out.push_str(lead);
    out.push_str(&printable(text));
    out.push('\n');
}

fn head(decision: &Decision, out: &mut String) {
    line(out, "", &decision.tool);
    let mode = if decision.narrow { "narrow" } else { "reject" };
    let from = match decision.policy_file.as_os_str().is_empty() {
        true => String::new(),
        false => format!(" ({})", decision.policy_file.display()),
    };
    line(out, "  policy   ", &format!("{}{from}, mode {mode}", decision.policy));
    match (&decision.script, decision.in_process) {
        (Some(script), _) => {
            line(out, "  script   ", &format!("{} (always shown, read-only: it is what runs)", script.display()));
        }
        (None, true) if decision.verdicts.iter().any(|verdict| verdict.what == What::Service) => {
            let words = "none: a service elsewhere does the work, and nothing here confines it";
            line(out, "  script   ", words);
        }
        (None, true) if walled(decision) => line(
            out,
            "  script   ",
            "none of its own: it runs inside toolhost; a script it starts is held to what follows",
        ),
        (None, true) => line(out, "  script   ", "none: it runs inside toolhost, without walls of its own"),
        (None, false) => line(out, "  script   ", "none"),
    }
    if let Some(runtime) = &decision.runtime {
        line(out, "  runtime  ", &runtime_text(runtime));
    }
    if walled(decision) {
        everywhere(decision, out);
        network(decision, out);
    }
    secrets(decision, out);
    if let Some(grant) = &decision.service {
        line(out, "  service  ", &format!("{} (rule {}: {})", grant.text(), grant.rule, grant.why));
    }
    for (number, words) in packages::lines(decision).iter().enumerate() {
        line(out, if number == 0 { "  packages " } else { "    " }, words);
    }
    if walled(decision) {
        line(out, "  scratch  ", &format!("{}: its own, gone after the call", base_view::SCRATCH.join(" ")));
    }
    if !decision.labels.is_empty() {
        line(out, "  labels   ", &format!("{} (metadata.permissions: not enforced)", decision.labels.join(", ")));
    }
    callers(decision, out);
    for Confirm { policy, why, by_client } in &decision.confirm {
        let client = by_client.iter().map(|why| format!("; the MCP client that calls may ask its person: {why}"));
        let words =
            format!("a person is asked before each call (policy {policy}: {why}{})", client.collect::<String>());
        line(out, "  confirm  ", &words);
    }
    let mut strict = Vec::new();
    if decision.require_cgroup {
        strict.push("a cgroup is required");
    }
    if decision.stderr_is_error {
        strict.push("any text on stderr fails the call");
    }
    if decision.observe {
        line(out, "  observe  ", "what calls ask for and are refused is kept (files, system calls): slower");
    }
    if !strict.is_empty() {
        line(out, "  strict   ", &strict.join("; "));
    }
}

fn callers(decision: &Decision, out: &mut String) {
    match &decision.callers {
        None => line(out, "  callers  ", &CallerGrant::anybody().text()),
        Some(all) if all.is_empty() => line(out, "  callers  ", "nobody: no entry of callers.policy.toml names it"),
        Some(all) => {
            line(out, "  callers  ", "checked before a call, and of every tool that a script belongs to");
            all.iter()
                .for_each(|grant| line(out, "    ", &format!("{} (rule {}: {})", grant.text(), grant.rule, grant.why)));
        }
    }
}

fn network(decision: &Decision, out: &mut String) {
    let walls = reach::WALLS.join(", ");
    if decision.hosts.is_empty() {
        return line(out, "  network  ", &format!("none (enforced by {}, {})", wall::NETWORK, wall::SECCOMP));
    }
    let what = "these hosts, through the stub and relay of toolhost, which are all that its namespace holds";
    line(out, "  network  ", &format!("{what} (enforced by {walls})"));
    for grant in &decision.hosts {
        line(out, "    ", &format!("{} (rule {}: {})", reach::text(grant), grant.rule, grant.why));
    }
    for (pattern, risk) in decision.high_risks() {
        line(out, "    ", &format!("high risk: `{pattern}`: {risk}"));
    }
}

fn secrets(decision: &Decision, out: &mut String) {
    if decision.secrets.is_empty() {
        return;
    }
    line(out, "  secrets  ", "read anew for each call, and hidden in what is printed and kept");
    for grant in &decision.secrets {
        line(out, "    ", &format!("{} (rule {}: {})", Secret::of(grant).text(), grant.rule, grant.why));
    }
    let hosts: BTreeSet<&str> = decision.added().map(|(_, host)| host).collect();
    for host in hosts {
        let words = "its own TLS to port 443 there is refused, since nothing can be added inside of it";
        line(out, "    ", &format!("the tool speaks http://{host}, and toolhost speaks TLS to it: {words}"));
    }
}

/// What every tool sees, as the view makes it.
fn everywhere(decision: &Decision, out: &mut String) {
    let system: Vec<&str> = base_view::SYSTEM_FOLDERS.iter().chain(&base_view::SYSTEM_ETC).copied().collect();
    line(out, "  system   ", &format!("{} (read-only, where they exist)", system.join(" ")));
    line(out, "  made up  ", &format!("{} (no account or host of this machine)", base_view::MADE_ETC.join(" ")));
    line(out, "  devices  ", &devices(decision).join(" "));
    line(out, "  proc     ", &format!("{} (read-only: its own processes, facts of the kernel)", base_view::PROC));
    line(out, "  empty    ", &format!("{} (read-only: nothing is in them)", base_view::EMPTY_FOLDERS.join(" ")));
    line(
        out,
        "  ours     ",
        &format!("{} (read-only: what calls an entryPoint, and covers of masked files)", base_view::OURS),
    );
}

fn devices(decision: &Decision) -> Vec<&'static str> {
    // A WASI module maps no device: the memory of its worker is counted in another way.
    let module = decision.runtime.as_ref().is_some_and(|runtime| runtime.language == Language::Wasm);
    let sampled = !module && decision.limit(Limit::MemoryBytes).is_some_and(|limit| limit.sampled);
    base_view::devices(sampled).chain(base_view::DEVICE_LINKS.map(|(link, _)| link)).collect()
}

fn runtime_text(runtime: &Runtime) -> String {
    let program = match &runtime.program {
        Program::Path(path) => path.display().to_string(),
        Program::Ourselves { role } => format!("this binary as {role}"),
    };
    let roots: Vec<String> = runtime.roots.iter().map(|r| r.display().to_string()).collect();
    let sees = if roots.is_empty() { String::new() } else { format!("; reads {}", roots.join(", ")) };
    format!("{program} {} (found: {}){sees}", runtime.version, runtime.found)
}

fn asks(decision: &Decision, out: &mut String) {
    let rows: Vec<[String; 5]> = decision
        .verdicts
        .iter()
        .map(|v| {
            let allowed = match (v.allowed, &v.effective) {
                (true, _) => "yes",
                (false, Some(_)) => "in part",
                (false, None) => "no",
            };
            [
                format!("{} {}", v.what.name(), v.asked),
                allowed.to_string(),
                v.effective.clone().unwrap_or_else(|| "nothing".into()),
                v.why.clone(),
                if v.enforced_by.is_empty() { "checked before a call".into() } else { v.enforced_by.join(", ") },
            ]
        })
        .collect();
    out.push('\n');
    let under: Vec<Vec<String>> = decision.verdicts.iter().map(remarks).collect();
    table(out, ["asked", "allowed", "effective", "why", "enforced by"], &rows, &under);
}

fn remarks(verdict: &Verdict) -> Vec<String> {
    let mut lines = Vec::new();
    if !verdict.rule.is_empty() {
        // Only a file and line: a policy's name already stands in the rule.
        let place = if verdict.place.contains('/') { format!(" at {}", verdict.place) } else { String::new() };
        lines.push(format!("rule {}{place}", verdict.rule));
    }
    lines.extend(verdict.reason.iter().cloned());
    lines
}

fn limits(decision: &Decision, out: &mut String) {
    // Those of connections stand for nothing where there are none.
    let ours = |l: &LimitVerdict| walled(decision) || matches!(l.limit, Limit::TimeoutMs | Limit::OutputBytes);
    let told = |l: &&LimitVerdict| {
        ours(l) && (l.enforced_by != wall::NETWORK || l.asked.is_some() || !decision.hosts.is_empty())
    };
    let rows: Vec<[String; 5]> = decision
        .limits
        .iter()
        .filter(told)
        .map(|l| {
            let clamped = if l.clamped { " (clamped)" } else { "" };
            [
                l.limit.name().to_string(),
                l.asked.map_or("-".into(), |a| a.to_string()),
                format!("{}{clamped}", l.effective),
                format!("at most {} by {}", l.ceiling, l.from),
                if l.sampled { format!("{} (sampled)", l.enforced_by) } else { l.enforced_by.clone() },
            ]
        })
        .collect();
    out.push('\n');
    table(out, ["limit", "asked", "effective", "why", "enforced by"], &rows, &[]);
}

fn table(out: &mut String, head: [&str; 5], rows: &[[String; 5]], under: &[Vec<String>]) {
    let rows: Vec<[String; 5]> = rows.iter().map(|r| r.each_ref().map(|c| printable(c))).collect();
    let width = |i: usize| {
        let cells = rows.iter().map(|r| r[i].chars().count()).filter(|n| *n <= WIDEST);
        cells.chain([head[i].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    row(out, &head.map(str::to_string), &widths);
    for (i, cells) in rows.iter().enumerate() {
        row(out, cells, &widths);
        for remark in under.get(i).into_iter().flatten() {
            line(out, "      ", remark);
        }
    }
}

fn row(out: &mut String, cells: &[String; 5], widths: &[usize; 5]) {
    let mut whole = String::from("  ");
    for (cell, width) in cells.iter().zip(widths) {
        let pad = width.saturating_sub(cell.chars().count()) + 2;
        let _ = write!(whole, "{cell}{}", " ".repeat(pad));
    }
    out.push_str(whole.trim_end());
    out.push('\n');
}

/// What a call may touch, a line each, for the person who is asked about it.
pub fn touches(decision: &Decision) -> Vec<String> {
    let files = decision.grants.iter().map(super::diff::opened);
    let hosts = decision.hosts.iter().map(|grant| format!("reach {}", reach::text(grant)));
    let secrets = decision.secrets.iter().map(|grant| format!("use {}", Secret::of(grant).text()));
    let met = decision.verdicts.iter().filter(|v| v.allowed && v.what == What::Env);
    let variables = met.filter_map(|v| v.effective.as_ref()).map(|set| format!("variable {set}"));
    let service = decision.service.iter().map(|grant| format!("call {}", grant.text()));
    let all = files.chain(hosts).chain(secrets).chain(variables).chain(service).map(|line| printable(&line));
    let inside = (decision.in_process && decision.service.is_none())
        .then(|| "it runs inside toolhost, without walls of its own".to_owned());
    all.chain(inside).collect()
}

/// The whole decision for a program, with the manifest it was made for; `diff` compares all of it.
pub fn json(decision: &Decision, manifest: &Manifest) -> Value {
    let refused = decision
        .refused()
        .map(|f| json!({ "type": f.kind, "message": f.message, "origin": f.origin, "person": f.person }));
    json!({
        "tool": decision.tool,
        "policy": decision.policy,
        "policyFile": decision.policy_file.to_string_lossy(),
        "mode": if decision.narrow { "narrow" } else { "reject" },
        "inProcess": decision.in_process,
        "script": decision.script.as_ref().map(|s| s.to_string_lossy()),
        "folder": decision.folder.to_string_lossy(),
        "runtime": decision.runtime.as_ref().map(runtime_json),
        "system": base_view::SYSTEM_FOLDERS.iter().chain(&base_view::SYSTEM_ETC).collect::<Vec<_>>(),
        "everywhere": {
            "madeUp": base_view::MADE_ETC, "devices": devices(decision), "proc": base_view::PROC, "scratch": base_view::SCRATCH,
            "empty": base_view::EMPTY_FOLDERS, "toolhost": base_view::OURS,
        },
        "network": decision.network(),
        "callers": decision.callers,
        "secrets": decision.secrets.iter().map(secret_json).collect::<Vec<_>>(),
        "packages": packages::json(decision),
        "service": decision.service,
        "highRisks": decision.high_risks().map(|(host, why)| json!({ "host": host, "why": why })).collect::<Vec<_>>(),
        "asks": decision.verdicts,
        "grants": decision.grants.iter().map(grant_json).collect::<Vec<_>>(),
        "limits": decision.limits,
        "requireCgroup": decision.require_cgroup,
        "observe": decision.observe,
        "confirm": decision.confirm,
        "stderrIsError": decision.stderr_is_error,
        "labels": { "permissions": decision.labels, "enforced": false },
        "notes": decision.notes.all,
        "refused": refused,
        "manifest": manifest.raw,
        "digests": {
            "manifest": manifest.digest,
            "policy": decision.digest,
            "confinement": decision.shape.as_ref().ok().map(|shape| shape.digest()),
        },
        "notDefended": not_defended(decision).collect::<Vec<_>>(),
    })
}

fn secret_json(grant: &SecretGrant) -> Value {
    json!({
        "name": grant.name, "use": used(&grant.name, grant.header.as_ref()), "from": grant.from.to_string(),
        "header": grant.header, "rule": grant.rule, "why": grant.why,
    })
}

fn runtime_json(runtime: &Runtime) -> Value {
    // A path that is not UTF-8 must not lose the report.
    serde_json::to_value(runtime)
        .unwrap_or_else(|_| json!({ "language": runtime.language, "version": runtime.version }))
}

fn grant_json(grant: &crate::policy::Grant) -> Value {
    serde_json::to_value(grant).unwrap_or_else(|_| {
        let access = if grant.access == Access::Write { "write" } else { "read" };
        json!({ "access": access, "folder": grant.opening.folder().to_string_lossy(), "asked": grant.asked })
    })
}
