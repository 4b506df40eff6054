//! What a tool is now, beside what a person approved: for `toolhost approve`, and for operators of a
//! running host, who approve nothing over HTTP.

use super::entry::Service;
use super::requirements;
use crate::base::text::printable;
use crate::fault::Fault;
use crate::policy::{self, ApprovalRecord, ToolNow};
use crate::registry::{Snapshot, Tool};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Most changed files that are compared line by line.
const MAX_TEXTS: usize = 5;

/// Tools and rules of one moment.
pub struct Moment<'m> {
    pub snapshot: &'m Snapshot,
    pub policies: &'m policy::Policies,
    pub machine: &'m policy::Machine,
}

/// How a tool differs from what was approved last. `record`: by whom, when and why.
#[derive(Serialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum Change {
    /// Its manifest names another digest.
    OtherPin,
    NoRecord,
    Unchanged {
        record: String,
    },
    Changed {
        record: String,
        parts: Vec<&'static str>,
        /// `None`: this host has only the digests of what was approved.
        between: Option<Between>,
    },
}

/// What changed between two states of a tool.
#[derive(Serialize)]
pub struct Between {
    /// Grants, limits and capabilities, in words.
    pub new: Vec<String>,
    pub gone: Vec<String>,
    /// Tools of a server, and files.
    pub parts: Vec<String>,
    pub manifest: policy::diff::Diff,
}

impl Moment<'_> {
    /// What the tool is now. The error says why it cannot be approved.
    pub fn look(&self, tool: &Tool) -> Result<ToolNow, String> {
        let Moment {
            snapshot,
            policies,
            machine,
        } = self;
        // An alias has a definition of its own, and nothing else.
        let decision = match tool.manifest.alias() {
            Some(_) => policy::decide(&tool.manifest, &tool.site, policies, machine),
            None => requirements::decide(tool, snapshot, policies, machine),
        };
        ToolNow::new(&decision, &tool.manifest, &tool.site, policies)
    }

    pub fn change(&self, tool: &Tool, now: &ToolNow) -> Change {
        if now.differs_from_pin(&tool.manifest) {
            return Change::OtherPin;
        }
        let Some(last) = self.last(tool) else {
            return Change::NoRecord;
        };
        let parts = last.digests.changed(&now.digests);
        let record = last.text();
        if parts.is_empty() {
            return Change::Unchanged { record };
        }
        let folders = self.policies.code.as_ref();
        let before = folders.and_then(|folders| folders.recall(last));
        let between = before.map(|before| between(&tool.reference(), &before, &now.details));
        Change::Changed {
            record,
            parts,
            between,
        }
    }

    /// The first files that are in what was approved last and in the tool now, and another in each.
    pub fn texts(&self, tool: &Tool, now: &ToolNow) -> BTreeMap<String, [String; 2]> {
        let folders = self.policies.code.as_ref().zip(self.last(tool));
        let before = folders.and_then(|(folders, last)| folders.recall(last));
        let before = before.unwrap_or_default();
        let [old, new] = [&before, &now.details].map(|side| side["code"].as_object());
        let both = old.zip(new).into_iter();
        let names = both.flat_map(|(old, new)| {
            let common = old.iter().filter(|(name, _)| new.contains_key(*name));
            let changed = common.filter(|(name, digest)| new.get(*name) != Some(digest));
            changed.map(|(name, _)| name).take(MAX_TEXTS)
        });
        names
            .filter_map(|name| Some((name.clone(), now.texts(&before, name, self.policies)?)))
            .collect()
    }

    /// The newest record of the tool, in whatever version.
    fn last(&self, tool: &Tool) -> Option<&ApprovalRecord> {
        let all = self.policies.approvals.list.iter();
        let of_id = all.filter(|record| record.is_of(&tool.manifest.id));
        of_id.max_by_key(|record| &record.at)
    }
}

fn between(tool: &str, before: &Value, now: &Value) -> Between {
    let tools = differing("tool", &before["tools"], &now["tools"]);
    let files = differing("file", &before["code"], &now["code"]);
    Between {
        new: policy::newly(&before["grants"], &now["grants"]),
        gone: policy::newly(&now["grants"], &before["grants"]),
        parts: [tools, files].concat(),
        manifest: policy::diff::of_documents(tool, &before["definition"], &now["definition"]),
    }
}

/// The members that are new, gone or changed.
fn differing(what: &str, before: &Value, now: &Value) -> Vec<String> {
    let [old, new] = [before, now].map(|side| side.as_object().cloned().unwrap_or_default());
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changes = names.into_iter().filter_map(|name| {
        let how = match (old.get(name), new.get(name)) {
            (before, now) if before == now => return None,
            (None, _) => format!("new {what}"),
            (_, None) => format!("{what} gone"),
            _ => format!("{what} changed"),
        };
        Some(format!("{how}: {name}"))
    });
    changes.collect()
}

/// Whether a tool comes with this binary, and so needs no approval.
pub fn is_builtin(tool: &Tool) -> bool {
    tool.site.manifest.as_os_str().is_empty()
}

/// The state of approval of a tool of a running host, and what differs from what was approved. The
/// tools of a server are approved with it.
pub fn report(service: &Service, reference: &str) -> Result<Value, Fault> {
    let decisions = service.catalog.decisions()?;
    let mut tool = decisions.snapshot.find(reference)?;
    if tool.manifest.mcp_tool().is_some() {
        tool = decisions.snapshot.find(&tool.manifest.of_process().id)?;
    }
    let decided = decisions.decided(&tool);
    let approval = decided.decision.approval.as_ref();
    let mut report = json!({
        "tool": tool.reference(),
        "requiredBy": approval.map(|it| &it.required_by),
        "state": approval.map(|it| it.state.name()),
        "record": approval.map(|it| printable(&it.state.words())),
    });
    if is_builtin(&tool) {
        return Ok(report);
    }
    let moment = Moment {
        snapshot: &decisions.snapshot,
        policies: &decisions.policies,
        machine: &decisions.rules.machine,
    };
    match moment.look(&tool) {
        Err(why) => report["unfit"] = json!(printable(&why)),
        Ok(now) => {
            report["pin"] = json!(now.digests.pin());
            report["change"] = json!(moment.change(&tool, &now));
        }
    }
    report["fix"] = json!(service.command(&format!("approve {} --why TEXT", tool.manifest.id)));
    Ok(report)
}
