//! What NEW allows and OLD did not, what OLD allowed and NEW does not, and every other difference.
//!
//! Two audit documents are compared. A power that OLD did not cover is listed; facts without an order (a schema, an entry
//! point, the bytes of a script, the text of a policy) are listed as different. Every field but those in `MEANT` is compared.

use crate::base::json::escape_segment;
use crate::base::text::{self, head, json as visible, printable};
use crate::policy::grantable::Grantable;
use crate::policy::load::Policies;
use crate::policy::packages::PackageGrant;
use crate::policy::secrets::Secret;
use crate::policy::{CallerGrant, Grant, HostGrant, Network, ServiceGrant};
use crate::quantity::Limit;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Most differences of one tool in a text, and the longest value in one.
const MOST_SHOWN: usize = 50;
const WIDEST: usize = 120;
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

/// Everything one tool could do, or what a policy file says, as plain data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Powers {
    /// `id@version`, or the name of a policy file.
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
}

/// What stands in a part of an audit.
fn part<T: DeserializeOwned>(name: &str, value: &mut Value) -> Result<T, String> {
    serde_json::from_value(value.take()).map_err(|e| format!("not an audit: {name}: {e}"))
}

const CGROUP: &str = "a cgroup is required";
const CONFIRM: &str = "a person agrees to each call";
const NO_CLIENT: &str = "no MCP client that calls asks that person";
const STDERR: &str = "any text on stderr fails the call";

/// The files of two sets of policies, as they are written. What the tools of this host gain or lose by them, their own audits
/// say; so a rule that no tool uses is listed here alone.
pub fn of_policies(old: &Policies, new: &Policies) -> [Vec<Powers>; 2] {
    let written = |policies: &Policies| -> BTreeMap<String, Value> {
        let callers = policies.callers().map(|callers| (&callers.file, &callers.source));
        let files = policies.all().map(|policy| (&policy.file, &policy.source)).chain(callers);
        let named = files.filter_map(|(file, source)| Some((text::path(Path::new(file.file_name()?)), keyed(source))));
        named.collect()
    };
    let (old, mut new) = (written(old), written(new));
    // One file on each side is one policy before and after, whatever it is called.
    if let ([before], [after]) = (&old.keys().collect::<Vec<_>>()[..], &new.keys().cloned().collect::<Vec<_>>()[..]) {
        new = BTreeMap::from([((*before).clone(), new[after].clone())]);
    }
    let subjects: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    [&old, &new].map(|files| {
        let file = |subject: &&String| {
            let facts = files.get(*subject).cloned().unwrap_or_default();
            Powers { subject: (*subject).clone(), facts, ..Powers::default() }
        };
        subjects.iter().map(file).collect()
    })
}

/// Lists of entries as objects by the entry's name: an entry that comes before others changes none of them.
fn keyed(value: &Value) -> Value {
    let name = |entry: &Value| {
        ["path", "host", "name", "service"].iter().find_map(|key| Some(entry[key].as_str()?.to_owned()))
    };
    match value {
        Value::Object(map) => Value::Object(map.iter().map(|(key, value)| (key.clone(), keyed(value))).collect()),
        Value::Array(items) => {
            let named: BTreeMap<String, &Value> = items.iter().filter_map(|item| Some((name(item)?, item))).collect();
            match named.len() == items.len() && !items.is_empty() {
                true => Value::Object(named.into_iter().map(|(name, item)| (name, keyed(item))).collect()),
                false => value.clone(),
            }
        }
        other => other.clone(),
    }
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
    let nothing = Powers { limits: powers.limits.clone(), callers, ..Powers::default() };
    compare(&nothing, powers, changes);
}

fn push(changes: &mut Vec<Change>, powers: &Powers, kind: &'static str, now: String, before: Option<String>) {
    changes.push(Change { subject: powers.subject.clone(), kind, now, before });
}

fn compare(old: &Powers, new: &Powers, changes: &mut Vec<Change>) {
    more(&old.grants, &new.grants, new, changes);
    more(&old.hosts, &new.hosts, new, changes);
    more(&old.secrets, &new.secrets, new, changes);
    more(&old.callers, &new.callers, new, changes);
    more(&old.services, &new.services, new, changes);
    more(&old.packages, &new.packages, new, changes);
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
}

/// The grants of one kind that go beyond all that there was.
fn more<G: Grantable>(old: &[G], new: &[G], powers: &Powers, changes: &mut Vec<Change>) {
    for grant in new.iter().filter(|grant| !G::are_covering(old, grant)) {
        let near: Vec<String> = old.iter().filter(|other| other.is_near(grant)).map(G::text).collect();
        push(changes, powers, grant.kind(), grant.text(), Some(near.join(", ")).filter(|near| !near.is_empty()));
    }
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

/// A `Diff` for a person.
pub fn text(diff: &Diff) -> String {
    let newly = diff.newly.iter().map(|c| (c.subject.as_str(), c.kind, c.now.clone(), c.before.clone()));
    let mut out = section("What could newly be done:", ('+', "before"), newly);
    let lost = diff.no_longer.iter().map(|l| (l.subject.as_str(), l.kind, l.before.clone(), l.now.clone()));
    let lost = section("What can no longer be done:", ('-', "now"), lost);
    let shown =
        |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), |v| head(&visible(v, false), WIDEST));
    let mut count = BTreeMap::<&str, usize>::new();
    let different = diff.different.iter().filter_map(|d| {
        let count = count.entry(&d.subject).or_default();
        *count += 1;
        match *count {
            ..=MOST_SHOWN => {
                Some((d.subject.as_str(), "", format!("{} {}", d.place, shown(&d.now)), Some(shown(&d.before))))
            }
            n if n == MOST_SHOWN + 1 => {
                Some((d.subject.as_str(), "", "and more: --json has all of it".to_owned(), None))
            }
            _ => None,
        }
    });
    let different = section("What else is different, and may allow more or less:", ('~', "before"), different);
    if out.is_empty() {
        out.push_str(if different.is_empty() {
            "Nothing new can be done.\n"
        } else {
            "No grant, limit or capability is new.\n"
        });
    }
    out + &lost + &different
}

type Line<'a> = (&'a str, &'a str, String, Option<String>);

/// One part of the report; empty if there is nothing in it.
fn section<'a>(head: &str, (sign, other): (char, &str), lines: impl Iterator<Item = Line<'a>>) -> String {
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
        let beside = else_what.map(|words| format!("   ({other}: {})", printable(&words))).unwrap_or_default();
        let kind = if kind.is_empty() { String::new() } else { format!("{kind:<10} ") };
        out.push_str(&format!("    {sign} {kind}{}{beside}\n", printable(&what)));
    }
    out
}
