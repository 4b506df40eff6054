//! Every tool of a running host with its state, for operators: also those that no caller is offered.

use super::decision_cache::DecisionCache;
use super::entry::Service;
use super::readiness::{Need, Readiness};
use crate::fault::Fault;
use crate::policy::{self, Stop};
use crate::registry::{Filter, Tool};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The tools, in order of id and version, and how many files are none.
pub fn all(service: &Service) -> Result<Value, Fault> {
    let decisions = service.catalog.decisions()?;
    let tools = decisions.snapshot.list(&Filter::default());
    let tools: Vec<Value> = tools
        .iter()
        .map(|tool| entry(service, &decisions, tool))
        .collect();
    Ok(json!({ "tools": tools, "skippedFiles": decisions.snapshot.skipped() }))
}

fn entry(service: &Service, decisions: &DecisionCache, tool: &Arc<Tool>) -> Value {
    let decided = decisions.decided(tool);
    let decision = &decided.decision;
    let behind = decisions.behind(tool);
    let stops = &decisions.policies.stops;
    let stops: Vec<&Stop> = stops.of(&tool.reference()).collect();
    let (state, needs) = match service.catalog.readiness_of(&behind, &decided) {
        _ if !stops.is_empty() => ("disabled", Vec::new()),
        Readiness::Ready => ("ready", Vec::new()),
        Readiness::AtClient => ("client", Vec::new()),
        Readiness::Unavailable(needs) => ("unavailable", needs.iter().map(Need::text).collect()),
        Readiness::Refused(fault) => ("refused", vec![fault.message]),
    };
    let approval = decision.approval.as_ref();
    json!({
        "tool": tool.reference(),
        "displayName": tool.manifest.display_name,
        "description": tool.manifest.description,
        "source": tool.source,
        "alias": tool.manifest.alias().map(|alias| alias.id()),
        "server": tool.manifest.mcp_tool().map(|_| &tool.manifest.of_process().id),
        "state": state,
        "needs": needs,
        "disabled": stops,
        "policy": decision.governing.policy,
        "asks": counts(decision),
        "confirms": !decision.conditions.confirm.is_empty(),
        "approval": approval.map(|it| json!({ "requiredBy": it.required_by, "state": it.state.name() })),
    })
}

/// How much of each kind is requested, and how much of that is granted in full.
fn counts(decision: &policy::Decision) -> Value {
    let mut counts: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for verdict in &decision.verdicts {
        let [asked, granted] = counts.entry(verdict.what.name()).or_default();
        *asked += 1;
        *granted += usize::from(verdict.allowed);
    }
    json!(counts)
}
