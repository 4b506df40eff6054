//! Diff: what NEW allows and OLD did not, what OLD allowed and NEW does not, and every other difference.
//!
//! For: the `diff` verb. In: entries of `audit --json`, or policies. Out: a `Diff`, as text or JSON.
//! Never: calls a change harmless: a power that OLD did not cover is listed, and facts without an order (a schema, an
//! entry point, the bytes of a script) are listed as different. Every field but those in `MEANT` is compared.

pub use super::diff_text::text;
use super::diff_written::written;
use super::packages;
use crate::base::json::escape_segment;
use crate::manifest::StderrRule;
use crate::policy::Area;
use crate::policy::file::{HOST_FILE, Mode, Policy, Selector};
use crate::policy::judge::{covers, what};
use crate::policy::load::Policies;
use crate::policy::package_use;
use crate::policy::packages::{Ecosystem, PackageGrant};
use crate::policy::reach;
use crate::policy::secrets::Secret;
use crate::policy::services;
use crate::policy::uses;
use crate::policy::{Access, CALLERS_FILE, CallerGrant, Callers, Grant, HostGrant, Network, ServiceGrant};
use crate::quantity::Limit;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Placeholder for the folder of the tool that a policy governs.
const TOOL_FOLDER: &str = "/<folder of the tool>";
/// Fields of an entry that are compared by their meaning (`Powers`), or only describe the decision in words.
#[rustfmt::skip]
const MEANT: [&str; 16] = [
    "tool", "policyFile", "callers", "asks", "grants", "network", "secrets", "packages", "service", "limits", "requireCgroup", "stderrIsError", "confirm", "notes", "refused", "digests",
];
/// Parts of an entry that are compared by their meaning, and the kinds of change that report them.
const TOLD: [(&str, &[&str]); 5] = [
    ("/manifest/securityContext/fileAccess", &["read", "write"]),
    ("/manifest/securityContext/networkAccess", &["reach"]),
    ("/highRisks", &["reach"]),
    ("/manifest/securityContext/requiredCapabilities", &["capability", "secret"]),
    ("/manifest/limits", &["limit"]),
];

/// Everything one tool (or what a policy is for) could do, as plain data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Powers {
    /// `id@version`, or the words of a policy's `tools`.
    pub subject: String,
    /// A call is not refused.
    pub runs: bool,
    pub grants: Vec<Grant>,
    pub hosts: Vec<HostGrant>,
    pub secrets: Vec<Secret>,
    /// Tool services that are called.
    pub services: Vec<ServiceGrant>,
    /// Who may call it.
    pub callers: Vec<CallerGrant>,
    /// At most one for each ecosystem.
    pub packages: Vec<PackageGrant>,
    pub limits: BTreeMap<Limit, u64>,
    pub capabilities: BTreeSet<String>,
    /// What must hold: fewer of them, more power.
    pub conditions: BTreeSet<String>,
    /// Where the tools must lie; empty = anywhere.
    pub folders: Vec<PathBuf>,
    /// Everything else that decides, as written.
    pub facts: Value,
    /// Digest of the whole confinement, words and places included.
    pub digest: Option<String>,
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

/// A power that was taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    pub subject: String,
    pub kind: &'static str,
    /// What could be done before.
    pub before: String,
    /// What is left of it.
    pub now: Option<String>,
}

/// A difference that may allow more or less.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub subject: String,
    /// A JSON pointer into the entry of `audit --json`, or into the policy.
    pub place: String,
    pub now: Option<Value>,
    pub before: Option<Value>,
}

/// All that differs between two sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    pub newly: Vec<Change>,
    pub no_longer: Vec<Loss>,
    pub different: Vec<Difference>,
}

