//! What a tool is now, for its approval: definition, code and grants. `decide` alone asks whether that
//! is what was approved, for calls and reports.

use super::approved::{Approval, ApprovalState, PINNED};
use super::decision::{Conditions, Decision, Grants};
use super::verdict::{Narrower, RequestKind};
use crate::base::text::{self, printable};
use crate::base::{self, files};
use crate::manifest::{Document, Manifest, ToolPaths};
use crate::policy::grammar::approvals::digest;
use crate::policy::grammar::{
    Access, ApprovalRecord, ApprovedCode, Area, Code, CodePlaces, Digests, Grantable, LookedAt,
    Policies, Secret,
};
use nix::fcntl::OFlag;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest file of which changed lines are shown, bytes.
const MAX_SHOWN_BYTES: u64 = 1 << 20;

/// What a tool is now: all that a person approves.
#[derive(Clone, Debug)]
pub struct ToolNow {
    pub digests: Digests,
    pub runtime: Option<String>,
    places: CodePlaces,
    looked: Option<LookedAt>,
    /// What the digests are of.
    pub details: Value,
}

impl ToolNow {
    /// The error says why it cannot be approved as it is.
    pub fn new(
        decision: &Decision,
        manifest: &Manifest,
        site: &ToolPaths,
        policies: &Policies,
    ) -> Result<ToolNow, String> {
        let (policy, _) = policies.governing(&manifest.id, &site.manifest);
        if let Some(fault) = &policy.fault {
            return Err(format!(
                "its policy {} has a fault: {fault}",
                printable(&policy.name)
            ));
        }
        let places = places(decision, manifest, site)?;
        let looked = if places.trees.is_empty() {
            None
        } else {
            let folders = policies.code.as_ref();
            let folders = folders.ok_or("its folder is not looked at here")?;
            Some(folders.look(&places)?)
        };
        let definition = definition(manifest);
        let grants = grants(decision, &places);
        let files = looked.as_ref().map(|looked| &looked.code.files);
        let lock = decision.packages.required.as_ref();
        if lock.is_some_and(|it| !it.locked) && decision.grants.packages.is_some() {
            return Err(
                "its packages have no lock: `toolhost deps lock TOOL` makes one".to_owned(),
            );
        }
        let sources = lock.map(|required| required.sources.iter());
        let lock = sources.map(|sources| {
            let sums: Vec<&String> = sources.map(|source| &source.sha256).collect();
            digest(&sums)
        });
        let runtime = decision.grants.runtime.as_ref();
        let listed = manifest.mcp_server().and_then(|it| it.listed.as_deref());
        let listed = listed.into_iter().flatten();
        let tools: BTreeMap<&String, &String> =
            listed.map(|(name, tool)| (name, &tool.digest)).collect();
        Ok(ToolNow {
            digests: Digests {
                definition: Some(digest(&definition)),
                code: files.map(digest),
                lock,
                grants: Some(digest(&grants)),
            },
            runtime: runtime.map(|it| format!("{} {}", it.language.name(), it.version)),
            details: json!({ "definition": definition, "code": files, "grants": grants, "tools": tools }),
            places,
            looked,
        })
    }

    /// Whether its manifest names another digest.
    pub fn differs_from_pin(&self, manifest: &Manifest) -> bool {
        let pin = manifest.approval.as_ref();
        pin.is_some_and(|pin| *pin != self.digests.pin())
    }

    /// A file as it was approved, if this host has the copy, and as it is now. `before`: what was
    /// approved.
    pub fn texts(&self, before: &Value, name: &str, policies: &Policies) -> Option<[String; 2]> {
        let files = serde_json::from_value(before["code"].clone()).ok()?;
        let copied = policies.code.as_ref()?.copy(&self.places, &Code { files });
        let path = self.places.path(name);
        let copy = copied.ok()?.copy_of(&path)?;
        let [old, new] = [(&copy, before), (&path, &self.details)].map(|(path, side)| {
            let file = files::without_links(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK);
            let bytes = files::whole(file.ok()?.into(), MAX_SHOWN_BYTES).ok()??;
            // Who reads this agrees to the digest, and not to what lies there by now.
            let is_it = side["code"][name]
                .as_str()?
                .starts_with(&base::sha256_hex(&bytes));
            is_it.then(|| String::from_utf8(bytes).ok())?
        });
        Some([old?, new?])
    }

