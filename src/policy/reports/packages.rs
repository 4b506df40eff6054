//! Packages: what the reports say of the packages of a tool.
//!
//! For: `audit`, `diff`, `suggest`, `who_can`. In: a decision. Out: lines, JSON. Never: says more than what decides.

use crate::policy::packages::{Allowance, Ecosystem, Required};
use crate::policy::verdict::{Decision, RequestKind};
use crate::policy::versions;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

fn required(required: &Required) -> String {
    format!("{} {}", required.name, required.versions).trim_end().to_owned()
}

pub(super) fn json(decision: &Decision) -> Value {
    let wanted = decision.wanted.as_deref();
    let mut holds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in wanted.iter().flat_map(|wanted| &wanted.packages) {
        holds.entry(&package.name).or_default().push(&package.version);
    }
    let allowed = |(ecosystem, allowance): (&Ecosystem, &Allowance)| match allowance {
        Ok(allowed) => {
            let mut rules = json!(allowed.rules);
            // Only where a policy names one: other reports stay as they were.
            if let Some(lock) = &allowed.lock_file {
                rules["lockFile"] = json!(lock);
            }
            Some((ecosystem.name().to_owned(), rules))
        }
        Err(_) => None,
    };
    json!({
        "granted": decision.packages,
        "asked": wanted.map(|wanted| wanted.ecosystem),
        "locked": wanted.is_some_and(|wanted| wanted.locked),
        "sources": wanted.map(|wanted| &wanted.sources),
        "requires": wanted.map(|wanted| &wanted.requires),
        "holds": holds,
        "allowed": decision.package_rules.iter().filter_map(allowed).collect::<Map<_, _>>(),
    })
}

/// How a tool has a package: `None`, it does not.
pub(super) fn has(decision: &Decision, name: &str, version: Option<&str>) -> Option<String> {
    let (grant, wanted) = (decision.packages.as_ref()?, decision.wanted.as_deref()?);
    let ecosystem = grant.ecosystem;
    let name = versions::name(ecosystem, name)?;
    let fits = |held: &str| match version {
        None => true,
        Some(asked) => {
            let exact = format!("=={asked}");
            let ranges = [asked, if ecosystem == Ecosystem::Python { &exact } else { asked }];
            ranges.iter().any(|range| versions::holds(ecosystem, range, held) == Some(true))
        }
    };
    if wanted.locked {
        let held: Vec<&str> =
            wanted.packages.iter().filter(|p| p.name == name && fits(&p.version)).map(|p| p.version.as_str()).collect();
        return (!held.is_empty()).then(|| format!("locked at {}", held.join(" and ")));
    }
    if wanted.lacks_lock(&grant.rules) {
        let asked = wanted.requires.iter().find(|required| required.name == name)?;
        return Some(format!("it asks for {}, and has no lock yet", self::required(asked)));
    }
    match wanted.requires.iter().find(|required| required.name == name) {
        Some(asked) => Some(format!("it asks for {}, not locked", self::required(asked))),
        None => Some("if what it asks for requires it: it has no lock".to_owned()),
    }
}

/// The entry that would grant what the files ask for; every `why` is blank.
pub(super) fn suggestion(decision: &Decision, quoted: impl Fn(&str) -> String) -> Option<String> {
    let wanted = decision.wanted.as_deref()?;
    let denied = decision.denied().any(|verdict| verdict.what == RequestKind::Package);
    if !denied && decision.packages.is_none() {
        return None;
    }
    let index = decision.packages.as_ref().map_or("default", |grant| grant.rules.index.as_str());
    let mut out = String::from("\n[packages]\n");
    if !wanted.locked {
        out.push_str("# No lock with hashes lies beside the script: `toolhost deps lock` makes one. lock = \"relaxed\" does without.\n");
    }
    let name = wanted.ecosystem.name();
    out.push_str(&format!(
        "{name} = {{ index = {}, lock = \"required\", builds = false, why = \"\" }}\n",
        quoted(index)
    ));
    Some(out)
}
