//! What NEW allows and OLD did not, what OLD allowed and NEW does not, and every other difference.
//!
//! Two audit documents are compared. A power that OLD did not cover is listed; facts without an
//! order (a schema, an entry point, the bytes of a script, the text of a policy) are listed as
//! different. Every field but those in `COMPARED_APART` is compared.

use super::audit::{KEPT_PACKAGES, LAST_DENIALS};
use crate::base::json::escape_segment;
use crate::base::text;
use crate::policy::grammar::approvals::APPROVALS_FILE;
use crate::policy::grammar::{
    CallGrant, CallerGrant, Grant, Grantable, McpGrant, Network, PackageGrant, Policies,
    ReadyGrant, Secret, ServiceGrant, SessionGrant,
};
use crate::policy::verdicts::{Confirm, LimitVerdict};
use crate::quantity::Limit;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Fields of an entry that are not compared as written: `Powers` has their meaning, or they are
/// wording, or about past calls.
#[rustfmt::skip]
const COMPARED_APART: [&str; 22] = [
    "tool", "policyFile", "callers", "asks", "grants", "network", "secrets", "packages", "service", "calls", "limits",
    "requireCgroup", "stderrIsError", "confirm", "ready", "sessions", "mcp", "notes", "refused", "digests", LAST_DENIALS, KEPT_PACKAGES,
];

/// What one tool could do, from its entry of `audit --json`; or what a policy file says. Older
/// audits lack some members.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Powers {
    /// `id@version`, or the name of a policy file.
    #[serde(rename = "tool")]
    pub subject: String,
    refused: Option<Value>,
    grants: Vec<Grant>,
    network: Network,
    #[serde(default)]
    pub secrets: Vec<Secret>,
    /// `None`: anybody whom the host serves.
    callers: Option<Vec<CallerGrant>>,
    #[serde(default)]
    packages: Packages,
    service: Option<ServiceGrant>,
    #[serde(default)]
    calls: Vec<CallGrant>,
    ready: Option<ReadyGrant>,
    sessions: Option<SessionGrant>,
    mcp: Option<McpGrant>,
    asks: Vec<Request>,
    limits: Vec<LimitVerdict>,
    require_cgroup: bool,
    stderr_is_error: bool,
    #[serde(default)]
    confirm: Vec<Confirm>,
    #[serde(default)]
    approval: Option<Value>,
    digests: ReportDigests,
    /// The files that a policy names relative to its own folder: as they are written, and where
    /// they lie.
    #[serde(skip)]
    beside: BTreeMap<String, PathBuf>,
    /// All other facts of the entry, compared as written.
    #[serde(skip)]
    facts: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct Packages {
    granted: Option<PackageGrant>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Request {
    what: String,
    asked: String,
    effective: Option<String>,
    allowed: bool,
}

/// The digests of a saved audit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct ReportDigests {
    /// Of the whole confinement, words and places included.
    confinement: Option<String>,
}

/// A power that is new, or was taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub subject: String,
    pub kind: &'static str,
    pub now: Option<String>,
    pub before: Option<String>,
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

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    pub newly: Vec<Change>,
    pub no_longer: Vec<Change>,
    pub different: Vec<Difference>,
}

impl Powers {
    pub fn from_json(mut entry: Value) -> Result<Powers, String> {
        if !entry.is_object() {
            return Err("not an audit: an entry is not an object".to_owned());
        }
        let beside = shorten_paths(&mut entry);
        let mut powers =
            Powers::deserialize(&entry).map_err(|why| format!("not an audit: {why}"))?;
        if !beside.is_empty() {
            // It has the whole paths.
            powers.digests.confinement = None;
        }
        powers.beside = beside;
        // The facts of a limit that have no order: how it is counted, and the time of a call that
        // requests none.
        let limits = powers.limits.iter().map(|limit| {
            let usual = (limit.limit == Limit::TimeoutMs).then_some(limit.effective);
            let rest = json!({ "sampled": limit.sampled, "enforcedBy": limit.enforced_by, "usual": usual });
            (limit.limit.name().to_owned(), rest)
        });
        powers.facts = json!({
            "limits": limits.collect::<Map<_, _>>(),
            "scriptBytes": entry["digests"]["script"],
            "packages": entry["packages"],
            "confirm": entry["confirm"],
        });
        if let Some(packages) = powers.facts["packages"].as_object_mut() {
            packages.shift_remove("granted");
        }
        for (name, value) in entry.as_object().into_iter().flatten() {
            if !COMPARED_APART.contains(&name.as_str()) {
                powers.facts[name] = value.clone();
            }
        }
        Ok(powers)
    }