    /// The copy of its code.
    pub fn copy(&self, policies: &Policies) -> Result<Option<Arc<ApprovedCode>>, String> {
        let both = self.looked.as_ref().zip(policies.code.as_ref());
        both.map(|(looked, folders)| folders.copy(&self.places, &looked.code))
            .transpose()
    }
}

/// What a manifest says, without the digest of itself.
pub fn definition(manifest: &Manifest) -> Value {
    let mut definition = manifest.raw.clone();
    if let Some(members) = definition.as_object_mut() {
        members.shift_remove("approval");
    }
    definition
}

/// Where the code of a tool lies: its own folder, and what it reads below the base of scripts,
/// however it asks for that.
fn places(
    decision: &Decision,
    manifest: &Manifest,
    site: &ToolPaths,
) -> Result<CodePlaces, String> {
    let grants = decision.grants.files.iter();
    let read: Vec<&Area> = grants
        .filter(|grant| grant.access == Access::Read)
        .map(|grant| &grant.area)
        .collect();
    let has_base = !site.base.as_os_str().is_empty();
    let mut found: BTreeSet<&Path> = read
        .iter()
        .map(|area| area.folder())
        .filter(|folder| has_base && folder.starts_with(&site.base))
        .collect();
    let file = manifest.document().and_then(Document::file);
    if file.is_some() || manifest.skill().is_some() || decision.identity.script.is_some() {
        found.insert(&site.folder);
    }
    // In order of path: what lies in a tree comes behind it.
    let mut trees: Vec<PathBuf> = Vec::new();
    for folder in &found {
        if !trees.iter().any(|tree| folder.starts_with(tree)) {
            trees.push(folder.to_path_buf());
        }
    }
    // A mount in a folder that others change goes where they move that to.
    let wide = read.iter().find(|area| match area {
        // Of a script directly in the base this is the own folder.
        Area::Tree(wide) if *wide == site.base => site.folder != site.base,
        Area::Tree(wide) => trees.iter().any(|it| it != wide && it.starts_with(wide)),
        _ => false,
    });
    if let Some(wide) = wide {
        return Err(format!(
            "it reads {}, which holds its code: grant the parts that it needs",
            wide.text()
        ));
    }
    // Such a folder is of other tools, too.
    if found.contains(&*site.base) || !found.is_empty() && site.is_guest() {
        let why = "give it a folder of its own: this one belongs to other tools, too";
        return Err(why.to_owned());
    }
    Ok(CodePlaces {
        folder: decision.identity.folder.clone(),
        base: site.base.clone(),
        manifest: site.manifest.clone(),
        trees,
    })
}

