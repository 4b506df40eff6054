//! For operators: every tool and its state, its approval, orders to disable and enable it, and the
//! calls of the audit log. What only the page shows comes from these paths, too.

use super::body;
use super::gate::parameter;
use super::reply::{self, Refusal, Response, malformed};
use super::request::{KnownRequest, Operator, not_operator};
use crate::base::json::Object;
use crate::base::text;
use crate::fault::{Fault, Kind};
use crate::manifest::Selector;
use crate::service::audit::{CallFilter, MAX_RECORD_BYTES, PastCalls};
use crate::service::stop_orders::{self, StopOrder};
use crate::service::{Service, inventory, tool_approval};
use axum::body::Body;
use axum::extract::Path;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Most calls of one answer, and how many there are where nothing is said.
const MAX_CALLS: usize = 100;
const USUAL_CALLS: usize = 50;

/// Does work that blocks, in the fair queue of those who read much.
async fn read(
    known: &KnownRequest,
    work: impl FnOnce(&Arc<Service>) -> Result<Value, Fault> + Send + 'static,
) -> Result<Response, Refusal> {
    let service = known.server.service.clone();
    let readers = service.limiter.readers.clone();
    let worked = readers.run(&known.caller.user, move || work(&service));
    let worked = worked.await.unwrap_or_else(|_| {
        let words = "The host failed while it made this answer.";
        Err(Fault::new(Kind::InternalError, words))
    });
    let answer = worked.map_err(|fault| known.refusal(fault))?;
    Ok(reply::json(StatusCode::OK, &answer))
}

/// `GET /v1/inventory`.
pub async fn tools(Operator(known): Operator) -> Result<Response, Refusal> {
    read(&known, |service| inventory::all(service)).await
}

/// `GET /v1/tools/{tool}/approval`.
pub async fn approval(
    Operator(known): Operator,
    Path(tool): Path<String>,
) -> Result<Response, Refusal> {
    read(&known, move |service| tool_approval::report(service, &tool)).await
}

/// `GET /v1/log`: the newest calls of the audit log, and those that run.
pub async fn calls(Operator(known): Operator, uri: Uri) -> Result<Response, Refusal> {
    let limit = parameter(&uri, "limit").map_or(Ok(USUAL_CALLS), |limit| limit.parse());
    let limit = limit.ok().filter(|limit| (1..=MAX_CALLS).contains(limit));
    let limit =
        limit.ok_or_else(|| Refusal::malformed(format!("limit: from 1 to {MAX_CALLS}.")))?;
    let after = parameter(&uri, "after").map(|after| after.parse());
    let after = after.transpose();
    let tool = parameter(&uri, "tool").map(|tool| Selector::try_from(tool.into_owned()));
    let tool = tool.transpose();
    let wanted = CallFilter {
        tool: tool.map_err(|why| Refusal::malformed(format!("tool: {why}.")))?,
        caller: parameter(&uri, "caller").map(|caller| caller.into_owned()),
        root: known.server.service.audit.root().map(str::to_owned),
        refused: is_set(&uri, "refused")?,
        failed: is_set(&uri, "failed")?,
        since: None,
        after: after.map_err(|_| Refusal::malformed("after: the `last` of an earlier answer."))?,
    };
    let most = limit * usize::try_from(MAX_RECORD_BYTES).unwrap_or(usize::MAX);
    let service = &known.server.service;
    let _reserved = service.limiter.try_answer(&known.caller.user, most)?;
    read(&known, move |service| {
        let log = service.audit.for_reading();
        let found = log.calls(limit, &wanted).map_err(|why| {
            let words = "The audit log cannot be read.";
            let file = text::path(log.path());
            Fault::new(Kind::InternalError, words).person(format!("{file}: {why}"))
        })?;
        let PastCalls {
            ended,
            running,
            last,
        } = found;
        Ok(json!({ "calls": ended, "running": running, "last": last }))
    })
    .await
}

/// Whether a parameter is `true`.
fn is_set(uri: &Uri, name: &str) -> Result<bool, Refusal> {
    match parameter(uri, name).as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Refusal::malformed(format!("{name}: true or false."))),
    }
}

/// `GET /v1/log/{call}`: its record.
pub async fn call(
    Operator(known): Operator,
    Path(call): Path<String>,
) -> Result<Response, Refusal> {
    let log = known.server.service.audit.for_reading();
    let readers = known.server.service.limiter.readers.clone();
    let found = readers.run(&known.caller.user, move || log.recall_own(&call));
    match found.await {
        Ok(Ok(mut past)) => {
            let tool = past.record["tool"].as_str().unwrap_or_default().to_owned();
            let service = &known.server.service;
            service.add_fixes(&tool, &mut past.record["violations"]);
            Ok(reply::json(StatusCode::OK, &past.record))
        }
        Ok(Err(why)) => {
            let fault = malformed("No such call is recorded, or it still runs.").person(why);
            let Refusal { fault, .. } = known.refusal(fault);
            Err(Refusal::new(StatusCode::NOT_FOUND, *fault))
        }
        Err(_) => {
            let words = "The host failed while it read the audit log.";
            Err(Fault::new(Kind::InternalError, words).into())
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    why: String,
    /// End the calls that run, too.
    #[serde(default)]
    now: bool,
}

/// `POST /v1/tools/{tool}/disable`.
pub async fn disable(
    Operator(known): Operator,
    Path(tools): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let received = body::read(&known, "", body, |_| false).await?;
    let Reason { why, now } = body::parse(&known, received.text, |text: &str| {
        serde_json::from_str::<Object<Reason>>(text).map(|Object(reason)| reason)
    })
    .await
    .map_err(|_| {
        Refusal::malformed(
            "The body is {\"why\": TEXT}, with \"now\": true to end calls that run, too.",
        )
    })?;
    // The body may have taken long to arrive, so check again who this is.
    let operator = known.acting_now()?;
    if !operator.operator {
        return Err(not_operator());
    }
    let order = StopOrder {
        operator: operator.user,
        tools,
        why,
        ends_calls: now,
    };
    read(&known, move |service| stop_orders::disable(service, order)).await
}

/// `POST /v1/tools/{tool}/enable`.
pub async fn enable(
    Operator(known): Operator,
    Path(tools): Path<String>,
) -> Result<Response, Refusal> {
    let operator = known.acting().user;
    read(&known, move |service| {
        stop_orders::enable(service, &operator, &tools)
    })
    .await
}
