//! The policy text that would grant what a tool asks. Every `why` is blank, and a blank one does not load.
//!
//! For: `audit --suggest-policy`. In: a manifest, its site, its decision. Out: TOML.
//! Never: a text that loads as it is: somebody must read it and say why.

use super::published;
use super::rules;
use super::verdict::{Decision, Narrower, Verdict, What};
use crate::manifest::text::printable;
use crate::manifest::{Manifest, Pattern, PatternShape, Site};
use std::path::Path;

pub fn policy(manifest: &Manifest, site: &Site, decision: &Decision) -> String {
    let mut out = refusals(manifest, decision);
    let mut body = String::new();
    files(manifest, site, decision, &mut body);
    limits(manifest, &mut body);
    capabilities(manifest, &mut body);
    if let Some(policy) = decision.passed_over.iter().find(|policy| policy.exact) {
        out.push_str(&format!(
            "# {}.\n# A second policy that names its exact id would not load beside that one, and then nothing runs: so none is\n\
             # suggested.\n",
            printable(&policy.words)
        ));
        return out;
    }
    if body.is_empty() && !decision.unnamed {
        // A policy without a rule would only take away what the tool has now.
        let id = printable(&manifest.id);
        out.push_str(&format!("# There is nothing that a policy could give {id}, so none is suggested.\n"));
        return out;
    }
    head(manifest, site, decision, &mut out);
    out.push_str(&body);
    if manifest.id.contains('*') {
        out.push_str(&format!("\n# {}\n", published::SELECTOR_HELP));
    }
    out
}

fn head(manifest: &Manifest, site: &Site, decision: &Decision, out: &mut String) {
    let name: String = manifest.id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    out.push_str(&format!(
        "# What {} asks for and a policy can give. Read each line, delete what it should not have, and fill in every\n\
         # `why`: a blank one does not load. Then move it to {name}.policy.toml in the policies folder (while a file there is\n\
         # unfinished or empty, nothing runs).\n",
        printable(&manifest.id)
    ));
    if !decision.policy_file.as_os_str().is_empty() {
        let file = printable(&decision.policy_file.display().to_string());
        out.push_str(&format!("# Now it answers to {file}. A tool answers to one policy only: what that one gives and this one does not is lost,\n# and if that one names this exact id too, take it out there, or neither loads.\n"));
    }
    if decision.denied().any(|v| v.narrower == Some(Narrower::Host)) {
        out.push_str(&format!("# {} caps some of this and must allow it too.\n", super::HOST_FILE));
    }
    out.push_str(&format!("\nname = {}\nwhy = \"\"\ntools = [{}]\n", quoted(&name), quoted(&manifest.id)));
    if let Some(folder) = site.manifest.parent().and_then(Path::to_str).filter(|f| !f.is_empty()) {
        out.push_str(&format!("folders = [{}]\n", quoted(folder)));
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_string()).to_string()
}

fn files(manifest: &Manifest, site: &Site, decision: &Decision, out: &mut String) {
    let can = |what: What| {
        move |pattern: &&Pattern| !decision.denied().any(|v| v.never() && v.what == what && v.asked == pattern.text)
    };
    let read = match &manifest.asks.read {
        Some(patterns) => patterns.iter().filter(can(What::Read)).filter_map(path).collect(),
        None if site.folder == site.base => Vec::new(),
        None => vec!["./**".to_string()],
    };
    let write: Vec<String> = manifest.asks.write.iter().filter(can(What::Write)).filter_map(path).collect();
    if read.is_empty() && write.is_empty() {
        return;
    }
    out.push_str("\n[files]\n");
    for (key, mut paths) in [("read", read), ("write", write)] {
        let mut seen = std::collections::BTreeSet::new();
        paths.retain(|p| seen.insert(p.clone()));
        if !paths.is_empty() {
            let lines: String = paths.iter().map(|p| format!("  {{ path = {}, why = \"\" }},\n", quoted(p))).collect();
            out.push_str(&format!("{key} = [\n{lines}]\n"));
        }
    }
}

/// The narrowest path a policy can name that holds the ask; `None` where no policy can help.
fn path(pattern: &Pattern) -> Option<String> {
    let (path, tree) = match &pattern.shape {
        PatternShape::SelfScript => return None,
        PatternShape::Tree { path } => (path, true),
        PatternShape::File { path } => (path, false),
        // A policy names no pattern; the overlap with the ask stays the pattern.
        PatternShape::Names { folder, .. } => (folder, true),
    };
    if tree && path == Path::new("/tmp") {
        return None;
    }
    let text = path.to_str()?.trim_end_matches('/').trim_start_matches("./").to_string();
    let text = if path.is_absolute() || text.is_empty() || text == "." { text } else { format!("./{text}") };
    let text = if text == "." { String::new() } else { text };
    let bare = if path.is_absolute() { text.clone() } else { text.trim_start_matches("./").to_string() };
    let never = path.is_absolute() && (bare.is_empty() || rules::NEVER.iter().any(|n| path.starts_with(n)));
    if never || (!bare.is_empty() && rules::plain_path(&bare).is_err()) {
        return None;
    }
    Some(match (tree, text.is_empty()) {
        (true, true) => "./**".to_string(),
        (true, false) => format!("{text}/**"),
        (false, _) => text,
    })
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
        .filter(|c| *c != "subprocess" && super::capability::grantable(c).is_ok())
        .collect();
    if !wanted.is_empty() {
        let lines: String = wanted.iter().map(|c| format!("  {{ name = {}, why = \"\" }},\n", quoted(c))).collect();
        out.push_str(&format!("\n[capabilities]\ngrant = [\n{lines}]\n"));
    }
}

/// What no policy can grant is said first, so that nobody looks for the line; then what a policy alone cannot give.
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