    /// Whether policy lets it run. What this machine lacks now is not asked.
    fn runs(&self) -> bool {
        let fault = self.refused.as_ref();
        fault.is_none_or(|fault| fault["type"] == "CapabilityError")
    }

    fn callers(&self) -> Vec<CallerGrant> {
        let callers = self.callers.clone();
        callers.unwrap_or_else(|| vec![CallerGrant::anybody()])
    }

    fn capabilities(&self) -> BTreeSet<&str> {
        let granted = self
            .asks
            .iter()
            .filter(|it| it.allowed && it.what == "capability" && !it.asked.starts_with("secret:"));
        granted.filter_map(|it| it.effective.as_deref()).collect()
    }

    /// The conditions of every call. Fewer conditions are more power.
    fn conditions(&self) -> BTreeSet<&'static str> {
        let mut found = BTreeSet::new();
        if self.require_cgroup {
            found.insert("a cgroup is required");
        }
        if self.approval.is_some() {
            found.insert("it is as a person approved it");
        }
        if self.stderr_is_error {
            found.insert("any text on stderr fails the call");
        }
        if !self.confirm.is_empty() {
            found.insert("a person agrees to each call");
        }
        if self.confirm.iter().any(|it| it.by_client.is_none()) {
            found.insert("the calling MCP client may not ask the person");
        }
        found
    }
}

/// Makes the paths that a policy may write relative to its own folder so again: a copy elsewhere
/// says the same. Returns them, with their files.
fn shorten_paths(entry: &mut Value) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let file = PathBuf::from(entry["policyFile"].as_str().unwrap_or_default());
    if let Some(folder) = file.parent().filter(|folder| *folder != Path::new("")) {
        for name in ["secrets", "network", "packages"] {
            if let Some(value) = entry.get_mut(name) {
                shorten(value, folder, &mut found);
            }
        }
    }
    found
}

