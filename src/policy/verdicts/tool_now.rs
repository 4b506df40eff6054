//! What a tool is now, for its approval: definition, code and grants. `decide` alone asks whether that
//! is what was approved, for calls and reports.

use super::approved::{Approval, ApprovalState, PINNED};
use super::decision::Decision;
use super::verdict::{Narrower, RequestKind};
use crate::manifest::{Document, Manifest, ToolPaths};
use crate::policy::grammar::approvals::digest;
use crate::policy::grammar::{
    Access, ApprovalRecord, ApprovedCode, Area, Code, CodePlaces, Digests, Grantable, Policies,
    Policy,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a tool is now: all that a person approves.
#[derive(Clone, Debug)]
pub struct ToolNow {
    pub digests: Digests,
    pub runtime: Option<String>,
    places: CodePlaces,
    code: Option<Code>,
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
        let places = places(decision, manifest, site)?;
        let code = if places.trees.is_empty() {
            None
        } else {
            let folders = policies.code.as_ref();
            let folders = folders.ok_or("its folder is not looked at here")?;
            Some((*folders.look(&places)).clone()?)
        };
        let definition = definition(manifest);
        let grants = grants(decision, &places);
        let files = code.as_ref().map(|code| &code.files);
        let lock = decision.packages.required.as_ref();
        if lock.is_some_and(|it| !it.locked) && decision.grants.packages.is_some() {
            return Err("its packages have no lock: `toolhost deps lock` makes one".to_owned());
        }
        let sources = lock.map(|required| required.sources.iter());
        let lock = sources.map(|sources| {
            let sums: Vec<&String> = sources.map(|source| &source.sha256).collect();
            digest(&sums)
        });
        let runtime = decision.grants.runtime.as_ref();
        Ok(ToolNow {
            digests: Digests {
                definition: Some(digest(&definition)),
                code: files.map(digest),
                lock,
                grants: Some(digest(&grants)),
            },
            runtime: runtime.map(|it| format!("{} {}", it.language.name(), it.version)),
            details: json!({ "definition": definition, "code": files, "grants": grants }),
            places,
            code,
        })
    }

    /// The copy of its code.
    pub fn copy(&self, policies: &Policies) -> Result<Option<Arc<ApprovedCode>>, String> {
        let both = self.code.as_ref().zip(policies.code.as_ref());
        both.map(|(code, folders)| folders.copy(&self.places, code))
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
    if file.is_some() || decision.identity.script.is_some() {
        found.insert(&site.folder);
    }
    // Such a folder is of other tools, too.
    if found.contains(&*site.base) || !found.is_empty() && site.is_guest() {
        let why = "give it a folder of its own: this one belongs to other tools, too";
        return Err(why.to_owned());
    }
    // In order of path: what lies in a tree comes behind it.
    let mut trees: Vec<PathBuf> = Vec::new();
    for folder in found {
        if !trees.iter().any(|tree| folder.starts_with(tree)) {
            trees.push(folder.to_owned());
        }
    }
    // A mount in a folder that others change goes where they move that to.
    let wide = read.iter().find(|area| match area {
        Area::Tree(wide) => trees.iter().any(|it| it != wide && it.starts_with(wide)),
        _ => false,
    });
    if let Some(wide) = wide {
        return Err(format!(
            "it reads {}, which holds its code: grant the parts that it needs",
            wide.text()
        ));
    }
    Ok(CodePlaces {
        folder: decision.identity.folder.clone(),
        base: site.base.clone(),
        manifest: site.manifest.clone(),
        trees,
    })
}

/// What it may do, in words that are the same on every machine.
fn grants(decision: &Decision, places: &CodePlaces) -> Value {
    fn texts<G: Grantable>(grants: &[G]) -> BTreeSet<String> {
        grants.iter().map(G::text).collect()
    }
    let grants = &decision.grants;
    let files = grants.files.iter();
    let files = files.map(|it| format!("{} {}", it.access.name(), places.portable(&it.area)));
    let secrets = grants.secrets.iter().map(|grant| {
        let host = grant.header.as_ref().map(|header| &header.host);
        json!([grant.name, host])
    });
    // A variable that this machine has not set is granted elsewhere.
    let capabilities = decision.verdicts.iter().filter(|verdict| {
        let is_open = verdict.allowed || verdict.narrower == Some(Narrower::Machine);
        is_open && verdict.what == RequestKind::Capability
    });
    let limits = decision.limits.iter();
    json!({
        "files": files.collect::<BTreeSet<_>>(),
        "hosts": texts(&grants.hosts),
        "secrets": secrets.collect::<Vec<_>>(),
        "service": texts(grants.service.as_slice()),
        "calls": texts(&grants.calls),
        "capabilities": capabilities.map(|it| it.asked.as_str()).collect::<BTreeSet<_>>(),
        "limits": limits.map(|it| (it.limit.name(), it.most())).collect::<BTreeMap<_, _>>(),
    })
}

/// Compares a tool with what was approved. `required`: the policy that requires a record.
pub fn approval_of(
    now: Result<ToolNow, String>,
    decision: &Decision,
    manifest: &Manifest,
    policies: &Policies,
    required: Option<&Policy>,
) -> Approval {
    let of_policy = required.map(|policy| format!("policy {}", policy.origin().called()));
    let record = required.and_then(|_| policies.approvals.find(&decision.identity.tool));
    let before = record.and_then(|record| record.runtime.as_ref());
    let runtime = now.as_ref().ok().and_then(|now| now.runtime.clone());
    let other = before.zip(runtime).filter(|(before, now)| *before != now);
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
        required_by: of_policy.unwrap_or(PINNED.to_owned()),
        state: state.unwrap_or_else(ApprovalState::Unfit),
        note: other.map(|(before, now)| format!("approved with {before}; here it is {now}")),
    }
}

/// Of a script that a builtin tool runs: all tools that own it are approved.
pub fn approval_of_run(required: Option<&Policy>, owners: &[Decision]) -> Option<Approval> {
    let mut approvals = owners.iter().map(|owner| owner.approval.as_ref());
    let of_owner = approvals.clone().flatten().next().cloned();
    let Some(policy) = required else {
        return of_owner;
    };
    let all = approvals.all(|approval| approval.is_some_and(Approval::is_met));
    Some(of_owner.filter(|_| all).unwrap_or_else(|| Approval {
        required_by: format!("policy {}", policy.origin().called()),
        state: ApprovalState::Unfit("its script is of no tool that is approved".to_owned()),
        note: None,
    }))
}

/// How a tool is not any more as its manifest, or the record of a person, says.
fn changed(
    now: &ToolNow,
    manifest: &Manifest,
    record: Option<&ApprovalRecord>,
) -> Option<ApprovalState> {
    let is_pinned = manifest.approval.as_ref();
    if is_pinned.is_some_and(|pin| *pin != now.digests.pin()) {
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
