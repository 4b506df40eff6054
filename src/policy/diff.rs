//! What could newly be done, the powers of NEW that OLD did not hold, and apart from it what no longer can be.
//!
//! For: the `diff` verb. In: decisions, saved `audit --json`, or policies. Out: changes, text or JSON.
//! Never: calls a change harmless: whatever OLD did not cover is listed.

use super::area::Area;
use super::file::{Mode, Policy, Selector};
use super::judge::covers;
use super::load::Policies;
use super::verdict::{Decision, What};
use super::{Access, Grant, explain};
use crate::manifest::StderrRule;
use crate::manifest::text::printable;
use crate::quantity::Limit;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Stands for the folder of whatever tool a policy is for.
const TOOL_FOLDER: &str = "/<folder of the tool>";

/// Everything one tool (or what a policy is for) could do, as plain data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Powers {
    /// `id@version`, or the words of a policy's `tools`.
    pub subject: String,
    /// A call is not refused.
    pub runs: bool,
    pub grants: Vec<Grant>,
    pub limits: BTreeMap<Limit, u64>,
    pub capabilities: BTreeSet<String>,
    pub env: BTreeSet<String>,
    pub runtime: BTreeSet<String>,
    pub script: Option<String>,
    /// What must hold: fewer words, more power.
    pub restraints: BTreeSet<String>,
    /// Where the tools must lie; empty = anywhere.
    pub folders: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub subject: String,
    pub kind: &'static str,
    /// What can be done now.
    pub now: String,
    /// What could be done before.
    pub before: Option<String>,
}

/// The other way round: what was taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    pub subject: String,
    pub kind: &'static str,
    /// What could be done before.
    pub before: String,
    /// What is left of it.
    pub now: Option<String>,
}

impl Powers {
    pub fn of(decision: &Decision) -> Powers {
        Powers::from_json(&explain::json(decision)).unwrap_or_default()
    }

    /// From one entry of `audit --json`.
    pub fn from_json(entry: &Value) -> Result<Powers, String> {
        let field = |name: &str| entry.get(name).ok_or_else(|| format!("not an audit: `{name}` is missing"));
        let read = |name: &str| field(name).cloned();
        let grants = serde_json::from_value(read("grants")?).map_err(|e| format!("not an audit: grants: {e}"))?;
        let asks = read("asks")?;
        let limits = read("limits")?;
        let mut powers = Powers {
            subject: field("tool")?.as_str().ok_or("not an audit: `tool` is not text")?.to_string(),
            runs: field("refused")?.is_null(),
            grants,
            script: field("script")?.as_str().map(str::to_string),
            ..Powers::default()
        };
        for limit in limits.as_array().into_iter().flatten() {
            let name = serde_json::from_value::<Limit>(limit["limit"].clone())
                .map_err(|e| format!("not an audit: limits: {e}"))?;
            let key = if name == Limit::TimeoutMs { "ceiling" } else { "effective" };
            powers.limits.insert(name, limit[key].as_u64().ok_or("not an audit: a limit is not a number")?);
        }
        for ask in asks.as_array().into_iter().flatten().filter(|a| a["allowed"] == true) {
            let effective = ask["effective"].as_str().unwrap_or_default().to_string();
            match ask["what"].as_str() {
                Some("capability") => powers.capabilities.insert(effective),
                Some("env") => powers.env.insert(effective),
                Some("runtime") => powers.runtime.insert(effective),
                _ => continue,
            };
        }
        for (key, word) in [("requireCgroup", CGROUP), ("stderrIsError", STDERR)] {
            if field(key)?.as_bool() == Some(true) {
                powers.restraints.insert(word.to_string());
            }
        }
        Ok(powers)
    }

    /// From a whole saved audit: one entry, a list of them, or `{"tools": […]}`.
    pub fn from_audit(saved: &Value) -> Result<Vec<Powers>, String> {
        let list = saved.as_array().or_else(|| saved.get("tools").and_then(Value::as_array));
        match list {
            Some(entries) => entries.iter().map(Powers::from_json).collect(),
            None => Ok(vec![Powers::from_json(saved)?]),
        }
    }