fn shorten(value: &mut Value, folder: &Path, found: &mut BTreeMap<String, PathBuf>) {
    match value {
        Value::String(text) => {
            let path = text.strip_prefix("file:").unwrap_or(text);
            let scheme = &text[..text.len() - path.len()];
            if let Ok(below) = Path::new(path).strip_prefix(folder) {
                let below = below.to_string_lossy().into_owned();
                let short = format!("{scheme}{below}");
                found.insert(below, path.into());
                *text = short;
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| shorten(item, folder, found)),
        Value::Object(members) => members
            .values_mut()
            .for_each(|it| shorten(it, folder, found)),
        _ => {}
    }
}

/// The files of two sets of policies, as written. The audits of tools show what each tool gains or
/// loses; only this comparison lists a changed rule that no tool uses.
pub fn of_policies(old: &Policies, new: &Policies) -> [Vec<Powers>; 2] {
    let old = written(old);
    let mut new = written(new);
    // One file on each side is one policy before and after, whatever it is called.
    if old.len() == 1 && new.len() == 1 {
        new = old.keys().cloned().zip(new.into_values()).collect();
    }
    [&old, &new].map(|files| {
        let subjects: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        let powers = subjects.into_iter().map(|subject| Powers {
            subject: subject.clone(),
            facts: files.get(subject).cloned().unwrap_or_default(),
            ..Powers::default()
        });
        powers.collect()
    })
}

fn written(policies: &Policies) -> BTreeMap<String, Value> {
    let callers = policies.callers();
    let approvals = json!({ "approval": policies.approvals.list });
    let approvals = (PathBuf::from(APPROVALS_FILE), approvals);
    let approvals = Some(&approvals).filter(|_| !policies.approvals.list.is_empty());
    let files = policies
        .all()
        .map(|policy| (&policy.file, &policy.source))
        .chain(callers.map(|callers| (&callers.file, &callers.source)))
        .chain(approvals.map(|(file, source)| (file, source)));
    files
        .filter_map(|(file, source)| {
            Some((text::path(Path::new(file.file_name()?)), keyed(source)))
        })
        .collect()
}

/// Turns lists of entries into objects by the entry's name, so that an inserted entry changes no
/// other.
fn keyed(value: &Value) -> Value {
    let name = |entry: &Value| {
        let mut keys = ["path", "host", "name", "service", "of"].iter();
        keys.find_map(|key| Some(entry[key].as_str()?.to_owned()))
    };
    match value {
        Value::Object(map) => {
            let members = map.iter().map(|(key, value)| (key.clone(), keyed(value)));
            Value::Object(members.collect())
        }
        Value::Array(items) => {
            let named = items.iter().filter_map(|it| Some((name(it)?, keyed(it))));
            let named: BTreeMap<String, Value> = named.collect();
            if named.len() == items.len() && !items.is_empty() {
                Value::Object(named.into_iter().collect())
            } else {
                value.clone()
            }
        }
        other => other.clone(),
    }
}

/// What NEW can do and OLD could not, what OLD could do and NEW cannot, and all other differences.
pub fn between(old: &[Powers], new: &[Powers]) -> Diff {
    let newly = beyond(old, new, ["could not run before", "did not exist before"]);
    let mut no_longer = beyond(new, old, ["cannot run now", "does not exist now"]);
    for change in &mut no_longer {
        std::mem::swap(&mut change.now, &mut change.before);
    }
    let mut different = Vec::new();
    for powers in new {
        if let Some(before) = counterpart(powers, old, new.len() == 1) {
            let mut changes = newly.iter().chain(&no_longer);
            let subjects = [&before.subject, &powers.subject];
            let is_explained = changes.any(|change| subjects.contains(&&change.subject));
            different.extend(differences(before, powers, is_explained));
        }
    }
    Diff {
        newly,
        no_longer,
        different,
    }
}

/// The same subject on the other side: by its name, else by its id, else the only one where both
/// sides have one.
fn counterpart<'p>(powers: &Powers, others: &'p [Powers], alone: bool) -> Option<&'p Powers> {
    fn id(powers: &Powers) -> Option<&str> {
        powers.subject.split('@').next()
    }
    let same = others.iter().find(|it| it.subject == powers.subject);
    let same = same.or_else(|| others.iter().find(|it| id(it) == id(powers)));
    same.or_else(|| others.first().filter(|_| alone && others.len() == 1))
}

/// What `new` can do beyond `old`; `absent`: the words for an `old` that does not run, or is not
/// there.
fn beyond(old: &[Powers], new: &[Powers], absent: [&str; 2]) -> Vec<Change> {
    let mut changes = Vec::new();
    for powers in new.iter().filter(|powers| powers.runs()) {
        let mut found = match counterpart(powers, old, new.len() == 1) {
            Some(before) if before.runs() => gained(before, powers),
            Some(_) => all(powers, absent[0]),
            None => all(powers, absent[1]),
        };
        for change in &mut found {
            change.subject = powers.subject.clone();
        }
        changes.append(&mut found);
    }
    changes
}

fn all(powers: &Powers, before: &str) -> Vec<Change> {
    // Without a callers file everybody may call every tool, which is not a power of this one.
    let nothing = Powers {
        limits: powers.limits.clone(),
        callers: powers.callers.as_ref().map(|_| Vec::new()),
        ..Powers::default()
    };
    let run = Change::new("run", "can be called".to_owned(), Some(before.to_owned()));
    [run].into_iter().chain(gained(&nothing, powers)).collect()
}