impl Powers {
    /// From one entry of `audit --json`.
    pub fn from_json(mut entry: Value) -> Result<Powers, String> {
        let fields = entry.as_object_mut().ok_or("not an audit: an entry is no object")?;
        // What past calls were refused, and left, is no part of what the next may do.
        fields.shift_remove(super::audit::LAST_DENIALS);
        fields.shift_remove(super::audit::KEPT_PACKAGES);
        let mut meant = Map::new();
        for name in MEANT {
            // Audits were kept before there were secrets, packages, callers and confirmations.
            let usual = match name {
                "secrets" | "confirm" => Some(json!([])),
                "packages" => Some(json!({})),
                "callers" | "service" => Some(Value::Null),
                _ => None,
            };
            let value = fields.shift_remove(name).or(usual);
            let value = value.ok_or_else(|| format!("not an audit: `{name}` is missing"))?;
            meant.insert(name.to_owned(), value);
        }
        let mut powers = Powers {
            subject: meant["tool"].as_str().ok_or("not an audit: `tool` is not text")?.to_string(),
            runs: meant["refused"].is_null(),
            grants: part("grants", &mut meant["grants"])?,
            hosts: part::<Network>("network", &mut meant["network"])?.hosts().to_vec(),
            secrets: part("secrets", &mut meant["secrets"])?,
            callers: part::<Option<_>>("callers", &mut meant["callers"])?
                .unwrap_or_else(|| vec![CallerGrant::anybody()]),
            packages: part::<Option<_>>("packages", &mut meant["packages"]["granted"])?.into_iter().collect(),
            services: part::<Option<_>>("service", &mut meant["service"])?.into_iter().collect(),
            digest: meant["digests"]["confinement"].as_str().map(str::to_owned),
            ..Powers::default()
        };
        fields.insert("limits".to_owned(), powers.limits(&meant["limits"])?);
        fields.insert("scriptBytes".to_owned(), meant["digests"]["script"].take());
        fields.insert("packages".to_owned(), meant["packages"].take());
        for why in meant["confirm"].as_array().into_iter().flatten() {
            let no_client = why["byClient"].is_null().then_some(NO_CLIENT);
            powers.conditions.extend([Some(CONFIRM), no_client].into_iter().flatten().map(str::to_owned));
        }
        fields.insert("confirm".to_owned(), meant["confirm"].take());
        for ask in meant["asks"].as_array().into_iter().flatten() {
            let secret = ask["asked"].as_str().is_some_and(|word| word.starts_with("secret:"));
            if ask["allowed"] == true && ask["what"] == "capability" && !secret {
                powers.capabilities.extend(ask["effective"].as_str().map(str::to_owned));
            }
        }
        for (key, word) in [("requireCgroup", CGROUP), ("stderrIsError", STDERR)] {
            if meant[key] == true {
                powers.conditions.insert(word.to_string());
            }
        }
        powers.facts = entry;
        Ok(powers)
    }

    /// Takes over the most that a call can get of each limit. Returns the rest, which has no order: how a limit is
    /// counted, and the time of a call that asks for none.
    fn limits(&mut self, limits: &Value) -> Result<Value, String> {
        let mut rest = Map::new();
        for limit in limits.as_array().into_iter().flatten() {
            let name: Limit = part("limits", &mut limit["limit"].clone())?;
            let key = if name == Limit::TimeoutMs { "ceiling" } else { "effective" };
            self.limits.insert(name, limit[key].as_u64().ok_or("not an audit: a limit is not a number")?);
            let mut more = json!({ "sampled": limit["sampled"], "enforcedBy": limit["enforcedBy"] });
            if name == Limit::TimeoutMs {
                more["usual"] = limit["effective"].clone();
            }
            rest.insert(name.name().to_owned(), more);
        }
        Ok(Value::Object(rest))
    }