/// What it may do: the whole values of its grants and conditions by their words, without what
/// another machine has elsewhere. (The lists name every field, so that a new one is thought of.)
fn grants(decision: &Decision, places: &CodePlaces) -> Value {
    let Grants {
        files,
        hosts,
        secrets,
        service,
        calls,
        // By their rules and the lock; neither an interpreter nor a value of this machine.
        packages: _,
        runtime: _,
        variables: _,
    } = &decision.grants;
    let policy = decision.governing.file.parent().unwrap_or(Path::new(""));
    let portable = |value| portable(value, places, policy);
    let files = files.iter();
    let files = files.map(|it| {
        (
            format!("{} {}", it.access.name(), places.portable(&it.area)),
            without_reasons(it),
        )
    });
    let secrets = secrets
        .iter()
        .map(|it| (Secret::new(it).text(), without_reasons(it)));
    // A variable that this machine has not set is granted elsewhere.
    let capabilities = decision.verdicts.iter().filter(|verdict| {
        let is_open = verdict.allowed || verdict.narrower == Some(Narrower::Machine);
        is_open && verdict.what == RequestKind::Capability
    });
    let capabilities = capabilities.map(|it| (it.asked.clone(), Value::Null));
    let limits = decision.limits.iter();
    let packages = decision.packages.allowed.iter();
    let packages = packages
        .filter_map(|(of, it)| Some((of.name(), without_reasons(&it.as_ref().ok()?.rules))));
    portable(json!({
        "files": files.collect::<BTreeMap<_, _>>(),
        "hosts": by_text(hosts),
        "secrets": secrets.collect::<BTreeMap<_, _>>(),
        "service": by_text(service.as_slice()),
        "calls": by_text(calls),
        "packages": packages.collect::<BTreeMap<_, _>>(),
        "capabilities": capabilities.collect::<BTreeMap<_, _>>(),
        "limits": limits.map(|it| (it.limit.name(), it.most())).collect::<BTreeMap<_, _>>(),
        "conditions": conditions(&decision.conditions),
    }))
}

fn by_text<G: Grantable + Serialize>(grants: &[G]) -> BTreeMap<String, Value> {
    let all = grants.iter();
    all.map(|grant| (grant.text(), without_reasons(grant)))
        .collect()
}

/// The members of a grant, or of a condition, that say what is allowed.
fn without_reasons(value: &impl Serialize) -> Value {
    // A lock is required of each tool that is approved, and the request is of the definition.
    const REASONS: [&str; 4] = ["rule", "why", "asked", "lockRequired"];
    let mut value = json!(value);
    if let Some(members) = value.as_object_mut() {
        members.retain(|name, _| !REASONS.contains(&name.as_str()));
    }
    value
}

/// What holds for each call. Who may call is said elsewhere, of all tools.
fn conditions(all: &Conditions) -> Value {
    let Conditions {
        callers: _,
        confirm,
        require_cgroup,
        observe,
        stderr_is_error,
        text_output,
        // The definition says these, which an approval covers.
        answers: _,
        command_line: _,
        context,
        ready,
        sessions,
        mcp,
    } = all;
    let ready = ready.as_ref().and_then(|it| it.as_ref().ok());
    let sessions = sessions.as_ref().and_then(|it| it.as_ref().ok());
    json!({
        "confirm": without_reasons(confirm), "requireCgroup": require_cgroup, "observe": observe,
        "textOutput": text_output, "stderrIsError": stderr_is_error, "context": context,
        "ready": without_reasons(&ready), "sessions": without_reasons(&sessions),
        "mcp": without_reasons(mcp),
    })
}

/// The value with names for the folders that lie elsewhere on another machine.
fn portable(value: Value, places: &CodePlaces, policy: &Path) -> Value {
    let text = |text: String| {
        let folders = [
            (&*places.folder, "."),
            (&*places.base, "base:"),
            (policy, "policy:"),
        ];
        let folders = folders
            .into_iter()
            .filter(|(folder, _)| folder.parent().is_some());
        folders.fold(text, |text, (folder, name)| {
            let folder = folder.to_string_lossy();
            if text == folder {
                return name.to_owned();
            }
            text.replace(&format!("{folder}/"), &format!("{name}/"))
        })
    };
    let inner = |value| portable(value, places, policy);
    match value {
        Value::String(it) => Value::String(text(it)),
        Value::Array(all) => all.into_iter().map(inner).collect(),
        Value::Object(all) => all
            .into_iter()
            .map(|(name, value)| (text(name), inner(value)))
            .collect(),
        other => other,
    }
}

