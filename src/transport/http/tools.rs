//! `/v1/tools`: what a caller may call, as JSON or in the shapes of model APIs. For operators: what
//! a tool may touch, `/v1/approvals`, `/v1/status`, `/metrics`.

use super::background::no_such_call;
use super::body;
use super::gate::parameter;
use super::offered::OfferedTools;
use super::reply::{self, Refusal, Response};
use super::request::{KnownRequest, Operator, not_operator};
use crate::base::json::Object;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::registry::Filter;
use crate::service::search::{MAX_HITS, USUAL_HITS};
use crate::service::{Caller, Phase, metrics, tool_audit};
use crate::transport::export::{self, Format};
use crate::transport::names::Names;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /v1/tools`.
pub async fn list(known: KnownRequest, uri: Uri) -> Result<Response, Refusal> {
    let caller = acting(&known, &uri)?;
    let format = format(&uri)?;
    known
        .server
        .service
        .catalog
        .ready()
        .map_err(|fault| known.refusal(fault))?;
    let namespace = parameter(&uri, "namespace").map(|namespace| namespace.into_owned());
    let question = Question::read(&uri)?;
    if question.is_some() {
        // As costly as a call of core:search-tools.
        let service = &known.server.service;
        let label = parameter(&uri, "as");
        let charged = service
            .catalog
            .charge_as(&service.limiter, &known.caller, label.as_deref());
        charged.map_err(|fault| known.refusal(fault))?;
    }
    // Blocks where the text is to be made.
    let make = move || match question {
        Some(question) => question.answer(&known, &caller, format),
        None => offered_tools(&known, &caller).text(format, namespace),
    };
    let text = tokio::task::spawn_blocking(make).await;
    let text = text.map_err(|_| {
        Fault::new(
            Kind::InternalError,
            "The host failed while it made this list.",
        )
    })?;
    Ok(match format {
        Some(format) if format.is_text() => reply::plain_text(text),
        _ => reply::json_text(text),
    })
}

/// What a search asks for.
struct Question {
    query: String,
    limit: usize,
}

impl Question {
    /// `None`: nothing is searched.
    fn read(uri: &Uri) -> Result<Option<Question>, Refusal> {
        let Some(query) = parameter(uri, "query") else {
            return Ok(None);
        };
        let limit = parameter(uri, "limit").map(|limit| limit.parse());
        let limit = limit.unwrap_or(Ok(USUAL_HITS)).ok();
        let limit = limit.filter(|limit| (1..=MAX_HITS).contains(limit));
        let query = query.into_owned();
        match limit {
            Some(limit) => Ok(Some(Question { query, limit })),
            None => Err(Refusal::malformed(format!("limit: from 1 to {MAX_HITS}."))),
        }
    }

    fn answer(&self, known: &KnownRequest, caller: &Caller, format: Option<Format>) -> Bytes {
        let search = &known.server.service.search;
        let hits = search.find(caller, &self.query, self.limit, |_| true);
        let names = &offered_tools(known, caller).names;
        match export::found(&hits, names, format) {
            Value::String(text) => text.into(),
            value => text::json(&value, false).into(),
        }
    }
}

/// `GET /v1/tools/{tool}`.
pub async fn one(
    known: KnownRequest,
    Path(tool): Path<String>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let format = format(&uri)?;
    let caller = acting(&known, &uri)?;
    let id = ToolNames::new(&known, Some(&caller.user)).id(tool);
    let tool = known
        .server
        .service
        .catalog
        .find(&caller, &id)
        .map_err(|fault| known.refusal(fault))?;
    let Some(format) = format else {
        return Ok(reply::json(StatusCode::OK, &export::describe(&tool)));
    };
    let all = offered_tools(&known, &caller);
    // A tool that is not listed has the name that it would have in the list.
    let names = export::names(all.tools.iter().chain([&tool]));
    Ok(export_response(export::tools(&[tool], &names, format)))
}

/// `GET /v1/tools/{tool}/audit`, for operators.
pub async fn audit(
    Operator(known): Operator,
    Path(tool): Path<String>,
) -> Result<Response, Refusal> {
    let service = known.server.service.clone();
    // Blocks: it hashes scripts, and reads grants and the log.
    let report = tokio::task::spawn_blocking(move || tool_audit::tool(&service, &tool)).await;
    let report = report
        .unwrap_or_else(|_| {
            Err(Fault::new(
                Kind::InternalError,
                "The host failed while it made this report.",
            ))
        })
        .map_err(|fault| known.refusal(fault))?;
    Ok(reply::json(StatusCode::OK, &report))
}

/// Tools by the names that models know (`ns__name`, or what their authors chose), of all that one
/// caller is offered.
pub struct ToolNames<'k> {
    known: &'k KnownRequest,
    caller: Caller,
}

impl ToolNames<'_> {
    /// `label`: for whom the tools are called.
    pub fn new<'k>(known: &'k KnownRequest, label: Option<&str>) -> ToolNames<'k> {
        let caller = known.server.service.catalog.who(&known.caller, label);
        ToolNames { known, caller }
    }

    /// The tools that the caller is offered.
    pub fn offered(&self) -> Arc<OfferedTools> {
        offered_tools(self.known, &self.caller)
    }

    /// The name of an offered tool, for models.
    pub fn name(&self, id: &str) -> Option<String> {
        let offered = self.offered();
        offered.names.name(id.split('@').next().unwrap_or_default())
    }

    /// The names of all tools that the caller may call, offered or not.
    pub fn taken(&self) -> Names {
        let tools = self.known.server.service.tools(&self.caller);
        export::names(tools.iter().flatten())
    }

    /// The names of all listed tools that the caller may call, also where they cannot be called now.
    fn listed(&self) -> Names {
        let tools = self.known.server.service.tools(&self.caller);
        let tools = tools.iter().flatten();
        export::names(tools.filter(|tool| tool.manifest.is_listed))
    }

    /// The id behind a name, also of a tool that cannot be called now: its call says why. Anything
    /// else stays as it is.
    pub fn id(&self, tool: String) -> String {
        let (name, range) = tool.split_at(tool.find('@').unwrap_or(tool.len()));
        if name.contains(':') {
            return tool;
        }
        let offered = self.offered();
        let id = offered.names.id(name).map(str::to_owned);
        let id = id.or_else(|| Some(self.listed().id(name)?.to_owned()));
        id.map_or_else(|| tool.clone(), |id| format!("{id}{range}"))
    }
}

/// The caller that `as` names, if this caller may act as that; without `as`, this caller.
pub fn acting(known: &KnownRequest, uri: &Uri) -> Result<Caller, Refusal> {
    let Some(name) = parameter(uri, "as") else {
        return Ok(known.caller.clone());
    };
    let other = known.server.service.catalog.who(&known.caller, Some(&name));
    if other.user == name {
        return Ok(other);
    }
    let words = "as: you may not act as this caller (act_as in callers.policy.toml says whom you \
        may act as).";
    Err(Fault::new(Kind::AuthorizationError, words).into())
}

/// The tools that this caller is offered.
fn offered_tools(known: &KnownRequest, caller: &Caller) -> Arc<OfferedTools> {
    let service = &known.server.service;
    let make = || OfferedTools::new(service, caller);
    known.server.lists.find(&service.catalog, caller, make)
}

fn format(uri: &Uri) -> Result<Option<Format>, Refusal> {
    let format = parameter(uri, "format")
        .map(|format| Format::parse(&format))
        .transpose();
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
    let open = service.calls.of(&everybody);
    let count = |phase: Phase| open.iter().filter(|call| call.phase == phase).count();
    let snapshot = service.catalog.registry.snapshot();
    let disabled = service.catalog.stops.now();
    let disabled = disabled.map_or_else(
        |fault| json!({ "unreadable": fault.person }),
        |stops| json!(stops),
    );
    let status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "caller": everybody.user,
        "ready": server.refuses_calls().is_none(),
        "draining": server.stop.is_cancelled(),
        "running": count(Phase::Running, ),
        "waiting": count(Phase::Waiting, ),
        "approvals": service.confirmations.list().len(),
        "breakers": service.breakers.of(&everybody),
        "tools": snapshot.list(&Filter::default()).len(),
        "sources": snapshot.sources(),
        "skippedFiles": snapshot.skipped(),
        "disabled": disabled,
        "stale": snapshot.warnings.iter().cloned().chain(service.catalog.stale_rules()).collect::<Vec<_>>(),
        "background": server.background.kept(),
        "brokers": server.brokers.status(),
        "toolServices": service.catalog.tool_services(),
        "announced": server.announced.status(),
    });
    reply::json(StatusCode::OK, &status)
}

/// `GET /metrics`.
pub async fn metrics(Operator(KnownRequest { server, .. }): Operator) -> Response {
    let mut text = metrics::text(&server.service);
    let kept = server.background.kept();
    text.gauge(
        "toolhost_background_calls_open",
        "Calls in the background that have not ended.",
        kept.open,
    );
    text.gauge(
        "toolhost_background_calls_kept",
        "Calls in the background whose results are kept.",
        kept.ended,
    );
    text.gauge(
        "toolhost_callbacks_owed",
        "Callbacks of ended calls that are not delivered yet.",
        kept.untold,
    );
    reply::plain_text(text.whole())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    approve: bool,
}

/// `GET /v1/approvals`.
pub async fn approvals(Operator(KnownRequest { server, .. }): Operator) -> Response {
    reply::json(
        StatusCode::OK,
        &json!({ "approvals": server.service.confirmations.list() }),
    )
}

/// `POST /v1/approvals/{call}`.
pub async fn approve(
    Operator(known): Operator,
    Path(call): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let received = body::read(&known, "", body, |_| false).await?;
    let Approval { approve } = body::parse(&known, received.text, |text: &str| {
        serde_json::from_str::<Object<Approval>>(text).map(|Object(answer)| answer)
    })
    .await
    .map_err(|_| Refusal::malformed("The body is {\"approve\": true} or {\"approve\": false}."))?;
    // The body may have taken long to arrive, so check again who this is.
    let operator = known.acting_now()?;
    if !operator.operator {
        return Err(not_operator());
    }
    match known
        .server
        .service
        .confirmations
        .answer(&known.caller, &call, approve)
    {
        Some(Ok(())) => Ok(reply::json(
            StatusCode::OK,
            &json!({ "call": call, "approved": approve }),
        )),
        Some(Err(fault)) => Err(known.refusal(fault)),
        None => Err(no_such_call("No such call waits for an answer.")),
    }
}