    fn allowed_by(policies: &Policies, selector: &Selector) -> Powers {
        let policy = widest_for(policies, selector);
        let host = policies.host.as_ref();
        let folders = policy.folders.iter().map(|folder| folder.path.clone()).collect();
        let facts = written(policy);
        let mut powers = Powers { subject: selector.text(), runs: true, folders, facts, ..Powers::default() };
        let grants = |access: Access| rule_grants(policy, host, access);
        powers.grants =
            crate::policy::judge::least(grants(Access::Write).into_iter().chain(grants(Access::Read)).collect());
        powers.hosts = reach::least(reach::allowed(policy, host));
        powers.secrets = uses::allowed(policy, host).iter().map(Secret::of).collect();
        powers.services = services::allowed(policy, host);
        let packages = Ecosystem::ALL.into_iter().filter_map(|ecosystem| {
            let allowed = package_use::allowed(ecosystem, policy, host).ok()?;
            let (rules, rule) = (allowed.rules, allowed.rule);
            Some(PackageGrant { ecosystem, rules, rule, locked: false, sources: Vec::new() })
        });
        powers.packages = packages.collect();
        let ceiling = |p: &Policy, l: Limit| p.limits.get(&l).map_or(l.house_default(), |c| c.value);
        powers.limits = Limit::ALL
            .into_iter()
            .map(|l| (l, host.map_or(u64::MAX, |h| ceiling(h, l)).min(ceiling(policy, l))))
            .collect();
        let capped = |name: &str| host.is_none_or(|h| h.capabilities.iter().any(|c| c.name == name));
        powers.capabilities = policy.capabilities.iter().map(|c| c.name.clone()).filter(|n| capped(n)).collect();
        let both = |test: fn(&Policy) -> bool| test(policy) || host.is_some_and(test);
        let conditions = [
            (policy.mode == Mode::Reject, "a tool that asks for more is refused"),
            (both(|p| p.require_cgroup), CGROUP),
            (both(|p| p.stderr == StderrRule::Error), STDERR),
            (both(|p| p.confirm.is_some()), CONFIRM),
            (both(|p| p.confirm.is_some() && p.confirm_by_client.is_none()), NO_CLIENT),
        ];
        powers.conditions = conditions.iter().filter(|(on, _)| *on).map(|(_, word)| word.to_string()).collect();
        powers
    }
}

/// What stands in a part of an audit.
fn part<T: DeserializeOwned>(name: &str, value: &mut Value) -> Result<T, String> {
    serde_json::from_value(value.take()).map_err(|e| format!("not an audit: {name}: {e}"))
}

const CGROUP: &str = "a cgroup is required";
const CONFIRM: &str = "a person agrees to each call";
const NO_CLIENT: &str = "no MCP client that calls asks that person";
const STDERR: &str = "any text on stderr fails the call";

/// Two sets of policies, each as the powers of everything that either of them names, and of its cap.
pub fn of_policies(old: &Policies, new: &Policies) -> (Vec<Powers>, Vec<Powers>) {
    let named =
        |p: &Policies| p.list.iter().flat_map(|p| p.tools.iter().map(|t| t.selector.clone())).collect::<BTreeSet<_>>();
    let all: BTreeSet<Selector> = named(old).into_iter().chain(named(new)).collect();
    let cap = |p: &Policies| {
        let facts = p.host.as_ref().map_or(Value::Null, written);
        Powers { subject: HOST_FILE.to_owned(), runs: true, facts, ..Powers::default() }
    };
    let callers = |p: &Policies| {
        let facts = p.callers().map_or(Value::Null, |callers| {
            let Callers { list, limits, breaker, file: _ } = callers.as_ref();
            let named = list.iter().map(|rule| (rule.name.clone(), json!(rule))).collect::<Map<_, _>>();
            json!({ "caller": named, "limit": limits, "breaker": breaker })
        });
        Powers { subject: CALLERS_FILE.to_owned(), runs: true, facts, ..Powers::default() }
    };
    let powers = |p: &Policies| all.iter().map(|s| Powers::allowed_by(p, s)).chain([cap(p), callers(p)]).collect();
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
        None => crate::policy::load::fallback(),
    }
}