    fn allowed_by(policies: &Policies, selector: &Selector) -> Powers {
        let policy = widest_for(policies, selector);
        let host = policies.host.as_ref();
        let folders = policy.folders.iter().map(|folder| folder.path.clone()).collect();
        let mut powers = Powers { subject: selector.text(), runs: true, folders, ..Powers::default() };
        let grants = |access: Access| rule_grants(policy, host, access);
        powers.grants = super::judge::least(grants(Access::Write).into_iter().chain(grants(Access::Read)).collect());
        let ceiling = |p: &Policy, l: Limit| p.limits.get(&l).map_or(l.house_default(), |c| c.value);
        powers.limits = Limit::ALL
            .into_iter()
            .map(|l| (l, host.map_or(u64::MAX, |h| ceiling(h, l)).min(ceiling(policy, l))))
            .collect();
        let capped = |name: &str| host.is_none_or(|h| h.capabilities.iter().any(|c| c.name == name));
        powers.capabilities = policy.capabilities.iter().map(|c| c.name.clone()).filter(|n| capped(n)).collect();
        let runtime =
            |(l, r): (&crate::manifest::Language, &super::NamedRuntime)| format!("{} {}", l.name(), r.path.display());
        powers.runtime = policy.runtimes.iter().map(runtime).collect();
        let both = |test: fn(&Policy) -> bool| test(policy) || host.is_some_and(test);
        let restraints = [
            (policy.mode == Mode::Reject, "a tool that asks for more is refused"),
            (both(|p| p.require_cgroup), CGROUP),
            (both(|p| p.stderr == StderrRule::Error), STDERR),
        ];
        powers.restraints = restraints.iter().filter(|(on, _)| *on).map(|(_, word)| word.to_string()).collect();
        powers
    }
}

const CGROUP: &str = "a cgroup is required";
const STDERR: &str = "any text on stderr fails the call";

/// Two sets of policies, each as powers of everything that either of them names.
pub fn of_policies(old: &Policies, new: &Policies) -> (Vec<Powers>, Vec<Powers>) {
    let named =
        |p: &Policies| p.list.iter().flat_map(|p| p.tools.iter().map(|t| t.selector.clone())).collect::<BTreeSet<_>>();
    let all: BTreeSet<Selector> = named(old).into_iter().chain(named(new)).collect();
    let powers = |p: &Policies| all.iter().map(|s| Powers::allowed_by(p, s)).collect();
    (powers(old), powers(new))
}

/// The policy that would govern what the selector names.
fn widest_for<'p>(policies: &'p Policies, selector: &Selector) -> &'p Policy {
    let holds = |other: &Selector| match (other, selector) {
        (Selector::Any, _) => true,
        (Selector::Namespace(a), Selector::Namespace(b)) => a == b,
        (_, Selector::Exact(id)) => other.matches(id),
        _ => false,
    };
    let candidates = policies.list.iter().flat_map(|p| p.tools.iter().map(move |t| (&t.selector, p)));
    let narrowest = candidates.filter(|(s, _)| holds(s)).max_by_key(|(s, _)| *s);
    match narrowest {
        Some((_, policy)) => policy,
        None => super::load::fallback(),
    }
}

fn rule_grants(policy: &Policy, host: Option<&Policy>, access: Access) -> Vec<Grant> {
    let folder = Path::new(TOOL_FOLDER);
    let mut found = Vec::new();
    for rule in super::judge::rules(policy, access) {
        let area = rule.area_at(folder);
        let parts: Vec<Area> = match host {
            None => vec![area],
            Some(host) => {
                super::judge::rules(host, access).filter_map(|cap| area.overlap(&cap.area_at(folder))).collect()
            }
        };
        found.extend(parts.into_iter().map(|area| Grant {
            access,
            opening: if access == Access::Read { area.for_reading() } else { area.for_writing() },
            asked: String::new(),
            rule: format!("{}: {}", policy.name, rule.text),
            why: rule.why.clone(),
        }));
    }
    found
}

/// What NEW can do and OLD could not. One subject on each side is compared whatever its name.
pub fn newly(old: &[Powers], new: &[Powers]) -> Vec<Change> {
    beyond(old, new, ["could not run before", "did not exist before"])
}

/// What OLD could do and NEW cannot.
pub fn no_longer(old: &[Powers], new: &[Powers]) -> Vec<Loss> {
    let lost = beyond(new, old, ["cannot run now", "is not there now"]);
    lost.into_iter().map(|c| Loss { subject: c.subject, kind: c.kind, before: c.now, now: c.before }).collect()
}

/// What `new` can do beyond `old`; `absent`: how to say that `old` does not run, or is not there.
fn beyond(old: &[Powers], new: &[Powers], absent: [&str; 2]) -> Vec<Change> {
    let mut changes = Vec::new();
    for powers in new.iter().filter(|p| p.runs) {
        let same = old.iter().find(|o| o.subject == powers.subject);
        let same = same.or_else(|| old.iter().find(|o| id(&o.subject) == id(&powers.subject)));
        let alone = || old.first().filter(|_| old.len() == 1 && new.len() == 1);
        match same.or_else(alone) {
            Some(before) if before.runs => compare(before, powers, &mut changes),
            Some(_) => all(powers, absent[0], &mut changes),
            None => all(powers, absent[1], &mut changes),
        }
    }
    changes
}

