//! Suggest: the policy text that would grant what a tool asks. Every `why` is blank, and a blank one does not load.
//!
//! For: `audit --suggest-policy`. In: a manifest, its site, its decision. Out: TOML.
//! Never: a text that loads as it is: somebody must read it and say why.

use super::packages;
use crate::base::address::special;
use crate::base::text::{is_printable, printable};
use crate::manifest::host::Host;
use crate::manifest::{Manifest, Pattern, PatternShape, Site};
use crate::policy::capability::{Kind, kind};
use crate::policy::file::SELECTORS;
use crate::policy::hosts::risks;
use crate::policy::verdict::{Decision, Narrower, RequestKind, Verdict};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::path::Path;

/// The text of a policy that loads as it is written. `root`: where relative `folders` start.
pub fn policy(manifest: &Manifest, site: &Site, decision: &Decision, root: &Path) -> String {
    let mut out = refusals(manifest, decision);
    let mut body = String::new();
    files(manifest, site, decision, &mut body);
    hosts(manifest, &mut body);
    limits(manifest, &mut body);
    capabilities(manifest, &mut body);
    secrets(manifest, decision, &mut body);
    service(manifest, &mut body);
    body.extend(packages::suggestion(decision, quoted));
    if let Some(policy) = decision.passed_over.iter().find(|policy| policy.exact) {
        out.push_str(&format!(
            "# {}.\n# A second policy that names its exact id would not load beside that one, and then nothing runs: so none is\n\
             # suggested.\n",
            printable(&policy.words)
        ));
        return out;
    }
    let lacks = decision.denied().next().is_some() || decision.limits.iter().any(|limit| limit.clamped);
    if decision.exact && !lacks {
        let (id, file) = (printable(&manifest.id), printable(&decision.policy_file.to_string_lossy()));
        out.push_str(&format!("# {id} answers to {file} and has all that it asks for, so none is suggested.\n"));
        return out;
    }
    if body.is_empty() && !decision.unnamed {
        // A policy without a rule would only take away what the tool has now.
        let id = printable(&manifest.id);
        out.push_str(&format!("# There is nothing that a policy could give {id}, so none is suggested.\n"));
        return out;
    }
    head(manifest, site, decision, root, &mut out);
    out.push_str(&body.replace("why = \"\"", &format!("why = {}", quoted(&format!("{} asks for it", manifest.id)))));
    if manifest.id.contains('*') {
        out.push_str(&format!("\n# `tools` takes {SELECTORS}\n"));
    }
    out
}

fn head(manifest: &Manifest, site: &Site, decision: &Decision, root: &Path, out: &mut String) {
    let id = printable(&manifest.id);
    let mut name: String = manifest.id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let file = printable(&decision.policy_file.to_string_lossy());
    let taken = |name: &str| {
        let of_file = decision.policy_file.file_name().and_then(|file| file.to_str());
        decision.policy == name || of_file == Some(&format!("{name}{}", crate::policy::SUFFIX))
    };
    out.push_str(&format!(
        "# What {id} asks for and a policy can give. Read each line, delete what it should not have, and say why in your words.\n"
    ));
    if decision.exact && !file.is_empty() {
        out.push_str(&format!(
            "# {id} answers to {file}, which names it by its exact id. A second policy that does would not load beside it, and\n\
             # then nothing runs: write what is missing into that file.\n"
        ));
    } else {
        while taken(&name) {
            name.push_str("-own");
        }
        out.push_str(&format!(
            "# Its file: sandbox-policies/{name}{0} (`toolhost audit {id} --suggest-policy --out sandbox-policies/{name}{0}`).\n",
            crate::policy::SUFFIX
        ));
        if !file.is_empty() {
            out.push_str(&format!(
                "# Now it answers to {file}. A tool answers to one policy only: what that one gives and this one does not is lost.\n"
            ));
        }
    }
    if decision.denied().any(|v| v.narrower == Some(Narrower::Host)) {
        out.push_str(&format!("# {} caps some of this and must allow it too.\n", crate::policy::HOST_FILE));
    }
    let why = quoted(&format!("what {} asks for", manifest.id));
    out.push_str(&format!("\nname = {}\nwhy = {why}\ntools = [{}]\n", quoted(&name), quoted(&manifest.id)));
    let folder = site.manifest.parent().map(|folder| folder.strip_prefix(root).unwrap_or(folder));
    if let Some(folder) = folder.and_then(Path::to_str).filter(|folder| !folder.is_empty()) {
        out.push_str(&format!("folders = [{}]\n", quoted(folder)));
    }
}

