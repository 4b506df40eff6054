//! Suggest: the policy text that would grant what a tool requests. It loads as it is written, for a
//! person to read and shorten.

use crate::base::address::special;
use crate::base::text::{self, is_printable, printable};
use crate::manifest::host::{Host, HostPattern, parse_pattern};
use crate::manifest::{Manifest, ToolPaths};
use crate::policy::grammar::file::{HOST_FILE, SUFFIX};
use crate::policy::grammar::hosts::risks;
use crate::policy::grammar::{Area, CapabilityKind, capability};
use crate::policy::verdicts::approved::Approval;
use crate::policy::verdicts::files::is_shared;
use crate::policy::verdicts::{Decision, Narrower, RequestKind, Verdict};
use crate::quantity::Limit;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::path::Path;

/// Where a policy is suggested for.
pub struct Places<'a> {
    /// Where relative `folders` start.
    pub root: &'a Path,
    /// Where policies lie.
    pub policies: &'a Path,
}

/// The text of a policy, or why none is suggested.
pub fn policy(
    manifest: &Manifest,
    site: &ToolPaths,
    decision: &Decision,
    places: &Places<'_>,
) -> String {
    let id = printable(&manifest.id);
    let mut out = refusals(&id, decision);
    let lacks =
        decision.denied().next().is_some() || decision.limits.iter().any(|limit| limit.clamped);
    let why = quote(&format!("{} asks for it", manifest.id));
    let body = [
        files(site, decision, &why),
        hosts(manifest, &why),
        limits(manifest),
        words(manifest, decision, &why),
        service(manifest, &why),
        calls(manifest, &why),
        packages(decision, &why),
        ready(manifest, &why),
    ];
    let body = body.concat();
    let file = printable(&decision.governing.file.to_string_lossy());
    if let Some(policy) = decision
        .governing
        .passed_over
        .iter()
        .find(|policy| policy.exact)
    {
        let words = printable(&policy.words);
        out.push_str(&format!(
            "# {words}.\n# A second policy that names its exact id would not load, so none is \
            suggested.\n"
        ));
    } else if decision.governing.exact && !lacks {
        out.push_str(&format!(
            "# {file} governs {id} and grants all that it requests, so no policy is suggested.\n"
        ));
    } else if body.is_empty() && !decision.governing.unnamed {
        // A policy without a rule would only take away what the tool has now.
        out.push_str(&format!(
            "# There is nothing that a policy could give {id}, so none is suggested.\n"
        ));
    } else {
        out.push_str(&head(manifest, site, decision, places));
        out.push_str(&body);
        if manifest.mcp_server().is_some() {
            let about = "true: all callers share one process, and see what the others left in it.";
            out.push_str(&format!("\n# {about}\n[mcp]\nshared = false\n"));
        }
        if decision
            .approval
            .as_ref()
            .is_some_and(Approval::is_by_policy)
            && manifest.mcp_server().is_none()
        {
            out.push_str(
                "\n# As in the policy that this one replaces.\n[approval]\nrequired = true\n",
            );
        }
    }
    out
}