/// What the grants `now` have beyond those `before`, in words.
pub fn newly(before: &Value, now: &Value) -> Vec<String> {
    let kinds = now.as_object().into_iter().flatten();
    let all = kinds.flat_map(|(kind, all)| {
        let all = all.as_object().into_iter().flatten();
        all.map(move |(name, now)| (kind, name, now))
    });
    let new = all.filter_map(|(kind, name, now)| {
        let before = before[kind].get(name);
        if before == Some(now) {
            return None;
        }
        let before = before.unwrap_or(&Value::Null);
        match (before.as_u64(), now.as_u64()) {
            (Some(before), Some(now)) if now < before => None,
            (Some(before), Some(now)) => Some(format!("{name} {now}, before {before}")),
            (_, Some(now)) => Some(format!("{name} {now}")),
            _ if kind == "conditions" || kind == "packages" => {
                Some(format!("{name} {now}, before {before}"))
            }
            _ => Some(name.clone()),
        }
    });
    new.collect()
}

/// Compares a tool with what was approved. `required`: the policy that requires a record.
pub fn approval_of(
    now: Result<ToolNow, String>,
    decision: &Decision,
    manifest: &Manifest,
    policies: &Policies,
    required: Option<String>,
) -> Approval {
    let record = required
        .as_ref()
        .and_then(|_| policies.approvals.find(&decision.identity.tool));
    let before = record.and_then(|record| record.runtime.as_ref());
    let runtime = now.as_ref().ok().and_then(|now| now.runtime.clone());
    let other = before.zip(runtime).filter(|(before, now)| *before != now);
    let looked = now.as_ref().ok().and_then(|now| now.looked.as_ref());
    let stamps = looked.map(|looked| looked.stamps.clone());
    let state = now.and_then(|now| {
        if let Some(changed) = changed(&now, manifest, record) {
            return Ok(changed);
        }
        if required.is_some() && record.is_none() {
            return Ok(ApprovalState::Missing);
        }
        Ok(ApprovalState::Approved {
            record: record.map_or(PINNED.to_owned(), ApprovalRecord::text),
            code: now.copy(policies)?,
        })
    });
    Approval {
        required_by: required.unwrap_or(PINNED.to_owned()),
        state: state.unwrap_or_else(ApprovalState::Unfit),
        note: other.map(|(before, now)| format!("approved with {before}; here it is {now}")),
        stamps,
    }
}

/// Of a script that a builtin tool runs: all tools that own it are approved.
pub fn approval_of_run(
    required: Option<String>,
    script: &Path,
    owners: &[Decision],
) -> Option<Approval> {
    let Some(required_by) = required else {
        return owners.iter().find_map(|owner| owner.approval.clone());
    };
    let is_met = |owner: &&Decision| owner.approval.as_ref().is_some_and(Approval::is_met);
    let script = text::path(script);
    let why = match owners.iter().find(|owner| !is_met(owner)) {
        Some(owner) => match &owner.approval {
            Some(approval) => approval.sentence(&owner.identity.tool),
            None => format!(
                "{script} belongs to {}, whose policy requires no approval: it needs [approval] required = true",
                printable(&owner.identity.tool)
            ),
        },
        None if owners.is_empty() => format!(
            "{script} belongs to no tool: give it a manifest (`toolhost new`), and approve that tool"
        ),
        None => return owners.first().and_then(|owner| owner.approval.clone()),
    };
    Some(Approval {
        required_by,
        state: ApprovalState::OfScript(why),
        note: None,
        stamps: None,
    })
}

/// How a tool is not any more as its manifest, or the record of a person, says.
fn changed(
    now: &ToolNow,
    manifest: &Manifest,
    record: Option<&ApprovalRecord>,
) -> Option<ApprovalState> {
    if now.differs_from_pin(manifest) {
        return Some(ApprovalState::Changed {
            record: PINNED.to_owned(),
            parts: vec!["definition or code"],
        });
    }
    let record = record?;
    // Packages are found after this; the files that name them are part of the code.
    let lock = record.digests.lock.clone();
    let digests = Digests {
        lock,
        ..now.digests.clone()
    };
    let parts = record.digests.changed(&digests);
    (!parts.is_empty()).then(|| ApprovalState::Changed {
        record: record.text(),
        parts,
    })
}