fn gained(old: &Powers, new: &Powers) -> Vec<Change> {
    let mut found = uncovered(&old.grants, &new.grants);
    found.extend(uncovered(old.network.hosts(), new.network.hosts()));
    found.extend(uncovered(&old.secrets, &new.secrets));
    found.extend(uncovered(&old.callers(), &new.callers()));
    found.extend(uncovered(&old.calls, &new.calls));
    found.extend(uncovered(old.service.as_slice(), new.service.as_slice()));
    found.extend(uncovered(old.ready.as_slice(), new.ready.as_slice()));
    found.extend(uncovered(old.sessions.as_slice(), new.sessions.as_slice()));
    found.extend(uncovered(old.mcp.as_slice(), new.mcp.as_slice()));
    let [before, now] = [old, new].map(|powers| powers.packages.granted.as_slice());
    found.extend(uncovered(before, now));
    for limit in &new.limits {
        let before = old.limits.iter().find(|it| it.limit == limit.limit);
        let before = before.map_or(0, LimitVerdict::most);
        if limit.most() > before {
            let now = format!("{} up to {}", limit.limit.name(), limit.most());
            found.push(Change::new("limit", now, Some(before.to_string())));
        }
    }
    for word in new.capabilities().difference(&old.capabilities()) {
        found.push(Change::new("capability", word.to_string(), None));
    }
    for word in old.conditions().difference(&new.conditions()) {
        let now = format!("calls without the condition: {word}");
        found.push(Change::new("condition", now, None));
    }
    found
}

impl Change {
    /// Of a subject that is named later.
    fn new(kind: &'static str, now: String, before: Option<String>) -> Change {
        Change {
            subject: String::new(),
            kind,
            now: Some(now),
            before,
        }
    }
}

/// The grants of one kind that no old grant covers.
fn uncovered<G: Grantable>(old: &[G], new: &[G]) -> Vec<Change> {
    let more = new.iter().filter(|grant| !G::are_covering(old, grant));
    more.map(|grant| {
        let near = old.iter().filter(|other| other.is_near(grant));
        let near: Vec<String> = near.map(G::text).collect();
        let before = Some(near.join(", ")).filter(|near| !near.is_empty());
        Change::new(grant.kind(), grant.text(), before)
    })
    .collect()
}

/// Every fact that differs; if there is none and no change explains it, the digests of the
/// confinements, if they differ.
fn differences(old: &Powers, new: &Powers, is_explained: bool) -> Vec<Difference> {
    let mut found = Vec::new();
    walk(Some(&old.facts), Some(&new.facts), "", &mut found);
    let digests = [&old.digests.confinement, &new.digests.confinement];
    if let [Some(before), Some(now)] = digests
        && !is_explained
        && found.is_empty()
    {
        let place = "/digests";
        let [before, now] = [before, now].map(|digest| json!({ "confinement": digest }));
        walk(Some(&before), Some(&now), place, &mut found);
    }
    // A copy of a policy may have other secrets beside it: their text is compared, and not shown.
    for (name, now) in &new.beside {
        let before = old.beside.get(name).filter(|before| *before != now);
        if before.is_some_and(|before| fs::read(before).ok() != fs::read(now).ok()) {
            found.push(Difference {
                subject: String::new(),
                place: format!("/{}", escape_segment(name)),
                now: Some(json!("another text")),
                before: None,
            });
        }
    }
    for difference in &mut found {
        difference.subject = new.subject.clone();
    }
    found
}

/// What differs between two documents about one subject.
pub fn of_documents(subject: &str, old: &Value, new: &Value) -> Diff {
    let mut different = Vec::new();
    walk(Some(old), Some(new), "", &mut different);
    for difference in &mut different {
        difference.subject = subject.to_owned();
    }
    Diff {
        different,
        ..Diff::default()
    }
}

fn walk(old: Option<&Value>, new: Option<&Value>, place: &str, found: &mut Vec<Difference>) {
    match (old, new) {
        (old, new) if old == new => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let place = format!("{place}/{}", escape_segment(name));
                walk(a.get(name), b.get(name), &place, found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                walk(
                    a.get(index),
                    b.get(index),
                    &format!("{place}/{index}"),
                    found,
                );
            }
        }
        (old, new) => found.push(Difference {
            subject: String::new(),
            place: place.to_owned(),
            now: new.cloned(),
            before: old.cloned(),
        }),
    }
}
