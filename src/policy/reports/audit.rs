//! The report of a decision as data: asked, allowed, effective, why, enforced by, and what is not
//! defended.

use crate::base::text::printable;
use crate::manifest::{Language, Manifest};
use crate::policy::grammar::secrets::used;
use crate::policy::grammar::{
    Ecosystem, Grant, Grantable, PackageRequirements, Secret, SecretGrant,
};
use crate::policy::verdicts::{Allowance, Decision, Runtime};
use crate::quantity::Limit;
use crate::sandbox::base_view;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What no ceiling of this version stops. Every report lists it, so that no reader relies on it.
pub const NOT_DEFENDED: [&str; 9] = [
    "a hole in the kernel: every layer here is the kernel's",
    "side channels of the CPU and of shared caches",
    "for an ordinary user: tools have that user's id, so past the layers they are that account",
    "advisory locks on a live read grant: a tool can hold one and make others wait",
    "the truth of what a tool answers: its output is data, never an instruction",
    "what the operator grants: a tool may do anything to the files of a write grant",
    "granted hosts: what they do with what they are sent, other sites asked for inside their TLS \
     (fronting), whoever has a name below a wildcard",
    "the names of mount sources, which a tool can see in its own mount table",
    "the machine's root, and whoever may change the policies, the manifests or this binary",
];
/// More of these: for a tool whose work a service elsewhere does, and for one for which the relay
/// adds a secret.
const ANSWERED: &str = "a tool service elsewhere: what it does with what it is sent, and who else \
                        reads its queues (an answer on a fanout is read by all who listen there)";
const RETURNED: &str = "a secret that toolhost adds: a host that returns it transformed (other \
                        than in base64 or as URLs, JSON and HTML write it) reveals it to the tool";
/// The field of an entry that the audit log fills: what past calls were refused.
pub const LAST_DENIALS: &str = "lastDenials";
/// The member of an entry that lists the stored packages of a tool. It is not part of the decision
/// either.
pub const KEPT_PACKAGES: &str = "keptPackages";

fn not_defended(decision: &Decision) -> impl Iterator<Item = &'static str> {
    let answered = decision.grants.service.as_ref().map(|_| ANSWERED);
    NOT_DEFENDED
        .into_iter()
        .chain(decision.grants.added().next().map(|_| RETURNED))
        .chain(answered)
}

fn devices(decision: &Decision) -> Vec<&'static str> {
    // A WASI module maps no device: the memory of its worker is counted in another way.
    let module = decision
        .grants
        .runtime
        .as_ref()
        .is_some_and(|runtime| runtime.language == Language::Wasm);
    let sampled = !module
        && decision
            .limit(Limit::MemoryBytes)
            .is_some_and(|limit| limit.sampled);
    base_view::devices(sampled)
        .chain(base_view::DEVICE_LINKS.map(|(link, _)| link))
        .collect()
}

/// The folders with the files that a call brings, and those that it leaves. `None`: its tool takes
/// no files.
fn call_folders(decision: &Decision) -> Option<[&'static str; 2]> {
    let shape = decision.shape.as_ref();
    let has_them = decision.identity.starts_scripts || shape.is_ok_and(|it| it.takes_files());
    has_them.then_some([base_view::CALL_INPUT, base_view::CALL_OUTPUT])
}

/// What a call may touch, a line each, for the person who is asked about it.
pub fn touches(decision: &Decision) -> Vec<String> {
    let files = decision.grants.files.iter().map(Grant::text);
    let hosts = decision
        .grants
        .hosts
        .iter()
        .map(|grant| format!("reach {}", grant.text()));
    let secrets = decision
        .grants
        .secrets
        .iter()
        .map(|grant| format!("use {}", Secret::new(grant).text()));
    let variables = decision
        .grants
        .variables
        .iter()
        .map(|(name, value)| format!("variable {name}={}", value.shown()));
    let asks = decision
        .may_ask()
        .then(|| "ask the person at the client".to_owned());
    let packages = decision
        .grants
        .packages
        .iter()
        .map(|grant| format!("have packages: {}", grant.text()));
    let more = variables.chain(asks).chain(packages);
    let service = decision
        .grants
        .service
        .iter()
        .map(|grant| format!("call {}", grant.text()));
    let calls = decision.grants.calls.iter();
    let calls = calls.map(|grant| format!("call {}", grant.text()));
    let all = files
        .chain(hosts)
        .chain(secrets)
        .chain(more)
        .chain(service)
        .chain(calls)
        .map(|line| printable(&line));
    let identity = &decision.identity;
    let inside = if identity.at_client {
        Some("nothing here: the client of a call runs it")
    } else {
        (identity.in_process && decision.grants.service.is_none())
            .then_some("it runs inside toolhost, without layers of its own")
    };
    all.chain(inside.map(str::to_owned)).collect()
}

/// What the code of a tool reaches through the tools that it may call, and through those that they
/// call: what each of them may touch.
pub fn reached(decision: &Decision, tools: &[Decision]) -> Vec<String> {
    let mut found: Vec<&Decision> = Vec::new();
    let mut callers = vec![decision];
    while let Some(caller) = callers.pop() {
        for tool in tools
            .iter()
            .filter(|tool| caller.grant_to_call(tool).is_some())
        {
            if !found.iter().any(|other| std::ptr::eq(*other, tool)) {
                found.push(tool);
                callers.push(tool);
            }
        }
    }
    let mut lines: Vec<String> = found
        .iter()
        .flat_map(|tool| {
            let lines = touches(tool).into_iter();
            lines.map(|line| format!("through {}: {line}", tool.identity.tool))
        })
        .collect();
    lines.sort();
    lines
}