fn rule_grants(policy: &Policy, host: Option<&Policy>, access: Access) -> Vec<Grant> {
    let folder = Path::new(TOOL_FOLDER);
    let mut found = Vec::new();
    for rule in crate::policy::judge::rules(policy, access) {
        let area = rule.area_at(folder);
        let parts: Vec<Area> = match host {
            None => vec![area],
            Some(host) => {
                crate::policy::judge::rules(host, access).filter_map(|cap| area.overlap(&cap.area_at(folder))).collect()
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

/// What NEW can do and OLD could not, what OLD could do and NEW cannot, and all other differences.
pub fn between(old: &[Powers], new: &[Powers]) -> Diff {
    let newly = beyond(old, new, ["could not run before", "did not exist before"]);
    let lost = beyond(new, old, ["cannot run now", "is not there now"]);
    let loss = |c: Change| Loss { subject: c.subject, kind: c.kind, before: c.now, now: c.before };
    let mut diff = Diff { newly, no_longer: lost.into_iter().map(loss).collect(), different: Vec::new() };
    for powers in new {
        if let Some(before) = counterpart(powers, old, new.len() == 1) {
            let found = different(before, powers, &diff);
            diff.different.extend(found);
        }
    }
    diff
}

/// The same subject on the other side: by its name, else by its id, else the only one where both sides have one.
fn counterpart<'p>(powers: &Powers, others: &'p [Powers], alone: bool) -> Option<&'p Powers> {
    let same = others.iter().find(|o| o.subject == powers.subject);
    let same = same.or_else(|| others.iter().find(|o| id(&o.subject) == id(&powers.subject)));
    same.or_else(|| others.first().filter(|_| alone && others.len() == 1))
}

/// What `new` can do beyond `old`; `absent`: the words for an `old` that does not run, or is not there.
fn beyond(old: &[Powers], new: &[Powers], absent: [&str; 2]) -> Vec<Change> {
    let mut changes = Vec::new();
    for powers in new.iter().filter(|p| p.runs) {
        match counterpart(powers, old, new.len() == 1) {
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
    // That whoever is served may call it says nothing about the tool.
    let callers = powers.callers.iter().filter(|caller| **caller == CallerGrant::anybody()).cloned().collect();
    let (limits, folders) = (powers.limits.clone(), powers.folders.clone());
    let nothing = Powers { limits, folders, callers, ..Powers::default() };
    compare(&nothing, powers, changes);
}

fn push(changes: &mut Vec<Change>, powers: &Powers, kind: &'static str, now: String, before: Option<String>) {
    changes.push(Change { subject: powers.subject.clone(), kind, now, before });
}

fn compare(old: &Powers, new: &Powers, changes: &mut Vec<Change>) {
    for grant in new.grants.iter().filter(|g| !old.grants.iter().any(|o| covers(o, g))) {
        let area = Area::of(&grant.opening);
        let near =
            old.grants.iter().filter(|o| Area::of(&o.opening).overlap(&area).is_some()).map(opened).collect::<Vec<_>>();
        push(changes, new, what(grant.access).name(), opened(grant), Some(near.join(", ")).filter(|n| !n.is_empty()));
    }
    for grant in new.hosts.iter().filter(|grant| !reach::reached(&old.hosts, grant)) {
        let near = old.hosts.iter().filter(|o| o.pattern.overlap(&grant.pattern).is_some());
        let near = near.map(reach::text).collect::<Vec<_>>().join("; ");
        push(changes, new, "reach", reach::text(grant), Some(near).filter(|near| !near.is_empty()));
    }
    for secret in new.secrets.iter().filter(|secret| !old.secrets.iter().any(|o| o.covers(secret))) {
        let near = old.secrets.iter().find(|o| o.name == secret.name).map(Secret::text);
        push(changes, new, "secret", secret.text(), near);
    }
    for caller in new.callers.iter().filter(|caller| !old.callers.iter().any(|o| o.covers(caller))) {
        let near = old.callers.iter().find(|o| o.name == caller.name).map(CallerGrant::text);
        push(changes, new, "caller", caller.text(), near);
    }
    for grant in new.services.iter().filter(|grant| !old.services.iter().any(|o| o.covers(grant))) {
        let near = old.services.iter().find(|o| o.service == grant.service).map(ServiceGrant::text);
        push(changes, new, "service", grant.text(), near);
    }
    for grant in new.packages.iter().filter(|grant| !old.packages.iter().any(|o| packages::covered(o, grant))) {
        let near = old.packages.iter().find(|o| o.ecosystem == grant.ecosystem).map(packages::text);
        push(changes, new, "packages", packages::text(grant), near);
    }
    for (limit, value) in &new.limits {
        let before = old.limits.get(limit).copied().unwrap_or_default();
        if *value > before {
            push(changes, new, "limit", format!("{} up to {value}", limit.name()), Some(before.to_string()));
        }
    }
    for word in new.capabilities.difference(&old.capabilities) {
        push(changes, new, "capability", word.clone(), None);
    }
    for word in old.conditions.difference(&new.conditions) {
        push(changes, new, "condition", format!("calls without this: {word}"), None);
    }
    let held = |f: &PathBuf| old.folders.iter().any(|o| f.starts_with(o));
    if !old.folders.is_empty() && (new.folders.is_empty() || !new.folders.iter().all(held)) {
        let list = |f: &[PathBuf]| f.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ");
        let now = if new.folders.is_empty() { "anywhere".to_string() } else { format!("below {}", list(&new.folders)) };
        push(changes, new, "folders", format!("tools that lie {now}"), Some(list(&old.folders)));
    }
}

pub(super) fn opened(grant: &Grant) -> String {
    let staged = if matches!(grant.opening, crate::policy::Opening::Staged { .. }) { " (staged)" } else { "" };
    format!("{} {}{staged}", what(grant.access).name(), Area::of(&grant.opening).text())
}

/// Every fact that differs, without those that a change reported already; where there is neither and the digests of the
/// confinements differ, the digests.
fn different(old: &Powers, new: &Powers, told: &Diff) -> Vec<Difference> {
    let newly = told.newly.iter().filter(|c| c.subject == new.subject).map(|c| c.kind);
    let lost = told.no_longer.iter().filter(|l| l.subject == old.subject).map(|l| l.kind);
    let kinds: BTreeSet<&str> = newly.chain(lost).collect();
    let mut found = Vec::new();
    walk(Some(&old.facts), Some(&new.facts), String::new(), &mut |place, before, now| {
        let known = TOLD.iter().any(|(part, by)| place.starts_with(part) && by.iter().any(|kind| kinds.contains(kind)));
        if !known {
            let subject = new.subject.clone();
            found.push(Difference { subject, place, now: now.cloned(), before: before.cloned() });
        }
    });
    if let (Some(before), Some(now), true) = (&old.digest, &new.digest, kinds.is_empty() && found.is_empty())
        && before != now
    {
        let place = "/digests/confinement".to_owned();
        found.push(Difference {
            subject: new.subject.clone(),
            place,
            now: Some(json!(now)),
            before: Some(json!(before)),
        });
    }
    found
}

/// Reports the innermost places where two values differ.
fn walk(
    old: Option<&Value>,
    new: Option<&Value>,
    place: String,
    tell: &mut impl FnMut(String, Option<&Value>, Option<&Value>),
) {
    match (old, new) {
        (old, new) if old == new => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                walk(a.get(name), b.get(name), format!("{place}/{}", escape_segment(name)), tell);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                walk(a.get(index), b.get(index), format!("{place}/{index}"), tell);
            }
        }
        (old, new) => tell(place, old, new),
    }
}
