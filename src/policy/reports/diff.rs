//! What NEW allows and OLD did not, what OLD allowed and NEW does not, and every other difference.
//!
//! Two audit documents are compared. A power that OLD did not cover is listed; facts without an
//! order (a schema, an entry point, the bytes of a script, the text of a policy) are listed as
//! different. Every field but those in `COMPARED_APART` is compared.

use crate::base::json::escape_segment;
use crate::base::text;
use crate::policy::grammar::callers::CallerGrant;
use crate::policy::grammar::files::Grant;
use crate::policy::grammar::grantable::Grantable;
use crate::policy::grammar::hosts::Network;
use crate::policy::grammar::load::Policies;
use crate::policy::grammar::packages::PackageGrant;
use crate::policy::grammar::secrets::Secret;
use crate::policy::grammar::services::ServiceGrant;
use crate::policy::verdicts::verdict::{Confirm, LimitVerdict};
use crate::quantity::Limit;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Fields of an entry that are not compared as written: `Powers` has their meaning, or they are
/// wording, or about past calls.
#[rustfmt::skip]
const COMPARED_APART: [&str; 18] = [
    "tool", "policyFile", "callers", "asks", "grants", "network", "secrets", "packages", "service", "limits",
    "requireCgroup", "stderrIsError", "confirm", "notes", "refused", "digests", super::audit::LAST_DENIALS,
    super::audit::KEPT_PACKAGES,
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
    asks: Vec<Request>,
    limits: Vec<LimitVerdict>,
    require_cgroup: bool,
    stderr_is_error: bool,
    #[serde(default)]
    confirm: Vec<Confirm>,
    digests: ReportDigests,
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
        let Value::Object(facts) = &mut entry else {
            return Err("not an audit: an entry is not an object".to_owned());
        };
        let mut powers =
            Powers::deserialize(&*facts).map_err(|why| format!("not an audit: {why}"))?;
        let mut packages = facts
            .get_mut("packages")
            .map(Value::take)
            .unwrap_or_default();
        packages
            .as_object_mut()
            .and_then(|packages| packages.shift_remove("granted"));
        let script = facts
            .get("digests")
            .and_then(|digests| digests.get("script"))
            .cloned()
            .unwrap_or_default();
        let confirm = facts
            .get_mut("confirm")
            .map(Value::take)
            .unwrap_or_default();
        COMPARED_APART
            .iter()
            .for_each(|name| _ = facts.shift_remove(*name));
        // The facts of a limit that have no order: how it is counted, and the time of a call that
        // requests none.
        let rest = powers.limits.iter().map(|limit| {
            let usual = (limit.limit == Limit::TimeoutMs).then_some(limit.effective);
            let rest = json!({ "sampled": limit.sampled, "enforcedBy": limit.enforced_by, "usual": usual });
            (limit.limit.name().to_owned(), rest)
        });
        let rest = Value::Object(rest.collect());
        let more = [
            ("limits", rest),
            ("scriptBytes", script),
            ("packages", packages),
            ("confirm", confirm),
        ];
        facts.extend(more.map(|(name, value)| (name.to_owned(), value)));
        powers.facts = entry;
        Ok(powers)
    }

    /// Whether policy lets it run. What this machine lacks now is not asked.
    fn runs(&self) -> bool {
        self.refused
            .as_ref()
            .is_none_or(|fault| fault["type"] == "CapabilityError")
    }

    fn callers(&self) -> Vec<CallerGrant> {
        self.callers
            .clone()
            .unwrap_or_else(|| vec![CallerGrant::anybody()])
    }

    fn limit(&self, limit: Limit) -> u64 {
        let found = self.limits.iter().find(|it| it.limit == limit);
        found.map_or(0, |it| {
            if limit == Limit::TimeoutMs {
                it.ceiling
            } else {
                it.effective
            }
        })
    }

    fn capabilities(&self) -> BTreeSet<&String> {
        let granted = self
            .asks
            .iter()
            .filter(|it| it.allowed && it.what == "capability");
        granted
            .filter(|it| !it.asked.starts_with("secret:"))
            .filter_map(|it| it.effective.as_ref())
            .collect()
    }

    /// The conditions of every call. Fewer conditions are more power.
    fn conditions(&self) -> BTreeSet<&'static str> {
        let conditions = [
            (self.require_cgroup, "a cgroup is required"),
            (self.stderr_is_error, "any text on stderr fails the call"),
            (!self.confirm.is_empty(), "a person agrees to each call"),
            (
                self.confirm.iter().any(|it| it.by_client.is_none()),
                "the calling MCP client may not ask the person",
            ),
        ];
        conditions
            .into_iter()
            .filter(|(holds, _)| *holds)
            .map(|(_, words)| words)
            .collect()
    }
}

