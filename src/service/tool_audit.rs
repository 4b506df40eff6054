//! The audit of one tool of a running host.

use super::entry::Service;
use super::script::digest_of_script;
use super::{packages, readiness};
use crate::base::text::{quote, with_settings};
use crate::fault::Fault;
use crate::policy;
use crate::registry::Filter;
use serde_json::{Value, json};

/// What a tool requests, is allowed and gets, if it were called now; and the denials of its
/// last calls.
pub fn tool(service: &Service, reference: &str) -> Result<Value, Fault> {
    let decisions = service.catalog.decisions()?;
    let tool = decisions.snapshot.find(reference)?;
    let decided = decisions.decided(&tool);
    let mut decision = decided.decision.clone();
    readiness::foresee(
        &tool,
        &mut decision,
        service.catalog.readiness_of(&tool, &decided),
        Some(&service.ledger),
        &decisions.snapshot.written,
    );
    let mut report = policy::audit::json(&decision, &tool.manifest);
    report["digests"]["script"] = json!(
        decision
            .identity
            .script
            .as_deref()
            .and_then(digest_of_script)
    );
    if !decision.grants.calls.is_empty() {
        let tools = decisions.snapshot.list(&Filter::default());
        let all = tools
            .iter()
            .map(|tool| decisions.decided(tool).decision.clone());
        let all: Vec<policy::Decision> = all.collect();
        report["reaches"] = json!(policy::audit::reached(&decision, &all));
    }
    report[policy::audit::LAST_DENIALS] = match service.audit.last_denials(&tool, &decision) {
        Ok(last) => json!(last),
        Err(why) => json!({ "unreadable": why }),
    };
    service.add_fixes(
        &tool.manifest.id,
        &mut report[policy::audit::LAST_DENIALS]["denials"],
    );
    if decision.denied().next().is_some() {
        if let Some(person) = report["refused"]["person"].as_str() {
            report["refused"]["person"] = json!(with_settings(person, service.program));
        }
        report["fix"] = json!(service.command(&format!("allow {}", quote(&tool.manifest.id))));
    }
    report[policy::audit::KEPT_PACKAGES] = packages::value(&service.packages.found(&decision));
    Ok(report)
}