fn head(manifest: &Manifest, site: &ToolPaths, decision: &Decision, places: &Places<'_>) -> String {
    let id = printable(&manifest.id);
    let mut name: String = manifest
        .id
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let file = printable(&decision.governing.file.to_string_lossy());
    let mut out = format!(
        "# What {id} asks for and a policy can give. Read each line, and delete what it should not \
        have.\n"
    );
    if decision.governing.exact && !file.is_empty() {
        out.push_str(&format!(
            "# {file} governs {id} and names it by its exact id. A second policy that does so \
             would not load beside it:\n# put what is missing into that file.\n"
        ));
    } else {
        let own_file = decision
            .governing
            .file
            .file_name()
            .and_then(|file| file.to_str());
        while decision.governing.policy == name || own_file == Some(&format!("{name}{SUFFIX}")) {
            name.push_str("-own");
        }
        let policies = places.policies;
        if policies.is_file() {
            out.push_str(&format!(
                "# This host reads one file of policies, {}, and no other: a policy for {id} alone \
                 needs a folder of policies (--policies FOLDER).\n",
                text::path(policies)
            ));
        } else {
            let path = text::path(&policies.join(format!("{name}{SUFFIX}")));
            out.push_str(&format!(
                "# Its file: {path} (`toolhost audit {id} --suggest-policy --out '{path}'`).\n"
            ));
        }
        if !file.is_empty() {
            out.push_str(&format!(
                "# It replaces {file} for this tool: one policy alone governs a tool. \
             Copy what you want of its `confirm`, `require`, `deny` and limits.\n"
            ));
        }
    }
    if decision
        .denied()
        .any(|v| v.narrower == Some(Narrower::Host))
    {
        out.push_str(&format!(
            "# {HOST_FILE} caps some of this and must allow it too.\n"
        ));
    }
    let why = quote(&format!("what {} asks for", manifest.id));
    out.push_str(&format!(
        "\nname = {}\nwhy = {why}\ntools = [{}]\n",
        quote(&name),
        quote(&manifest.id)
    ));
    let folder = site
        .manifest
        .parent()
        .map(|folder| folder.strip_prefix(places.root).unwrap_or(folder));
    if let Some(folder) = folder
        .and_then(Path::to_str)
        .filter(|folder| !folder.is_empty())
    {
        out.push_str(&format!("folders = [{}]\n", quote(folder)));
    }
    out
}

/// A basic string of TOML on one line, with all invisible characters escaped (toml.io v1.0.0,
/// "String").
fn quote(text: &str) -> String {
    format!(
        "\"{}\"",
        text.chars()
            .map(|c: char| match c {
                '"' | '\\' => format!("\\{c}"),
                c if is_printable(c.encode_utf8(&mut [0; 4])) => c.to_string(),
                c => format!("\\U{:08X}", u32::from(c)),
            })
            .collect::<String>()
    )
}

fn list(head: &str, key: &str, lines: &[String]) -> String {
    let lines: String = lines.iter().map(|line| format!("  {line},\n")).collect();
    if lines.is_empty() {
        String::new()
    } else {
        format!("{head}{key} = [\n{lines}]\n")
    }
}