/// The files of two sets of policies, as written. The audits of tools show what each tool gains or
/// loses; only this comparison lists a changed rule that no tool uses.
pub fn of_policies(old: &Policies, new: &Policies) -> [Vec<Powers>; 2] {
    fn written(policies: &Policies) -> BTreeMap<String, Value> {
        let callers = policies
            .callers()
            .map(|callers| (&callers.file, &callers.source));
        let files = policies
            .all()
            .map(|policy| (&policy.file, &policy.source))
            .chain(callers);
        let named = files.filter_map(|(file, source)| {
            Some((text::path(Path::new(file.file_name()?)), keyed(source)))
        });
        named.collect()
    }
    let old = written(old);
    let mut new = written(new);
    // One file on each side is one policy before and after, whatever it is called.
    if let ([before], [after]) = (
        &old.keys().collect::<Vec<_>>()[..],
        &new.keys().cloned().collect::<Vec<_>>()[..],
    ) {
        new = BTreeMap::from([((*before).clone(), new[after].clone())]);
    }
    let subjects: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    [&old, &new].map(|files| {
        subjects
            .iter()
            .map(|subject: &&String| {
                let facts = files.get(*subject).cloned().unwrap_or_default();
                Powers {
                    subject: (*subject).clone(),
                    facts,
                    ..Powers::default()
                }
            })
            .collect()
    })
}

/// Turns lists of entries into objects by the entry's name, so that an inserted entry changes no
/// other.
fn keyed(value: &Value) -> Value {
    fn name(entry: &Value) -> Option<String> {
        ["path", "host", "name", "service"]
            .iter()
            .find_map(|key| Some(entry[key].as_str()?.to_owned()))
    }
    match value {
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, value)| (key.clone(), keyed(value)))
                .collect(),
        ),
        Value::Array(items) => {
            let named: BTreeMap<String, &Value> = items
                .iter()
                .filter_map(|item| Some((name(item)?, item)))
                .collect();
            if named.len() == items.len() && !items.is_empty() {
                Value::Object(
                    named
                        .into_iter()
                        .map(|(name, item)| (name, keyed(item)))
                        .collect(),
                )
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
    no_longer
        .iter_mut()
        .for_each(|change| std::mem::swap(&mut change.now, &mut change.before));
    let mut diff = Diff {
        newly,
        no_longer,
        different: Vec::new(),
    };
    for powers in new {
        if let Some(before) = counterpart(powers, old, new.len() == 1) {
            let is_known = diff
                .newly
                .iter()
                .chain(&diff.no_longer)
                .any(|change: &Change| {
                    [&before.subject, &powers.subject].contains(&&change.subject)
                });
            diff.different.extend(different(before, powers, is_known));
        }
    }
    diff
}

/// The same subject on the other side: by its name, else by its id, else the only one where both
/// sides have one.
fn counterpart<'p>(powers: &Powers, others: &'p [Powers], alone: bool) -> Option<&'p Powers> {
    let same = others.iter().find(|o| o.subject == powers.subject);
    let same = same.or_else(|| {
        others
            .iter()
            .find(|o| id(&o.subject) == id(&powers.subject))
    });
    same.or_else(|| others.first().filter(|_| alone && others.len() == 1))
}

