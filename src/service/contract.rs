//! The tool-service contract: untyped requests and replies that carry an `id`.
//!
//! For: programs that embed this library, later transports of messages. In: `{id, user, config, arguments}`, the last
//! two JSON text; `config` is `{"tool": …, "timeoutMs"?: …}`. Out: replies with the same `id`, the last with
//! `end_of_stream`. Never: takes another road than `Service::call`.

use super::report::Report;
use super::{Arguments, CallRequest, Caller, Event, Service, Sink, arguments, format};
use crate::base::{json, text};
use crate::fault;
use fault::{Fault, Kind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Replies that may wait for a slow reader.
const BUFFER: usize = 16;

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolServiceRequest {
    pub id: String,
    pub user: String,
    /// JSON text; empty text is an empty map.
    pub config: String,
    /// JSON text; empty text is an empty map.
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolServiceResponse {
    pub id: String,
    /// `null` on success: written, not left out.
    pub error: Option<ToolServiceError>,
    pub response: String,
    pub end_of_stream: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolServiceError {
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
}

impl ToolServiceResponse {
    fn of(id: String, report: &Report) -> ToolServiceResponse {
        let error = report
            .error
            .as_ref()
            .map(|fault| ToolServiceError { kind: fault.kind.to_string(), message: fault.message.clone() });
        let response = match &error {
            Some(_) => String::new(),
            None => report.output_data.as_ref().map(format::response).unwrap_or_default(),
        };
        ToolServiceResponse { id, error, response, end_of_stream: true }
    }
}

impl Service {
    /// Takes one request and answers on a channel: the parts of a tool that streams as they come, then how the call
    /// ended, with `end_of_stream`. `caller`: who authenticated; the request's `user` is a label. Dropping the receiver cancels the call.
    pub fn handle(
        self: &Arc<Self>,
        caller: Caller,
        request: ToolServiceRequest,
    ) -> mpsc::Receiver<ToolServiceResponse> {
        let (replies, receiver) = mpsc::channel(BUFFER);
        let service = self.clone();
        tokio::spawn(async move {
            let (sink, mut events) = Sink::new(BUFFER);
            let call = match decoded(&request) {
                Ok(call) => CallRequest { caller, ..call },
                Err(fault) => CallRequest::refused(caller, &request.config, fault),
            };
            let label = Some(request.user.clone()).filter(|user| !user.is_empty());
            let call = CallRequest { label, ..call };
            let answer = service.call(call, sink);
            let forward = async {
                while let Some(event) = events.recv().await {
                    // The contract has no place for lines of a log.
                    let Event::Part(response) = event else { continue };
                    let part =
                        ToolServiceResponse { id: request.id.clone(), error: None, response, end_of_stream: false };
                    let _ = replies.send(part).await;
                }
            };
            let whole = async { tokio::join!(answer, forward).0 };
            tokio::select! {
                report = whole => {
                    let _ = replies.send(ToolServiceResponse::of(request.id.clone(), &report)).await;
                }
                () = replies.closed() => {}
            }
        });
        receiver
    }
}

/// The request as a call. The arguments stay text: the road parses them, so that a bad one is recorded.
fn decoded(request: &ToolServiceRequest) -> Result<CallRequest, Fault> {
    let config = config(&request.config)?;
    let tool = match config.get("tool") {
        Some(Value::String(tool)) if !tool.is_empty() => tool.clone(),
        _ => {
            let message = "The config names no tool: it must be a JSON object with \"tool\".";
            return Err(Fault::new(Kind::ToolNotFoundError, message));
        }
    };
    let timeout_ms = timeout_ms(&config)?;
    let arguments = Arguments::Text(request.arguments.clone());
    Ok(CallRequest { timeout_ms, ..CallRequest::new(Caller::default(), tool, arguments) })
}

/// A config from its JSON text.
pub fn config(text: &str) -> Result<Map<String, Value>, Fault> {
    arguments::object("config", text)
}

/// The time limit that a config sets. What a config holds besides is others' to read, but not a time limit by another name.
pub fn timeout_ms(config: &Map<String, Value>) -> Result<Option<u64>, Fault> {
    let meant =
        |name: &&String| ["timeout", "timeoutms"].contains(&name.replace(['_', '-'], "").to_lowercase().as_str());
    if let Some(name) = config.keys().filter(|name| *name != "timeoutMs").find(meant) {
        let words = format!("The config's '{}' is not known. Did you mean 'timeoutMs'?", text::printable(name));
        return Err(Fault::new(Kind::ParameterValidationError, words));
    }
    match config.get("timeoutMs") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => json::whole(value).map(Some).ok_or_else(|| {
            Fault::new(Kind::ParameterValidationError, "The config's 'timeoutMs' must be a whole number.")
        }),
    }
}
