//! `/v1/tools`: what a caller may call, as JSON or in the shapes of model APIs; for operators what a tool may touch.

use super::Face;
use super::extract::{Operator, RequestCaller};
use super::reply::{self, Refused, Response};
use crate::fault::{Fault, Kind};
use crate::registry::Tool;
use crate::service::Caller;
use crate::transport::export::{self, ExportDocument, Format};
use crate::transport::names::Names;
use axum::extract::Path;
use http::{StatusCode, Uri};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

/// `GET /v1/tools`.
pub async fn list(known: RequestCaller, uri: Uri) -> Result<Response, Refused> {
    let caller = acting(&known, &uri)?;
    let format = format(&uri)?;
    let all = offered(&known.face, &caller).map_err(|fault| known.fault(fault))?;
    let namespace = parameter(&uri, "namespace");
    let within = |tool: &&Arc<Tool>| {
        namespace
            .as_deref()
            .is_none_or(|wanted| tool.manifest.id.split_once(':').is_some_and(|(space, _)| space == wanted))
    };
    let listed: Vec<Arc<Tool>> = all.iter().filter(within).cloned().collect();
    Ok(match format {
        Some(format) => exported(export::tools(&listed, &all, format)),
        None => {
            let listed: Vec<Value> = listed.iter().map(|tool| Value::Object(export::described(tool))).collect();
            reply::value(StatusCode::OK, &json!({ "tools": listed }))
        }
    })
}

/// `GET /v1/tools/{tool}`.
pub async fn one(known: RequestCaller, Path(tool): Path<String>, uri: Uri) -> Result<Response, Refused> {
    let RequestCaller { face, caller } = &known;
    let tool = ToolNames::of(face, caller).id(tool);
    let format = format(&uri)?;
    let found = face.service.find(caller, &tool).and_then(|tool| Ok((tool, offered(face, caller)?)));
    let (tool, mut all) = found.map_err(|fault| known.fault(fault))?;
    let Some(format) = format else {
        return Ok(reply::value(StatusCode::OK, &Value::Object(export::described(&tool))));
    };
    // A tool that is not listed keeps the name by which it would be.
    if !all.iter().any(|other| other.manifest.id == tool.manifest.id) {
        all.push(tool.clone());
    }
    Ok(exported(export::tools(&[tool], &all, format)))
}

/// `GET /v1/tools/{tool}/audit`, for operators.
pub async fn audit(Operator { face, .. }: Operator, Path(tool): Path<String>) -> Response {
    // Scripts are hashed, grants and the log are looked at.
    let report = tokio::task::spawn_blocking(move || face.service.audit(&tool)).await;
    match report {
        Ok(Ok(report)) => reply::value(StatusCode::OK, &report),
        Ok(Err(fault)) => reply::fault(fault, true),
        Err(_) => reply::fault(Fault::new(Kind::InternalError, "The host failed while it made this report."), true),
    }
}

/// Tools by the names that models know (`ns__name`, or what their authors chose), of all that one caller is offered.
pub struct ToolNames<'f> {
    face: &'f Face,
    caller: &'f Caller,
    /// Made for the first that is no id.
    names: OnceCell<Names>,
}

impl ToolNames<'_> {
    pub fn of<'f>(face: &'f Face, caller: &'f Caller) -> ToolNames<'f> {
        ToolNames { face, caller, names: OnceCell::new() }
    }

    /// The id behind a name; whatever else is asked for stays as it is.
    pub fn id(&self, tool: String) -> String {
        let (name, range) = tool.split_at(tool.find('@').unwrap_or(tool.len()));
        if name.contains(':') {
            return tool;
        }
        let names = self.names.get_or_init(|| {
            let all = offered(self.face, self.caller).unwrap_or_default();
            Names::of(all.iter().map(|tool| tool.manifest.named()))
        });
        names.id(name).map(|id| format!("{id}{range}")).unwrap_or(tool)
    }
}

/// The caller that `as` names, where this one may act as that one; without `as` this one.
fn acting(known: &RequestCaller, uri: &Uri) -> Result<Caller, Refused> {
    let Some(name) = parameter(uri, "as") else { return Ok(known.caller.clone()) };
    let other = known.face.service.who(&known.caller, Some(&name));
    if other.user == name {
        return Ok(other);
    }
    let words = "as: you may not act as this caller (act_as in callers.policy.toml says whom you may act as).";
    Err(reply::refused(StatusCode::FORBIDDEN, Fault::new(Kind::AuthorizationError, words)))
}

/// What this caller is offered here.
fn offered(face: &Face, caller: &Caller) -> Result<Vec<Arc<Tool>>, Fault> {
    let service = &face.service;
    let called = |id: &str| service.find(caller, id).ok();
    Ok(export::offered(service.tools(caller)?, called, |tool| service.can_call(caller, tool)))
}

/// The gate let in what is text, and stands once.
fn parameter<'u>(uri: &'u Uri, name: &str) -> Option<Cow<'u, str>> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let found = pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
    found.map(|(_, value)| percent_decode_str(value).decode_utf8_lossy())
}

fn format(uri: &Uri) -> Result<Option<Format>, Refused> {
    let format = parameter(uri, "format").map(|format| format.parse()).transpose();
    format.map_err(|why| reply::refused(StatusCode::BAD_REQUEST, reply::malformed(&format!("format: {why}."))))
}

fn exported(exported: ExportDocument) -> Response {
    match exported {
        ExportDocument::Json(value) => reply::value(StatusCode::OK, &value),
        ExportDocument::Text(text) => reply::text(text),
    }
}