/// What `new` can do beyond `old`; `absent`: the words for an `old` that does not run, or is not
/// there.
fn beyond(old: &[Powers], new: &[Powers], absent: [&str; 2]) -> Vec<Change> {
    let mut changes = Vec::new();
    for powers in new.iter().filter(|p| p.runs()) {
        match counterpart(powers, old, new.len() == 1) {
            Some(before) if before.runs() => compare(before, powers, &mut changes),
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
    push(
        changes,
        powers,
        "run",
        "can be called".into(),
        Some(before.into()),
    );
    // Without a callers file everybody may call every tool, which is not a power of this one.
    let callers = powers.callers.as_ref().map(|_| Vec::new());
    let nothing = Powers {
        limits: powers.limits.clone(),
        callers,
        ..Powers::default()
    };
    compare(&nothing, powers, changes);
}

fn push(
    changes: &mut Vec<Change>,
    powers: &Powers,
    kind: &'static str,
    now: String,
    before: Option<String>,
) {
    changes.push(Change {
        subject: powers.subject.clone(),
        kind,
        now: Some(now),
        before,
    });
}

fn compare(old: &Powers, new: &Powers, changes: &mut Vec<Change>) {
    more(&old.grants, &new.grants, new, changes);
    more(old.network.hosts(), new.network.hosts(), new, changes);
    more(&old.secrets, &new.secrets, new, changes);
    more(&old.callers(), &new.callers(), new, changes);
    more(old.service.as_slice(), new.service.as_slice(), new, changes);
    more(
        old.packages.granted.as_slice(),
        new.packages.granted.as_slice(),
        new,
        changes,
    );
    for limit in new.limits.iter().map(|limit| limit.limit) {
        let before = old.limit(limit);
        let now = new.limit(limit);
        if now > before {
            push(
                changes,
                new,
                "limit",
                format!("{} up to {now}", limit.name()),
                Some(before.to_string()),
            );
        }
    }
    for word in new.capabilities().difference(&old.capabilities()) {
        push(changes, new, "capability", word.to_string(), None);
    }
    for word in old.conditions().difference(&new.conditions()) {
        push(
            changes,
            new,
            "condition",
            format!("calls without the condition: {word}"),
            None,
        );
    }
}

/// Lists the grants of one kind that no old grant covers.
fn more<G: Grantable>(old: &[G], new: &[G], powers: &Powers, changes: &mut Vec<Change>) {
    for grant in new.iter().filter(|grant| !G::are_covering(old, grant)) {
        let near: Vec<String> = old
            .iter()
            .filter(|other| other.is_near(grant))
            .map(G::text)
            .collect();
        push(
            changes,
            powers,
            grant.kind(),
            grant.text(),
            Some(near.join(", ")).filter(|near| !near.is_empty()),
        );
    }
}

/// Every fact that differs; if there is none and no change is known, the digests of the
/// confinements, if they differ.
fn different(old: &Powers, new: &Powers, is_known: bool) -> Vec<Difference> {
    let mut found = Vec::new();
    let subject = &new.subject;
    walk(
        Some(&old.facts),
        Some(&new.facts),
        String::new(),
        &mut |place, before, now| {
            let now = now.cloned();
            let before = before.cloned();
            found.push(Difference {
                subject: subject.clone(),
                place,
                now,
                before,
            });
        },
    );
    let before = &old.digests.confinement;
    let now = &new.digests.confinement;
    if !is_known && found.is_empty() && before != now && before.is_some() && now.is_some() {
        let subject = subject.clone();
        let place = "/digests/confinement".to_owned();
        found.push(Difference {
            subject,
            place,
            now: Some(json!(now)),
            before: Some(json!(before)),
        });
    }
    found
}

fn walk(
    old: Option<&Value>,
    new: Option<&Value>,
    place: String,
    report: &mut impl FnMut(String, Option<&Value>, Option<&Value>),
) {
    match (old, new) {
        (old, new) if old == new => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                walk(
                    a.get(name),
                    b.get(name),
                    format!("{place}/{}", escape_segment(name)),
                    report,
                );
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                walk(
                    a.get(index),
                    b.get(index),
                    format!("{place}/{index}"),
                    report,
                );
            }
        }
        (old, new) => report(place, old, new),
    }
}