/// A basic string of TOML, on one line, in which nothing hides (toml.io v1.0.0, "String").
fn quoted(text: &str) -> String {
    let plain = |c: char| is_printable(c.encode_utf8(&mut [0; 4]));
    let one = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if plain(c) => c.to_string(),
        c => format!("\\U{:08X}", u32::from(c)),
    };
    format!("\"{}\"", text.chars().map(one).collect::<String>())
}

fn files(manifest: &Manifest, site: &Site, decision: &Decision, out: &mut String) {
    let mut left_out = String::new();
    let mut paths = |what: RequestKind, patterns: &[Pattern]| -> Vec<String> {
        let never = |p: &Pattern| decision.denied().any(|v| v.never() && v.what == what && v.asked == p.text);
        let mut found: Vec<String> = Vec::new();
        // `refusals` names what no policy can give.
        for pattern in patterns.iter().filter(|pattern| !never(pattern)) {
            match path(pattern, site) {
                Ok(path) if found.contains(&path) => {}
                Ok(path) => found.push(path),
                Err(why) => left_out.push_str(&format!(
                    "# {} {} needs no rule: {why}.\n",
                    what.name(),
                    printable(&pattern.text)
                )),
            }
        }
        found
    };
    let read = match &manifest.asks.read {
        Some(patterns) => paths(RequestKind::Read, patterns),
        None if site.folder == site.base => Vec::new(),
        None => vec!["./**".to_string()],
    };
    let write = paths(RequestKind::Write, &manifest.asks.write);
    if read.is_empty() && write.is_empty() {
        return;
    }
    out.push_str(&format!("\n[files]\n{left_out}"));
    for (key, paths) in [("read", read), ("write", write)].into_iter().filter(|(_, paths)| !paths.is_empty()) {
        let lines: String = paths.iter().map(|p| format!("  {{ path = {}, why = \"\" }},\n", quoted(p))).collect();
        out.push_str(&format!("{key} = [\n{lines}]\n"));
    }
}

/// The narrowest path a policy can name that holds the ask, or why it needs none.
fn path(pattern: &Pattern, site: &Site) -> Result<String, &'static str> {
    let (path, tree) = match &pattern.shape {
        PatternShape::SelfScript => return Err("a tool can always read its own script"),
        PatternShape::Tree { path } if path == Path::new("/tmp") => return Err("every call has its own /tmp"),
        PatternShape::Tree { path } => (path, true),
        PatternShape::File { path } => (path, false),
        // A policy cannot name a pattern: it names the folder, and the overlap with the ask is the pattern.
        PatternShape::Names { folder, .. } => (folder, true),
    };
    let from = if pattern.from_base { site.base.join(path) } else { path.clone() };
    let (path, text) = (&from, from.to_string_lossy());
    let text = match text.trim_end_matches('/').trim_start_matches("./") {
        "" | "." => ".".to_owned(),
        text if path.is_absolute() => text.to_owned(),
        text => format!("./{text}"),
    };
    Ok(if tree { format!("{text}/**") } else { text })
}

