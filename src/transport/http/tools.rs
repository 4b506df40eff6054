//! `/v1/tools`: what a caller may call, as JSON or in the shapes of model APIs. For operators: what a tool may touch,
//! `/v1/approvals`, `/v1/status`, `/metrics`.

use super::background::no_such_call;
use super::body;
use super::gate::parameter;
use super::reply::{self, Refusal, Response};
use super::request::{KnownRequest, Operator, not_operator};
use crate::base::json::Object;
use crate::fault::{Fault, Kind};
use crate::registry::{Filter, Tool};
use crate::service::{Caller, Phase};
use crate::transport::export::{self, Format};
use crate::transport::names::Names;
use axum::body::Body;
use axum::extract::Path;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// `GET /v1/tools`.
pub async fn list(known: KnownRequest, uri: Uri) -> Result<Response, Refusal> {
    let caller = acting(&known, &uri)?;
    let format = format(&uri)?;
    let all = offered_tools(&known, &caller).map_err(|fault| known.refusal(fault))?;
    let mut listed = all.clone();
    if let Some(namespace) = parameter(&uri, "namespace") {
        listed.retain(|tool| tool.manifest.namespace() == namespace);
    }
    Ok(match format {
        Some(format) => export_response(export::tools(&listed, &all, format)),
        None => {
            let listed: Vec<Value> = listed.iter().map(|tool| export::describe(tool)).collect();
            reply::json(StatusCode::OK, &json!({ "tools": listed }))
        }
    })
}

/// `GET /v1/tools/{tool}`.
pub async fn one(known: KnownRequest, Path(tool): Path<String>, uri: Uri) -> Result<Response, Refusal> {
    let format = format(&uri)?;
    let caller = acting(&known, &uri)?;
    let id = ToolNames::new(&known, Some(&caller.user)).id(tool);
    let tool = known.server.service.find(&caller, &id).map_err(|fault| known.refusal(fault))?;
    let Some(format) = format else {
        return Ok(reply::json(StatusCode::OK, &export::describe(&tool)));
    };
    let mut all = offered_tools(&known, &caller).map_err(|fault| known.refusal(fault))?;
    // A tool that is not listed has the name that it would have in the list.
    if !all.iter().any(|other| other.manifest.id == tool.manifest.id) {
        all.push(tool.clone());
    }
    Ok(export_response(export::tools(&[tool], &all, format)))
}

/// `GET /v1/tools/{tool}/audit`, for operators.
pub async fn audit(Operator(known): Operator, Path(tool): Path<String>) -> Result<Response, Refusal> {
    let service = known.server.service.clone();
    // Blocks: it hashes scripts, and reads grants and the log.
    let report = tokio::task::spawn_blocking(move || service.audit(&tool)).await;
    let failed = || Fault::new(Kind::InternalError, "The host failed while it made this report.");
    let report = report.unwrap_or_else(|_| Err(failed())).map_err(|fault| known.refusal(fault))?;
    Ok(reply::json(StatusCode::OK, &report))
}

/// Tools by the names that models know (`ns__name`, or what their authors chose), of all that one caller is offered.
pub struct ToolNames<'k> {
    known: &'k KnownRequest,
    caller: Caller,
    /// Made when the first name is not an id.
    names: OnceCell<Names>,
}

impl ToolNames<'_> {
    /// `label`: for whom the tools are called.
    pub fn new<'k>(known: &'k KnownRequest, label: Option<&str>) -> ToolNames<'k> {
        let caller = known.server.service.who(&known.caller, label);
        ToolNames { known, caller, names: OnceCell::new() }
    }

    /// The id behind a name; anything else stays as it is.
    pub fn id(&self, tool: String) -> String {
        let (name, range) = tool.split_at(tool.find('@').unwrap_or(tool.len()));
        if name.contains(':') {
            return tool;
        }
        let names = self.names.get_or_init(|| {
            let all = offered_tools(self.known, &self.caller).unwrap_or_default();
            Names::new(all.iter().map(|tool| tool.manifest.named()))
        });
        names.id(name).map(|id| format!("{id}{range}")).unwrap_or(tool)
    }
}