/// The rules for requests of files: the narrowest paths that a policy can name and that hold them.
/// For a pattern that is its folder.
fn file_rules<'v>(
    site: &ToolPaths,
    decision: &Decision,
    requests: impl Iterator<Item = &'v Verdict>,
    why: &str,
) -> Vec<String> {
    // `refusals` names what no policy can give; a script and /tmp need no rule and have no area.
    let requests = requests.filter(|verdict| !verdict.never());
    let mut lines: Vec<String> = Vec::new();
    for area in requests.filter_map(|verdict| verdict.area.as_ref()) {
        let own = area
            .path()
            .strip_prefix(&decision.identity.folder)
            .ok()
            .filter(|_| !is_shared(site, area));
        let path = own.map_or(area.path().to_path_buf(), |below| {
            Path::new(".").join(below)
        });
        let path = path.to_string_lossy();
        let tree = if matches!(area, Area::File(_)) {
            ""
        } else {
            "/**"
        };
        let path = quote(&format!("{}{tree}", path.trim_end_matches('/')));
        let line = format!("{{ path = {path}, why = {why} }}");
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

fn files(site: &ToolPaths, decision: &Decision, why: &str) -> String {
    let rules = |what: RequestKind| {
        let requests = decision.verdicts.iter().filter(|v| v.what == what);
        file_rules(site, decision, requests, why)
    };
    let text = list("", "read", &rules(RequestKind::Read))
        + &list("", "write", &rules(RequestKind::Write));
    if text.is_empty() {
        text
    } else {
        format!("\n[files]\n{text}")
    }
}

/// An entry of a list in a policy.
pub struct Entry {
    pub table: &'static str,
    pub list: &'static str,
    /// As TOML.
    pub text: String,
}

/// The entries that the policy of a tool lacks: of files, hosts and capabilities.
pub fn missing(manifest: &Manifest, site: &ToolPaths, decision: &Decision) -> Vec<Entry> {
    let why = &quote(&format!("{} asks for it", manifest.id));
    let mut entries = Vec::new();
    for verdict in decision.denied() {
        let rules = || file_rules(site, decision, std::iter::once(verdict), why);
        let (table, list, texts) = match verdict.what {
            RequestKind::Read => ("files", "read", rules()),
            RequestKind::Write => ("files", "write", rules()),
            RequestKind::Host => {
                let request = parse_pattern(&verdict.asked).ok();
                let lines = request.iter().map(|request| host_rule(request, why));
                ("network", "hosts", lines.collect())
            }
            RequestKind::Call => {
                entries.push(call_entry(manifest, &verdict.asked));
                continue;
            }
            RequestKind::Capability if is_granted_by_word(&verdict.asked) => {
                let line = format!("{{ name = {}, why = {why} }}", quote(&verdict.asked));
                ("capabilities", "grant", vec![line])
            }
            _ => continue,
        };
        entries.extend(texts.into_iter().map(|text| Entry { table, list, text }));
    }
    entries
}

/// The entry by which code of a tool may call this one.
pub fn call_entry(manifest: &Manifest, tool: &str) -> Entry {
    Entry {
        table: "calls",
        list: "allow",
        text: call_rule(tool, &quote(&format!("{} asks for it", manifest.id))),
    }
}

fn is_granted_by_word(word: &str) -> bool {
    matches!(
        capability::kind(word),
        CapabilityKind::Env(_) | CapabilityKind::Ask | CapabilityKind::LocalSockets
    )
}

/// The range that a host needs beside its name, where it is not public.
fn range_of(request: &HostPattern) -> Option<IpNet> {
    match request.host {
        Host::Address(address) => special(address).map(|_| IpNet::from(address)),
        _ => None,
    }
}

fn host_rule(request: &HostPattern, why: &str) -> String {
    let ranges =
        range_of(request).map_or_else(String::new, |range| format!("ranges = [\"{range}\"], "));
    format!(
        "{{ host = {}, {ranges}why = {why} }}",
        quote(&request.to_string())
    )
}

fn hosts(manifest: &Manifest, why: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for request in &manifest.requested.hosts {
        let risks: String = risks(request, range_of(request).as_slice())
            .iter()
            .map(|risk| format!("# high risk: {risk}\n  "))
            .collect();
        let line = risks + &host_rule(request, why);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    list("\n[network]\n", "hosts", &lines)
}

fn limits(manifest: &Manifest) -> String {
    let mut limits = manifest.limits.clone();
    limits.extend(
        manifest
            .execution
            .timeout_ms
            .map(|timeout| (Limit::TimeoutMs, timeout)),
    );
    limits.retain(|limit, value| *value > limit.built_in_default());
    let lines: String = limits
        .iter()
        .map(|(limit, value)| format!("{} = {value}\n", limit.policy_name()))
        .collect();
    if lines.is_empty() {
        lines
    } else {
        format!("\n[limits]\n{lines}")
    }
}

fn words(manifest: &Manifest, decision: &Decision, why: &str) -> String {
    let never: BTreeSet<&str> = decision
        .denied()
        .filter(|v| v.never())
        .map(|v| v.asked.as_str())
        .collect();
    let words: BTreeSet<&str> = manifest
        .requested
        .capabilities
        .iter()
        .map(String::as_str)
        .collect();
    let mut granted = Vec::new();
    let mut secrets = Vec::new();
    for word in words.into_iter().filter(|word| !never.contains(word)) {
        match capability::kind(word) {
            _ if is_granted_by_word(word) => {
                granted.push(format!("{{ name = {}, why = {why} }}", quote(word)))
            }
            CapabilityKind::Secret(name) => {
                let from = quote(&format!("env:{name}"));
                secrets.push(format!(
                    "{{ name = {}, from = {from}, why = {why} }}",
                    quote(name)
                ));
            }
            _ => {}
        }
    }
    let about = "\n# `from`: \"file:PATH\", \"env:NAME\" or \"command:/PROGRAM WORDS\". As written \
                 here the tool gets each as a variable;\n# for toolhost to add it to requests, \
                 without the tool having it, write beside `from`:\n#   header = { host = \
                 \"api.example.com\", name = \"Authorization\", value = \"Bearer {}\" }\n# and to \
                 add it to some requests only, in it: methods = [\"GET\"], paths = [\"/v1/**\"], \
                 query = [\"page\"], request_headers = []\n[secrets]\n";
    list("\n[capabilities]\n", "grant", &granted) + &list(about, "grant", &secrets)
}

fn calls(manifest: &Manifest, why: &str) -> String {
    let lines = manifest
        .calls
        .iter()
        .map(|tool| call_rule(&tool.text(), why));
    let about = "\n# A tool that writes, or reaches a host, a service, a secret or other tools, needs \
                 an entry of its exact id.\n[calls]\n";
    list(about, "allow", &lines.collect::<Vec<_>>())
}

fn call_rule(tool: &str, why: &str) -> String {
    format!("{{ tool = {}, why = {why} }}", quote(tool))
}

fn service(manifest: &Manifest, why: &str) -> String {
    let Some(service) = manifest
        .remote()
        .and_then(|remote| remote.descriptor.as_ref())
    else {
        return String::new();
    };
    let queues: Vec<String> = service.requests.iter().map(|queue| quote(queue)).collect();
    let id = quote(&service.id);
    let queues = queues.join(", ");
    let response = quote(&service.response);
    let about = "\n# The arguments of each call go to whoever reads the queue; `user = true` would \
                 send the caller's name, too.\n[services]\n";
    let line =
        format!("{{ service = {id}, request = [{queues}], response = {response}, why = {why} }}");
    list(about, "call", &[line])
}

/// The table with which a process waits for its next call, where the author says that it may.
fn ready(manifest: &Manifest, why: &str) -> String {
    if manifest.execution.ready {
        format!(
            "\n# A process waits for the next call, and takes memory until then.\n[ready]\nwhy = {why}\n"
        )
    } else {
        String::new()
    }
}

/// The entry that would grant what the files of the script require.
fn packages(decision: &Decision, why: &str) -> String {
    let denied = decision
        .denied()
        .any(|verdict| verdict.what == RequestKind::Package);
    let Some(required) = decision
        .packages
        .required
        .as_deref()
        .filter(|_| denied || decision.grants.packages.is_some())
    else {
        return String::new();
    };
    let index = quote(
        decision
            .grants
            .packages
            .as_ref()
            .map_or("default", |grant| &grant.rules.index),
    );
    let about = if required.locked {
        ""
    } else {
        "# No lock with hashes lies beside the script: `toolhost deps lock` makes one. lock = \
             \"relaxed\" does without.\n"
    };
    let name = required.ecosystem.name();
    format!(
        "\n[packages]\n{about}{name} = {{ index = {index}, lock = \"required\", builds = false, \
        why = {why} }}\n"
    )
}

/// Comments on what no policy can grant, so that no rule is suggested for it, and on what this
/// machine lacks.
fn refusals(id: &str, decision: &Decision) -> String {
    fn of(narrower: Narrower, decision: &Decision) -> String {
        let denied = decision.denied().filter(|v| v.narrower == Some(narrower));
        denied
            .map(|v| {
                format!(
                    "#   {} {}: {}\n",
                    v.what.name(),
                    printable(&v.asked),
                    printable(v.reason.as_deref().unwrap_or_default())
                )
            })
            .collect()
    }
    let mut out = String::new();
    let never = of(Narrower::BuiltIn, decision);
    let lacking = of(Narrower::Machine, decision);
    if !never.is_empty() {
        let all = if decision.governing.narrow {
            ""
        } else {
            ", so every call is refused until the manifest asks for less"
        };
        out.push_str(&format!("# No policy can give {id} this{all}:\n{never}\n"));
    }
    if !lacking.is_empty() {
        out.push_str(&format!(
            "# This host lacks what {id} needs, whatever a policy says:\n{lacking}\n"
        ));
    }
    out
}