fn hosts(manifest: &Manifest, out: &mut String) {
    let mut lines: Vec<String> = Vec::new();
    for ask in &manifest.asks.hosts {
        let range = match ask.host {
            Host::Address(address) => special(address).map(|_| IpNet::from(address)),
            _ => None,
        };
        let risks = risks(ask, range.as_slice()).into_iter().map(|risk| format!("  # high risk: {risk}\n"));
        let ranges = range.map_or_else(String::new, |range| format!("ranges = [\"{range}\"], "));
        let line =
            format!("{}  {{ host = {}, {ranges}why = \"\" }},\n", risks.collect::<String>(), quoted(&ask.to_string()));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if !lines.is_empty() {
        out.push_str(&format!("\n[network]\nhosts = [\n{}]\n", lines.concat()));
    }
}

fn limits(manifest: &Manifest, out: &mut String) {
    let mut asked = manifest.limits.clone();
    if let Some(timeout) = manifest.execution.timeout_ms {
        asked.insert(crate::quantity::Limit::TimeoutMs, timeout);
    }
    asked.retain(|limit, value| *value > limit.house_default());
    if !asked.is_empty() {
        out.push_str("\n[limits]\n");
        asked.iter().for_each(|(limit, value)| out.push_str(&format!("{} = {value}\n", limit.policy_name())));
    }
}

fn capabilities(manifest: &Manifest, out: &mut String) {
    let wanted: Vec<&String> = manifest
        .asks
        .capabilities
        .iter()
        .filter(|c| *c != "subprocess" && crate::policy::capability::grantable(c).is_ok())
        .collect();
    if !wanted.is_empty() {
        let lines: String = wanted.iter().map(|c| format!("  {{ name = {}, why = \"\" }},\n", quoted(c))).collect();
        out.push_str(&format!("\n[capabilities]\ngrant = [\n{lines}]\n"));
    }
}

fn secrets(manifest: &Manifest, decision: &Decision, out: &mut String) {
    let never: BTreeSet<&str> = decision.denied().filter(|v| v.never()).map(|v| v.asked.as_str()).collect();
    let asked = manifest.asks.capabilities.iter().filter(|word| !never.contains(word.as_str()));
    let names: BTreeSet<&str> = asked
        .filter_map(|word| match kind(word) {
            Kind::Secret(name) => Some(name),
            _ => None,
        })
        .collect();
    if names.is_empty() {
        return;
    }
    out.push_str(
        "\n# `from`: \"file:PATH\", \"env:NAME\" or \"command:/PROGRAM WORDS\". As written here the tool gets each as a variable;\n\
         # for toolhost to add it to requests, without the tool having it, write beside `from`:\n\
         #   header = { host = \"api.example.com\", name = \"Authorization\", value = \"Bearer {}\" }\n\
         # and to add it to some requests only, in it: methods = [\"GET\"], paths = [\"/v1/**\"], query = [\"page\"], request_headers = []\n",
    );
    let line = |name: &&str| {
        format!("  {{ name = {}, from = {}, why = \"\" }},\n", quoted(name), quoted(&format!("env:{name}")))
    };
    out.push_str(&format!("[secrets]\ngrant = [\n{}]\n", names.iter().map(line).collect::<String>()));
}

fn service(manifest: &Manifest, out: &mut String) {
    let Some(service) = manifest.remote().and_then(|remote| remote.found.as_ref()) else { return };
    let queues: Vec<String> = service.requests.iter().map(|queue| quoted(queue)).collect();
    out.push_str(&format!(
        "\n# The arguments of each call go to whoever reads the queue; `user = true` would send the caller's name, too.\n\
         [services]\ncall = [\n  {{ service = {}, request = [{}], response = {}, why = \"\" }},\n]\n",
        quoted(&service.id),
        queues.join(", "),
        quoted(&service.response),
    ));
}

/// First what no policy can grant, so that nobody looks for its line; then what this machine lacks.
fn refusals(manifest: &Manifest, decision: &Decision) -> String {
    let id = printable(&manifest.id);
    let of = |narrower| -> Vec<String> {
        let denied = decision.denied().filter(|v| v.narrower == Some(narrower));
        let reason = |v: &Verdict| printable(v.reason.as_deref().unwrap_or_default());
        denied.map(|v| format!("#   {} {}: {}\n", v.what.name(), printable(&v.asked), reason(v))).collect()
    };
    let mut out = String::new();
    let (never, lacking) = (of(Narrower::House), of(Narrower::Machine));
    if !never.is_empty() {
        let so = if decision.verdicts.iter().any(Verdict::never) && !decision.narrow {
            ", so every call is refused until the manifest asks for less"
        } else {
            ""
        };
        out.push_str(&format!("# No policy can give {id} this{so}:\n{}\n", never.concat()));
    }
    if !lacking.is_empty() {
        out.push_str(&format!("# This host lacks what {id} needs, whatever a policy says:\n{}\n", lacking.concat()));
    }
    out
}