fn id(subject: &str) -> &str {
    subject.split_once('@').map_or(subject, |(id, _)| id)
}

fn all(powers: &Powers, before: &str, changes: &mut Vec<Change>) {
    push(changes, powers, "run", "can be called".into(), Some(before.into()));
    let nothing = Powers {
        limits: powers.limits.clone(),
        folders: powers.folders.clone(),
        runtime: powers.runtime.clone(),
        ..Powers::default()
    };
    compare(&Powers { script: powers.script.clone(), ..nothing }, powers, changes);
}

fn push(changes: &mut Vec<Change>, powers: &Powers, kind: &'static str, now: String, before: Option<String>) {
    changes.push(Change { subject: powers.subject.clone(), kind, now, before });
}

fn compare(old: &Powers, new: &Powers, changes: &mut Vec<Change>) {
    for grant in new.grants.iter().filter(|g| !old.grants.iter().any(|o| covers(o, g))) {
        let area = Area::of(&grant.opening);
        let near =
            old.grants.iter().filter(|o| Area::of(&o.opening).overlap(&area).is_some()).map(opened).collect::<Vec<_>>();
        let kind = if grant.access == Access::Write { "write" } else { "read" };
        push(changes, new, kind, opened(grant), Some(near.join(", ")).filter(|n| !n.is_empty()));
    }
    for (limit, value) in &new.limits {
        let before = old.limits.get(limit).copied().unwrap_or_default();
        if *value > before {
            push(changes, new, "limit", format!("{} up to {value}", limit.name()), Some(before.to_string()));
        }
    }
    for (kind, now, before) in [
        ("capability", &new.capabilities, &old.capabilities),
        ("env", &new.env, &old.env),
        ("runtime", &new.runtime, &old.runtime),
    ] {
        now.difference(before).for_each(|word| push(changes, new, kind, word.clone(), None));
    }
    for word in old.restraints.difference(&new.restraints) {
        push(changes, new, "restraint", format!("without: {word}"), None);
    }
    if new.script.is_some() && new.script != old.script {
        push(changes, new, "script", format!("runs {}", new.script.clone().unwrap_or_default()), old.script.clone());
    }
    let held = |f: &PathBuf| old.folders.iter().any(|o| f.starts_with(o));
    if !old.folders.is_empty() && (new.folders.is_empty() || !new.folders.iter().all(held)) {
        let list = |f: &[PathBuf]| f.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ");
        let now = if new.folders.is_empty() { "anywhere".to_string() } else { format!("below {}", list(&new.folders)) };
        push(changes, new, "folders", format!("tools that lie {now}"), Some(list(&old.folders)));
    }
}

fn opened(grant: &Grant) -> String {
    let staged = if matches!(grant.opening, super::Opening::Staged { .. }) { " (staged)" } else { "" };
    let access = if grant.access == Access::Write { What::Write } else { What::Read };
    format!("{} {}{staged}", access.name(), Area::of(&grant.opening).text())
}

pub fn text(newly: &[Change], no_longer: &[Loss]) -> String {
    let newly = newly.iter().map(|c| (c.subject.as_str(), c.kind, c.now.as_str(), c.before.as_deref()));
    let mut out = part("What could newly be done:", ('+', "before"), newly);
    if out.is_empty() {
        out.push_str("Nothing new can be done.\n");
    }
    let lost = no_longer.iter().map(|l| (l.subject.as_str(), l.kind, l.before.as_str(), l.now.as_deref()));
    out.push_str(&part("What can no longer be done:", ('-', "now"), lost));
    out
}

type Line<'a> = (&'a str, &'a str, &'a str, Option<&'a str>);

/// One half of the report; empty if there is nothing in it.
fn part<'a>(head: &str, (sign, other): (char, &str), lines: impl Iterator<Item = Line<'a>>) -> String {
    let mut out = String::new();
    let mut last = "";
    for (subject, kind, what, else_what) in lines {
        if out.is_empty() {
            out.push_str(&format!("{head}\n"));
        }
        if subject != last {
            last = subject;
            out.push_str(&format!("  {}\n", printable(subject)));
        }
        let beside = else_what.map(|words| format!("   ({other}: {})", printable(words))).unwrap_or_default();
        out.push_str(&format!("    {sign} {kind:<10} {}{beside}\n", printable(what)));
    }
    out
}

pub fn json(newly: &[Change], no_longer: &[Loss]) -> Value {
    serde_json::json!({ "newly": newly, "noLonger": no_longer })
}