/// The whole decision for a program, with the manifest it was made for; `diff` compares all of it.
pub fn json(decision: &Decision, manifest: &Manifest) -> Value {
    let approval = decision.approval.as_ref().map(
        |it| json!({ "requiredBy": it.required_by, "state": it.state.name(), "record": it.state.words() }),
    );
    let refused = decision.refused().map(
        |f| json!({ "type": f.kind, "message": f.message, "origin": f.origin, "person": f.person }),
    );
    let mut report = json!({
        "tool": decision.identity.tool,
        "policy": decision.governing.policy,
        "policyFile": decision.governing.file.to_string_lossy(),
        "mode": if decision.governing.narrow { "narrow" } else { "reject" },
        "inProcess": decision.identity.in_process && !decision.identity.at_client,
        "startsScripts": decision.identity.starts_scripts,
        "script": decision.identity.script.as_ref().map(|s| s.to_string_lossy()),
        "folder": decision.identity.folder.to_string_lossy(),
        "runtime": decision.grants.runtime.as_ref().map(runtime_json),
        "system": base_view::SYSTEM_FOLDERS.iter().chain(&base_view::SYSTEM_ETC).collect::<Vec<_>>(),
        "everywhere": {
            "madeUp": base_view::MADE_ETC, "devices": devices(decision), "proc": base_view::PROC,
            "scratch": base_view::SCRATCH, "call": call_folders(decision), "empty": base_view::EMPTY_FOLDERS, "toolhost": base_view::OWN_FOLDER,
        },
        "network": decision.grants.network(),
        "callers": decision.conditions.callers,
        "secrets": decision.grants.secrets.iter().map(secret_json).collect::<Vec<_>>(),
        "packages": packages(decision),
        "service": decision.grants.service,
        "calls": decision.grants.calls,
        "highRisks": decision.grants.high_risks().map(|(host, why)| json!({ "host": host, "why": why })).collect::<Vec<_>>(),
        "asks": decision.verdicts,
        "grants": decision.grants.files.iter().map(grant_json).collect::<Vec<_>>(),
        "limits": decision.limits,
        "requireCgroup": decision.conditions.require_cgroup,
        "observe": decision.conditions.observe,
        "confirm": decision.conditions.confirm,
        "ready": decision.ready(),
        "sessions": decision.sessions(),
        "mcp": decision.conditions.mcp,
        "stderrIsError": decision.conditions.stderr_is_error,
        "textOutput": decision.conditions.text_output,
        "answers": decision.conditions.answers,
        "context": decision.conditions.context,
        "labels": { "permissions": decision.identity.labels, "enforced": false },
        "notes": decision.notes.all,
        "refused": refused,
        "manifest": manifest.raw,
        "digests": {
            "manifest": manifest.digest,
            "policy": decision.governing.digest,
            "confinement": decision.shape.as_ref().ok().map(|shape| shape.digest()),
        },
        "notDefended": not_defended(decision).collect::<Vec<_>>(),
    });
    if let Some(line) = &decision.conditions.command_line {
        report["commandLine"] = json!(line);
    }
    // Only of a tool that needs an approval.
    if let Some(approval) = approval {
        report["approval"] = approval;
    }
    report
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

fn grant_json(grant: &Grant) -> Value {
    serde_json::to_value(grant).unwrap_or_else(
        |_| json!({ "folder": grant.area.folder().to_string_lossy(), "asked": grant.asked }),
    )
}

/// The versions of each package that these hold.
fn held<'a>(
    required: impl Iterator<Item = &'a PackageRequirements>,
) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut holds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in required.flat_map(|required| &required.packages) {
        holds
            .entry(&package.name)
            .or_default()
            .push(&package.version);
    }
    holds
}

fn packages(decision: &Decision) -> Value {
    let required = decision.packages.required.as_deref();
    let allowed = |(ecosystem, allowance): (&Ecosystem, &Allowance)| {
        let allowed = allowance.as_ref().ok()?;
        let mut rules = json!(allowed.rules);
        // The member is absent if no policy names a lock.
        if let Some(lock) = &allowed.lock_file {
            rules["lockFile"] = json!(lock);
            let language =
                |run: &Decision| Ecosystem::for_language(run.grants.runtime.as_ref()?.language);
            for run in decision
                .packages
                .runs
                .iter()
                .filter(|run| language(run) == Some(*ecosystem))
            {
                rules["holds"] = json!(held(run.packages.required.as_deref().into_iter()));
                rules["refused"] = json!(
                    run.refused()
                        .map(|fault| fault.person.as_ref().unwrap_or(&fault.message))
                );
            }
        }
        Some((ecosystem.name().to_owned(), rules))
    };
    json!({
        "granted": decision.grants.packages,
        "asked": required.map(|required| required.ecosystem),
        "locked": required.is_some_and(|required| required.locked),
        "sources": required.map(|required| &required.sources),
        "requires": required.map(|required| &required.requires),
        "holds": held(required.into_iter()),
        "allowed": decision.packages.allowed.iter().filter_map(allowed).collect::<Map<_, _>>(),
    })
}