/// The caller that `as` names, if this caller may act as that; without `as`, this caller.
fn acting(known: &KnownRequest, uri: &Uri) -> Result<Caller, Refusal> {
    let Some(name) = parameter(uri, "as") else { return Ok(known.caller.clone()) };
    let other = known.server.service.who(&known.caller, Some(&name));
    if other.user == name {
        return Ok(other);
    }
    let words = "as: you may not act as this caller (act_as in callers.policy.toml says whom you may act as).";
    Err(Fault::new(Kind::AuthorizationError, words).into())
}

/// The tools that this caller is offered.
fn offered_tools(known: &KnownRequest, caller: &Caller) -> Result<Vec<Arc<Tool>>, Fault> {
    let service = &known.server.service;
    let called = |id: &str| service.find(caller, id).ok();
    Ok(export::offered(service.tools(caller)?, called, |tool| service.can_call(caller, tool)))
}

fn format(uri: &Uri) -> Result<Option<Format>, Refusal> {
    let format = parameter(uri, "format").map(|format| Format::parse(&format)).transpose();
    format.map_err(|why| Refusal::malformed(format!("format: {why}.")))
}

fn export_response(exported: Value) -> Response {
    match exported {
        Value::String(text) => reply::plain_text(text),
        value => reply::json(StatusCode::OK, &value),
    }
}

/// `GET /v1/status`.
pub async fn status(Operator(KnownRequest { server, caller, .. }): Operator) -> Response {
    let service = &server.service;
    let everybody = Caller::operator(caller.user);
    let open = service.calls(&everybody);
    let count = |phase: Phase| open.iter().filter(|call| call.phase == phase).count();
    let snapshot = service.registry().snapshot();
    let sources: BTreeMap<_, _> = snapshot.sources.iter().cloned().collect();
    let status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": service.ready().is_ok(),
        "draining": server.stop.is_cancelled(),
        "running": count(Phase::Running),
        "waiting": count(Phase::Waiting),
        "approvals": service.approvals().len(),
        "breakers": service.breakers(&everybody),
        "tools": snapshot.list(&Filter::default()).len(),
        "sources": sources,
        "skippedFiles": snapshot.skipped(),
        "stale": snapshot.warnings.iter().cloned().chain(service.stale_rules()).collect::<Vec<_>>(),
        "background": server.background.kept(),
        "brokers": server.brokers.status(),
        "toolServices": service.tool_services(),
        "announced": server.announced.status(),
    });
    reply::json(StatusCode::OK, &status)
}

/// `GET /metrics`.
pub async fn metrics(Operator(KnownRequest { server, .. }): Operator) -> Response {
    let (mut text, kept) = (server.service.metrics(), server.background.kept());
    text.gauge("toolhost_background_calls_open", "Calls in the background that have not ended.", kept.open);
    text.gauge("toolhost_background_calls_kept", "Calls in the background whose results are kept.", kept.ended);
    text.gauge("toolhost_callbacks_owed", "Callbacks of ended calls that are not delivered yet.", kept.untold);
    reply::plain_text(text.whole())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    approve: bool,
}

/// `GET /v1/approvals`.
pub async fn approvals(Operator(KnownRequest { server, .. }): Operator) -> Response {
    reply::json(StatusCode::OK, &json!({ "approvals": server.service.approvals() }))
}

/// `POST /v1/approvals/{call}`.
pub async fn approve(Operator(known): Operator, Path(call): Path<String>, body: Body) -> Result<Response, Refusal> {
    let received = body::read(&known, "", body, |_| false).await?;
    let read = |text: &str| serde_json::from_str::<Object<Approval>>(text).map(|Object(answer)| answer);
    let Approval { approve } = body::parse(&known, received.text, read)
        .await
        .map_err(|_| Refusal::malformed("The body is {\"approve\": true} or {\"approve\": false}."))?;
    // The body may have taken long to arrive, so check again who this is.
    let operator = known.acting_now()?;
    if !operator.operator {
        return Err(not_operator());
    }
    match known.server.service.approve(&known.caller, &call, approve) {
        Some(Ok(())) => Ok(reply::json(StatusCode::OK, &json!({ "call": call, "approved": approve }))),
        Some(Err(fault)) => Err(known.refusal(fault)),
        None => Err(no_such_call("No such call waits for an answer.")),
    }
}
