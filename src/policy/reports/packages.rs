//! Packages: what the reports say of the packages of a tool.
//!
//! For: `audit`, `diff`, `suggest`, `who_can`. In: a decision. Out: lines, JSON. Never: says more than what decides.

use crate::policy::package_use::{self, Allowance, PackagesAllowed};
use crate::policy::packages::{Ecosystem, PackageGrant, Required};
use crate::policy::verdict::{Decision, What};
use crate::policy::versions;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Packages in one line of a text; `--json` has all of them.
const MOST_IN_A_LINE: usize = 12;

/// The lines of `audit`, the first of them beside the word `packages`.
pub(super) fn lines(decision: &Decision) -> Vec<String> {
    let Some(wanted) = &decision.wanted else {
        let allowed = |(ecosystem, allowance): (&Ecosystem, &Allowance)| {
            let allowed = allowance.as_ref().ok()?;
            Some(format!("{}, for a script that requires some: {}", ecosystem.name(), rules(allowed)))
        };
        return match decision.in_process {
            true => decision.package_rules.iter().filter_map(allowed).collect(),
            false => Vec::new(),
        };
    };
    let name = wanted.ecosystem.name();
    let mut lines = vec![match &decision.packages {
        Some(grant) => format!("{} (rule {}: {})", text(grant), grant.rule, grant.rules.why),
        None => format!("{name}: required, and not granted"),
    }];
    let file = |source: &crate::policy::packages::Source| format!("{} sha256:{}", source.path.display(), source.sha256);
    lines.extend(wanted.sources.iter().map(file));
    let held: Vec<String> = wanted.packages.iter().map(|p| format!("{} {}", p.name, p.version)).collect();
    match wanted.locked {
        true => lines.push(format!("lock: {} packages, each with a hash: {}", held.len(), few(&held))),
        false => {
            let asked: Vec<String> = wanted.requires.iter().map(required).collect();
            lines.push(format!("no lock with hashes; asks for {}", few(&asked)));
        }
    }
    if let Some(grant) = &decision.packages {
        let denied = |denied: &crate::policy::packages::Denied| {
            format!("never {} {}: {}", denied.name, denied.versions.as_deref().unwrap_or("of any version"), denied.why)
        };
        lines.extend(grant.rules.deny.iter().map(denied));
    }
    lines
}

fn rules(PackagesAllowed { rules, rule, place: _ }: &PackagesAllowed) -> String {
    format!("from the index `{}`; {} (rule {rule}: {})", rules.index, package_use::words(rules), rules.why)
}

fn required(required: &Required) -> String {
    format!("{} {}", required.name, required.versions).trim_end().to_owned()
}

fn few(all: &[String]) -> String {
    let more = all.len().saturating_sub(MOST_IN_A_LINE);
    let end = if more > 0 { format!(" and {more} more") } else { String::new() };
    all.iter().take(MOST_IN_A_LINE).cloned().collect::<Vec<_>>().join(", ") + &end
}

/// A grant for people.
pub(super) fn text(grant: &PackageGrant) -> String {
    let PackageGrant { ecosystem, rules, .. } = grant;
    format!("{} from the index `{}`; {}", ecosystem.name(), rules.index, package_use::words(rules))
}

pub(super) fn json(decision: &Decision) -> Value {
    let wanted = decision.wanted.as_deref();
    let mut holds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in wanted.iter().flat_map(|wanted| &wanted.packages) {
        holds.entry(&package.name).or_default().push(&package.version);
    }
    let allowed = |(ecosystem, allowance): (&Ecosystem, &Allowance)| match allowance {
        Ok(allowed) => Some((ecosystem.name().to_owned(), json!(allowed.rules))),
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

/// True if all that `grant` lets be installed, `by` did, too.
pub(super) fn covered(by: &PackageGrant, grant: &PackageGrant) -> bool {
    let (wide, narrow) = (&by.rules, &grant.rules);
    by.ecosystem == grant.ecosystem
        && wide.index == narrow.index
        && (narrow.lock_required || !wide.lock_required)
        && (wide.builds || !narrow.builds)
        && wide.min_age_days <= narrow.min_age_days
        && wide.deny.iter().all(|denied| {
            narrow.deny.iter().any(|other| (&other.name, &other.versions) == (&denied.name, &denied.versions))
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
    let denied = decision.denied().any(|verdict| verdict.what == What::Package);
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
